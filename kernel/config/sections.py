"""The typed configuration: the kernel's sections, one section a plugin, decoded strictly, with each value's origin.

``read_settings`` gathers what was set, ``build_config`` types it once the plugins are loaded::

    settings = read_settings("gantrymq.toml", data, environ, sets)
    manager = load_plugins(DEFAULT_PLUGINS, settings.enable, settings.disable)
    config = build_config(settings, manager)

An unknown section or key, a wrong type and a value out of range refuse the start, all of them in one error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_type_hints

import attrs

from gantrymq.kernel.config.fields import (
    address,
    check_address,
    coerce,
    duration,
    filled,
    number,
    parse_duration,
    parse_size,
    shown_default,
    size,
)
from gantrymq.kernel.config.sources import ConfigError, Origin, Setting, Settings, read_settings, show
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager, did_you_mean

__all__ = [
    "BrokerConfig",
    "Config",
    "ConfigError",
    "ExplainedValue",
    "LimitsSection",
    "PluginsSection",
    "Settings",
    "StoreSection",
    "address",
    "build_config",
    "duration",
    "filled",
    "number",
    "parse_duration",
    "parse_size",
    "read_settings",
    "show",
    "size",
]


def _check_nameservers(_instance: object, _attribute: attrs.Attribute[list[str]], value: list[str]) -> None:
    for item in value:
        check_address(item)


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """Section ``[broker]``: who it is, where it listens, where it keeps its files."""

    name: str = filled("broker-a")
    cluster: str = filled("DefaultCluster")
    id: int = number(0, 0)
    listen: str = address("127.0.0.1:10911", any_port=True)
    advertise: str = address("", optional=True)
    """What clients are told; empty: the address it listens on."""
    data: str = filled("./gantrymq-data")
    nameservers: list[str] = attrs.field(factory=lambda: ["127.0.0.1:9876"], validator=_check_nameservers)
    persist_interval: float = duration("5s", minimum="10ms", maximum="1h")
    insecure: bool = False
    """Whether it may listen beyond the loopback address although nothing controls access (``--insecure``)."""
    watchdog: float = duration("2s", minimum="0s", maximum="1h")
    """How long the loop may stand still before the log says who holds it; 0: nobody looks."""


@attrs.frozen(kw_only=True)
class StoreSection:
    """Section ``[store]``: the shape of the files. The file sizes of an existing store must not change."""

    commit_log_file_bytes: int = size("1 GiB", minimum="4 KiB", maximum="2 GiB")
    queue_file_units: int = number(300_000, 1, 100_000_000)
    queue_extension: bool = False
    """Whether tag codes and store times go to consumequeue_ext (RocketMQ's enableConsumeQueueExt)."""
    queue_extension_file_bytes: int = size("48 MiB", minimum="64 B", maximum="1 GiB")
    max_message_bytes: int = size("4 MiB", minimum=1, maximum="16 MiB")
    clock_ahead_max: float = duration("1h", maximum="36500d")
    """How far the last message's time may be ahead of the machine's clock; a master that finds more does not start."""


@attrs.frozen(kw_only=True)
class LimitsSection:
    """Section ``[limits]``: everything that arrives from outside has a bound."""

    connections: int = number(10_000, 1, 1_000_000)
    connections_per_address: int = number(0, 0, 1_000_000)
    """How many of them one address may have; 0: as many as there is room for. While all are taken, the address that has
    most gives way to one that has fewer."""
    frame_bytes: int = size("16 MiB", minimum="1 KiB", maximum="1 GiB")
    write_buffer_bytes: int = size("8 MiB", minimum="64 KiB", maximum="1 GiB")
    buffered_bytes: int = size("256 MiB", minimum="256 KiB", maximum="64 GiB")
    """What all connections together may have sent of unfinished frames, and as much that they have not yet taken of
    their answers; who has most is closed first."""
    unacknowledged_bytes: int = size("64 MiB", minimum="64 KiB", maximum="16 GiB")
    sweep_bytes: int = size("8 MiB", minimum="4 KiB", maximum="256 MiB")
    sweep_rows: int = number(4096, 1, 65_536)
    turn_budget: float = duration("5ms", minimum="1ms", maximum="1s")
    """How long requests that carry no message are answered in one turn; those that are left wait for the next one."""
    requests_in_flight: int = number(64, 1, 65_536)
    """Requests of one connection that tasks work on at a time; its further requests wait."""
    heavy_requests: int = number(2, 1, 256)
    """Requests with large answers that are worked on at a time, of all connections together."""
    request_body_bytes: int = size("8 MiB", minimum="64 KiB", maximum="1 GiB")
    """The body of a request that carries no message."""
    waiting_bytes: int = size("64 MiB", minimum="1 MiB", maximum="64 GiB")
    """What requests may take in memory that wait or are worked on; beyond, each is answered SYSTEM_BUSY."""
    idle: float = duration("120s", minimum="100ms", maximum="1d")
    first_frame: float = duration("10s", minimum="100ms", maximum="1d")
    frame_deadline: float = duration("15s", minimum="100ms", maximum="1h")


@attrs.frozen(kw_only=True)
class PluginsSection:
    """Section ``[plugins]``: names added behind the default plugins, and names taken out."""

    enable: list[str] = attrs.field(factory=list)
    disable: list[str] = attrs.field(factory=list)


KERNEL_SECTIONS: Mapping[str, type[Any]] = {
    "broker": BrokerConfig,
    "store": StoreSection,
    "limits": LimitsSection,
    "plugins": PluginsSection,
}

T = TypeVar("T")


@attrs.frozen
class ExplainedValue:
    """One value, as a user would write it, and where it came from (``source``: the file or variable by name)."""

    section: str
    key: str
    value: object
    origin: Origin
    source: str


@attrs.frozen
class Config:
    """All sections, typed. ``notes``: what was read and ignored."""

    broker: BrokerConfig
    store: StoreSection
    limits: LimitsSection
    notes: tuple[str, ...] = ()
    _sections: Mapping[type[Any], Any] = attrs.field(factory=dict, alias="sections")
    _explained: tuple[ExplainedValue, ...] = attrs.field(default=(), alias="explained")

    def section(self, kind: type[T]) -> T:
        """The section of this attrs class; ``StartError`` when no loaded plugin declared it."""
        if kind not in self._sections:
            raise StartError(f"no loaded plugin has a configuration section of the class {kind.__qualname__}")
        return cast(T, self._sections[kind])

    def with_section(self, section: object) -> Config:
        """A copy in which ``section`` stands for the one of its class."""
        sections = {**self._sections, type(section): section}
        return Config(
            sections[BrokerConfig],
            sections[StoreSection],
            sections[LimitsSection],
            self.notes,
            sections,
            self._explained,
        )

    def explain(self) -> tuple[ExplainedValue, ...]:
        """Every value with its origin, by section in the order of declaration."""
        return self._explained


def build_config(settings: Settings, manager: PluginManager) -> Config:
    """Type every section strictly; raises :class:`ConfigError` with all problems."""
    kinds = dict(KERNEL_SECTIONS) | _plugin_sections(manager)
    problems = _unknown_sections(settings, kinds)
    sections: dict[type[Any], Any] = {}
    explained: list[ExplainedValue] = []
    for name, kind in kinds.items():
        given = {key: setting for (section, key), setting in settings.values.items() if section == name and key}
        values = _read_section(name, kind, given, problems)
        explained += _explain(name, kind, given, values)
        try:
            sections[kind] = kind(**values)
        except ValueError as error:
            problems.append(f"[{name}]: {_reason(error)}")
    if problems:
        raise ConfigError(problems)
    return Config(
        sections[BrokerConfig],
        sections[StoreSection],
        sections[LimitsSection],
        settings.notes,
        sections,
        tuple(explained),
    )


def _plugin_sections(manager: PluginManager) -> dict[str, type[Any]]:
    sections: dict[str, type[Any]] = {}
    owners: dict[str, str] = {}
    for info, answer in manager.by_plugin("config_section", tuple):
        pair: tuple[Any, Any] = answer if len(answer) == 2 else ("?", None)
        name, section = pair
        if name in owners:
            raise StartError(
                f"plugins {owners[name]!r} and {info.name!r} both have the section [plugin.{name}]: disable one of them"
            )
        fields = attrs.fields(section) if isinstance(section, type) and attrs.has(section) else None
        if fields is None or any(field.init and field.default is attrs.NOTHING for field in fields):
            raise StartError(
                f"plugin {info.name!r}: section [plugin.{name}] needs an attrs class with a default for every field"
            )
        owners[name] = info.name
        sections[f"plugin.{name}"] = section
    return sections


def _unknown_sections(settings: Settings, kinds: Mapping[str, type[Any]]) -> list[str]:
    problems = []
    # the section of a plugin that is switched off may stay where it is
    known = {*kinds, *(f"plugin.{name}" for name in settings.disable)}
    unknown = {section: setting for (section, _), setting in settings.values.items() if section not in known}
    for section, setting in unknown.items():
        if section.startswith("plugin."):
            names = {name.removeprefix("plugin."): name for name in kinds if name.startswith("plugin.")}
            near = did_you_mean(section.removeprefix("plugin."), names)
            hint = near.replace("'", "'plugin.", 1) or (
                f"; is the plugin named in plugins.enable? Loaded plugins have: {', '.join(names) or 'none'}"
            )
        elif f"plugin.{section}" in kinds:
            hint = f"; did you mean 'plugin.{section}'?"
        else:
            hint = did_you_mean(section, kinds)
        problems.append(f"[{section}] ({setting.origin} {setting.source}): there is no such section{hint}")
    return problems


def _read_section(name: str, kind: type[Any], given: Mapping[str, Setting], problems: list[str]) -> dict[str, object]:
    """Constructor arguments of the section; what is wrong is added to ``problems``."""
    fields = {field.alias or field.name: field for field in attrs.fields(kind) if field.init}
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for key, setting in given.items():
        where = f"({setting.origin} {setting.source})"
        if key not in fields:
            hint = did_you_mean(key, fields) or f"; there are: {', '.join(fields) or 'none'}"
            problems.append(f"{name}.{key} {where}: there is no such key{hint}")
            continue
        field = fields[key]
        try:
            value = coerce(setting.value, hints[field.name], field, setting.is_text)
            # one field alone on top of the defaults: an error is this field's and no other's
            kind(**{key: value})
        except ValueError as error:
            problems.append(f"{name}.{key} = {show(setting.value)} {where}: {_reason(error)}")
        else:
            values[key] = value
    return values


def _explain(
    name: str, kind: type[Any], given: Mapping[str, Setting], values: Mapping[str, object]
) -> list[ExplainedValue]:
    rows = []
    for field in attrs.fields(kind):
        key = field.alias or field.name
        if field.init and key in values:
            rows.append(ExplainedValue(name, key, values[key], given[key].origin, given[key].source))
        elif field.init:
            rows.append(ExplainedValue(name, key, shown_default(field), "default", ""))
    return rows


def _reason(error: ValueError) -> object:
    """attrs' own validators put the attribute and the value behind their text."""
    return error.args[0] if error.args else error
