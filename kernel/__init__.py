"""The kernel: an ordered durable log, the path through it, and the hooks. It knows no feature."""
