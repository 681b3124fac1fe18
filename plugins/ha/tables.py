"""A slave's tables: topics, groups, consumers' offsets and delay levels, as its master has them.

They are asked for with the requests that administrators use too (21, 201, 43, 45), over one connection that stays.
Source: RocketMQ 4.9.7 ``SlaveSynchronize``. Unlike there, a master that comes back with older offsets sets nobody back,
and a record of a topic that is not known here lets them be fetched at once: its master may be gone the next moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable, LevelPositions, TopicTable
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

log = structlog.get_logger("gantrymq.ha")

FIRST_S: Final = 0.2
"""How soon after the start, or after the master became known, it is asked for the first time."""
AGAIN_S: Final = 1.0
"""How soon after they were fetched they are fetched again for a topic that is not known."""
_SEPARATOR: Final = "@"


class Tables:
    """Fetches them every ``interval`` seconds for as long as :meth:`run` runs."""

    def __init__(self, broker: Broker, master_address: MasterAddress, interval: float) -> None:
        registry = broker.registry
        self._topics = registry.find(TopicTable)
        self._groups = registry.find(GroupTable)
        self._offsets = registry.find(ConsumerOffsets)
        self._delays = registry.find(LevelPositions)
        self._log_end: Callable[[], int] = lambda: broker.log.end
        self._master_address = master_address
        self._interval = interval
        self._failure = ""
        self._asked_for: set[str] = set()
        """Topics that are known, or that the master was asked for in vain."""
        self._unknown = trio.Event()
        self.fetched = 0
        """How often everything was fetched."""

    def dispatched(self, topics: list[str]) -> None:
        """Records of these topics are here. Costs next to nothing while all of them were here before."""
        if self._topics is None or self._asked_for.issuperset(topics):
            return
        new = set(topics) - self._asked_for
        if any(self._topics.get(topic) is None for topic in new):
            self._unknown.set()
        self._asked_for |= new

    async def run(self) -> None:
        """Until cancelled."""
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
                if str(error) != self._failure:
                    log.warning("tables_not_fetched", master=address, reason=str(error))
                self._failure = str(error)
            pause = min(self._interval, max(pause, FIRST_S) * 2)

    async def _stay(self, channel: Channel, address: str) -> None:
        """Fetch again and again, as long as this is the master and the connection holds."""
        said = MasterOffsets()
        while not channel.closed and address == self._master_address.broker:
            self._unknown = trio.Event()
            again_at = trio.current_time() + min(AGAIN_S, self._interval)
            await self._fetch(channel, said)
            if self._failure or not self.fetched:
                log.info("tables_fetched", master=address)
            self._failure = ""
            self.fetched += 1
            with trio.move_on_after(self._interval):
                await channel.while_open(self._unknown.wait)
            await trio.sleep_until(again_at)

    async def _fetch(self, channel: Channel, said: MasterOffsets) -> None:
        if self._topics is not None:
            log_end = self._log_end()
            if self._topics.adopt(await _ask(channel, RequestCode.GET_ALL_TOPIC_CONFIG), log_end):
                self._asked_for.clear()  # one may be gone, and come back
        if self._groups is not None:
            self._groups.adopt(await _ask(channel, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        if self._offsets is not None:
            said.merge(self._offsets, await _ask(channel, RequestCode.GET_ALL_CONSUMER_OFFSET))
        if self._delays is not None:
            self._delays.adopt(await _ask(channel, RequestCode.GET_ALL_DELAY_OFFSET))


class MasterOffsets:
    """Consumers' offsets as the master has said them over one connection, that is, in one life of its process.

    Higher ones are taken: consumers may have gone on at this slave meanwhile. A lower one is taken only when the master
    has said a higher one before, in this life: then somebody has set the group back. A master that comes back after a
    crash with what it had last written sets nobody back.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], int] = {}

    def merge(self, offsets: ConsumerOffsets, body: bytes) -> None:
        """Take over what the body of an answer to code 43 says. :class:`RemoteFault` if it cannot be read."""
        for name, queues in ConsumerOffsetSerializeWrapper.from_bytes(body).offset_table.items():
            topic, _, group = name.partition(_SEPARATOR)
            for queue_id, offset in queues.items():
                before = self._said.get((name, queue_id), -1)
                self._said[name, queue_id] = offset
                own = offsets.query(group, topic, queue_id)
                if topic and group and queue_id >= 0 and (own is None or offset > own or offset < before):
                    offsets.commit(group, topic, queue_id, offset)


async def _ask(channel: Channel, code: RequestCode) -> bytes:
    answer = await channel.call(Command(code))
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteFault(answer.code, f"the master refuses {code.name}: {answer.remark or 'no remark'}")
    return bytes(answer.body or b"")
