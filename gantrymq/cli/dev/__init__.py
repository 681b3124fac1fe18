"""``gantrymq dev``: a cluster of processes on this machine, for development."""
