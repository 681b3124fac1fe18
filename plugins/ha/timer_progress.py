"""Fetch the progress of the master's timer (GET_TIMER_CHECK_POINT), so that a promoted slave continues there.

Source: RocketMQ 5.3.3 ``SlaveSynchronize.syncTimerCheckPoint``. Unlike RocketMQ's, this slave adopts a checkpoint only
when its own log has all deliveries that the checkpoint counts, on its disk: otherwise a promotion would lose them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.plugins.ha.progress import HeldProgress
from gantrymq.plugins.interfaces import TimerProgress
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.ha.master_address import MasterAddress

log = structlog.get_logger("gantrymq.ha")

EVERY_S: Final = 1.0
"""Seconds between two fetches, if ``sync_tables`` is not shorter. RocketMQ's slaves fetch every three seconds. What the
master delivers after the last fetch is delivered again after a promotion."""


class TimerReports:
    """Fetches while :meth:`run` runs. ``follows`` returns whether this log was compared with that of the master at an
    address and continues from it."""

    def __init__(
        self, broker: Broker, master_address: MasterAddress, interval: float, follows: Callable[[str], bool]
    ) -> None:
        self._broker = broker
        self._timer = broker.registry.find(TimerProgress)
        self._master_address = master_address
        self._follows = follows
        self._interval = min(interval, EVERY_S)
        self._outages = Outages(log, trio.current_time)

    async def run(self) -> None:
        """Fetch until cancelled. The fetches of the tables log it if the master cannot be reached."""
        while self._timer is not None:
            await trio.sleep(self._interval)
            address = self._master_address.broker
            if not address or not self._follows(address):
                continue
            try:
                async with open_channel(address) as channel:
                    await self._stay(channel, address, self._timer)
            except ConnectError:
                continue
            except RemoteFault as fault:
                self._outages.warning("timer_progress_not_fetched", master=address, reason=fault.remark)

    async def _stay(self, channel: Channel, address: str, timer: TimerProgress) -> None:
        """Fetch repeatedly while this is the master and the connection is open."""
        progress = HeldProgress(lambda end: self._follows(address) and self._broker.log.durable >= end)
        is_supported = True
        while not channel.closed and address == self._master_address.broker:
            if not self._follows(address):
                progress.forget()  # the log may be cut before it follows again
            elif is_supported:
                answer = await channel.call(Command(RequestCode.GET_TIMER_CHECK_POINT))
                is_supported = answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED  # as RocketMQ 4
                if answer.code == ResponseCode.SUCCESS:
                    await progress.report(channel, partial(timer.adopt_timer, bytes(answer.body or b"")))
            progress.adopt_reached()
            self._outages.over("timer_progress_not_fetched")
            with trio.move_on_after(self._interval):
                await channel.while_open(trio.sleep_forever)
