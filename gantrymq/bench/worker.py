"""``python -m gantrymq.bench.worker``: one epoll over all connections of a plan.

The plan comes as the first line of stdin; ``{"ready": true}`` goes out when all connections are open; the next line is
the start. Then ``{"done": n}`` a few times a second, and the last line is a :class:`~gantrymq.bench.plan.Done`. When
stdin ends, the worker stops early and reports what it has.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import time
from collections.abc import Callable

import attrs
import msgspec

from gantrymq.bench.connection import Connection
from gantrymq.bench.frames import first_frame
from gantrymq.bench.loop import Loop
from gantrymq.bench.pacing import PacedLoad
from gantrymq.bench.plan import BenchFailed, Done, Load, Plan, Target
from gantrymq.bench.pulling import PullLoad
from gantrymq.bench.sending import SendLoad
from gantrymq.bench.transacting import TransactLoad
from gantrymq.remoting.advice import COMMAND, use_advice
from gantrymq.remoting.descriptors import raise_descriptor_limit
from gantrymq.remoting.errors import FatalRemoteFault, GantryError
from gantrymq.remoting.tls import UNVERIFIED, client_context

REPORT_NS = 200_000_000
LINGER_SECONDS = 5.0
"""The longest wait in seconds for the last messages to reach their followers."""
_SECOND = 1_000_000_000

AnyLoad = SendLoad | PullLoad
KINDS: dict[str, type[AnyLoad]] = {"send": SendLoad, "transact": TransactLoad}


@attrs.define
class _Open:
    connection: Connection
    load: AnyLoad


class Worker:
    """The execution of one plan."""

    def __init__(self, plan: Plan, control: int, loop: Callable[[select.epoll], Loop] = Loop) -> None:
        self._plan = plan
        self._control = control
        self._epoll = select.epoll()
        self._loop = loop(self._epoll)
        self._open: dict[int, _Open] = {}
        self._ended = ""
        self._last_response = 0
        self._last_message = (0, 0)
        self._last_result = (0, 0)
        self._acknowledged = 0
        self.loads: list[AnyLoad] = [load_by_kind(load) for load in plan.loads]
        self._sending = [load for load in self.loads if isinstance(load, SendLoad)]
        self._paced = [load for load in self.loads if isinstance(load, PacedLoad)]
        for load in self.loads:
            self._connect(load)

    def _connect(self, load: AnyLoad) -> None:
        plan = load.load
        tls = client_context(plan.authority, verify=plan.tls != UNVERIFIED) if plan.tls or plan.authority else None
        for number in range(plan.first, plan.first + plan.connections):
            target = plan.targets[number % len(plan.targets)]
            connection = Connection(target.host, target.port, number, first_frame(plan, target), tls)
            self._open[connection.fd] = _Open(connection, load)
            self._epoll.register(connection.fd, select.EPOLLIN)

    def run(self) -> Done:
        """Run all loads to their end and return the measurements."""
        plan = self._plan
        self._epoll.register(self._control, select.EPOLLIN)
        started = time.perf_counter_ns()
        begin = started + int(plan.warm_up * _SECOND)
        counted = any(load.load.requests for load in self.loads)
        stop = None if counted else begin + int(plan.seconds * _SECOND)
        self._last_response = started
        self._last_result = (0, started)
        measuring = not plan.warm_up
        if measuring:
            self._measure()
        else:
            self._warm()
        self._start()
        report_at = started + REPORT_NS
        cpu = time.process_time()
        while not self._ended:
            if self._paced:
                self._turn(self._send_due(0.05), 0)
            else:
                phase_end = begin if not measuring else report_at if stop is None else stop
                self._turn(0.05, min(phase_end, report_at))
            now = time.perf_counter_ns()
            if not measuring and now >= begin:
                measuring, begin, cpu = True, now, time.process_time()
                stop = None if counted else begin + int(plan.seconds * _SECOND)
                self._measure()
                if counted:
                    self._start()
            if now >= report_at:
                _print_line({"done": self.loads[-1].tally.messages})
                report_at = now + REPORT_NS
            if (stop is not None and now >= stop and self._has_result()) or (
                counted and measuring and self._all_done()
            ):
                break
            if self._paced and not self._is_send_outstanding():
                self._last_response = now  # the next request is not due yet
            self._check_timeout(now, measuring)
        end = time.perf_counter_ns()
        cpu = time.process_time() - cpu
        for load in self.loads:
            load.tally.latencies = dict(load.latencies.counts)
        return Done(
            tallies=[load.tally for load in self.loads],
            seconds=max(0, end - begin) / _SECOND if measuring else 0.0,
            cpu_seconds=cpu,
            ended=self._ended,
        )

    def _check_timeout(self, now: int, measuring: bool) -> None:
        """End the run if no response has come for too long, or to pulls without sends only responses of empty queues,
        which do not count."""
        limit = self._plan.timeout
        results = sum(load.tally.requests for load in self.loads)
        if results != self._last_result[0] or self._sending or not measuring:
            self._last_result = (results, now)
        if now - self._last_response > limit * _SECOND:
            self._ended = f"no answer for {limit:g} s"
        elif now - self._last_result[1] > limit * _SECOND:
            self._ended = f"no message for {limit:g} s: the queues are empty"

    def close(self) -> None:
        """Close all connections."""
        for each in self._open.values():
            each.connection.close()
        self._epoll.close()

    def _warm(self) -> None:
        for load in self.loads:
            if isinstance(load, SendLoad):
                load.unlimited()

    def _measure(self) -> None:
        for load in self.loads:
            load.start_measuring()

    def _start(self) -> None:
        """Send the first requests of each connection without outstanding requests."""
        for each in list(self._open.values()):
            if not each.connection.outstanding:
                first = each.load.open(each.connection, self._target(each))
                each.load.join(self._loop, each.connection)
                self._send(each, first)

    def _target(self, each: _Open) -> Target:
        targets = each.load.load.targets
        return targets[each.connection.number % len(targets)]

    def _send_due(self, wait: float) -> float:
        """Send what is due, and wait for a response or the next due time, at most ``wait`` seconds.

        Returns the time that is left to wait, which is none: epoll waits for whole milliseconds, select does not.
        """
        for load in self._paced:
            for connection, data in load.due(time.perf_counter_ns()):
                self._send(self._open[connection.fd], data)
        select.select([self._epoll], [], [], min(wait, *(load.wait_seconds() for load in self._paced)))
        return 0.0

    def _turn(self, wait: float, until: int) -> None:
        clock = time.perf_counter_ns
        left = self._loop.poll(wait, until)
        if self._loop.last_response > self._last_response:
            self._note_loop_response(self._loop.last_response)
        for fd, events, received, unsent in left:
            if fd == self._control:
                self._ended = "stopped"
                return
            each = self._open[fd]
            connection = each.connection
            try:
                if isinstance(received, OSError):
                    raise received
                if events & select.EPOLLOUT and connection.flush():
                    self._epoll.modify(fd, select.EPOLLIN)
                if unsent and not connection.send(unsent):
                    self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
                if received:
                    data = connection.accept(received)
                else:
                    data = connection.receive() if events & ~select.EPOLLOUT and not unsent else b""
                if data:
                    now = clock()
                    if isinstance(each.load, SendLoad) or not self._awaits_sends():
                        self._last_response = now
                    more = each.load.take_responses(connection, data, now)
                    if more and not connection.send(more):
                        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
                if connection.is_idle:
                    self._loop.resume(fd)
            except (OSError, GantryError, FatalRemoteFault) as error:
                self._lose(each, error)

    def _note_loop_response(self, at: int) -> None:
        """The loop received a response at ``at`` (ns); its counts show whether that was the response to a send."""
        acknowledged = sum(load.acknowledged for load in self._sending)
        if acknowledged != self._acknowledged or not self._awaits_sends():
            self._acknowledged, self._last_response = acknowledged, at

    def _awaits_sends(self) -> bool:
        """Whether requests of sends are left or not answered. Then responses to pulls do not show that the broker
        works: those of an empty queue continue while sends hang."""
        if not self._sending:
            return False
        if not all(load.finished for load in self._sending):
            return True
        return self._is_send_outstanding()

    def _is_send_outstanding(self) -> bool:
        return any(each.connection.outstanding for each in self._open.values() if isinstance(each.load, SendLoad))

    def _send(self, each: _Open, data: bytes) -> None:
        try:
            if data and not each.connection.send(data):
                self._epoll.modify(each.connection.fd, select.EPOLLIN | select.EPOLLOUT)
        except OSError as error:
            self._lose(each, error)

    def _lose(self, each: _Open, error: Exception) -> None:
        reason = each.connection.explain(str(error.strerror or error) if isinstance(error, OSError) else str(error))
        each.load.lost(each.connection, reason)
        self._epoll.unregister(each.connection.fd)
        self._loop.remove(each.connection.fd)
        del self._open[each.connection.fd]
        each.connection.close()
        if not any(other.load is each.load for other in self._open.values()):
            self._ended = f"all connections were lost ({reason})"

    def _has_result(self) -> bool:
        """Whether anything was answered: on a stalled machine a short measurement goes on until then."""
        return any(load.tally.requests or load.tally.failures for load in self.loads)

    def _all_done(self) -> bool:
        if not self._sending:
            return all(load.finished for load in self.loads)
        if self._awaits_sends():
            return False
        acknowledged = sum(load.acknowledged for load in self._sending)
        receiving = [load for load in self.loads if isinstance(load, PullLoad)]
        received = sum(load.received for load in receiving)
        if not receiving or received >= acknowledged:
            return True
        now = time.perf_counter_ns()
        if received != self._last_message[0] or not self._last_message[1]:
            self._last_message = (received, now)
        elif now - self._last_message[1] > LINGER_SECONDS * _SECOND:
            self._ended = f"{acknowledged - received} acknowledged messages did not come in {LINGER_SECONDS:g} s"
        return False


def load_by_kind(load: Load) -> AnyLoad:
    """Return the load of this kind."""
    return PacedLoad(load) if load.rate else KINDS.get(load.kind, PullLoad)(load)


def _print_line(message: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Read the plan, run it and print the result."""
    raise_descriptor_limit()
    control = sys.stdin.fileno()
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    with use_advice(COMMAND):
        _work(plan, control)


def _work(plan: Plan, control: int) -> None:
    try:
        worker = Worker(plan, control)
    except BenchFailed as error:
        _print_line({"failed": str(error)})
        return
    try:
        _print_line({"ready": True})
        if not sys.stdin.buffer.readline():
            return
        gc.disable()  # nothing here makes cycles, and a collection would be counted as the broker's time
        _print_line(worker.run())
    except BrokenPipeError:
        os._exit(1)  # the parent has ended
    finally:
        worker.close()


if __name__ == "__main__":
    main()
