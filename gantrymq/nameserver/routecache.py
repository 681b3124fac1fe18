"""A cache of encoded routes until they change, because many clients request few topics again and again."""

from __future__ import annotations

from typing import Final, NamedTuple

BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of all routes and their zones; a full cache is cleared."""
ENTRY_BYTES: Final = 350
"""What the objects of one entry take besides its text and zone."""
CHARACTER_BYTES: Final = 4
"""The most that one character of a zone takes."""


class RouteView(NamedTuple):
    """The form of a route for a client: strict JSON or unquoted integer keys, and the zone (None: all zones)."""

    strict: bool = True
    zone: str | None = None


class RouteCache:
    """The texts by topic and view, at most ``bytes_max`` bytes including their keys."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._texts: dict[str, dict[RouteView, bytes]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """The number of bytes that the entries take."""
        return self._bytes

    def get(self, topic: str, view: RouteView) -> bytes | None:
        """The cached text, or None."""
        views = self._texts.get(topic)
        return None if views is None else views.get(view)

    def put(self, topic: str, view: RouteView, text: bytes) -> None:
        """Cache ``text``, unless its entry alone exceeds the limit of the cache."""
        size = _size(view, text)
        if size > self._bytes_max:
            return
        if self._bytes + size > self._bytes_max:
            self.clear()
        views = self._texts.setdefault(topic, {})
        before = views.get(view)
        self._bytes += size - (0 if before is None else _size(view, before))
        views[view] = text

    def drop(self, topic: str) -> None:
        """Remove one topic."""
        self._bytes -= sum(_size(view, text) for view, text in self._texts.pop(topic, {}).items())

    def clear(self) -> None:
        """Remove all texts."""
        self._texts.clear()
        self._bytes = 0


def _size(view: RouteView, text: bytes) -> int:
    return ENTRY_BYTES + CHARACTER_BYTES * len(view.zone or "") + len(text)
