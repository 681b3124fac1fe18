"""The ledger finds each kind of violation."""

from __future__ import annotations

import pytest

from gantrymq.testing.ledger import Ledger, LedgerViolation


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("run")


def test_a_clean_run_has_no_violation(ledger: Ledger):
    bodies = [ledger.next_body(7) for _ in range(5)]
    for offset, body in enumerate(bodies):
        ledger.acknowledge(body, 0, offset)
        ledger.observe(body, 0, offset)
        ledger.observe(body, 0, offset)
    ledger.check({0: 5})
    assert (ledger.sent, ledger.acknowledged, ledger.read) == (5, 5, 5)


def test_an_unacknowledged_message_may_be_present_or_missing(ledger: Ledger):
    ledger.next_body(0)
    ledger.observe(ledger.next_body(0), 0, 0)
    ledger.check({0: 1})


def test_a_missing_acknowledged_message_is_a_violation(ledger: Ledger):
    ledger.acknowledge(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="is lost"):
        ledger.check({0: 0})


def test_a_message_that_vanishes_after_a_read_is_a_violation(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="beyond the queue's end"):
        ledger.check({0: 0})


@pytest.mark.parametrize("at", [0, 6, 9, 14, -1])
def test_an_altered_byte_is_a_violation(ledger: Ledger, at: int):
    for _ in range(40):
        body = bytearray(ledger.next_body(0))
    body[at] ^= 1
    with pytest.raises(LedgerViolation, match=r"damaged|never sent"):
        ledger.observe(bytes(body), 0, 0)


def test_a_truncated_message_is_a_violation(ledger: Ledger):
    for _ in range(40):
        body = ledger.next_body(0)
    with pytest.raises(LedgerViolation, match="damaged"):
        ledger.observe(body[:-1], 0, 0)


def test_a_message_of_another_run_is_a_violation(ledger: Ledger):
    with pytest.raises(LedgerViolation, match="never sent"):
        ledger.observe(Ledger("other").next_body(0), 0, 0)


def test_a_changed_queue_offset_is_a_violation(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="changed"):
        ledger.observe(ledger.next_body(0), 0, 0)


def test_another_message_at_an_acknowledged_offset_is_a_violation(ledger: Ledger):
    ledger.acknowledge(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="was acknowledged for"):
        ledger.observe(ledger.next_body(0), 0, 0)


def test_an_offset_acknowledged_for_two_messages_is_a_violation(ledger: Ledger):
    ledger.acknowledge(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="twice"):
        ledger.acknowledge(ledger.next_body(0), 0, 0)


def test_an_offset_acknowledged_after_it_was_read_with_another_message_is_a_violation(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="was read there before"):
        ledger.acknowledge(ledger.next_body(0), 0, 0)


def test_a_duplicate_is_a_violation(ledger: Ledger):
    body = ledger.next_body(0)
    ledger.observe(body, 0, 0)
    with pytest.raises(LedgerViolation, match="is at"):
        ledger.observe(body, 1, 0)


def test_a_gap_in_a_queue_is_a_violation(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 1)
    with pytest.raises(LedgerViolation, match="no message at 0"):
        ledger.check({0: 2})


def test_a_changed_order_is_a_violation(ledger: Ledger):
    early, late = ledger.next_body(0), ledger.next_body(0)
    ledger.observe(late, 0, 0)
    ledger.observe(early, 0, 1)
    with pytest.raises(LedgerViolation, match="behind a later one"):
        ledger.check({0: 2})
