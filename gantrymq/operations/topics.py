"""Which topics are the brokers' own, the queues of a topic, and whether a nameserver still has it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gantrymq.client.absence import ask_if_present
from gantrymq.client.errors import GantryError
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.nameserver import RouteHeader
from gantrymq.remoting.names import is_dlq_topic, is_retry_topic, is_system_topic, reply_topic

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData

_BROKERS_PREFIXES: Final = ("RMQ_SYS_", "GANTRYMQ_")
"""The prefixes of topics that brokers create, beside RocketMQ's list of system topics."""


def named_after(info: ClusterInfo) -> frozenset[str]:
    """Return the topics that are named after the clusters and brokers of ``info``, those of replies included."""
    clusters = info.cluster_addr_table
    return frozenset([*clusters, *info.broker_addr_table, *map(reply_topic, clusters)])


def is_brokers_topic(name: str, named: Collection[str] = ()) -> bool:
    """Return whether brokers create the topic themselves, retry and dead-letter topics included.

    ``named``: the topics of :func:`named_after`.
    """
    return (
        name in named
        or is_system_topic(name)
        or is_retry_topic(name)
        or is_dlq_topic(name)
        or name.startswith(_BROKERS_PREFIXES)
    )


def all_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues of ``route`` that may have messages, in order of broker and id.

    Those that cannot be read are among them: brokers of RocketMQ before 4.9.2 create topics of dead letters so.
    """
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        for queue_id in range(max(data.read_queue_nums, data.write_queue_nums))
    ]


async def is_routed(client: Client, topic: str) -> bool:
    """Return whether any nameserver that answers has ``topic``: one that could not be reached when it was deleted
    still has it."""
    header = RouteHeader(topic=topic).to_ext()
    for address in client.admin.nameservers:
        with suppress(GantryError):
            if await ask_if_present(client.admin, address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header) is not None:
                return True
    return False
