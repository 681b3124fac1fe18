"""Transactions: consumers get a half message only if its producer commits it.

Slot: transaction.
Hooks: before_append, check_files, collect_metrics, config_section, configure, dispatch, persist,
register_processors, register_tasks, retention_floor, runtime_info, stopping.
Config ``[plugin.transaction]``: ``strategy`` (``half`` or ``state_table``), ``check_interval``, ``timeout``,
``check_max``, ``max_age``, ``checks_per_second``, ``max_open``, ``file_rows``, ``reject``.
Files: those of the strategy; ``state_table`` has ``transaction/`` and ``gantrymq.transaction``.
Replaces RocketMQ's ``EndTransactionProcessor``, ``TransactionalMessageCheckService`` and their helpers: codes 37 and
323, and 39 to producers.

``strategy`` is the interface of strategies; ``half/`` and ``state_table/`` implement it. ``endings`` reads the outcomes
from producers, ``check`` sends check-backs, ``resume`` restores discarded half messages. ``plain`` has the inner loops;
``fast`` selects it or its compiled twin. ``docs/howto/transactions.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source, Trait
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.processors import Processor
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.transaction import fast as loops
from gantrymq.plugins.transaction.check import CheckBack
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.plugins.transaction.endings import EndTransactions
from gantrymq.plugins.transaction.prepare import refuse_halves, refuse_timed
from gantrymq.plugins.transaction.resume import ResumeHalves
from gantrymq.plugins.transaction.state_table.file_check import check_state_table
from gantrymq.plugins.transaction.strategies import STRATEGIES, StrategyKind
from gantrymq.plugins.transaction.strategy import Strategy, StrategyContext
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.stopped_store import StoppedStore


class TransactionPlugin:
    """Handles messages with the trait PREPARED by the configured strategy."""

    name = "transaction"
    slot = "transaction"
    strategies: ClassVar[Mapping[str, StrategyKind]] = STRATEGIES
    """By their names in the configuration. A subclass may have others."""
    sources = Source.ALL
    _config: TransactionConfig  # these four are set by configure
    _context: StrategyContext
    _is_slave: bool
    strategy: Strategy
    _endings: EndTransactions  # set by register_processors

    def __init__(self) -> None:
        self._check: CheckBack | None = None
        self._is_open = False

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.transaction]``."""
        return "transaction", TransactionConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Create the strategy, which gets the batches that the recovery dispatches."""

        def append(batch: AppendBatch) -> None:
            if not batch.traits & Trait.PREPARED:
                batch.traits |= Trait.FREES_SPACE  # the log is kept from the first open half message on
            broker.append(batch)

        self._config = config.section(self.config_section()[1])
        self._is_slave = broker.broker_id != 0
        self._context = StrategyContext(
            broker.env, broker.store, self._config, broker.registry, append, is_slave=self._is_slave
        )
        kind = self.strategies.get(self._config.strategy)
        if kind is None:
            names = ", ".join(self.strategies)
            raise StartError(f"plugin.transaction.strategy = {self._config.strategy!r} is unknown; use one of {names}")
        self.strategy = kind.make(self._context)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 37 and 323. Opens the strategy too, because the store is recovered."""
        self._refuse_other_strategies()
        self.strategy.open()
        self._is_open = True
        is_slave = self._is_slave
        self._endings = EndTransactions(broker.store, self.strategy, broker.env.monotonic, is_slave=is_slave)
        return {
            RequestCode.END_TRANSACTION: self._endings,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeHalves(broker.store, self._context.append, is_slave=is_slave),
        }

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the tasks of the strategy and, on a master, check-backs."""
        tasks = self.strategy.tasks()
        if not self._is_slave:
            self._check = CheckBack(self.strategy, self._config.check_interval)
            tasks.append(BackgroundTask("transaction", self._check.run))
        return tasks

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Pass half messages to the strategy."""
        if batch.traits & Trait.PREPARED:
            rows = loops.half_rows(batch)
            if rows and batch.traits & Trait.DELAY:
                rows = refuse_timed(batch, rows, self._context.store.log.clock)
            if rows and not refuse_halves(batch, rows, self._config, self.strategy.open_count):
                self.strategy.prepare(batch, rows)
            batch.traits &= ~Trait.PREPARED

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """Pass committed records to the strategy."""
        self.strategy.dispatch(batch)

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Send no more check-backs."""
        if self._check is not None:
            self._check.stop()

    @hookimpl
    def check_files(self, store: StoppedStore, config: Config) -> None:
        """Check the files of the strategy ``state_table``, if the store has them."""
        check_state_table(store, config.section(self.config_section()[1]).file_rows)

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """Return the strategy's changed files; None if the start failed before the strategy was opened."""
        return self.strategy.persist() if self._is_open else None

    @hookimpl
    def retention_floor(self, broker: Broker) -> int:
        """Return the first open half message, on a slave the first that may be open at its master; half messages are
        kept however full the disk is."""
        return self.strategy.floor()

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Return the strategy and, on a master, the number of open transactions."""
        opened = {} if self._is_slave else {"openTransactions": str(self.strategy.open_count)}
        return {**opened, "transactionStrategy": self._config.strategy}

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the number of open transactions on a master, and the commits and rollbacks by topic."""
        if not self._is_slave:
            metrics.gauge("rocketmq_half_messages", "Open transactions", self.strategy.open_count)
        self._endings.counts.report(metrics)

    def _refuse_other_strategies(self) -> None:
        """:class:`StartError` if the store has open transactions of another strategy, which this one could not end."""
        for name, kind in self.strategies.items():
            if name != self._config.strategy and (count := kind.count_open(self._context)):
                raise StartError(
                    f"{count} transactions of the strategy {name!r} are open in {self._context.store.root}: start with "
                    f"plugin.transaction.strategy = {name!r} until they have ended (runtime info: openTransactions), "
                    f"then switch to {self._config.strategy!r}"
                )
