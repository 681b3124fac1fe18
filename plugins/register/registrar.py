"""All nameservers together: provides ``RouteChanges`` and ``Registration``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import trio

from gantrymq.plugins.register.body import Announcement
from gantrymq.plugins.register.config import RegisterConfig
from gantrymq.plugins.register.duplicate_check import DuplicateCheck
from gantrymq.plugins.register.link import Link


class Registrar:
    """Keeps one :class:`Link` to each of ``addresses``; one that is named twice gets one."""

    def __init__(
        self,
        announcement: Announcement,
        duplicate_check: DuplicateCheck,
        addresses: Iterable[str],
        config: RegisterConfig,
    ) -> None:
        self._links = [
            Link(address, announcement, duplicate_check, config.interval, config.timeout)
            for address in dict.fromkeys(addresses)
        ]
        self._open = trio.Event()

    def on_ordered(self, ordered: Callable[[Collection[str]], None]) -> None:
        """Let ``ordered`` have the topics that the first nameserver calls ordered; two could contradict each other."""
        for link in self._links[:1]:
            link.ordered = ordered

    def on_master(self, master_is: Callable[[str, str], None]) -> None:
        """Let ``master_is`` have what any nameserver says of this broker's master."""
        for link in self._links:
            link.master_is = master_is

    def begin(self) -> None:
        """The broker can be reached: the first registration goes out."""
        self._open.set()

    def leave(self) -> None:
        """Unregister everywhere, for good."""
        for link in self._links:
            link.leave()

    def topic_changed(self, topic: str) -> None:
        """The topic was created or changed: all nameservers learn of it within milliseconds."""
        for link in self._links:
            link.poke()

    async def wait_first(self, timeout: float) -> bool:
        """Wait until each nameserver was tried once, ``timeout`` seconds at most; whether any knows this broker."""
        with trio.move_on_after(timeout):
            for link in self._links:
                await link.tried.wait()
        return any(link.registered for link in self._links)

    async def run(self) -> None:
        """Until cancelled."""
        await self._open.wait()
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)
            await trio.sleep_forever()
