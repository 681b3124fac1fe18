"""The hook page: every place where a plugin takes part, in the order of a broker's life.

Kinds of hook, written at each: **once** (during start), **rare** (an event), **sweep** (hot: one call for all that one
sweep of the sockets brought, one argument, never blocking and never awaiting). The tense of a name is its contract:
``before_x`` may change or refuse, ``register_x`` and ``make_x`` hand over objects that the hot path then calls
directly, a past participle or a plain event only observes.

Order: plugins are called in the order of the configuration; ``tryfirst`` is the band for checks, ``trylast`` the band
for finishing. An exception in a ``once`` hook stops the start, in ``before_append`` and ``dispatch`` it stops the
broker: a refusal is a value, an exception is a bug.

The write path, whole::

    sockets -> frames -> authorize -> processor -> before_append -> commit log (offsets, one pwrite)
            -> gates (durable? replicated?) -> done -> replies
            -> committed prefix -> consume queues -> dispatch

``docs/reference/hooks.md`` has a page with an example for each; a test holds the two in step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import click

    from gantrymq.kernel.acks import AckGate, FlushStrategy
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch, DispatchBatch, PullBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.delivery import DeliverBatch
    from gantrymq.kernel.filters import FilterCompiler
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import ConnectionsBatch
    from gantrymq.kernel.plugin_state import SavedState
    from gantrymq.kernel.processors import Processor, RequestBatch
    from gantrymq.kernel.store.log.commitlog import CommitLog
    from gantrymq.kernel.tasks import BackgroundTask

PROJECT = "gantrymq"

GANTRYMQ_API = 1
"""The version of this page, of :mod:`gantrymq.kernel.api` and of the batches. A plugin may say for which one it is."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# ----------------------------------------------------------------------------------------------------------- load


@hookspec
def config_section() -> tuple[str, type[Any]]:  # type: ignore[empty-body]
    """The plugin's own section of the configuration: its name and its attrs class.

    When: once, before anything is built. Returns ``("delay", DelayConfig)`` for ``[plugin.delay]``; every field has a
    default and a type, validators give the range.
    May: nothing else; the section is decoded strictly, an unknown key refuses the start.
    Errors: stop the start. First user: flush.
    """


@hookspec
def add_commands(cli: click.Group) -> None:
    """Add sub-commands to ``gantrymq``.

    When: once, by the command line, without a broker. May: import what is heavy inside the command only.
    Errors: the plugin's commands are missing and a warning names it. First user: spark.
    """


@hookspec
def configure(broker: Broker, config: Config) -> None:
    """Take the own section (``config.section(DelayConfig)``), keep ``broker``, offer objects to other plugins.

    When: once, store not yet open. May: raise ``StartError`` to refuse; ``broker.registry.provide(Protocol, object)``.
    Order: objects of others are there from ``register_processors`` on. Errors: stop the start. First user: all.
    """


# ------------------------------------------------------------------------------------------------------- register


@hookspec(firstresult=True)
def make_flush_strategy(log: CommitLog, config: Config) -> FlushStrategy | None:
    """The strategy that makes the log durable (slot ``flush``).

    When: once, the log being open and recovered. Returns an object with ``appended(end)`` and ``async run()``.
    Errors: stop the start. First user: flush.
    """


@hookspec
def register_ack_gates(broker: Broker) -> list[AckGate]:  # type: ignore[empty-body]
    """Gates that a reply must pass before it leaves.

    When: once, after ``make_flush_strategy``. A gate has a monotonic ``watermark`` (a log offset) and says what a late
    row is answered. What no gate has passed is not readable either. Errors: stop the start. First user: flush.
    """


