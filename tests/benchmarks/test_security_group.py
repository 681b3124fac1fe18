"""The group ``security`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.bench.plan import Load, Plan
from gantrymq.bench.running import Outcome, Result


@pytest.mark.slow
def test_the_group_measures_signatures_tls_and_handshakes(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography", reason="it makes certificates: pip install cryptography")
    groups, measuring, security = load("special_groups"), load("measuring"), load("security")
    monkeypatch.setattr(security, "BODIES", (100,))
    monkeypatch.setattr(security, "ROUNDS", 1)
    figures, printed = load("figures").Figures(), []
    security.secure("gantrymq", measuring.Timing(0.2, 0.1, 0.1), groups.Sizes(), figures, printed.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("security")}
    assert len(found) == 4 * 2 + 2 + 3 + 3
    assert all(value is not None and value > 0 for value in found.values())
    goals = [each.what for each in figures.of("security") if "goal" in each.verdict]
    assert [what.split(", ")[1].partition(":")[0] for what in goals] == ["signed", "TLS"]


def test_handshakes_beside_sends_are_counted_while_it_sends(
    load: Any, monkeypatch: pytest.MonkeyPatch, outcome: Callable[..., Outcome]
) -> None:
    """A generator that takes seconds to start and to end does not raise their rate."""
    security = load("security")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Counts:
        """100 handshakes a second."""

        def __iter__(self) -> Iterator[int]:
            yield round(100 * now)

    @contextmanager
    def shaking_hands(running: object) -> Iterator[Counts]:
        yield Counts()

    async def make_load(*_: object) -> Load:
        return Load(kind="send", topic="T", targets=[])

    def run(plan: Plan, before_start: Callable[[], None] = lambda: None) -> Result:
        sleep(3)
        before_start()
        sleep(1)
        return Result([outcome(1.0)])

    for name, fake in (("_shaking_hands", shaking_hands), ("_load", make_load), ("run", run)):
        monkeypatch.setattr(security, name, fake)
    monkeypatch.setattr(security, "time", SimpleNamespace(sleep=sleep, perf_counter=lambda: now))
    monkeypatch.setattr(security, "processor_seconds", lambda pid: 0.0)
    figures = load("figures").Figures()
    security._measure_handshakes("gantrymq", SimpleNamespace(pid=1), 1.0, figures, print)
    found = {each.what: each.median("gantrymq") for each in figures.of("security")}
    assert found["TLS handshakes"] == found["TLS handshakes beside send 8x1 over TLS"] == 100


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "security" not in read([]).groups
    assert "security" in read(["--groups", "all"]).groups
