"""The report of a long run of the broker, and a short run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gantrymq.bench.running import Outcome


def outcome() -> Outcome:
    return Outcome(
        kind="send", messages=1000, requests=1000, bytes=100_000, seconds=10.0,
        latencies={"p50": 500, "max": 70_000}, failures={}, cpu=0.5, cpu_most=0.5, processes=1,
    )  # fmt: skip


def made(soak: Any, pauses: list[Any], disk: list[Any], machine: list[Any]) -> Any:
    samples = [soak.Sample(float(second), (100 + second) * 2**20, second / 100, 2**30) for second in range(100)]
    return soak.Soak(1.0, "sync", 100.0, 70.0, outcome(), outcome(), samples, pauses, disk, machine, {"client": 0.07})


def test_a_pause_is_explained_by_what_waited_at_the_same_time_for_half_as_long(load: Any) -> None:
    soak = load("soak")
    pause = soak.Wait(10.0, 0.1)
    for other, explains in (
        (soak.Wait(10.04, 0.05), True),
        (soak.Wait(9.0, 1.05), True),
        (soak.Wait(10.04, 0.04), False),  # too short
        (soak.Wait(10.11, 1.0), False),  # too late
        (soak.Wait(9.0, 0.9), False),  # over before
    ):
        assert pause.meets(other) is explains
        found = made(soak, [pause], [other], [])
        assert found.unexplained == ([] if explains else [pause])
        assert f"pauses of more than 50 ms: 1, {int(explains)} while the disk waited" in found.lines()[-2]
    assert (
        "1, 0 while the disk waited, 1 while the machine did, 0 unexplained"
        in made(soak, [pause], [], [soak.Wait(10.0, 0.1)]).lines()[-2]
    )


def test_the_report_has_memory_deletions_and_times(load: Any) -> None:
    soak = load("soak")
    text = "\n".join(made(soak, [], [], []).lines())
    assert "after 10, 25, 50, 75 and 97 % of the time: 110, 124, 150, 174, 196 MiB" in text
    assert "deleted 1.0 GiB of the log" in text
    assert "were due" not in text
    late = made(soak, [], [], [])
    late.rate = 102.0
    assert "us; 102/s were due, so the times grow" in "\n".join(late.lines())
    assert "p50 500 us, max 70,000 us" in text
    assert "processor time of the broker for a message: 990.00 us" in text


def test_an_observer_keeps_long_durations(load: Any) -> None:
    soak = load("soak")
    waits, three = iter([0.001, 0.02]), threading.Event()

    def act() -> float:
        waited = next(waits, 0.0)
        if not waited:
            three.set()
        return waited

    observer = soak.Observer(act)
    with observer.watching():
        assert three.wait(10)
    assert [wait.seconds for wait in observer.waits] == [0.02]  # what it waited, not how long it took
    assert observer.longest == 0.02


def test_an_observer_that_fails_ends_the_run(load: Any) -> None:
    def act() -> float:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"), load("soak").Observer(act).watching():
        pass


def test_a_run_that_ends_early_prints_the_notes_of_its_error(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    soak = load("soak")

    def fail(*_: object) -> None:
        error = ConnectionResetError("the broker closed the connection")
        error.add_note("the end of its log")
        raise error

    monkeypatch.setattr(soak, "soak", fail)
    monkeypatch.setattr(sys, "argv", ["soak.py"])
    assert soak.main() == 1
    assert capsys.readouterr().err == ("the run ended early: the broker closed the connection\nthe end of its log\n")


@pytest.mark.slow
def test_a_short_run_sends_receives_and_samples_and_logs_why_connections_were_closed(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    soak, logs = load("soak"), list[str]()

    @contextmanager
    def start(*arguments: Any) -> Iterator[Any]:
        with load("systems").start(*arguments) as running:
            yield running
            running.stop()
            logs.extend(running.log.read_text().splitlines())

    monkeypatch.setattr(soak, "start", start)
    monkeypatch.setattr(soak, "LIMIT_SECONDS", 0.5)
    found = soak.soak(2.5 / 60, 0.2, "async")
    closed = [line for line in logs if '"connection_closed"' in line]
    assert closed
    assert all('"reason": "' in line for line in closed)
    assert any('"stop_requested"' in line for line in logs)
    assert len(logs) < 100 < found.sent.messages
    assert found.sent.messages
    assert found.received.messages
    assert found.rate == pytest.approx(found.limit * 0.2)
    assert len(found.samples) >= 2
    assert all(sample.memory > 2**20 for sample in found.samples)
    assert found.lines()
