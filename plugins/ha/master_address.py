"""The address of a slave's master, from the configuration or from the nameservers."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

log = structlog.get_logger("gantrymq.ha")


class MasterAddress:
    """The master's two addresses, ``host:port``: for slaves and for clients."""

    def __init__(self, own_address: str, ha: str, broker: str) -> None:
        self._own = own_address
        self._fixed_ha = bool(ha)
        self._fixed_broker = bool(broker)
        self._ha = ha
        self._broker = broker
        self._known = trio.Event()
        self.changed: Callable[[], None] = lambda: None
        """Called when the master's address for slaves has changed."""
        if ha:
            self._known.set()

    @property
    def broker(self) -> str:
        """The master's address for clients; empty if unknown."""
        return self._broker

    def master_is(self, broker: str, ha: str) -> None:
        """Record the addresses that a nameserver reported; empty if it does not know a master."""
        if broker == self._own:
            log.error("slave_is_its_own_master", address=broker)
            return
        if broker and not self._fixed_broker and broker != self._broker:
            log.info("master_found", address=broker)
            self._broker = broker
        if ha and not self._fixed_ha and ha != self._ha:
            log.info("replication_address_found", address=ha)
            self._ha = ha
            self._known.set()
            self.changed()

    async def ha_address(self) -> str:
        """Wait until the master's address for slaves is known; returns it."""
        await self._known.wait()
        return self._ha
