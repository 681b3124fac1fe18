"""The kernel: an ordered durable log, the path through it, and the hooks. It knows no feature.

Reading order: ``hookspecs`` has all hooks and the write path. ``broker`` constructs the parts. The modules beside them
are what plugins work with: ``batch``, ``acks``, ``processors``, ``filters``, ``metrics``, ``registry``, ``errors``.
``store`` has the files: the log, the consume queues and recovery, usable without tasks. ``network`` has the sockets,
``config`` the configuration, ``fast`` the compiled loops. Only ``env`` touches the operating system.
"""

from gantrymq.kernel.hookspecs import hookimpl, hookspec

__all__ = ["hookimpl", "hookspec"]
