"""Namespaces: one cluster for several applications or tenants, whose topics and groups have a prefix of their own.

Inside the client a topic has the name that its user gave, and a group the one that brokers know. Requests get the real
names of topics on their way out; what brokers send is read back. Source: RocketMQ 4.9.7 and 5.3.3 ``NamespaceUtil``,
``ClientConfig``; 5.3.3 ``NamespaceRpcHook``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, cast

import attrs
import msgspec

from gantrymq.client.checks import GROUP_MAX_CHARACTERS, TOPIC_MAX_CHARACTERS
from gantrymq.client.errors import InvalidName
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import CheckClientConfig, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.bodies.running import ConsumerRunningInfo
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_retry_topic, is_system_group, is_system_topic
from gantrymq.remoting.properties import RETRY_TOPIC

SEPARATOR: Final = "%"
NAMESPACED_FIELD: Final = "nsd"
NAMESPACE_FIELD: Final = "ns"
"""The fields of every request that 5.x clients with a ``namespaceV2`` send."""

_NAME = re.compile(r"[|a-zA-Z0-9_-]+")

_TOPIC_FIELDS: Final[dict[int, str]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
    RequestCode.PULL_MESSAGE: "topic",
    RequestCode.QUERY_CONSUMER_OFFSET: "topic",
    RequestCode.UPDATE_CONSUMER_OFFSET: "topic",
    RequestCode.GET_MIN_OFFSET: "topic",
    RequestCode.GET_MAX_OFFSET: "topic",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "topic",
    RequestCode.QUERY_MESSAGE: "topic",
    RequestCode.CONSUMER_SEND_MSG_BACK: "originTopic",
    RequestCode.END_TRANSACTION: "topic",
    RequestCode.RECALL_MESSAGE: "topic",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "topic",
    RequestCode.GET_TOPIC_CONFIG: "topic",
    RequestCode.DELETE_TOPIC_IN_BROKER: "topic",
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "topic",
    RequestCode.QUERY_CONSUME_TIME_SPAN: "topic",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "topic",
}
"""Where requests of this client have a topic. Replies go to a topic of their cluster, which is in no namespace."""

T = TypeVar("T")


@attrs.frozen
class Namespace:
    """The prefix of a client's topics and groups, and the way from a user's name to the real one and back."""

    name: str

    @classmethod
    def checked(cls, name: str | None) -> Namespace | None:
        """The namespace of this name, None for none; ValueError for what cannot be part of a topic's name."""
        if name is None or name == "":
            return None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"namespace {name!r} has characters other than letters, digits, _, - and |")
        return cls(name)

    def topic(self, name: str) -> str:
        """The real name of a topic; :class:`InvalidName` for one that would be too long."""
        return self._wrap("topic", name, TOPIC_MAX_CHARACTERS)

    def group(self, name: str) -> str:
        """The real name of a group; :class:`InvalidName` for one that would be too long."""
        return self._wrap("group", name, GROUP_MAX_CHARACTERS)

    def without(self, name: str) -> str:
        """The user's name of a topic or group; that of another namespace as it is."""
        kind, own = _split(name)
        return kind + own[len(self.name) + 1 :] if own.startswith(self.name + SEPARATOR) else name

    def queue(self, queue: MessageQueue) -> MessageQueue:
        """A queue with its topic's real name."""
        return MessageQueue(topic=self.topic(queue.topic), broker_name=queue.broker_name, queue_id=queue.queue_id)

    def queue_without(self, queue: MessageQueue) -> MessageQueue:
        """A queue with its topic's name as users give it."""
        return MessageQueue(topic=self.without(queue.topic), broker_name=queue.broker_name, queue_id=queue.queue_id)

    def queues(self, table: Mapping[MessageQueue, T]) -> dict[MessageQueue, T]:
        """A table of queues with the real names."""
        return {self.queue(queue): value for queue, value in table.items()}

    def queues_without(self, table: Mapping[MessageQueue, T]) -> dict[MessageQueue, T]:
        """A table of queues with users' names."""
        return {self.queue_without(queue): value for queue, value in table.items()}

    def restore(self, records: Iterable[DeliveredRecord]) -> None:
        """Give the messages that a broker sent their topics' names as users know them."""
        for record in records:
            record.topic = self.without(record.topic)

    def restore_consumed(self, records: Iterable[DeliveredRecord]) -> None:
        """As :meth:`restore`, for a consumer: what came again has the topic that it was sent to."""
        for record in records:
            if is_retry_topic(record.topic) and (origin := record.properties.get(RETRY_TOPIC)):
                record.retry_topic, record.topic = record.topic, self.without(origin)
            else:
                record.topic = self.without(record.topic)

    def running_info(self, info: ConsumerRunningInfo) -> ConsumerRunningInfo:
        """The state of a consumer that administrators request, with the real names."""
        return ConsumerRunningInfo(
            properties=info.properties,
            subscription_set=[self._subscription(each) for each in info.subscription_set],
            mq_table=self.queues(info.mq_table),
            status_table={self.topic(topic): rates for topic, rates in info.status_table.items()},
            jstack=info.jstack,
        )

    def outgoing(self, command: Command) -> Command:
        """A request as it is to leave, with real names; the one given stays as it is."""
        field = _TOPIC_FIELDS.get(command.code)
        if field is not None:
            ext = dict(command.ext or {})
            if topic := ext.get(field):
                ext[field] = self.topic(topic)
            return _changed(command, ext, command.body)
        rewrite = _BODIES.get(command.code)
        return command if rewrite is None else _changed(command, command.ext, rewrite(self, command.body))

    def _wrap(self, kind: str, name: str, limit: int) -> str:
        prefix, own = _split(name)
        if not name or own.startswith(self.name + SEPARATOR) or is_system_topic(name) or is_system_group(name):
            return name
        real = f"{prefix}{self.name}{SEPARATOR}{own}"
        if len(real) > limit:
            raise InvalidName(f"{kind} {real[:40]!r}... has {len(real)} characters with its namespace, of {limit}")
        return real

    def _subscription(self, subscription: SubscriptionData) -> SubscriptionData:
        return msgspec.structs.replace(subscription, topic=self.topic(subscription.topic))

    def _heartbeat(self, body: bytes) -> bytes:
        data = HeartbeatData.from_bytes(body)
        for consumer in data.consumer_data_set:
            consumer.subscription_data_set = [self._subscription(each) for each in consumer.subscription_data_set]
        return data.to_bytes()

    def _locks(self, body: bytes) -> bytes:
        data = LockBatchRequestBody.from_bytes(body)
        data.mq_set = {self.queue(queue) for queue in data.mq_set}
        return data.to_bytes()

    def _client_config(self, body: bytes) -> bytes:
        data = CheckClientConfig.from_bytes(body)
        if data.subscription_data is not None:
            data.subscription_data = self._subscription(data.subscription_data)
        return data.to_bytes()


