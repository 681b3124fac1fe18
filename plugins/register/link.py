"""The link to one nameserver: keep a connection, register, reconnect."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from math import inf
from typing import TYPE_CHECKING

import structlog
import trio

from gantrymq.plugins.register.duplicate_check import CHECK_DELAYS_S
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import epoch_in
from gantrymq.remoting.errors import ConnectError, FrameTooLong, RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import RegisterBrokerResponse
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.plugins.register.body import Announcement
    from gantrymq.plugins.register.duplicate_check import DuplicateCheck

FIRST_RETRY_S = 0.25
DEBOUNCE_S = 0.005
"""Topics that are created together are registered together."""
UNREGISTER_S = 2.0

log = structlog.get_logger("gantrymq.register")


class Link:
    """Registers at ``address`` at once, on :meth:`poke`, every ``interval`` seconds, and after each reconnect."""

    def __init__(
        self, address: str, announcement: Announcement, duplicate_check: DuplicateCheck, interval: float, timeout: float
    ) -> None:
        self.address = address
        self.registered = False
        self.tried = trio.Event()
        """The first attempt has succeeded or failed."""
        self.ordered: Callable[[Collection[str]], None] | None = None
        """Callback for the ordered topics, if this nameserver is their source."""
        self.master_is: Callable[[str, str], None] | None = None
        """Callback for the master's addresses: for clients and for slaves."""
        self._announcement = announcement
        self._duplicate_check = duplicate_check
        self._interval = interval
        self._timeout = timeout
        self._news = trio.Event()
        self._begun = 0
        """The number of the last registration that was begun."""
        self._finished = 0
        """The number of the last registration that has succeeded."""
        self._ended = trio.lowlevel.ParkingLot()
        """Where tasks wait until a registration has succeeded or the connection has ended."""
        self._leaving = trio.Event()
        self._delay = FIRST_RETRY_S
        self._seek = FIRST_RETRY_S
        """How soon a slave without a known master asks again."""
        self._knows_epochs = False
        self._outages = Outages(log, trio.current_time)

    def poke(self) -> None:
        """Register soon, because something changed."""
        self._news.set()

    async def wait_current(self) -> None:
        """Register soon, and wait until that has succeeded; return without it when this broker is not registered."""
        self.poke()
        before = self._begun
        while self.registered and self._finished <= before:
            await self._ended.park()

    def leave(self) -> None:
        """Unregister permanently."""
        self._leaving.set()
        self._news.set()

    async def run(self) -> None:
        """Run until cancelled; then unregister, for at most two seconds."""
        try:
            await self._keep_registered()
            await trio.sleep_forever()
        finally:
            if self.registered and not self._duplicate_check.lost:
                with trio.move_on_after(UNREGISTER_S, shield=True):
                    await self._unregister()

    async def _keep_registered(self) -> None:
        while not self._leaving.is_set():
            if self._duplicate_check.is_fenced:
                log.warning("nameserver_left", address=self.address, reason="this broker is fenced")
                return
            try:
                async with open_channel(self.address) as channel:
                    await self._serve(channel)
                self._failed("the connection ended")
            except ConnectError as error:
                self._failed(error.reason)
            except RemoteFault as fault:
                self._failed(str(fault))
            except OSError as error:  # the epoch stays unknown, and the next answer reports it again
                self._failed(f"an epoch that it reports cannot be stored: {error}")
            except FrameTooLong as error:
                self.registered = False
                self._outages.error("registration_too_large", address=self.address, reason=str(error))
            self.tried.set()
            self._ended.unpark_all()
            with trio.move_on_after(self._delay):
                await self._leaving.wait()
            self._delay = min(self._delay * 2, self._interval)

    async def _serve(self, channel: Channel) -> None:
        await self._duplicate_check.check(channel, self._timeout)
        delays = deque(CHECK_DELAYS_S)
        next_check = trio.current_time() + delays.popleft()
        while not channel.closed:
            if self._leaving.is_set():
                await self._call(channel, self._announcement.unregister())
                self.registered = False
                log.info("nameserver_unregistered", address=self.address)
                return
            self._news = trio.Event()
            await self._check_epoch(channel)
            asked_at = self._duplicate_check.monotonic()
            self._begun += 1
            answer = await self._call(channel, self._announcement.register())
            self._take_epoch(answer, asked_at)
            self._take_order(answer)
            pause = self._take_master(answer)
            if not self.registered:
                log.info("nameserver_registered", address=self.address)
            self.registered = self._duplicate_check.has_registered = True
            self._finished = self._begun
            self._ended.unpark_all()
            self._outages.over("nameserver_unreachable")
            self._outages.over("registration_too_large")
            self._delay = FIRST_RETRY_S
            self.tried.set()
            until = trio.current_time() + pause
            while await self._query_epochs_until(min(until, next_check), channel) and trio.current_time() < until:
                is_lost = await self._duplicate_check.check(channel, self._timeout)
                next_check = trio.current_time() + delays.popleft() if delays else inf
                if next_check == inf:
                    self._duplicate_check.settle()
                if is_lost:
                    break

    async def _check_epoch(self, channel: Channel) -> None:
        """A nameserver without epochs accepts a former master's registration, so the master checks first."""
        replication = self._duplicate_check.replication
        if replication is not None and self.registered and not self._knows_epochs:
            await self._duplicate_check.check(channel, self._timeout)

    async def _query_epochs_until(self, moment: float, channel: Channel) -> bool:
        """As :meth:`_nothing_until`; meanwhile ask often for a higher epoch: a master's lease needs the answers."""
        replication = self._duplicate_check.replication
        interval = inf if replication is None else replication.epoch_query_interval
        while await self._nothing_until(min(moment, trio.current_time() + interval), channel):
            if trio.current_time() >= moment:
                return True
            # First the lease, which notices here that the machine was suspended: a response to an earlier request
            # would not renew it.
            if replication is not None and not replication.has_lease and not self._knows_epochs:
                await self._duplicate_check.check(channel, self._timeout)
            asked_at = self._duplicate_check.monotonic()
            answer = await channel.call(self._announcement.query(), self._timeout)
            if not self._is_answer(answer):
                continue
            self._take_epoch(answer, asked_at)
            if self._knows_epochs and (answer.ext or {}).get("changed") == "true":
                self.poke()
        return False

    def _is_answer(self, answer: Command) -> bool:
        """Whether the nameserver has answered the query for the highest epoch, or does not support it.

        A refusal says nothing about epochs, so it renews no lease. The connection stays open, because the nameserver
        removes the routes when it ends."""
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            self._outages.over("nameserver_refused_query")
            return True
        reason = answer.remark or "no remark"
        self._outages.warning("nameserver_refused_query", address=self.address, code=answer.code, reason=reason)
        return False

    def _take_epoch(self, answer: Command, asked_at: float) -> None:
        """A nameserver with epochs returns the highest one. :class:`RemoteFault` if this broker is fenced."""
        replication = self._duplicate_check.replication
        epoch = epoch_in(answer.ext)
        self._knows_epochs = epoch is not None
        if replication is None:
            return
        if epoch is not None:
            if epoch.outranks(replication.epoch):
                self.poke()  # the response to the next registration has the new master's address
            replication.learn_epoch(epoch, f"the nameserver {self.address}")
        replication.nameserver_answered(asked_at)
        if replication.fenced:
            raise RemoteFault(ResponseCode.SERVICE_NOT_AVAILABLE, replication.fenced)

    async def _nothing_until(self, moment: float, channel: Channel) -> bool:
        """Wait until then; False after an earlier change, or if the connection has ended."""
        with trio.move_on_at(moment):
            await channel.while_open(self._news.wait)
            if self._news.is_set():
                await trio.sleep(DEBOUNCE_S)
        return not self._news.is_set() and not channel.closed

    async def _call(self, channel: Channel, command: Command) -> Command:
        answer = await channel.call(command, self._timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteFault(answer.code, answer.remark or "no remark")
        return answer

    def _take_master(self, answer: Command) -> float:
        """Report the master's addresses; returns when to register again. A slave that started before its master asks
        soon, and then less and less often."""
        if self.master_is is None:
            return self._interval
        told = read_header(RegisterBrokerResponse, answer.ext)
        self.master_is(told.master_addr or "", told.ha_server_addr or "")
        pause = self._interval if told.master_addr else self._seek
        self._seek = FIRST_RETRY_S if told.master_addr else min(self._seek * 2, self._interval)
        return pause

    def _take_order(self, answer: Command) -> None:
        """Report the ordered topics of the nameserver (KV namespace ORDER_TOPIC_CONFIG)."""
        if self.ordered is None or not answer.body:
            return
        try:
            self.ordered(KVTable.from_bytes(answer.body).table.keys())
        except RemoteFault as fault:
            log.warning("ordered_topics_unreadable", address=self.address, reason=fault.remark)

    async def _unregister(self) -> None:
        # the old connection ended with the cancellation
        try:
            async with open_channel(self.address) as channel:
                await self._call(channel, self._announcement.unregister())
        except (ConnectError, RemoteFault) as error:
            log.warning("nameserver_unregister_failed", address=self.address, reason=str(error))

    def _failed(self, reason: str) -> None:
        self.registered = False
        if not self._leaving.is_set():
            self._outages.warning("nameserver_unreachable", address=self.address, reason=reason)
