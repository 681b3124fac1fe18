"""Which topics are the brokers' own, and deletion of topics, as ``mqadmin deleteTopic`` does it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gantrymq.client.errors import GantryError, NoRoute
from gantrymq.operations.absence import ask_if_present
from gantrymq.operations.brokers import master_addresses, require_masters
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.nameserver import RouteHeader
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader, TopicHeader
from gantrymq.remoting.names import is_dlq_topic, is_retry_topic, is_system_topic, reply_topic

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData

NOTHING_DELETED: Final = "nothing was deleted"
"""Why a broker must have its master: when the master returns, it would register again what it still has."""
_BROKERS_PREFIXES: Final = ("RMQ_SYS_", "GANTRYMQ_")
"""Of topics that brokers create, beside RocketMQ's list of system topics."""


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


async def delete_topic(client: Client, topic: str) -> None:
    """Delete ``topic`` with its messages on every master, then in every nameserver; no error if it does not exist.

    :class:`NoRoute` before any change if a broker that has the topic has no master. Raises the error of the first
    nameserver that fails, after the other ones have been asked.
    """
    await require_masters(client, NOTHING_DELETED, await _brokers_of(client, topic))
    command = Command(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic).to_ext())
    for address in (await master_addresses(client)).values():
        await client.admin.request(address, command)
    command = Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNameserverHeader(topic=topic).to_ext())
    failure: GantryError | None = None
    for address in client.admin.nameservers:
        try:
            await client.admin.request(address, command)
        except GantryError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def all_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues of ``route`` that may have messages, in order of broker and id.

    Those that cannot be read are among them: brokers of RocketMQ before 4.9.2 create topics of dead letters so.
    """
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        for queue_id in range(max(data.read_queue_nums, data.write_queue_nums))
    ]


async def _brokers_of(client: Client, topic: str) -> set[str]:
    """The names of the brokers that registered ``topic``."""
    try:
        route = await client.admin.route(topic)
    except NoRoute:
        return set()
    return {data.broker_name for data in route.queue_datas}


async def is_routed(client: Client, topic: str) -> bool:
    """Return whether any nameserver that answers has ``topic``: one that could not be reached when it was deleted
    still has it."""
    header = RouteHeader(topic=topic).to_ext()
    for address in client.admin.nameservers:
        with suppress(GantryError):
            if await ask_if_present(client, address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header) is not None:
                return True
    return False
