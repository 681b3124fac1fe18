"""``gantrymq serve``, ``gantrymq broker`` and ``gantrymq nameserver``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from gantrymq.cli.end_deadline import ending_in_time
from gantrymq.cli.loading import ConfigFlags, Loaded, Loader, config_options
from gantrymq.cli.logs import configure_logs, log_options
from gantrymq.cli.own_nameserver import OwnNameserver
from gantrymq.remoting.advice import SERVER, use_advice

DEFAULT_NAMESERVER = "127.0.0.1:9876"
PROCESSES_MAX = 64
F = TypeVar("F", bound=Callable[..., Any])


def processes_options(function: F) -> F:
    """The options of the commands that can run several brokers."""
    options = (
        click.option(
            "--processes",
            type=click.IntRange(1, PROCESSES_MAX),
            metavar="N",
            help="Run N brokers, a process each, as one unit, to use more processors.",
        ),
        click.option("--pin", is_flag=True, help="With --processes: run each broker on one processor only."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@config_options
@click.option(
    "--nameserver-listen",
    default=DEFAULT_NAMESERVER,
    show_default=True,
    envvar="GANTRYMQ_NAMESERVER_LISTEN",
    show_envvar=True,
    metavar="HOST:PORT",
    help="The address of the nameserver.",
)
@click.option(
    "--nameserver-peers",
    metavar="ADDRESS[,NETWORK]",
    help="Addresses, besides this machine, that may change routes: 10.0.0.0/24.",
)
@click.option(
    "--nameserver-access",
    metavar="FILE",
    help="Who may change routes: keys and certificates with the broker names of each (TOML).",
)
@click.option("--nameserver-audit", metavar="FILE", help="Append changes and refusals of the nameserver to this file.")
@processes_options
@log_options
def serve(
    nameserver_listen: str,
    nameserver_peers: str | None,
    nameserver_access: str | None,
    nameserver_audit: str | None,
    processes: int | None,
    pin: bool,
    log_level: str,
    log_file: str | None,
    **flags: Any,
) -> None:
    """Run nameserver and broker in one process, or several brokers with `--processes`.

    Clients can connect when a line that begins with `ready` appears. SIGTERM or Ctrl-C stops cleanly; another one,
    half a second later or more, ends the process at once.
    """
    logs = _start_logs(log_level, log_file)
    access = None if nameserver_access is None else Path(nameserver_access)
    audit = None if nameserver_audit is None else Path(nameserver_audit)
    own = OwnNameserver(nameserver_listen, _listed(nameserver_peers), access, audit)
    _run(ConfigFlags(**flags), [], processes, pin, logs, own)


@click.command()
@config_options
@click.option(
    "--nameserver", metavar="HOST:PORT[;HOST:PORT]", help="Nameservers to register with (broker.nameservers)."
)
@click.option("--derived", multiple=True, hidden=True)
@click.option("--number", type=int, hidden=True)
@processes_options
@log_options
def broker(
    nameserver: str | None, processes: int | None, pin: bool, log_level: str, log_file: str | None, **flags: Any
) -> None:
    """Run only a broker, which registers with one or more nameservers, GantryMQ's or RocketMQ's."""
    logs = _start_logs(log_level, log_file)
    sets = [f"broker.nameservers={nameserver}"] if nameserver is not None else []
    _run(ConfigFlags(**flags), sets, processes, pin, logs)


@click.command()
@click.option(
    "--listen", default=DEFAULT_NAMESERVER, show_default=True, metavar="HOST:PORT", help="The address to listen on."
)
@click.option("--data", metavar="DIR", help="Folder for the KV config; without it, the KV config is lost at the stop.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=true|false",
    help="A switch by RocketMQ's name: supportActingMaster=true. Repeatable.",
)
@click.option(
    "--peers",
    envvar="GANTRYMQ_NAMESERVER_PEERS",
    show_envvar=True,
    metavar="ADDRESS[,NETWORK]",
    help="Addresses, besides this machine, that may change routes: 10.0.0.7,10.0.1.0/24.",
)
@click.option(
    "--access",
    metavar="FILE",
    help="Who may change routes: keys and certificates with the broker names of each (TOML).",
)
@click.option("--audit", metavar="FILE", help="Append administrative changes and refusals to this file.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus at this address, path /metrics.")
@click.option("--insecure", is_flag=True, help="Let every machine that can connect change routes.")
@click.option("--tls-certificate", metavar="FILE", help="Speak TLS with this certificate (PEM, with its chain).")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key, if it is in another file.")
@click.option("--tls-ca", metavar="FILE", help="Clients must show a certificate of these authorities.")
@click.option(
    "--tls-name",
    "tls_names",
    multiple=True,
    metavar="NAME=FILE",
    help="A further certificate with its key (PEM), for clients that ask for this server's name (SNI). Repeatable.",
)
@click.option(
    "--tls-test-mode",
    is_flag=True,
    help="Speak TLS with a certificate that the nameserver makes at its start, as RocketMQ's tls.test.mode.enable.",
)
@click.option("--tls-permissive", is_flag=True, help="With TLS: serve plain connections at the same port, too.")
@log_options
def nameserver(
    listen: str,
    data: str | None,
    settings: tuple[str, ...],
    peers: str | None,
    access: str | None,
    audit: str | None,
    metrics: str | None,
    insecure: bool,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    tls_names: tuple[str, ...],
    tls_test_mode: bool,
    tls_permissive: bool,
    log_level: str,
    log_file: str | None,
) -> None:
    """Run only a nameserver."""
    _start_logs(log_level, log_file)

    import trio

    from gantrymq.cli.own_nameserver import NameserverTls
    from gantrymq.cli.servers import run_nameserver
    from gantrymq.cli.signals import reopening_by_signal
    from gantrymq.remoting.tls import ServerTls

    tls = None
    if tls_test_mode:
        if tls_certificate or tls_key or tls_ca or tls_names:
            raise click.UsageError("--tls-test-mode makes the certificate: leave out other options for certificates")
        tls = NameserverTls(ServerTls("", test_mode=True), enforcing=not tls_permissive)
    elif tls_certificate is not None:
        kind = "none" if tls_ca is None else "required"
        files = ServerTls(tls_certificate, tls_key or "", tls_ca or "", kind, names=_named(tls_names))
        tls = NameserverTls(files, enforcing=not tls_permissive)
    elif tls_key or tls_ca or tls_names or tls_permissive:
        raise click.UsageError("--tls-key, --tls-ca, --tls-name and --tls-permissive need --tls-certificate")
    kv_path = Path(data) / "kvConfig.json" if data is not None else None
    access_path = None if access is None else Path(access)
    audit_path = None if audit is None else Path(audit)
    with use_advice(SERVER), reopening_by_signal(), ending_in_time() as deadline:
        trio.run(
            run_nameserver, deadline, listen, kv_path, settings, _listed(peers), insecure, tls, access_path, audit_path,
            metrics,
        )  # fmt: skip


def _named(given: Sequence[str]) -> dict[str, str]:
    """The files of certificates by the server's name."""
    pairs = [text.partition("=") for text in given]
    for name, _, file in pairs:
        if not name or not file:
            raise click.UsageError("--tls-name takes NAME=FILE, such as mq.example.org=public.pem")
    return {name: file for name, _, file in pairs}


