"""The master's progress, which a slave adopts when its own log has everything that the progress refers to.

The position of a delay level says that earlier messages were delivered, the offsets of CID_RMQ_SYS_TRANS that earlier
transactions have ended: the delivered messages, the op messages and the committed messages are further back in the
log. A slave that adopted the progress without them, and then became the master, would never deliver these messages.
RocketMQ's slave does so (4.9.7 and 5.3.3 ``SlaveSynchronize``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from gantrymq.plugins.interfaces import ConsumerOffsets
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRANS_GROUP


@attrs.frozen
class _Report:
    """Progress, and the end of the master's log after it."""

    log_end: int
    adopt: Callable[[int], None]


class HeldProgress:
    """The progress that the master has reported over one connection, until this log has what the progress refers to.

    ``has_log`` returns whether this log is known to be the master's up to an offset, and has it on its disk.
    """

    def __init__(self, has_log: Callable[[int], bool]) -> None:
        self._has_log = has_log
        self._held: deque[_Report] = deque()

    @property
    def is_held(self) -> bool:
        """Whether reported progress waits for this log."""
        return bool(self._held)

    async def report(self, channel: Channel, adopt: Callable[[int], None]) -> None:
        """Call ``adopt`` with the end of the master's log, now or in a later :meth:`adopt_reached`: when this log has
        reached that end.

        Call this after the requests for the progress: everything that it refers to is before the end that is requested
        here. Raises :class:`RemoteFault` and what :meth:`Channel.call` raises.
        """
        report = _Report(await log_end(channel), adopt)
        if len(self._held) > 1:  # the oldest stays, for a slave that always lags a little
            self._held.pop()
        self._held.append(report)
        self.adopt_reached()

    def adopt_reached(self) -> None:
        """Adopt the latest progress that this log has reached."""
        reached = None
        while self._held and self._has_log(self._held[0].log_end):
            reached = self._held.popleft()
        if reached is not None:
            reached.adopt(reached.log_end)

    def forget(self) -> None:
        """Drop what is held: this log may be cut."""
        self._held.clear()


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
