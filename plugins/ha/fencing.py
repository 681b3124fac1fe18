"""Keep a former master from accepting and acknowledging messages, and notify it of the promotion.

``NOTIFY_BROKER_ROLE_CHANGED`` (1008) with the field ``gantryEpoch`` notifies a broker of an epoch. With the broker's
own address as ``masterAddress`` it makes the broker the master of that epoch; with another address, and
``haServerAddr``, a slave follows that broker. The response has the known epoch, the end and the epoch of the log, the
offset before which the log is incomplete, if it is, and the one behind which it has what its master has lost, if any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import (
    CANNOT_BEGIN,
    EPOCH_FIELD,
    LOG_END_FIELD,
    LOG_EPOCH_FIELD,
    LOG_KEPT_FIELD,
    LOG_LACKS_FIELD,
    Epoch,
    epoch_in,
)
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.headers.replication import RoleChangedHeader

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.processors import Request
    from gantrymq.plugins.ha.epochs import Epochs
    from gantrymq.plugins.ha.master_address import MasterAddress

log = structlog.get_logger("gantrymq.ha")

NOTIFY_S: Final = 5.0
HA_ADDRESS_FIELD: Final = "haServerAddr"
PENDING_MAX: Final = 64


class FenceGate:
    """Gate that closes while this master is fenced, also for records that are on its disk."""

    late_code = int(ResponseCode.SERVICE_NOT_AVAILABLE)

    def __init__(self, broker: Broker, refusal: Callable[[], str]) -> None:
        self._broker = broker
        self._refusal = refusal

    @property
    def watermark(self) -> int:
        """The log's end; while the master refuses messages, the offset that was dispatched last."""
        return self._broker.store.dispatched if self._refusal() else self._broker.log.end

    @property
    def timeout_s(self) -> float:
        """No wait: refusals are immediate."""
        return 0.0

    @property
    def late_remark(self) -> str:
        """The reason of the refusal."""
        return self._refusal() or "the broker was not the master for a moment"


def refuse_all(batch: AppendBatch, reason: str) -> None:
    """Refuse all rows of ``batch`` with SERVICE_NOT_AVAILABLE and ``reason``."""
    batch.refuse_all(ResponseCode.SERVICE_NOT_AVAILABLE, reason)


class RoleChanges:
    """Serves code 1008, and sends it to other brokers while :meth:`run` runs."""

    def __init__(self, broker: Broker, epochs: Epochs, master_address: MasterAddress) -> None:
        self._broker = broker
        self._epochs = epochs
        self._master_address = master_address
        self._send, self._receive = trio.open_memory_channel[tuple[str, Epoch]](PENDING_MAX)
        self._ha_address = ""
        self.promoted: Epoch | None = None
        """The epoch of a promotion that is being carried out."""

    def answer(self, request: Request) -> Command:
        """Record the epoch, or become its master. :class:`RemoteFault` if the epoch is missing or cannot begin."""
        command = request.command
        epoch = epoch_in(command.ext)
        if epoch is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"the field {EPOCH_FIELD} is missing or not an epoch")
        known = self._epochs.known
        if known.contradicts(epoch):
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"epoch {epoch} {CANNOT_BEGIN}: the broker knows {known}; use a higher one"
            )
        header = request.header(RoleChangedHeader)
        is_master = self._broker.broker_id == 0
        if header.master_address == self._broker.address:
            self._promote(epoch, is_master)
        else:
            self._epochs.learn(epoch, format_peer(request), is_master=is_master)
            if not is_master and header.master_address:
                self._master_address.master_is(header.master_address, (command.ext or {}).get(HA_ADDRESS_FIELD, ""))
        state = {EPOCH_FIELD: str(self._epochs.known), LOG_END_FIELD: str(self._broker.log.end)}
        if self._epochs.of_log is not None:
            state[LOG_EPOCH_FIELD] = str(self._epochs.of_log.epoch)
        if self._epochs.lacks_before:
            state[LOG_LACKS_FIELD] = str(self._epochs.lacks_before)
        if self._epochs.kept_from:
            state[LOG_KEPT_FIELD] = str(self._epochs.kept_from)
        return command.answer(ResponseCode.SUCCESS, None, state)

    def _promote(self, epoch: Epoch, is_master: bool) -> None:
        if is_master and self._epochs.own == epoch:
            return  # a repeated request
        if is_master and not self._epochs.fenced:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"this broker is the master already, of epoch {self._epochs.own}"
            )
        if is_master:
            self._epochs.begin(epoch)
            self._broker.restart()
            return
        self.promoted = epoch
        try:
            self._broker.registry.get(LiveSettings).update(b"brokerId=0\n")
        finally:
            self.promoted = None

    def send(self, address: str, ha_address: str) -> None:
        """Queue a notification of the broker at ``address``: this master's epoch and its address for slaves."""
        if self._epochs.own is not None and self._epochs.own.number:
            self._ha_address = ha_address
            try:
                self._send.send_nowait((address, self._epochs.own))
            except trio.WouldBlock:
                log.debug("epoch_not_sent", address=address, reason="the queue is full")

    async def run(self) -> None:
        """Send the queued notifications until cancelled."""
        async with trio.open_nursery() as nursery:
            async for address, epoch in self._receive:
                nursery.start_soon(self._notify, address, epoch)

    async def _notify(self, address: str, epoch: Epoch) -> None:
        try:
            await send_epoch(address, epoch, self._broker.address, self._ha_address)
        except (ConnectError, RemoteFault, ValueError, trio.TooSlowError) as error:
            log.info("epoch_not_sent", address=address, epoch=str(epoch), reason=str(error) or "no answer in time")


async def send_epoch(address: str, epoch: Epoch, master: str = "", ha_address: str = "") -> None:
    """Notify the broker at ``address`` of ``epoch``, and of the master's address if it is known.

    Raises the errors of a call, and ``trio.TooSlowError``.
    """
    ext = {EPOCH_FIELD: str(epoch)}
    if master and ha_address:
        ext |= {"masterAddress": master, HA_ADDRESS_FIELD: ha_address}
    with trio.fail_after(NOTIFY_S):
        async with open_channel(address) as channel:
            answer = await channel.call(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext))
            if answer.code:
                raise RemoteFault(answer.code, answer.remark or "no remark")


def format_peer(request: Request) -> str:
    """Return the address of the peer that sent the request, as a text."""
    return str(request.connection.address)
