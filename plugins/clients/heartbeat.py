"""Requests of clients about themselves: heartbeat (34), unregister (35), list of group members (38)."""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec
import structlog

from gantrymq.kernel.processors import AnswerSteps, Handler, Request
from gantrymq.plugins.clients.clients import Clients, subscription_bytes
from gantrymq.plugins.clients.config import ClientsConfig
from gantrymq.plugins.clients.groups import Member
from gantrymq.plugins.interfaces import GroupTable, QueueLocks, TopicTable
from gantrymq.remoting.bodies.clients import ConsumerData, ConsumerList, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson_types import spells_differently
from gantrymq.remoting.headers.groups import ConsumerGroupHeader, UnregisterClientHeader
from gantrymq.remoting.headers.header import Int32, read_header
from gantrymq.remoting.lenient_header import known_language
from gantrymq.remoting.names import GROUP_MAX_LENGTH, TOPIC_MAX_LENGTH, retry_topic, validate_group, validate_topic
from gantrymq.remoting.rare_warnings import RareWarnings

CLIENT_ID_MAX_CHARACTERS = 1024
EXPRESSION_TYPE_MAX_CHARACTERS = 255
UNIT_SUBSCRIPTION_FLAG = 2
"""Bit of a topic's system flag: it has unit subscriptions."""

OBJECTS_MAX = 65_536
"""The most groups and subscriptions of one heartbeat, counted by its braces; a heartbeat of 4 MiB has half as many."""
TAGS_MAX = 21_846
"""The most tags, and tag codes, of one subscription: the longest expression of a pull has as many."""

STEPS_FROM = 65_536
"""Bytes; a longer heartbeat is decoded in steps, by consumer group and by subscription."""
STEP_GROUPS = 64
"""Producer groups per step."""
STEP_SUBSCRIPTIONS = 256
STEP_BYTES = 32_768
"""Bytes of subscriptions that one step decodes, not counting the last subscription."""

log = structlog.get_logger("gantrymq.clients")


class _Frame(msgspec.Struct, rename={"client_id": "clientID", "producer_data_set": "producerDataSet",
                                     "consumer_data_set": "consumerDataSet", "without_sub": "withoutSub",
                                     "heartbeat_fingerprint": "heartbeatFingerprint"}):  # fmt: skip
    """:class:`HeartbeatData` with consumers that are not decoded yet."""

    client_id: str = ""
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[msgspec.Raw] = []
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = None


class _ConsumerFrame(msgspec.Struct, rename="camel"):
    """:class:`ConsumerData` with subscriptions that are not decoded yet."""

    group_name: str = ""
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[msgspec.Raw] = []
    unit_mode: bool = False


_NONE = msgspec.Raw(b"[]")


class _SubscriptionFrame(msgspec.Struct, rename="camel"):
    """Counts the tags and codes of a :class:`SubscriptionData`."""

    topic: str = ""
    tags_set: msgspec.Raw = _NONE
    code_set: msgspec.Raw = _NONE


