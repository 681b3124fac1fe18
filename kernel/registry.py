"""The objects that plugins offer each other, by the protocol that they fulfill."""

from __future__ import annotations

from typing import TypeVar, cast

from gantrymq.kernel.errors import StartError

S = TypeVar("S")


class Registry:
    """Objects by their protocol (a class of :mod:`gantrymq.plugins.interfaces`, or of your own), one provider each."""

    def __init__(self) -> None:
        self._providers: dict[type, object] = {}

    def provide(self, kind: type[S], provider: S) -> None:
        """Offer ``provider`` as the one ``kind``; a second offer stops the start."""
        if kind in self._providers:
            first = type(self._providers[kind]).__module__
            raise StartError(
                f"{kind.__name__} is provided by {first} and by {type(provider).__module__}: disable one of the plugins"
            )
        self._providers[kind] = provider

    def get(self, kind: type[S]) -> S:
        """The provider; ``StartError`` when no enabled plugin is one."""
        found = self._providers.get(kind)
        if found is None:
            raise StartError(f"no enabled plugin provides {kind.__name__}: enable the plugin that does")
        return cast(S, found)

    def find(self, kind: type[S]) -> S | None:
        """The provider or None, for what is optional."""
        return cast("S | None", self._providers.get(kind))
