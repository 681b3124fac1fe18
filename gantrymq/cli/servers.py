"""Nameserver and broker in one process: start them in order, print the banner, end them by a signal.

The nameserver starts first and ends last, so that the broker can register and unregister.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import structlog
import trio

from gantrymq._version import __version__
from gantrymq.cli.end_deadline import EndDeadline, end_where_memory_ends
from gantrymq.cli.failures import CommandFailed, advice_for, discard_stdout
from gantrymq.cli.loading import Loaded
from gantrymq.cli.own_nameserver import NameserverTls, OwnNameserver
from gantrymq.cli.processes.link import Link, Packet, serve_link, share_topics
from gantrymq.cli.signals import ending_by_signal, reloading_by_signal
from gantrymq.cli.systemd import Notifier
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.nameserver.switches import read_switches
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.descriptors import raise_descriptor_limit
from gantrymq.remoting.errors import leaves
from gantrymq.remoting.tls import TlsUnusable

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

DRAIN_SECONDS = 8.0
"""After a signal: how long the broker may drain before it is cancelled. The process must end within 10 s."""
REGISTRATION_SECONDS = 3.0
"""How long `ready` waits for the nameservers, which must know the broker before clients can find it."""
COLLECTOR_THRESHOLDS = (10_000, 20, 1000)
"""The thresholds of the three generations, see :func:`gc.set_threshold`; collecting the first one takes a
millisecond."""
KEPT_FREE_BYTES = 16 << 20
"""Freed memory at the end of the heap that the process keeps: the buffers of a turn, of requests and of what is
written, have up to this size together."""
FROM_HEAP_BYTES = 32 << 20
"""The size up to which the C library takes memory from the heap, and does not map and unmap it each time: the largest
that glibc allows, to which it also raises the size itself when such blocks are freed often."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The constants of glibc's ``malloc.h``."""
ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
"""Environment variables by which a user sets the same."""
log = structlog.get_logger("gantrymq.server")

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


async def run_nameserver(
    deadline: EndDeadline,
    listen: str,
    kv_path: Path | None,
    settings: Sequence[str] = (),
    peers: Sequence[str] = (),
    insecure: bool = False,
    tls: NameserverTls | None = None,
    access: Path | None = None,
    audit: Path | None = None,
    metrics: str | None = None,
) -> None:
    """Run a nameserver until a signal; ``settings`` are its switches as ``name=true``. ``metrics``: the address of its
    page of metrics.

    It has no configuration file, so SIGHUP changes nothing and is logged.
    """
    raise_descriptor_limit()
    stop = trio.Event()
    with ending_by_signal(stop.set, log), reloading_by_signal(partial(log.info, "settings_reloaded", changed=[])):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadline.arm_when_cancelled)
            server = await _start_nameserver(nursery, listen, kv_path, settings, peers, insecure, tls, access, audit)
            if metrics is not None:
                from gantrymq.cli.nameserver_metrics import serve_metrics

                await nursery.start(serve_metrics, server, metrics, tls)
            print_line(f"GantryMQ {__version__} nameserver")
            print_line(f"ready nameserver={server.address}")
            notifier = Notifier()
            notifier.send(READY="1")
            nursery.start_soon(notifier.report, dict, dict)
            await stop.wait()
            notifier.send(STOPPING="1")
            nursery.cancel_scope.cancel()


async def run_broker(
    loaded: Loaded,
    load: Callable[[], Loaded],
    deadline: EndDeadline,
    nameserver: OwnNameserver | None = None,
    load_known: Callable[[], Loaded] | None = None,
) -> None:
    """Run a broker, and ``nameserver`` if it is given, until a signal.

    A broker that requests a restart is started again, with the configuration that ``load`` returns then, or where that
    fails ``load_known``. SIGHUP loads
    the configuration and applies what may change while the broker runs; during a start this waits until the broker has
    started. ``deadline`` is armed when a task has failed,
    and when the broker has not ended in time after a signal.
    """
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.env.system import SystemEnv
    from gantrymq.plugins.interfaces import FurtherMetrics

    if sys.platform != "linux":
        raise CommandFailed(
            "the broker needs Linux (epoll, fallocate); the client and the nameserver run elsewhere too"
        )
    raise_descriptor_limit()
    end_where_memory_ends()
    stop, link, reloads = trio.Event(), Link.from_environ(), _Reloads(load)
    with ending_by_signal(stop.set, log), reloading_by_signal(reloads.request):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadline.arm_when_cancelled)
            server = None
            if nameserver is not None:
                server = await start_nameserver_of(nursery, loaded, nameserver)
            while True:
                config = loaded.config
                if server is not None:
                    config = config.with_section(
                        attrs.evolve(config.broker, nameservers=nameservers_of(loaded, server.address))
                    )
                broker = Broker(config, loaded.manager, SystemEnv())
                if server is not None:
                    broker.registry.provide(FurtherMetrics, server)
                broker.on_failure = deadline.arm
                if not await _live(broker, server, nursery, stop, link, reloads):
                    break
                if link is not None:
                    await link.send_now(Packet(restarting=True))
                loaded = _load_again(load, load_known or load)
            nursery.cancel_scope.cancel()


