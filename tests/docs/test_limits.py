"""The page of limits is complete, has the code's values, and gives a reason for each difference from RocketMQ."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from gantrymq.kernel.config.declarations import KERNEL_SECTIONS
from gantrymq.kernel.config.fields import parse_duration, parse_size
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.manager import PluginManager
from gantrymq.nameserver.server import NameServerConfig
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "limits.md"
FOLDERS = (
    "kernel",
    "plugins",
    "gantrymq/remoting",
    "gantrymq/client",
    "gantrymq/nameserver",
    "gantrymq/spark",
    "gantrymq/dashboard",
    "gantrymq/exporter",
)
LIMIT_NAME = re.compile(
    r"(?:^|_)(?:MAX|LIMIT|KEPT|ONCE|USE|REMEMBERED|WAITING|BACKLOG|UNIQUE)(?:_|$)|^SCAN_(?:ENTRIES|BYTES)$"
)
NO_LIMITS = {
    "kernel/store/log/segments.py: _END_MAX": "what fits into 64 bits",
    "plugins/produce/plain.py: _VARYING_MAX": "the digits of three numbers",
    "gantrymq/remoting/fastjson_reader.py: _NUMBER_MAX_LENGTH": "the digits of a number",
    "gantrymq/remoting/lenient_header.py: _EXPONENT_MAX": "Java's int",
    "gantrymq/remoting/lenient_header.py: _NUMBER_MAX_LENGTH": "the digits of a number",
    "gantrymq/remoting/lenient_header.py: _SCALE_MAX": "the digits of a number",
    "gantrymq/spark/columns.py: _MILLIS_MAX": "what fits into a column",
    "plugins/filter/values.py: _INT_MAX": "Java's int",
    "plugins/filter/values.py: _LONG_MAX": "Java's long",
    "plugins/index/plain.py: _INT_MAX": "Java's int",
    "plugins/topics/attributes.py: _LONG_MAX": "Java's long",
    "plugins/topics/admin.py: PERM_MAX": "the bits of a permission",
    "plugins/topics/admin.py: SYS_FLAG_MAX": "the bits of a flag",
    "broker.id": "a number that somebody chose",
    "broker.persist_interval": "an interval",
    "broker.watchdog": "an interval",
    "store.commit_log_file_bytes": "the shape of a file",
    "store.queue_file_units": "the shape of a file",
    "store.queue_extension_file_bytes": "the shape of a file",
    "plugin.acl.interval": "an interval",
    "plugin.audit.interval": "an interval",
    "plugin.otel.export_interval": "an interval",
    "plugin.otel.sample": "a share",
    "plugin.quota.burst": "an interval",
    "plugin.clients.scan_every": "an interval",
    "plugin.exporter.at_bytes": "an interval",
    "plugin.exporter.cores": "the pace of another process",
    "plugin.exporter.every": "an interval",
    "plugin.exporter.file_bytes": "the shape of a file",
    "plugin.exporter.file_rows": "the shape of a file",
    "plugin.exporter.nice": "the priority of another process",
    "plugin.exporter.retry": "an interval",
    "plugin.flush.interval": "an interval",
    "plugin.flush.least_bytes": "an interval",
    "plugin.flush.thorough_interval": "an interval",
    "plugin.ha.heartbeat": "an interval",
    "plugin.ha.ready_lag": "when a page changes",
    "plugin.ha.sync_tables": "an interval",
    "plugin.index.flush_interval": "an interval",
    "plugin.index.sync_interval": "an interval",
    "plugin.index.catch_up_bytes": "the pace of one of our own tasks",
    "plugin.register.interval": "an interval",
    "plugin.retention.check_interval": "an interval",
    "plugin.tls.interval": "an interval",
    "plugin.transaction.check_interval": "an interval",
    "plugin.transaction.file_rows": "the shape of a file",
}
"""Numbers that look like limits and are none, with what they are."""


class Row(NamedTuple):
    table: str
    cells: tuple[str, ...]

    @property
    def where(self) -> str:
        return self.cells[2].strip("`")


def rows() -> list[Row]:
    found, table = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            table = line[3:]
        elif line.startswith("| ") and not table.startswith("Limits of RocketMQ"):
            cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            if cells[2] != "where":
                found.append(Row(table, cells))
    return found


def value_of(text: str) -> float:
    """What a cell says: ``4,096``, ``64 KiB``, ``120 s``."""
    for parse in (parse_size, parse_duration):
        try:
            return float(parse(text.replace(",", "")))
        except ValueError:
            continue
    raise AssertionError(f"{text!r} is neither a number nor a size nor a duration")


def settings() -> Iterator[tuple[str, float]]:
    manager: PluginManager = load_plugins([*DEFAULT_PLUGINS, *OPTIONAL_PLUGINS])
    plugins = [(f"plugin.{name}", kind) for _, (name, kind) in manager.call_each("config_section", tuple)]
    sections: list[tuple[str, Any]] = [*KERNEL_SECTIONS.items(), *plugins]
    for section, kind in sections:
        values = kind()
        for field in attrs.fields(kind):
            value = getattr(values, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield f"{section}.{field.name}", value


def constants() -> Iterator[tuple[str, float]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT)
            module = ".".join(place.with_suffix("").parts)
            text = path.read_text()
            for name in re.findall(r"^([A-Z_]+)(?::[^=]+)? = ", text, re.MULTILINE):
                if LIMIT_NAME.search(name):
                    module = module if module.startswith("gantrymq") else f"gantrymq.{module}"
                    value = getattr(importlib.import_module(module), name)
                    if isinstance(value, int | float):
                        yield f"{place}: {name}", value
    for field in attrs.fields(NameServerConfig):
        if field.name.endswith(("_max", "idle_seconds", "frame_seconds", "write_seconds", "expiry_seconds")):
            yield f"gantrymq/nameserver/server.py: NameServerConfig.{field.name}", field.default  # type: ignore[misc]


@cache
def known() -> dict[str, float]:
    return {**dict(settings()), **dict(constants())}


def test_the_page_lists_exactly_the_limits_of_the_code() -> None:
    listed = [row.where for row in rows()]
    assert len(set(listed)) == len(listed), "each is listed once"
    limits = set(known())
    assert limits >= set(NO_LIMITS)
    missing = limits - set(NO_LIMITS) - set(listed)
    assert not missing, f"not in {PAGE.name}: {sorted(missing)}"
    assert not set(listed) & set(NO_LIMITS)


def code_value(where: str) -> float | None:
    """The value of a setting or a constant, which the page names as ``section.key`` or ``file.py: NAME``."""
    place, _, name = where.partition(": ")
    if (value := known().get(where)) is not None or not name:
        return value
    module = place.removesuffix(".py").replace("/", ".")
    found = importlib.import_module(module if module.startswith("gantrymq") else f"gantrymq.{module}")
    return float(getattr(found, name))


def test_limits_on_the_page_equal_those_of_the_code() -> None:
    assert len(rows()) > 200
    differences = []
    for row in rows():
        page = value_of(row.cells[1]) * (1000 if row.where.endswith("_MS") else 1)
        if page != (value := code_value(row.where)):
            differences.append(f"{row.where}: {page:g} on the page, {value} in the code")
    assert differences == []


def test_a_difference_from_rocketmq_has_a_reason() -> None:
    assert [row.where for row in rows() if not all(row.cells[:4])] == []
    compared = [row for row in rows() if len(row.cells) == 6]
    assert [row.where for row in compared if not row.cells[4]] == [], "what a client sees"
    different = [row for row in compared if re.match(rf"{re.escape(row.cells[1])}\b", row.cells[3]) is None]
    assert different
    assert [row.where for row in different if not row.cells[5]] == [], "a difference without a reason"
