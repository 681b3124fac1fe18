"""A real nameserver and a real broker inside the test's process, on free loopback ports.

Use ``async with run_cluster(tmp_path) as cluster`` with trio, and ``with cluster_in_thread(tmp_path) as cluster``
without it: the servers then run in a separate thread, with real sockets.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from os import PathLike, fspath
from typing import Any

import attrs
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import OVERRIDES_PATH, read_settings
from gantrymq.kernel.env import Env
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.loading import load_plugins
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.plugins.interfaces import Registration, Replication
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.errors import leaves
from gantrymq.remoting.logs import servers_to_logging

_START_S = 10.0
_END_S = 30.0
_SMALL_INDEX = {"plugin.index.slots": "10000", "plugin.index.entries": "40000"}
"""Files of less than a megabyte: the usual ones of 420 MB are sparse, and a copy of a store would fill them."""


@attrs.define
class Cluster:
    """Addresses (``host:port``) of the nameserver and the broker, and the broker itself: a new one after each restart
    that it requests."""

    nameserver: str
    address: str
    broker: Broker


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
    """Create a broker without running it, with any free port, the default plugins, small files, and ``settings`` as
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
    with servers_to_logging():
        async with trio.open_nursery() as nursery:
            nameserver = NameServer(NameServerConfig(port=0))
            await nursery.start(nameserver.serve)

            def make(before: Broker | None) -> Broker:
                given = dict(settings or {})
                if before is not None:
                    given["broker.listen"] = before.listening
                    replication = before.registry.find(Replication)
                    if replication is not None:
                        wanted = given.get("plugin.ha.listen", "")
                        given["plugin.ha.listen"] = _with_port_of(replication, wanted, before.listening)
                return make_broker(data, [nameserver.address], settings=given, enable=enable, disable=disable)

            async with _run_with_restarts(nameserver.address, make) as cluster:
                yield cluster
            nursery.cancel_scope.cancel()


def _with_port_of(replication: Replication, wanted: str, listening: str) -> str:
    """The address for slaves after a restart: ``wanted`` if it has a port, else its host, or the one of the broker's
    address ``listening``, with the port that ``replication`` had before."""
    host, port = parse_address(wanted or listening, any_port=True)
    if wanted and port:
        return wanted
    address = replication.ha_address
    return format_address(host, parse_address(address)[1] if address else 0)


@asynccontextmanager
async def _run_with_restarts(nameserver: str, make: Callable[[Broker | None], Broker]) -> AsyncIterator[Cluster]:
    """Run a broker during the block, and a new one at the same addresses when it requests a restart. ``make`` gets the
    one before, if there is one."""
    newest, is_over = make(None), False

    async def run(*, task_status: trio.TaskStatus[Cluster]) -> None:
        nonlocal newest
        cluster: Cluster | None = None

        def registered() -> None:
            nonlocal cluster
            if cluster is None:
                cluster = Cluster(nameserver, newest.address, newest)
                task_status.started(cluster)
            cluster.broker = newest

        while True:
            await _run_registered(newest, nameserver, registered)
            if is_over or not newest.restarting:
                return
            newest = make(newest)

    async with trio.open_nursery() as nursery:
        cluster = await nursery.start(run)
        try:
            yield cluster
        finally:
            is_over = True
            newest.stop()


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
) -> Iterator[Cluster]:
    """:func:`run_cluster` in a separate thread, for tests with asyncio and for blocking ones.

    Raises the error that ended the broker, if one did; if the block raises, that error gets a note about it.
    ``RuntimeError`` with the names of the plugins' tasks that still run if the broker does not end.
    """
    ready = threading.Event()
    found: list[tuple[Cluster, trio.lowlevel.TrioToken, trio.Event]] = []
    failed: list[BaseException] = []

    async def main() -> None:
        async with run_cluster(data, settings=settings, enable=enable, disable=disable) as cluster:
            stop = trio.Event()
            found.append((cluster, trio.lowlevel.current_trio_token(), stop))
            ready.set()
            await stop.wait()

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

    thread = threading.Thread(target=body, name="gantrymq-cluster", daemon=True)
    thread.start()
    try:
        ready.wait()
        if found:
            yield found[0][0]
    except BaseException as error:
        end()
        for reason in failed:  # mostly the cause, such as of a client's error
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
