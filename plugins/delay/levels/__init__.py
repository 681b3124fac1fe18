"""Delay levels: one queue for each delay."""
