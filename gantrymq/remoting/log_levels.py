"""The lowest level that this process logs, also by component. It can change while the process runs.

A component is the name of a structlog logger without ``gantrymq.``: ``structlog.get_logger("gantrymq.ha")`` is ``ha``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import attrs
import structlog

LEVELS: Final = ("debug", "info", "warning", "error")
_NUMBERS: Final[dict[str, int]] = {level: getattr(logging, level.upper()) for level in LEVELS} | {
    "critical": logging.CRITICAL
}


@attrs.frozen
class LogLevels:
    """The level of the process, and those of components that differ from it."""

    level: str = "info"
    components: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def parse(cls, text: str, level: str = "info") -> LogLevels:
        """Read ``warning,ha=debug``: a level, levels of components, or both. ``level`` holds where ``text`` has none.

        ValueError for everything else.
        """
        components: dict[str, str] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            name, equals, value = (each.strip() for each in part.partition("="))
            wanted = value if equals else name
            if wanted not in LEVELS or (equals and not name):
                raise ValueError(
                    f"{part!r} is not a log level: write one of {', '.join(LEVELS)}, or COMPONENT=LEVEL, with commas"
                    " between several"
                )
            if equals:
                components[name.removeprefix("gantrymq.")] = wanted
            else:
                level = wanted
        return cls(level, components)

    @property
    def lowest(self) -> int:
        """The number of the lowest level that is logged at all."""
        return min(_NUMBERS[level] for level in (self.level, *self.components.values()))

    def __str__(self) -> str:
        return ",".join((self.level, *(f"{name}={level}" for name, level in self.components.items())))


_started = LogLevels()
_current = _started


def start_with(levels: LogLevels) -> None:
    """Use the levels of the command line; :func:`change_to` with an empty text returns to them."""
    global _started, _current
    _started = _current = levels


def change_to(text: str) -> LogLevels:
    """Use these levels from now on; an empty text stands for those of the start. ValueError as in ``parse``."""
    global _current
    _current = LogLevels.parse(text, _started.level) if text.strip() else _started
    if structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_current.lowest))
    return _current


def current() -> LogLevels:
    """The levels in force."""
    return _current


def component_of(logger: object) -> str:
    """The component of a logger that the log's factory made; empty if its author gave it no name."""
    return getattr(logger, "component", "")


def drop_lower_levels(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor that drops events below the level of their component."""
    levels = _current
    if levels.components:
        wanted = levels.components.get(component_of(logger), levels.level)
        if _NUMBERS.get(method, logging.CRITICAL) < _NUMBERS[wanted]:
            raise structlog.DropEvent
    return event
