"""Every strategy keeps the contract, and the kit finds one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import attrs
import pytest

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.stopped_store import StoppedStore
from gantrymq.kernel.store.log.record import Record
from gantrymq.maintenance.state_check import check_plugin_files
from gantrymq.maintenance.store_check import StoreCheck
from gantrymq.message import Outcome
from gantrymq.plugins.index.layout import Shape
from gantrymq.plugins.transaction import TransactionPlugin
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.plugins.transaction.half import check_scan
from gantrymq.plugins.transaction.half.load import count_open_halves
from gantrymq.plugins.transaction.half.strategy import HalfStrategy
from gantrymq.plugins.transaction.half.table import ROLLED_BACK
from gantrymq.plugins.transaction.plain import Ending
from gantrymq.plugins.transaction.strategies import STRATEGIES, StrategyKind
from gantrymq.plugins.transaction.strategy import StrategyContext
from gantrymq.testing import transactionkit
from gantrymq.testing.fixtures import StartPluginBroker
from gantrymq.testing.harness import make_broker
from gantrymq.testing.tinystore import open_store


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", transactionkit.RULES, ids=lambda rule: rule.__name__)
def test_the_contract_of_the_strategies_is_kept(rule: transactionkit.Rule, strategy: str) -> None:
    rule(strategy)


class Open(HalfStrategy):
    """Hides nothing."""

    def prepare(self, batch: AppendBatch, rows: list[int]) -> None:
        return


class Repeating(HalfStrategy):
    """Ends a transaction with each end request, repeated ones included."""

    def end(self, endings: list[Ending]) -> None:
        known = self._table
        super().end(endings)
        for ending in endings:
            index = ending.record.queue_offset - known._origin
            if known._states[index]:
                known._states[index] = 0
                known._base = min(known._base, ending.record.queue_offset)
                known._ended -= 1


class Deaf(HalfStrategy):
    """Asks nobody."""

    def scan(self) -> Iterator[None]:
        return iter(())


class Forgetful(HalfStrategy):
    """Begins at every start as if nothing were open."""

    def open(self) -> None:
        super().open()
        for offset in range(self._table.end):
            self._table.close(offset, 3)


class Careless(HalfStrategy):
    """Needs no files, whatever is open."""

    def floor(self) -> int:
        return self._store.log.end


class Trusting(HalfStrategy):
    """Takes anything for a half message."""

    def is_prepared(self, record: Record) -> bool:
        return True

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        return endings, []


class Gullible(HalfStrategy):
    """Believes whatever looks like a half message."""

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        return endings, []


class Wrapping:
    """Uses a shipped strategy without being a subclass, and believes whatever looks like a half message."""

    def __init__(self, context: StrategyContext) -> None:
        self._wrapped = HalfStrategy(context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        return endings, []


class Losing(HalfStrategy):
    """Ends transactions without an outcome, and stores their messages nowhere."""

    def open(self) -> None:
        super().open()
        scan: Any = self._scan
        scan._discard = lambda _part, record, _reason: self._table.close(record.queue_offset, ROLLED_BACK)


class Unlimited(HalfStrategy):
    """Has its own limits instead of the configured ones."""

    limits: ClassVar[dict[str, Any]] = {"check_max": 1_000_000}

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(attrs.evolve(context, config=attrs.evolve(context.config, **self.limits)))


class Ageless(Unlimited):
    limits: ClassVar[dict[str, Any]] = {"max_age": 365 * 86_400.0}


class Impatient(Unlimited):
    limits: ClassVar[dict[str, Any]] = {"max_age": 600.0}


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Open, transactionkit.a_half_message_is_seen_only_when_it_is_committed),
        (Open, transactionkit.what_is_rolled_back_is_never_seen),
        (Repeating, transactionkit.the_first_outcome_wins),
        (Deaf, transactionkit.a_producer_gets_a_check_back_and_its_outcome_counts),
        (Deaf, transactionkit.many_open_transactions_are_all_asked_about),
        (Losing, transactionkit.what_has_no_outcome_is_moved_to_the_topic_of_discarded_messages),
        (Unlimited, transactionkit.what_has_no_outcome_is_moved_to_the_topic_of_discarded_messages),
        (Ageless, transactionkit.what_has_no_outcome_is_moved_to_the_topic_of_discarded_messages),
        (Impatient, transactionkit.what_has_no_outcome_is_moved_to_the_topic_of_discarded_messages),
        (Forgetful, transactionkit.a_restart_in_any_state_forgets_nothing),
        (Forgetful, transactionkit.a_commit_that_is_refused_may_be_repeated),
        (Careless, transactionkit.open_transactions_keep_their_files),
        (Trusting, transactionkit.forged_ends_are_refused),
        (Gullible, transactionkit.forged_records_in_bodies_end_nothing),
        (Wrapping, transactionkit.forged_records_in_bodies_end_nothing),
    ],
)
def test_the_kit_finds_a_strategy_that_breaks_the_contract(broken: Any, rule: transactionkit.Rule) -> None:
    with pytest.raises((AssertionError, ValueError)):
        rule(StrategyKind(broken, count_open_halves))


@pytest.mark.parametrize("rule", transactionkit.RULES, ids=lambda rule: rule.__name__)
def test_a_third_party_strategy_that_keeps_the_contract_passes(rule: transactionkit.Rule) -> None:
    rule(StrategyKind(HalfStrategy, count_open_halves))


def test_the_kit_finds_a_strategy_whose_open_transactions_others_do_not_see() -> None:
    own = StrategyKind(HalfStrategy, lambda context: 0)
    with pytest.raises(AssertionError, match="'half' started on open transactions of 'own'"):
        transactionkit.another_strategy_refuses_to_start(own)


@attrs.frozen(kw_only=True)
class OwnConfig(TransactionConfig):
    strategy: Literal["mine", "half"] = "mine"  # type: ignore[assignment]


class OwnTransactions(TransactionPlugin):
    """Enabling a third-party strategy (docs/howto/transactions.md)."""

    name = "own_transactions"
    strategies: ClassVar = {"mine": StrategyKind(HalfStrategy, count_open_halves)}

    @hookimpl
    def config_section(self) -> tuple[str, type[OwnConfig]]:
        return "transaction", OwnConfig


def test_a_plugin_runs_a_strategy_of_its_own(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(OwnTransactions, disable=["transaction"])
    running.client.admin.create_topic("orders")
    opened = running.client.transactional_producer(
        "own", check=lambda _message: Outcome.COMMIT, local=lambda message, _id: Outcome[message.body.decode()]
    )
    with opened as producer:
        producer.send("orders", b"ROLLBACK")
        producer.send("orders", b"COMMIT")
    with running.client.consumer("orders", "readers", start="first") as consumer:
        assert next(consumer).body == b"COMMIT"
    assert running.plugin.strategy.open_count == 0


def test_the_store_of_a_plugin_with_its_own_strategy_passes_a_deep_check(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, disable=["transaction"], enable=[OwnTransactions])
    open_store(broker.env, broker.root)[0].close()

    def check_files(store: StoppedStore) -> None:
        check_plugin_files(store, broker.config, [broker.manager])

    report = StoreCheck(broker.env, broker.root, Shape(64, 200), deep=True, check_files=check_files).run()
    assert [finding for finding in report.state if finding.is_damage] == []


def test_the_kit_finds_a_check_scan_with_wrong_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_scan, "first_offset", lambda record: record.queue_offset)
    with pytest.raises(AssertionError):
        transactionkit.an_outcome_may_have_the_offsets_of_the_send("half")
