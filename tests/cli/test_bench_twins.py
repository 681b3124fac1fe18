"""Both twins of the load generator's inner loop send and count the same, against scripted servers."""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.bench import plain_loop
from gantrymq.bench import worker as worker_module
from gantrymq.bench.frames import pull_parts, pulls
from gantrymq.bench.plan import Done, Load, Plan, Target
from gantrymq.bench.running import run
from gantrymq.bench.worker import Worker, load_by_kind
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames

pytestmark = [pytest.mark.timeout(60), pytest.mark.once]  # it runs both twins

compiled_loop = pytest.importorskip("gantrymq.bench._loop", reason="the extension is not built")

TWINS: dict[str, Any] = {"compiled": compiled_loop, "plain": plain_loop}
PAUSE = 0.002
"""Seconds between two pieces, so that they are received one by one."""

Respond = Callable[[list[Command]], list[bytes]]
"""Requests that came together, to the pieces to send. The connection is closed when it raises ``EOFError``."""


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> Any:
    return TWINS[request.param]


class Server:
    """Answers the requests of each connection, except oneway ones, by a function of its own, ``together`` at a time. It
    closes a connection that is ``quiet`` for so many seconds."""

    def __init__(
        self, make: Callable[[], Respond], together: int = 1, pause: float = PAUSE, quiet: float | None = None
    ) -> None:
        self.requests: list[Command] = []
        self._make, self._together, self._pause, self._quiet = make, together, pause, quiet
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        respond, buffer, waiting = self._make(), bytearray(), list[Command]()
        connection.settimeout(self._quiet)
        with connection, suppress(EOFError, ConnectionError, TimeoutError):
            while data := connection.recv(65_536):
                buffer += data
                frames, taken = cut_frames(buffer, 1 << 30)
                del buffer[:taken]
                waiting += (request for request in map(decode, frames) if not request.is_oneway)
                while len(waiting) >= self._together:
                    requests, waiting = waiting[: self._together], waiting[self._together :]
                    self.requests += requests
                    for piece in respond(requests):
                        connection.sendall(piece)
                        time.sleep(self._pause)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def serving(
    make: Callable[[], Respond], together: int = 1, pause: float = PAUSE, quiet: float | None = None
) -> Iterator[Server]:
    server = Server(make, together, pause, quiet)
    try:
        yield server
    finally:
        server.close()


def load_of(server: Server, **changes: Any) -> Load:
    given: dict[str, Any] = {"kind": "send", "topic": "load", "targets": [Target(*server.address, [0, 1], [0, 5])]}
    return Load(**given | changes)


def work(twin: Any, *loads: Load, **changes: Any) -> tuple[Done, Worker]:
    """Run a plan in this process."""
    control, stop = os.pipe()
    worker = Worker(Plan(loads=list(loads), **{"seconds": 30.0, **changes}), control, twin.Loop)
    try:
        return worker.run(), worker
    finally:
        worker.close()
        os.close(control)
        os.close(stop)


def success(request: Command) -> bytes:
    return encode(request.answer(ResponseCode.SUCCESS, ext={"msgId": "7F000001", "queueOffset": "123"}))


def record(size: int) -> bytes:
    """What counts as a record: it begins with its size."""
    return size.to_bytes(4, "big") + b"r" * (size - 4)


RECORDS = record(130) * 2
MIXED = record(100) + record(121)


def pulled(request: Command, records: bytes = RECORDS, most: int = 9) -> bytes:
    assert request.ext is not None
    following = int(request.ext["queueOffset"]) + 2
    ext = {"nextBeginOffset": str(following), "minOffset": "0", "maxOffset": str(most)}
    return encode(request.answer(ResponseCode.SUCCESS, ext=ext, body=records))


RESPONSES: dict[str, Callable[[Command], bytes]] = {"send": success, "pull": pulled}
KINDS = pytest.mark.parametrize("kind", RESPONSES)


def limited(count: int, respond: Respond) -> Callable[[], Respond]:
    """``respond`` to so many groups of requests, then close."""

    def make() -> Respond:
        left = [count]

        def each(requests: list[Command]) -> list[bytes]:
            left[0] -= 1
            if left[0] < 0:
                raise EOFError
            return respond(requests)

        return each

    return make


def latencies_of(done: Done) -> int:
    return sum(done.tallies[0].latencies.values())


