"""A cache of encoded routes and lists until they change, because many clients request few topics again and again."""

from __future__ import annotations

from typing import Final, NamedTuple

BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of all routes with their zones and of all lists; a full cache is cleared."""
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
        self._lists: dict[int, bytes] = {}
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

    def get_list(self, code: int) -> bytes | None:
        """The cached list that answers the request ``code``, or None."""
        return self._lists.get(code)

    def put_list(self, code: int, text: bytes) -> None:
        """Cache a list until any route changes, unless it alone exceeds the limit of the cache."""
        before = self._lists.pop(code, None)
        self._bytes -= 0 if before is None else ENTRY_BYTES + len(before)
        size = ENTRY_BYTES + len(text)
        if size > self._bytes_max:
            return
        if self._bytes + size > self._bytes_max:
            self.clear()
        self._bytes += size
        self._lists[code] = text

    def drop(self, topic: str) -> None:
        """Remove one topic, and the lists."""
        if self._lists:
            self._drop_lists()
        self._bytes -= sum(_size(view, text) for view, text in self._texts.pop(topic, {}).items())

    def clear(self) -> None:
        """Remove all texts."""
        self._texts.clear()
        self._lists.clear()
        self._bytes = 0

    def _drop_lists(self) -> None:
        self._bytes -= sum(ENTRY_BYTES + len(text) for text in self._lists.values())
        self._lists.clear()


def _size(view: RouteView, text: bytes) -> int:
    return ENTRY_BYTES + CHARACTER_BYTES * len(view.zone or "") + len(text)
