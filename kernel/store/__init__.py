"""The durable store: the log, the consume queues that are derived from it, and recovery. It needs no tasks and no
network."""
