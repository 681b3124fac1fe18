"""A real broker process without disk space or descriptors, paused by a signal, or stopped under load."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.requests import pull, send
from support.processes import ChildFailed, wait_for
from support.rawpeer import RawPeer
from support.served import FILE_BYTES, Served

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a broker on a store of this test; ``shell`` runs before it in the same process."""
    with ExitStack() as stack:
        yield lambda shell="": stack.enter_context(Served(tmp_path / "data", tmp_path / "err", shell))


def test_a_full_disk_refuses_sends_and_serves_reads_until_space_is_free(serve: Callable[..., Served]) -> None:
    """The room ends by a limit on the size of files, which is raised and lowered from outside."""
    broker = serve()
    pid = broker.child.pid
    with RawPeer(broker.address) as peer:
        assert broker.send(peer).code == 0
        for _ in range(3):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES // 2, resource.RLIM_INFINITY))
            answer = broker.send(peer)
            while answer.code == 0:
                answer = broker.send(peer)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "no room" in (answer.remark or "")
            broker.check_all(peer)
            assert broker.send(peer).code == ResponseCode.SERVICE_NOT_AVAILABLE
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert broker.send(peer).code == 0, "it goes on by itself"
            broker.check_all(peer)
    assert broker.child.terminate() == 0
    assert broker.printed() == []
    assert not [line for line in broker.log() if "exception" in line]
    again = serve()
    again.sent = broker.sent
    with RawPeer(again.address) as peer:
        again.check_all(peer)


