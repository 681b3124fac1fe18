"""A store with transactions on a machine in memory, and its producers; nothing happens except by calls of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import attrs

from gantrymq.kernel import fast
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.kernel.env import Env
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.processors import BatchProcessor, Request
from gantrymq.kernel.registry import Registry
from gantrymq.kernel.store.log.record import Record, decode
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.plugins.interfaces import ConsumerOffsets, ProducerGroups, TopicTable
from gantrymq.plugins.offsets.table import Offsets
from gantrymq.plugins.produce.validate import traits_of
from gantrymq.plugins.transaction import TransactionPlugin
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.plugins.transaction.strategies import STRATEGIES, StrategyKind
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.command import decode as decode_command
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.transactions import (
    CheckTransactionHeader,
    EndTransactionHeader,
    ResumeCheckHeader,
    TransactionState,
)
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY

_FRAME_BYTES = 1024 * 1024
_OFFSETS_FILE = "store/config/consumerOffset.json"
GROUP = "orders"
"""The default producer group of half messages."""
OWN = "own"
"""The name in the configuration of a strategy that a test gives as an object."""
COMMIT = TransactionState.COMMIT
"""The state that commits, for :meth:`TransactedStore.end`."""
ROLLBACK = TransactionState.ROLLBACK
"""The state that rolls back."""


@attrs.frozen
class Half:
    """A half message as its producer knows it."""

    body: bytes
    offset: int
    queue_offset: int
    group: str = GROUP


@attrs.frozen
class CheckBackRequest:
    """A check-back, and the half message in it."""

    header: CheckTransactionHeader
    record: Record

    @property
    def half(self) -> Half:
        """The half message with the offsets for the answer."""
        return Half(self.record.body, self.header.commit_log_offset, self.header.tran_state_table_offset)


class Producer:
    """A producer's connection; records what the broker sends. With ``error`` set, each send raises it."""

    def __init__(self) -> None:
        self.id = id(self)
        self.address = "127.0.0.1:40000"
        self.client_id = "producer"
        self.version = 0
        self.closed = False
        self.error: Exception | None = None
        self.sent: list[Command] = []

    @property
    def connection(self) -> Producer:
        """The connection of the member, which is this object."""
        return self

    def is_congested(self) -> bool:
        """Never congested."""
        return False

    def send(self, command: Command) -> None:
        """Record a command from the broker."""
        if self.error is not None:
            raise self.error
        self.sent.append(command)

    def send_bytes(self, data: bytes) -> None:
        """Record commands from the broker, as frames."""
        for frame in cut_frames(data)[0]:
            self.send(decode_command(frame))

    def take_check_backs(self) -> list[CheckBackRequest]:
        """Return the check-backs since the last call, in their order."""
        asked = [command for command in self.sent if command.code == RequestCode.CHECK_TRANSACTION_STATE]
        self.sent = [command for command in self.sent if command not in asked]
        return [
            CheckBackRequest(read_header(CheckTransactionHeader, command.ext), decode(command.body)[0])
            for command in asked
        ]


def received(peer: Producer, code: int, ext: dict[str, str], flag: int = 0) -> list[Request]:
    """Return a request of ``peer``, as read from a socket."""
    connection: Any = peer
    requests, _ = fast.read_requests(connection, encode(Command(code, ext, flag=flag)), _FRAME_BYTES)
    return requests


def _plugin(own: StrategyKind | None) -> TransactionPlugin:
    if own is None:
        return TransactionPlugin()
    # a strategy with the half messages of a shipped one takes its place
    others = {name: kind for name, kind in STRATEGIES.items() if kind.count_open is not own.count_open}

    own_kind = own

    class Extended(TransactionPlugin):
        strategies: ClassVar[Mapping[str, StrategyKind]] = {OWN: own_kind, **others}

    return Extended()


def _ignore_waits(_batch: AppendBatch) -> None:
    pass


class Topics:
    """The part of the table of topics that the plugin uses."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def ensure(self, config: TopicConfig) -> TopicConfig:
        """Create the topic unless it exists."""
        self.names.append(config.topic_name)
        return config


class Producers:
    """The live producers by group."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Producer]] = {}

    def producers_of(self, group: str) -> list[Producer]:
        """Return the members of the group."""
        return self.groups.get(group, [])

    def join(self, group: str = GROUP) -> Producer:
        """Add a producer to the group."""
        producer = Producer()
        self.groups.setdefault(group, []).append(producer)
        return producer


@attrs.frozen
class _Config:
    """A configuration with the plugin's section."""

    transaction: TransactionConfig

    def section(self, _kind: type[Any]) -> TransactionConfig:
        """Return the section."""
        return self.transaction


