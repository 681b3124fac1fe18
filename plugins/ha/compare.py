"""Check that a slave's log is a prefix of its master's, by comparing records.

The replication protocol carries only offsets, and RocketMQ's slave appends behind any log. Here the master must have
the same name and cluster, and the last record must be equal on both sides. If it is not, the slave searches for the
last common record; the records behind it are not in the master's log and are moved to ``lost+found/`` at the next
start, which the broker requests at once. Records that came from this master in its current epoch are an exception: it
lost them when its machine failed. If its flush was always synchronous while the slave followed it, it had not
acknowledged them. Otherwise they may be acknowledged, so the slave keeps them and does not follow.

The requests are GET_BROKER_CONFIG (26) and COMPARE_LOG (47001); for a RocketMQ master, which does not support 47001,
GET_BROKER_RUNTIME_INFO (28) and VIEW_MESSAGE_BY_ID (33).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import CorruptRange
from gantrymq.kernel.layouts import SIZE_AND_MAGIC
from gantrymq.kernel.store.log.record import BLANK_BYTES, BLANK_MAGIC
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.plugins.ha.epochs import FILE
from gantrymq.plugins.ha.fencing import send_epoch
from gantrymq.plugins.ha.matches import LogMatch
from gantrymq.plugins.ha.progress import log_end
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_KEY, EPOCH_START_KEY, epoch_in
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.query import ViewMessageHeader
from gantrymq.remoting.headers.replication import CompareLogHeader, CompareLogResponse, SlaveTicketResponse
from gantrymq.remoting.javaproperties import read_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.ha.epochs import Epochs

log = structlog.get_logger("gantrymq.ha")

CUT_FILE: Final = "config/ha-cut.json"
"""The offset at which the next start truncates the log."""
LOG_START_KEY: Final = "commitLogMinOffset"
"""The name in a broker's runtime information, RocketMQ's too, of the offset at which its log begins."""
ABSENT_S: Final = 30.0
"""How long a RocketMQ master must lack a record of the slave, in seconds, before the record counts as absent."""


class NotComparable(Exception):
    """The logs cannot be compared now; the text gives the reason."""


class UnrelatedStore(Exception):
    """This broker is not a slave of that master, and a retry cannot change that; the text names both."""


class Diverged(Exception):
    """Both logs are equal up to the offset ``end``, but not behind it."""

    def __init__(self, end: int) -> None:
        super().__init__(f"this log is equal to its master's up to offset {end}, but not behind it")
        self.end = end


class Comparison:
    """Compares the broker's log with its master's, before each connection."""

    def __init__(self, broker: Broker, epochs: Epochs) -> None:
        self._broker = broker
        self._epochs = epochs
        self._absent_since: float | None = None
        self._master_compares = True
        """Whether the master supports COMPARE_LOG; a RocketMQ master is asked for records instead."""
        self.master_flushes = True
        """Whether the master reports that it has each record on its disk before it acknowledges it."""
        self.ticket = b""
        """The ticket for the next connection to the master's port of replication, if it needs one."""
        self.epoch = epochs.known
        """The epoch that the last :meth:`check` has accepted: the master's, or the highest known one then."""
        self.epoch_start: int | None = None
        """The end of the master's log when that epoch began, in bytes; None if the master does not report it."""
        self.master_start: int | None = None
        """The offset at which the master's log began at the last :meth:`check`; None if it is unknown."""

    async def check(self, address: str) -> None:
        """Return if the log's last record, and a blank behind it, are equal to the master's, or if the log is empty.

        Raises :class:`NotComparable`, :class:`UnrelatedStore`, :class:`Diverged`, and the errors of a call.
        """
        self.epoch, self.epoch_start, self.master_start = self._epochs.known, None, None
        if not address:
            if not self._broker.log.end and not self._epochs.known.number:
                return
            raise NotComparable(
                "the master's address for clients is unknown, so that records cannot be compared: "
                "set plugin.ha.master_broker"
            )
        async with open_channel(address) as channel:
            await self._identify(channel)
            await self._compare_epochs(channel)
            self._master_compares = True
            await self._fetch_ticket(channel)
            if not self._broker.log.end:
                return
            places = await self._places(self._broker.log.end)
            if not places:
                return
            match = await self._ask(channel, places[-1])
            if match is LogMatch.SAME:
                await self._compare_blank(channel, places[-1])
                self._absent_since = None
                self._epochs.note_kept(0)
                return
            if match is LogMatch.ABSENT and not self._master_compares:
                await self._wait_for_record(channel, places[-1])
            end = await self._common_end(channel)
            if self._may_have_acknowledged:
                lost = self._broker.log.end - end
                self._epochs.note_kept(end)
                raise NotComparable(
                    f"{channel.address}, whose flush is or was asynchronous, has lost {lost} bytes behind the offset "
                    f"{end}, which this slave has. Stop it and promote this slave, or empty {self._broker.root}"
                )
            raise Diverged(end)

    async def _compare_blank(self, channel: Channel, last: int) -> None:
        """Raise :class:`Diverged` if the log ends with a blank, behind its ``last`` record, that the master lacks.

        A power cut can leave a blank whose next record is lost, and the master may have stored records in its place.
        This log would never get them, because replication continues behind the blank. Without it, nothing is lost.
        """
        offset = await trio.to_thread.run_sync(self._blank_behind, last)
        if offset is None:
            return
        match = await self._ask(channel, offset)
        if match is LogMatch.ABSENT and not self._master_compares:
            await self._wait_for_record(channel, offset)
        if match is not LogMatch.SAME:
            raise Diverged(offset)

    def _blank_behind(self, last: int) -> int | None:
        """Return the offset of the blank that follows the ``last`` record and ends the log; None if there is none."""
        commit_log = self._broker.log
        offset = last + len(self._record(last))
        left = commit_log.end - offset
        if left < BLANK_BYTES or commit_log.end % commit_log.segments.file_bytes:
            return None
        try:
            head = commit_log.view(offset, BLANK_BYTES)
        except CorruptRange:  # a damaged range follows the record: it stays
            return None
        return offset if SIZE_AND_MAGIC.unpack(head) == (left, BLANK_MAGIC) else None

    @property
    def _may_have_acknowledged(self) -> bool:
        """Whether all records behind the last common one come from this master, in its epoch, and it may have
        acknowledged them before they were on its disk, whatever its flush is now."""
        of_log = self._epochs.of_log
        return of_log is not None and of_log.epoch == self.epoch and (of_log.async_flush or not self.master_flushes)

    async def _wait_for_record(self, channel: Channel, offset: int) -> None:
        """Raise :class:`NotComparable` while a RocketMQ master may still return the record at ``offset`` later."""
        now = self._broker.env.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        if now - self._absent_since < ABSENT_S and await self._master_end(channel) > offset:
            raise NotComparable(f"the master does not return the record at {offset}, the last one of this log")

    async def _identify(self, channel: Channel) -> None:
        """Check the master's name and cluster; a master that does not report them is accepted."""
        answer = await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
        if answer.code == ResponseCode.SYSTEM_BUSY:
            raise NotComparable(f"{channel.address} is too busy to report its settings")
        try:
            says = read_properties(bytes(answer.body or b"")) if answer.code == ResponseCode.SUCCESS else {}
        except ValueError as error:
            raise NotComparable(f"the settings of {channel.address} cannot be read: {error}") from None
        broker = self._broker
        name, cluster = says.get("brokerName", broker.name), says.get("brokerClusterName", broker.cluster)
        if (name, cluster) != (broker.name, broker.cluster):
            raise UnrelatedStore(
                f"{channel.address} is the broker {name!r} of the cluster {cluster!r}, and this is a slave of the "
                f"broker {broker.name!r} of the cluster {broker.cluster!r}: one of them is set wrong (plugin.ha.master)"
            )
        if says.get("brokerId", "0") != "0":
            raise NotComparable(f"{channel.address} is a slave as well, its broker.id is {says['brokerId']}")
        self._epochs.note_master_role(says.get("brokerRole", ""))
        self.master_flushes = says.get("flushDiskType") == "SYNC_FLUSH"

    async def _fetch_ticket(self, channel: Channel) -> None:
        """Fetch a ticket, unless the master is RocketMQ's. :class:`RemoteFault` if this broker may not be its slave."""
        answer = await channel.call(Command(RequestCode.GET_SLAVE_TICKET))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            raise RemoteFault(answer.code, answer.remark or "no remark")
        ticket = read_header(SlaveTicketResponse, answer.ext).ticket if answer.code == ResponseCode.SUCCESS else None
        try:
            self.ticket = bytes.fromhex(ticket or "")
        except ValueError:
            raise NotComparable(f"{channel.address} returns a ticket that is not hexadecimal") from None

    async def _compare_epochs(self, channel: Channel) -> None:
        """Follow a master of the same epoch, adopt a higher epoch, refuse a master of a lower epoch and notify it.

        RocketMQ's masters have no epochs: after a promotion a slave does not follow one.
        """
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        says = KVTable.from_bytes(answer.body or b"{}").table if answer.code == ResponseCode.SUCCESS else {}
        epoch, known = epoch_in(says, EPOCH_KEY), self._epochs.known
        if epoch is None and known.number:
            raise NotComparable(
                f"{channel.address} does not support epochs, and epoch {known} has begun; to follow a RocketMQ broker "
                f"delete {self._broker.root}/{FILE} before the start"
            )
        if epoch is not None and known.outranks(epoch):
            with contextlib.suppress(ConnectError, RemoteFault, trio.TooSlowError):
                await send_epoch(channel.address, known)  # the next comparison repeats it
            raise NotComparable(f"{channel.address} was the master of epoch {epoch}, and epoch {known} has begun")
        if says.get("haFenced"):
            raise NotComparable(f"{channel.address} is no longer a master: {says['haFenced']}")
        self.epoch = known if epoch is None else epoch
        self.epoch_start = _offset_in(says, EPOCH_START_KEY)
        self.master_start = _offset_in(says, LOG_START_KEY)
        if epoch is not None:
            self._epochs.learn(epoch, channel.address, is_master=False)

    async def _master_end(self, channel: Channel) -> int:
        """Return the end of the master's log; it may have records before it that it does not return yet."""
        try:
            return await log_end(channel)
        except RemoteFault as fault:
            raise NotComparable(fault.remark) from None

    async def _common_end(self, channel: Channel) -> int:
        """Return the offset behind the last common record. :class:`UnrelatedStore` if there is none."""
        end = self._broker.log.end
        while places := await self._places(end):
            if await self._ask(channel, places[0]) is LogMatch.SAME:
                low, high = 0, len(places)
                while high - low > 1:
                    middle = (low + high) // 2
                    if await self._ask(channel, places[middle]) is LogMatch.SAME:
                        low = middle
                    else:
                        high = middle
                return places[low] + len(self._record(places[low]))
            end = places[0]
        raise UnrelatedStore(
            f"no record of the log in {self._broker.root} is one of the master at {channel.address}: the store belongs "
            "to another broker, or all that both had was deleted there. To follow this master begin with an empty "
            "folder; if the master has lost its disk, let this broker take its place (broker.id = 0)"
        )

    async def _places(self, end: int) -> list[int]:
        """Return the offsets of the records below ``end`` in the last log file that has any."""
        return await trio.to_thread.run_sync(self._read_places, end)

    def _read_places(self, end: int) -> list[int]:
        for segment in reversed(list(self._broker.log.segments)):
            if segment.base < end:
                found = self._scan(segment.base, min(segment.end, end))
                if found:
                    return found
        return []

    def _scan(self, start: int, stop: int) -> list[int]:
        """Return the offsets of the records from ``start`` to ``stop``, without unreadable ones."""
        commit_log = self._broker.log
        found: list[int] = []
        while start < stop:
            try:
                for batch in commit_log.scan(start, stop):
                    found += batch.offsets
                    start = batch.end
                break
            except CorruptRange:
                following = find_record(commit_log.segments, start + 1)
                start = stop if following is None else following[0]
        return found

    def _record(self, offset: int) -> bytes:
        """Return the record at ``offset``, or of a blank its head: its other bytes have no meaning."""
        commit_log = self._broker.log
        size, magic = SIZE_AND_MAGIC.unpack(commit_log.view(offset, BLANK_BYTES))
        return bytes(commit_log.view(offset, BLANK_BYTES if magic == BLANK_MAGIC else size))

    async def _ask(self, channel: Channel, offset: int) -> LogMatch:
        """Compare the record with the master's. :class:`NotComparable` if the master cannot decide now."""
        record = await trio.to_thread.run_sync(self._record, offset)
        if self._master_compares:
            header = CompareLogHeader(offset=offset, size=len(record), digest=hashlib.sha256(record).hexdigest())
            answer = await channel.call(Command(RequestCode.COMPARE_LOG, header.to_ext()))
            if answer.code == ResponseCode.SUCCESS:
                match = LogMatch(read_header(CompareLogResponse, answer.ext).match)
                if match is LogMatch.UNKNOWN:
                    raise NotComparable(
                        f"the master cannot read its log at {offset}, to compare it with this one: its log says why. "
                        "If this does not pass, promote a slave that has all, or empty this broker's folder"
                    )
                return match
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RemoteFault(answer.code, answer.remark or "no remark")
            self._master_compares = False
        answer = await channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=offset).to_ext()))
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return LogMatch.ABSENT
        return LogMatch.SAME if bytes(answer.body[: len(record)]) == record else LogMatch.OTHER


