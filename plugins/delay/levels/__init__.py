"""Delay levels: queues by the time that their messages wait."""
