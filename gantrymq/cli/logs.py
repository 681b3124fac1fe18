"""Logs on stderr, one line for each event: colored text in a terminal, JSON otherwise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

import rich_click as click

LEVELS = ("debug", "info", "warning", "error")
COMMON_FIELDS: dict[str, str] = {}
"""Fields of each line of this process's log."""
F = TypeVar("F", bound=Callable[..., Any])


def log_level_option(default: str = "info") -> Callable[[F], F]:
    """The option ``--log-level``."""
    return click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default=default,
        show_default=True,
        help="The lowest level that is logged.",
    )


def configure_logs(level: str) -> None:
    """Set structlog up for this process."""
    import structlog

    def add_common(_logger: object, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.update(COMMON_FIELDS)
        return event

    human = sys.stderr.isatty()
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        *([add_common] if COMMON_FIELDS else []),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
        structlog.processors.StackInfoRenderer(),
    ]
    if human:
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        # a cached logger would use the stderr and the level of an earlier call in the same process
        cache_logger_on_first_use=False,
    )
