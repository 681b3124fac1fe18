"""The two requests. They read old parts of the log, so they run in a worker thread.

Source: RocketMQ 4.9.7 ``QueryMessageProcessor``, ``DefaultMessageStore.queryMessage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.processors import Request
from gantrymq.plugins.interfaces import MessageIndex
from gantrymq.plugins.query.lookup import KeySearch, find_messages, read_by_offset
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.query import (
    UNIQUE_KEY_QUERY,
    QueryMessageHeader,
    QueryMessageResponse,
    ViewMessageHeader,
)

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

MESSAGES_MAX: Final = 64
"""The most messages of one response (``maxMsgsNumBatch``)."""
UNIQUE_MESSAGES: Final = 32
"""The most messages with one unique id, regardless of the request (``defaultQueryMaxNum``)."""
THREADS: Final = 2
"""The most searches at the same time; others wait."""
CATCH_UP_WAIT_S: Final = 1.0
"""How long a search waits for an index that is being built, before it uses the existing part."""


class QueryRequests:
    """Handlers of 12 and 33."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._index = broker.registry.find(MessageIndex)
        self._deliveries = broker.registry.find(Deliveries)
        self._threads = trio.CapacityLimiter(THREADS)

    async def by_key(self, request: Request) -> Command:
        """Answer 12: the newest messages with a key, oldest first, as stored; code 22 if there is none."""
        header = read_header(QueryMessageHeader, request.command.ext)
        if self._index is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "this broker keeps no index: its plugin 'index' is disabled")
        unique = (request.command.ext or {}).get(UNIQUE_KEY_QUERY) == "true"
        search = KeySearch(
            header.topic,
            header.key,
            UNIQUE_MESSAGES if unique else min(header.max_num, MESSAGES_MAX),
            header.begin_timestamp,
            header.end_timestamp,
        )
        records = await trio.to_thread.run_sync(find_messages, self._broker, self._index, search, limiter=self._threads)
        timestamp, offset = self._index.last()
        ext = QueryMessageResponse(index_last_update_timestamp=timestamp, index_last_update_phyoffset=offset).to_ext()
        body = self._delivered(records, request)
        if not body:
            return request.command.answer(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext
            )
        return request.command.answer(ResponseCode.SUCCESS, None, ext, body)

    async def wait_for_index(self, _request: Request) -> None:
        """Wait until the index has all earlier messages, or until it takes too long: what it has is used then."""
        if self._index is not None:
            with trio.move_on_after(CATCH_UP_WAIT_S):
                await self._index.wait_caught_up()

    def _delivered(self, records: list[bytes], request: Request) -> bytes:
        """Return the records that plugins let through; only the newest if all would exceed one response."""
        while self._deliveries is not None:
            given = self._deliveries.deliver(b"".join(records), "query", request.connection)
            if given.fault is not None:
                raise given.fault
            if given.decided == len(records):
                return given.data
            records = records[len(records) - given.decided :]
        return b"".join(records)

    async def by_offset(self, request: Request) -> Command:
        """Answer 33: the message whose record begins at a log offset; code 1 if there is none, and for half
        messages."""
        header = read_header(ViewMessageHeader, request.command.ext)
        record = await trio.to_thread.run_sync(read_by_offset, self._broker, header.offset, limiter=self._threads)
        if record is not None and self._deliveries is not None:
            record = self._deliveries.deliver_one(record, "query", request.connection)
        if record is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return request.command.answer(ResponseCode.SUCCESS, body=record)
