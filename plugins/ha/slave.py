"""The slave's side of replication: appends the master's log, record by record, and reports its progress.

It reports records that have passed this broker's own gates: with ``plugin.flush.mode = "sync"`` these are flushed.
Source: RocketMQ 4.9.7 ``HAService.HAClient``, which appends the data without checking it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import CorruptRange, NoRoom, OutOfLog, StartError
from gantrymq.kernel.store.log.record import BadRecord, check_begun
from gantrymq.plugins.ha.compare import Comparison, Diverged, NotComparable, UnrelatedStore, master_log_start, plan_cut
from gantrymq.plugins.ha.find import find_master
from gantrymq.plugins.ha.frames import RECORD_EXTRA_BYTES, RECORD_MAX_BYTES, REPORT, TICKET_MARK, BadFrame, Pieces
from gantrymq.plugins.ha.streams import Link, secured
from gantrymq.plugins.interfaces import Encryption
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.epoch import Epoch
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.outages import REPEAT_SECONDS, Outages

if TYPE_CHECKING:
    import ssl

    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.ha.config import HaConfig
    from gantrymq.plugins.ha.epochs import Epochs
    from gantrymq.plugins.ha.master_address import MasterAddress

log = structlog.get_logger("gantrymq.ha")

FIRST_RETRY_S: Final = 0.25
LAST_RETRY_S: Final = 5.0
CONNECT_S: Final = 5.0
ROOM_PAUSE_S: Final = 1.0
SETTLE_S: Final = 5.0
"""How long a start waits, in seconds, for a master that does not respond or cannot be compared with."""
COMPLETE_S: Final = 60.0
"""How often, in seconds, a slave with an incomplete log checks whether its master has deleted what it lacks."""
_RECEIVE_BYTES: Final = 512 * 1024
"""The most bytes received at once: they fit into a processor's cache while they are checked and written."""
_UNCOMMITTED_BYTES: Final = 4 * 1024 * 1024
_MORE_S: Final = 0.001
"""If a receive fills the buffer, more data is waiting: up to this many bytes are flushed, dispatched and reported
together, unless they are late."""


