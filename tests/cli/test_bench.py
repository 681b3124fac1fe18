"""``bench`` against a real broker in this process, and its error messages."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gantrymq.sync
from gantrymq.bench.frames import commits, first_frame, pulls, stamped_sends
from gantrymq.bench.latencies import Latencies, microseconds_text, percentiles, rounded
from gantrymq.bench.plan import BenchFailed, Load, Plan, Target
from gantrymq.bench.running import run, run_together, share
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.signing import ACCESS_KEY, SIGNATURE, make_signature
from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.accounts import ACCOUNTS, ACL, ADMIN
from support.certificates import CA, FOLDER
from support.processes import gantrymq_child, wait_for

pytestmark = pytest.mark.timeout(60)

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path_factory.mktemp("store"), settings={"plugin.flush.mode": "async"}) as cluster:
        yield cluster


@pytest.fixture
def bench(cli: Cli, cluster: Cluster) -> Callable[..., dict[str, Any]]:
    """Run ``bench`` with ``--json``; what it printed."""

    def call(*arguments: str) -> dict[str, Any]:
        outcome = cli("bench", *arguments, "--json", "--nameserver", cluster.nameserver)
        assert outcome.code == 0, outcome.err
        found: dict[str, Any] = json.loads(outcome.out)
        return found

    return call


def load_of(address: tuple[str, int], **changes: Any) -> Load:
    given: dict[str, Any] = {"kind": "send", "topic": "load", "targets": [Target(*address, [0, 1], [0, 0])]}
    return Load(**given | changes)


class PullsOnly:
    """A broker that does not answer sends. It answers ``count`` pulls, each after a twentieth of a second, and closes;
    from a queue without messages, or with one message each."""

    def __init__(self, count: int, *, empty: bool) -> None:
        self._left, self._empty = count, empty
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                self._threads.append(threading.Thread(target=self._serve, args=self._listener.accept()[:1]))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = bytearray()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65_536):
                buffer += data
                frames, taken = cut_frames(buffer)
                del buffer[:taken]
                for request in map(decode, frames):
                    if request.code == RequestCode.PULL_MESSAGE:
                        self._left -= 1
                        if self._left < 0:
                            return
                        time.sleep(0.05)
                        connection.sendall(self._answer(request))

    def _answer(self, request: Command) -> bytes:
        ext = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
        if self._empty:
            return encode(request.answer(ResponseCode.PULL_NOT_FOUND, ext=ext))
        ext |= {"nextBeginOffset": "1", "maxOffset": "9"}
        return encode(request.answer(ResponseCode.SUCCESS, ext=ext, body=(100).to_bytes(4, "big") + bytes(96)))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


class Answering:
    """A broker that answers each request but oneway ones with the next of ``codes``, and closes where that is None.

    It processes nothing for ``stall`` seconds after the first bytes.
    """

    def __init__(self, *codes: int | None, stall: float = 0.0) -> None:
        self._stall = stall
        self._codes = codes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        buffer, codes = bytearray(), list(self._codes)
        with connection:
            connection.recv(1, socket.MSG_PEEK)
            time.sleep(self._stall)
            while data := connection.recv(65_536):
                buffer += data
                frames, taken = cut_frames(buffer)
                del buffer[:taken]
                for request in (each for each in map(decode, frames) if not each.is_oneway):
                    code = codes.pop(0)
                    if code is None:
                        return
                    if code >= 0:
                        connection.sendall(encode(request.answer(code, "no")))

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.fixture
def answering() -> Iterator[Callable[..., Answering]]:
    made: list[Answering] = []

    def make(*codes: int | None, stall: float = 0.0) -> Answering:
        made.append(Answering(*codes, stall=stall))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_concurrent_plans_start_sending_after_all_are_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            refusing = nobody.getsockname()
        plans = [Plan(loads=[load_of(address, requests=1)]) for address in (listener.getsockname(), refusing)]
        with pytest.raises(BenchFailed, match="refused"):
            run_together(plans)
        connection, _ = listener.accept()
        received = b""
        with connection:
            while data := connection.recv(65_536):
                received += data
    frames, _ = cut_frames(received)
    assert [decode(frame).is_oneway for frame in frames] == [True]  # with which the connection was opened


@pytest.mark.parametrize("kind", ["send", "pull", "follow", "transact"])
@pytest.mark.parametrize("is_secured", [False, True])
def test_a_broker_keeps_connections_that_wait_for_the_start(kind: str, is_secured: bool, tmp_path: Path) -> None:
    """Others may take longer to open than a broker waits for the first frame of a connection."""
    settings, enabled, security = {"limits.first_frame": "1s"}, [], dict[str, str]()
    if is_secured:
        (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
        settings["plugin.tls.certificate"] = str(FOLDER / "server.pem")
        settings["plugin.tls.outgoing"] = "plain"
        settings["plugin.acl.file"] = str(tmp_path / "plain_acl.yml")
        enabled = [ACL, "gantrymq.plugins.tls:TlsPlugin"]
        security = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key, "authority": str(CA)}
    with cluster_in_thread(tmp_path / "store", settings=settings, enable=enabled) as cluster:
        address = parse_address(cluster.address)

        def wait_until_silent_connections_are_closed() -> None:
            with socket.create_connection(address, 30) as silent:
                assert silent.recv(1) == b""

        plan = Plan(loads=[load_of(address, kind=kind, connections=3, requests=6, **security)], timeout=20)
        if kind in ("pull", "follow"):
            assert not run(Plan(loads=[load_of(address, requests=50, **security)])).ended
        found = run(plan, before_start=wait_until_silent_connections_are_closed)
    assert (found.ended, found.outcomes[0].failures) == ("", {})
    assert found.outcomes[0].messages >= 6


def test_concurrent_plans_have_separate_results(answering: Callable[..., Answering]) -> None:
    codes = [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
    found = run_together([Plan(loads=[load_of(answering(code).address, requests=1)]) for code in codes])
    assert [result.outcomes[0].messages for result in found] == [1, 0]


def test_produce_sends_exactly_what_it_counts(bench: Callable[..., Any], cli: Cli, cluster: Cluster) -> None:
    topic = f"counted-{secrets.token_hex(4)}"  # a second attempt finds the same broker
    found = bench("produce", "--topic", topic, "--count", "1000", "--connections", "3", "--queues", "2")
    (outcome,) = found["outcomes"]
    assert (outcome["messages"], outcome["requests"], outcome["failures"]) == (1000, 1000, {})
    assert outcome["bytes"] == 100_000
    assert set(outcome["latencies"]) == {"p50", "p90", "p99", "p99.9", "max"}
    assert found["ended_early"] is None
    described = json.loads(cli("topic", "describe", topic, "--json", "--nameserver", cluster.nameserver).out)
    assert len(described) == 2
    assert sum(row["messages"] for row in described) == 1000


def test_a_measurement_goes_on_until_the_first_response(answering: Callable[..., Answering]) -> None:
    load = load_of(answering(ResponseCode.SUCCESS, None, stall=0.3).address)
    found = run(Plan(loads=[load], seconds=0.05)).outcomes[0]
    assert found.messages
    assert 0.1 < found.latencies["max"] / 1e6 <= found.seconds < 5  # twice what was planned, at least


def test_a_stall_counts_for_each_message_that_was_due(answering: Callable[..., Answering]) -> None:
    load = load_of(answering(*[ResponseCode.SUCCESS] * 100, stall=0.3).address, requests=100, rate=400)
    (outcome,) = run(Plan(loads=[load])).outcomes
    assert outcome.messages == 100
    assert outcome.latencies["p50"] > 100_000  # all are due within 0.25 s; a closed loop has one slow request
    assert outcome.latencies["max"] > 250_000


def test_a_pause_between_requests_is_no_missing_response(answering: Callable[..., Answering]) -> None:
    broker = answering(*[ResponseCode.SUCCESS] * 100)
    found = run(Plan(loads=[load_of(broker.address, rate=1.0)], seconds=1.5, timeout=0.7))
    assert found.ended == ""
    assert found.outcomes[0].messages >= 2


def test_produce_keeps_to_its_rate(bench: Callable[..., Any]) -> None:
    found = bench("produce", "--topic", "paced", "--rate", "400", "--count", "200", "--batch", "2", "--processes", "2")
    (outcome,) = found["outcomes"]
    assert (outcome["messages"], outcome["failures"]) == (200, {})
    assert outcome["seconds"] >= 0.48  # the last request is due after 49 intervals of 10 ms in each process


def test_batches_are_counted_by_their_messages_and_rounded_up(bench: Callable[..., Any]) -> None:
    (outcome,) = bench("produce", "--topic", "batches", "--count", "100", "--batch", "32", "--size", "10")["outcomes"]
    assert (outcome["messages"], outcome["requests"]) == (128, 4)


def test_several_processes_share_the_work(bench: Callable[..., Any]) -> None:
    found = bench("produce", "--topic", "shared", "--count", "101", "--connections", "5", "--processes", "2")
    (outcome,) = found["outcomes"]
    assert (outcome["messages"], outcome["processes"]) == (101, 2)


def test_a_time_is_measured_after_a_warm_up(bench: Callable[..., Any]) -> None:
    (outcome,) = bench("latency", "--topic", "timed", "--seconds", "0.3", "--warm-up", "0.1")["outcomes"]
    assert 0.3 <= outcome["seconds"] < 5
    assert outcome["messages"] > 0
    assert outcome["cpu"] > 0


def test_consume_rereads_the_topic(bench: Callable[..., Any]) -> None:
    bench("produce", "--topic", "read", "--count", "100", "--queues", "4", "--size", "3")
    (outcome,) = bench("consume", "--topic", "read", "--count", "1000")["outcomes"]
    assert outcome["messages"] >= 1000
    assert outcome["failures"] == {}


def test_consume_gets_as_many_messages_with_a_pull_as_it_asks_for(bench: Callable[..., Any]) -> None:
    bench("produce", "--topic", "many", "--count", "200", "--batch", "50", "--queues", "1", "--size", "3")
    (outcome,) = bench("consume", "--topic", "many", "--count", "1000", "--batch", "100")["outcomes"]
    assert outcome["messages"] >= 90 * outcome["requests"]


def test_e2e_receives_every_message_that_was_acknowledged(bench: Callable[..., Any]) -> None:
    found = bench("e2e", "--topic", "through", "--count", "300", "--in-flight", "4", "--connections", "2")
    sent, received = found["outcomes"]
    assert (sent["kind"], sent["messages"]) == ("send", 300)
    assert (received["kind"], received["messages"]) == ("follow", 300)


def test_text_output_outside_a_terminal_has_no_progress_bar(cli: Cli, cluster: Cluster) -> None:
    outcome = cli("bench", "produce", "--topic", "lines", "--count", "10", "--nameserver", cluster.nameserver)
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[0] == "produce lines: 8 connections x 16 in flight, 1 a request, bodies of 100 bytes"
    assert [line.split()[0] for line in lines[1:]] == ["sent", "time", "generator"]
    assert "10 messages in" in lines[1]


def _read_all(terminal: int) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        while os.read(terminal, 4096):
            pass


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar_and_ctrl_c_prints_partial_results(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    arguments = ["bench", "produce", "--topic", "stopped", "--seconds", "50", "--nameserver", cluster.nameserver]
    with subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        assert select.select([ours], [], [], 30)[0]  # the bar comes after a second
        reader = threading.Thread(target=_read_all, args=(ours,))  # who draws on a terminal waits for who looks at it
        reader.start()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    reader.join()
    os.close(ours)
    assert process.returncode == 130
    assert b"messages/s" in out


def test_failures_are_reported_by_code_and_not_counted(answering: Callable[..., Answering]) -> None:
    broker = answering(0, ResponseCode.SYSTEM_BUSY, 0, 4711)
    result = run(Plan(loads=[load_of(broker.address, requests=4)]))
    (outcome,) = result.outcomes
    assert (outcome.messages, outcome.requests) == (2, 4)
    assert {what: failure.count for what, failure in outcome.failures.items()} == {"2 SYSTEM_BUSY": 1, "4711": 1}
    assert outcome.failures["4711"].remark == "no"
    assert not result.ended


def test_one_request_at_a_time_counts_failures_among_successes(answering: Callable[..., Answering]) -> None:
    broker = answering(0, 0, ResponseCode.SYSTEM_BUSY, 0, None)
    (outcome,) = run(Plan(loads=[load_of(broker.address)], seconds=30)).outcomes
    assert (outcome.messages, outcome.requests) == (3, 4)
    assert {what: failure.count for what, failure in outcome.failures.items()} == {"2 SYSTEM_BUSY": 1, "lost": 1}


def test_transactions_count_when_their_commits_are_acknowledged(cluster: Cluster) -> None:
    with gantrymq.sync.connect(cluster.nameserver) as client:
        client.admin.create_topic("transacted", queues=2)
        before = sum(client.admin.max_offset(queue) for queue in client.admin.queues("transacted"))
        host, _, port = cluster.address.rpartition(":")
        load = load_of((host, int(port)), kind="transact", topic="transacted", requests=300, connections=2, in_flight=4)
        found = run(Plan(loads=[load]))
        (outcome,) = found.outcomes
        assert (outcome.messages, outcome.requests, outcome.bytes, outcome.failures) == (300, 300, 30_000, {})
        assert sum(client.admin.max_offset(queue) for queue in client.admin.queues("transacted")) - before == 300
        (half,) = client.admin.queues("RMQ_SYS_TRANS_HALF_TOPIC")
        assert client.admin.max_offset(half) >= 300


def test_a_refused_half_message_is_a_failure(answering: Callable[..., Answering]) -> None:
    refusing = answering(2, 16, None)
    found = run(Plan(loads=[load_of(refusing.address, kind="transact")], timeout=5))
    assert {what: failure.count for what, failure in found.outcomes[0].failures.items()} == {
        "2 SYSTEM_BUSY": 1, "16 NO_PERMISSION": 1, "lost": 1,
    }  # fmt: skip
    assert found.outcomes[0].messages == 0
    nowhere = run(Plan(loads=[load_of(answering(0).address, kind="transact")], timeout=5))
    assert "does not say where it lies" in nowhere.ended


def test_a_benchmark_whose_broker_dies_reports_partial_results(answering: Callable[..., Answering]) -> None:
    broker = answering(0, 0, None)
    result = run(Plan(loads=[load_of(broker.address)], seconds=30))
    assert result.outcomes[0].messages == 2
    assert result.outcomes[0].failures["lost"].count == 1
    assert "all connections were lost" in result.ended


def test_a_broker_that_closes_plain_connections_is_reported_with_what_to_do(
    answering: Callable[..., Answering],
) -> None:
    result = run(Plan(loads=[load_of(answering(None).address)], warm_up=0.0))
    assert "if it speaks TLS only, set GANTRYMQ_TLS_CA" in result.ended


def test_a_broker_without_tls_is_reported(cluster: Cluster) -> None:
    host, port = parse_address(cluster.address)
    with pytest.raises(BenchFailed, match="does this port speak TLS"):
        run(Plan(loads=[load_of((host, port), tls="unverified")]))


@pytest.mark.parametrize("frame", ["pull", "commit", "stamped"])
def test_frames_that_are_completed_when_they_are_sent_have_valid_signatures(frame: str) -> None:
    keys = {"access_key": "key", "secret_key": "secret", "security_token": "%token"}
    load, body = load_of(("127.0.0.1", 1), topic="50%/<topic>", **keys), b""
    if frame == "pull":
        data = pulls(load)(3, 7, 12345)
    elif frame == "commit":
        data = commits(load)(111, 222, 7)
    else:
        data = stamped_sends(load)("50%/<topic>", 3, 7)(body := b"stamp%d")
    (found,), _ = cut_frames(data, len(data) + 1)
    command = decode(found)
    assert command.ext is not None
    assert command.ext[SIGNATURE] == make_signature(command.ext, body, "secret")
    assert (command.ext[ACCESS_KEY], command.opaque, command.body) == ("key", 7, body)
    expected = {"pull": ("queueOffset", "12345"), "commit": ("tranStateTableOffset", "222"), "stamped": ("e", "3")}
    assert command.ext[expected[frame][0]] == expected[frame][1]


def test_the_first_frame_of_a_connection_is_signed_and_asks_for_a_queue_of_the_load() -> None:
    keys = {"access_key": "key", "secret_key": "secret"}
    for load, topic in (
        (load_of(("127.0.0.1", 1), **keys), "load"),
        (load_of(("h", 1), topics=["t", "u"], **keys), "t"),
    ):
        (frame,), _ = cut_frames(first_frame(load, Target("h", 1, [3, 4])))
        command = decode(frame)
        assert command.is_oneway
        assert command.ext is not None
        assert command.ext[SIGNATURE] == make_signature(command.ext, b"", "secret")
        assert (command.ext["topic"], command.ext["queueId"]) == (topic, "3")


def test_an_unresponsive_broker_ends_the_run(answering: Callable[..., Answering]) -> None:
    broker = answering(0, -1)
    result = run(Plan(loads=[load_of(broker.address)], seconds=30, timeout=1.0))
    assert result.outcomes[0].messages == 1
    assert result.ended == "no answer for 1 s"


@pytest.mark.parametrize("requests", [0, 5])
@pytest.mark.parametrize("kind", ["pull", "follow"])
def test_answered_pulls_do_not_hide_that_sends_are_not_answered(kind: str, requests: int) -> None:
    with contextlib.closing(PullsOnly(100, empty=kind == "follow")) as broker:
        loads = [load_of(broker.address, requests=requests), load_of(broker.address, kind=kind)]
        result = run(Plan(loads=loads, seconds=30, timeout=0.5))
    assert result.ended == "no answer for 0.5 s"
    assert result.outcomes[0].messages == 0


@pytest.mark.parametrize("requests", [0, 5])
@pytest.mark.parametrize("kind", ["pull", "follow"])
def test_pulls_end_if_the_queues_become_empty(kind: str, requests: int) -> None:
    with contextlib.closing(PullsOnly(200, empty=True)) as broker:
        result = run(Plan(loads=[load_of(broker.address, kind=kind, requests=requests)], seconds=0.2, timeout=1.5))
    assert result.ended == "no message for 1.5 s: the queues are empty"
    assert result.outcomes[0].messages == 0


@pytest.mark.parametrize("kind", ["pull", "follow"])
def test_failed_pulls_are_reported(answering: Callable[..., Answering], kind: str) -> None:
    def load(broker: Answering) -> Load:
        return load_of(broker.address, kind=kind)

    refused = run(Plan(loads=[load(answering(ResponseCode.NO_PERMISSION, None))], seconds=30))
    assert refused.outcomes[0].failures["16 NO_PERMISSION"].count == 1
    assert "all connections were lost" in refused.ended
    assert refused.outcomes[0].failures["lost"].count == 1
    silent = run(Plan(loads=[load(answering(-1))], seconds=30, timeout=0.3))
    assert (silent.outcomes[0].messages, silent.ended) == (0, "no answer for 0.3 s")


def test_refused_pulls_use_up_the_count(cli: Cli, tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path, settings={"plugin.topics.auto_create_groups": "false"}) as cluster:
        at = ("--topic", "refused", "--nameserver", cluster.nameserver)
        assert cli("bench", "produce", "--count", "10", *at).code == 0
        outcome = cli("bench", "consume", "--count", "100", *at)
    assert outcome.code == 1
    assert re.search(r"\b1\d\d x 26 SUBSCRIPTION_GROUP_NOT_EXIST", outcome.out)


def test_a_reader_continues_at_the_new_beginning_of_a_queue() -> None:
    """The messages at its beginning were deleted while it read."""

    class Shortened(PullsOnly):
        def _answer(self, request: Command) -> bytes:
            assert request.ext is not None
            if int(request.ext["queueOffset"]) < 5:
                return encode(request.answer(ResponseCode.PULL_OFFSET_MOVED, ext={"nextBeginOffset": "5"}))
            ext = {"nextBeginOffset": "6", "maxOffset": "6"}
            return encode(request.answer(ResponseCode.SUCCESS, ext=ext, body=(100).to_bytes(4, "big") + bytes(96)))

    with contextlib.closing(Shortened(4, empty=False)) as broker:
        load = load_of(broker.address, kind="pull", requests=3, targets=[Target(*broker.address, [0], [3])])
        result = run(Plan(loads=[load], timeout=20))
    assert (result.ended, result.outcomes[0].messages, result.outcomes[0].failures) == ("", 3, {})


@pytest.mark.parametrize("kind", ["produce", "latency", "consume", "e2e"])
def test_an_unreachable_nameserver_is_one_line_in_each_mode(cli: Cli, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    outcome = cli("bench", kind, "--nameserver", f"{host}:{port}")
    assert outcome.code == 1
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1
    assert f"{host}:{port}" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["produce", "latency", "consume", "e2e"])
def test_a_killed_broker_leaves_partial_results_in_each_mode(kind: str, tmp_path: Path) -> None:
    serve = [
        "serve",
        "--data",
        str(tmp_path / "store"),
        "--listen",
        "127.0.0.1:0",
        "--nameserver-listen",
        "127.0.0.1:0",
    ]
    with gantrymq_child([*serve, "--set", "plugin.flush.mode=async"], tmp_path / "log") as broker:
        line = broker.wait_line(lambda text: text.startswith("ready"))
        nameserver = dict(word.partition("=")[::2] for word in line.split()[1:])["nameserver"]
        command = [sys.executable, "-m", "gantrymq.cli", "bench", kind, "--nameserver", nameserver]
        filling = [*command[:4], "produce", "--count", "100", "--nameserver", nameserver]
        subprocess.run(filling, check=True, capture_output=True, timeout=30)
        before = cpu_seconds(broker.pid)
        with subprocess.Popen(
            [*command, "--seconds", "50", "--warm-up", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_for(lambda: cpu_seconds(broker.pid) > before + 0.3)
            broker.kill()
            out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "ended early, this is what was measured so far: all connections were lost" in err
    assert "Traceback" not in err
    assert re.search(r"(sent|pulled|received) +[1-9][\d,]* messages in", out)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_unreachable_broker_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(BenchFailed, match=r"cannot connect to the broker at 127.0.0.1:\d+: Connection refused"):
        run(Plan(loads=[load_of(address)]))


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["produce", "--topic", "no such"], 1, "characters other than"),
        (["consume", "--topic", "missing"], 1, "no route to topic missing"),
        (["e2e", "--size", "10"], 2, "16 bytes"),
        (["e2e", "--batch", "2"], 2, "one message a request"),
        (["produce", "--connections", "0"], 2, "--connections"),
        (["produce", "--nameserver", "nonsense"], 2, "host:port"),
    ],
)
def test_impossible_plans_are_rejected(
    cli: Cli, cluster: Cluster, arguments: list[str], code: int, reported: str
) -> None:
    given = arguments if "--nameserver" in arguments else [*arguments, "--nameserver", cluster.nameserver]
    outcome = cli("bench", *given)
    assert outcome.code == code
    assert reported in outcome.err
    assert "Traceback" not in outcome.err


def test_an_empty_topic_is_reported_with_the_command_that_fills_it(cli: Cli, cluster: Cluster) -> None:
    cli("topic", "create", "empty", "--nameserver", cluster.nameserver)
    outcome = cli("bench", "consume", "--topic", "empty", "--nameserver", cluster.nameserver)
    assert outcome.code == 1
    assert "gantrymq bench produce --topic empty makes some" in outcome.err


def test_a_refused_message_is_a_failure(cli: Cli, cluster: Cluster) -> None:
    arguments = ["--size", "300000", "--batch", "32", "--count", "1", "--nameserver", cluster.nameserver]
    outcome = cli("bench", "produce", "--topic", "refused", *arguments)
    assert outcome.code == 1
    assert "1 x 13 MESSAGE_ILLEGAL" in outcome.out


def test_work_is_distributed_without_remainder() -> None:
    plans = share(Plan(loads=[load_of(("h", 1), connections=5, requests=11)]), 3)
    assert [(plan.loads[0].first, plan.loads[0].connections) for plan in plans] == [(0, 2), (2, 2), (4, 1)]
    assert sum(plan.loads[0].requests for plan in plans) == 11


def test_percentiles_are_the_times_that_a_share_did_not_exceed() -> None:
    counts = dict.fromkeys(range(1, 1001), 1)
    assert percentiles(counts) == {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "max": 1000}
    assert percentiles({7: 1}) == {"p50": 7, "p90": 7, "p99": 7, "p99.9": 7, "max": 7}
    assert percentiles({}) == {}
    assert microseconds_text({"p50": 999, "p99": 1500, "max": 2_500_000}.items()) == "p50 999 us  p99 1.5 ms  max 2.5 s"


def test_latency_buckets_keep_three_digits_and_round_up() -> None:
    assert rounded({999: 2, 12_345: 1, 12_301: 1}) == {999: 2, 12_400: 2}
    latencies = Latencies()
    latencies.add(list(range(1_000_000, 1_060_000)))
    assert len(latencies.counts) < 100
    assert sum(latencies.counts.values()) == 60_000