@pytest.mark.once
def test_a_broker_on_a_full_disk_stops_cleanly_and_keeps_acknowledged_messages(serve: Callable[..., Served]) -> None:
    broker = serve()
    with RawPeer(broker.address) as peer:
        resource.prlimit(broker.child.pid, resource.RLIMIT_FSIZE, (FILE_BYTES // 2, resource.RLIM_INFINITY))
        while broker.send(peer).code == 0:
            pass
    assert broker.child.terminate() == 0
    assert broker.printed() == []
    again = serve()
    again.sent = broker.sent
    with RawPeer(again.address) as peer:
        again.check_all(peer)
        assert again.send(peer).code == 0


def address_space(pid: int) -> int:
    """How many bytes the process has mapped."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("room", [1, 24], ids=lambda mebibytes: f"{mebibytes} MiB left")
def test_row_6_a_broker_without_memory_refuses_or_ends_and_keeps_acknowledged_messages(
    serve: Callable[..., Served], room: int
) -> None:
    """Large frames that never end take the memory while another peer sends.

    Broken on purpose: with no watermark kept and the replay left out, what had been answered was missing.
    """
    broker = serve()
    with RawPeer(broker.address) as peer, ExitStack() as stack:
        for _ in range(50):
            assert broker.send(peer).code == 0
        limit = address_space(broker.child.pid) + room * 1024 * 1024
        resource.prlimit(broker.child.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        greedy = b"\0\x3f\0\0" + bytes(3 * 1024 * 1024)
        try:
            for _ in range(40):
                stack.enter_context(RawPeer(broker.address)).send_bytes(greedy)
                broker.send(peer)
        except (OSError, ChildFailed):
            wait_for(lambda: broker.child.process.poll() is not None, timeout=20)
    if broker.child.process.poll() is None:
        resource.prlimit(broker.child.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with RawPeer(broker.address) as peer:
            broker.check_all(peer)
            assert broker.send(peer).code == 0
        assert broker.child.terminate() == 0
    else:
        assert broker.child.process.returncode == 1
        assert [line[:28] for line in broker.printed()] == ["gantrymq: no memory is left,"]
    again = serve()
    with RawPeer(again.address) as peer:
        answer = peer.ask(Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"}))
        assert answer is not None
        again.sent = int((answer.ext or {})["offset"])
        assert broker.sent <= again.sent <= broker.sent + 1, "one may not have been answered"
        again.check_all(peer)


@pytest.mark.once
def test_scarce_file_descriptors_limit_connections_and_not_the_store(serve: Callable[..., Served]) -> None:
    broker = serve(shell="ulimit -n 64")
    with RawPeer(broker.address) as peer, ExitStack() as stack:
        assert broker.send(peer).code == 0
        for address in (broker.address, broker.nameserver) * 40:
            stack.enter_context(RawPeer(address))
        for _ in range(100):
            assert broker.send(peer).code == 0, "files of the log are still made"
        broker.check_all(peer)
        stack.close()

        def is_open_again() -> bool:
            with RawPeer(broker.address) as late, RawPeer(broker.nameserver) as asking:
                return late.is_served() and asking.is_served()

        wait_for(is_open_again)
        assert broker.send(peer).code == 0
    assert broker.child.terminate() == 0
    assert broker.printed() == []
    assert not [line for line in broker.log() if "exception" in line]


@pytest.mark.once
def test_existing_connections_are_served_when_no_file_descriptor_is_left(serve: Callable[..., Served]) -> None:
    broker = serve()
    pid = broker.child.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with RawPeer(broker.address) as peer, RawPeer(broker.nameserver) as asking, ExitStack() as stack:
        assert broker.send(peer).code == 0
        broker.check_all(peer)
        assert asking.is_served(), "else it may be one of the late ones"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, usual[1]))
        late = [stack.enter_context(RawPeer(address)) for address in (broker.address, broker.nameserver) * 3]
        for waiting in late:
            waiting.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                waiting.is_served()
            waiting.sock.settimeout(10)
        assert asking.is_served()
        answer = broker.send(peer)
        while answer.code == 0:
            answer = broker.send(peer)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "the next file of the log cannot be made"
        broker.check_all(peer)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        for waiting in late:
            assert waiting.is_served()
        wait_for(lambda: broker.send(peer).code == 0)  # the file is asked for once a second
        broker.check_all(peer)
    assert broker.child.terminate() == 0
    assert broker.printed() == []
    assert not [line for line in broker.log() if "exception" in line]
    shortages = [line for line in broker.log() if line["event"] == "accept_failed"]
    assert 1 <= len(shortages) <= 2, "logged once, not with each attempt"


def test_many_topics_stay_within_the_file_descriptor_limit(serve: Callable[..., Served], tmp_path: Path) -> None:
    broker = serve(shell="ulimit -n 128")
    with RawPeer(broker.address) as peer:
        for turn in range(2):
            for number in range(200):
                answer = peer.ask(send(f"Flood{number}", bytes(8000)))
                assert answer is not None
                assert (answer.code, answer.remark) == (0, None)
            wait_for(lambda: len(list((tmp_path / "data" / "consumequeue").iterdir())) == 200)
            for number in range(200):
                answer = peer.ask(pull(f"Flood{number}", 0, turn))
                assert answer is not None
                assert answer.code == ResponseCode.SUCCESS
    assert broker.child.terminate() == 0
    assert broker.printed() == []


@pytest.mark.once
def test_a_paused_and_resumed_broker_serves_its_connections(serve: Callable[..., Served]) -> None:
    broker = serve()
    with RawPeer(broker.address) as peer, RawPeer(broker.address) as holding:
        assert broker.send(peer).code == 0
        held = pull("T", 0, 1, suspend_ms=500)
        held.opaque = 77
        holding.send(held)
        assert holding.is_served()
        broker.child.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        threading.Timer(2.0, broker.child.process.send_signal, [signal.SIGCONT]).start()
        assert broker.send(peer).code == 0
        assert time.monotonic() - began > 1.5
        late = holding.answer_to(77)
        assert late is not None
        assert late.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)
        broker.check_all(peer)


def test_sigterm_under_load_drains_and_the_next_start_needs_no_recovery(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    broker = serve()
    stop = threading.Event()
    stored: list[int] = []

    def load(number: int) -> None:
        with RawPeer(broker.address) as peer:
            while not stop.is_set():
                answer = peer.ask(send("Load", b"x" * 1000, queue_id=number, queues=4))
                if answer is None or answer.code != 0:
                    return
                stored.append(number)

    threads = [threading.Thread(target=load, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(stored) > 200)
    assert broker.child.terminate() == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert not (tmp_path / "data" / "abort").exists()
    again = serve()
    (recovered,) = [line for line in again.log() if line["event"] == "store_recovered"][-1:]
    assert (recovered["clean"], recovered["scanned_bytes"]) == (True, 0)
    with RawPeer(again.address) as peer:
        for number in range(4):
            fields = {"topic": "Load", "queueId": str(number)}
            answer = peer.ask(Command(RequestCode.GET_MAX_OFFSET, fields))
            assert answer is not None
            assert int((answer.ext or {})["offset"]) >= stored.count(number)
