"""A promotion chooses the slave by the logs that slaves report, and refuses when that would lose messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gantrymq.failover import promotion
from gantrymq.failover.brokers import REFUSING
from gantrymq.failover.promotion import PromotionRefused, SlaveLog, choose, promote
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import FIRST, Epoch

ONE, TWO = Epoch(1, "aa"), Epoch(2, "bb")


def test_the_highest_epoch_wins_and_then_the_longest_log() -> None:
    logs = {"a": SlaveLog(900, FIRST, 2), "b": SlaveLog(300, ONE, 2), "c": SlaveLog(400, ONE, 2)}
    assert choose(logs, list(logs)) == "c"


def test_an_empty_slave_loses_against_a_full_one() -> None:
    logs = {"empty": SlaveLog(0, FIRST, 1), "full": SlaveLog(900, FIRST, 1)}
    assert choose(logs, list(logs)) == "full"


@pytest.mark.parametrize("wanted", ["longer", "shorter"])
def test_another_slave_than_the_most_complete_one_is_promoted_only_with_accept_loss(wanted: str) -> None:
    logs = {"longer": SlaveLog(900, FIRST, 1), "shorter": SlaveLog(200, ONE, 1), "best": SlaveLog(300, ONE, 1)}
    with pytest.raises(PromotionRefused, match=r"best up to 300 of epoch 1-aa: .* Promote that one; --accept-loss"):
        choose(logs, [wanted])
    assert choose(logs, [wanted], accept_loss=True) == wanted


def test_the_longest_log_wins_where_no_slave_reports_the_epoch_of_its_log() -> None:
    """The slaves are of an older version, or were just updated."""
    logs = {"a": SlaveLog(300, None, 1), "b": SlaveLog(400, None, 1)}
    assert choose(logs, list(logs)) == "b"


def test_before_any_promotion_the_longest_log_wins_among_mixed_versions() -> None:
    logs = {"old": SlaveLog(400, None, 0), "new": SlaveLog(300, FIRST, 0)}
    assert choose(logs, list(logs)) == "old"
    logs = {"old": SlaveLog(300, None, 0), "new": SlaveLog(400, FIRST, 0)}
    assert choose(logs, list(logs)) == "new"


def test_a_slave_that_does_not_report_its_epoch_does_not_prevent_a_choice_that_loses_nothing() -> None:
    logs = {"old": SlaveLog(300, None, 1), "new": SlaveLog(300, ONE, 1)}
    assert choose(logs, list(logs)) == "new"


@pytest.mark.parametrize("old", [SlaveLog(301, None, 1), SlaveLog(100, None, 2)], ids=["longer", "higher"])
def test_a_slave_that_may_have_more_and_does_not_report_its_epoch_prevents_the_promotion(old: SlaveLog) -> None:
    logs = {"old": old, "new": SlaveLog(300, ONE, 1)}
    with pytest.raises(PromotionRefused, match=r"old up to \d+, of which epoch it does not report: .*--accept-loss"):
        choose(logs, list(logs))
    assert choose(logs, list(logs), accept_loss=True) == "new"


def test_an_empty_slave_that_reports_its_epoch_does_not_win_over_a_full_one_that_does_not() -> None:
    logs = {"full": SlaveLog(900, None, 1), "empty": SlaveLog(0, FIRST, 1)}
    assert choose(logs, list(logs)) == choose(logs, list(logs), accept_loss=True) == "full"


def test_the_logs_of_two_masters_with_one_epoch_number_are_not_compared_by_their_length() -> None:
    """An operator has started two slaves as masters."""
    logs = {"a": SlaveLog(900, Epoch(1, "aa"), 1), "b": SlaveLog(300, Epoch(1, "bb"), 1)}
    with pytest.raises(PromotionRefused, match="two masters had one epoch number"):
        choose(logs, list(logs))
    assert choose(logs, list(logs), accept_loss=True) == "a"


def test_a_log_that_begins_in_the_middle_of_its_masters_loses_against_a_complete_one() -> None:
    """The first slave was replaced, and got only the last file."""
    logs = {"a-replaced": SlaveLog(900, ONE, 1, lacks_before=800), "b-complete": SlaveLog(900, ONE, 1)}
    assert choose(logs, list(logs)) == choose(logs, list(logs), accept_loss=True) == "b-complete"
    with pytest.raises(PromotionRefused, match=r"a-replaced has the log up to 900 of epoch 1-aa without what .* 800.*"):
        choose(logs, ["a-replaced"])


def test_an_incomplete_log_is_promoted_only_with_accept_loss() -> None:
    logs = {"a": SlaveLog(900, ONE, 1, lacks_before=800)}
    with pytest.raises(PromotionRefused, match=r"without what its master had before 800.*--accept-loss"):
        choose(logs, ["a"])
    assert choose(logs, ["a"], accept_loss=True) == "a"


def test_no_slave_is_promoted_while_each_one_lacks_another_part() -> None:
    logs = {"longer": SlaveLog(900, ONE, 1, lacks_before=800), "complete": SlaveLog(850, ONE, 1)}
    with pytest.raises(PromotionRefused, match=r"complete has the log up to 850 .* longer up to 900 .*--accept-loss"):
        choose(logs, list(logs))
    assert choose(logs, list(logs), accept_loss=True) == "complete", "it has more"
    logs = {"longer": SlaveLog(900, ONE, 1, lacks_before=800), "empty": SlaveLog(0, ONE, 1)}
    assert choose(logs, list(logs), accept_loss=True) == "longer"


def test_no_slave_is_promoted_over_one_that_keeps_what_its_master_has_lost() -> None:
    """The master has restarted without what "kept" had acknowledged, and "follows" has what it has accepted since."""
    logs = {"kept": SlaveLog(400, ONE, 1, kept_from=300), "follows": SlaveLog(450, ONE, 1)}
    reason = r"kept .*up to 400 .* master has lost the part behind 300.*--accept-loss"
    for wanted in (["kept", "follows"], ["kept"], ["follows"]):
        with pytest.raises(PromotionRefused, match=reason):
            choose(logs, wanted)
        assert choose(logs, wanted, accept_loss=True) == wanted[-1]
    logs["follows"] = SlaveLog(350, ONE, 1)
    with pytest.raises(PromotionRefused, match=reason):
        choose(logs, list(logs))


@pytest.mark.parametrize(
    "other",
    [SlaveLog(390, ONE, 1, kept_from=300), SlaveLog(300, ONE, 1), SlaveLog(900, FIRST, 1, kept_from=800)],
    ids=["keeps it too", "had less", "of a lower epoch"],
)
def test_a_slave_that_keeps_what_its_master_has_lost_is_promoted_if_no_other_one_has_more(other: SlaveLog) -> None:
    logs = {"kept": SlaveLog(400, ONE, 1, kept_from=300), "other": other}
    assert choose(logs, list(logs)) == "kept"


def row(number: int, address: str, epoch: str | None) -> dict[str, Any]:
    return {
        "broker": "broker-a", "id": number, "address": address, "role": "slave", "epoch": epoch, "offset": 10,
        "not_promotable": "",
    }  # fmt: skip


def test_a_requested_slave_without_epochs_is_refused_while_another_one_supports_them() -> None:
    """This holds even with accepted loss: brokers that know the new epoch would not follow it."""

    async def rows() -> list[dict[str, Any]]:
        return [row(1, "new:1", "0-"), row(2, "old:2", None)]

    async def scenario() -> None:
        with pytest.raises(PromotionRefused, match=r"id 2 does not support epochs.*: promote new:1 \(--id 1\)"):
            await promote("broker-a", rows, number=2, accept_loss=True)

    trio.run(scenario)


class Slaves:
    """The slaves ``good:1`` and ``bad:2``; ``bad:2`` refuses an epoch with ``remark``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, remark: str) -> None:
        self.remark = remark
        self.promoted: list[str] = []
        self.reports: list[str] = []
        monkeypatch.setattr(promotion, "open_channel", self.open)

    async def rows(self) -> list[dict[str, Any]]:
        return [row(1, "good:1", "0-"), row(2, "bad:2", "0-")]

    @asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[Any]:
        async def call(command: Command) -> Command:
            if address == "bad:2":
                return command.answer(1, self.remark)
            if "masterAddress" in (command.ext or {}):
                self.promoted.append(address)
            return command.answer(0, None, {"logEnd": "10", "logEpoch": "0-"})

        yield SimpleNamespace(call=call)

    def promote(self, **options: Any) -> None:
        trio.run(partial(promote, "broker-a", self.rows, report=self.reports.append, **options))


