"""The brokers of a unit: names, ports and folders, derived from one configuration.

Broker number ``i`` of ``broker-a`` is ``broker-a-i``. Its ports are the configured ones plus ``10 i``, because a broker
uses its port minus 2 and plus 1 too. Its store is the folder of that name in ``broker.data``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from gantrymq.cli.failures import CommandFailed
from gantrymq.remoting.address import format_address, parse_address

if TYPE_CHECKING:
    from gantrymq.cli.loading import ConfigFlags
    from gantrymq.kernel.config.sections import Config

PORT_STRIDE: Final = 10
UNIT_FILE: Final = "processes.json"
"""A file in ``broker.data`` that marks the folder as that of a unit."""
SHIFTED: Final = ("listen", "master", "master_broker")
"""Keys of plugins' sections whose ports are derived: addresses to listen at, and of the master of a slave."""
OF_THE_UNIT: Final = ("plugin.http", "plugin.metrics", "plugin.dashboard")
"""Sections whose address belongs to the unit as a whole."""


@attrs.frozen
class Member:
    """One broker. ``arguments``: the command that runs it, for :class:`gantrymq.cli.server_process.ServerProcess`.

    ``settings`` are those of them that are derived, by section and key.
    """

    name: str
    arguments: Sequence[str]
    settings: Mapping[str, str] = attrs.field(factory=dict)
    cpu: int | None = None


@attrs.frozen
class Layout:
    """All brokers of a unit; ``left_out``: names of stores in the folder that belong to none of them.

    ``pages`` and ``metrics`` are the addresses of the unit's pages; empty if there are none.
    """

    folder: Path
    members: Sequence[Member]
    pages: str
    metrics: str
    left_out: Sequence[str]


class _Marker(msgspec.Struct):
    processes: int
    name: str


def make_layout(config: Config, flags: ConfigFlags, count: int, *, pin: bool, logs: Sequence[str]) -> Layout:
    """Derive the brokers and write the marker into ``broker.data``.

    ``logs`` are the options for the log of each broker.

    :class:`CommandFailed` if the folder has the store of a single broker, or a port would be too large.
    """
    folder = Path(config.broker.data)
    if (folder / "commitlog").exists():
        first = folder / f"{config.broker.name}-0"
        raise CommandFailed(
            f"{folder} has the store of a single broker: name another folder with --data, or stop that broker and move "
            f"the files of {folder} into {first}, which makes it the store of the first process"
        )
    members = _members(config, flags, count, pin=pin, logs=logs)
    names = {member.name for member in members}
    left_out = sorted(path.parent.name for path in folder.glob("*/commitlog") if path.parent.name not in names)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNIT_FILE).write_bytes(msgspec.json.encode(_Marker(count, config.broker.name)) + b"\n")
    pages, metrics = _pages_of(_values_of(config))
    return Layout(folder, members, pages, metrics if pages else "", left_out)


def _members(config: Config, flags: ConfigFlags, count: int, *, pin: bool, logs: Sequence[str]) -> list[Member]:
    cpus = sorted(os.sched_getaffinity(0)) if pin else []
    members = []
    for number in range(count):
        settings = derive(config, number)
        arguments = ["broker", "--number", str(number), *_common(flags), *logs]
        for place, value in settings.items():
            arguments += ["--derived", f"{place}={value}"]
        cpu = cpus[number % len(cpus)] if cpus else None
        members.append(Member(settings["broker.name"], arguments, settings, cpu))
    return members


