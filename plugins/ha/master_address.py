"""The two addresses of a slave's master, both from the configuration or both from the nameservers.

The slave compares its log with the broker at the one address, and then follows the broker at the other one. They must
be of one broker: otherwise the slave would compare with a promoted master, and acknowledge to the former one.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

log = structlog.get_logger("gantrymq.ha")


class MasterAddress:
    """The master's two addresses, ``host:port``: for slaves and for clients.

    Configured addresses are fixed if there are both. A single one is valid until a nameserver reports a master.
    """

    def __init__(self, own_address: str, ha: str, broker: str) -> None:
        self._own = own_address
        self._is_fixed = bool(ha and broker)
        self._configured = ha, broker
        self._ha = ha
        self._broker = broker
        self._known = trio.Event()
        self.changed: Callable[[], None] = lambda: None
        """Called when the master has changed."""
        if ha:
            self._known.set()

    @property
    def broker(self) -> str:
        """The master's address for clients; empty if unknown."""
        return self._broker

    def master_is(self, broker: str, ha: str) -> None:
        """Record the addresses that a nameserver or the master reported; empty if it does not know a master."""
        if broker == self._own:
            log.error("slave_is_its_own_master", address=broker)
            return
        if self._is_fixed or not broker or not ha or (broker, ha) == (self._broker, self._ha):
            return
        if broker != self._broker:
            log.info("master_found", address=broker)
        if ha != self._ha:
            log.info("replication_address_found", address=ha)
        self._warn_of_configured(broker, ha)
        self._broker, self._ha = broker, ha
        self._known.set()
        self.changed()

    def _warn_of_configured(self, broker: str, ha: str) -> None:
        """Log once that a single configured address does not apply, if it differs from the reported one."""
        (configured_ha, configured_broker), self._configured = self._configured, ("", "")
        if configured_ha not in ("", ha) or configured_broker not in ("", broker):
            log.warning(
                "configured_master_ignored", configured=configured_ha or configured_broker, broker=broker, ha=ha,
                action="set both plugin.ha.master and plugin.ha.master_broker, or none of them",
            )  # fmt: skip

    async def ha_address(self) -> str:
        """Wait until the master's address for slaves is known; returns it."""
        await self._known.wait()
        return self._ha
