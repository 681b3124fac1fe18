"""The consume queues: the log offsets of the messages of each topic and queue."""
