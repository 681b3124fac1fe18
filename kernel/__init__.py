"""The kernel: an ordered durable log, the path through it, and the hooks. It knows no feature.

Reading order: ``hookspecs`` is the page of all hooks and names the write path. ``broker`` puts the parts together.
The modules beside them are what plugins work with: ``batch``, ``acks``, ``processors``, ``filters``, ``metrics``,
``registry``, ``errors``. ``store`` has the files: the log, the consume queues and recovery, drivable without any task.
``network`` has the sockets, ``config`` the configuration, ``fast`` the compiled loops. Only ``env`` touches the
operating system.
"""

from gantrymq.kernel.hookspecs import hookimpl, hookspec

__all__ = ["hookimpl", "hookspec"]
