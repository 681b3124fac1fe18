"""Requests that are forwarded to a group's clients: reset offsets (222), consumer status (223), running info (307),
consume directly (309).

Source: RocketMQ 4.9.7 ``Broker2Client``, ``AdminBrokerProcessor.callConsumer``, including the error texts; 5.3.3
``AdminBrokerProcessor.resetOffsetInner`` for a reset of one queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.processors import Heavy, Processor, Request
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.kernel.store.reading import find_named, stored_at
from gantrymq.plugins.admin.config import AdminConfig
from gantrymq.plugins.interfaces import ConsumerGroups, ConsumerOffsets, GroupMember, GroupTable, TopicTable
from gantrymq.remoting.bodies.body import TOLERANT_BYTES_MAX
from gantrymq.remoting.bodies.offsets import ClientStatus, ConsumerStatus, QueueOffset, ResetOffsetList, ResetOffsets
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import CallTimeout, ConnectError, RemoteFault
from gantrymq.remoting.headers.groups import ConsumeDirectlyHeader, ConsumerStatusHeader, RunningInfoHeader
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import ResetOffsetHeader
from gantrymq.remoting.message_ids import parse_offset_message_id
from gantrymq.remoting.names import TRANS_HALF_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

RESET_VERSION = 28
"""3.0.7-SNAPSHOT: the first client version that supports resetting and reporting offsets."""
FORWARD_VERSION = 62
"""3.1.8-SNAPSHOT: the first client version that reports its running info."""
STATUS_VALUES_MAX = 16_384
"""The most values of a client's offset report in non-standard JSON; each queue has eight."""
END = -1
"""As a timestamp: the queue's end."""

log = structlog.get_logger("gantrymq.admin")