_BODIES: Final[dict[int, Callable[[Namespace, bytes], bytes]]] = {
    RequestCode.HEART_BEAT: Namespace._heartbeat,
    RequestCode.LOCK_BATCH_MQ: Namespace._locks,
    RequestCode.UNLOCK_BATCH_MQ: Namespace._locks,
    RequestCode.CHECK_CLIENT_CONFIG: Namespace._client_config,
}


@attrs.frozen
class RequestNamespace:
    """The namespace that 5.x clients name in each request (``namespaceV2``): names stay as they are."""

    name: str

    @classmethod
    def checked(cls, name: str | None) -> RequestNamespace | None:
        """The namespace of this name, None for none; ValueError for what is not a text."""
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            raise ValueError(f"namespace_v2 is a str, not {type(name).__name__}")
        return cls(name)

    def outgoing(self, command: Command) -> Command:
        """A request as it is to leave; the one given stays as it is."""
        ext = {**(command.ext or {}), NAMESPACED_FIELD: "true", NAMESPACE_FIELD: self.name}
        return _changed(command, ext, command.body)


def plain_topics(namespace: Namespace | None, topics: T) -> T:
    """What a user gave as topics, each without the namespace that it may have been given with.

    :class:`InvalidName` for one that is too long with it. What is no topic at all stays for others to refuse.
    """
    if namespace is None:
        return topics

    def one(topic: object) -> object:
        if not isinstance(topic, str):
            return topic
        namespace.topic(topic)
        return namespace.without(topic)

    if isinstance(topics, Mapping):
        return cast(T, {one(topic): wanted for topic, wanted in topics.items()})
    if isinstance(topics, Iterable) and not isinstance(topics, str):
        return cast(T, [one(topic) for topic in topics])
    return cast(T, one(topics))


def _split(name: str) -> tuple[str, str]:
    """A retry or dead-letter topic's prefix, if ``name`` has one, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _changed(command: Command, ext: dict[str, str] | None, body: bytes) -> Command:
    return Command(
        command.code, ext, body, command.opaque, command.flag, command.remark, command.language, command.version,
        command.kind,
    )  # fmt: skip