class Slave:
    """Follows the master while :meth:`run` runs."""

    def __init__(self, broker: Broker, config: HaConfig, master_address: MasterAddress, epochs: Epochs) -> None:
        self._broker = broker
        self._epochs = epochs
        self._config = config
        self._master_address = master_address
        self._moved = trio.lowlevel.ParkingLot()
        self.connected_to = ""
        """The master's address while connected."""
        self._compared_with = ""
        """The address for clients of the master with whose log this one was compared before it connected."""
        self.master_end = -1
        """The last known end of the master's log in bytes; -1 before the first message."""
        self.heard_at = 0.0
        self.level_at = broker.env.monotonic()
        """When this log last reached the known end of the master's log."""
        self._reported = 0
        self._outages = Outages(log, broker.env.monotonic)
        self._is_announced = False
        """Whether the log says that this slave follows a master, since its last outage began."""
        self._following = epochs.known
        """The epoch of the master with which this log was compared."""
        self._comparison = Comparison(broker, epochs)
        self._settled = trio.Event()
        self._attempt = trio.CancelScope()
        master_address.changed = self._master_changed

    def _master_changed(self) -> None:
        """Cancel the attempt to reach the previous master, which may hang, or a connection without a comparison."""
        self._attempt.cancel()

    def moved(self) -> None:
        """Wake the report to the master: records have passed the gates."""
        self._moved.unpark_all()

    def follows(self, broker: str) -> bool:
        """Return whether this log is a part of the log of the master with the address ``broker`` for clients, and
        continues from it."""
        return bool(self.connected_to) and self._compared_with == broker

    def lag_s(self) -> float:
        """Return how long this log has lagged or the master has been silent, in seconds; 0 if neither."""
        now = self._broker.env.monotonic()
        if self.connected_to and self._broker.store.dispatched >= self.master_end:
            self.level_at = max(self.level_at, self.heard_at)
            if now - self.heard_at < 2 * self._config.heartbeat:
                self.level_at = now
        return now - self.level_at

    def too_far_behind(self) -> str:
        """Return why clients should not read from this slave; empty while it follows closely.

        Also empty without a master, because the consumers of a lost master need this broker.
        """
        if not self.connected_to or self._broker.store.dispatched >= self.master_end:
            return ""
        lag = self.lag_s()
        if lag <= self._config.ready_lag:
            return ""
        missing = self.master_end - self._broker.store.dispatched
        return f"this slave is {lag:.0f} s and {missing} bytes behind its master (plugin.ha.ready_lag)"

    async def settle(self) -> None:
        """Compare the log with the master's before clients can read it.

        Records that are not the master's are cut off by a restart. If no master responds, there is no comparison,
        because the consumers of a lost master need this broker. :class:`StartError` for an unrelated store.
        """
        try:
            if self._broker.log.end:
                await self._settle(self._broker)
        finally:
            self._settled.set()

    async def _settle(self, broker: Broker) -> None:
        reason = "no nameserver reports a master"
        with trio.move_on_after(SETTLE_S) as patience:
            while address := self._master_address.broker or await find_master(broker):
                try:
                    await self._comparison.check(address)
                except Diverged as diverged:
                    plan_cut(broker, diverged.end)
                    return
                except UnrelatedStore as unrelated:
                    raise StartError(str(unrelated)) from None
                except ConnectError as error:
                    reason = str(error)
                    break
                except (NotComparable, RemoteFault, OutOfLog, CorruptRange, OSError) as error:
                    reason = str(error)
                    await trio.sleep(FIRST_RETRY_S)
                else:
                    return
        if patience.cancelled_caught:
            reason = f"not compared in {SETTLE_S:g} s: {reason}"
        log.warning("serving_without_comparison", reason=reason, offset=broker.log.end)

    async def run(self) -> None:
        """Follow the master until cancelled; reconnects after a lost connection."""
        await self._settled.wait()
        delay = FIRST_RETRY_S
        while True:
            address = await self._master_address.ha_address()
            before = self._broker.log.end
            reason = await self._compare() or await self._follow(address)
            delay = FIRST_RETRY_S if self._broker.log.end > before else min(delay * 2, LAST_RETRY_S)
            if not self._outages.is_open("master_not_connected"):
                self._is_announced = False
            self._outages.warning("master_not_connected", master=address, reason=reason, offset=self._broker.log.end)
            with trio.CancelScope() as self._attempt:
                await trio.sleep(delay)
            if self._attempt.cancelled_caught:
                delay = FIRST_RETRY_S

    async def _compare(self) -> str:
        """Return why this log must not continue from the master's; empty if it may.

        :class:`StartError` if this is not a slave of that master. If the log ends with records that were never the
        master's, the broker restarts, because only a start can cut them off.
        """
        try:
            self._compared_with = self._master_address.broker
            with trio.CancelScope() as self._attempt:
                await self._comparison.check(self._compared_with)
            if self._attempt.cancelled_caught:
                return "the master has changed"
            # Not the highest epoch that is known once the connection exists: a promotion may begin one before that.
            self._following = self._comparison.epoch
        except Diverged as diverged:
            plan_cut(self._broker, diverged.end)
            await trio.sleep_forever()
        except UnrelatedStore as unrelated:
            raise StartError(str(unrelated)) from None
        except (NotComparable, ConnectError, RemoteFault, OutOfLog, CorruptRange, OSError) as error:
            return f"the logs cannot be compared: {error}"
        return ""

    async def _follow(self, address: str) -> str:
        """Handle one connection; returns why it ended."""
        try:
            host, port = parse_address(address)
            with trio.fail_after(CONNECT_S):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, ValueError, trio.TooSlowError) as error:
            return f"it cannot be reached: {error or 'no answer'}"
        try:
            async with stream:
                link = await secured(stream, self._tls_context())
                ticket, self._comparison.ticket = self._comparison.ticket, b""
                if ticket:
                    await link.send([TICKET_MARK + ticket])
                await self._replicate(link, address)
        except (BadFrame, OSError, trio.BrokenResourceError) as ended_early:
            return str(ended_early) or "the connection broke"
        except BaseExceptionGroup as group:
            ended, others = group.split((BadFrame, BadRecord, OutOfLog, OSError, trio.BrokenResourceError))
            if others is not None:
                raise others from None
            return str(ended.exceptions[0]) if ended is not None else "the connection broke"
        finally:
            self.connected_to = ""
        return "it has closed the connection"

    def _tls_context(self) -> ssl.SSLContext | None:
        encryption = None if self._config.tls == "plain" else self._broker.registry.find(Encryption)
        return None if encryption is None else encryption.client_context()

    async def _replicate(self, stream: Link, address: str) -> None:
        broker = self._broker
        while broker.store.dispatched < broker.log.end:
            await self._moved.park()
        self._check_epoch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_former_master, self._following)
            nursery.start_soon(self._watch_master_start, self._compared_with)
            if not self._compared_with:
                nursery.start_soon(self._leave_uncompared)
            self.connected_to = address
            self.heard_at = broker.env.monotonic()
            if not self._is_announced:
                self._is_announced = True
                log.info("following_master", master=address, offset=broker.log.end)
            nursery.start_soon(self._end_outage)
            nursery.start_soon(self._report, stream)
            tail = Tail(broker, lambda offset: self._epochs.log_begins(offset, self._comparison.master_start))
            try:
                await self._receive(stream, tail)
            finally:
                tail.commit()
            nursery.cancel_scope.cancel()

    async def _leave_former_master(self, epoch: Epoch) -> None:
        """Disconnect from a master when another one is promoted: do not append its data or acknowledge it."""
        await self._epochs.wait_raised(epoch)
        raise BadFrame(f"epoch {self._epochs.known} has begun, this master's is {epoch}")

    async def _leave_uncompared(self) -> None:
        """Disconnect when the address for clients is found of a master that could not be asked without it: the next
        connection compares the logs, and with it the tables can be adopted."""
        with trio.CancelScope() as self._attempt:
            if not self._master_address.broker:
                await trio.sleep_forever()
        raise BadFrame("its address for clients is known now, the logs can be compared")

    async def _watch_master_start(self, address: str) -> None:
        """Until this log is complete, compare the start of the master's log with the part that this log lacks."""
        start = self._comparison.master_start
        while address:
            if start is not None:
                with suppress(OSError):  # a full disk: the next round repeats it
                    self._epochs.master_begins(start)
            await trio.sleep(COMPLETE_S)
            if self._epochs.lacks_before:
                with suppress(ConnectError, RemoteFault):
                    start = await master_log_start(address)

    async def _end_outage(self) -> None:
        """Not when the connection begins: the outage of a master that takes connections and ends them continues."""
        await trio.sleep(REPEAT_SECONDS)
        self._outages.over("master_not_connected")

    def _check_epoch(self) -> None:
        """Raise :class:`BadFrame` if a higher epoch is known: :meth:`_leave_former_master` may run too late."""
        if self._epochs.known.outranks(self._following):
            raise BadFrame(f"epoch {self._epochs.known} has begun, this master's is {self._following}")

    async def _receive(self, stream: Link, tail: Tail) -> None:
        """Receive until the master closes the connection."""
        pieces = Pieces()
        room = memoryview(bytearray(_RECEIVE_BYTES))  # one reused buffer: allocating takes as long as receiving
        while True:
            with trio.move_on_after(_MORE_S if tail.uncommitted else self._config.housekeeping) as patience:
                size = await stream.receive_into(room)
            if patience.cancelled_caught and tail.uncommitted:
                tail.commit()
                continue
            if patience.cancelled_caught:
                raise BadFrame(f"the master has sent nothing for {self._config.housekeeping:g} s")
            if not size:
                return
            self._check_epoch()
            self.heard_at = self._broker.env.monotonic()
            for piece in pieces.feed(room[:size]):
                tail.add(piece.offset, piece.data)
                # Not the highest end: another master, or one that has lost its tail, may end earlier.
                self.master_end = piece.offset + len(piece.data)
            while not tail.settle():  # noqa: ASYNC110 - the disk has no event for free space
                await trio.sleep(ROOM_PAUSE_S)
            if size < len(room) or tail.uncommitted >= _UNCOMMITTED_BYTES:
                tail.commit()

    async def _report(self, stream: Link) -> None:
        """Report the log's progress at once when it advances, otherwise as often as a heartbeat is due."""
        while True:
            self._check_epoch()
            self._reported = self._broker.store.dispatched
            self._epochs.log_follows(
                self._following, self._comparison.epoch_start, self._reported,
                async_flush=not self._comparison.master_flushes,
            )  # fmt: skip
            self.lag_s()
            await stream.send([REPORT.pack(self._reported)])
            with trio.move_on_after(self._config.heartbeat):
                while self._broker.store.dispatched <= self._reported:
                    await self._moved.park()


