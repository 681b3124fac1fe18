"""Runs the brokers of a unit: starts all, restarts one that ends, reports their state and stops all."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import structlog
import trio

from gantrymq._version import __version__
from gantrymq.cli.end_deadline import EndDeadline
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.loading import Loaded
from gantrymq.cli.own_nameserver import OwnNameserver
from gantrymq.cli.processes import link
from gantrymq.cli.processes.encryption import encryption_of
from gantrymq.cli.processes.layout import Layout, Member
from gantrymq.cli.processes.pages import serve_pages
from gantrymq.cli.processes.users import warn_of_other_users
from gantrymq.cli.server_process import ServerProcess
from gantrymq.cli.servers import nameservers_of, print_line, start_nameserver_of, tls_of
from gantrymq.cli.signals import ending_by_signal, reloading_by_signal, reopening_by_signal
from gantrymq.cli.systemd import Notifier
from gantrymq.remoting.descriptors import raise_descriptor_limit

RESTART_SECONDS: Final = 1.0
RESTART_MAX_SECONDS: Final = 30.0
"""The pause before the first restart, which doubles with each further one up to the longest."""
DOUBLINGS_MAX: Final = 10
"""More would not change the pause, and after a thousand failures the number would be too large for a float."""
STEADY_SECONDS: Final = 60.0
"""After a broker was ready for this time, its next restart waits for the first pause only."""
FAILURES_MAX: Final = 5
"""After this number of ends and failed restarts without :data:`STEADY_SECONDS` between them, ``/healthz`` names the
broker."""
SILENCE_SECONDS: Final = 30.0
"""A broker that reports no state, or that it does not work, for this time is killed and restarted."""
CHECK_SECONDS: Final = 5.0
TOPICS_MAX: Final = 100_000
"""The most topics that wait for a broker of the unit, for example while it is down."""

log = structlog.get_logger("gantrymq.processes")


class BrokerProcess(ServerProcess):
    """A broker of the unit, over all its restarts."""

    def __init__(self, member: Member) -> None:
        super().__init__(member.name)
        self.member = member
        self.address = ""
        """The address for clients, and that of the health pages, once it was ready."""
        self.pages = ""
        self.restarts = 0
        self.failures = 0
        """Ends and failed restarts in a row, see :data:`FAILURES_MAX`."""
        self.ready = trio.Event()
        """Set when it is ready for the first time."""
        self.not_alive: dict[str, str] = {}
        self.not_ready: dict[str, str] = {}
        self.degraded: dict[str, str] = {}
        self.link: link.Link | None = None
        self._unconfirmed: dict[str, None] = {}
        """The topics that other brokers created and that this one has not confirmed yet, in order."""
        self._reported = False
        self._silent_checks = 0
        self._has_handlers = False
        """Whether the present process was ready: from then on it handles signals, also while it restarts the broker."""
        self._signals: list[int] = []

    async def run(self, nameservers: Sequence[str], share: Callable[[BrokerProcess, str], None]) -> int:
        """Run it once, until it ends; returns the exit code. ``share`` gets its new topics.

        OSError if the process cannot be started.
        """
        own, theirs = link.make_pair()
        try:
            environ = {**os.environ, link.VARIABLE: str(theirs.fileno())}
            environ.pop("NOTIFY_SOCKET", None)  # the parent reports to systemd
            options = ["--label", self.label]
            if self.member.cpu is not None:
                options += ["--cpu", str(self.member.cpu)]
            self.not_alive, self.not_ready, self.degraded, self._silent_checks = {}, {}, {}, 0
            self._has_handlers, self._signals = False, []
            self.spawn(
                [*self.member.arguments, *(["--nameserver", ";".join(nameservers)] if nameservers else [])],
                options=options,
                environ=environ,
                descriptors=[theirs.fileno()],
            )
        except BaseException:
            own.close()
            raise
        finally:
            theirs.close()
        self.link = own
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(own.run_sender)
                nursery.start_soon(self._check)
                nursery.start_soon(self._listen, own, share)
                code = await self.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.link = None
            own.close()
        return code

    async def _listen(self, own: link.Link, share: Callable[[BrokerProcess, str], None]) -> None:
        steady = math.inf
        while (packet := await own.receive()) is not None:
            if packet.ready:
                self.address, self.pages, self.state = packet.ready, packet.pages, "ready"
                self.ready.set()
                steady = trio.current_time() + STEADY_SECONDS
                self._has_handlers = True
                while self._signals:
                    self.send_signal(self._signals.pop(0))
                for topic in self._unconfirmed:
                    own.send(link.Packet(topic=topic))
            if packet.restarting:
                self.state, self.not_alive, self.not_ready, self.degraded = "starting", {}, {}, {}
                steady = math.inf
            if packet.topic:
                share(self, packet.topic)
            self._unconfirmed.pop(packet.confirmed, None)
            if packet.not_alive is not None and packet.not_ready is not None:
                self.not_alive, self.not_ready = packet.not_alive, packet.not_ready
                self.degraded = packet.degraded
                self._reported = not packet.not_alive
            if trio.current_time() > steady:
                self.failures = 0

    async def _check(self) -> None:
        """Kill the broker when it is silent. Checks are counted, so that a pause of this process kills nothing."""
        while True:
            await trio.sleep(CHECK_SECONDS)
            silent = self.state == "ready" and not self._reported
            self._silent_checks = self._silent_checks + 1 if silent else 0
            self._reported = False
            if self._silent_checks * CHECK_SECONDS >= SILENCE_SECONDS:
                log.error("process_killed", process=self.label, seconds=SILENCE_SECONDS, reasons=self.not_alive)
                self.send_signal(signal.SIGKILL)
                return

    def send_when_ready(self, number: int) -> None:
        """Send the signal, to a process that starts once it is ready: before that it may have no handler and would end.

        A process that is started after this call does not get it.
        """
        if self._has_handlers:
            self.send_signal(number)
        elif number not in self._signals:
            self._signals.append(number)

    def send_topic(self, topic: str) -> None:
        """Send a topic that another broker created, once this one is ready; after a restart again, until it confirms
        the topic."""
        if topic not in self._unconfirmed and len(self._unconfirmed) >= TOPICS_MAX:
            reason = f"{self.label}: {TOPICS_MAX} topics wait for it already"
            log.warning("topic_not_shared", process=self.label, reason=reason)
            return
        self._unconfirmed[topic] = None
        if self.state == "ready" and self.link is not None:
            self.link.send(link.Packet(topic=topic))

    def reasons(self) -> dict[str, str]:
        """Why clients cannot work with this broker, by name."""
        if self.state != "ready":
            return {"process": "the broker starts" if self.state == "starting" else "the broker has ended"}
        return self.not_ready


class Unit:
    """All brokers of one machine that run as one unit."""

    def __init__(self, layout: Layout, nameservers: Sequence[str]) -> None:
        """``nameservers``: for the brokers; empty for those of their configuration."""
        self.brokers = [BrokerProcess(member) for member in layout.members]
        self._nameservers = nameservers

    async def keep(self, broker: BrokerProcess) -> None:
        """Run the broker, and run it again when it ends; :class:`CommandFailed` if it was never ready.

        A restart that fails, because the machine has no process, memory or file descriptor left, is tried again too.
        """
        while True:
            code, error = None, ""
            try:
                code = await broker.run(self._nameservers, self.share)
            except OSError as failure:
                error = str(failure)
            if not broker.ready.is_set():
                reason = error or f"exit code {code}; the log above has the reason"
                raise CommandFailed(f"{broker.label} did not start: {reason}")
            pause = min(RESTART_SECONDS * 2 ** min(broker.failures, DOUBLINGS_MAX), RESTART_MAX_SECONDS)
            broker.failures += 1
            if error:
                log.warning("process_not_started", process=broker.label, reason=error, restart_in=pause)
            else:
                broker.restarts += 1
                log.warning("process_ended", process=broker.label, code=code, restart_in=pause)
            await trio.sleep(pause)

    def share(self, creator: BrokerProcess, topic: str) -> None:
        """Send a new topic of one broker to all others, to those that are down when they are ready again."""
        for broker in self.brokers:
            if broker is not creator:
                broker.send_topic(topic)

    def reload(self) -> None:
        """Send SIGHUP to all brokers. Those that start get it once they are ready, because they may have read the
        configuration before it changed."""
        for broker in self.brokers:
            broker.send_when_ready(signal.SIGHUP)

    def reopen_logs(self) -> None:
        """Send SIGUSR1 to all brokers. Those that start get it once they are ready, because they may have opened the
        log file before it was renamed."""
        for broker in self.brokers:
            broker.send_when_ready(signal.SIGUSR1)

    async def stop(self) -> dict[str, int]:
        """Stop all at the same time; returns when they have ended, with the exit codes of those that did not stop
        cleanly."""
        running = [broker for broker in self.brokers if broker.pid and broker.code is None]
        async with trio.open_nursery() as nursery:
            for broker in running:
                nursery.start_soon(broker.stop)
        # one that has just started may have no handler for SIGTERM yet
        return {each.label: code for each in running if (code := each.code) and code != -signal.SIGTERM}

    def not_alive(self) -> dict[str, str]:
        """The reasons, by broker, that restarts have not removed.

        Those that a broker reports are not among them: this process restarts that one, and a supervisor would restart
        the others too.
        """
        failing = f"has ended or could not be restarted {FAILURES_MAX} times in a row; see the log"
        return {f"{each.label}: process": failing for each in self.brokers if each.failures >= FAILURES_MAX}

    def not_ready(self) -> dict[str, str]:
        """The reasons, by broker and name, for which clients cannot work with all brokers."""
        return {f"{each.label}: {name}": reason for each in self.brokers for name, reason in each.reasons().items()}

    def degraded(self) -> dict[str, str]:
        """What does not work although clients can work with all brokers, by broker and name."""
        return {
            f"{each.label}: {name}": reason
            for each in self.brokers
            if each.state == "ready"
            for name, reason in each.degraded.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """The state of each process."""
        return [
            {
                "name": each.label,
                "pid": each.pid,
                "state": each.state,
                "address": each.address,
                "pages": each.pages,
                "restarts": each.restarts,
            }
            for each in self.brokers
        ]


async def run_unit(
    loaded: Loaded,
    layout: Layout,
    deadline: EndDeadline,
    nameserver: OwnNameserver | None = None,
) -> None:
    """Run all brokers, and ``nameserver`` if it is given, until a signal.

    SIGHUP and SIGUSR1 reach all brokers. ``deadline`` is armed at the end.
    :class:`CommandFailed` if a broker does not start, or does not stop cleanly.
    """
    raise_descriptor_limit()  # for the nameserver; the brokers raise their own
    stop = trio.Event()
    with ExitStack() as stack:
        stack.enter_context(ending_by_signal(stop.set, log))
        async with trio.open_nursery() as nursery:
            nameservers: list[str] = []
            server = None
            if nameserver is not None:
                server = await start_nameserver_of(nursery, loaded, nameserver)
                nameservers = nameservers_of(loaded, server.address)
            for name in layout.left_out:
                log.warning("store_left_out", store=str(layout.folder / name), processes=len(layout.members))
            warn_of_other_users(loaded, layout)
            unit = Unit(layout, nameservers)
            encryption = encryption_of(loaded, tls_of(loaded))
            stack.enter_context(reloading_by_signal(unit.reload))
            stack.enter_context(reopening_by_signal(unit.reopen_logs))
            try:
                async with trio.open_nursery() as brokers:

                    async def end() -> None:
                        await stop.wait()
                        brokers.cancel_scope.cancel()

                    brokers.start_soon(end)
                    for broker in unit.brokers:
                        brokers.start_soon(unit.keep, broker)
                    pages: str = await brokers.start(serve_pages, unit, loaded, layout, encryption, server)
                    for broker in unit.brokers:
                        await broker.ready.wait()
                    shown = nameservers or loaded.config.broker.nameservers
                    for line in _banner(unit, layout, shown, pages, own=server is not None):
                        print_line(line)
                    notifier = Notifier()
                    notifier.send(READY="1")
                    brokers.start_soon(notifier.report, unit.not_alive, unit.not_ready)
            finally:
                Notifier().send(STOPPING="1")
                with trio.CancelScope(shield=True):
                    unclean = await unit.stop()
                deadline.arm()
            nursery.cancel_scope.cancel()
    if unclean:
        codes = ", ".join(f"{label} (exit code {code})" for label, code in unclean.items())
        raise CommandFailed(f"did not stop cleanly: {codes}")


def _banner(unit: Unit, layout: Layout, nameservers: Sequence[str], pages: str, *, own: bool) -> list[str]:
    where = "in this process" if own else "not in this process"
    lines = [f"GantryMQ {__version__}, {len(unit.brokers)} processes"]
    for broker in unit.brokers:
        pinned = "" if broker.member.cpu is None else f", processor {broker.member.cpu}"
        lines.append(f"  broker      {broker.label} at {broker.address}, process {broker.pid}{pinned}")
    lines += [
        f"  nameserver  {';'.join(nameservers)} ({where})",
        f"  pages       {pages or 'none'}",
        f"  stores      {layout.folder.resolve()}",
        f"ready broker={';'.join(each.address for each in unit.brokers)} nameserver={';'.join(nameservers)}",
    ]
    return lines
