"""The master's side of replication: accepts slaves and sends each the log from its position on.

Each slave has its own task, which reads the log page by page, so memory is limited to one chunk per slave, however slow
it is. Source: RocketMQ 4.9.7 ``HAConnection``; 5.3.3's ``DefaultHAConnection``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import CorruptRange, OutOfLog, StartError
from gantrymq.kernel.network.listening import accept_from
from gantrymq.kernel.store.log.segments import DISK_BLOCK_BYTES
from gantrymq.kernel.store.log.windows import LogWindows, NotCached
from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.ha.copies import Copies, Copy
from gantrymq.plugins.ha.frames import HEADER, TICKET_BYTES, TICKET_MARK, BadFrame, Reports
from gantrymq.plugins.ha.streams import Link, accepted
from gantrymq.plugins.interfaces import RefusalLog
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.audit_events import SLAVE_CONNECTION
from gantrymq.remoting.outages import REPEAT_SECONDS, Outages
from gantrymq.remoting.peers import LOOPBACK, PeerRule

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.env import Listener
    from gantrymq.plugins.ha.epochs import Epochs
    from gantrymq.plugins.ha.lease import Lease
    from gantrymq.plugins.ha.tickets import Tickets
    from gantrymq.plugins.interfaces import Encryption

log = structlog.get_logger("gantrymq.ha")

UNWRITTEN_S: Final = 0.001
"""How soon to check again for appended data that is not written yet, in seconds."""
DRAIN_S: Final = 2.0
"""How long a stopping master continues sending to slaves that lag, in seconds."""
DRAIN_POLL_S: Final = 0.01
AT_ONCE_BYTES: Final = 512 * 1024
"""The most bytes that one system call sends, in several batches."""
UNREADABLE_RETRY_S: Final = 5.0
"""How soon to retry a part of the log that cannot be read, in seconds."""
STOPPED_REMEDY: Final = (
    "the slave stops here, and gets what follows as soon as it can be read. If another slave has it, promote that one; "
    "else empty the folder of this slave and start it again: it begins with the last file of the log"
)
CLOSED: Final = "closed by the slave or the network"
REFUSED: Final = "closed by the master"
"""Outages of their own: the reason for which the master closes a connection is logged beside other interruptions."""
_RECEIVE_BYTES: Final = 4096


class Master:
    """Listens on ``address`` from its creation on, and serves slaves while :meth:`run` runs."""

    def __init__(
        self, broker: Broker, config: HaConfig, copies: Copies, lease: Lease, epochs: Epochs, tickets: Tickets
    ) -> None:
        self._broker = broker
        self._tickets = tickets
        self.encryption: Encryption | None = None
        self.refused: Counter[str] = Counter(address=0, limit=0, tls=0, ticket=0)
        """Connections that were refused, by reason."""
        self._lease = lease
        self._epochs = epochs
        self._config = config
        self._copies = copies
        self._grown = trio.lowlevel.ParkingLot()
        self._windows = LogWindows(broker.env, broker.log)
        self._peers = PeerRule(config.peers or LOOPBACK)
        self._outages = Outages(log, broker.env.monotonic)
        self._listener, self.address = _listen(broker, config.listen)

    def log_grew(self) -> None:
        """Wake the tasks that send to slaves: records were appended."""
        self._grown.unpark_all()

    async def run(self) -> None:
        """Serve until cancelled; then send slaves the rest of the log and release the address."""
        with contextlib.closing(self._listener):
            await self._epochs.wait_decided()  # a slave must not acknowledge to a master without an epoch
            log.info("waiting_for_slaves", address=self.address)
            self._listener.listen(64)
            async with trio.open_nursery() as nursery:
                serving = trio.CancelScope(shield=True)
                nursery.start_soon(self._drain, serving)
                with serving:
                    await self._accept()

    async def _drain(self, serving: trio.CancelScope) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(DRAIN_S, shield=True):
                while any(copy.acknowledged < self._broker.log.end for copy in self._copies if copy.start >= 0):
                    self.log_grew()
                    await trio.sleep(DRAIN_POLL_S)
            for copy in self._copies:
                if copy.start >= 0 and copy.acknowledged < self._broker.log.end:
                    lacks = self._broker.log.end - max(copy.acknowledged, copy.start)
                    log.warning("slave_left_behind", slave=copy.address, lacks_bytes=lacks)
            serving.cancel()

    async def _accept(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                sock, peer = await accept_from(self._listener, "a slave")
                if self._admits(peer):
                    copy = Copy(format_address(*peer), peer[0], self._broker.env.monotonic())
                    self._copies.add(copy)
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                    nursery.start_soon(self._serve, stream, copy)
                else:
                    sock.close()

    def _admits(self, peer: tuple[str, int]) -> bool:
        host, address = peer[0], format_address(*peer)
        if not self._peers.admits(host):
            # A slave receives every message, and its acknowledgments count.
            self._refuse("address", host, address, f"it is not in plugin.ha.peers; add {host!r} to allow it")
            return False
        if len(self._copies) >= self._config.slaves_max:
            self._refuse("limit", host, address, f"plugin.ha.slaves_max = {len(self._copies)} are connected")
            return False
        return True

    def _refuse(self, kind: str, host: str, address: str, reason: str) -> None:
        self.refused[kind] += 1
        self._outages.warning("slave_refused", kind, host, peer=host, reason=reason)
        refusals = self._broker.registry.find(RefusalLog)
        if refusals is not None:
            refusals.connection_refused(SLAVE_CONNECTION, address, "replication", reason)

    def _is_missing(self, host: str) -> bool:
        return any(self._outages.is_open("slave_disconnected", host, side) for side in (CLOSED, REFUSED))

    # ------------------------------------------------------------------------------------------------- one slave

    async def _serve(self, stream: trio.SocketStream, copy: Copy) -> None:
        reason, begun, side = "it has closed the connection", None, CLOSED
        try:
            async with stream:
                link = accepted(stream, self.encryption)
                begun = await self._begin(link, copy)
                if begun is None:
                    return
                for kind in self.refused:
                    self._outages.over("slave_refused", kind, copy.host)
                if not self._is_missing(copy.host):
                    log.info("slave_connected", peer=copy.address)
                await self._replicate(link, copy, begun)
        except (OSError, trio.BrokenResourceError) as error:  # outside a nursery: the peer has reset the connection
            reason = str(error)
        except BaseExceptionGroup as group:
            refusal, others = group.split((BadFrame, OutOfLog, CorruptRange, OSError, trio.BrokenResourceError))
            if others is not None:
                raise others from None
            if refusal is not None:
                reason = str(refusal.exceptions[0])
                side = REFUSED if isinstance(refusal.exceptions[0], BadFrame) else CLOSED
        finally:
            self._copies.remove(copy)
            if begun is not None:
                self._outages.warning(
                    "slave_disconnected", copy.host, side,
                    peer=copy.address, reason=reason, acknowledged=copy.acknowledged,
                )  # fmt: skip

    async def _begin(self, link: Link, copy: Copy) -> bytes | None:
        """Return the first bytes of a slave's reports, behind its ticket; None if it was refused or disconnected."""
        data = b""
        refused, reason = "", ""
        with trio.move_on_after(self._config.housekeeping) as patience:
            try:
                while len(data) < (len(TICKET_MARK) + TICKET_BYTES if data.startswith(b"\xff") else 1):
                    received = await link.receive_some(_RECEIVE_BYTES)
                    if not received:
                        return None
                    data += received
            except (OSError, trio.BrokenResourceError):
                if not link.refused:
                    return None
                refused, reason = "tls", link.refused
        if patience.cancelled_caught:
            return None
        ticket, rest = b"", data
        if data.startswith(TICKET_MARK):
            ticket, rest = data[len(TICKET_MARK) :][:TICKET_BYTES], data[len(TICKET_MARK) + TICKET_BYTES :]
        if not refused and self._tickets.required and not self._tickets.take(ticket):
            refused = "ticket"
            reason = (
                "it sent no valid ticket: it must be GantryMQ with plugin.acl.keys of an administrator, or set "
                "plugin.ha.authentication to none"
            )
        if refused:
            self._refuse(refused, copy.host, copy.address, reason)
            return None
        return rest

    async def _replicate(self, link: Link, copy: Copy, data: bytes | bytearray) -> None:
        async with trio.open_nursery() as nursery:
            reports = Reports()
            while True:
                if not data:
                    with trio.move_on_after(self._config.housekeeping) as patience:
                        data = await link.receive_some(_RECEIVE_BYTES)
                    if patience.cancelled_caught:
                        raise BadFrame(f"it has sent nothing for {self._config.housekeeping:g} s")
                if not data:
                    break
                if self._epochs.fenced:
                    raise BadFrame(self._epochs.fenced)
                if not self._lease.slave_reported(copy.since):
                    raise BadFrame("the lease has expired since it connected")
                received, data = bytes(data), b""
                for offset in reports.feed(received):
                    if copy.start < 0:
                        copy.start = copy.sent = self._start_for(offset)
                        if not self._is_missing(copy.host):
                            log.info("sending_log", peer=copy.address, start=copy.start, reported=offset)
                        nursery.start_soon(self._send, link, copy)
                    elif offset > copy.sent:
                        raise BadFrame(f"it reports {offset}, but was sent the log only up to {copy.sent}")
                    self._copies.acknowledge(copy, offset, self._broker.env.monotonic())
                    copy.update_level(self._broker.log.end, self._broker.env.monotonic())
                if self._broker.env.monotonic() - copy.since >= REPEAT_SECONDS:
                    # Not when it starts: the outage of a slave that comes and goes continues.
                    for side in (CLOSED, REFUSED):
                        self._outages.over("slave_disconnected", copy.host, side)
            nursery.cancel_scope.cancel()

    def _start_for(self, offset: int) -> int:
        """Return the offset at which to begin for a slave that first reports ``offset``."""
        commit_log = self._broker.log
        if offset == 0:
            if self._config.full_copy:
                return commit_log.min_offset
            return max(commit_log.end - commit_log.end % commit_log.segments.file_bytes, commit_log.min_offset)
        if offset > commit_log.end:
            raise BadFrame(f"its log ends at {offset}, this one at {commit_log.end}: it is not the same log")
        if offset < commit_log.min_offset:
            raise BadFrame(f"its log ends at {offset}, and the data behind it was deleted: empty its folder")
        return offset

    async def _send(self, link: Link, copy: Copy) -> None:
        commit_log = self._broker.log
        while True:
            size = commit_log.written - copy.sent
            if size > 0:
                segment = commit_log.segments.at(copy.sent)
                if segment is None:
                    raise OutOfLog(f"the data at {copy.sent} was deleted before it was sent")
                batch = self._config.transfer_batch
                size = min(size, segment.end - copy.sent, max(batch, AT_ONCE_BYTES))
                try:
                    data = await self._read(copy.sent, size)
                except CorruptRange as damage:
                    data = await trio.to_thread.run_sync(self._read_before_damage, copy.sent, size)
                    if not data:
                        await self._stop_for_damage(link, copy, damage)
                        continue
                copy.stopped_at = -1
                start, copy.sent = copy.sent, copy.sent + len(data)
                await link.send(_in_batches(start, memoryview(data), batch))
            elif commit_log.written < commit_log.end:
                await trio.sleep(UNWRITTEN_S)
            else:
                copy.update_level(commit_log.end, self._broker.env.monotonic())
                with trio.move_on_after(self._config.heartbeat) as silence:
                    await self._grown.park()
                if silence.cancelled_caught:
                    await link.send([HEADER.pack(copy.sent, 0)])

    async def _stop_for_damage(self, link: Link, copy: Copy, damage: CorruptRange) -> None:
        """The slave has everything before an unreadable part of the log: send it heartbeats."""
        if copy.stopped_at != copy.sent:
            copy.stopped_at = copy.sent
            self._copies.moved()  # senders do not wait for it
            log.error("slave_stopped", peer=copy.address, offset=copy.sent, reason=f"{damage}; {STOPPED_REMEDY}")
        again_at = trio.current_time() + UNREADABLE_RETRY_S
        while trio.current_time() < again_at:
            await link.send([HEADER.pack(copy.sent, 0)])
            await trio.sleep_until(min(trio.current_time() + self._config.heartbeat, again_at))

    def _read_before_damage(self, offset: int, size: int) -> bytes:
        """Return the readable bytes of this range up to the first unreadable one. Blocks: for a worker thread."""
        commit_log = self._broker.log
        size = min([size, *(max(start - offset, 0) for start, end in commit_log.quarantine if end > offset)])
        data = b""
        while len(data) < size:
            at = offset + len(data)
            try:
                data += commit_log.view(at, min(DISK_BLOCK_BYTES - at % DISK_BLOCK_BYTES, size - len(data)))
            except CorruptRange:
                break
        return data

    def _read_at_once(self, offset: int, size: int, *, wait: bool) -> memoryview | bytes:
        return self._windows.window(offset, size, wait=wait)[:size]

    async def _read(self, offset: int, size: int) -> memoryview | bytes:
        try:
            return self._read_at_once(offset, size, wait=False)
        except NotCached as missing:
            await trio.to_thread.run_sync(missing.fetch)
            return self._read_at_once(offset, size, wait=True)


def _in_batches(offset: int, data: memoryview, size: int) -> list[memoryview | bytes]:
    """Return headers with their data, at most ``size`` bytes each, without copying the data."""
    parts: list[memoryview | bytes] = []
    for at in range(0, len(data), size):
        part = data[at : at + size]
        parts += (HEADER.pack(offset + at, len(part)), part)
    return parts


def _listen(broker: Broker, wanted: str) -> tuple[Listener, str]:
    """Bind the address for slaves; return the listener and the address to advertise."""
    host, port = parse_address(wanted or broker.listening, any_port=True)
    if not wanted:
        any_port = parse_address(broker.config.broker.listen, any_port=True)[1] == 0
        port = 0 if any_port else port + 1
    try:
        listener = broker.env.bind(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(
            f"cannot wait for slaves on {host}:{port}: {reason}; set plugin.ha.listen to another address"
        ) from None
    reachable = host if host not in ("0.0.0.0", "::") else parse_address(broker.address)[0]  # noqa: S104 - compared
    return listener, format_address(reachable, listener.address[1])