def derive(config: Config, number: int, at_start: Mapping[str, str] = {}) -> dict[str, str]:
    """The settings of broker ``number`` that others do not have, by section and key; ``config`` is that of all.

    ``at_start``: what was derived when the unit started. It stays as long as it is needed, because brokers that still
    run may use a new address or file, and a new folder has another store.
    """
    values = _values_of(config)
    pages, metrics = _pages_of(values)
    name = f"{config.broker.name}-{number}"
    settings = {
        "broker.name": name,
        "broker.listen": _shifted(config.broker.listen, number),
        "broker.data": str(Path(config.broker.data) / name),
        **_addresses(values, number),
    }
    if pages:  # for this machine only: the unit's pages show them to others
        settings["plugin.http.listen"] = _shifted(f"127.0.0.1:{parse_address(pages, any_port=True)[1]}", number + 1)
    if number and ("plugin.dashboard", "listen") in values:  # one dashboard shows all brokers
        settings["plugin.dashboard.listen"] = ""
    if pages and ("plugin.tls", "pages") in values:  # only the unit's pages, which other machines may read, use TLS
        settings["plugin.tls.pages"] = "plain"
    if metrics and pages:  # read from the broker's pages
        settings["plugin.metrics.listen"] = "127.0.0.1:0"
    elif metrics:
        settings["plugin.metrics.listen"] = _shifted(metrics, number)
    for section, key in (("plugin.audit", "file"), ("plugin.acl", "users")):  # each broker writes its own
        file = str(values.get((section, key), ""))
        if file:
            settings[f"{section}.{key}"] = str(Path(file).with_stem(f"{Path(file).stem}-{number}"))
    export = str(values.get(("plugin.exporter", "to"), ""))
    if export and "{broker}" not in export and values["plugin.exporter", "format"] == "parquet":
        # all brokers may write to one table, but not to one folder of Parquet files
        settings["plugin.exporter.to"] = f"{export.rstrip('/')}/{{broker}}"
    return {place: at_start.get(place, value) for place, value in settings.items()}


def _values_of(config: Config) -> dict[tuple[str, str], object]:
    return {(row.section, row.key): row.value for row in config.explain()}


def _pages_of(values: dict[tuple[str, str], object]) -> tuple[str, str]:
    """The configured addresses of the health pages and the metrics; empty without the plugin."""
    return str(values.get(("plugin.http", "listen"), "")), str(values.get(("plugin.metrics", "listen"), ""))


def refuse_unit(folder: Path) -> None:
    """:class:`CommandFailed` if the folder has the stores of a unit, which a single broker would not see."""
    if (folder / UNIT_FILE).exists():
        marker = _marker_in(folder)
        number = "" if marker is None else f" {marker.processes}"
        raise CommandFailed(
            f"{folder} has the stores of several brokers: start them with --processes{number}, or name another folder "
            "with --data"
        )


def stores_of(folder: Path) -> list[Path]:
    """The folder of each store in ``broker.data``: of each broker of a unit, else this folder itself."""
    marker = _marker_in(folder)
    if marker is None:
        return [folder]
    return [folder / f"{marker.name}-{number}" for number in range(marker.processes)]


def _marker_in(folder: Path) -> _Marker | None:
    """What the folder of a unit says about its brokers; None for another folder, or if it cannot be read."""
    try:
        return msgspec.json.decode((folder / UNIT_FILE).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError):
        return None


def _common(flags: ConfigFlags) -> list[str]:
    arguments = ["--config", flags.config] if flags.config is not None else []
    arguments += ["--insecure"] if flags.insecure else []
    lists = (
        ("--enable", flags.enable),
        ("--plugin", flags.load),
        ("--disable", flags.disable),
        ("--set", flags.sets),
    )
    for option, values in lists:
        for value in values:
            arguments += [option, value]
    return arguments


def _addresses(values: dict[tuple[str, str], object], number: int) -> dict[str, str]:
    places = [("broker", "advertise")]
    places += [
        (section, key)
        for section, key in values
        if section.startswith("plugin.") and key in SHIFTED and section not in OF_THE_UNIT
    ]
    return {
        f"{section}.{key}": _shifted(str(values[section, key]), number)
        for section, key in places
        if values[section, key]
    }


def _shifted(address: str, number: int) -> str:
    """The address with the port of process ``number``; port 0, any free one, stays."""
    host, port = parse_address(address, any_port=True)
    if port:
        port += PORT_STRIDE * number
    if port > 65_535:
        raise CommandFailed(f"process {number} would need the port {port}: choose a lower one than in {address}")
    return format_address(host, port)
