"""The broker as a plugin sees it: every name that a plugin may use of the object that its hooks get.

``docs/reference/plugin-api.md`` is made of this page, and mypy holds the shipped plugins to it. The broker itself has
more names, which may change at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.env import Env, Waker
    from gantrymq.kernel.filters import FilterCompiler
    from gantrymq.kernel.kept_rows import KeptRows
    from gantrymq.kernel.manager import PluginManager
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.network.time_slices import Pace
    from gantrymq.kernel.registry import Registry
    from gantrymq.kernel.store.log.commitlog import CommitLog
    from gantrymq.kernel.store.queues.table import ConsumeQueues
    from gantrymq.kernel.store.store import Store


class Broker(Protocol):
    """What hooks get as ``broker``; the object is the same one for the broker's whole life."""

    # ------------------------------------------------------------------------------------------------ who it is

    @property
    def config(self) -> Config:
        """The whole configuration; ``config.section(MyConfig)`` is a plugin's own section."""

    @property
    def name(self) -> str:
        """``broker.name``."""

    @property
    def cluster(self) -> str:
        """``broker.cluster``."""

    @property
    def broker_id(self) -> int:
        """``broker.id``: 0 is a master, anything above a slave."""

    @property
    def root(self) -> str:
        """The store's folder."""

    @property
    def address(self) -> str:
        """``host:port`` by which clients are told to find it."""

    @property
    def listening(self) -> str:
        """``host:port`` on which it listens."""

    # --------------------------------------------------------------------------------------------- other plugins

    @property
    def registry(self) -> Registry:
        """The objects that plugins offer each other by protocol: ``provide`` in ``configure``, ``get`` and ``find``
        from ``register_processors`` on."""

    @property
    def filters(self) -> dict[str, FilterCompiler]:
        """The compilers of subscription expressions by type, from ``register_processors`` on."""

    @property
    def manager(self) -> PluginManager:
        """The loaded plugins, for a plugin that calls hooks of others: ``manager.calls(hook_name, ...)``."""

    # ------------------------------------------------------------------------------------------------- the store

    @property
    def store(self) -> Store:
        """Log and queues together, from ``configure`` on; ``store.dispatched`` is up to where the log can be read."""

    @property
    def log(self) -> CommitLog:
        """The commit log, from ``configure`` on: ``end``, ``min_offset``, ``read_record(offset)``."""

    @property
    def queues(self) -> ConsumeQueues:
        """The consume queues, from ``recovered`` on: ``get(topic, queue_id)``."""

    def append(self, batch: AppendBatch) -> None:
        """Take messages through the whole write path; ``batch.done`` is called when every row has its final status.

        In the broker's own thread only, from a hook or a task; the broker wakes up for it by itself.
        """

    def append_encoded(self, position: int, data: bytes | memoryview) -> int:
        """Take another log's records into this one, past every hook; they wait for :meth:`commit_encoded`.

        Returns where the log ends now.
        """

    def commit_encoded(self) -> None:
        """Let what was taken so be flushed and dispatched; better once for much than for each piece of it."""

    @property
    def unacknowledged(self) -> int:
        """How many batches of messages wait for the gates."""

    @property
    def kept_rows(self) -> KeptRows:
        """What plugins refused of messages that the broker keeps already, by plugin."""

    def unacknowledged_for(self) -> float:
        """How long, in seconds, the oldest message has waited for the gates; 0 when none waits."""

    # ---------------------------------------------------------------------------------------------- time and turns

    @property
    def env(self) -> Env:
        """Clock, disk, random numbers. A plugin that asks for them here can be simulated."""

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""

    def wake(self) -> None:
        """Run the next turn soon, because a watermark moved; safe to call from any thread."""

    @property
    def waker(self) -> Waker:
        """What :meth:`wake` uses, for who is given that alone."""

    def give_way(self) -> None:
        """A task was given work that clients wait for: the broker lets it run before it looks for requests again."""

    def pace(self) -> Pace:
        """For a piece of work that takes long: ``await pace.rest()`` between its steps lets others run."""

    # ------------------------------------------------------------------------------------------------ start and end

    @property
    def before_listening(self) -> list[Callable[[], Awaitable[None]]]:
        """Async functions that ``configure`` adds here are awaited one after the other before the broker listens."""

    def restart(self) -> None:
        """Drain, end, and start again in the same process, with the settings as they are then."""

    def stop(self) -> None:
        """Drain and end."""
