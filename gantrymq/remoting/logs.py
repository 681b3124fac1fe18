"""The logger of library code: structlog if the application has configured it, else ``logging``.

Without configuration structlog prints every line to standard output, which belongs to the application, and ``logging``
prints warnings to standard error and drops the rest.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

_FALLBACK: Any = structlog.wrap_logger(
    logging.getLogger("gantrymq"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


class LibraryLog:
    """A logger that chooses its destination for every line."""

    def __getattr__(self, name: str) -> Any:
        return getattr(structlog.get_logger("gantrymq.client") if structlog.is_configured() else _FALLBACK, name)
