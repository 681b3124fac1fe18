"""The durable store: the log, the consume queues that follow from it, and recovery. It needs no task and no network."""
