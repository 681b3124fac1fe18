"""Held pulls are answered by a matching message or at their timeout, and dropped when the peer disconnects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs

from gantrymq.kernel.batch import DispatchBatch, Pull, PullBatch
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.plugins.longpoll.hold import HeldPulls
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import java_hash


def peer(site: str = "10.0.0.1") -> Any:
    return Peer(site)


@attrs.frozen(eq=False)
class Peer:
    site: str


def pull(
    topic: str = "T", queue_id: int = 0, tags: str = "*", deadline: float = 15.0, connection: object = None
) -> Pull:
    request: Any = SimpleNamespace(connection=connection or peer())
    return Pull(request, "g", topic, queue_id, 0, 32, compile_tags(tags), True, deadline)


def arrival(*rows: tuple[str, int, str]) -> DispatchBatch:
    count = len(rows)
    return DispatchBatch(
        0, 100 * count, list(range(count)), [100] * count, [row[0] for row in rows], [row[1] for row in rows],
        [0] * count, [0] * count, [0] * count, [0] * count, [b""] * count, [java_hash(row[2]) for row in rows],
    )  # fmt: skip


class Holder:
    def __init__(self, limit: int = 100, longest_s: float = 60.0, each: int = 0) -> None:
        self.resumed: list[Pull] = []
        self.calls = 0
        self.table = HeldPulls(limit, longest_s, each)

    def resume(self, rows: list[Pull]) -> None:
        self.calls += 1
        self.resumed += rows

    def hold(self, *rows: Pull, now: float = 0.0) -> list[Pull]:
        return self.table.hold(PullBatch(list(rows), self.resume), now)


def test_an_arrival_wakes_only_the_pulls_of_its_queue_whose_filter_lets_it_through() -> None:
    holder = Holder()
    everything, wanted, other_tag, other_queue = pull(), pull(tags="A"), pull(tags="B"), pull(queue_id=1)
    holder.hold(everything, wanted, other_tag, other_queue)
    holder.table.resume_arrived(arrival(("T", 0, "A"), ("U", 1, "B")))
    assert holder.resumed == [everything, wanted]
    assert holder.calls == 1, "one call for all of one processor"
    assert len(holder.table) == 2


def test_an_arrival_wakes_a_pull_whose_filter_fails_because_its_response_says_so() -> None:
    class Failing:
        matches_all = False

        def matches(self, tag_code: int) -> bool:
            raise RemoteFault(1, "the filter failed")

    holder = Holder()
    failing, other_tag, wanted = pull(), pull(tags="B"), pull(tags="A")
    failing.filter = Failing()
    holder.hold(failing, other_tag, wanted)
    holder.table.resume_arrived(arrival(("T", 0, "A")))
    assert holder.resumed == [failing, wanted]


def test_a_pull_is_answered_once_whatever_happens_later() -> None:
    holder = Holder()
    holder.hold(pull(deadline=5.0))
    holder.table.resume_arrived(arrival(("T", 0, "A")))
    holder.table.resume_arrived(arrival(("T", 0, "A")))
    holder.table.resume_expired(100.0)
    holder.table.resume_all()
    assert len(holder.resumed) == 1


def test_time_is_up_at_the_deadline_or_at_the_longest_wait() -> None:
    holder = Holder(longest_s=60.0)
    soon, greedy = pull(deadline=15.0), pull(deadline=2.0**62)
    holder.hold(soon, greedy)
    holder.table.resume_expired(14.9)
    assert holder.resumed == []
    holder.table.resume_expired(15.0)
    assert holder.resumed == [soon]
    holder.table.resume_expired(60.0)
    assert holder.resumed == [soon, greedy]


def test_past_the_limit_pulls_are_handed_back() -> None:
    holder = Holder(limit=2)
    rows = [pull() for _ in range(3)]
    assert holder.hold(*rows) == rows[2:]
    assert len(holder.table) == 2


def test_one_address_may_hold_no_more_than_its_cap() -> None:
    holder = Holder(each=2)
    greedy = [pull(connection=peer("10.0.0.1")) for _ in range(3)]
    assert holder.hold(*greedy) == greedy[2:]
    assert holder.hold(pull(connection=peer("10.0.0.2"))) == []


def test_a_full_table_answers_held_pulls_of_the_address_with_the_most() -> None:
    holder = Holder(limit=4)
    greedy = [pull(connection=peer("10.0.0.1")) for _ in range(4)]
    holder.hold(*greedy)
    modest = [pull(connection=peer("10.0.0.2")) for _ in range(4)]
    assert holder.hold(*modest) == modest[2:], "half of the places each"
    assert holder.resumed == [greedy[3], greedy[2]], "the newest of the greedy address are answered"
    assert holder.hold(pull(connection=peer("10.0.0.1"))) != []
    assert len(holder.table) == 4
    holder.table.forget([pull.request.connection for pull in greedy[:2]])
    assert holder.hold(pull(connection=peer("10.0.0.1"))) == [], "places that were given back are free"


def test_pulls_of_a_closed_connection_are_forgotten() -> None:
    holder = Holder()
    gone = peer()
    kept = pull(connection=peer())
    holder.hold(pull(connection=gone), kept)
    holder.table.forget([gone])
    holder.table.resume_all()
    assert holder.resumed == [kept]


def test_deadlines_of_answered_pulls_do_not_pile_up() -> None:
    holder = Holder()
    for _ in range(20_000):
        holder.hold(pull())
        holder.table.resume_arrived(arrival(("T", 0, "A")))
    assert len(holder.table._deadlines) < 10_000
