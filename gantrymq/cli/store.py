"""``gantrymq store``: check and repair the files of a broker, back them up and restore them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import rich_click as click

from gantrymq.cli.loading import ConfigFlags, Loaded, load
from gantrymq.cli.progress import Meter
from gantrymq.kernel.errors import StartError, StoreInUse
from gantrymq.remoting.descriptors import raise_descriptor_limit

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore
    from gantrymq.kernel.store.queues.table import TagCodeRule
    from gantrymq.maintenance.store_check import StoreReport
    from gantrymq.plugins.index.layout import Shape

F = TypeVar("F", bound=Callable[..., Any])
SHOWN = 20


def store_options(function: F) -> F:
    """The options that find a store: its configuration and its folder."""
    config = click.option("--config", metavar="FILE", help="The broker's configuration file.")
    data = click.option("--data", metavar="DIR", help="The store's folder (broker.data).")
    return config(data(function))


@click.group()
def store() -> None:
    """Check and repair the files of a broker, back them up and restore them."""
    raise_descriptor_limit()  # the log is open as a whole, one descriptor for each file


@store.command()
@store_options
@click.option("--deep", is_flag=True, help="Also check the index, properties, and all state files.")
@click.option(
    "--repair",
    is_flag=True,
    help="Correct queue entries, remove damaged index files, with --deep also correct state files; never the log.",
)
@click.option(
    "--quarantine", is_flag=True, help="Note the damaged ranges of the log, so that the broker skips exactly these."
)
@click.option(
    "--cut",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Cut the log off where a damaged range begins; the rest is kept in lost+found.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all ranges, messages and entries.")
def check(
    config: str | None, data: str | None, deep: bool, repair: bool, quarantine: bool, cut: int | None, as_json: bool
) -> int:
    """Check every record of the log, and the queues against the log. The broker must not run.

    Without options, the command changes nothing, and the store may be on a read-only file system. It lists the damaged
    ranges of the log and the messages in them. After a repair or a cut, it lists what remains. The exit code is 1 if
    something is damaged or remains so.
    """
    from gantrymq.kernel.env.system import ReadOnlyEnv, SystemEnv
    from gantrymq.maintenance import store_repair
    from gantrymq.maintenance.store_check import StoreCheck
    from gantrymq.maintenance.store_files import read_state

    if cut is not None and (repair or quarantine):
        raise click.UsageError("--cut cannot be combined with --repair or --quarantine; check again after it")
    loaded = load(ConfigFlags(config=config, data=data))
    root = loaded.config.broker.data
    env = SystemEnv() if repair or quarantine or cut is not None else ReadOnlyEnv()
    read_state(ReadOnlyEnv(), root)  # before the lock, so that no file is created in another folder
    rules, shape, files = _rules(loaded), _shape(loaded), _file_checks(loaded)

    def run() -> StoreReport:
        with Meter("checking the log") as meter:
            return StoreCheck(env, root, shape, rules, deep, lambda at, end: meter.set(at, end), files).run()

    done: dict[str, Any] = {}
    try:
        lock = env.lock(f"{root}/lock")
    except StoreInUse as error:
        holder = f"process {error.process}" if error.process else "another process"
        raise StartError(f"the store {root} is in use by {holder}: stop it first; nothing was changed") from None
    try:
        report = run()
        if quarantine:  # before the repair, which builds queues from the log if its damage is quarantined
            done["quarantined"] = store_repair.quarantine(env, root, report)
        if repair:
            done["repaired"] = attrs.asdict(store_repair.repair(env, root, report, lock, rules))
        if cut is not None:
            done["cut"] = {"offset": cut, "kept": store_repair.cut(env, root, report, cut, lock)}
        if repair or cut is not None:
            report = run()
    finally:
        lock.close()
    if as_json:
        click.echo(json.dumps(_tree(report) | done, indent=2))
    else:
        _print(report, done)
    return 0 if report.ok else 1


@store.command()
@click.argument("target")
@store_options
@click.option("--full", is_flag=True, help="Copy the whole log again, instead of what is new since the last backup.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Delete older backups, so that N remain.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def backup(target: str, config: str | None, data: str | None, full: bool, keep: int | None, as_json: bool) -> None:
    """Back up a store to a folder or a URL (s3://bucket/folder), also while the broker runs.

    The backup has every message that was acknowledged before the command started. A further backup to the same target
    copies only what is new.
    """
    from gantrymq.kernel.env.system import SystemEnv
    from gantrymq.maintenance.backup_targets import open_target
    from gantrymq.maintenance.store_backup import back_up

    root = load(ConfigFlags(config=config, data=data)).config.broker.data
    with Meter("copying the log") as meter:
        report = back_up(
            SystemEnv(), root, open_target(target), full=full, keep=keep,
            progress=lambda done, total: meter.set(done, total),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(attrs.asdict(report), indent=2))
    else:
        size = report.copied_log_bytes + report.copied_state_bytes
        click.echo(f"backup {report.name}: the log up to offset {report.log_end}; {size} bytes were copied")
        if report.deletion_deferred:
            click.echo("another backup runs to this target: objects of older backups are deleted by a later backup")


@store.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per backup.")
def backups(target: str, as_json: bool) -> None:
    """List the backups in a folder or at a URL."""
    from gantrymq.cli.tables import print_rows
    from gantrymq.maintenance.backup_manifest import list_backups, read_backup
    from gantrymq.maintenance.backup_targets import open_target

    place = open_target(target)
    rows = []
    for name in list_backups(place):
        found = read_backup(place, name)
        rows.append(
            {"name": name, "created_ms": found.created, "log_start": found.start, "log_end": found.end}
            | {"bytes": sum(piece.size for piece in (*found.log, *found.state))}
        )
    print_rows(("name", "created_ms", "log_start", "log_end", "bytes"), rows, as_json)


@store.command()
@click.argument("target")
@store_options
@click.option("--backup", "name", metavar="NAME", help="The name of the backup; by default the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def restore(target: str, config: str | None, data: str | None, name: str | None, as_json: bool) -> None:
    """Restore a backup into a new folder (--data) and build its queues. The broker builds the index when it starts."""
    from gantrymq.kernel.env.system import SystemEnv
    from gantrymq.maintenance.backup_targets import open_target
    from gantrymq.maintenance.store_restore import restore as run

    loaded = load(ConfigFlags(config=config, data=data))
    root = loaded.config.broker.data
    with Meter("restoring the log") as meter:
        found = run(
            SystemEnv(), open_target(target), root, name=name, rules=_rules(loaded),
            progress=lambda done, total: meter.set(done, total),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"backup": found.name, "log_start": found.start, "log_end": found.end}, indent=2))
    else:
        click.echo(f"backup {found.name} is restored in {root}: the log from offset {found.start} to {found.end}")


def _file_checks(loaded: Loaded) -> Callable[[StoppedStore], None]:
    """The checks of all plugins' files, also of shipped ones that are not enabled in this configuration."""
    from gantrymq.maintenance.state_check import check_plugin_files
    from gantrymq.plugins import optional_plugins

    return lambda store: check_plugin_files(store, loaded.config, (loaded.manager, optional_plugins()))


def _shape(loaded: Loaded) -> Shape:
    from gantrymq.plugins.index.config import IndexConfig
    from gantrymq.plugins.index.layout import Shape

    try:
        section = loaded.config.section(IndexConfig)
    except StartError:
        section = IndexConfig()
    return Shape(section.slots, section.entries)


def _rules(loaded: Loaded) -> dict[str, TagCodeRule]:
    from gantrymq.plugins.delay.config import DelayConfig
    from gantrymq.plugins.delay.levels.levels import Levels
    from gantrymq.remoting.names import SCHEDULE_TOPIC

    try:
        section = loaded.config.section(DelayConfig)
    except StartError:
        section = DelayConfig()
    return {SCHEDULE_TOPIC: Levels.parse(section.levels).due_code}


def _tree(report: StoreReport) -> dict[str, Any]:
    def plain(_: type, __: Any, value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else value

    tree = attrs.asdict(
        report,
        filter=lambda field, _: field.name != "change",
        value_serializer=lambda owner, field, value: plain(type(owner), field, value),
    )
    return {"ok": report.ok, **tree}


def _print(report: StoreReport, done: dict[str, Any]) -> None:
    from gantrymq.cli.tables import plural

    stopped = "cleanly" if report.stopped_cleanly else "by a crash or a kill"
    click.echo(f"{report.store}: written by {report.written_by}, stopped {stopped}")
    click.echo(
        f"log from offset {report.log_start} to {report.log_end}: {plural(report.records, 'intact record')} and "
        f"{plural(report.queue_entries, 'matching entry', 'matching entries')} in {plural(report.queues, 'queue')}"
    )
    for damage in report.damage:
        click.echo(
            f"damaged: offsets {damage.start} to {damage.end} ({damage.end - damage.start} bytes, {damage.reason})"
            f" {damage.path}: {damage.message_count} messages"
        )
        for message in damage.messages[:SHOWN]:
            click.echo(f"  topic {message.topic}, queue {message.queue}, queue offset {message.queue_offset}")
        _rest(damage.message_count)
    for file in report.files:
        click.echo(f"file: {file.path} {file.reason}")
    for entry in report.wrong_entries[:SHOWN]:
        click.echo(
            f"queue: topic {entry.topic}, queue {entry.queue}, queue offset {entry.queue_offset}: {entry.reason}"
        )
    _rest(report.wrong_entry_count)
    for record in report.suspect_records[:SHOWN]:
        place = f"topic {record.topic}, queue {record.queue}, queue offset {record.queue_offset}"
        click.echo(f"record: {place}: {record.reason}")
    _rest(len(report.suspect_records))
    for index in report.index:
        click.echo(f"index: {index.path}: {index.reason}" + (f" ({index.entries})" if index.entries else ""))
    for finding in report.state:
        kind = "state" if finding.is_damage else "note"
        repair = f"; --repair {finding.repair}" if finding.repair else ""
        click.echo(f"{kind}: {finding.path}: {finding.problem}: {finding.meaning}{repair}")
    if report.tail_bytes:
        records = ", with intact records among them" if report.tail_records else ""
        click.echo(f"tail: the next start cuts off {report.tail_bytes} bytes behind the log's end{records}")
    for name, what in done.items():
        click.echo(f"{name}: {json.dumps(what)}")
    if done.get("repaired", {}).get("queues_left"):
        click.echo("queues_left: restore the log's damaged ranges or quarantine them first (--quarantine --repair)")
    click.echo("nothing is damaged" if report.ok else "the store is damaged")


def _rest(count: int) -> None:
    if count > SHOWN:
        click.echo(f"  ... {count - SHOWN} more; --json lists them")
