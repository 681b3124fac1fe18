"""Helpers of GantryMQ's own tests and benchmarks: real processes, RocketMQ's programs, failing disks.

It is no part of the package; what users and authors of plugins need is in :mod:`gantrymq.testing`.
"""