def test_each_twin_has_its_kind() -> None:
    assert {name: twin.KIND for name, twin in TWINS.items()} == {"compiled": "compiled", "plain": "plain"}


@pytest.mark.parametrize(("pure", "kind"), [("1", "plain"), ("0", "compiled")])
def test_the_plain_twin_runs_on_request(monkeypatch: pytest.MonkeyPatch, pure: str, kind: str) -> None:
    from gantrymq.bench import loop

    monkeypatch.setenv("GANTRYMQ_PURE", pure)
    found = importlib.reload(loop).KIND
    monkeypatch.undo()
    importlib.reload(loop)
    assert found == kind


@KINDS
def test_responses_split_at_each_byte_are_counted_once(twin: Any, kind: str) -> None:
    size = len(RESPONSES[kind](Command(0, {"queueOffset": "5"}, b"", 0)))
    at = iter(range(1, size))

    def respond(requests: list[Command]) -> list[bytes]:
        data, place = RESPONSES[kind](requests[0]), next(at)
        return [data[:place], data[place:]]

    with serving(limited(size - 1, respond)) as server:
        done, _ = work(twin, load_of(server, kind=kind, targets=[Target(*server.address, [0], [5])]))
    (tally,) = done.tallies
    each = 1 if kind == "send" else 2
    assert (tally.requests, tally.messages) == (size - 1, each * (size - 1))
    assert tally.bytes == (size - 1) * (100 if kind == "send" else len(RECORDS))
    assert latencies_of(done) == size - 1
    assert tally.failures["lost"].count == 1
    assert "all connections were lost" in done.ended


@KINDS
@pytest.mark.parametrize("cut", [0, 1, 50])
def test_many_responses_received_together_are_each_followed_by_a_request(twin: Any, kind: str, cut: int) -> None:
    """Responses come in any order; each request keeps its slot and queue, and the last response may be incomplete."""

    def respond(requests: list[Command]) -> list[bytes]:
        data = b"".join(map(RESPONSES[kind], reversed(requests)))
        return [data[: len(data) - cut], data[len(data) - cut :]]

    with serving(limited(20, respond), together=16) as server:
        done, _ = work(twin, load_of(server, kind=kind, in_flight=16))
    (tally,) = done.tallies
    each = 1 if kind == "send" else 2
    assert (tally.requests, tally.messages, latencies_of(done)) == (320, each * 320, 320)
    assert tally.failures["lost"].count == 16
    name = "e" if kind == "send" else "queueId"
    seen = Counter((request.opaque, (request.ext or {})[name]) for request in server.requests)
    assert seen == {(slot, str(slot % 2)): 21 for slot in range(16)}


def test_a_pull_begins_where_the_last_one_ended_and_returns_at_the_end_of_the_queue(twin: Any) -> None:
    most = 10**17

    def respond(requests: list[Command]) -> list[bytes]:
        return [b"".join(pulled(request, MIXED, most) for request in requests)]

    offsets = [most - 6, 10**9 - 2]
    with serving(limited(6, respond), together=2) as server:
        done, _ = work(
            twin, load_of(server, kind="pull", in_flight=2, targets=[Target(*server.address, [3, 4], offsets)])
        )
    (tally,) = done.tallies
    assert (tally.requests, tally.messages, tally.bytes) == (12, 24, 12 * len(MIXED))
    found = [
        int((each.ext or {})["queueOffset"]) for slot in range(2) for each in server.requests if each.opaque == slot
    ]
    assert found == [*[most - 6, most - 4, most - 2] * 2, most - 6, *(10**9 - 2 + 2 * number for number in range(7))]


def test_frames_of_pulls_are_the_same_from_parts() -> None:
    load = Load(kind="pull", topic="50%/<topic>", targets=[])
    before, after = pull_parts(load)(3, 7)
    assert pulls(load)(3, 7, 12345)[8:] == before + b"12345" + after


BUSY = ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("place", [0, 1, 3])
@KINDS
def test_errors_and_requests_of_the_broker_among_successes(twin: Any, kind: str, place: int) -> None:
    own = encode(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, b"", 2))

    def respond(requests: list[Command]) -> list[bytes]:
        pieces = [*map(RESPONSES[kind], requests)]
        pieces[place] = encode(requests[place].answer(BUSY, "no"))
        return [b"".join(pieces[:2]) + (own if kind == "send" else b"") + b"".join(pieces[2:])]

    with serving(limited(10, respond), together=4) as server:
        done, _ = work(twin, load_of(server, kind=kind, in_flight=4))
    (tally,) = done.tallies
    assert (tally.requests, tally.messages) == (40, 30 if kind == "send" else 60)
    assert {what: failure.count for what, failure in tally.failures.items()} == {"2 SYSTEM_BUSY": 10, "lost": 4}