def test_a_slave_that_cannot_store_the_epoch_is_left_out_with_accept_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    slaves = Slaves(monkeypatch, "OSError: no space left on device")
    with pytest.raises(PromotionRefused, match=r"bad:2 refuses: OSError: no space left on device; --accept-loss"):
        slaves.promote()
    assert slaves.promoted == []
    slaves.promote(accept_loss=True)
    assert slaves.promoted == ["good:1"]
    assert "bad:2 refuses: OSError: no space left on device: continuing without bad:2" in slaves.reports


def test_the_refusal_of_the_only_wanted_slave_ends_the_promotion(monkeypatch: pytest.MonkeyPatch) -> None:
    slaves = Slaves(monkeypatch, "OSError: no space left on device")
    with pytest.raises(PromotionRefused, match=r"bad:2 refuses: OSError"):
        slaves.promote(number=2, accept_loss=True)
    assert slaves.promoted == []


def test_a_competing_promotion_ends_this_one_also_with_accept_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    slaves = Slaves(monkeypatch, "epoch 1-aa cannot begin: the broker knows 1-bb; use a higher one")
    with pytest.raises(PromotionRefused, match=r"bad:2 refuses: epoch 1-aa cannot begin"):
        slaves.promote(accept_loss=True)
    assert slaves.promoted == []