class TransactedStore:
    """The plugin ``transaction`` with a store on ``env``, as in a broker; ``settings`` are those of the plugin.

    ``strategy``: the name of a shipped strategy, or the kind of another one. If a strategy writes files in a task, its
    methods ``flush`` (now) and ``settle`` (at a stop) must do so too. ``also``: a strategy that the plugin supports
    beside the shipped ones. ``broker_id``: above 0, the store of a slave, which gets its log by :meth:`copy_from`.

    Acknowledgments wait for the disk, as with group commit. ``refuse`` may refuse appended rows, as another plugin
    might.
    """

    def __init__(
        self,
        env: MemoryEnv | Any,
        strategy: str | StrategyKind = "half",
        *,
        config: StoreConfig = TINY,
        also: StrategyKind | None = None,
        broker_id: int = 0,
        **settings: Any,
    ) -> None:
        self.env: Env = env
        self.log_waits: list[AppendBatch] = []
        self.refuse: Callable[[AppendBatch], None] = lambda batch: None
        self.broker_id = broker_id
        self.producers = Producers()
        self.topics = Topics()
        self.registry = Registry()
        self.store = Store(env, "store", config)
        self.log = self.store.log
        self.plugin = _plugin(also if isinstance(strategy, str) else strategy)
        broker: Any = self
        given: Any = {"strategy": strategy if isinstance(strategy, str) else OWN, "file_rows": 64, **settings}
        section: Any = _Config(TransactionConfig(**given))
        self.store.open()
        try:
            self.offsets = Offsets(env, _OFFSETS_FILE, 1000, self._end_of_queue)
            for kind, provider in self._provided():
                self.registry.provide(kind, provider)
            self.plugin.configure(broker, section)
            self.report = self.store.recover(partial(self.plugin.dispatch))
            processors: Any = self.plugin.register_processors(broker)
            self.ends: BatchProcessor = processors[RequestCode.END_TRANSACTION]
            self.resumes: BatchProcessor = processors[RequestCode.RESUME_CHECK_HALF_MESSAGE]
        except BaseException:
            self.store.abandon()
            raise

    def _provided(self) -> Iterator[tuple[Any, object]]:
        yield TopicTable, self.topics
        yield ConsumerOffsets, self.offsets
        yield ProducerGroups, self.producers

    def _end_of_queue(self, topic: str, queue_id: int) -> int:
        queue = self.store.queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    # ------------------------------------------------------------------------------------------------- as the broker

    def append(self, batch: AppendBatch) -> None:
        """The write path, up to the gates."""
        self.plugin.before_append(batch)
        self.refuse(batch)
        if batch.refused < len(batch):
            self.store.append(batch)
        if batch.refused < len(batch) and batch.waited_for:
            self.log_waits.append(batch)
        elif batch.done is not None:
            batch.done(batch)

    def wake(self) -> None:
        """Nothing to wake."""

    def copy_from(self, master: TransactedStore, begin: int = 0) -> None:
        """Append what the log of ``master`` has beyond this one, as a slave does, and commit it. An empty log begins at
        the log offset ``begin``."""
        position, file_bytes = self.log.end or begin, self.store.config.commit_log_file_bytes
        while (missing := master.log.end - position) > 0:
            data = master.log.view(position, min(missing, file_bytes - position % file_bytes))
            taken = self.store.append_encoded(position, data)
            if not taken:
                raise AssertionError(f"the record at {position} is not taken")
            position += taken
        self.commit()

    def commit(self) -> None:
        """Flush and dispatch everything that is written, and answer the waiting requests."""
        for batch in self.store.dispatch(self.store.flush()):
            self.plugin.dispatch(batch)
        waiting, self.log_waits = self.log_waits, []
        for waited in waiting:
            if waited.done is not None:
                waited.done(waited)

    def scan(self) -> None:
        """Run one scan of check-backs, with a commit after each slice."""
        for _ in self.plugin.strategy.scan():
            self.commit()
        self.commit()

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        machine: Any = self.env
        machine.advance(int(seconds * 1000))

    def persist(self) -> None:
        """Write the state files as the broker does periodically; first the strategy's own files, as its task does."""
        self._finish_task("flush")
        self._write_tables()

    def _finish_task(self, name: str) -> None:
        function = getattr(self.plugin.strategy, name, None)
        if function is not None:
            function()

    def _write_tables(self) -> None:
        broker: Any = self
        for changes in (self.offsets.changes(), self.plugin.persist(broker)):
            for path, data in (changes or {}).items():
                self.env.replace(path, data)

    def close(self) -> None:
        """Stop cleanly."""
        self.commit()
        self._finish_task("settle")
        self._write_tables()
        self.store.close()

    # ------------------------------------------------------------------------------------------------- as a producer

    def half(self, body: bytes, *, group: str = GROUP, topic: str = "T", queue_id: int = 0, more: bytes = b"") -> Half:
        """Send a half message, which is appended and not committed. ``AssertionError`` if it is refused."""
        batch = self.halves([body], group=group, topic=topic, queue_id=queue_id, more=more)
        if batch.refused:
            raise AssertionError(f"{body[:20]!r} was refused: {batch.remarks}")
        return Half(body, batch.offsets[0], batch.queue_offsets[0], group)

    def halves(
        self, bodies: list[bytes], *, group: str = GROUP, topic: str = "T", queue_id: int = 0, more: bytes = b""
    ) -> AppendBatch:
        """Send half messages in one batch, as in one turn."""
        batch = fast.new_batch(_ignore_waits, Source.CLIENT)
        batch.traits = Trait.PREPARED
        for body in bodies:
            properties = b"TRAN_MSG\x01true\x02PGROUP\x01%s\x02UNIQ_KEY\x01%s\x02TAGS\x01a" % (
                group.encode(),
                body[:20],
            )
            batch.traits |= traits_of(more)
            batch.add(
                topic,
                queue_id,
                body,
                properties + more,
                flag=7,
                sys_flag=TransactionState.PREPARED,
                born_timestamp=self.env.wall_ms(),
                born_host=b"\x0a\1\2\3\0\0\0\x09",
            )
        self.append(batch)
        return batch

    def end(
        self,
        half: Half,
        state: int,
        *,
        group: str | None = None,
        oneway: bool = False,
        checked: bool = False,
        offset: int | None = None,
        queue_offset: int | None = None,
    ) -> Producer:
        """Send END_TRANSACTION; the returned connection gets the response."""
        header = EndTransactionHeader(
            producer_group=half.group if group is None else group,
            tran_state_table_offset=half.queue_offset if queue_offset is None else queue_offset,
            commit_log_offset=half.offset if offset is None else offset,
            commit_or_rollback=state,
            from_transaction_check=checked,
            msg_id="id",
        )
        peer = Producer()
        self.ends.handle(received(peer, RequestCode.END_TRANSACTION, header.to_ext(), ONEWAY_FLAG if oneway else 0))
        return peer

    def end_now(self, half: Half, state: int, **others: Any) -> int | None:
        """:meth:`end`, then commit: the code of the response, None without one."""
        peer = self.end(half, state, **others)
        self.commit()
        return peer.sent[0].code if peer.sent else None

    def resume(self, message_id: str | None) -> Producer:
        """Send RESUME_CHECK_HALF_MESSAGE as an operator; the returned connection gets the response."""
        peer = Producer()
        header = ResumeCheckHeader(msg_id=message_id)
        self.resumes.handle(received(peer, RequestCode.RESUME_CHECK_HALF_MESSAGE, header.to_ext()))
        return peer

    # ------------------------------------------------------------------------------------------------- as a consumer

    def messages(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Return the messages that consumers of a queue get, in order."""
        queue = self.store.queues.get(topic, queue_id)
        if queue is None:
            return []
        entries = queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)
        return [self.store.log.read_record(offset) for offset, _, _ in ENTRY.iter_unpack(entries)]

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of the messages of a queue."""
        return [record.body for record in self.messages(topic, queue_id)]


# ----------------------------------------------------------------------------------------------------------- restarts


def in_order(world: TransactedStore, strategy: str | StrategyKind) -> TransactedStore:
    """Stop and start the broker."""
    world.close()
    return TransactedStore(world.env, strategy)


def killed(world: TransactedStore, strategy: str | StrategyKind) -> TransactedStore:
    """Kill the process and start it again."""
    assert isinstance(world.env, MemoryEnv)
    return TransactedStore(world.env.kill(), strategy)


def cut_off(world: TransactedStore, strategy: str | StrategyKind) -> TransactedStore:
    """Cut the power, which loses unsynced data, and start again."""
    assert isinstance(world.env, MemoryEnv)
    return TransactedStore(world.env.power_cut(), strategy)


def written_first(world: TransactedStore, strategy: str | StrategyKind) -> TransactedStore:
    """Write the state files, twice so that all of them are new, then kill the process and start it again."""
    world.persist()
    world.persist()
    return killed(world, strategy)


Restart = Callable[[TransactedStore, str | StrategyKind], TransactedStore]
"""Ends a store and opens it again with this strategy."""
RESTARTS: Final[tuple[Restart, ...]] = (in_order, killed, cut_off, written_first)
"""All kinds of restarts."""
