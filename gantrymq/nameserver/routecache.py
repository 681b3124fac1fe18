"""A cache of encoded routes until they change, because many clients request few topics again and again."""

from __future__ import annotations

from typing import Final, NamedTuple

BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of all routes; a full cache is cleared."""


class RouteView(NamedTuple):
    """The form of a route for a client: strict JSON or unquoted integer keys, and the zone (None: all zones)."""

    strict: bool = True
    zone: str | None = None


class RouteCache:
    """The texts by topic and view, at most ``bytes_max`` bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._texts: dict[str, dict[RouteView, bytes]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """The number of cached bytes."""
        return self._bytes

    def get(self, topic: str, view: RouteView) -> bytes | None:
        """The cached text, or None."""
        views = self._texts.get(topic)
        return None if views is None else views.get(view)

    def put(self, topic: str, view: RouteView, text: bytes) -> None:
        """Cache ``text``, unless it alone exceeds the limit of the cache."""
        if len(text) > self._bytes_max:
            return
        if self._bytes + len(text) > self._bytes_max:
            self.clear()
        views = self._texts.setdefault(topic, {})
        self._bytes += len(text) - len(views.get(view, b""))
        views[view] = text

    def drop(self, topic: str) -> None:
        """Remove one topic."""
        self._bytes -= sum(map(len, self._texts.pop(topic, {}).values()))

    def clear(self) -> None:
        """Remove all texts."""
        self._texts.clear()
        self._bytes = 0
