"""Tasks avoid the delays and the work that Spark causes in its Python workers."""

from __future__ import annotations

import pickle
import socket
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("pyspark")

from gantrymq.spark import workers
from gantrymq.spark.source import GantryReader, GantryStreamReader, GantryStreamWriter, GantryWriter


@pytest.mark.skipif(sys.platform != "linux", reason="Linux delays acknowledgments by 40 ms")
def test_acknowledging_at_once_lets_the_second_small_packet_come() -> None:
    if _measure_second_packet(lambda: None) < 0.03:
        pytest.skip("this system does not delay acknowledgments")
    assert _measure_second_packet(workers.acknowledge_at_once) < 0.02


def _measure_second_packet(between: Callable[[], None]) -> float:
    """The least seconds in ten rounds that a receiver waits for a second packet, as Spark's JVM sends it."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sender = stack.enter_context(socket.create_connection(listener.getsockname()))
        receiver = stack.enter_context(listener.accept()[0])
        waits: list[float] = []
        for _ in range(25):  # a new connection acknowledges its first packets at once
            sender.sendall(b"function")
            sender.sendall(b"data")
            receiver.recv(8)
            between()
            began = time.perf_counter()
            receiver.recv(4)
            waits.append(time.perf_counter() - began)
            receiver.sendall(b"rows")
            sender.recv(4)
        return min(waits[-10:])


@pytest.mark.parametrize("kind", [GantryReader, GantryStreamReader, GantryWriter, GantryStreamWriter])
def test_objects_of_a_task_acknowledge_when_they_arrive_in_it_and_not_on_the_driver(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(workers, "acknowledge_at_once", lambda: calls.append(None))
    sent = kind.__new__(kind)
    sent._options = "the options"
    raw = pickle.dumps(sent)
    assert pickle.loads(raw)._options == "the options"
    assert not calls
    monkeypatch.setattr(workers.TaskContext, "get", classmethod(lambda kind: object()))
    assert pickle.loads(raw)._options == "the options"
    assert len(calls) == 1