def _load_again(load: Callable[[], Loaded], load_known: Callable[[], Loaded]) -> Loaded:
    """The configuration for a restart within the process, which an error in the file must not turn into an end."""
    try:
        return load()
    except Exception as error:  # also of a plugin's class
        log.error("reload_failed", reason=str(error) or repr(error))
    return load_known()


class _Reloads:
    """The requests to load the configuration again. Those that come while no broker runs are kept for the next one.

    They are not dropped, because the file may have changed after the broker that starts has read it.
    """

    def __init__(self, load: Callable[[], Loaded]) -> None:
        self._load = load
        self._broker: Broker | None = None
        self._is_requested = False

    def request(self) -> None:
        """Load the configuration into the running broker, or into the next one once it has started."""
        if self._broker is None:
            self._is_requested = True
        else:
            _reload(self._broker, self._load)

    @contextmanager
    def into(self, broker: Broker) -> Iterator[None]:
        """Within the block, requests go to this broker."""
        self._broker = broker
        if self._is_requested:
            self._is_requested = False
            self.request()
        try:
            yield
        finally:
            self._broker = None


def _reload(broker: Broker, load: Callable[[], Loaded]) -> None:
    """Apply what the user changed in the configuration, and log what needs a restart; an error changes nothing."""
    from gantrymq.kernel.errors import StartError
    from gantrymq.plugins.interfaces import LiveSettings
    from gantrymq.remoting.errors import RemoteFault

    live = broker.registry.find(LiveSettings)
    if live is None:
        log.warning("reload_failed", reason="the plugin admin is disabled; it changes settings at run time")
        return
    try:
        loaded = load()
        changed, pending = live.reload(loaded.config)
    except (StartError, RemoteFault, OSError) as error:
        log.warning("reload_failed", reason=str(error))
        return
    except Exception as error:  # of a plugin's class, for example: the running broker goes on
        log.warning("reload_failed", reason=repr(error), exc_info=error)
        return
    if [info.name for info in loaded.manager.plugins] != [info.name for info in broker.manager.plugins]:
        pending = ["plugins", *pending]
    log.info("settings_reloaded", changed=changed)
    if pending:
        log.warning("restart_needed", settings=pending)


def keep_freed_memory() -> None:
    """Let the C library keep the memory of a turn's buffers for the next turn.

    By default it returns the free end of the heap to the system after each turn, and the next turn gets it again, page
    by page: a sixth of the broker's time under large batches. Only glibc is known to do so. What the user has set in
    the environment applies instead.
    """
    if any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):
        return
    import ctypes  # loads slowly

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        set_option(_M_MMAP_THRESHOLD, FROM_HEAP_BYTES)


def settle_collector() -> None:
    """Exclude the present objects from garbage collection, and make full collections rare.

    A full collection takes 50 to 200 ms, during which the broker answers no request. Most live objects existed at the
    start or are in tables without cycles, so collections of young objects find nearly all garbage.
    """
    gc.unfreeze()  # of a run before a restart
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def _live(
    broker: Broker,
    server: NameServer | None,
    nursery: trio.Nursery,
    stop: trio.Event,
    link: Link | None,
    reloads: _Reloads,
) -> bool:
    """Run a broker once, until it ends or ``stop``; returns whether it must be started again.

    A broker of a unit reports to the parent through ``link`` and prints nothing. ``reloads`` reach it once it has
    started.
    """
    from gantrymq.plugins.interfaces import Health, Registration

    notifier = Notifier()
    finished = trio.Event()
    if link is not None:
        share_topics(link, broker)
    await nursery.start(_run_to_end, broker, finished)
    keep_freed_memory()
    settle_collector()
    # an unreachable nameserver is logged, and delays `ready` only for this time
    registration = broker.registry.find(Registration)
    if not broker.restarting:  # otherwise it has not served clients
        if registration is not None:
            await registration.wait_first(REGISTRATION_SECONDS)
        if link is not None:
            link.send(Packet(ready=broker.address, pages=page_address(broker)))
        else:
            for line in banner(broker, server):
                print_line(line)
        notifier.send(READY="1")
    async with trio.open_nursery() as either:

        async def ended() -> None:
            await finished.wait()
            either.cancel_scope.cancel()

        either.start_soon(ended)
        health = broker.registry.find(Health)
        if health is not None:
            either.start_soon(notifier.report, health.not_alive, health.not_ready)
        else:
            either.start_soon(notifier.report, dict, dict)
        if link is not None:
            either.start_soon(serve_link, link, broker)
        with reloads.into(broker):
            await stop.wait()
        either.cancel_scope.cancel()
    if stop.is_set():
        notifier.send(STOPPING="1")
    broker.stop()
    with trio.move_on_after(DRAIN_SECONDS):
        await finished.wait()
    return broker.restarting and not stop.is_set()


