"""The logger of library code: structlog if the application has configured it, else ``logging``.

Without configuration structlog prints every line to standard output, which belongs to the application, and ``logging``
prints warnings to standard error and drops the rest. Servers log with structlog directly; those in the process of a
test use :func:`servers_to_logging`.

structlog is not imported here: its import takes as long as the rest of the client's, and an application that has not
imported it has not configured it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

COMPONENTS: Final = (
    "acl", "admin", "admission", "audit", "broker", "client", "clients", "commitlog", "consume", "dashboard", "delay",
    "deletions", "delivery", "expiry", "exporter", "failover", "filter", "flowcontrol", "flush", "ha", "http",
    "index", "listening", "locks", "metrics", "nameserver", "offsets", "otel", "plugins", "processes", "produce",
    "queues", "quota", "recovery", "register", "reply", "requests", "retention", "segments", "server", "spark",
    "statefile", "stats", "store", "sweep", "systemd", "tls", "topics", "transaction", "watchdog",
)  # fmt: skip
"""Each logger of GantryMQ is ``gantrymq.`` and one of these; a plugin may have another one."""


class _Fallback:
    """Writes an event and its fields as one line of ``logging``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: Any) -> None:
        self.write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self.write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self.write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self.write(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        self.write(logging.ERROR, event, {"exc_info": True, **fields})

    def write(self, level: int, event: str, fields: MutableMapping[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            line = " ".join(f"{name}={value!r}" for name, value in {"event": event, **fields}.items())
            self._logger.log(level, "%s", line, exc_info=error, stacklevel=3)


_FALLBACK: Final = _Fallback("gantrymq")


class LibraryLog:
    """A logger that chooses its destination for every line."""

    def __getattr__(self, name: str) -> Any:
        structlog = sys.modules.get("structlog")
        is_configured = getattr(structlog, "is_configured", None)  # another thread may be importing it
        if structlog is not None and is_configured is not None and is_configured():
            return getattr(structlog.get_logger("gantrymq.client"), name)
        return getattr(_FALLBACK, name)


_lock: Final = threading.Lock()
_servers = 0


def create_loggers() -> None:
    """Create the loggers of ``logging`` that servers use.

    pytest goes through all loggers before each test, and fails with a RuntimeError if another thread, such as that of a
    broker, creates one meanwhile.
    """
    for component in COMPONENTS:
        logging.getLogger(f"gantrymq.{component}")


@contextmanager
def servers_to_logging() -> Iterator[None]:
    """During the block, lines that servers in this process write to an unconfigured structlog go to ``logging``.
    Other loggers of structlog print as before."""
    import structlog

    global _servers
    with _lock:
        _servers += 1
        if not structlog.is_configured():
            processors = [_write_own, *structlog.get_config()["processors"]]
            structlog.configure(processors=processors, logger_factory=_make_logger)
    try:
        yield
    finally:
        with _lock:
            _servers -= 1
            config = structlog.get_config()
            is_ours = config["logger_factory"] is _make_logger and _write_own in config["processors"]
            if not _servers and is_ours:  # not one of the application, which may have followed
                structlog.reset_defaults()


def _make_logger(name: str = "", *_: Any) -> Any:
    import structlog

    return _Fallback(name) if name.startswith("gantrymq.") else structlog.PrintLogger()


def _write_own(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: write a line of GantryMQ's loggers, and leave others to the next processor."""
    import structlog

    if not isinstance(logger, _Fallback):
        return event
    logger.write(getattr(logging, method.upper(), logging.INFO), event.pop("event", ""), event)
    raise structlog.DropEvent
