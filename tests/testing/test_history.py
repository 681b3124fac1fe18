"""The check of a history finds each kind of violation."""

from __future__ import annotations

import pytest

from gantrymq.testing.history import GroupOffset, History, Kind, Outcome, Read, Send, Term

OLD, NEW = Term("10.0.0.10:10911", "1", "0-"), Term("10.0.0.11:10911", "1", "1-ab")
SLAVE = Term("10.0.0.11:10911", "1", "0-", slave=True)


class Forged:
    """A history that is written by hand, at one second each step, and the log of queue 0 at its end."""

    def __init__(self) -> None:
        self.history = History("run")
        self.log: list[bytes] = []
        self.now = 0.0

    def tick(self) -> float:
        self.now += 1
        return self.now

    def begin(self, term: Term = OLD) -> Send:
        return self.history.begin_send(0, self.tick(), term)

    def end(self, send: Send, outcome: Outcome = Outcome.OK, offset: int = -1) -> None:
        self.history.end_send(send, self.tick(), outcome, 0 if offset >= 0 else -1, offset)

    def stored(self, outcome: Outcome = Outcome.OK, term: Term = OLD) -> Send:
        """A message that is sent and is in the log."""
        send = self.begin(term)
        self.end(send, outcome, len(self.log) if outcome is Outcome.OK else -1)
        self.log.append(send.body)
        return send

    def read(self, send: Send, offset: int, term: Term = OLD, group: str = "") -> None:
        self.history.reads.append(Read(0, offset, send.body, self.tick(), term, group))

    def kinds(self) -> list[Kind]:
        return [violation.kind for violation in self.history.violations({0: self.log})]


@pytest.fixture
def forged() -> Forged:
    return Forged()


def test_a_clean_history_has_no_violation(forged: Forged) -> None:
    for outcome in (Outcome.OK, Outcome.STORED, Outcome.UNKNOWN, Outcome.REFUSED, Outcome.OK):
        send = forged.stored(outcome)
        forged.read(send, len(forged.log) - 1)
        forged.read(send, len(forged.log) - 1, SLAVE, "g")
    forged.history.group_offsets.append(GroupOffset("g", 0, 5, 5, OLD.address))
    assert not forged.history.check({0: forged.log})
    assert list(forged.history.undelivered("g")) == []
    assert len(forged.history.acknowledged) == 2


def test_two_messages_at_one_offset_are_a_violation(forged: Forged) -> None:
    forged.stored()
    other = forged.begin(NEW)
    forged.end(other, offset=0)
    assert Kind.TWICE in forged.kinds()
    with pytest.raises(
        AssertionError, match=r"message 0 of sender 0, OK at 0/0 by 10\.0\.0\.10:10911 of epoch 0-, and"
    ):
        forged.history.check({0: forged.log})


def test_a_missing_acknowledged_message_is_reported(forged: Forged) -> None:
    forged.stored()
    forged.stored()
    del forged.log[1]
    assert forged.kinds() == [Kind.LOST]


def test_a_missing_queue_with_an_acknowledged_message_is_a_violation(forged: Forged) -> None:
    forged.stored()
    assert [each.kind for each in forged.history.violations({})] == [Kind.LOST]


def test_a_moved_acknowledged_message_is_a_violation(forged: Forged) -> None:
    first, second = forged.stored(), forged.stored(Outcome.UNKNOWN)
    forged.log[:] = [second.body, first.body]
    assert forged.kinds() == [Kind.MOVED]


def test_a_wrong_message_at_an_acknowledged_offset_is_a_violation(forged: Forged) -> None:
    forged.stored()
    forged.log[0] = forged.begin().body
    assert forged.kinds() == [Kind.REPLACED]


def test_an_altered_body_is_a_violation(forged: Forged) -> None:
    forged.stored()
    forged.log[0] = forged.log[0][:-1] + b"!"
    assert set(forged.kinds()) == {Kind.STRANGE, Kind.REPLACED}


def test_an_unsent_message_in_the_log_or_at_a_reader_is_a_violation(forged: Forged) -> None:
    forged.log.append(b"forged")
    forged.history.reads.append(Read(0, 0, b"other", 1.0, OLD))
    assert forged.kinds() == [Kind.STRANGE, Kind.STRANGE]


def test_one_message_at_two_offsets_is_a_violation(forged: Forged) -> None:
    forged.log.append(forged.stored(Outcome.UNKNOWN).body)
    assert forged.kinds() == [Kind.REPEATED]


def test_a_later_send_with_a_lower_offset_is_a_violation(forged: Forged) -> None:
    first = forged.begin()
    forged.end(first, offset=1)
    second = forged.begin()
    forged.end(second, offset=0)
    forged.log[:] = [second.body, first.body]
    assert forged.kinds() == [Kind.ORDER]


def test_overlapping_sends_may_have_any_order(forged: Forged) -> None:
    first, second = forged.begin(), forged.begin()
    forged.end(first, offset=1)
    forged.end(second, offset=0)
    forged.log[:] = [second.body, first.body]
    assert forged.kinds() == []


def test_the_order_is_checked_against_all_earlier_sends(forged: Forged) -> None:
    early = forged.begin()
    forged.end(early, offset=2)
    long = forged.begin()
    late = forged.begin()
    forged.end(late, offset=0)
    forged.end(long, offset=1)
    forged.log[:] = [late.body, long.body, early.body]
    assert forged.kinds() == [Kind.ORDER, Kind.ORDER]


@pytest.mark.parametrize("outcome", [Outcome.STORED, Outcome.UNKNOWN, Outcome.REFUSED])
def test_reads_before_the_acknowledgment_may_vanish_and_are_counted(outcome: Outcome, forged: Forged) -> None:
    forged.stored()
    forged.read(forged.stored(outcome), 1)
    del forged.log[1]
    forged.stored(term=NEW)
    assert forged.history.check({0: forged.log}) == {outcome: 1}


@pytest.mark.parametrize("found", ["missing", "replaced"])
def test_reads_below_an_acknowledgment_of_the_same_term_may_not_vanish(found: str, forged: Forged) -> None:
    read = forged.stored(Outcome.UNKNOWN)
    forged.read(read, 0)
    forged.read(read, 0)
    later = forged.stored()
    forged.log[:] = [] if found == "missing" else [forged.begin().body, later.body]
    assert forged.kinds().count(Kind.VANISHED) == 1


def test_reads_below_an_acknowledgment_of_another_term_may_vanish(forged: Forged) -> None:
    forged.read(forged.stored(Outcome.UNKNOWN), 0)
    del forged.log[0]
    forged.stored(term=NEW)
    assert forged.kinds() == []


def test_reads_from_a_slave_may_not_vanish_unless_it_could_not_compare_its_log(forged: Forged) -> None:
    forged.read(forged.stored(Outcome.UNKNOWN), 0, SLAVE)
    forged.log.clear()
    assert forged.kinds() == [Kind.VANISHED]
    forged.history.excuse(SLAVE)
    assert forged.kinds() == []


def test_a_group_beyond_the_end_is_a_violation(forged: Forged) -> None:
    forged.stored()
    forged.history.group_offsets.append(GroupOffset("g", 0, 2, 1, OLD.address))
    assert forged.kinds() == [Kind.AHEAD]


def test_a_group_without_an_acknowledged_message_is_a_violation(forged: Forged) -> None:
    first, second = forged.stored(), forged.stored()
    forged.stored(Outcome.STORED)
    forged.read(first, 0, group="g")
    forged.read(second, 1, group="other")
    assert [violation.kind for violation in forged.history.undelivered("g")] == [Kind.UNDELIVERED]
