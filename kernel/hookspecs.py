"""All hooks of the plugin API, in the order in which a broker calls them first.

Each docstring names the kind of the hook. The broker calls a **once** hook once while it starts or stops, a **rare**
hook at an event, and a **turn** hook once for everything that one turn received. A turn hook is on
the hot path: it has one argument, and must neither block nor await. The form of a name is part of the contract:
``before_x`` may change or refuse, ``register_x`` and ``make_x`` return objects that the hot path then calls directly,
other hooks observe.

Order: the broker calls plugins in the order of the configuration. ``tryfirst`` is for checks, ``trylast`` for work that
must come last. A refusal is a return value; an exception is a bug. It stops the start in a ``once`` hook, and the
broker in ``before_append`` and ``dispatch``.

The write path::

    sockets -> frames -> authorize -> processor -> before_append -> commit log (offsets, one pwrite) -> appended
            -> gates (durable? replicated?) -> done -> responses
            -> committed prefix -> consume queues -> dispatch -> acked

``docs/reference/hooks.md`` has an entry with an example for each hook; tests compare it with this module and run the
examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import click

    from gantrymq.kernel.acks import AckedBatch, AckGate, FlushStrategy
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch, DispatchBatch, PullBatch
    from gantrymq.kernel.changes import DeadLettersBatch, GroupsBatch, OffsetsBatch, TopicsBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.delivery import DeliverBatch
    from gantrymq.kernel.filters import FilterCompiler
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import ConnectionsBatch
    from gantrymq.kernel.plugin_state import SavedState
    from gantrymq.kernel.processors import Processor, RequestBatch
    from gantrymq.kernel.stopped_store import StoppedStore
    from gantrymq.kernel.store.log.commitlog import CommitLog
    from gantrymq.kernel.tasks import BackgroundTask

PROJECT = "gantrymq"

GANTRYMQ_API = 1
"""The version of the plugin API: of these hooks, of :mod:`gantrymq.kernel.api` and of the batches. A plugin may declare
the version that it needs."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# ------------------------------------------------------------------------------------------------------------ load


@hookspec
def config_section() -> tuple[str, type[Any]]:  # type: ignore[empty-body]
    """Declare the plugin's section of the configuration: its name and its attrs class.

    When: once, before the broker exists. Returns ``("delay", DelayConfig)`` for ``[plugin.delay]``. Every field has a
    type and a default; validators check the range. The section is decoded strictly: an unknown key stops the start.
    Errors: stop the start. First user: flush.
    """


@hookspec
def add_commands(cli: click.Group) -> None:
    """Add sub-commands to ``gantrymq``.

    When: once, by the command line, without a broker. Import large modules inside the command, not at the top.
    Errors: the plugin's commands are missing, and a warning names the plugin. First user: spark.
    """


@hookspec
def configure(broker: Broker, config: Config) -> None:
    """Read the plugin's section (``config.section(DelayConfig)``), keep ``broker``, offer objects to other plugins.

    When: once, before the store is recovered. May: raise ``StartError`` to refuse the start; call
    ``broker.registry.provide(Protocol, object)``.
    Order: objects of other plugins are available from ``register_processors`` on. Errors: stop the start.
    First user: all.
    """


# ------------------------------------------------------------------------------------------------------- register


@hookspec(firstresult=True)
def make_flush_strategy(log: CommitLog, config: Config) -> FlushStrategy | None:
    """Return the strategy that makes the log durable (slot ``flush``).

    When: once, after the recovery of the log. Returns an object with ``appended(end)`` and ``async run()``. No sender
    waits for it, unless the plugin also registers a gate, such as :class:`gantrymq.kernel.acks.DurableGate`.
    Errors: stop the start. First user: flush.
    """


@hookspec
def register_ack_gates(broker: Broker) -> list[AckGate]:  # type: ignore[empty-body]
    """Return the gates that a record must pass before the broker acknowledges it.

    When: once, after ``make_flush_strategy``. A gate has a monotonic ``watermark`` (a log offset), and the code and
    remark for rows whose wait times out. Records that have not passed all gates are not readable either.
    Errors: stop the start. First user: flush.
    """


