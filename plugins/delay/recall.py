"""RECALL_MESSAGE (370): cancel a timed message before it is due.

The recall is stored as a message in the same slot of the wheel, and names the message to cancel. Source: RocketMQ 5.3.3
``RecallMessageProcessor``, with its codes and texts. A success means that the recall is stored, not that the message
existed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from gantrymq.kernel.batch import STORED, AppendBatch, Source, Trait
from gantrymq.kernel.processors import Request, take_each
from gantrymq.plugins.interfaces import SendRules, TopicTable
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.recall import RecallMessageHeader, RecallMessageResponse
from gantrymq.remoting.property_bytes import BORN_TIMESTAMP, PGROUP, TAGS, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY
from gantrymq.remoting.recall_handles import RecallHandle, decode_handle

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

RECALL_TAG = b"_RECALL_TAG_"
_BORN_HOST_V6 = 0x10


@attrs.frozen
class Recalls:
    """Answers 370. ``now`` is the store's clock, ``longest_ms`` the longest delay of a timed message."""

    broker: Broker
    topics: TopicTable
    now: Callable[[], int]
    longest_ms: int

    def handle(self, requests: list[Request]) -> None:
        """One batch for all requests."""
        batch = AppendBatch(done=self._answer, traits=Trait.DELAY, source=Source.TIMER)
        take_each(requests, partial(self._add, batch))
        if len(batch):
            self.broker.append(batch)

    def _add(self, batch: AppendBatch, request: Request) -> None:
        header = read_header(RecallMessageHeader, request.command.ext)
        if self.broker.broker_id:
            raise RemoteFault(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self.topics.get(header.topic) is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        handle = self._checked(header)
        born = self.now()
        properties = {
            TAGS: RECALL_TAG,
            TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.unique_key}".encode(),
            UNIQ_KEY: handle.unique_key.encode(),
            TIMER_DELIVER_MS: b"%d" % handle.time,
            BORN_TIMESTAMP: b"%d" % born,
        }
        if header.producer_group:
            properties[PGROUP] = header.producer_group.encode()
        host = request.connection.host
        batch.add(
            handle.topic,
            0,
            b"0",
            b"\x02".join(name + b"\x01" + value for name, value in properties.items()),
            sys_flag=_BORN_HOST_V6 if len(host) > 8 else 0,
            born_timestamp=born,
            born_host=host,
            origin=(request, handle),
        )

    def _checked(self, header: RecallMessageHeader) -> RecallHandle:
        try:
            handle = decode_handle(header.recall_handle)
        except ValueError as error:
            raise RemoteFault(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if "\x01" in handle.unique_key or "\x02" in handle.unique_key:
            raise RemoteFault(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        if handle.topic != header.topic:
            raise RemoteFault(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker != self.broker.name:
            raise RemoteFault(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not 0 < handle.time - self.now() < self.longest_ms:
            raise RemoteFault(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _answer(self, batch: AppendBatch) -> None:
        rules = self.broker.registry.find(SendRules)
        # clients trace recalls of brokers that name their region
        common = {} if rules is None else rules.response_fields
        for row, (request, handle) in enumerate(batch.origins):
            status = batch.statuses[row]
            if status in STORED:
                ext = {**RecallMessageResponse(msg_id=handle.unique_key).to_ext(), **common}
                request.answer(ResponseCode.SUCCESS, None, ext)
            else:
                request.answer(ResponseCode.SYSTEM_ERROR, f"recall failed, {batch.remarks.get(row, 'execute error')}")
