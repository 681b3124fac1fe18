"""The master's progress, which a slave adopts when its own log has everything that the progress refers to.

The position of a delay level says that earlier messages were delivered, the offsets of CID_RMQ_SYS_TRANS that earlier
transactions have ended: the delivered messages, the op messages and the committed messages are further back in the
log. A slave that adopted the progress without them, and then became the master, would never deliver these messages.
RocketMQ's slave does so (4.9.7 and 5.3.3 ``SlaveSynchronize``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gantrymq.plugins.interfaces import ConsumerOffsets
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRANS_GROUP


class HeldProgress:
    """The progress that the master has reported over one connection.

    ``has_log`` returns whether this log is known to be the master's up to an offset, dispatched and flushed.
    """

    def __init__(self, has_log: Callable[[int], bool]) -> None:
        self._has_log = has_log
        self._end = 0
        self._adoptions: Sequence[Callable[[], None]] = ()

    @property
    def is_held(self) -> bool:
        """Whether reported progress waits for this log. It is not replaced by later progress, which a slave that stays
        behind its master would never reach."""
        return bool(self._adoptions)

    async def report(self, channel: Channel, adoptions: Sequence[Callable[[], None]]) -> None:
        """Call each of ``adoptions``, now or in a later :meth:`adopt_reached`: when this log has reached the end of the
        master's.

        Call this after the requests for the progress: everything that it refers to is before the end that is requested
        here. Raises :class:`RemoteFault` and what :meth:`Channel.call` raises.
        """
        self._end, self._adoptions = await log_end(channel), adoptions
        self.adopt_reached()

    def adopt_reached(self) -> None:
        """Adopt the progress if it is held and this log has reached it."""
        if self._adoptions and self._has_log(self._end):
            adoptions, self._adoptions = self._adoptions, ()
            for adopt in adoptions:
                adopt()


async def log_end(channel: Channel) -> int:
    """Return the end of the log of a master, also of RocketMQ's. :class:`RemoteFault` if it does not report it."""
    answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = KVTable.from_bytes(answer.body or b"{}").table if answer.code == ResponseCode.SUCCESS else {}
    try:
        return int(table["commitLogMaxOffset"])
    except (KeyError, ValueError):
        raise RemoteFault(answer.code, f"{channel.address} does not report the end of its log") from None


def adopt_transactions(offsets: ConsumerOffsets, body: bytes) -> None:
    """Adopt the progress of transactions in the body of a response to code 43, also if it is lower.

    A slave makes no progress of its own. Higher offsets than the master's are from a log of which a part was cut off.
    """
    for topic, group, queue_id, offset in read_offsets(body):
        if group == TRANS_GROUP:
            offsets.commit(group, topic, queue_id, offset)


def read_offsets(body: bytes) -> list[tuple[str, str, int, int]]:
    """Return topic, group, queue id and offset of each entry in the body of a response to code 43, without invalid
    entries. :class:`RemoteFault` if the body is invalid."""
    found = []
    for name, queues in ConsumerOffsetSerializeWrapper.from_bytes(body).offset_table.items():
        topic, _, group = name.partition("@")
        if topic and group:
            found += [(topic, group, queue_id, offset) for queue_id, offset in queues.items() if queue_id >= 0]
    return found
