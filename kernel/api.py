"""The protocols of the broker that hooks get, and of its log and queues: all names that a plugin may use.

``docs/reference/plugin-api.md`` is generated from this module, and mypy checks that the shipped plugins use no other
names. The broker itself has more names, which may change at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket

    from gantrymq.kernel.batch import AppendBatch, DispatchBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.env import Env, Waker
    from gantrymq.kernel.fast.durations import Durations
    from gantrymq.kernel.filters import FilterCompiler
    from gantrymq.kernel.manager import PluginManager
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.network.time_slices import Pace
    from gantrymq.kernel.refusal_counts import RefusalCounts
    from gantrymq.kernel.registry import Registry
    from gantrymq.kernel.store.log.commitlog import CommitLog
    from gantrymq.kernel.store.log.record import Record
    from gantrymq.kernel.store.queues.table import ConsumeQueues
    from gantrymq.kernel.store.store import Store


class Broker(Protocol):
    """The argument ``broker`` of hooks. All hooks of a broker get the same object."""

    # ------------------------------------------------------------------------------------------------- identity

    @property
    def config(self) -> Config:
        """The whole configuration; ``config.section(MyConfig)`` returns a plugin's own section."""

    @property
    def name(self) -> str:
        """The setting ``broker.name``."""

    @property
    def cluster(self) -> str:
        """The setting ``broker.cluster``."""

    @property
    def broker_id(self) -> int:
        """The setting ``broker.id``: 0 for a master, a higher number for a slave."""

    @property
    def root(self) -> str:
        """The store's folder."""

    @property
    def address(self) -> str:
        """The advertised address, ``host:port``: nameservers return it to clients."""

    @property
    def listening(self) -> str:
        """The address at which the broker listens, ``host:port``."""

    # --------------------------------------------------------------------------------------------- other plugins

    @property
    def registry(self) -> Registry:
        """The objects that plugins offer each other, by protocol: call ``provide`` in ``configure``, ``get`` and
        ``find`` from ``register_processors`` on."""

    @property
    def request_codes(self) -> list[int]:
        """The request codes that are served, in order; from ``register_tasks`` on."""

    @property
    def filters(self) -> dict[str, FilterCompiler]:
        """The compilers of subscription expressions by type, from ``register_processors`` on."""

    @property
    def manager(self) -> PluginManager:
        """The loaded plugins, for a plugin that calls hooks of others: ``manager.calls(hook_name, ...)``."""

    # ------------------------------------------------------------------------------------------------- the store

    @property
    def store(self) -> Store:
        """Log and queues, from ``configure`` on; the log is readable up to the offset ``store.dispatched``."""

    @property
    def log(self) -> CommitLog:
        """The commit log, from ``configure`` on: see :class:`LogReader`."""

    @property
    def queues(self) -> ConsumeQueues:
        """The consume queues, from ``recovered`` on: see :class:`QueuesReader`."""

    def append(self, batch: AppendBatch) -> None:
        """Take messages through the write path; the broker calls ``batch.done`` when every row has its final status.

        Call it only in the broker's thread: in a task, or in a hook from ``started`` on. Before that, and in
        ``dispatch`` while ``batch.replay`` is set, it raises ``RuntimeError``. It wakes the broker.
        """

    def append_encoded(self, position: int, data: bytes | memoryview) -> int:
        """Append records of another log without calling hooks; :meth:`commit_encoded` has them flushed and dispatched.

        Returns the end of the log.
        """

    def commit_encoded(self) -> None:
        """Flush and dispatch what :meth:`append_encoded` appended; cheaper once for many calls than after each."""

    @property
    def unacknowledged(self) -> int:
        """The number of message batches that wait for the gates."""

    @property
    def refusal_counts(self) -> RefusalCounts:
        """How many of the broker's own messages (due delayed messages, commits, retries) each plugin has refused."""

    def unacknowledged_for(self) -> float:
        """Return how long, in seconds, the oldest message has waited for the gates; 0 when none waits."""

    # ---------------------------------------------------------------------------------------------- time and turns

    @property
    def env(self) -> Env:
        """Clock, disk and random numbers. A plugin that uses only these can run in a simulation."""

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""

    def serve_connection(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        """Serve a connection that a plugin has accepted at its own port, like a connection to the broker's port.

        ``sock`` must not block; ``peer`` is the address of the peer, which limits and access control use.
        """

    def wake(self) -> None:
        """Run the next turn soon, because a watermark moved; safe to call from any thread."""

    @property
    def waker(self) -> Waker:
        """The object behind :meth:`wake`, to pass to code that needs nothing else of the broker."""

    def yield_to_tasks(self) -> None:
        """Let other tasks run before the broker receives requests again, because clients wait for their work."""

    @property
    def serves_one_client(self) -> bool:
        """Whether this turn and the last ones had a single request each, always of the same connection.

        Then a hook may block for a moment without delaying other clients.
        """

    def measure_turns(self) -> Durations:
        """Measure each turn with requests from now on: from their receipt until the responses of the turn are sent."""

    def pace(self) -> Pace:
        """Return a pace for long work: ``await pace.checkpoint()`` between its steps lets other tasks run."""

    # ------------------------------------------------------------------------------------------------ start and end

    @property
    def before_listening(self) -> list[Callable[[], Awaitable[None]]]:
        """Async functions that plugins add in ``configure``; the broker awaits them in order before it listens."""

    def restart(self) -> None:
        """Drain, end, and start again in the same process, with the settings valid then; safe to call from any
        thread."""

    def stop(self) -> None:
        """Drain and end; safe to call from any thread."""


class LogReader(Protocol):
    """The messages of all topics in the order in which the broker stored them.

    Offsets are bytes. Messages below ``broker.store.dispatched`` are committed: consumers can read them.
    """

    @property
    def min_offset(self) -> int:
        """The offset of the first message that is not deleted."""

    @property
    def end(self) -> int:
        """The offset behind the last message, which may not be committed yet."""

    def read_record(self, offset: int) -> Record:
        """Return the message at ``offset``, checked. ``OutOfLog`` if it is deleted or not stored yet, ``CorruptRange``
        if it is damaged, ``BadRecord`` if no message begins there."""

    def scan(self, start: int, stop: int, *, rows: int = ...) -> Iterator[DispatchBatch]:
        """Yield the messages from ``start`` (where one begins) to ``stop``, in batches of at most ``rows``.

        A batch begins where the previous one ended, unless messages were deleted meanwhile; damaged ranges that are
        known are skipped. ``CorruptRange`` for other damage. ``batch.end`` is where to continue later.
        """


class QueuesReader(Protocol):
    """The queues that have or had a message."""

    def __iter__(self) -> Iterator[QueueReader]:
        """Iterate over the queues."""

    def get(self, topic: str, queue_id: int) -> QueueReader | None:
        """Return a queue; None if it never had a message."""

    def deleted(self, topic: str) -> bool:
        """Return whether the topic was deleted once, as long as the log has messages of it, from before or since.

        True even if the topic was created again since.
        """


class QueueReader(Protocol):
    """A queue of :class:`QueuesReader`. :func:`gantrymq.kernel.store.reading.read_messages` reads its messages."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def queue_id(self) -> int:
        """The number of the queue."""

    @property
    def min_offset(self) -> int:
        """The queue offset of the first message that is not deleted."""

    @property
    def max_offset(self) -> int:
        """The queue offset behind the last committed message."""

    def entries(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` entries of 20 bytes from the queue offset on: log offset, size, tag code
        ([format](../format/consume-queue.md))."""
