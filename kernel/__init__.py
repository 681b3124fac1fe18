"""The kernel: an ordered durable log, the path through it, and the hooks. It knows no feature.

Reading order: ``hookspecs`` is the page of all hooks and names the write path. ``broker`` puts the parts together;
``sweep`` owns the sockets; ``processors`` and ``connection`` are what a plugin sees of them. ``store`` and below it
``commitlog``, ``queues``, ``recovery`` are the files, drivable without any task; ``acks`` lets replies go when the
gates are passed. ``env`` is the only module that touches the operating system.
"""

from gantrymq.kernel.hookspecs import hookimpl, hookspec

__all__ = ["hookimpl", "hookspec"]