def changed(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """The same response with other text in its header."""

    def change(data: bytes) -> bytes:
        size = int.from_bytes(data[4:8], "big")
        header, body = data[8 : 8 + size].replace(old, new), data[8 + size :]
        assert old in data
        return (len(header) + len(body) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body

    return change


UNUSUAL: dict[str, Callable[[bytes], bytes]] = {
    "blanks": changed(b'"code":0', b'"code" : 0'),
    "code elsewhere": changed(b'{"code":0,', b'{"version":0,"code":0,'),
    "no opaque": changed(b'"opaque"', b'"other"'),
    "quoted opaque": changed(b'"opaque":1', b'"opaque":"1"'),
    "negative opaque": changed(b'"opaque":1', b'"opaque":-1'),
    "no JSON": changed(b"}", b"?"),
    "unknown header": lambda data: data[:4] + b"\x07" + data[5:],
    "longer header": lambda data: data[:4] + b"\x00\xff\xff\xff" + data[8:],
    "no length": lambda data: b"\0\0\0\0" + data[4:],
    "short length": lambda data: b"\0\0\0\3" + data[4:],
    "negative length": lambda data: b"\xff\xff\xff\xff" + data[4:],
    "long length": lambda data: b"\x7f\xff\xff\xff" + data[4:],
}


@pytest.mark.parametrize("change", UNUSUAL)
@KINDS
def test_unusual_responses_mean_the_same_to_both_twins(kind: str, change: str) -> None:
    def respond(requests: list[Command]) -> list[bytes]:
        first, second, third = map(RESPONSES[kind], requests)
        return [first + UNUSUAL[change](second) + third]

    found: list[object] = []
    for twin in TWINS.values():
        usual = lambda requests: [b"".join(map(RESPONSES[kind], requests))]  # noqa: E731
        answers = [usual, usual, respond]

        def make(answers: list[Respond] = answers) -> Respond:
            each = iter(answers)

            def one(requests: list[Command]) -> list[bytes]:
                if (now := next(each, None)) is None:
                    raise EOFError
                return now(requests)

            return one

        with serving(make, together=3, quiet=0.2) as server:
            try:
                done, _ = work(twin, load_of(server, kind=kind, in_flight=3))
            except Exception as error:
                found.append(type(error))
            else:
                (tally,) = done.tallies
                failures = {what: failure.count for what, failure in tally.failures.items()}
                found.append((tally.requests, tally.messages, tally.bytes, latencies_of(done), failures))
    assert found[0] == found[1]


@KINDS
def test_a_connection_that_is_closed_within_a_response_loses_its_requests(twin: Any, kind: str) -> None:
    def make() -> Respond:
        groups = iter(range(3))

        def respond(requests: list[Command]) -> list[bytes]:
            data = b"".join(map(RESPONSES[kind], requests))
            last = next(groups, None)
            if last is None:
                raise EOFError
            return [data[:-30]] if last == 2 else [data]

        return respond

    with serving(make, together=4, pause=0, quiet=0.2) as server:
        done, _ = work(twin, load_of(server, kind=kind, in_flight=4))
    (tally,) = done.tallies
    assert (tally.requests, tally.failures["lost"].count) == (11, 4)
    assert "all connections were lost" in done.ended


@KINDS
def test_a_reset_connection_is_lost_with_its_reason(twin: Any, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            buffer = b""
            for number in range(4):
                requests: list[Command] = []
                while not requests:
                    buffer += connection.recv(65_536)
                    frames, taken = cut_frames(buffer, len(buffer) + 1)
                    buffer = buffer[taken:]
                    requests = [request for request in map(decode, frames) if not request.is_oneway]
                if number == 3:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.close()
                    return
                connection.sendall(RESPONSES[kind](requests[0]))

        thread = threading.Thread(target=serve)
        thread.start()
        address = listener.getsockname()
        load = Load(kind=kind, topic="load", targets=[Target(*address, [0], [5])])
        done, _ = work(twin, load)
        thread.join()
    assert done.tallies[0].requests == 3
    assert done.tallies[0].failures["lost"].count == 1
    assert done.ended == "all connections were lost (Connection reset by peer)"


def test_requests_that_the_socket_does_not_take_at_once_arrive_whole(twin: Any) -> None:
    """The server does not read for a while, although it has answered everything."""
    bodies: list[bytes] = []

    def respond(requests: list[Command]) -> list[bytes]:
        bodies.extend(request.body for request in requests)
        return [*(success(request) for request in requests), b""]

    with serving(limited(6, respond), together=16, pause=0.01) as server:
        done, _ = work(twin, load_of(server, in_flight=16, body_bytes=600_000))
    assert (done.tallies[0].requests, len(bodies)) == (96, 96)
    assert set(bodies) == {b"gantrymq-bench ".ljust(600_000, b"x")}


def test_a_socket_that_takes_only_a_part_of_a_pull(twin: Any) -> None:
    """Pulls are small: the socket's buffer is smaller still, and the server reads only after its responses."""
    with serving(limited(5, lambda requests: [b"".join(map(pulled, requests))]), together=700) as server:
        control, stop = os.pipe()
        worker = Worker(Plan(loads=[load_of(server, kind="pull", in_flight=700)], seconds=30), control, twin.Loop)
        for each in worker._open.values():
            each.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        done = worker.run()
        worker.close()
        os.close(control)
        os.close(stop)
    assert (done.tallies[0].requests, len(server.requests)) == (3500, 4200)
    assert Counter(request.opaque for request in server.requests) == dict.fromkeys(range(700), 6)


@pytest.mark.parametrize(("connections", "in_flight", "batch"), [(1, 1, 1), (3, 8, 1), (5, 40, 1), (2, 3, 32)])
def test_counted_runs_send_exactly_the_count(twin: Any, connections: int, in_flight: int, batch: int) -> None:
    with serving(lambda: lambda requests: [*map(success, requests)], pause=0) as server:
        load = load_of(server, connections=connections, in_flight=in_flight, batch=batch, requests=101, body_bytes=10)
        done, worker = work(twin, load)
    (tally,) = done.tallies
    assert (len(server.requests), tally.requests, tally.messages) == (101, 101, 101 * batch)
    assert (tally.bytes, latencies_of(done), tally.failures, done.ended) == (1010 * batch, 101, {}, "")
    assert worker.loads[0].tally is tally


def test_a_warm_up_is_not_counted(twin: Any) -> None:
    with serving(lambda: lambda requests: [*map(success, requests)], pause=0) as server:
        done, _ = work(twin, load_of(server, requests=50, in_flight=4, connections=2), warm_up=0.1)
    (tally,) = done.tallies
    # Those in flight at its end are.
    assert (tally.requests, latencies_of(done)) == (58, 58)
    assert len(server.requests) > 58


def test_requests_visit_all_queues_of_all_topics_in_turn(twin: Any) -> None:
    with serving(lambda: lambda requests: [b"".join(map(success, requests))], together=2) as server:
        load = load_of(
            server, topics=["a", "b"], in_flight=2, requests=60, targets=[Target(*server.address, [0, 1, 2], [])]
        )
        done, _ = work(twin, load)
    assert done.tallies[0].messages == 60
    seen = [((request.ext or {})["b"], (request.ext or {})["e"]) for request in server.requests]
    assert seen == [(topic, str(queue)) for queue in range(3) for topic in ("a", "b")] * 10


def test_each_latency_is_counted_also_long_ones(twin: Any) -> None:
    waits = iter([0.0, 0.12, 0.0, 0.08, 0.0, 0.0])

    def respond(requests: list[Command]) -> list[bytes]:
        time.sleep(next(waits))
        return [success(requests[0])]

    with serving(limited(6, respond), pause=0) as server:
        done, _ = work(twin, load_of(server))
    latencies = sorted(Counter(done.tallies[0].latencies).elements())
    assert len(latencies) == 6
    assert latencies[-1] >= 120_000
    assert latencies[-2] >= 80_000
    assert latencies[0] < 65_536


class Joined:
    """A loop that only notes what was added."""

    def __init__(self) -> None:
        self.added: list[str] = []

    def add_sender(self, *arguments: object) -> None:
        self.added.append("sender")

    def add_puller(self, *arguments: object) -> None:
        self.added.append("puller")


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({}, ["sender"]),
        ({"topics": ["a", "b"], "requests": 9, "batch": 3, "access_key": "key", "secret_key": "secret"}, ["sender"]),
        ({"kind": "transact"}, []),
        ({"rate": 100.0}, []),
        ({"run": "12345678"}, []),
        ({"tls": "unverified"}, []),
        ({"authority": "/file"}, []),
        ({"kind": "pull"}, ["puller"]),
        ({"kind": "pull", "batch": 100}, ["puller"]),
        ({"kind": "pull", "requests": 100}, []),
        ({"kind": "pull", "run": "12345678"}, []),
        ({"kind": "pull", "tls": "verified"}, []),
        ({"kind": "pull", "access_key": "key", "secret_key": "secret"}, []),
        ({"kind": "follow"}, []),
    ],
)
def test_only_loads_with_usual_responses_use_the_compiled_loop(changes: dict[str, Any], added: list[str]) -> None:
    target = Target("127.0.0.1", 1, [0, 1], [0, 0])
    load = load_by_kind(Load(**{"kind": "send", "topic": "t", "targets": [target], **changes}))
    loop, connection = Joined(), SimpleNamespace(fd=5, number=0, outstanding=0)
    load.open(connection, target)  # type: ignore[arg-type]
    load.join(loop, connection)  # type: ignore[arg-type]
    assert loop.added == added


@KINDS
def test_usual_responses_do_not_reach_the_python_code_of_the_compiled_twin(kind: str, monkeypatch: Any) -> None:
    calls = Counter[str]()

    class Loop(compiled_loop.Loop):  # type: ignore[misc, name-defined]  # no stub knows that it is compiled
        def resume(self, fd: int) -> None:
            calls["left"] += 1
            super().resume(fd)

    respond = lambda requests: [b"".join(map(RESPONSES[kind], requests))]  # noqa: E731
    with serving(limited(100, respond), together=4, pause=0) as server:
        done, _ = work(type("Twin", (), {"Loop": Loop}), load_of(server, kind=kind, in_flight=4))
    assert done.tallies[0].requests == 400
    assert calls["left"] == 1  # the first response


@pytest.mark.slow
def test_a_follower_may_wait_longer_for_the_last_message_than_for_a_response(twin: Any, monkeypatch: Any) -> None:
    """While it waits, the responses to its pulls show that the broker works."""

    def respond(requests: list[Command]) -> list[bytes]:
        (request,) = requests
        if request.code == RequestCode.PULL_MESSAGE:
            return [encode(request.answer(ResponseCode.PULL_NOT_FOUND, ext={"nextBeginOffset": "0"}))]
        return [success(request)]

    monkeypatch.setattr(worker_module, "LINGER_SECONDS", 1.5)
    with serving(lambda: respond, pause=0.02) as server:
        done, _ = work(twin, load_of(server, requests=2), load_of(server, kind="follow"), timeout=1.0)
    assert done.ended == "2 acknowledged messages did not come in 1.5 s"


@pytest.mark.parametrize("pure", ["0", "1"])
def test_several_processes_share_the_work(monkeypatch: pytest.MonkeyPatch, pure: str) -> None:
    monkeypatch.setenv("GANTRYMQ_PURE", pure)
    with serving(lambda: lambda requests: [*map(success, requests)], pause=0) as server:
        load = load_of(server, connections=5, in_flight=3, requests=101)
        result = run(Plan(loads=[load]), processes=2)
    (outcome,) = result.outcomes
    assert (outcome.messages, outcome.processes, len(server.requests), result.ended) == (101, 2, 101, "")


def test_a_worker_reports_its_count_until_its_parent_ends_the_run(twin: Any, capfdbinary: Any) -> None:
    control, stop = os.pipe()
    with serving(lambda: lambda requests: [*map(success, requests)], pause=0) as server:
        worker = Worker(Plan(loads=[load_of(server, in_flight=2)], seconds=30), control, twin.Loop)
        threading.Timer(2.0, os.close, (stop,)).start()
        done = worker.run()
        worker.close()
    os.close(control)
    assert (done.ended, 0.5 < done.seconds < 20) == ("stopped", True)
    lines = capfdbinary.readouterr().out.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith(b'{"done":') for line in lines)
