"""Requests that list and change topics and groups: 17, 21, 200, 201, 207, 215, 351, 352.

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``. RocketMQ stores queue numbers and permissions as given; GantryMQ
refuses values that could never work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel.processors import Handler, Request
from gantrymq.plugins.interfaces import ConsumerOffsets, Registration
from gantrymq.plugins.topics.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, changed_attributes, parse_changes
from gantrymq.plugins.topics.creation import CreationTimes
from gantrymq.plugins.topics.groups import Groups
from gantrymq.plugins.topics.statetable import StateTable
from gantrymq.plugins.topics.table import Topics
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.groups import DeleteGroupHeader, GroupHeader
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.topics import CreateTopicHeader, TopicHeader
from gantrymq.remoting.names import SYSTEM_GROUPS

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
PERM_MAX = PERM_READ | PERM_WRITE | PERM_INHERIT
GROUP_BYTES_MAX = 65_536
"""The most bytes of a group's settings in a request, because they stay in memory and in a file."""
REGISTRATION_S = 2.0
"""How long a response waits for the nameservers; RocketMQ's waits 6 s, which is longer than many clients wait."""
SYS_FLAG_MAX = 3
"""Bit 1: unit topic, bit 2: has unit subscriptions."""


class TopicAdmin:
    """Answers with code 0, or with code 1 and a remark that names the value and what is allowed."""

    def __init__(self, broker: Broker, topics: Topics, groups: Groups) -> None:
        self._store = broker.store
        self._is_slave = broker.broker_id != 0
        self._offsets = broker.registry.find(ConsumerOffsets)
        self._registration = broker.registry.find(Registration)
        self._topics = topics
        self._groups = groups
        self.times = CreationTimes(broker.env.monotonic)

    def processors(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.times.topic(self.set_topic),
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.times.group(self.set_group),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_TOPIC_CONFIG: self.one_topic,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one_group,
        }

    async def set_topic(self, request: Request) -> Command:
        """Answer 17. As in RocketMQ, the header's ``order`` is ignored: it comes from the nameservers.

        The nameservers have the topic before the response, unless they are unreachable or slower than
        ``REGISTRATION_S``. Code 29 for topics of mixed message types, which 5.3.3 refuses unless it is configured
        otherwise.
        """
        self._refuse_on_slave()
        header = read_header(CreateTopicHeader, request.command.ext)
        self._topics.refuse_reserved(header.topic)
        _check("readQueueNums", header.read_queue_nums, 1, self._topics.config.max_queues)
        _check("writeQueueNums", header.write_queue_nums, 1, self._topics.config.max_queues)
        _check("perm", header.perm, 0, PERM_MAX)
        _check("topicSysFlag", header.topic_sys_flag or 0, 0, SYS_FLAG_MAX)
        if header.topic_filter_type not in FILTER_TYPES:
            raise _fault(
                f"topicFilterType is {header.topic_filter_type[:40]!r}, allowed are {' and '.join(FILTER_TYPES)}"
            )
        changes = parse_changes(header.attributes or "")
        if changes.get("+message.type") == "MIXED":
            raise RemoteFault(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        existing = self._topics.get(header.topic)
        current = None if existing is None else existing.attributes or {}
        attributes = changed_attributes(TOPIC_ATTRIBUTES, current, changes)
        self._topics.set(
            TopicConfig(
                header.topic,
                header.read_queue_nums,
                header.write_queue_nums,
                header.perm,
                header.topic_filter_type,
                header.topic_sys_flag or 0,
                # As 4.9.7 writes a topic without attributes, unless its file already had the field.
                attributes=attributes or (existing.attributes if existing is not None and not changes else None),
            )
        )
        response = await self._saved(request, self._topics.table)
        if self._registration is not None:  # as in RocketMQ: whoever sends or subscribes next finds the route
            await self._registration.wait_current(REGISTRATION_S)
        return response

    def all_topics(self, request: Request) -> Command:
        """Answer 21: the text of ``topics.json``."""
        return request.command.answer(ResponseCode.SUCCESS, body=self._topics.table.encode())

    async def delete_topic(self, request: Request) -> Command:
        """Answer 215: delete the configuration, the consume queues and the groups' offsets. An unknown topic is no
        error.

        RocketMQ keeps the groups' offsets, which are then wrong for a new topic of the same name.
        """
        self._refuse_on_slave()
        topic = read_header(TopicHeader, request.command.ext).topic
        self._topics.refuse_deletion(topic)
        if self._topics.get(topic) is not None:
            try:
                self._store.delete_topic(topic)
            except OSError as error:
                raise _fault(f"the topic {topic} is not deleted, its deletion cannot be noted: {error}") from error
            self._topics.remove(topic)
            if self._offsets is not None:
                self._offsets.forget_topic(topic)
        return await self._saved(request, self._topics.table)

    async def set_group(self, request: Request) -> Command:
        """Answer 200. Its ``attributes`` are changes, as in request 17; no group attribute is defined in 5.3.3
        either."""
        self._refuse_on_slave()
        size = len(request.command.body)
        if size > GROUP_BYTES_MAX:
            raise _fault(f"the settings of a group have {size} bytes, {GROUP_BYTES_MAX} are the limit")
        config = SubscriptionGroupConfig.from_request(request.command.body)
        existing = self._groups.table.entries.get(config.group_name)
        current = None if existing is None else existing.attributes or {}
        changes = config.attributes or {}
        attributes = changed_attributes(GROUP_ATTRIBUTES, current, changes)
        config.attributes = attributes or (config.attributes if not changes else None)
        _check("retryQueueNums", config.retry_queue_nums, 0, self._topics.config.max_queues)
        _check("retryMaxTimes", config.retry_max_times, -1, 2**31 - 1)  # -1: no retries, as 0
        _check("brokerId", config.broker_id, 0, 2**63 - 1)
        _check("whichBrokerWhenConsumeSlowly", config.which_broker_when_consume_slowly, 0, 2**63 - 1)
        self._groups.set(config)
        return await self._saved(request, self._groups.table)

    def all_groups(self, request: Request) -> Command:
        """Answer 201: the text of ``subscriptionGroup.json``."""
        return request.command.answer(ResponseCode.SUCCESS, body=self._groups.table.encode())

    async def delete_group(self, request: Request) -> Command:
        """Answer 207: delete the configuration, and the offsets if the header says so. An unknown group is no error."""
        self._refuse_on_slave()
        header = read_header(DeleteGroupHeader, request.command.ext)
        if header.group_name in SYSTEM_GROUPS:
            raise _fault(f"the group {header.group_name} is a system group and cannot be deleted")
        self._groups.table.remove(header.group_name)
        if (header.remove_offset or header.clean_offset) and self._offsets is not None:
            self._offsets.forget_group(header.group_name)
        return await self._saved(request, self._groups.table)

    def one_topic(self, request: Request) -> Command:
        """Answer 351. Code 17 for an unknown topic."""
        name = read_header(TopicHeader, request.command.ext).topic
        topic = self._topics.get(name)
        if topic is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:127]}")
        return request.command.answer(ResponseCode.SUCCESS, body=self._topics.table.text(name))

    def one_group(self, request: Request) -> Command:
        """Answer 352. Code 26 for an unknown group, which is not created."""
        name = read_header(GroupHeader, request.command.ext).group
        group = self._groups.table.entries.get(name)
        if group is None:
            raise RemoteFault(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:255]}"
            )
        return request.command.answer(ResponseCode.SUCCESS, body=self._groups.table.text(name))

    def _refuse_on_slave(self) -> None:
        if self._is_slave:
            raise _fault("topics and groups are changed on the master, not on a slave")

    async def _saved(
        self, request: Request, table: StateTable[TopicConfig] | StateTable[SubscriptionGroupConfig]
    ) -> Command:
        try:
            await table.save_in_thread()
        except OSError as error:
            raise _fault(f"the change is in force, but {table.path} cannot be written: {error.strerror}") from error
        return request.command.answer(ResponseCode.SUCCESS)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise _fault(f"{name} is {value}, allowed is {low} to {high}")


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)
