"""Quotas without a broker: rates with bursts, debts, connections, and a table of limited size."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.plugins.quota import usage
from gantrymq.plugins.quota.usage import OTHERS, Exceeded, Quota, Usages


def take(usages: Usages, connection: Any, identity: str, now: float, size: int = 1, *, always: bool = False) -> str:
    """The reason of the refusal; empty without one."""
    try:
        usages.take(connection, identity, size, now, always=always)
    except Exceeded as exceeded:
        return exceeded.reason
    return ""


def test_a_rate_allows_a_burst_and_then_so_many_a_second() -> None:
    usages = Usages(Quota(requests=10), {}, 2.0)
    assert [take(usages, "c", "a", 0.0) for _ in range(21)] == [""] * 20 + ["requests"]
    assert take(usages, "d", "b", 0.0) == "", "another identity has its own"
    with pytest.raises(Exceeded, match=r"a has used up its quota of 10 requests/s; next in 50 ms"):
        usages.take("c", "a", 1, 0.05, always=False)  # type: ignore[arg-type]
    assert take(usages, "c", "a", 0.1) == ""
    served = [take(usages, "c", "a", 0.1 + number / 100) for number in range(1, 1001)].count("")
    assert 99 <= served <= 101, "10 seconds"


def test_a_large_request_passes_and_has_to_be_earned() -> None:
    usages = Usages(Quota(bytes=1000), {}, 1.0)
    assert take(usages, "c", "a", 0.0, 5000) == ""
    assert take(usages, "c", "a", 3.9, 1) == "bytes"
    assert take(usages, "c", "a", 4.1, 1) == ""


def test_each_request_at_the_rate_waits_for_a_token_and_counts_as_a_pause() -> None:
    usages = Usages(Quota(requests=16), {}, 0.125, 2.0)  # powers of two, so that the sums are exact
    now, pauses = 0.0, []
    for _ in range(12):
        pauses.append(usages.take("c", "a", 1, now, always=False))  # type: ignore[arg-type]
        now += pauses[-1]
    assert pauses == [0.0] + [1 / 16] * 11, "the burst is 2 requests, and the last one leaves its pause to others"
    assert usages.paused == {"a": 11}
    assert usages.take("c", "a", 1, now, always=True) == 0.0  # type: ignore[arg-type]
    assert usages.paused == {"a": 11}


def test_requests_that_are_always_served_count_and_cause_no_debt() -> None:
    usages = Usages(Quota(requests=10), {}, 1.0)
    assert [take(usages, "c", "a", 0.0, always=True) for _ in range(1000)] == [""] * 1000
    assert take(usages, "c", "a", 0.0) == "requests"
    assert take(usages, "c", "a", 0.2) == ""


def test_connections_beyond_the_quota_are_refused_until_others_are_closed() -> None:
    usages = Usages(Quota(connections=2), {"b": Quota()}, 1.0)
    assert [take(usages, name, "a", 0.0) for name in ("c1", "c2", "c3")] == ["", "", "connections"]
    assert take(usages, "c3", "a", 0.0, always=True) == "connections"
    assert take(usages, "c3", "b", 0.0) == "", "b has no quota"
    usages.forget("c1")  # type: ignore[arg-type]
    assert take(usages, "c3", "a", 0.0) == "", "it shows another key now"
    assert take(usages, "c1", "a", 0.0) == "connections"
    assert usages.refused == {("a", "connections"): 3}


def test_requests_that_need_no_connection_of_the_quota_are_served_beyond_it_and_count() -> None:
    usages = Usages(Quota(requests=10, connections=1), {}, 1.0)
    assert take(usages, "c1", "a", 0.0) == ""
    served = [usages.take("c2", "a", 1, 0.0, always=True, on_any_connection=True) for _ in range(9)]  # type: ignore[arg-type]
    assert served == [0.0] * 9
    assert take(usages, "c2", "a", 0.0) == "connections", "it has not become one of the quota"
    assert take(usages, "c1", "a", 0.0) == "requests"
    usages.forget("c2")  # type: ignore[arg-type]
    assert take(usages, "c2", "a", 0.0) == "connections"


def test_requests_of_identities_without_a_quota_of_their_own_rarely_search_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usages = Usages(Quota(requests=10), {}, 2.0, 1.0)
    for number in range(usage.IDENTITIES_MAX):
        usages.take(f"c{number}", f"i{number}", 1, 0.0, always=False)  # type: ignore[arg-type]
    searches: list[float] = []
    drop_unused = Usages._drop_unused

    def counted(usages: Usages, now: float) -> None:
        searches.append(now)
        drop_unused(usages, now)

    monkeypatch.setattr(Usages, "_drop_unused", counted)
    for number in range(100):
        usages.take("x", "x", 1, 100.0 + number / 64, always=True)  # type: ignore[arg-type]
    assert searches == [100.0, 101.0]
    for name in ("c1", "c2"):
        usages.forget(name)  # type: ignore[arg-type]
    usages.take("x", "x", 1, 103.0, always=True)  # type: ignore[arg-type]
    assert usages._of["x"].identity == "x", "it has its own quota when there is room"  # type: ignore[index]


def test_many_identities_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "IDENTITIES_MAX", 10)
    usages = Usages(Quota(requests=1), {"named": Quota(requests=5)}, 1.0)
    for number in range(10):
        assert take(usages, f"c{number}", f"i{number}", 0.0) == ""
    assert take(usages, "x", "x", 0.0) == ""
    assert take(usages, "y", "y", 0.0) == "requests", "it shares the quota of the others"
    assert take(usages, "x", "x", 0.0) == "requests"
    assert [take(usages, "n", "named", 0.0) for _ in range(6)] == [""] * 5 + ["requests"]
    assert len(usages) == 12
    for name in [f"c{number}" for number in range(10)]:
        usages.forget(name)  # type: ignore[arg-type]
    assert take(usages, "z", "z", 60.0) == ""
    assert usages.refused[OTHERS, "requests"] == 2
    assert take(usages, "i1", "i1", 60.0) == "", "there is room for identities again"


def test_refusals_of_identities_that_shared_a_quota_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "IDENTITIES_MAX", 1)
    usages = Usages(Quota(requests=1), {}, 1.0)
    assert [take(usages, name, name, 0.0) for name in ("a", "x", "y")] == ["", "", "requests"]
    for name in ("x", "y"):
        usages.forget(name)  # type: ignore[arg-type]
    assert take(usages, "z", "z", 60.0) == ""
    assert usages.refused == {(OTHERS, "requests"): 1}