@hookspec
def register_processors(broker: Broker) -> dict[int, Processor]:  # type: ignore[empty-body]
    """Return the processor for each request code that the plugin serves.

    When: once. A processor is an object with ``handle(requests)`` for hot codes (one call for each turn), or a
    function of one request, plain or async. Two plugins with one code stop the start; the error names both. A plain
    function must be quick. If the work grows with the request's body, use a generator function, which yields where
    other clients may be served. If the response takes long or much memory, use an async function that rests with
    ``broker.pace()``, and register it as ``Heavy(function)``.
    Errors: stop the start. First user: produce.
    """


@hookspec
def register_filters(broker: Broker) -> dict[str, FilterCompiler]:  # type: ignore[empty-body]
    """Return compilers of subscription expressions by expression type (``TAG``).

    When: once. A compiler returns a filter of consume queue entries for an expression, and raises ``RemoteFault`` for
    an expression that it cannot read. Errors: stop the start; those of a compiler or a filter are the response to the
    pull. First user: filter.
    """


@hookspec
def register_tasks(broker: Broker) -> list[BackgroundTask]:  # type: ignore[empty-body]
    """Return named background tasks, which the broker runs and supervises.

    When: once. The tasks start before the sockets open; the broker cancels them after it has closed the sockets. They
    may await anything. Errors: stop the start; a task that raises stops the broker, unless the plugin's error policy
    says otherwise. First user: register.
    """


@hookspec
def advertise(broker: Broker) -> dict[str, Any]:  # type: ignore[empty-body]
    """Return a part of the body with which the broker registers at nameservers.

    When: rare, before each registration. The keys are names of fields of ``RegisterBrokerBody``; the broker merges the
    parts of all plugins. Errors: are logged, and the part is missing. First user: topics.
    """


@hookspec
def runtime_info(broker: Broker) -> dict[str, str] | None:
    """Return the plugin's part of the broker's status for administrators.

    When: rare, at a request such as that of ``mqadmin brokerStatus``. Returns texts by name. The broker merges the
    texts of all plugins; of equal names the later plugin's value counts. Errors: are logged, and the part is missing.
    First user: stats.
    """


@hookspec
def collect_metrics(broker: Broker, metrics: Metrics) -> None:
    """Report the plugin's metrics.

    When: rare, at each scrape, for example every 15 seconds. Call ``metrics.gauge``, ``counter`` and ``histogram`` with
    numbers that exist already, and ``metrics.later`` for work that reads the disk. Do not count on the path of a
    message for metrics alone. A name begins with ``rocketmq_`` if RocketMQ 5 has the metric, with the same meaning and
    labels, else with ``gantrymq_``. Errors: are logged, and the part is missing. First user: stats.
    """


# ------------------------------------------------------------------------------------------------------------ run


@hookspec
def load_state(broker: Broker, state: SavedState) -> bool | None:
    """Load the state that ``save_state`` returned in the last run.

    When: once, after the recovery of the store and before :func:`recovered`. ``state.data`` is None at the plugin's
    first start, and if the state is lost. Afterwards the broker calls ``dispatch`` exactly once for each message from
    the log offset ``state.offset`` on, also after a crash. ``state.missing`` is a range of the log that is deleted
    already. Return True to get the log from its first message on instead. May: raise ``StartError``. Errors: stop the
    start.
    First user: stamp.
    """


@hookspec
def recovered(broker: Broker) -> None:
    """The store is recovered: the ends of the log and of the queues are final until clients are served.

    When: once, before ``make_flush_strategy``; again after each restart in the same process (a promotion, a truncation
    of a slave's log). May: correct tables that were read in ``configure`` and are ahead of the log, because a crash or
    a truncation has shortened it. Errors: stop the start. First user: offsets.
    """


@hookspec
def started(broker: Broker) -> None:
    """The sockets listen. When: once. Errors: stop the start. First user: register."""


@hookspec
def stopping(broker: Broker) -> None:
    """The broker drains: release what is held, accept nothing new.

    When: once, in reverse order, while the sockets are still open. Errors: are logged, and the stop continues.
    First user: longpoll.
    """