class Heartbeats:
    """Handlers of the three codes. ``changed()`` is called when members of a group must be notified of a change."""

    def __init__(
        self,
        clients: Clients,
        groups: GroupTable,
        topics: TopicTable,
        config: ClientsConfig,
        changed: Callable[[], None],
        clock: Callable[[], float],
        locks: QueueLocks | None = None,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._config = config
        self._changed = changed
        self._locks = locks
        self._warnings = RareWarnings(clock)

    def processors(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(self, request: Request) -> AnswerSteps:
        """Answer 34. All names are checked before anything is stored. The version in the response (407) tells clients
        which features the broker has.

        A group that may not be created is ignored, as in 5.x; its members get code 26 when they pull. 5.x clients omit
        their subscriptions only after a response that offers this, which GantryMQ's does not; if a client omits them
        anyway, its previous ones remain.
        """
        try:
            return (yield from self._take(request))
        except RemoteFault as fault:
            # The client repeats it every half minute, and its consumers get no messages meanwhile.
            host = request.connection.peer[0]
            if self._warnings.is_due(host):
                log.warning("heartbeat_refused", peer=host, reason=fault.remark)
            raise

    def _take(self, request: Request) -> AnswerSteps:
        size, limit = len(request.command.body), self._config.max_heartbeat_bytes
        if size > limit:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"a heartbeat of {size} bytes, {limit} are the limit (plugin.clients.max_heartbeat_bytes)",
            )
        data = yield from self._read(request.command.body)
        _check_client_id(data.client_id)
        for number, producer in enumerate(data.producer_data_set, start=1):
            validate_group(producer.group_name)
            if number % STEP_GROUPS == 0:
                yield
        sizes: list[int] = []
        for consumer in data.consumer_data_set:
            sizes.append((yield from self._check_consumer(consumer)))
            yield
        try:
            for consumer, size in zip(data.consumer_data_set, sizes, strict=True):
                self._join(request, data, consumer, size)
                yield
            for number, producer in enumerate(data.producer_data_set, start=1):
                self._clients.join_producers(self._member(request, data), producer.group_name)
                if number % STEP_GROUPS == 0:
                    yield
        finally:
            self._notify_if_changed()
        return request.command.answer(ResponseCode.SUCCESS)

    def _read(self, body: bytes) -> Generator[None, None, HeartbeatData]:
        """Decode :class:`HeartbeatData`, with pauses if it takes long."""
        if len(body) > STEPS_FROM and b"$ref" not in body and not spells_differently(body, HeartbeatData):
            objects = body.count(b"{")
            if objects > OBJECTS_MAX:
                raise RemoteFault(
                    ResponseCode.SYSTEM_ERROR, f"about {objects} groups and subscriptions, {OBJECTS_MAX} are the limit"
                )
            try:
                frame = msgspec.json.decode(body, type=_Frame)
                yield
                consumers = []
                for raw in frame.consumer_data_set:
                    consumers.append((yield from self._read_consumer(raw)))
                    yield
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # not in the form of the Java client: the tolerant reader decides
            else:
                return HeartbeatData(frame.client_id, frame.producer_data_set, consumers, without_sub=frame.without_sub)
        return HeartbeatData.from_request(body)

    def _read_consumer(self, raw: msgspec.Raw) -> Generator[None, None, ConsumerData]:
        if len(raw) <= STEPS_FROM:
            return msgspec.json.decode(raw, type=ConsumerData)
        frame = msgspec.json.decode(raw, type=_ConsumerFrame)
        self._check_count(frame.group_name, len(frame.subscription_data_set))
        yield
        subscriptions: list[SubscriptionData] = []
        decoded = 0
        for row in frame.subscription_data_set:
            if len(row) > STEPS_FROM:
                counted = msgspec.json.decode(row, type=_SubscriptionFrame)
                yield
                # A quote on either side of a tag, a comma between two codes.
                tags, codes = bytes(counted.tags_set).count(b'"') // 2, bytes(counted.code_set).count(b",") + 1
                _check_tags(frame.group_name, counted.topic, max(tags, codes))
                yield
            subscriptions.append(msgspec.json.decode(row, type=SubscriptionData))
            decoded += len(row)
            if decoded >= STEP_BYTES:
                decoded = 0
                yield
        return ConsumerData(
            frame.group_name,
            frame.consume_type,
            frame.message_model,
            frame.consume_from_where,
            subscriptions,
            frame.unit_mode,
        )

    def _join(self, request: Request, data: HeartbeatData, consumer: ConsumerData, size: int) -> None:
        group = self._groups.find(consumer.group_name)
        if group is None:
            return
        if group.retry_queue_nums > 0:
            self._topics.ensure_queues(
                TopicConfig(
                    retry_topic(consumer.group_name),
                    group.retry_queue_nums,
                    group.retry_queue_nums,
                    topic_sys_flag=UNIT_SUBSCRIPTION_FLAG if consumer.unit_mode else 0,
                )
            )
        self._clients.join_consumers(
            self._member(request, data),
            consumer,
            size,
            notify=group.notify_consumer_ids_changed_enable,
            keep_subscriptions=bool(data.without_sub),
        )

    def unregister(self, request: Request) -> Command:
        """Answer 35. A group without this client is not an error. The client's locks are released at once."""
        header = read_header(UnregisterClientHeader, request.command.ext)
        self._clients.leave(request.connection, header.producer_group, header.consumer_group)
        if self._locks is not None and header.consumer_group is not None:
            self._locks.member_left(header.consumer_group, header.client_id, request.connection.id)
        self._notify_if_changed()
        return request.command.answer(ResponseCode.SUCCESS)

    def consumer_list(self, request: Request) -> Command:
        """Answer 38. Code 1 if the group has no members: a client then keeps its queues."""
        group = read_header(ConsumerGroupHeader, request.command.ext).consumer_group
        client_ids = self._clients.client_ids(group)
        if not client_ids:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.command.answer(ResponseCode.SUCCESS, body=ConsumerList(client_ids).to_bytes())

    def _member(self, request: Request, data: HeartbeatData) -> Member:
        command = request.command
        language = known_language(command.language)
        return self._clients.member(request.connection, data.client_id, language, command.version)

    def _check_consumer(self, consumer: ConsumerData) -> Generator[None, None, int]:
        """Check the consumer's data; returns the approximate memory of its subscriptions."""
        validate_group(consumer.group_name)
        validate_topic(retry_topic(consumer.group_name))
        subscriptions = consumer.subscription_data_set
        self._check_count(consumer.group_name, len(subscriptions))
        size = 0
        rest_at = STEP_BYTES * 8
        for number, subscription in enumerate(subscriptions, start=1):
            validate_topic(subscription.topic)
            tags = max(len(subscription.tags_set), len(subscription.code_set))
            _check_tags(consumer.group_name, subscription.topic, tags)
            _check_type(consumer.group_name, subscription)
            size += subscription_bytes(subscription)
            if number % STEP_SUBSCRIPTIONS == 0 or size >= rest_at:
                rest_at = size + STEP_BYTES * 8
                yield
        return size

    def _check_count(self, group: str, subscriptions: int) -> None:
        if subscriptions > self._config.max_subscriptions:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"{subscriptions} subscriptions of group {group[:GROUP_MAX_LENGTH]}, {self._config.max_subscriptions} "
                "are the limit (plugin.clients.max_subscriptions)",
            )

    def _notify_if_changed(self) -> None:
        if self._clients.changed or self._clients.updated:
            self._changed()


def _check_tags(group: str, topic: str, tags: int) -> None:
    if tags > TAGS_MAX:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"about {tags} tags of topic {topic[:TOPIC_MAX_LENGTH]} in group {group[:GROUP_MAX_LENGTH]}, "
            f"{TAGS_MAX} are the limit",
        )


def _check_type(group: str, subscription: SubscriptionData) -> None:
    characters = len(subscription.expression_type)
    if characters > EXPRESSION_TYPE_MAX_CHARACTERS:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"the expression type of topic {subscription.topic} in group {group} has {characters} characters, "
            f"{EXPRESSION_TYPE_MAX_CHARACTERS} are the limit",
        )


def _check_client_id(client_id: str) -> None:
    if not client_id.strip() or len(client_id) > CLIENT_ID_MAX_CHARACTERS:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"clientID has {len(client_id)} characters, allowed are 1 to {CLIENT_ID_MAX_CHARACTERS}, not all blank",
        )
