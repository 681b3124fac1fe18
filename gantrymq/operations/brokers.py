"""The master brokers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.client.routes import MASTER_ID

if TYPE_CHECKING:
    from gantrymq.client import Client


async def master_addresses(client: Client) -> dict[str, str]:
    """Broker name to the address of its master, sorted by name; brokers without a master are left out."""
    info = await client.admin.cluster()
    return {
        name: data.broker_addrs[MASTER_ID]
        for name, data in sorted(info.broker_addr_table.items())
        if MASTER_ID in data.broker_addrs
    }