def banner(broker: Broker, server: NameServer | None) -> list[str]:
    """Print the banner, and ``ready`` with the addresses for clients."""
    from gantrymq.kernel.fast import KIND

    config = broker.config
    nameservers = ";".join(config.broker.nameservers)
    where = "in this process" if server is not None else "not in this process"
    return [
        f"GantryMQ {__version__} ({KIND})",
        f"  broker      {broker.name} in {broker.cluster}, id {broker.broker_id}",
        f"  listens     {broker.listening}, advertises {broker.address}",
        f"  nameserver  {nameservers} ({where})",
        f"  store       {os.path.abspath(broker.root)}",
        f"  flush       {flush_mode(broker)}",
        f"  plugins     {' '.join(info.name for info in broker.manager.plugins)}",
        *overridden(broker),
        f"ready broker={broker.address} nameserver={nameservers}",
    ]


def flush_mode(broker: Broker) -> str:
    """The mode of the plugin ``flush``, or the name of another plugin in its slot."""
    for row in broker.config.explain():
        if (row.section, row.key) == ("plugin.flush", "mode"):
            return str(row.value)
    return next((info.name for info in broker.manager.plugins if info.slot == "flush"), "none")


def overridden(broker: Broker) -> list[str]:
    """A line that names the overrides that apply, if there are any."""
    rows = [row for row in broker.config.explain() if row.origin == "override"]
    if not rows:
        return []
    names = " ".join(f"{row.section}.{row.key}" for row in rows)
    return [f"  overrides   {names} ({rows[0].source})"]


def page_address(broker: Broker) -> str:
    """The address of the broker's health pages; empty if there are none."""
    from gantrymq.plugins.interfaces import HttpPages

    pages = broker.registry.find(HttpPages)
    return "" if pages is None else pages.address


def reachable(address: str) -> str:
    """The address at which this machine reaches a listener at ``address``."""
    host, port = parse_address(address)
    return format_address(WILDCARDS.get(host, host), port)


def print_line(line: str) -> None:
    """One line on stdout, at once, also into a pipe.

    A server goes on without a stdout, or if its reader has gone, the disk is full or the terminal is closed.
    """
    try:
        click.echo(line)  # flushes; does nothing without a stdout
    except (OSError, ValueError):
        discard_stdout()


def nameservers_of(loaded: Loaded, listening: str) -> list[str]:
    """The nameserver of this process, which listens at an address, and the configured ones."""
    own = reachable(listening)
    rows = {(row.section, row.key): row for row in loaded.config.explain()}
    if rows["broker", "nameservers"].origin == "default":
        return [own]
    return list(dict.fromkeys((own, *loaded.config.broker.nameservers)))


def tls_of(loaded: Loaded) -> NameserverTls | None:
    """The settings of the plugin ``tls``, which hold for the nameserver of this process too."""
    settings = [row for row in loaded.config.explain() if row.section == "plugin.tls"]
    rows = {row.key: row.value if isinstance(row.value, dict | bool) else str(row.value) for row in settings}
    if rows.get("mode", "disabled") == "disabled":
        return None
    from gantrymq.plugins.tls.properties import read_tls

    try:
        mode, files = read_tls(rows, lambda path: Path(path).read_bytes())
    except (TlsUnusable, OSError) as error:
        raise CommandFailed(f"plugin.tls.properties: {error}") from None
    return None if mode == "disabled" else NameserverTls(files, enforcing=mode == "enforcing")


async def start_nameserver_of(nursery: trio.Nursery, loaded: Loaded, own: OwnNameserver) -> NameServer:
    """Start the nameserver of ``gantrymq serve``, with the broker's folder, TLS and ``insecure``."""
    kv_path = Path(loaded.config.broker.data) / "config" / "kvConfig.json"
    insecure = loaded.config.broker.insecure
    tls = tls_of(loaded)
    return await _start_nameserver(nursery, own.listen, kv_path, (), own.peers, insecure, tls, own.access, own.audit)


async def _start_nameserver(
    nursery: trio.Nursery,
    listen: str,
    kv_path: Path | None,
    settings: Sequence[str] = (),
    peers: Sequence[str] = (),
    insecure: bool = False,
    tls: NameserverTls | None = None,
    access: Path | None = None,
    audit: Path | None = None,
) -> NameServer:
    try:
        host, port = parse_address(listen, any_port=True)
        config = NameServerConfig(
            host=host,
            port=port,
            kv_path=kv_path,
            switches=read_switches(settings),
            peers=tuple(peers),
            access=access,
            audit=audit,
            insecure=insecure,
            tls=None if tls is None else tls.files,
            plain=tls is None or not tls.enforcing,
        )
        server = NameServer(config)
    except ValueError as error:
        raise CommandFailed(f"nameserver: {error}") from None
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandFailed(f"nameserver: {error.filename}: {error.strerror}") from None
    try:
        await nursery.start(server.serve)
    except (OSError, ExceptionGroup) as failure:
        errors = [leaf for leaf in leaves(failure) if isinstance(leaf, OSError)]
        if not errors:
            raise
        raise CommandFailed(f"nameserver: cannot listen at {listen}: {advice_for(errors[0])}") from None
    return server


async def _run_to_end(broker: Broker, finished: trio.Event, task_status: trio.TaskStatus[Broker]) -> None:
    try:
        await broker.run(task_status=task_status)
    finally:
        finished.set()
