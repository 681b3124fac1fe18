"""The composition root: constructs store, plugins and sockets, and opens and closes them in order.

The nesting of :meth:`Broker.run` gives the order of a shutdown: first the tasks of the sockets end, then the background
tasks; then the broker writes the plugins' state files and closes the store.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gantrymq.kernel.acks import Acks, FlushStrategy
from gantrymq.kernel.authorization import authorized
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, finish_settled
from gantrymq.kernel.config.declarations import PluginsSection
from gantrymq.kernel.config.sections import Config
from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.env import Env, Waker
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError
from gantrymq.kernel.fast import Readers
from gantrymq.kernel.filters import FilterCompiler
from gantrymq.kernel.guarded_filters import FilterGuards
from gantrymq.kernel.housekeeping import maintain_disk, repair_queues, watch_deadlines
from gantrymq.kernel.manager import PluginInfo, PluginManager
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.network.requests import RequestTable
from gantrymq.kernel.network.sweep import Sweep
from gantrymq.kernel.network.time_slices import SLICES, Pace
from gantrymq.kernel.observers import Observers, observe
from gantrymq.kernel.plugin_activity import PluginActivity
from gantrymq.kernel.plugin_faults import PluginFaults
from gantrymq.kernel.plugin_state import PluginStates
from gantrymq.kernel.refusal_counts import RefusalCounts
from gantrymq.kernel.registry import Registry
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.queues.table import ConsumeQueues
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.kernel.watchdog import Watchdog
from gantrymq.remoting.address import encode_host, format_address, parse_address
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.peers import is_loopback

if TYPE_CHECKING:
    from gantrymq.kernel import api
    from gantrymq.kernel.fast.durations import Durations

    def _satisfies_plugin_api(broker: Broker) -> api.Broker:
        return broker


log = structlog.get_logger("gantrymq.broker")

ACCESS_CONTROL_SLOT = "access_control"
"""The slot of plugins that control access. Without one, an address other than loopback needs ``broker.insecure``."""
DRAIN_S = 5.0
"""How long a stopping broker waits for the last acknowledgments, in seconds."""
LATE_TASKS_S = 3.0
"""After this time from their cancellation, in seconds, the broker logs which background tasks still run."""


class Broker:
    """One broker: ``await broker.run()`` serves until ``broker.stop()`` is called.

    Plugins may use only the names of :class:`gantrymq.kernel.api.Broker`.
    """

    store: Store
    address: str
    listening: str

    def __init__(self, config: Config, manager: PluginManager, env: Env) -> None:
        self.config = config
        self.manager = manager
        manager.activity = PluginActivity(env.monotonic)
        self.env = env
        self.root = config.broker.data
        self.name = config.broker.name
        self.cluster = config.broker.cluster
        self.broker_id = config.broker.id
        self.registry = Registry()
        if manager.implementations("before_deliver"):
            self.registry.provide(Deliveries, Deliveries(manager, env.monotonic))
        self.filters: dict[str, FilterCompiler] = {}
        observe_connections = Observers(manager, "connections_changed")
        self.sweep = Sweep(env, config.limits, self._handle, observe_connections, self.progress)
        section = config.section(PluginsSection)
        self._faults = PluginFaults(manager, section.skip_errors, section.disable_on_error)
        self.refusal_counts = RefusalCounts(env.monotonic)
        """Counts, by plugin, refused messages of which the broker has the only copy."""
        self._before_append = self._faults.before_append(self.refusal_counts)
        self._appended = observe(manager, "appended")
        self._acked = observe(manager, "acked")
        self._states = PluginStates(manager, env, self.root, self._faults)
        self._on_dispatch = self._states.follow(self._faults.on_batches("dispatch"))
        self._on_recovery = self._faults.on_batches("dispatch", self._states.names)
        self.restarting = False
        """Whether the caller of :meth:`run` must start the broker again, with the current settings."""
        self.before_listening: list[Callable[[], Awaitable[None]]] = []
        """Plugins add functions in ``configure``; the broker awaits them in order before it listens."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a task has failed or :meth:`run` is cancelled, before the other tasks have ended."""
        self._takes_messages = False
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = 0
        self._drained = trio.Event()
        self._tasks_ended = trio.Event()
        self._draining = False
        self._drained_in_order = False
        self._unwritten: dict[str, bytes] = {}
        self._outages = Outages(log, env.monotonic)

    @property
    def log(self) -> CommitLog:
        """The commit log."""
        return self.store.log

    @property
    def queues(self) -> ConsumeQueues:
        """The consume queues."""
        return self.store.queues

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return self.sweep.connections

    def serve_connection(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        """Serve a connection that a plugin accepted, like a connection to the broker's port."""
        self.sweep.serve_connection(sock, peer)

    @property
    def request_codes(self) -> list[int]:
        """The request codes that are served, in order; from ``register_tasks`` on."""
        return self.requests.codes

    # ------------------------------------------------------------------------------------------------- write path

    def append(self, batch: AppendBatch) -> None:
        """Take ``batch`` through the write path; ``batch.done`` is called when every row has its final status."""
        if not self._takes_messages:
            raise RuntimeError(
                "the broker takes no messages yet: append them in a background task, or from the hook 'started' on; in"
                " 'dispatch' not while batch.replay is set"
            )
        before_append = self._before_append[batch.source]
        taken_at = 0.0 if self._acked is None else self.env.monotonic()
        if before_append is not None:
            batch.start = batch.end = self.store.log.end
            before_append(batch)
        if batch.refused < len(batch):
            self.store.append(batch)
            if batch.refused:
                self.refusal_counts.appended(batch)
            if batch.refused < len(batch):
                self._strategy.appended(batch.end)
                if self._appended is not None:
                    self._appended(batch)
        if batch.settled:
            finish_settled(batch)
        self._acks.add(batch, self.env.monotonic(), taken_at)
        if not self.sweep.is_handling:  # otherwise this turn continues with it
            self.wake()

    def append_encoded(self, position: int, data: bytes | memoryview) -> int:
        """Append records of another log without calling hooks: see :meth:`CommitLog.append_encoded`.

        They are flushed and dispatched after :meth:`commit_encoded`.
        """
        return self.store.append_encoded(position, data)

    def commit_encoded(self) -> None:
        """Flush and dispatch what :meth:`append_encoded` appended; cheaper once for many calls than after each."""
        self._strategy.appended(self.log.end)
        self.sweep.yield_to_tasks()
        if self._acks.committed(self.log.end) > self.store.dispatched:
            self.wake()  # otherwise a gate does, when its watermark moves

    @property
    def unacknowledged(self) -> int:
        """How many batches of messages wait for the gates."""
        return len(self._acks)

    def unacknowledged_for(self) -> float:
        """Return how long, in seconds, the oldest message has waited for the gates; 0 when none waits."""
        oldest = self._acks.oldest()
        return 0.0 if oldest is None else self.env.monotonic() - oldest

    def progress(self) -> None:
        """Answer what every gate has passed, and dispatch it before the next request is received: for each client, an
        acknowledged message is readable. The clients go on while it is dispatched."""
        if self._acks.expires_now:
            self._acks.expire(self.env.monotonic())
        committed = self._acks.committed(self.log.end)
        self._acks.release(committed)
        self.sweep.send_responses()
        sent_at = self.env.monotonic()
        if committed > self.store.dispatched:
            for batch in self.store.dispatch(committed):
                self._dispatch(batch)
        self._acks.report(sent_at)
        if self._draining and not len(self._acks):
            self._drained.set()

    @property
    def waker(self) -> Waker:
        """The object behind :meth:`wake`, to pass to other threads."""
        return self.sweep.waker

    def wake(self) -> None:
        """Run the next turn soon (a watermark moved); safe to call from any thread."""
        self.sweep.wake()

    def yield_to_tasks(self) -> None:
        """Let other tasks run before the next requests are received, because clients wait for their work."""
        self.sweep.yield_to_tasks()

    @property
    def serves_one_client(self) -> bool:
        """Whether a request is handled now, and this and the last turns had one each, all of one connection."""
        return self.sweep.serves_one_client

    def measure_turns(self) -> Durations:
        """Measure each turn with requests from now on: from their receipt until the responses of the turn are sent."""
        return self.sweep.measure_turns()

    def pace(self) -> Pace:
        """Return a pace for long work: its checkpoints let other tasks run, several times in ``limits.turn_budget``."""
        return Pace(self.env.monotonic, self.config.limits.turn_budget / SLICES, self.sweep.yield_to_tasks)

    def stop(self) -> None:
        """Request that the broker drains and ends; safe to call from any thread."""
        if self._token is None or self._thread == threading.get_ident():
            self._stop.set()
        else:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)

    def restart(self) -> None:
        """Request that the broker drains and ends, and that the caller of :meth:`run` starts it again; safe to call
        from any thread."""
        self.restarting = True
        self.stop()

    # ----------------------------------------------------------------------------------------------- start and stop

    async def run(self, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED) -> None:
        """Start, report when the sockets listen, serve until :meth:`stop` or cancellation, close cleanly.

        Raises :class:`StartError` if the user can correct the cause, ``LogPoisoned`` if the disk failed.
        """
        recovered = False
        self._token, self._thread = trio.lowlevel.current_trio_token(), threading.get_ident()
        try:
            self._bind()
            self.store = Store(self.env, self.root, self._store_config())
            self.store.open()
            try:
                if not self.broker_id:  # a slave's log begins where its master's does
                    self.store.check_room()
                self.manager.call_each("configure", broker=self, config=self.config)
                self.store.recover(self._dispatch_again)
                await self._states.load(self, self.store)
                self.manager.call_each("recovered", broker=self)
                recovered = True
                await self._serve(task_status)
            except BaseException as error:
                fatal = _fatal(error)
                if fatal is not None or not recovered:
                    # Nothing more may be written: the next start recovers the log as after a crash.
                    self.store.abandon()
                    if fatal is None:
                        raise
                    raise fatal from error
                # Cancelled, or a failure that does not concern the log: close as at any stop.
                self._close()
                raise
            self._close()
        finally:
            self.sweep.close()

    async def _serve(self, task_status: trio.TaskStatus[Broker]) -> None:
        self._register()
        # Plugins have corrected what counts messages that the log has lost. After a crash, in the longer log, nobody
        # could tell.
        self.collect_state()
        self.write_state()
        watchdog = Watchdog(self.manager, self.config.broker.watchdog)
        with watchdog.watching():
            await self._serve_watched(task_status)

    async def _serve_watched(self, task_status: trio.TaskStatus[Broker]) -> None:
        async with trio.open_nursery() as background:
            background.start_soon(self._report_failure)
            background.start_soon(self._strategy.run)
            background.start_soon(watch_deadlines, self, self.sweep, self._acks)
            background.start_soon(maintain_disk, self)
            background.start_soon(repair_queues, self)
            for info, task in self._tasks:
                self.manager.activity.tasks.setdefault(info.name, {})[task.name] = "running"
                background.start_soon(self._run_task, info, task)
            if self._tasks:
                background.start_soon(self._report_late_tasks)
            async with trio.open_nursery() as handlers:
                handlers.start_soon(self._report_failure)
                self._handlers = handlers
                await self._make_ready()
                if self._stop.is_set():
                    self.sweep.stop_listening()
                else:
                    self.sweep.listen()
                handlers.start_soon(self.sweep.run, self._is_full)
                if not self._stop.is_set():
                    self.manager.call_each("started", broker=self)
                task_status.started(self)
                await self._stop.wait()
                await self._drain()
                self._drained_in_order = True
                handlers.cancel_scope.cancel()
            background.cancel_scope.cancel()

    async def _report_failure(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not self._drained_in_order:
                self.on_failure()

    async def _make_ready(self) -> None:
        """Await the functions of :attr:`before_listening`, until the broker is to stop."""
        for wait in self.before_listening:
            async with trio.open_nursery() as nursery:

                async def until_stopped(scope: trio.CancelScope = nursery.cancel_scope) -> None:
                    await self._stop.wait()
                    scope.cancel()

                nursery.start_soon(until_stopped)
                await wait()
                nursery.cancel_scope.cancel()

    def _register(self) -> None:
        flushing, self._strategy = self._make_strategy()
        gates = self._registered(
            "register_ack_gates", lambda gate: hasattr(gate, "watermark"), "objects with a 'watermark'"
        )
        if not flushing.is_shipped and not any(info is flushing for info, _ in gates):
            log.warning("flush_without_gate", plugin=flushing.name)
        self._acks = Acks([gate for _, gate in gates], self._acked)
        guards = FilterGuards(self.manager, self.env.monotonic)
        for info, compilers in self.manager.call_each("register_filters", dict, broker=self):
            for kind, compiler in compilers.items():
                if kind in self.filters:
                    raise StartError(
                        f"plugin {info.name!r}: another plugin compiles expressions of type {kind!r} too: disable one"
                    )
                self.filters[kind] = guards.guard(info, kind, compiler)
        self.requests = RequestTable(
            self.manager, self, self._spawn, self.config.limits, self.env.monotonic, self.sweep.wake
        )
        self._take_requests = authorized(self.manager, self.requests.handle, self.env.monotonic)
        self.sweep.has_waiting = self.requests.has_waiting
        self.sweep.readers = Readers(self.requests.readers)
        tasks = self._registered(
            "register_tasks", lambda task: isinstance(task, BackgroundTask), "BackgroundTask objects"
        )
        self._tasks = [(info, task) for info, task in tasks if task.runs_on(self.broker_id)]
        self._takes_messages = True

    def _make_strategy(self) -> tuple[PluginInfo, FlushStrategy]:
        for info, made in self.manager.call_each("make_flush_strategy", log=self.log, config=self.config):
            if made is not None:
                if not hasattr(made, "appended") or not hasattr(made, "run"):
                    raise StartError(
                        f"plugin {info.name!r}: make_flush_strategy returned {made!r:.100}, which has no 'appended' and"
                        " 'run'; return an object with both, or None"
                    )
                strategy: FlushStrategy = made
                return info, strategy
        raise StartError("no enabled plugin holds the slot 'flush': enable one, or do not disable 'flush'")

    def _registered(
        self, hook_name: str, is_right: Callable[[Any], bool], expected: str
    ) -> list[tuple[PluginInfo, Any]]:
        found = []
        for info, made in self.manager.call_each(hook_name, list, broker=self):
            for item in made:
                if not is_right(item):
                    raise StartError(
                        f"plugin {info.name!r}: {hook_name} returned {item!r:.100} in its list; return {expected}"
                    )
                found.append((info, item))
        return found

    def _bind(self) -> None:
        host, port = parse_address(self.config.broker.listen, any_port=True)
        bound_host, bound_port = self.sweep.bind(host, port)
        self._check_protected(bound_host)
        self.listening = format_address(bound_host, bound_port)
        self.address = self.config.broker.advertise or format_address(_reachable(bound_host), bound_port)

    def _check_protected(self, host: str) -> None:
        """Protected mode: without access control, other addresses than loopback need ``broker.insecure``."""
        holders = [info.name for info in self.manager.plugins if info.slot == ACCESS_CONTROL_SLOT]
        if is_loopback(host) or self.config.broker.insecure or holders:
            return
        raise StartError(
            f"broker.listen = {self.config.broker.listen!r}: no plugin controls access, so every machine that connects"
            " would have full access; listen on 127.0.0.1, or start with --insecure (broker.insecure = true) on a"
            " network where every machine is trusted"
        )

    def _store_config(self) -> StoreConfig:
        section = self.config.store
        host, port = parse_address(self.address)
        try:
            numeric = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise StartError(
                f"broker.advertise: cannot resolve {host!r}: {error}; set a name or address of this machine"
            ) from None
        return StoreConfig(
            commit_log_file_bytes=section.commit_log_file_bytes,
            queue_file_units=section.queue_file_units,
            queue_extension=section.queue_extension,
            queue_extension_file_bytes=section.queue_extension_file_bytes,
            max_message_bytes=section.max_message_bytes,
            # A slave's records have the timestamps of its master.
            clock_ahead_max_ms=None if self.broker_id else int(section.clock_ahead_max * 1000),
            store_host=encode_host(str(numeric), port),
        )

    # --------------------------------------------------------------------------------------------------- internals

    def _handle(self, requests: list[Any]) -> None:
        self._take_requests(requests)

    def _spawn(self, function: Any, request: Any) -> None:
        self._handlers.start_soon(function, request)

    def _dispatch(self, batch: DispatchBatch) -> None:
        if self._on_dispatch is not None:
            self._on_dispatch(batch)

    def _dispatch_again(self, batch: DispatchBatch) -> None:
        if self._on_recovery is not None:
            self._on_recovery(batch)

    async def _run_task(self, info: PluginInfo, task: BackgroundTask) -> None:
        activity, state = self.manager.activity, "ended"
        try:
            await task.run()
        except Exception as error:
            state = "failed"
            self._faults.task_failed(info, task.name, error)
        finally:
            activity.tasks[info.name][task.name] = state
            if not activity.running_tasks():
                self._tasks_ended.set()

    async def _report_late_tasks(self) -> None:
        """Wait until cancelled, then log the tasks that do not end: the broker waits for them without a limit."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(LATE_TASKS_S, shield=True):
                await self._tasks_ended.wait()
            if running := self.manager.activity.running_tasks():
                log.warning("tasks_do_not_end", tasks=running, seconds=LATE_TASKS_S)

    def _is_full(self) -> bool:
        return self.log.end - self._acks.committed(self.log.end) > self.config.limits.unacknowledged_bytes

    async def _drain(self) -> None:
        """Accept nothing new, let plugins release what they hold, wait up to :data:`DRAIN_S` for acknowledgments."""
        self.sweep.stop_listening()
        for info, call in reversed(self.manager.calls("stopping", broker=self)):
            try:
                call()
            except Exception:
                log.exception("stopping_failed", plugin=info.name)
        self._draining = True
        self.wake()
        with trio.move_on_after(DRAIN_S):
            await self._drained.wait()

    def _close(self) -> None:
        self.collect_state()
        self.write_state()
        self.store.close()

    def collect_state(self) -> None:
        """Collect the state files that plugins want written."""
        for info, call in self.manager.calls("persist", broker=self):
            try:
                files = call() or {}
                for path, data in files.items():
                    _check_file(path, data)
                    self.manager.activity.wrote(info.name, path)
                self._unwritten.update(files)
            except OSError as error:  # a plugin that writes its state file itself tries again at the next call
                log.warning("state_not_written", plugin=info.name, error=str(error))
            except Exception as error:
                self.manager.activity.failed(info.name, "persist", error)
                log.exception("persist_failed", plugin=info.name)
        self._unwritten.update(self._states.collect(self))

    def write_state(self) -> None:
        """Write the collected state files; for a worker thread. The next call repeats failed writes."""
        if self._states.collected > self.log.durable:
            self.log.flush()  # a state must not count messages that a power cut could lose
        for path, data in list(self._unwritten.items()):
            try:
                self.env.replace(path, data)
            except OSError as error:
                self._outages.warning("state_not_written", path, path=path, error=str(error))
            else:
                self._outages.over("state_not_written", path)
                self._unwritten.pop(path, None)


def _check_file(path: object, data: object) -> None:
    """:class:`TypeError` if a worker thread could not write ``data``: there, nothing would name the plugin."""
    if not isinstance(path, str) or "\0" in path or not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"persist returned {type(data).__name__} for {path!r:.100}, it must be bytes by path")


def _fatal(error: BaseException) -> LogPoisoned | PluginError | None:
    """Return the failure among those of ``error`` that forbids a clean close, or None."""
    if isinstance(error, LogPoisoned | PluginError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _fatal(inner)) is not None), None)
    return None


def _reachable(host: str) -> str:
    """Return the address to advertise for ``host``: for a wildcard, this machine's address, else loopback."""
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the source address
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
