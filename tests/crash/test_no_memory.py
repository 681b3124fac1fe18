"""A broker process that runs out of memory or threads at chosen places ends soon, with the reason.

Otherwise the broker would wait for a lost thread for ever: trio cannot cancel a wait for a worker thread.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gantrymq.kernel import fast
from support.processes import wait_for
from support.rawpeer import RawPeer
from support.served import Served

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(120)]

GUARDED = not fast.end_where_memory_ends.__module__.endswith("plain_memory")
NO_MEMORY = "gantrymq: no memory is left,"
NO_THREAD = "gantrymq: no thread can be s"
OVERDUE = "gantrymq: a task did not end"

BEGIN = """
import resource, signal, sys, threading
import outcome
import trio._threads
from trio._core._entry_queue import EntryQueue
from gantrymq.cli import __main__, end_deadline, servers
servers.DRAIN_SECONDS = 0.5
end_deadline.END_SECONDS = 1.0
def begin(number, frame):
    sys.stderr.write("fault begins\\n")
    fault()
signal.signal(signal.SIGUSR2, begin)
"""
RUN = "__main__.main()"
LOST = """
def lose():
    usual = EntryQueue.run_sync_soon
    def run_sync_soon(self, function, *args, **more):
        if threading.current_thread() is not threading.main_thread():
            EntryQueue.run_sync_soon = usual
            raise MemoryError
        usual(self, function, *args, **more)
    EntryQueue.run_sync_soon = run_sync_soon
"""
NOT_STARTED = """
def refuse_threads():
    def start_thread_soon(*args):
        raise RuntimeError("can't start new thread")
    trio._threads.start_thread_soon = start_thread_soon
"""
RESULT_LOST = LOST + "fault = lose"
THREAD_DIES = """
def fault():
    def capture(function):
        raise MemoryError
    trio._core._thread_cache.outcome = type("outcome", (), {"capture": staticmethod(capture)})
"""
THREAD_DIES_AT_ITS_START = """
def fault():
    def set_ident(self):
        raise MemoryError
    threading.Thread._set_ident = set_ident
    trio._core._thread_cache.THREAD_CACHE._idle_workers = type("NoneIdle", (dict,), {"popitem": dict().popitem})()
"""
THREADS_END = NOT_STARTED + "fault = refuse_threads"
THREADS_END_AND_A_RESULT_IS_LOST = (
    LOST
    + NOT_STARTED
    + """
def fault():
    usual = EntryQueue.run_sync_soon
    lose()
    threading.Timer(1.0, refuse_threads).start()
"""
)
NOTHING_LEFT = """
hoard = []
def fault():
    resource.setrlimit(resource.RLIMIT_AS, (4096, resource.RLIM_INFINITY))
    size = 1 << 24
    while size > 16:
        try:
            hoard.append(bytes(size))
        except MemoryError:
            size //= 2
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a broker whose process runs this code first; the code's ``fault()`` is called at SIGUSR2."""
    with ExitStack() as stack:

        def start(code: str = "") -> Served:
            program = [sys.executable, "-c", BEGIN + code + "\n" + RUN] if code else None
            return stack.enter_context(Served(tmp_path / "data", tmp_path / "err", program=program))

        yield start


def begin_fault(broker: Served) -> None:
    """Send some messages, inject the fault, and wait a moment for its effect."""
    with RawPeer(broker.address) as peer:
        for _ in range(20):
            assert broker.send(peer).code == 0
    broker.child.process.send_signal(signal.SIGUSR2)
    wait_for(lambda: "fault begins" in broker.child.log.read_text())


def ended_with(broker: Served) -> list[str]:
    """How its process ended: the beginnings of its own lines on stderr. Its code must be 1."""
    wait_for(lambda: broker.child.process.poll() is not None, timeout=30)
    assert broker.child.process.returncode == 1
    return [line[:28] for line in broker.printed() if line.startswith("gantrymq")]


def check_kept(broker: Served, serve: Callable[..., Served]) -> None:
    """The next start has all that was acknowledged."""
    again = serve()
    again.sent = broker.sent
    with RawPeer(again.address) as peer:
        again.check_all(peer)
        assert again.send(peer).code == 0


def test_a_broker_that_waits_for_a_lost_result_stops_in_time_on_sigterm(serve: Callable[..., Served]) -> None:
    """Without a deadline it never ended, because the wait for a worker thread cannot be cancelled."""
    broker = serve(RESULT_LOST)
    begin_fault(broker)
    wait_for(lambda: "Exception while delivering" in broker.child.log.read_text())
    broker.child.process.terminate()
    assert ended_with(broker) == [OVERDUE]
    check_kept(broker, serve)


def test_a_broker_that_waits_for_a_lost_result_stops_in_time_on_a_failure(serve: Callable[..., Served]) -> None:
    broker = serve(THREADS_END_AND_A_RESULT_IS_LOST)
    begin_fault(broker)
    assert ended_with(broker) == [OVERDUE]
    check_kept(broker, serve)


@pytest.mark.parametrize(
    ("code", "said"),
    [(THREAD_DIES, NO_MEMORY), (THREAD_DIES_AT_ITS_START, NO_MEMORY), (THREADS_END, NO_THREAD)],
    ids=["dies", "dies at its start", "is not started"],
)
def test_a_broker_ends_at_once_when_a_worker_thread(serve: Callable[..., Served], code: str, said: str) -> None:
    broker = serve(code)
    begin_fault(broker)
    assert ended_with(broker) == [said]
    check_kept(broker, serve)


@pytest.mark.skipif(not GUARDED, reason="the plain twin raises MemoryError wherever it happens")
def test_row_6_a_broker_whose_memory_is_used_up_to_the_last_byte_ends_at_once(serve: Callable[..., Served]) -> None:
    broker = serve(NOTHING_LEFT)
    begin_fault(broker)
    assert ended_with(broker) == [NO_MEMORY]
    check_kept(broker, serve)


@pytest.mark.skipif(not GUARDED, reason="the plain twin raises MemoryError wherever it happens")
@pytest.mark.parametrize("where", ["here()", "__import__('threading').Thread(target=here).start()"])
@pytest.mark.parametrize("small", ["object()", "bytes(700)", "[None] * 4000", "deep(10**6)"])
def test_a_process_ends_where_it_gets_no_memory_for_a_small_object(small: str, where: str) -> None:
    """Large allocations are refused; a failed small object or function frame ends the process."""
    code = f"""
import resource, sys
from gantrymq.kernel import fast
fast.end_where_memory_ends(b"the last words\\n")
sys.setrecursionlimit(10**7)
def deep(left):
    return 0 if not left else 1 + deep(left - 1)
def here():
    hoard, at, large, size = [None] * 100_000, 0, 0, 1 << 24
    resource.setrlimit(resource.RLIMIT_AS, (4096, resource.RLIM_INFINITY))
    while size > 64 * 1024:
        try:
            hoard[at] = bytes(size)
            at += 1
        except MemoryError:
            large += 1
            size //= 2
    print(large, flush=True)
    for at in range(at, 100_000):
        hoard[at] = {small}
{where}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "the last words\n")
    assert int(done.stdout) >= 8
