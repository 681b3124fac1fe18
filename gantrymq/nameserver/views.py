"""Views of routes for some clients: with slaves that act as masters, or of one zone only. Pure functions.

Source: RocketMQ 5.3.3 ``RouteInfoManager.pickupTopicRouteData``, ``ZoneRouteRPCHook``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantrymq.nameserver.live import MASTER_ID
from gantrymq.remoting.bodies.routes import BrokerData, TopicRouteData
from gantrymq.remoting.codes import PERM_WRITE

MEMBER_GROUP_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which the brokers of one name synchronize; they must see the real members."""


def with_acting_masters(topic: str, route: TopicRouteData) -> TopicRouteData:
    """``route`` with the slave of the lowest id as the master of each name without one, if the brokers allow that and
    the queues cannot be written."""
    if topic.startswith(MEMBER_GROUP_PREFIX):
        return route
    writable = {row.broker_name for row in route.queue_datas if row.perm & PERM_WRITE}
    brokers = [data if data.broker_name in writable else _with_acting_master(data) for data in route.broker_datas]
    return msgspec.structs.replace(route, broker_datas=brokers)


def of_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """``route`` without broker names of other zones, except names without a master, which all zones may read."""
    wanted = zone.casefold()
    kept = [
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").casefold() == wanted
    ]
    names = {data.broker_name for data in kept}
    elsewhere = [data for data in route.broker_datas if data.broker_name not in names]
    left_out = {data.broker_name for data in elsewhere}
    addresses = {address for data in elsewhere for address in data.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=kept,
        queue_datas=[row for row in route.queue_datas if row.broker_name not in left_out],
        filter_server_table={key: value for key, value in route.filter_server_table.items() if key not in addresses},
    )


def _with_acting_master(data: BrokerData) -> BrokerData:
    if not data.enable_acting_master or not data.broker_addrs or MASTER_ID in data.broker_addrs:
        return data
    lowest = min(data.broker_addrs)
    addresses = {MASTER_ID if number == lowest else number: address for number, address in data.broker_addrs.items()}
    return msgspec.structs.replace(data, broker_addrs=addresses)