async def master_log_start(address: str) -> int | None:
    """Return the offset at which the log of the master at ``address`` begins; None if it does not report it. Raises the
    errors of a call."""
    async with open_channel(address) as channel:
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    return _offset_in(KVTable.from_bytes(answer.body or b"{}").table, LOG_START_KEY) if answer.code == 0 else None


def _offset_in(table: Mapping[str, str], name: str) -> int | None:
    text = table.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def plan_cut(broker: Broker, end: int) -> None:
    """Restart, and truncate the log at ``end`` first."""
    broker.env.replace(_path(broker), json.dumps({"end": end}).encode())
    log.error(
        "diverged_tail_found",
        offset=end, bytes=broker.log.end - end, kept=f"{broker.root}/lost+found",
    )  # fmt: skip
    broker.restart()


def cut_as_planned(broker: Broker) -> bool:
    """Before recovery: truncate the log at the offset that the previous run determined; False if there is none."""
    path = _path(broker)
    if not broker.env.exists(path):
        return False
    end = int(json.loads(broker.env.read_bytes(path))["end"])
    kept = broker.store.cut(end)
    log.warning("diverged_tail_truncated", offset=end, kept=kept)
    _remove(broker, path)  # a power cut would bring the file back, and repeat the cut
    return True


def discard_planned_cut(broker: Broker) -> None:
    """Before a master takes messages: a later start as a slave must not truncate the log at the offset that an earlier
    run as a slave determined."""
    path = _path(broker)
    if broker.env.exists(path):
        _remove(broker, path)
        log.warning("planned_truncation_discarded", file=path, reason="this broker is the master now")


def _remove(broker: Broker, path: str) -> None:
    broker.env.unlink(path)
    broker.env.sync_dir(path.rpartition("/")[0])


def _path(broker: Broker) -> str:
    return f"{broker.root}/{CUT_FILE}"
