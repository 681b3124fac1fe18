"""The interface of a transaction strategy; ``[plugin.transaction] strategy`` selects one.

A strategy is called from one thread and never waits, so that a test can replace the broker
(``gantrymq.testing.transactionkit`` tests any strategy against this interface).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from gantrymq.kernel.store.log.record import Record

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch, DispatchBatch
    from gantrymq.kernel.env import Env
    from gantrymq.kernel.registry import Registry
    from gantrymq.kernel.store.store import Store
    from gantrymq.kernel.tasks import BackgroundTask
    from gantrymq.plugins.transaction.config import TransactionConfig
    from gantrymq.plugins.transaction.plain import Ending


@attrs.frozen
class StrategyContext:
    """The context of a strategy.

    ``append`` passes a batch through the write path: its columns are filled when it returns, ``batch.done`` is called
    when every row has its final status. ``registry`` is complete when :meth:`Strategy.open` is called.

    ``is_slave``: the log is a copy of a master's; only :meth:`Strategy.dispatch` gets its records, and only the master
    ends transactions.
    """

    env: Env
    store: Store
    config: TransactionConfig
    registry: Registry
    append: Callable[[AppendBatch], None]
    is_slave: bool = False


class Strategy(Protocol):
    """Manages the half messages of a broker. Created before the store is recovered."""

    def open(self) -> None:
        """The store is recovered: determine the open transactions. ``StartError`` stops the start."""

    def prepare(self, batch: AppendBatch, rows: list[int]) -> None:
        """These ``rows`` of a batch before its append are half messages: hide them from consumers."""

    def is_prepared(self, record: Record) -> bool:
        """Return whether the record is a half message as this strategy stores them."""

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        """Split endings into those whose half message this broker stored at the given offsets, and the others.

        The half message at :attr:`Ending.table_offset` must be the record at :attr:`Ending.commit_log_offset`, because
        the log offset alone may point to a forged record in a message body.
        """

    def end(self, endings: list[Ending]) -> None:
        """Commit or roll back, and answer each request when that is durable; the first outcome of a transaction
        wins."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Committed records, as in the hook ``dispatch``, including ``batch.replay`` during recovery."""

    def scan(self) -> Iterator[None]:
        """Send check-backs for transactions that are open for too long, and discard those without an outcome.

        A half message without an outcome after ``check_max`` check-backs, or at ``max_age``, is stored in
        ``TRANS_CHECK_MAX_TIME_TOPIC``, and its transaction is not open any more.

        One scan of the open transactions, which yields after limited work. An error with one transaction does not
        prevent check-backs for others, and completed work is kept however the scan ends.
        """

    def persist(self) -> dict[str, bytes] | None:
        """As the hook ``persist``: the changed files of the strategy."""

    def floor(self) -> int:
        """Return the lowest log offset that an open transaction needs; the log's end without one. On a slave the result
        may be lower, and must not be higher."""

    def tasks(self) -> list[BackgroundTask]:
        """Return the strategy's own tasks, as the hook ``register_tasks``; they run on slaves too."""

    @property
    def open_count(self) -> int:
        """How many transactions are open. A slave reports no such number, so this may be outdated there."""
