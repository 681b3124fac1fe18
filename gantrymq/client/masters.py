"""Which brokers have a master, as the nameservers know them."""

from __future__ import annotations

from collections.abc import Container

from gantrymq.client.errors import NoRoute
from gantrymq.client.routes import MASTER_ID
from gantrymq.remoting.bodies.routes import ClusterInfo


def masters_in(info: ClusterInfo) -> dict[str, str]:
    """Broker name to the address of its master, sorted by name; brokers without a master are left out."""
    return {
        name: data.broker_addrs[MASTER_ID]
        for name, data in sorted(info.broker_addr_table.items())
        if MASTER_ID in data.broker_addrs
    }


def without_master(info: ClusterInfo, cluster: str | None = None) -> list[str]:
    """The names of the brokers of which only slaves are registered, sorted; of one cluster, or of all."""
    return sorted(
        name
        for name, data in info.broker_addr_table.items()
        if MASTER_ID not in data.broker_addrs and cluster in (None, data.cluster)
    )


def clusters_of(info: ClusterInfo, brokers: Container[str]) -> set[str]:
    """The names of all brokers of the clusters that have one of ``brokers``."""
    table = info.broker_addr_table
    clusters = {data.cluster for name, data in table.items() if name in brokers}
    return {name for name, data in table.items() if data.cluster in clusters}


def check_masters(info: ClusterInfo, consequence: str, brokers: Container[str] | None = None) -> None:
    """Raise :class:`NoRoute` if a broker, or one of ``brokers``, has no master; ``consequence`` ends its text."""
    for name in without_master(info):
        if brokers is None or name in brokers:
            raise NoRoute(f"broker {name} has no master now, so {consequence}")
