"""A real nameserver and a real broker inside the test's process, on free loopback ports.

Use ``async with run_cluster(tmp_path) as cluster`` with trio, and ``with cluster_in_thread(tmp_path) as cluster``
without it: the servers then run in a separate thread, with real sockets.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from os import PathLike, fspath
from typing import Any

import attrs
import trio

if sys.platform != "linux":
    raise ImportError("gantrymq.testing.harness runs a broker, which needs Linux: run the tests in a container")

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import OVERRIDES_PATH, read_settings
from gantrymq.kernel.env import Env, Listener
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.loading import load_plugins
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.plugins.interfaces import Registration, Replication
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.errors import leaves
from gantrymq.remoting.logs import create_loggers, servers_to_logging

_START_S = 10.0
_END_S = 30.0
_WITH_PORTS = ("metrics", "dashboard")
"""Optional plugins with a port of their own, which another worker's broker or a running server may have."""
_SMALL_INDEX = {"plugin.index.slots": "10000", "plugin.index.entries": "40000"}
"""Files of less than a megabyte: the usual ones of 420 MB are sparse, and a copy of a store would fill them."""


@attrs.frozen(eq=False)
class Cluster:
    """A nameserver and a broker that is registered there."""

    _brokers: _Brokers

    @property
    def nameserver(self) -> str:
        """``host:port`` of the nameserver."""
        return self._brokers.nameserver

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._brokers.registered.address

    @property
    def broker(self) -> Broker:
        """The broker itself: a new one after each restart."""
        return self._brokers.registered


@attrs.frozen(eq=False)
class ClusterInThread(Cluster):
    """A :class:`Cluster` in a separate thread, whose broker a test can stop and start.

    The methods block the calling thread; with asyncio, call them with ``asyncio.to_thread``. They raise the error that
    ended the cluster, if one did.
    """

    _call: Callable[..., None]

    def stop_broker(self) -> None:
        """Stop the broker cleanly. The nameserver runs on, and connections to the broker's address are refused.

        ``RuntimeError`` with the names of the plugins' tasks that still run if the broker does not end.
        """
        self._call(self._brokers.stop)

    def start_broker(self, *, settings: Mapping[str, str] | None = None, enable: Sequence[Any] | None = None) -> None:
        """Start the stopped broker at the same address and on the same store; returns when clients find it.

        ``settings`` are added to those of the last start, ``enable`` replaces its plugins. ``StartError`` if the broker
        refuses to start; it can be started again with other settings.
        """
        with single_start_error():
            self._call(self._brokers.start, settings, enable)

    def restart_broker(
        self,
        *,
        killed: bool = False,
        settings: Mapping[str, str] | None = None,
        enable: Sequence[Any] | None = None,
    ) -> None:
        """:meth:`stop_broker` and :meth:`start_broker`. ``killed``: the new broker gets the files as they were before
        the old one stopped, and clients get no response to what these files lack, as after ``kill -9``."""
        with single_start_error():
            self._call(self._brokers.restart, killed, settings, enable)


@contextmanager
def single_start_error() -> Iterator[None]:
    """Raise the first ``StartError`` of an exception group in place of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        reasons = [leaf for leaf in leaves(group) if isinstance(leaf, StartError)]
        if not reasons:
            raise
        raise reasons[0] from None


def make_broker(
    data: str | PathLike[str],
    nameservers: Sequence[str] = (),
    *,
    settings: Mapping[str, str] | None = None,
    enable: Sequence[Any] = (),
    disable: Sequence[str] = (),
    env: Env | None = None,
    file: bytes = b"",
) -> Broker:
    """Create a broker without running it, with any free ports, the default plugins, small files, and ``settings`` as
    ``section.key: value``. Like ``gantrymq serve`` it reads the settings that were changed at run time from the store.

    ``enable``: further plugins, as names for ``--enable``, classes or objects. ``file``: the content of the
    configuration file. Raises ``StartError`` and ``ConfigError``.
    """
    env = env or SystemEnv()
    given = {
        "broker.data": fspath(data),
        "broker.listen": "127.0.0.1:0",
        "store.commit_log_file_bytes": "8 MiB",
        **({} if "http" in disable else {"plugin.http.listen": ""}),
        **({} if "index" in disable else _SMALL_INDEX),
        **{f"plugin.{name}.listen": "127.0.0.1:0" for name in _WITH_PORTS if name in enable and name not in disable},
        **(settings or {}),
    }
    without = [*disable, *([] if nameservers else ["register"])]
    path = f"{given['broker.data']}/{OVERRIDES_PATH}"
    read = read_settings(
        "gantrymq.toml", file, sets=[f"{key}={value}" for key, value in given.items()],
        enable=[each for each in enable if isinstance(each, str)], disable=without,
        overrides=(path, env.read_bytes(path)) if env.exists(path) else None,
    )  # fmt: skip
    objects = [each for each in enable if not isinstance(each, str)]
    manager = load_plugins(DEFAULT_PLUGINS, [*read.enable, *objects], read.disable)
    config = build_config(read, manager)
    broker_section = attrs.evolve(config.broker, nameservers=list(nameservers))
    return Broker(attrs.evolve(config, broker=broker_section), manager, env)


@asynccontextmanager
async def run_broker(broker: Broker) -> AsyncIterator[Broker]:
    """Run ``broker`` during the block; at its end the broker drains and closes its store. A broker that requests a
    restart only ends."""
    async with trio.open_nursery() as nursery:
        with trio.fail_after(_START_S):
            await nursery.start(_run, broker)
        try:
            yield broker
        finally:
            broker.stop()


@asynccontextmanager
async def broker_and_channel(data: str | PathLike[str], **settings: str) -> AsyncIterator[tuple[Broker, Channel]]:
    """A broker without a nameserver, and a connection to it. Keywords are settings: ``plugin__flush__mode="async"``."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    async with run_broker(make_broker(data, settings=given)) as broker, open_channel(broker.address) as channel:
        yield broker, channel


