"""The composition root: puts store, plugins and sockets together and opens and closes them in order.

It has no behaviour of its own. The nesting of :meth:`Broker.run` is the order of the shutdown: the sockets' tasks end
first, then the background tasks, then the tables are written and the store is closed.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gantrymq.kernel.acks import Acks, FlushStrategy
from gantrymq.kernel.authorization import authorized
from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.config.declarations import PluginsSection
from gantrymq.kernel.config.sections import Config
from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.env import Env, Waker
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError
from gantrymq.kernel.fast import Readers
from gantrymq.kernel.filters import FilterCompiler
from gantrymq.kernel.housekeeping import mend_queues, tend_disk, watch_deadlines
from gantrymq.kernel.kept_rows import KeptRows
from gantrymq.kernel.manager import Observers, PluginInfo, PluginManager
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.network.requests import RequestTable
from gantrymq.kernel.network.sweep import Sweep
from gantrymq.kernel.network.time_slices import SLICES, Pace
from gantrymq.kernel.plugin_faults import PluginFaults
from gantrymq.kernel.plugin_state import PluginStates
from gantrymq.kernel.registry import Registry
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.queues.table import ConsumeQueues
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.kernel.watchdog import Watchdog
from gantrymq.remoting.address import encode_host, format_address, parse_address
from gantrymq.remoting.peers import is_loopback

if TYPE_CHECKING:
    from gantrymq.kernel import api

    def _has_all_that_plugins_use(broker: Broker) -> api.Broker:
        return broker


log = structlog.get_logger("gantrymq.broker")

ACCESS_CONTROL_SLOT = "access_control"
"""Whoever holds it controls access: with it the broker may listen beyond the loopback address."""
DRAIN_S = 5.0
"""How long a stopping broker waits for its last acknowledgements."""


class Broker:
    """One broker: ``await broker.run()`` is its whole life, ``broker.stop()`` asks it to end.

    What a plugin may use of it is :class:`gantrymq.kernel.api.Broker`.
    """

    store: Store
    address: str
    listening: str

    def __init__(self, config: Config, manager: PluginManager, env: Env) -> None:
        self.config = config
        self.manager = manager
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
        self.kept_rows = KeptRows(env.monotonic)
        """What plugins refused of messages that the broker keeps already."""
        self._before_append = self._faults.before_append(self.kept_rows)
        self._states = PluginStates(manager, env, self.root, self._faults)
        self._on_dispatch = self._states.follow(self._faults.on_batches("dispatch"))
        self._on_recovery = self._faults.on_batches("dispatch", self._states.names)
        self.restarting = False
        """Whether it is to be started again, with the settings as they are then, once :meth:`run` has returned."""
        self.before_listening: list[Callable[[], Awaitable[None]]] = []
        """What plugins add in ``configure`` is awaited, one after the other, before the broker listens."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a task has failed, or :meth:`run` was cancelled, before the others are waited for."""
        self._stop = trio.Event()
        self._drained = trio.Event()
        self._draining = False
        self._drained_in_order = False
        self._unwritten: dict[str, bytes] = {}

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

    # ------------------------------------------------------------------------------------------------- the paths

    def append(self, batch: AppendBatch) -> None:
        """Take ``batch`` through the write path; ``batch.done`` is called when every row has its final status."""
        before_append = self._before_append[batch.source]
        if before_append is not None:
            before_append(batch)
        if batch.refused < len(batch):
            self.store.append(batch)
            if batch.refused:
                self.kept_rows.appended(batch)
            if batch.refused < len(batch):
                self._strategy.appended(batch.end)
        self._acks.add(batch, self.env.monotonic())
        if not self.sweep.is_handling:  # else it goes on in this turn
            self.wake()

    def append_encoded(self, position: int, data: bytes | memoryview) -> int:
        """Take another log's records into this one, past every hook: see :meth:`CommitLog.append_encoded`.

        They wait for :meth:`commit_encoded`.
        """
        return self.store.append_encoded(position, data)

    def commit_encoded(self) -> None:
        """Let what was taken so be flushed and dispatched; better once for much than for each piece of it."""
        self._strategy.appended(self.log.end)
        self.sweep.give_way()
        if self._acks.committed(self.log.end) > self.store.dispatched:
            self.wake()  # else a gate does, when it has let something pass

    @property
    def unacknowledged(self) -> int:
        """How many batches of messages wait for the gates."""
        return len(self._acks)

    def unacknowledged_for(self) -> float:
        """How long, in seconds, the oldest message has waited for the gates; 0 when none waits."""
        oldest = self._acks.oldest()
        return 0.0 if oldest is None else self.env.monotonic() - oldest

    def progress(self) -> None:
        """Dispatch what every gate has passed, then let its replies go: who has an answer finds the message."""
        if self._acks.expires_now:
            self._acks.expire(self.env.monotonic())
        committed = self._acks.committed(self.log.end)
        if committed > self.store.dispatched:
            for batch in self.store.dispatch(committed):
                self._dispatch(batch)
        self._acks.release(committed)
        if self._draining and not len(self._acks):
            self._drained.set()

    @property
    def waker(self) -> Waker:
        """What :meth:`wake` uses."""
        return self.sweep.waker

    def wake(self) -> None:
        """Run the next turn soon (a watermark moved); safe to call from any thread."""
        self.sweep.wake()

    def give_way(self) -> None:
        """A task was given work that clients wait for: let it run before this looks for requests again."""
        self.sweep.give_way()

    def pace(self) -> Pace:
        """For a piece of work that takes long: it rests some times in ``limits.turn_budget``."""
        return Pace(self.env.monotonic, self.config.limits.turn_budget / SLICES, self.sweep.give_way)

    def stop(self) -> None:
        """Ask the broker to drain and end."""
        self._stop.set()

    def restart(self) -> None:
        """Ask the broker to drain and end, and whoever runs it to start it again (:attr:`restarting`)."""
        self.restarting = True
        self.stop()

    # ---------------------------------------------------------------------------------------------------- a life

    async def run(self, *, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED) -> None:
        """Start, report when the sockets listen, serve until :meth:`stop` or cancellation, close cleanly.

        Raises :class:`StartError` for what the user can mend, ``LogPoisoned`` when the disk failed.
        """
        recovered = False
        try:
            self._bind()
            self.store = Store(self.env, self.root, self._store_config())
            self.store.open()
            try:
                self.manager.call_each("configure", broker=self, config=self.config)
                self.store.recover(self._dispatch_again)
                await self._states.load(self, self.store)
                self.manager.call_each("recovered", broker=self)
                recovered = True
                await self._serve(task_status)
            except BaseException as error:
                fatal = _fatal(error)
                if fatal is not None or not recovered:
                    # Nothing more may be written: the next start looks at the log as after a crash.
                    self.store.abandon()
                    if fatal is None:
                        raise
                    raise fatal from error
                # Cancelled, or something failed that has nothing to do with the log: closed like at any stop.
                self._close()
                raise
            self._close()
        finally:
            self.sweep.close()

    async def _serve(self, task_status: trio.TaskStatus[Broker]) -> None:
        self._register()
        watchdog = Watchdog(self.manager, self.config.broker.watchdog)
        with watchdog.watching():
            await self._serve_watched(task_status)

    async def _serve_watched(self, task_status: trio.TaskStatus[Broker]) -> None:
        async with trio.open_nursery() as background:
            background.start_soon(self._tell_failure)
            background.start_soon(self._strategy.run)
            background.start_soon(watch_deadlines, self, self.sweep, self._acks)
            background.start_soon(tend_disk, self)
            background.start_soon(mend_queues, self)
            for info, task in self._tasks:
                background.start_soon(self._run_task, info, task)
            async with trio.open_nursery() as handlers:
                handlers.start_soon(self._tell_failure)
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

    async def _tell_failure(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not self._drained_in_order:
                self.on_failure()

    async def _make_ready(self) -> None:
        """Returns when nothing stands against serving, or when the broker is to stop."""
        for wait in self.before_listening:
            async with trio.open_nursery() as nursery:

                async def until_stopped(scope: trio.CancelScope = nursery.cancel_scope) -> None:
                    await self._stop.wait()
                    scope.cancel()

                nursery.start_soon(until_stopped)
                await wait()
                nursery.cancel_scope.cancel()

    def _register(self) -> None:
        self._strategy = self._make_strategy()
        gates = self._registered("register_ack_gates", lambda gate: hasattr(gate, "watermark"))
        self._acks = Acks([gate for _, gate in gates])
        for info, compilers in self.manager.call_each("register_filters", dict, broker=self):
            for kind, compiler in compilers.items():
                if kind in self.filters:
                    raise StartError(f"plugin {info.name!r}: expressions of type {kind!r} have a compiler already")
                self.filters[kind] = compiler
        self.requests = RequestTable(
            self.manager, self, self._spawn, self.config.limits, self.env.monotonic, self.sweep.wake
        )
        self._take_requests = authorized(self.manager, self.requests.handle, self.env.monotonic)
        self.sweep.has_waiting = self.requests.has_waiting
        self.sweep.readers = Readers(self.requests.readers)
        tasks = self._registered("register_tasks", lambda task: isinstance(task, BackgroundTask))
        self._tasks = [(info, task) for info, task in tasks if task.runs_on(self.broker_id)]

    def _make_strategy(self) -> FlushStrategy:
        for info, made in self.manager.call_each("make_flush_strategy", log=self.log, config=self.config):
            if made is not None:
                if not hasattr(made, "appended") or not hasattr(made, "run"):
                    raise StartError(f"plugin {info.name!r}: make_flush_strategy returned no strategy: {made!r:.100}")
                strategy: FlushStrategy = made
                return strategy
        raise StartError("no enabled plugin holds the slot 'flush': enable one, or do not disable 'flush'")

    def _registered(self, hook_name: str, is_right: Callable[[Any], bool]) -> list[tuple[PluginInfo, Any]]:
        found = []
        for info, made in self.manager.call_each(hook_name, list, broker=self):
            for item in made:
                if not is_right(item):
                    raise StartError(f"plugin {info.name!r}: {hook_name} returned {item!r:.100} in its list")
                found.append((info, item))
        return found

    def _bind(self) -> None:
        host, port = parse_address(self.config.broker.listen, any_port=True)
        bound_host, bound_port = self.sweep.bind(host, port)
        self._check_protected(bound_host)
        self.listening = format_address(bound_host, bound_port)
        self.address = self.config.broker.advertise or format_address(_reachable(bound_host), bound_port)

    def _check_protected(self, host: str) -> None:
        """Protected mode: without access control, only this machine is listened to."""
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
            raise StartError(f"broker.advertise: cannot resolve {host!r}: {error}") from None
        return StoreConfig(
            commit_log_file_bytes=section.commit_log_file_bytes,
            queue_file_units=section.queue_file_units,
            queue_extension=section.queue_extension,
            queue_extension_file_bytes=section.queue_extension_file_bytes,
            max_message_bytes=section.max_message_bytes,
            # a slave's records have their master's time
            clock_ahead_max_ms=None if self.broker_id else int(section.clock_ahead_max * 1000),
            store_host=encode_host(str(numeric), port),
        )

    # ---------------------------------------------------------------------------------------------------- pieces

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
        try:
            await task.run()
        except Exception as error:
            self._faults.task_failed(info, task.name, error)

    def _is_full(self) -> bool:
        return self.log.end - self._acks.committed(self.log.end) > self.config.limits.unacknowledged_bytes

    async def _drain(self) -> None:
        """Take nothing new, let plugins give back what they hold, wait a while for the last acknowledgements."""
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
        """Take over what the plugins' tables have to write."""
        for info, call in self.manager.calls("persist", broker=self):
            try:
                self._unwritten.update(call() or {})
            except OSError as error:  # a plugin that writes its table itself tries again the next time
                log.warning("state_not_written", plugin=info.name, error=str(error))
            except Exception:
                log.exception("persist_failed", plugin=info.name)
        self._unwritten.update(self._states.collect(self))

    def write_state(self) -> None:
        """Write what was collected; for a worker thread. What fails is kept for the next time."""
        if self._states.collected > self.log.durable:
            self.log.flush()  # no state may count what a power cut takes back
        for path, data in list(self._unwritten.items()):
            try:
                self.env.replace(path, data)
            except OSError as error:
                log.warning("state_not_written", path=path, error=str(error))
            else:
                self._unwritten.pop(path, None)


def _fatal(error: BaseException) -> LogPoisoned | PluginError | None:
    """The failure that forbids a clean close, if it is one of what came out of the tasks."""
    if isinstance(error, LogPoisoned | PluginError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _fatal(inner)) is not None), None)
    return None


def _reachable(host: str) -> str:
    """What to advertise for a wildcard address: this machine's own, else loopback."""
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; asks the routing table
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