@hookspec
def register_processors(broker: Broker) -> dict[int, Processor]:  # type: ignore[empty-body]
    """Who answers which request code.

    When: once. Returns request code to processor: an object with ``handle(requests)`` for hot codes (one call a sweep),
    or a function of one request, plain or async. A code taken twice stops the start and names both plugins. A plain
    function must be quick; one whose work grows with the request's body is a generator function, which yields where it
    may rest; one whose answer takes long or much memory is async, rests by ``broker.pace()``, and is registered as
    ``Heavy(function)``.
    First user: produce.
    """


@hookspec
def register_filters(broker: Broker) -> dict[str, FilterCompiler]:  # type: ignore[empty-body]
    """Compilers of subscription expressions by expression type (``TAG``).

    When: once. A compiler turns an expression into a filter of consume queue entries; it raises ``RemoteFault`` for an
    expression that it cannot read. First user: filter.
    """


@hookspec
def register_tasks(broker: Broker) -> list[BackgroundTask]:  # type: ignore[empty-body]
    """Long-running tasks, named, that the broker's nursery supervises.

    When: once; the tasks start before the sockets open and are cancelled after the sockets have closed. A task that
    raises stops the broker. May: await whatever it likes. First user: register.
    """


@hookspec
def advertise(broker: Broker) -> dict[str, Any]:  # type: ignore[empty-body]
    """What the nameserver registration says of this broker.

    When: rare, before each registration. Returns a part of the registration body by the names that
    ``RegisterBrokerBody`` gives its fields; parts are merged. Errors: are logged, the part is missing.
    First user: topics.
    """


@hookspec
def runtime_info(broker: Broker) -> dict[str, str] | None:
    """What a plugin tells administrators of how the broker does.

    When: rare, when ``mqadmin brokerStatus`` or its like asks. Returns texts by name; all plugins' are merged, the
    later plugin's value of equal names stays. Errors: are logged, the part is missing. First user: stats.
    """


@hookspec
def collect_metrics(broker: Broker, metrics: Metrics) -> None:
    """Tell the plugin's numbers to whoever watches the broker.

    When: rare, each time somebody asks (every 15 seconds, say). May: call ``metrics.gauge``, ``counter``, ``histogram``
    with what is counted anyway, and put off to ``metrics.later`` what needs the disk. Nothing is counted for this alone
    on the way of a message. Names begin with ``rocketmq_`` where RocketMQ 5 has them, with that meaning and those
    labels, else with ``gantrymq_``. Errors: are logged, the part is missing. First user: stats.
    """


# ------------------------------------------------------------------------------------------------------------ run


@hookspec
def load_state(broker: Broker, state: SavedState) -> bool | None:
    """The state that ``save_state`` returned in an earlier life of the broker.

    When: once, the store being recovered, before :func:`recovered`. ``state.data`` is None at the plugin's first start,
    and when it is lost. Then ``dispatch`` is called for each message from ``state.offset`` on, once, whatever ended the
    broker. ``state.missing``: a range of the log that is deleted already. Returns True to see the log from its first
    message on instead. May: raise ``StartError``. Errors: stop the start. First user: stamp.
    """


@hookspec
def recovered(broker: Broker) -> None:
    """The store is recovered: the log's end and the queues' ends are what they will be when clients come.

    When: once, before ``make_flush_strategy``; again after each restart in the same process (a promotion, a cut of a
    slave's log). May: bring tables that were read in ``configure`` in line with the log, which a crash or a cut may
    have set back. Errors: stop the start. First user: offsets.
    """


@hookspec
def started(broker: Broker) -> None:
    """The sockets listen. When: once. Errors: stop the start. First user: register."""


@hookspec
def stopping(broker: Broker) -> None:
    """The broker drains: give back what is held, take nothing new.

    When: once, sockets still open, in reverse order. Errors: are logged, the stop goes on. First user: longpoll.
    """


@hookspec
def connections_changed(batch: ConnectionsBatch) -> None:
    """Connections that opened and closed.

    When: sweep, after its requests. Batch: ``opened`` and ``closed`` connections; a closed one takes no more answers.
    May: only observe. Errors: are logged; who failed ten times is not called again, unless it is essential.
    First user: clients.
    """


