"""A flood leaves a limited number of audit events, whose counts are complete."""

from __future__ import annotations

import pytest

from gantrymq.remoting import audit_recorder
from gantrymq.remoting.audit_events import Event
from gantrymq.remoting.audit_recorder import MERGED_MAX, OTHERS, Recorder


def refusal(key: str, identity: str | None = None) -> Event:
    return Event(
        time_ms=0, kind="refusal", broker="b", identity=identity, access_key=key, address="10.0.0.1:5000", code=10,
        request="SEND_MESSAGE", about={"topic": key}, result=1, remark=f"No acl config for {key}",
    )  # fmt: skip


def test_refusals_of_ever_different_keys_are_a_limited_number_of_events_with_all_counts() -> None:
    now = [0.0]
    recorder = Recorder(lambda: now[0], 10.0)
    for number in range(3 * MERGED_MAX):
        recorder.repeated(refusal(f"key{number}"))
    now[0] = 11.0
    events = recorder.take()
    assert len(events) == MERGED_MAX + 1, "one for each of the first keys, and one for all others"
    assert sum(event.count for event in events) == 3 * MERGED_MAX
    assert {event.address for event in events[MERGED_MAX:]} == {OTHERS}
    assert recorder.lost == 0


def test_events_that_nobody_writes_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_recorder, "PENDING_MAX", 10)
    recorder = Recorder(lambda: 0.0, 10.0)
    for number in range(15):
        recorder.add(refusal(f"key{number}"))
    assert (len(recorder.take()), recorder.lost) == (10, 5)


def test_totals_have_a_limited_number_of_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_recorder, "IDENTITIES_MAX", 3)
    recorder = Recorder(lambda: 0.0, 10.0)
    for number in range(10):
        recorder.add(refusal("key", f"identity{number}"))
    assert recorder.totals == {
        **{("refusal", f"identity{number}", "1"): 1 for number in range(3)}, ("refusal", OTHERS, "1"): 7,
    }  # fmt: skip
