"""The consume queues: for each topic and queue the places of its messages in the log."""
