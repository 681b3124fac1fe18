"""The objects that plugins offer each other, by protocol."""

from __future__ import annotations

from typing import TypeVar, cast

from gantrymq.kernel.errors import StartError

S = TypeVar("S")


class Registry:
    """One provider for each protocol, which is a class of :mod:`gantrymq.plugins.interfaces` or of your plugin."""

    def __init__(self) -> None:
        self._providers: dict[type, object] = {}

    def provide(self, kind: type[S], provider: S) -> None:
        """Offer ``provider`` for the protocol ``kind``. ``StartError`` if there is one already."""
        if kind in self._providers:
            first = type(self._providers[kind]).__module__
            raise StartError(
                f"{kind.__name__} is provided by {first} and by {type(provider).__module__}: disable one of the plugins"
            )
        self._providers[kind] = provider

    def get(self, kind: type[S]) -> S:
        """Return the provider for ``kind``. ``StartError`` if no enabled plugin offers one."""
        found = self._providers.get(kind)
        if found is None:
            raise StartError(f"no enabled plugin provides {kind.__name__}: enable the plugin that does")
        return cast(S, found)

    def find(self, kind: type[S]) -> S | None:
        """Return the provider for ``kind``, or None."""
        return cast("S | None", self._providers.get(kind))
