"""All nameservers together: provides ``Registration``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import trio

from gantrymq.plugins.register.body import Announcement
from gantrymq.plugins.register.config import RegisterConfig
from gantrymq.plugins.register.duplicate_check import DuplicateCheck
from gantrymq.plugins.register.link import Link


class Registrar:
    """Has one :class:`Link` to each of ``addresses``, without duplicates."""

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
        """Call ``ordered`` with the ordered topics of the first nameserver; two nameservers could contradict each
        other."""
        for link in self._links[:1]:
            link.ordered = ordered

    def on_master(self, master_is: Callable[[str, str], None]) -> None:
        """Call ``master_is`` with the addresses of this broker's master from any nameserver."""
        for link in self._links:
            link.master_is = master_is

    def begin(self) -> None:
        """The broker is reachable: send the first registration."""
        self._open.set()

    def leave(self) -> None:
        """Unregister everywhere, permanently."""
        for link in self._links:
            link.leave()

    def topics_changed(self) -> None:
        """Topics were created, changed or removed: register with all nameservers again within milliseconds."""
        for link in self._links:
            link.poke()

    async def wait_first(self, timeout: float) -> bool:
        """Wait until each nameserver was tried once, at most ``timeout`` seconds; returns whether any has registered
        this broker."""
        with trio.move_on_after(timeout):
            for link in self._links:
                await link.tried.wait()
        return any(link.registered for link in self._links)

    async def wait_current(self, timeout: float) -> None:
        """Wait until each nameserver with which this broker is registered has its topics as they are now, at most
        ``timeout`` seconds."""
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    nursery.start_soon(link.wait_current)

    async def run(self) -> None:
        """Keep this broker registered until cancelled."""
        await self._open.wait()
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)
            await trio.sleep_forever()
