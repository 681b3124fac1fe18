"""Routes as bytes, kept until something in them changes: many clients ask for few topics again and again."""

from __future__ import annotations

from typing import Final, NamedTuple

BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all routes together; then the cache begins anew."""


class RouteView(NamedTuple):
    """In which form a client wants a route: strict JSON or with bare integer keys, and of which zone (None: of all)."""

    strict: bool = True
    zone: str | None = None


class RouteCache:
    """The texts by topic and view, ``bytes_max`` bytes of them at most."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._texts: dict[str, dict[RouteView, bytes]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def get(self, topic: str, view: RouteView) -> bytes | None:
        """The text, if it is known."""
        views = self._texts.get(topic)
        return None if views is None else views.get(view)

    def put(self, topic: str, view: RouteView, text: bytes) -> None:
        """Keep ``text``; one that is longer than the whole cache may be is not kept."""
        if len(text) > self._bytes_max:
            return
        if self._bytes + len(text) > self._bytes_max:
            self.clear()
        views = self._texts.setdefault(topic, {})
        self._bytes += len(text) - len(views.get(view, b""))
        views[view] = text

    def drop(self, topic: str) -> None:
        """Forget one topic."""
        self._bytes -= sum(map(len, self._texts.pop(topic, {}).values()))

    def clear(self) -> None:
        """Forget all."""
        self._texts.clear()
        self._bytes = 0