class ClientAdmin:
    """Handlers of the four codes."""

    def __init__(self, broker: Broker, config: AdminConfig) -> None:
        self._broker = broker
        self._config = config
        self._topics = broker.registry.get(TopicTable)
        self._group_table = broker.registry.get(GroupTable)
        self._groups = broker.registry.get(ConsumerGroups)
        self._offsets = broker.registry.get(ConsumerOffsets)
        self._deliveries = broker.registry.find(Deliveries)

    def processors(self) -> dict[int, Processor]:
        """Return the handlers by request code."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Heavy(self.reset),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
        }

    async def reset(self, request: Request) -> Command:
        """Answer 222: send the group's members their new offsets (220); the response has the same table.

        Without ``isForce``, offsets only move back. A group is not changed if it never committed, has no connected
        member, or has a member that does not support this. A request for one queue, as from RocketMQ 5, moves it
        anyway, with and without members.
        """
        header = read_header(ResetOffsetHeader, request.command.ext)
        is_one = header.queue_id is not None and header.queue_id >= 0
        table = await (self._one_target(header) if is_one else self._targets(header))
        members = self._groups.members_of(header.group)
        if not members and not is_one:
            raise RemoteFault(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        _check_versions(members, RESET_VERSION)
        for queue, offset in table.items() if is_one else ():
            self._offsets.commit(header.group, header.topic, queue.queue_id, offset)
        body = ResetOffsets(table).to_bytes()
        if request.command.language == "CPP":
            queues = [QueueOffset(queue.topic, queue.broker_name, queue.queue_id, at) for queue, at in table.items()]
            encoded = ResetOffsetList(queues).to_bytes()
        else:
            encoded = body
        ext = ResetOffsetHeader(topic=header.topic, group=header.group, timestamp=header.timestamp).to_ext()
        for member in members:
            member.connection.send(
                Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), encoded, flag=ONEWAY_FLAG)
            )
        log.info(
            "offsets_reset", group=header.group, topic=header.topic, timestamp=header.timestamp, members=len(members)
        )
        return request.command.answer(ResponseCode.SUCCESS, body=body)

    async def status(self, request: Request) -> Command:
        """Answer 223: ask all members, or one, concurrently (221); members that do not respond in time are missing from
        the response."""
        header = read_header(ConsumerStatusHeader, request.command.ext)
        members = self._groups.members_of(header.group)
        if not members:
            raise _fault(f"No Any Consumer online in the consumer group: [{header.group}]")
        _check_versions(members, RESET_VERSION)
        wanted = (header.client_addr or "").strip()
        asked = [member for member in members if not wanted or member.client_id == wanted]
        asked = asked[: 1 if wanted else self._config.max_clients]
        table: dict[str, dict[MessageQueue, int]] = {}
        ext = ConsumerStatusHeader(topic=header.topic, group=header.group).to_ext()

        async def ask(member: GroupMember) -> None:
            try:
                command = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(ext))
                answer = await member.connection.ask(command, self._config.status_timeout)
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    table[member.client_id] = dict(_read_status(answer.body).queues)
            except (ConnectError, RemoteFault) as error:
                log.warning("client_status_failed", group=header.group, client_id=member.client_id, error=str(error))

        async with trio.open_nursery() as nursery:
            for member in asked:
                nursery.start_soon(ask, member)
        return request.command.answer(ResponseCode.SUCCESS, body=ConsumerStatus(table).to_bytes())

    async def running_info(self, request: Request) -> Command:
        """Answer 307: the running info of one client, unchanged."""
        header = read_header(RunningInfoHeader, request.command.ext)
        return await self._forward(request, header.consumer_group, header.client_id, request.command.body)

    async def consume(self, request: Request) -> Command:
        """Answer 309: let one client consume a stored message now; the response is its result."""
        header = read_header(ConsumeDirectlyHeader, request.command.ext)
        record = self._record(header.msg_id or "")
        if self._deliveries is not None:
            delivered = self._deliveries.deliver_one(record, "direct", request.connection)
            if delivered is None:
                raise _fault(f"a plugin withholds the message {header.msg_id!r}")
            record = delivered
        return await self._forward(
            request, header.consumer_group, header.client_id or "", record, {"brokerName": self._broker.name}
        )

    async def _forward(
        self, request: Request, group: str, client_id: str, body: bytes, extra: dict[str, str] | None = None
    ) -> Command:
        member = next((one for one in self._groups.members_of(group) if one.client_id == client_id), None)
        if member is None:
            raise _fault(f"The Consumer <{group}> <{client_id}> not online")
        _check_versions([member], FORWARD_VERSION)
        command = Command(request.command.code, {**(request.command.ext or {}), **(extra or {})}, body)
        try:
            answer = await member.connection.ask(command, self._config.client_timeout)
        except CallTimeout as error:
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise RemoteFault(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from error
        except ConnectError as error:
            raise _fault(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from error
        return request.command.answer(answer.code, answer.remark, answer.ext, answer.body)

    async def _one_target(self, header: ResetOffsetHeader) -> dict[MessageQueue, int]:
        """Return the new offset of the requested queue; ``RemoteFault`` with the codes of RocketMQ 5.3.3."""
        topic, queue_id = self._topics.get(header.topic), header.queue_id
        assert queue_id is not None
        if self._broker.broker_id:
            raise _fault("Can not reset offset in slave broker")
        if topic is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.group not in self._group_table.names():
            raise RemoteFault(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group[:255]} does not exist")
        if queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise _fault(f"the topic {header.topic} has no queue {queue_id} in this broker")
        if header.offset is None or header.offset == END:
            # any negative time is the end
            target = await self._at(header.topic, queue_id, max(header.timestamp, END))
        else:
            queue = self._broker.queues.get(header.topic, queue_id)
            first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            target = header.offset
            if not first <= target <= end + 1:  # one more than the end: as RocketMQ 5.3.3
                raise _fault(f"Target offset {target} not in consume queue range [{first}-{end}]")
        self._offsets.check_room(header.group, header.topic)
        return {MessageQueue(header.topic, self._broker.name, queue_id): target}

    def _topic_of(self, header: ResetOffsetHeader) -> TopicConfig:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise _fault(f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}")
        return topic

    async def _targets(self, header: ResetOffsetHeader) -> dict[MessageQueue, int]:
        topic = self._topic_of(header)
        table = {}
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            target = await self._at(header.topic, queue_id, header.timestamp)
            current = self._offsets.query(header.group, header.topic, queue_id)
            if current is None and queue_id < topic.write_queue_nums:
                raise _fault(f"THe consumer group <{header.group}> not exist")
            queue = MessageQueue(header.topic, self._broker.name, queue_id)
            table[queue] = target if header.is_force or current is None else min(target, current)
        return table

    async def _at(self, topic: str, queue_id: int, timestamp: int) -> int:
        queues = self._broker.queues
        if timestamp == END:
            queue = queues.get(topic, queue_id)
            return 0 if queue is None else queue.max_offset
        search = partial(queues.offset_by_time, stored_at=partial(stored_at, self._broker.log), bound="first_since")
        try:
            return await trio.to_thread.run_sync(search, topic, queue_id, timestamp)
        except OSError as error:
            raise _fault(f"queue {queue_id} of topic {topic} cannot be searched: {error.strerror}") from error

    def _record(self, message_id: str) -> bytes:
        try:
            _, at = parse_offset_message_id(message_id)
            named = find_named(self._broker.store, at)
            if named is None or named.topic == TRANS_HALF_TOPIC:
                raise ValueError("no queue entry names a readable record there")
            self._broker.log.read_record(at)
            return bytes(self._broker.log.view(at, named.size))
        except (ValueError, OutOfLog, CorruptRange, BadRecord, OSError) as error:
            raise _fault(f"there is no message {message_id[:64]!r}: {error}") from None


def _read_status(data: bytes) -> ClientStatus:
    if len(data) > TOLERANT_BYTES_MAX:
        raise _fault(f"an answer of {len(data)} bytes, {TOLERANT_BYTES_MAX} are the limit")
    return ClientStatus.from_bytes(data, STATUS_VALUES_MAX)


def _check_versions(members: Sequence[GroupMember], needed: int) -> None:
    for member in members:
        if member.version < needed:
            raise _fault(
                f"the client {member.client_id} does not support this feature: its version is {member.version}, "
                f"{needed} is needed"
            )


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)
