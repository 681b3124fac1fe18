"""Find the end of the log after any kind of stop, and rebuild the derived data up to there."""
