"""The newest log events of this process, for a dashboard in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final

EVENTS_KEPT: Final = 500
TEXT_MAX: Final = 500
"""Characters of a field's value that are kept."""
RANKS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_ALIASES: Final = {"warn": "warning", "err": "error", "exception": "error", "failure": "error", "fatal": "critical"}

RECENT: Final[deque[dict[str, Any]]] = deque(maxlen=EVENTS_KEPT)
"""Oldest first: ``time`` (ms since 1970), ``level``, ``event``, ``component``, and ``fields`` with the rest."""


def keep_recent(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: keep a copy of the event, unless its level is debug."""
    level = _ALIASES.get(method, method)
    if RANKS.get(level, 1) > 0:
        fields = {name: _kept(value) for name, value in event.items() if name not in _APART}
        RECENT.append(
            {
                "time": time.time_ns() // 1_000_000,
                "level": level,
                "event": str(event.get("event", "")),
                "component": str(event.get("component", "")),
                "fields": fields,
            }
        )
    return event


def recent_events(least: str = "info", search: str = "", most: int = EVENTS_KEPT) -> list[dict[str, Any]]:
    """Return the newest events first: those of level ``least`` or above in whose text ``search`` occurs."""
    wanted, rank = search.lower(), RANKS.get(least, 1)
    found = [
        event
        for event in reversed(list(RECENT))
        if RANKS.get(event["level"], 1) >= rank and (not wanted or wanted in str(event).lower())
    ]
    return found[:most]


_APART: Final = frozenset({"event", "component", "level", "timestamp", "exc_info", "stack_info"})


def _kept(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