@pytest.mark.parametrize(
    ("changed", "options", "reason"),
    [
        ({"log_lacks_before": 5}, {}, "without what its master had before 5"),
        ({"log_kept_from": 5}, {}, "master has lost the part behind 5"),
        ({}, {"end_at_least": 11}, "messages up to 11 may have been acknowledged"),
        ({"offset": 9}, {"number": 1}, "messages that only the latter has would be lost"),
    ],
    ids=["incomplete log", "kept log", "short log", "another slave has more"],
)
def test_a_refused_promotion_leaves_the_old_master_as_it_is(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    """A slave that knows the new epoch would fence it, and nobody would replace it."""
    asked: list[str] = []

    @asynccontextmanager
    async def open_channel(address: str) -> AsyncIterator[Any]:
        asked.append(address)
        raise AssertionError(address)
        yield

    async def rows() -> list[dict[str, Any]]:
        slaves = [row(1, "one:1", "0-"), row(2, "two:2", "0-")]
        slaves[0] |= changed
        slaves[1] |= changed if "log_lacks_before" in changed else {}
        return slaves

    monkeypatch.setattr(promotion, "open_channel", open_channel)
    with pytest.raises(PromotionRefused, match=reason):
        trio.run(partial(promote, "broker-a", rows, **options))
    assert asked == []


def refusing(number: int) -> dict[str, Any]:
    """A broker that answers the question for its state with an error."""
    return row(number, "sealed:1", None) | {"role": REFUSING, "refusal": "no permission"}


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([refusing(0), row(2, "good:2", "0-")], r"a master at sealed:1 \(no permission\) that answers"),
        ([refusing(1), row(2, "good:2", "0-")], r"cannot be asked, sealed:1 \(no permission\)"),
        ([refusing(1)], r"no slave that answers; sealed:1 \(no permission\)"),
    ],
    ids=["master", "slave", "only slave"],
)
def test_a_broker_that_refuses_to_report_its_state_is_alive(others: list[dict[str, Any]], reason: str) -> None:
    async def rows() -> list[dict[str, Any]]:
        return others

    with pytest.raises(PromotionRefused, match=reason):
        trio.run(partial(promote, "broker-a", rows))
