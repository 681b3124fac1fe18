"""A slave's tables, fetched from its master: topics, groups, consumer offsets and delay levels.

They are fetched with the requests that administrators also use (21, 201, 43, 45, 28), over one connection. Source:
RocketMQ 4.9.7 ``SlaveSynchronize``. Unlike RocketMQ, a master that returns with older offsets does not set consumers
back, a record of an unknown topic makes the slave fetch the tables at once, because the master may fail soon, and
``progress`` keeps the slave from adopting progress that is ahead of its own log. Nothing is adopted from a master whose
log this one does not follow: its offsets may count other messages, and its tables may be those of another broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.plugins.ha.marks import ProgressMarks
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.ha.progress import HeldProgress, adopt_transactions, read_offsets
from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable, LevelPositions, TopicTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.names import TRANS_GROUP
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")

FIRST_S: Final = 0.2
"""Seconds from the start, or from the discovery of the master, to the first fetch."""
AGAIN_S: Final = 1.0
"""The least number of seconds between two fetches because of unknown topics."""
HELD_S: Final = 0.2
"""How often, in seconds, the slave checks whether its log has reached the master's progress that it holds."""


class Tables:
    """Fetches the tables every ``interval`` seconds while :meth:`run` runs and this log follows the master's.

    ``follows`` returns whether this log was compared with that of the master at an address and continues from it.
    """

    def __init__(
        self, broker: Broker, master_address: MasterAddress, interval: float, follows: Callable[[str], bool],
        marks: ProgressMarks | None = None,
    ) -> None:  # fmt: skip
        registry = broker.registry
        self._topics = registry.find(TopicTable)
        self._groups = registry.find(GroupTable)
        self._offsets = registry.find(ConsumerOffsets)
        self._delays = registry.find(LevelPositions)
        self._log_end: Callable[[], int] = lambda: broker.log.end
        self._safe_end: Callable[[], int] = lambda: min(broker.log.durable, broker.store.dispatched)
        self._follows = follows
        self._marks = marks
        self._master_address = master_address
        self._interval = interval
        self._failure = ""
        self._outages = Outages(log, trio.current_time)
        self._asked_for: set[str] = set()
        """Topics that need no fetch: they are known, or the master does not have them."""
        self._unknown = trio.Event()
        self.fetched = 0
        """Number of completed fetches."""

    def dispatched(self, topics: list[str]) -> None:
        """Request a fetch if one of ``topics``, of new records, is unknown. Cheap while all of them are known."""
        if self._topics is None or self._asked_for.issuperset(topics):
            return
        new = set(topics) - self._asked_for
        if any(self._topics.get(topic) is None for topic in new):
            self._unknown.set()
        self._asked_for |= new

    async def run(self) -> None:
        """Fetch until cancelled."""
        pause = FIRST_S
        while True:
            await trio.sleep(pause)
            address = self._master_address.broker
            if not address:
                continue
            try:
                async with open_channel(address) as channel:
                    await self._stay(channel, address)
            except (ConnectError, RemoteFault) as error:
                self._outages.warning("tables_not_fetched", master=address, reason=str(error))
                self._failure = str(error)
            pause = min(self._interval, max(pause, FIRST_S) * 2)

    async def _stay(self, channel: Channel, address: str) -> None:
        """Fetch repeatedly while this is the master and the connection is open."""
        said = MasterOffsets()
        progress = HeldProgress(lambda end: self._follows(address) and self._safe_end() >= end)
        while not channel.closed and address == self._master_address.broker:
            self._unknown = trio.Event()
            again_at = trio.current_time() + min(AGAIN_S, self._interval)
            if not await self._fetch(channel, said, progress):
                said = MasterOffsets()
                progress.forget()  # the log may be cut before it follows again
                with trio.move_on_after(FIRST_S):
                    await channel.while_open(trio.sleep_forever)
                continue
            if self._failure or not self.fetched:
                log.info("tables_fetched", master=address)
            self._failure = ""
            self._outages.over("tables_not_fetched")
            self.fetched += 1
            with trio.move_on_after(self._interval):
                await self._wait(channel, progress)
            await trio.sleep_until(again_at)

    async def _wait(self, channel: Channel, progress: HeldProgress) -> None:
        """Wait for a record of an unknown topic or the end of the connection; meanwhile adopt held progress."""
        while progress.is_held and not channel.closed and not self._unknown.is_set():
            with trio.move_on_after(HELD_S):
                await channel.while_open(self._unknown.wait)
            progress.adopt_reached()
        await channel.while_open(self._unknown.wait)

    async def _fetch(self, channel: Channel, said: MasterOffsets, progress: HeldProgress) -> bool:
        """Adopt the master's tables; False, and nothing is adopted, if this log does not follow the master's."""
        address = channel.address
        if not self._follows(address):
            return False
        log_end = self._log_end()
        topics = await _ask(channel, RequestCode.GET_ALL_TOPIC_CONFIG, self._topics)
        groups = await _ask(channel, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._groups)
        offsets = await _ask(channel, RequestCode.GET_ALL_CONSUMER_OFFSET, self._offsets)
        delays = await _ask(channel, RequestCode.GET_ALL_DELAY_OFFSET, self._delays)
        if not self._follows(address):
            return False
        if self._topics is not None and self._topics.adopt(topics, log_end):
            self._asked_for.clear()  # a topic may have been deleted and created again
        if self._groups is not None:
            self._groups.adopt(groups)
        if self._offsets is not None:
            said.merge(self._offsets, offsets)
        if offsets or delays:
            await progress.report(channel, lambda end: self._adopt(end, offsets, delays))
        return True

    def _adopt(self, log_end: int, offsets: bytes, delays: bytes) -> None:
        if self._offsets is not None:
            adopt_transactions(self._offsets, offsets)
        if self._delays is not None:
            self._delays.adopt(delays)
        if self._marks is not None:
            self._marks.add(log_end, self._delays, self._offsets)