@hookspec
def connections_changed(batch: ConnectionsBatch) -> None:
    """Connections have opened or closed, or their peers are identified.

    When: turn, after its requests. Batch: ``opened``, ``identified`` and ``closed`` connections; a closed one takes no
    more responses. ``identified``: access control or TLS has set ``connection.identity``.
    May: only observe. Errors: are logged; a plugin that failed ten times is not called again, unless it is essential.
    First user: clients.
    """


@hookspec
def authorize(batch: RequestBatch) -> None:
    """Check requests of all codes before their processors get them.

    When: turn, also for hot requests. Batch: ``requests`` of all connections, each with ``connection``, ``code``,
    ``topic``, ``ext`` (the header's fields, including a signature) and ``body``. ``batch.live`` omits rows that other
    plugins refused. May: call ``batch.refuse(row, code, remark)`` and ``connection.throttle``; set
    ``connection.identity``. Order: authenticate with ``tryfirst``, authorize without it.
    Errors: the broker calls the plugin again for each request alone, refuses those at which it raises, and logs
    ``authorization_failed``. First user: signed.
    """


@hookspec
def before_append(batch: AppendBatch) -> None:
    """Check, change or refuse messages before the broker appends them to the log.

    When: turn, after the processors have parsed the requests and before the log assigns offsets. Batch: columns by
    row. Check ``batch.traits`` first, and return if none of them concerns the plugin. A plugin gets batches of the
    source ``client`` only, unless its attribute ``sources`` names others (:class:`gantrymq.kernel.batch.Source`).
    May: change topic, queue, properties and body; call ``batch.refuse(row, code, remark)``, or ``batch.settle`` for a
    row that is stored already. Rows keep their numbers; ``batch.live`` omits refused and settled rows.
    Order: check with ``tryfirst``, change without it, finish with ``trylast``.
    Errors: stop the broker. First user: produce.
    """


@hookspec
def appended(batch: AppendBatch) -> None:
    """Messages are in the commit log; they are not committed yet.

    When: turn, once for each batch of which the log has stored at least one row. Batch: that of ``before_append``, of
    all sources; ``place_of(row)`` is (-1, -1) for a row that was refused or settled. Records that a slave copies come
    without a batch and do not call this hook.
    May: only observe. A crash may remove what was appended: build state in ``dispatch``.
    Errors: are logged; a plugin that failed ten times is not called again, unless it is essential. First user: ha.
    """


@hookspec
def acked(batch: AckedBatch) -> None:
    """Each row of a batch has its final status, and the responses were sent.

    When: turn, once for each batch of ``before_append``, of all sources, also if all rows were refused. Batch:
    ``messages`` (the batch of ``before_append`` with ``statuses``, ``remarks`` and ``place_of(row)``), and ``seconds``
    from when the broker took it until its responses were sent.
    May: only observe. Errors: are logged; a plugin that failed ten times is not called again, unless it is essential.
    First user: stats.
    """


@hookspec
def dispatch(batch: DispatchBatch) -> None:
    """Observe committed messages in log order, without gaps. Their queue entries are readable already.

    When: turn, after the responses and before the next request is received, and during recovery with
    ``batch.replay`` set. May: build derived state; read the messages; append others, unless ``batch.replay`` is set.
    The same log offset may come again after a restart, so the plugin must be idempotent by offset.
    Errors: stop the broker. First user: longpoll.
    """


@hookspec
def before_deliver(batch: DeliverBatch) -> None:
    """Change or withhold stored messages before a peer gets them: by a pull, a query, a check-back, direct consumption.

    When: turn, one call for each response, with all its messages. Batch: ``connection``, ``group``, ``purpose``,
    columns.
    May: change body and properties; call ``batch.withhold(row)``, after which a consumer continues behind the row.
    Order: as in ``before_append``. A plugin that encodes with ``trylast`` there decodes with ``tryfirst`` here.
    Errors: the broker calls the plugin again for each row alone. The response ends before the first row at which the
    plugin raises; if that is the first row of all, the response is an error (``delivery_failed``). So no consumer gets
    past that message. First user: encrypt.
    """


