"""The contract for gates: ours keep it, and the kit finds each violation."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel.acks import DurableGate
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.plugins.ha.copies import CopiedGate, Copies, Copy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing import gatekit

pytestmark = pytest.mark.once


def durable() -> gatekit.Gate:
    return gatekit.Gate(lambda log: DurableGate(log, 5.0), lambda log, end: log.flush() and None)


def copied() -> gatekit.Gate:
    """A gate for one slave that is close enough."""
    copies = Copies(lambda: None)
    slave = Copy("10.0.0.2:1", "10.0.0.2", 0.0)
    slave.start = 0
    copies.add(slave)

    def grant(log: CommitLog, end: int) -> None:
        slave.acknowledged = max(slave.acknowledged, end)
        copies.moved()

    return gatekit.Gate(lambda log: CopiedGate(log, copies, 1, 3.0, 2**40), grant)


OWN = {"durable": durable, "copied": copied}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
@pytest.mark.parametrize("rule", gatekit.RULES, ids=lambda rule: rule.__name__)
def test_the_shipped_gates_keep_the_rules(rule: gatekit.Rule, own: Any) -> None:
    rule(own())


class Backup:
    """A gate of somebody else: an offset that another system has confirmed."""

    timeout_s = 2.0
    late_code = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    late_remark = "the backup has not confirmed the message in time"

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.confirmed = log.end

    @property
    def watermark(self) -> int:
        return self.confirmed


class Open(Backup):
    """Follows the log's end."""

    @property
    def watermark(self) -> int:
        return self.log.end


class Loose(Backup):
    """Follows the log's end after the first guarantee, and keeps ``on_timeout``."""

    given = 0

    @property
    def watermark(self) -> int:
        return self.log.end if self.confirmed else self.given

    def on_timeout(self, end: int) -> None:
        self.given = end


class Stuck(Backup):
    """Never passes anything."""

    @property
    def watermark(self) -> int:
        return 0


class Ahead(Backup):
    """Is beyond the log's end."""

    @property
    def watermark(self) -> int:
        return self.confirmed + 80 if self.confirmed else 0


class Falling(Backup):
    """Forgets what it had confirmed when the log grows."""

    @property
    def watermark(self) -> int:
        return self.confirmed if self.confirmed == self.log.end else 0


class Refusing(Backup):
    """Says that the message is not stored."""

    late_code = int(ResponseCode.SYSTEM_ERROR)


class Silent(Backup):
    late_remark = ""


class Generous(Backup):
    """A gate that lets everything pass after one timeout."""

    given_up = False

    @property
    def watermark(self) -> int:
        return self.log.end if self.given_up else self.confirmed

    def on_timeout(self, end: int) -> None:
        self.given_up = True


class Stubborn(Backup):
    """Has ``on_timeout`` and does not give way."""

    def on_timeout(self, end: int) -> None:
        pass


class Receding(Backup):
    """Is at the end of the batch that has expired, also if it had passed that."""

    def on_timeout(self, end: int) -> None:
        self.confirmed = end


def case_of(kind: type[Backup]) -> gatekit.Gate:
    made: list[Backup] = []

    def make(log: CommitLog) -> Backup:
        made[:] = [kind(log)]
        return made[0]

    def grant(log: CommitLog, end: int) -> None:
        made[0].confirmed = max(made[0].confirmed, end)

    return gatekit.Gate(make, grant)


@pytest.mark.parametrize("rule", gatekit.RULES, ids=lambda rule: rule.__name__)
def test_a_third_party_gate_that_keeps_the_rules_passes(rule: gatekit.Rule) -> None:
    rule(case_of(Backup))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Open, gatekit.nothing_passes_before_its_guarantee_holds),
        (Open, gatekit.a_late_message_is_readable_only_with_its_guarantee),
        (Loose, gatekit.nothing_passes_before_its_guarantee_holds),
        (Stuck, gatekit.what_is_guaranteed_passes_in_order),
        (Stuck, gatekit.it_lies_within_the_log),
        (Ahead, gatekit.it_lies_within_the_log),
        (Falling, gatekit.the_watermark_never_falls),
        (Receding, gatekit.the_watermark_never_falls),
        (Refusing, gatekit.a_late_sender_learns_that_the_message_is_stored),
        (Silent, gatekit.a_late_sender_learns_that_the_message_is_stored),
        (Generous, gatekit.a_late_message_is_readable_only_with_its_guarantee),
        (Stubborn, gatekit.a_late_message_is_readable_only_with_its_guarantee),
    ],
)
def test_a_gate_that_breaks_a_rule_is_found(broken: type[Backup], rule: gatekit.Rule) -> None:
    with pytest.raises(AssertionError):
        rule(case_of(broken))
