"""What GantryMQ's own tests and benchmarks share: real processes, RocketMQ's programs, disks that fail.

It is no part of the package; what users and authors of plugins need is in :mod:`gantrymq.testing`.
"""
