"""Deletion of topics, as ``mqadmin deleteTopic`` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.client.errors import GantryError, NoRoute
from gantrymq.client.masters import check_masters, masters_in
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader, TopicHeader

if TYPE_CHECKING:
    from gantrymq.client.admin import Admin

NOTHING_DELETED: Final = "nothing was deleted"
"""Why a broker must have its master: when the master returns, it would register again what it still has."""


async def delete_topic(admin: Admin, topic: str) -> None:
    """Delete ``topic`` with its messages on every master, then in every nameserver; no error if it does not exist.

    :class:`NoRoute` before any change if a broker that has the topic has no master. Raises the error of the first
    nameserver that fails, after the other ones have been asked.
    """
    info = await admin.cluster()
    check_masters(info, NOTHING_DELETED, await _brokers_of(admin, topic))
    command = Command(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic).to_ext())
    for address in masters_in(info).values():
        await admin.request(address, command)
    command = Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNameserverHeader(topic=topic).to_ext())
    failure: GantryError | None = None
    for address in admin.nameservers:
        try:
            await admin.request(address, command)
        except GantryError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def _brokers_of(admin: Admin, topic: str) -> set[str]:
    """The names of the brokers that registered ``topic``."""
    try:
        route = await admin.route(topic)
    except NoRoute:
        return set()
    return {data.broker_name for data in route.queue_datas}
