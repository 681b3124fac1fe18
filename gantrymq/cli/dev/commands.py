"""``gantrymq dev``: a cluster on this machine, for development and experiments."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import rich_click as click

from gantrymq.cli.failures import CommandFailed
from gantrymq.remoting.errors import leaves

BROKERS_MAX = 20
SLAVES_MAX = 4
NAMESERVERS_MAX = 4


@click.group()
def dev() -> None:
    """Run a cluster on this machine."""


@dev.command()
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, BROKERS_MAX), help="Number of masters.")
@click.option(
    "--slaves",
    default=0,
    show_default=True,
    type=click.IntRange(0, SLAVES_MAX),
    help="Number of slaves of each master.",
)
@click.option("--nameservers", default=1, show_default=True, type=click.IntRange(1, NAMESERVERS_MAX))
@click.option(
    "--sync", is_flag=True, help="Masters acknowledge a message when a slave has it (plugin.ha.role=sync_master)."
)
@click.option("--data", metavar="DIR", help="Folder to keep all files in; default a temporary folder.")
@click.option("--cluster", default="DevCluster", show_default=True, metavar="NAME", help="The cluster's name.")
@click.option("--base-port", default=0, type=click.IntRange(0, 65000), help="The first port; default any free ports.")
@click.option("--enable", multiple=True, metavar="PLUGIN", help="Add a plugin to all brokers. Repeatable.")
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="A setting for all brokers. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def up(
    brokers: int,
    slaves: int,
    nameservers: int,
    sync: bool,
    data: str | None,
    cluster: str,
    base_port: int,
    enable: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start nameservers, brokers and their slaves, one process each, and show their state.

    The command shows a table in a terminal, and prints lines otherwise. Ctrl-C or SIGTERM stops all servers cleanly.
    With `--data` the next start uses the same messages and ports; without it, the files are deleted at the end, unless
    a server failed. Kill one of the processes to see how the others and your program react.

    With `--enable metrics` each broker serves its metrics two ports above its own. With `--enable dashboard` the first
    broker serves one dashboard for all.
    """
    if sync and not slaves:
        raise click.BadParameter("--sync waits for slaves: give --slaves as well", param_hint="--sync")

    import trio

    from gantrymq.cli.dev.cluster import run_cluster
    from gantrymq.cli.dev.plan import ClusterSpec, held, make_plan
    from gantrymq.cli.dev.view import Lines, LiveTable
    from gantrymq.cli.logs import configure_logs

    configure_logs("error")
    spec = ClusterSpec(cluster, brokers, slaves, nameservers, base_port, sync, settings, enable)
    with ExitStack() as stack:
        folder = Path(data) if data else stack.enter_context(_temporary_folder())
        stack.enter_context(held(folder))
        plan = make_plan(spec, folder)
        if not as_json:
            click.echo(f"starting {len(plan.members)} servers in {folder}")
        view = LiveTable() if sys.stdout.isatty() and not as_json else Lines(as_json)
        trio.run(run_cluster, plan, view)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that is deleted at the end, unless the command failed: the error names logs in it."""
    folder = Path(tempfile.mkdtemp(prefix="gantrymq-dev-"))
    try:
        yield folder
    except BaseException as error:
        if not any(isinstance(leaf, CommandFailed) for leaf in leaves(error)):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
