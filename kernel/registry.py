"""What plugins add to the broker beside hooks: long-running tasks, and services for each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar, cast

import attrs

from gantrymq.kernel.errors import StartError


@attrs.frozen
class Service:
    """A named task: ``run()`` works until it is cancelled. ``run_on``: what it does is for masters, or for all."""

    name: str
    run: Callable[[], Awaitable[None]]
    run_on: Literal["all", "masters"] = "all"

    def runs_on(self, broker_id: int) -> bool:
        """Whether a broker of that id runs it: a master's is 0."""
        return self.run_on == "all" or broker_id == 0


S = TypeVar("S")


class Services:
    """Services by their protocol, one provider each."""

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