@hookspec(firstresult=True)
def hold_pulls(batch: PullBatch) -> bool | None:
    """Hold pulls that found no message and may wait.

    When: turn. Return True to hold the rows, and call ``batch.resume(rows)`` when messages arrive or the time is up.
    Return None to leave them to the next plugin; if no plugin holds them, the response is "not found".
    First user: longpoll.
    """


@hookspec
def topics_changed(batch: TopicsBatch) -> None:
    """Topics were created, changed or removed: by a message, by an administrator, on a slave by its master.

    When: rare, soon after the changes, in a task of the plugin ``topics``. Batch: the names of all topics that changed
    since the last call; ``TopicTable`` has their settings, which are written already. Topics that exist when the broker
    has started are not reported, and changes right before the stop may not be.
    May: only observe. Errors: are logged; a plugin that failed ten times is not called again, unless it is essential.
    First user: register.
    """


@hookspec
def groups_changed(batch: GroupsBatch) -> None:
    """Members or subscriptions of consumer groups changed, by a heartbeat or because a consumer left.

    When: rare, soon after the changes, in a task of the plugin ``clients``. Batch: the names of all groups that changed
    since the last call; ``ConsumerGroups`` has their members and subscriptions. Changes right before the stop may not
    be reported.
    May: only observe. Errors: are logged; a plugin that failed ten times is not called again, unless it is essential.
    First user: filter.
    """


@hookspec
def offsets_committed(batch: OffsetsBatch) -> None:
    """Consumer groups have committed offsets, or an administrator or the master of a slave has set them.

    When: turn, after the requests, in a task of the plugin ``offsets``. Batch: the newest offset of each queue of a
    group whose offset has changed since the last call. The offsets may not be on the disk yet. Those of the file are
    not reported at the start, and neither are offsets of deleted groups and topics.
    May: only observe. Errors: are logged; a plugin that failed ten times is not called again, unless it is essential.
    First user: group_health.
    """


@hookspec
def dead_lettered(batch: DeadLettersBatch) -> None:
    """Messages have become dead letters: groups failed too often to consume them.

    When: turn, on the master, when the dead letters have their final status. Batch: group, first topic and place of
    each. A broker that is killed at that moment does not report them again: a plugin that must see each dead letter
    finds them in ``dispatch``, by their topics ``%DLQ%group``.
    May: only observe. Errors: are logged; a plugin that failed ten times is not called again, unless it is essential.
    First user: group_health.
    """


# ---------------------------------------------------------------------------------------------------- housekeeping


@hookspec
def persist(broker: Broker) -> dict[str, bytes] | None:
    """Return the state files that changed since the last call, to have them written.

    When: rare, before the broker serves, every ``[broker] persist_interval`` and at the stop. Returns contents by path,
    or None. A worker thread writes each file atomically and keeps the previous one as ``.bak``. The broker repeats a
    failed write at the next interval. Errors: are logged. First user: offsets.
    """


@hookspec
def save_state(broker: Broker) -> bytes:  # type: ignore[empty-body]
    """Return the state that the plugin has built from ``dispatch``, as bytes.

    When: rare, with :func:`persist`, if messages were dispatched since the last call; never within a batch. The kernel
    stores the state and its log offset in one file, for :func:`load_state`. A plugin that has this hook must have
    ``load_state`` and ``dispatch`` too. Errors: are logged; the previous state remains valid. First user: stamp.
    """


@hookspec
def retention_floor(broker: Broker) -> int:  # type: ignore[empty-body]
    """Return the lowest log offset that the plugin still needs, or ``broker.log.end`` if it needs nothing.

    When: rare, before the broker deletes log files. It keeps all files from the lowest offset of all plugins on.
    Errors: are logged, and no file is deleted. First user: delay.
    """


@hookspec
def check_files(store: StoppedStore, config: Config) -> None:
    """Check the plugin's files in a store that no broker uses.

    When: rare, by ``gantrymq store check --deep``, without a broker: ``configure`` is not called before. May: read
    files, and report each problem with ``store.damaged`` or ``store.note``; change nothing. ``store.read_table`` checks
    a file that ``persist`` returns, with its ``.bak``. Errors: are reported as damage that names the plugin.
    First user: topics.
    """
