"""The logger of library code: structlog if the application has configured it, else ``logging``.

Without configuration structlog prints every line to standard output, which belongs to the application, and ``logging``
prints warnings to standard error and drops the rest.

structlog is not imported here: its import takes as long as the rest of the client's, and an application that has not
imported it has not configured it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

_LOGGER: Final = logging.getLogger("gantrymq")


class _Fallback:
    """Writes an event and its fields as one line of ``logging``."""

    def debug(self, event: str, /, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        self._write(logging.ERROR, event, {"exc_info": True, **fields})

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if _LOGGER.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            line = " ".join(f"{name}={value!r}" for name, value in {"event": event, **fields}.items())
            _LOGGER.log(level, "%s", line, exc_info=error, stacklevel=3)


_FALLBACK: Final = _Fallback()


class LibraryLog:
    """A logger that chooses its destination for every line."""

    def __getattr__(self, name: str) -> Any:
        structlog = sys.modules.get("structlog")
        is_configured = getattr(structlog, "is_configured", None)  # another thread may be importing it
        if structlog is not None and is_configured is not None and is_configured():
            return getattr(structlog.get_logger("gantrymq.client"), name)
        return getattr(_FALLBACK, name)
