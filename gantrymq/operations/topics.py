"""Deletion of topics, as ``mqadmin deleteTopic`` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.operations.brokers import master_addresses
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader, TopicHeader

if TYPE_CHECKING:
    from gantrymq.client import Client


async def delete_topic(client: Client, topic: str) -> None:
    """Delete ``topic`` with its messages on every master, then in every nameserver; no error if it does not exist."""
    command = Command(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic).to_ext())
    for address in (await master_addresses(client)).values():
        await client.admin.request(address, command)
    command = Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNameserverHeader(topic=topic).to_ext())
    for address in client.admin.nameservers:
        await client.admin.request(address, command)