@hookspec
def authorize(batch: RequestBatch) -> None:
    """Requests of any code, before a processor sees one of them.

    When: sweep, also for hot requests. Batch: ``requests`` of all connections, each with ``connection``, ``code``,
    ``topic``, ``ext`` (the header's fields, a signature among them) and ``body``. May: ``batch.refuse(row, code,
    remark)``; set ``connection.identity``. Order: tryfirst asks who it is, the middle what they may do. Rows that
    others refused are left out of ``batch.live``.
    Errors: the plugin is asked again about each request alone; one at which it raises is refused, and logged
    (``authorization_failed``). First user: signed.
    """


@hookspec
def before_append(batch: AppendBatch) -> None:
    """Messages on their way into the log.

    When: sweep, after the processors parsed, before offsets exist. Batch: columns by row; look at ``batch.traits``
    first and return when nothing concerns you. Only batches whose ``source`` is ``client``, unless the plugin's
    attribute ``sources`` names others (:class:`gantrymq.kernel.batch.Source`).
    May: rewrite topic, queue, properties, body; ``batch.refuse(row, code, remark)``. Rows keep their numbers; others
    skip refused rows by ``batch.live``. Order: tryfirst checks, the middle rewrites, trylast finishes.
    Errors: stop the broker. First user: produce.
    """


@hookspec
def dispatch(batch: DispatchBatch) -> None:
    """Committed messages, strictly in log order, without a gap; their queue entries can be read already.

    When: sweep, and during recovery with ``batch.replay`` set. May: build derived state; must be idempotent by offset.
    Errors: stop the broker. First user: longpoll.
    """


@hookspec
def before_deliver(batch: DeliverBatch) -> None:
    """Stored messages on their way to a peer: pulls, queries, questions about transactions, direct consumption.

    When: sweep, one call an answer with all its messages. Batch: ``connection``, ``group``, ``purpose``, columns.
    May: rewrite body and properties; ``batch.withhold(row)``: a consumer goes on behind the row. Order: as
    ``before_append``, so who encodes last there decodes first here: ``tryfirst``.
    Errors: the plugin is asked again about each row alone; one at which it raises ends the answer before it, and as the
    first one is an error (``delivery_failed``): no consumer goes past it. First user: encrypt.
    """


@hookspec(firstresult=True)
def hold_pulls(batch: PullBatch) -> bool | None:
    """Pulls that found nothing and may wait.

    When: sweep. Returns True to own the rows: the holder calls ``batch.resume(rows)`` later, when something arrived or
    the time is up. None: the next plugin is asked, and at last they are answered "not found". First user: longpoll.
    """


# ----------------------------------------------------------------------------------------------------- keep house


@hookspec
def persist(broker: Broker) -> dict[str, bytes] | None:
    """Hand over the tables that changed since the last call.

    When: rare, every ``[broker] persist_interval`` and at the stop. Returns path to content, or None. A worker thread
    writes each file atomically and keeps the one before as ``.bak``; what cannot be written is tried again with the
    next round. Errors: are logged. First user: offsets.
    """


@hookspec
def save_state(broker: Broker) -> bytes:  # type: ignore[empty-body]
    """What the plugin has built from ``dispatch``, as one value.

    When: rare, as :func:`persist`, if messages were dispatched since; never amid a batch. The kernel stores it with its
    place in the log, in one file, for :func:`load_state`. A plugin that has this hook has that one and ``dispatch``.
    Errors: are logged, the state before stays. First user: stamp.
    """


@hookspec
def retention_floor(broker: Broker) -> int:  # type: ignore[empty-body]
    """The lowest offset of the log that the plugin still needs.

    When: rare, before files of the log are deleted; nothing at or behind the lowest answer is. Returns a log offset,
    ``broker.log.end`` when it needs nothing. Errors: are logged, and nothing is deleted. First user: delay.
    """
