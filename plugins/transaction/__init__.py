"""Transactions: a half message is kept from consumers until its producer commits it, or never reaches them.

Slot: transaction.
Hooks: before_append, collect_metrics, config_section, configure, dispatch, persist, register_processors,
register_tasks, retention_floor, runtime_info, stopping.
Config ``[plugin.transaction]``: ``strategy`` (``half`` or ``state_table``), ``check_interval``, ``timeout``,
``check_max``, ``max_age``, ``checks_per_second``, ``max_open``, ``file_rows``, ``reject``.
Files: those of the strategy; ``state_table`` has ``transaction/`` and ``gantrymq.transaction``.
Answers for RocketMQ's ``EndTransactionProcessor``, ``TransactionalMessageCheckService`` and what is behind them: codes
37 and 323, and 39 towards producers.

``strategy`` says what a strategy does, ``endings`` reads what producers say, ``check`` asks them, ``resume`` brings
back what was put aside. The inner loops are ``plain``; they have a compiled twin, and ``fast`` chooses between them.
The strategies: ``half``, with all that begins so, and ``state_strategy``, with ``redo`` and all that begins with
``state``.
``docs/howto/transactions.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source, Trait
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.processors import Processor
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.transaction import fast as loops
from gantrymq.plugins.transaction.check import CheckBack
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.plugins.transaction.endings import EndTransactions
from gantrymq.plugins.transaction.prepare import refuse_halves
from gantrymq.plugins.transaction.resume import ResumeHalves
from gantrymq.plugins.transaction.strategies import STRATEGIES
from gantrymq.plugins.transaction.strategy import Strategy, StrategyContext
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics


class TransactionPlugin:
    """Takes charge of the trait PREPARED, with the strategy that the configuration names."""

    name = "transaction"
    slot = "transaction"
    sources = Source.ALL
    _config: TransactionConfig  # these three are set by configure
    _context: StrategyContext
    strategy: Strategy
    _endings: EndTransactions  # from register_processors on

    def __init__(self) -> None:
        self._check: CheckBack | None = None
        self._is_open = False

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.transaction]``."""
        return "transaction", TransactionConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Make the strategy: it sees what the recovery dispatches."""

        def append(batch: AppendBatch) -> None:
            if not batch.traits & Trait.PREPARED:
                batch.traits |= Trait.FREES_SPACE  # an open transaction keeps the log from its half message on
            broker.append(batch)

        self._config = config.section(TransactionConfig)
        self._context = StrategyContext(broker.env, broker.store, self._config, broker.registry, append)
        kind = STRATEGIES.get(self._config.strategy)
        if kind is None:
            raise StartError(f"plugin.transaction.strategy: there is no {self._config.strategy!r} in this version")
        self.strategy = kind.make(self._context)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """37 and 323. The store is recovered: what is open can be known."""
        self._refuse_other_strategies()
        self.strategy.open()
        self._is_open = True
        is_slave = broker.broker_id != 0
        self._endings = EndTransactions(broker.store, self.strategy, is_slave=is_slave)
        return {
            RequestCode.END_TRANSACTION: self._endings,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeHalves(broker.store, self._context.append, is_slave=is_slave),
        }

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The strategy's own, and the check-back; a slave asks nobody."""
        tasks = self.strategy.tasks()
        if broker.broker_id == 0:
            self._check = CheckBack(self.strategy, self._config.check_interval)
            tasks.append(BackgroundTask("transaction", self._check.run))
        return tasks

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Hand the half messages to the strategy."""
        if batch.traits & Trait.PREPARED:
            rows = loops.half_rows(batch)
            if rows and not refuse_halves(batch, rows, self._config, self.strategy.open_count):
                self.strategy.prepare(batch, rows)
            batch.traits &= ~Trait.PREPARED

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """What is committed, for strategies that build something from it."""
        self.strategy.dispatch(batch)

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Ask nobody any more."""
        if self._check is not None:
            self._check.stop()

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """The strategy's files; nothing where the start failed before it was opened."""
        return self.strategy.persist() if self._is_open else None

    @hookimpl
    def retention_floor(self, broker: Broker) -> int:
        """Open transactions are needed, however full the disk is."""
        return self.strategy.floor()

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """How many transactions are open, and who keeps them."""
        return {
            "openTransactions": str(self.strategy.open_count),
            "transactionStrategy": self._config.strategy,
        }

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """How many are open, and what producers said; RocketMQ tells it by topic."""
        metrics.gauge("rocketmq_half_messages", "Transactions that are open", self.strategy.open_count)
        metrics.counter(
            "rocketmq_commit_messages_total", "Transactions that their producers committed", self._endings.commits
        )
        metrics.counter(
            "rocketmq_rollback_messages_total", "Transactions that their producers rolled back", self._endings.rollbacks
        )

    def _refuse_other_strategies(self) -> None:
        """:class:`StartError` when another strategy's transactions are open in this store: nobody would end them."""
        for name, kind in STRATEGIES.items():
            if name != self._config.strategy and (count := kind.count_open(self._context)):
                raise StartError(
                    f"{count} transactions of the strategy {name!r} are open in {self._context.store.root}: start with "
                    f"plugin.transaction.strategy = {name!r} until they have ended (runtime info: openTransactions), "
                    f"then switch to {self._config.strategy!r}"
                )
