"""Repeated failures log the first one, one each half minute with a count, and the end."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.remoting import outages
from gantrymq.remoting.outages import Outages


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))


def test_an_outage_has_a_first_line_one_each_half_minute_and_a_last_one() -> None:
    log, now = Log(), [100.0]
    made = Outages(log, lambda: now[0])
    for _ in range(520):  # 65 s, eight failures a second
        made.warning("send_failed", "a", broker="a", reason="refused")
        now[0] += 0.125
    made.warning("send_failed", "b", broker="b", reason="refused")
    made.over("send_failed", "a")
    made.over("send_failed", "a")
    made.over("send_failed", "c")
    assert [(event, fields["broker"], fields.get("repeated")) for event, fields in log.lines] == [
        ("send_failed", "a", 0), ("send_failed", "a", 239), ("send_failed", "a", 239), ("send_failed", "b", 0),
        ("outage_ended", "a", None),
    ]  # fmt: skip
    assert log.lines[-1][1] == {"of": "send_failed", "broker": "a", "failures": 520, "seconds": 65.0}
    now[0] += outages.REPEAT_SECONDS
    made.warning("send_failed", "a", broker="a", reason="refused")
    assert log.lines[-1] == ("send_failed", {"broker": "a", "reason": "refused", "repeated": 0})


def test_the_number_of_subjects_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "SUBJECTS", 2)
    log = Log()
    made = Outages(log, lambda: 0.0)
    for name in "abcab":
        made.warning("send_failed", name, broker=name)
    assert [fields["broker"] for _, fields in log.lines] == list("abcab")
    assert len(made._known) <= 2


def test_outages_that_are_over_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "SUBJECTS", 2)
    log = Log()
    made = Outages(log, lambda: 0.0)
    made.warning("send_failed", "open")
    for name in "abc":
        made.warning("send_failed", name)
        made.over("send_failed", name)
    assert made.is_open("send_failed", "open")


def test_failures_among_successes_have_one_line_and_one_end_each_half_minute() -> None:
    log, now = Log(), [100.0]
    made = Outages(log, lambda: now[0])
    for _ in range(520):  # 65 s, eight failures a second
        made.warning("send_failed", "a", broker="a")
        assert made.is_open("send_failed", "a")
        made.over("send_failed", "a")
        assert not made.is_open("send_failed", "a")
        now[0] += 0.125
    assert [(event, fields.get("repeated"), fields.get("failures")) for event, fields in log.lines] == [
        ("send_failed", 0, None), ("outage_ended", None, 1), ("send_failed", 239, None), ("outage_ended", None, 1),
        ("send_failed", 239, None), ("outage_ended", None, 1),
    ]  # fmt: skip


def test_an_outage_soon_after_another_one_is_logged_when_it_lasts() -> None:
    log, now = Log(), [100.0]
    made = Outages(log, lambda: now[0])
    made.warning("send_failed", "a")
    made.over("send_failed", "a")
    for second in range(10, 41):
        now[0] = 100.0 + second
        made.warning("send_failed", "a")
    made.over("send_failed", "a")
    assert log.lines[2:] == [
        ("send_failed", {"repeated": 20}), ("outage_ended", {"of": "send_failed", "failures": 31, "seconds": 30.0}),
    ]  # fmt: skip