def _run(
    flags: ConfigFlags,
    sets: Sequence[str],
    processes: int | None,
    pin: bool,
    logs: Sequence[str],
    nameserver: OwnNameserver | None = None,
) -> None:
    """Run one broker in this process, or several ones as its children."""
    if pin and processes is None:
        raise click.UsageError("--pin needs --processes")
    loader = Loader(flags, sets)
    loaded = loader.load()

    import trio

    if processes is None:
        from gantrymq.cli.processes.layout import refuse_unit
        from gantrymq.cli.servers import run_broker
        from gantrymq.cli.signals import reopening_by_signal

        refuse_unit(Path(loaded.config.broker.data))
        with use_advice(SERVER), reopening_by_signal(), ending_in_time() as deadline:
            trio.run(run_broker, loaded, loader.load, deadline, nameserver, loader.load_known)
    else:
        _run_unit(loaded, flags, sets, processes, pin, logs, nameserver)


def _run_unit(
    loaded: Loaded,
    flags: ConfigFlags,
    sets: Sequence[str],
    processes: int,
    pin: bool,
    logs: Sequence[str],
    nameserver: OwnNameserver | None,
) -> None:
    import attrs
    import trio

    from gantrymq.cli.processes.layout import make_layout
    from gantrymq.cli.processes.unit import run_unit

    flags = attrs.evolve(flags, sets=[*flags.sets, *sets])
    layout = make_layout(loaded.config, flags, processes, pin=pin, logs=logs)

    with use_advice(SERVER), ending_in_time() as deadline:
        trio.run(run_unit, loaded, layout, deadline, nameserver)


def _start_logs(level: str, file: str | None) -> list[str]:
    """Set the log up; returns the options with which a child process logs in the same way."""
    try:
        configure_logs(level, file)
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--log-file") from None
    return ["--log-level", level, *(["--log-file", file] if file is not None else [])]


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
