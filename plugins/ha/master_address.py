"""Where a slave's master is: as configured, else as the nameservers say."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

log = structlog.get_logger("gantrymq.ha")


class MasterAddress:
    """The master's two addresses, ``host:port``: where it waits for slaves, and where it serves clients."""

    def __init__(self, own_address: str, ha: str, broker: str) -> None:
        self._own = own_address
        self._fixed_ha = bool(ha)
        self._fixed_broker = bool(broker)
        self._ha = ha
        self._broker = broker
        self._known = trio.Event()
        self.changed: Callable[[], None] = lambda: None
        """Is called when the master waits for slaves somewhere else than before."""
        if ha:
            self._known.set()

    @property
    def broker(self) -> str:
        """Where the master serves clients; empty when nobody has said it."""
        return self._broker

    def master_is(self, broker: str, ha: str) -> None:
        """A nameserver says where the master is; empty texts where it does not know."""
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
        """Where the master waits for slaves, as soon as that is known."""
        await self._known.wait()
        return self._ha
