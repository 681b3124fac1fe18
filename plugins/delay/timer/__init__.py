"""Timed messages: timer log, wheel, enqueue and dequeue."""