class MasterOffsets:
    """Consumer offsets that the master has reported over one connection, that is, within one run of its process.

    The table limits them to this broker's queues. The progress of transactions is not among them
    (:func:`adopt_transactions`).

    Higher offsets are adopted. A lower one is adopted only if the master has reported a higher one before over this
    connection: then an administrator has reset the group. Otherwise consumers may have progressed at this slave, and a
    master that returns after a crash with its last written offsets must not set them back.

    If the master no longer reports a group's offsets in a topic, an administrator has deleted them: they are deleted
    here too, or they would be back after a promotion of this broker. Offsets that the master has not reported over this
    connection stay.
    """

    def __init__(self) -> None:
        self._received: dict[tuple[str, str, int], int] = {}

    def merge(self, offsets: ConsumerOffsets, body: bytes) -> None:
        """Adopt the offsets, and deletions, in the body of a response to code 43. :class:`RemoteFault` if it is
        invalid."""
        entries = [entry for entry in read_offsets(body) if entry[1] != TRANS_GROUP]
        deleted = {key[:2] for key in self._received} - {entry[:2] for entry in entries}
        if deleted:
            self._received = {key: offset for key, offset in self._received.items() if key[:2] not in deleted}
            for topic, group in sorted(deleted):
                offsets.forget(group, topic)
                log.info("offsets_deleted_by_master", group=group, topic=topic)
        for topic, group, queue_id, offset in entries:
            before = self._received.get((topic, group, queue_id), -1)
            self._received[topic, group, queue_id] = offset
            own = offsets.query(group, topic, queue_id)
            if own is None or offset > own or offset < before:
                offsets.commit(group, topic, queue_id, offset)


async def _ask(channel: Channel, code: RequestCode, table: object | None) -> bytes:
    """Return the master's answer; empty, without a request, if this broker does not have the ``table``."""
    if table is None:
        return b""
    answer = await channel.call(Command(code))
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteFault(answer.code, f"the master refuses {code.name}: {answer.remark or 'no remark'}")
    return bytes(answer.body or b"")
