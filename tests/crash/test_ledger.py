"""The ledger finds each kind of broken promise; a checker that cannot fail proves nothing."""

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


def test_a_message_without_acknowledgement_may_be_there_or_not(ledger: Ledger):
    ledger.next_body(0)
    ledger.observe(ledger.next_body(0), 0, 0)
    ledger.check({0: 1})


def test_an_acknowledged_message_that_is_gone_is_found(ledger: Ledger):
    ledger.acknowledge(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="is lost"):
        ledger.check({0: 0})


def test_a_message_that_was_read_and_is_gone_is_found(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="behind the queue's end"):
        ledger.check({0: 0})


@pytest.mark.parametrize("at", [0, 6, 9, 14, -1])
def test_an_altered_byte_is_found(ledger: Ledger, at: int):
    for _ in range(40):
        body = bytearray(ledger.next_body(0))
    body[at] ^= 1
    with pytest.raises(LedgerViolation, match=r"damaged|nobody sent|never sent"):
        ledger.observe(bytes(body), 0, 0)


def test_a_cut_message_is_found(ledger: Ledger):
    for _ in range(40):
        body = ledger.next_body(0)
    with pytest.raises(LedgerViolation, match="damaged"):
        ledger.observe(body[:-1], 0, 0)


def test_a_message_of_another_run_is_found(ledger: Ledger):
    with pytest.raises(LedgerViolation, match="nobody sent"):
        ledger.observe(Ledger("other").next_body(0), 0, 0)


def test_a_place_that_changes_is_found(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="changed"):
        ledger.observe(ledger.next_body(0), 0, 0)


def test_another_message_than_the_acknowledged_one_is_found(ledger: Ledger):
    ledger.acknowledge(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="was acknowledged for"):
        ledger.observe(ledger.next_body(0), 0, 0)


def test_a_place_that_is_promised_twice_is_found(ledger: Ledger):
    ledger.acknowledge(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="twice"):
        ledger.acknowledge(ledger.next_body(0), 0, 0)


def test_a_promise_for_what_was_read_as_something_else_is_found(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 0)
    with pytest.raises(LedgerViolation, match="was read there before"):
        ledger.acknowledge(ledger.next_body(0), 0, 0)


def test_a_second_copy_is_found(ledger: Ledger):
    body = ledger.next_body(0)
    ledger.observe(body, 0, 0)
    with pytest.raises(LedgerViolation, match="is at"):
        ledger.observe(body, 1, 0)


def test_a_gap_in_a_queue_is_found(ledger: Ledger):
    ledger.observe(ledger.next_body(0), 0, 1)
    with pytest.raises(LedgerViolation, match="no message at 0"):
        ledger.check({0: 2})


def test_a_changed_order_is_found(ledger: Ledger):
    early, late = ledger.next_body(0), ledger.next_body(0)
    ledger.observe(late, 0, 0)
    ledger.observe(early, 0, 1)
    with pytest.raises(LedgerViolation, match="behind a later one"):
        ledger.check({0: 2})
