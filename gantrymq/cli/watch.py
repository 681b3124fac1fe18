"""``gantrymq cluster watch``: promote a slave when the master is lost, while holding a lock in etcd."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from gantrymq.cli.connecting import (
    check_nameserver,
    connect_settings,
    nameserver_option,
    use_everywhere,
)
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.logs import configure_logs, log_level_option
from gantrymq.cli.options import duration_option

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.failover.lock import LockStore
    from gantrymq.failover.watcher import WatchRules

LEASE_LEAST_S: Final = 2.0


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--etcd",
    required=True,
    envvar="GANTRYMQ_ETCD",
    show_envvar=True,
    metavar="URL[,URL]",
    help="Client addresses of the etcd members: http://HOST:2379.",
)
@click.option("--etcd-ca", metavar="FILE", help="The certificate authority, for an etcd with TLS.")
@click.option("--etcd-cert", metavar="FILE", help="This client's certificate for etcd.")
@click.option("--etcd-key", metavar="FILE", help="The key of the client certificate.")
@click.option("--etcd-user", default="", metavar="NAME", help="The etcd user.")
@click.option(
    "--etcd-password",
    default="",
    envvar="GANTRYMQ_ETCD_PASSWORD",
    show_envvar=True,
    metavar="TEXT",
    help="The password of the etcd user.",
)
@click.option(
    "--prefix", default="/gantrymq/failover", show_default=True, metavar="KEY", help="Prefix of the keys in etcd."
)
@duration_option("--interval", 0.5, "Time between two checks of the brokers.")
@duration_option(
    "--response-timeout", 1.0, "Response timeout of each broker; for slaves of a lost master up to 4 times as long."
)
@duration_option("--master-timeout", 2.0, "A master that does not respond for this time is lost.")
@duration_option("--lease", 5.0, "How long the lock of a lost watcher remains held.", least=LEASE_LEAST_S)
@duration_option(
    "--promoted-timeout",
    10.0,
    "How long a promoted slave may take to be back as the master; then another slave is promoted.",
)
@click.option("--accept-loss", is_flag=True, help="Promote even if acknowledged messages may be lost.")
@log_level_option()
@nameserver_option
def watch(
    names: tuple[str, ...], etcd: str, etcd_ca: str | None, etcd_cert: str | None, etcd_key: str | None, etcd_user: str,
    etcd_password: str, prefix: str, interval: float, response_timeout: float, master_timeout: float, lease: float,
    promoted_timeout: float, accept_loss: bool, log_level: str, nameserver: str,
) -> None:  # fmt: skip
    """Watch the masters of the brokers NAME, and promote a slave when one is lost.

    Run two or three watchers on separate machines. The one that holds a lock in etcd acts; another one takes over when
    its lease expires. There is no promotion while etcd or the nameservers do not respond, or if an acknowledged message
    could be lost. The watcher logs each decision. It needs `gantrymq[etcd]`. SIGTERM or Ctrl-C ends it.
    """
    configure_logs(log_level)

    from gantrymq.failover.etcd import Credentials, EtcdLock, parse_endpoints
    from gantrymq.failover.watcher import WatchRules

    try:
        endpoints = parse_endpoints(etcd)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--etcd") from None
    for option, path in (("--etcd-ca", etcd_ca), ("--etcd-cert", etcd_cert), ("--etcd-key", etcd_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise click.BadParameter(f"{path} cannot be read", param_hint=option)
    credentials = Credentials(etcd_ca, etcd_cert, etcd_key, etcd_user, etcd_password)
    holder = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
    rules = WatchRules(
        interval=interval,
        response_timeout=response_timeout,
        master_timeout=master_timeout,
        promoted_timeout=promoted_timeout,
        accept_loss=accept_loss,
    )
    try:
        locks: dict[str, LockStore] = {
            name: EtcdLock(endpoints, f"{prefix}/{name}", holder, lease, lease / 4, credentials)
            for name in dict.fromkeys(names)
        }
    except ModuleNotFoundError as error:
        raise CommandFailed(f"the package {error.name!r} is missing: pip install 'gantrymq[etcd]'") from None
    check_nameserver(nameserver)

    import trio

    trio.run(_watch, locks, rules, nameserver)


async def _watch(locks: Mapping[str, LockStore], rules: WatchRules, nameserver: str) -> None:
    import trio

    from gantrymq.cli.signals import ending_by_signal
    from gantrymq.client import connect
    from gantrymq.failover.brokers import query_brokers
    from gantrymq.failover.lock import LockKeeper
    from gantrymq.failover.watcher import Watcher
    from gantrymq.remoting.errors import GantryError

    settings = connect_settings()
    use_everywhere(settings)
    client: Client | None = None
    reason = ""
    tried = trio.Event()

    async def stay_connected() -> None:
        """Connect and reconnect, also if the watcher starts before the nameservers."""
        nonlocal client, reason
        while True:
            try:
                async with connect(nameserver, **settings) as client:
                    tried.set()
                    await trio.sleep_forever()
            except GantryError as error:
                client, reason = None, str(error)
            tried.set()
            await trio.sleep(rules.interval)

    async def ask_brokers(
        name: str, more: Mapping[str, int], without: Collection[str], timeout: float
    ) -> Sequence[dict[str, Any]]:
        await tried.wait()
        if client is None:
            raise GantryError(reason)
        return await query_brokers(client, timeout, name, more, without)

    async with trio.open_nursery() as nursery:
        with ending_by_signal(nursery.cancel_scope.cancel):
            nursery.start_soon(stay_connected)
            for name, lock in locks.items():
                keeper = LockKeeper(lock, _now, rules.interval)
                nursery.start_soon(keeper.run)
                nursery.start_soon(Watcher(name, partial(ask_brokers, name), keeper, _now, rules).run)
            click.echo(f"ready watching={','.join(locks)}")
            await trio.sleep_forever()


def _now() -> float:
    """A clock that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