class Tail:
    """Received data that is not in the log yet: at most one incomplete record and one receive buffer."""

    def __init__(self, broker: Broker, begins: Callable[[int], None] = lambda _: None) -> None:
        """``begins`` is called with the first offset of an empty log before the first record is appended."""
        self._broker = broker
        self._begins = begins
        self._file_bytes = broker.log.segments.file_bytes
        usual = broker.config.store.max_message_bytes + RECORD_EXTRA_BYTES
        self._room = memoryview(bytearray(usual + _RECEIVE_BYTES))
        self._size = 0
        self._at = broker.log.end
        self._full = False
        self._committed = self._at

    @property
    def uncommitted(self) -> int:
        """The number of bytes appended since :meth:`commit`."""
        return self._at - self._committed

    def commit(self) -> None:
        """Flush and dispatch the appended records."""
        if self._at > self._committed:
            self._broker.commit_encoded()
            self._committed = self._at

    def add(self, offset: int, data: memoryview) -> None:
        """Add ``data`` at ``offset`` of the master's log. :class:`BadFrame` if that is not the next offset.

        Between two calls of :meth:`settle`, at most one receive may be added.
        """
        expected = self._at + self._size
        if offset != expected and expected:
            raise BadFrame(f"the master sends from the offset {offset}, this log ends at {expected}")
        if not expected:
            self._begins(offset)
            self._at = self._committed = offset  # RocketMQ lets a new slave begin with the master's last file
        end = self._size + len(data)
        if end > len(self._room):  # a record from a time with a higher store.max_message_bytes
            room = memoryview(bytearray(RECORD_MAX_BYTES + _RECEIVE_BYTES))
            room[: self._size] = self._room[: self._size]
            self._room = room
        self._room[self._size : end] = data
        self._size = end

    def settle(self) -> bool:
        """Append complete records; False if the disk is full: then nothing is lost, and the call can be repeated.

        :class:`BadRecord` for invalid data, ``OutOfLog`` if this log has files of another size.
        """
        done = 0
        try:
            while done < self._size:
                taken = self._broker.append_encoded(self._at, self._room[done : self._size])
                if not taken:
                    check_begun(self._room[done : self._size], self._file_bytes - self._at % self._file_bytes)
                    break
                done += taken
                self._at += taken
        except NoRoom as error:
            if not self._full:
                log.warning("slave_disk_full", reason=str(error))
            self._full = True
            return False
        finally:
            rest = self._size - done
            if done:
                self._room[:rest] = self._room[done : self._size]
            self._size = rest
        self._full = False
        if rest > RECORD_MAX_BYTES:
            raise BadRecord(f"the record at {self._at} has more than {RECORD_MAX_BYTES} bytes")
        return True
