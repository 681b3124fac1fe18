"""The pages by path: those of the broker's health, and what other plugins add."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq.plugins.http.health import BrokerHealth

Page = Callable[[str], Awaitable[tuple[int, str, bytes]]]
"""Takes the header ``Accept`` of a request; returns the status, the media type and the body."""
TEXT = "text/plain; charset=utf-8"


class Pages:
    """A table that plugins extend while the broker starts (``interfaces.HttpPages``)."""

    def __init__(self, first: Mapping[str, Page]) -> None:
        self._pages = dict(first)
        self.address = ""
        """Where the pages are served, ``host:port``; empty while they are not."""

    def add(self, path: str, page: Page) -> None:
        """See :class:`gantrymq.plugins.interfaces.HttpPages`."""
        self._pages[path] = page

    def get(self, path: str) -> Page | None:
        """The page at ``path``, or None."""
        return self._pages.get(path)

    def paths(self) -> list[str]:
        """All paths, in the order in which they were added."""
        return list(self._pages)


def health_pages(health: BrokerHealth) -> dict[str, Page]:
    """``/healthz``, ``/readyz`` and ``/status.json``."""

    async def healthz(accept: str) -> tuple[int, str, bytes]:
        return response_of(health.not_alive())

    async def readyz(accept: str) -> tuple[int, str, bytes]:
        return response_of(health.not_ready(), health.degraded())

    async def status(accept: str) -> tuple[int, str, bytes]:
        state: dict[str, Any] = health.status()
        return 200, "application/json", json.dumps(state, indent=1).encode() + b"\n"

    return {"/healthz": healthz, "/readyz": readyz, "/status.json": status}


def response_of(reasons: Mapping[str, str], degraded: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
    """The answer of ``/healthz`` and ``/readyz``; ``degraded`` leaves the status at 200."""
    status, text = (503, "") if reasons else (200, "ok\n")
    text += "".join(f"{name}: {reason}\n" for name, reason in {**reasons, **(degraded or {})}.items())
    return status, TEXT, text.encode()
