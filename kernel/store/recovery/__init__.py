"""Where the log ends after a stop of any kind, and what follows from it up to there."""