@asynccontextmanager
async def run_cluster(
    data: str | PathLike[str],
    *,
    settings: Mapping[str, str] | None = None,
    enable: Sequence[Any] = (),
    disable: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    """A nameserver and a broker that is registered there. A group with a ``StartError`` if the broker refuses to start
    or is not registered, such as a broker that uses TLS for the nameserver."""
    async with _running(data, settings, enable, disable) as brokers:
        yield Cluster(brokers)


@asynccontextmanager
async def _running(
    data: str | PathLike[str], settings: Mapping[str, str] | None, enable: Sequence[Any], disable: Sequence[str]
) -> AsyncIterator[_Brokers]:
    with servers_to_logging():
        async with trio.open_nursery() as nursery:
            nameserver = NameServer(NameServerConfig(port=0))
            await nursery.start(nameserver.serve)
            async with trio.open_nursery() as running:
                brokers = _Brokers(running, nameserver.address, fspath(data), dict(settings or {}), enable, disable)
                await brokers.start()
                try:
                    yield brokers
                finally:
                    brokers.end()
            nursery.cancel_scope.cancel()


class _Brokers:
    """Runs one broker after another at the same address and on the same store: a new one whenever a broker requests a
    restart, or a test starts it again."""

    def __init__(
        self,
        nursery: trio.Nursery,
        nameserver: str,
        data: str,
        settings: dict[str, str],
        enable: Sequence[Any],
        disable: Sequence[str],
    ) -> None:
        self.nameserver = nameserver
        self.registered: Broker
        self._nursery = nursery
        self._data = data
        self._settings = settings
        self._enable = enable
        self._disable = disable
        self._newest: Broker | None = None
        self._is_over = True
        self._ended = trio.Event()
        self._ended.set()
        self._reserved: Listener | None = None

    async def start(self, settings: Mapping[str, str] | None = None, enable: Sequence[Any] | None = None) -> None:
        if not self._ended.is_set():
            raise RuntimeError("the broker runs already")
        before = self._settings, self._enable, self._newest
        self._settings = {**self._settings, **(settings or {})}
        if enable is not None:
            self._enable = enable
        self._is_over, self._ended = False, trio.Event()
        try:
            await self._nursery.start(self._run)
        except BaseException:
            self._settings, self._enable, self._newest = before
            self._ended.set()
            raise
        self._release_address()

    async def stop(self) -> None:
        self.end()
        with trio.move_on_after(_END_S):
            await self._ended.wait()  # for ever if it fails: then the whole cluster ends
        if not self._ended.is_set():
            raise RuntimeError(_late(self.registered))
        if self._reserved is None:
            with suppress(OSError):  # another program was faster, and the next start says so
                self._reserved = SystemEnv().bind(*parse_address(self.registered.listening))

    async def restart(
        self, killed: bool, settings: Mapping[str, str] | None = None, enable: Sequence[Any] | None = None
    ) -> None:
        copy = f"{self._data}.killed"
        if killed:
            sweep = self.registered.sweep  # no other task runs from here on until all connections are closed
            sweep.stop_listening()
            shutil.copytree(self._data, copy, copy_function=_copy_if_there)
            for connection in sweep.connections:
                sweep.drop(connection, "killed")
        await self.stop()
        if killed:
            shutil.rmtree(self._data)
            os.rename(copy, self._data)
        await self.start(settings, enable)

    def end(self) -> None:
        """Request the end of the running broker."""
        self._is_over = True
        if self._newest is not None:
            self._newest.stop()
        self._release_address()

    def _release_address(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        started = False

        def registered() -> None:
            nonlocal started
            self.registered = broker
            if not started:
                started = True
                task_status.started()

        while True:
            self._newest = broker = self._make()
            await _run_registered(broker, self.nameserver, registered)
            if self._is_over or not broker.restarting:
                break
        self._ended.set()

    def _make(self) -> Broker:
        settings, before = dict(self._settings), self._newest
        if before is not None:
            settings["broker.listen"] = before.listening
            replication = before.registry.find(Replication)
            if replication is not None and "ha" in self._enable:
                wanted = settings.get("plugin.ha.listen", "")
                settings["plugin.ha.listen"] = _with_port_of(replication, wanted, before.listening)
        return make_broker(self._data, [self.nameserver], settings=settings, enable=self._enable, disable=self._disable)


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file of a running store. One that is gone by now was temporary: state files are always there."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _with_port_of(replication: Replication, wanted: str, listening: str) -> str:
    """The address for slaves after a restart: ``wanted`` if it has a port, else its host, or the one of the broker's
    address ``listening``, with the port that ``replication`` had before."""
    host, port = parse_address(wanted or listening, any_port=True)
    if wanted and port:
        return wanted
    address = replication.ha_address
    return format_address(host, parse_address(address)[1] if address else 0)


async def _run_registered(broker: Broker, nameserver: str, registered: Callable[[], None]) -> None:
    """Run ``broker`` to its end; ``registered`` is called when clients find it through the nameserver."""
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[Broker]) -> None:
            await broker.run(task_status=task_status)
            nursery.cancel_scope.cancel()  # it may have ended before it was registered

        with trio.fail_after(_START_S):
            await nursery.start(run)
        if not await broker.registry.get(Registration).wait_first(_START_S):
            raise StartError(
                f"the broker is not registered with its nameserver {nameserver}, which has no TLS: the "
                "log has the reason; with plugin.tls.mode = enforcing, set plugin.tls.outgoing = plain"
            )
        registered()


@contextmanager
def cluster_in_thread(
    data: str | PathLike[str],
    *,
    settings: Mapping[str, str] | None = None,
    enable: Sequence[Any] = (),
    disable: Sequence[str] = (),
) -> Iterator[ClusterInThread]:
    """:func:`run_cluster` in a separate thread, for tests with asyncio and for blocking ones.

    Raises the error that ended the broker, if one did; if the block raises, that error gets a note about it.
    ``RuntimeError`` with the names of the plugins' tasks that still run if the broker does not end.
    """
    ready = threading.Event()
    found: list[tuple[ClusterInThread, trio.lowlevel.TrioToken, trio.Event]] = []
    failed: list[BaseException] = []

    async def main() -> None:
        async with _running(data, settings, enable, disable) as brokers:
            token, stop = trio.lowlevel.current_trio_token(), trio.Event()
            found.append((ClusterInThread(brokers, partial(call, token)), token, stop))
            ready.set()
            await stop.wait()

    def call(token: trio.lowlevel.TrioToken, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        try:
            trio.from_thread.run(function, *arguments, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            thread.join(_END_S)
            raise failed[0] if failed else RuntimeError("the cluster has ended") from None

    def body() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    def end() -> None:
        ready.wait()  # an interrupt may have ended the first wait, and the cluster can be stopped only once it runs
        if found:
            _, token, stop = found[0]
            with suppress(trio.RunFinishedError):  # the broker has ended with the error that is raised below
                token.run_sync_soon(stop.set)
        thread.join(_END_S)
        if thread.is_alive():
            failed.append(RuntimeError(_late(found[0][0].broker)))

    create_loggers()
    thread = threading.Thread(target=body, name="gantrymq-cluster", daemon=True)
    thread.start()
    try:
        ready.wait()
        if found:
            yield found[0][0]
    except BaseException as error:
        end()
        for reason in failed:  # mostly the cause, such as of a client's error
            if reason is not error:
                causes = (f"{type(leaf).__name__}: {leaf}" for leaf in leaves(reason))
                error.add_note(f"the cluster ended with {'; '.join(causes)}")
        raise
    end()
    if failed:
        raise failed[0]


def _late(broker: Broker) -> str:
    """Why ``broker`` has not ended in time."""
    running = broker.manager.activity.running_tasks()
    names = "; ".join(f"plugin {plugin!r}: {', '.join(tasks)}" for plugin, tasks in running.items())
    return (
        f"the broker did not end within {_END_S:g} s; background tasks that still run: {names or 'none'}. A call in a "
        "worker thread needs a timeout, or abandon_on_cancel=True"
    )


async def _run(broker: Broker, *, task_status: trio.TaskStatus[Broker]) -> None:
    await broker.run(task_status=task_status)
