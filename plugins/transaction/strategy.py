"""What a way to keep half messages must do; ``[plugin.transaction] strategy`` names the one that is asked.

A strategy is driven from one thread and without waiting, so that a test can stand for the broker
(``gantrymq.testing.transactionkit`` tests any strategy against what is promised here).
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
    """What a strategy works with.

    ``append`` takes a batch through the write path: its columns are filled when it returns, ``batch.done`` is called
    when every row has its final status. ``registry`` is complete when :meth:`Strategy.open` is called.
    """

    env: Env
    store: Store
    config: TransactionConfig
    registry: Registry
    append: Callable[[AppendBatch], None]


class Strategy(Protocol):
    """Keeps the half messages of a broker. Made before the store is recovered."""

    def open(self) -> None:
        """The store is recovered: find out which transactions are open. ``StartError`` refuses the start."""

    def prepare(self, batch: AppendBatch, rows: list[int]) -> None:
        """These ``rows`` of what is about to be appended are half messages: see that no consumer gets them."""

    def is_prepared(self, record: Record) -> bool:
        """Whether the record is a half message as this strategy stores them."""

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        """Those of which this broker itself has put the half message where the producer says, and the others.

        The half message at :attr:`Ending.table_offset` must be the record at :attr:`Ending.commit_log_offset`: the log
        offset alone may point at a forged record in the body of a message.
        """

    def end(self, endings: list[Ending]) -> None:
        """Commit or roll back, and answer each request when that is safe; the first word on a transaction counts."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Committed records, as the hook ``dispatch`` has them, ``batch.replay`` during the recovery included."""

    def walk(self) -> Iterator[None]:
        """Ask the producers of transactions that are open for too long.

        One walk over the open transactions; it yields where others should get their turn, after bounded work. What
        goes wrong with one transaction keeps no other from being asked, and what was done is not forgotten, however
        the walk ends.
        """

    def persist(self) -> dict[str, bytes] | None:
        """As the hook ``persist``: what changed of the strategy's own files."""

    def floor(self) -> int:
        """The lowest offset of the log that an open transaction still needs; the log's end without one."""

    def tasks(self) -> list[BackgroundTask]:
        """The strategy's own tasks, as the hook ``register_tasks``; they run on slaves too."""

    @property
    def open_count(self) -> int:
        """How many transactions are open."""
