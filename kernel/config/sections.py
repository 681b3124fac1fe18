"""The typed configuration: the kernel's sections and one section per plugin, decoded strictly, with the origin of each
value.

``read_settings`` collects the settings, ``build_config`` converts them after the plugins are loaded::

    settings = read_settings("gantrymq.toml", data, environ, sets, optional=optional_plugins)
    manager = load_plugins(DEFAULT_PLUGINS, settings.enable, settings.disable)
    config = build_config(settings, manager)

Unknown sections and keys, wrong types and values out of range stop the start; one error lists all of them. Only
overrides for a plugin that is not loaded are ignored, with a note.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_type_hints

import attrs

from gantrymq.kernel.config.broker_conf import declared_keys, translate
from gantrymq.kernel.config.declarations import (
    KERNEL_SECTIONS,
    BrokerConfig,
    LimitsSection,
    StoreSection,
    disabled_sections,
    plugin_sections,
)
from gantrymq.kernel.config.fields import HIDDEN, coerce, shown_default
from gantrymq.kernel.config.rocketmq_keys import RocketmqKey, SettingKey
from gantrymq.kernel.config.sources import ConfigError, Origin, Setting, Settings, show
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager, did_you_mean

T = TypeVar("T")

_MARK_KEY = secrets.token_bytes(32)


@attrs.frozen
class ExplainedValue:
    """One value in the form that a user writes, with its origin (``source``: the name of the file or variable).

    A field with ``repr=False`` is a secret, and its value :data:`HIDDEN` unless it is the default. ``mark`` differs
    between two secrets of the same process."""

    section: str
    key: str
    value: object
    origin: Origin
    source: str
    mark: bytes = attrs.field(default=b"", repr=False, eq=False)


@attrs.frozen
class Config:
    """All sections, typed. ``notes``: settings that were read and ignored; ``rocketmq_keys``: declared keys by section
    and key."""

    broker: BrokerConfig
    store: StoreSection
    limits: LimitsSection
    notes: tuple[str, ...] = ()
    rocketmq_keys: Mapping[SettingKey, RocketmqKey] = attrs.field(factory=dict)
    _sections: Mapping[type[Any], Any] = attrs.field(factory=dict, alias="sections")
    _explained: tuple[ExplainedValue, ...] = attrs.field(default=(), alias="explained")

    def section(self, kind: type[T]) -> T:
        """Return the section of this attrs class; ``StartError`` when no loaded plugin declared it."""
        if kind not in self._sections:
            raise StartError(f"no loaded plugin has a configuration section of the class {kind.__qualname__}")
        return cast(T, self._sections[kind])

    def with_section(self, section: object) -> Config:
        """Return a copy in which ``section`` replaces the section of its class."""
        sections = {**self._sections, type(section): section}
        return attrs.evolve(
            self,
            broker=sections[BrokerConfig],
            store=sections[StoreSection],
            limits=sections[LimitsSection],
            sections=sections,
        )

    def explain(self) -> tuple[ExplainedValue, ...]:
        """Return every value with its origin, by section in the order of declaration."""
        return self._explained


def build_config(settings: Settings, manager: PluginManager) -> Config:
    """Convert every section strictly; raises :class:`ConfigError` with all problems."""
    kinds = dict(KERNEL_SECTIONS) | plugin_sections(manager)
    keys = declared_keys(kinds)
    problems: list[str] = []
    settings = _without_unknown_overrides(_with_broker_conf(settings, kinds, manager, problems), kinds)
    problems += _unknown_sections(settings, kinds)
    sections: dict[type[Any], Any] = {}
    explained: list[ExplainedValue] = []
    for name, kind in kinds.items():
        given = {key: setting for (section, key), setting in settings.values.items() if section == name and key}
        values = _read_section(name, kind, given, problems)
        explained += _explain(name, kind, given, values)
        try:
            sections[kind] = kind(**values)
        except (ValueError, TypeError) as error:
            problems.append(f"[{name}]: {_reason(error)}")
    if problems:
        raise ConfigError(problems)
    return Config(
        sections[BrokerConfig],
        sections[StoreSection],
        sections[LimitsSection],
        settings.notes,
        keys,
        sections,
        tuple(explained),
    )


def _with_broker_conf(
    settings: Settings, kinds: Mapping[str, type[Any]], manager: PluginManager, problems: list[str]
) -> Settings:
    """``settings`` with the values of a ``broker.conf`` under the names that the loaded plugins declare, and its
    notes."""
    conf = settings.broker_conf
    if conf is None:
        return settings
    try:
        found = translate(conf.properties, kinds, {**conf.optional, **disabled_sections(manager)})
    except ValueError as error:
        problems.append(f"{conf.path}: {error}")
        return settings
    values = {place: Setting(value, "file", conf.path, True) for place, value in found.settings.items()}
    # which plugins the file enables was decided before they were loaded
    kept = {
        place: setting
        for place, setting in settings.values.items()
        if setting.origin != "file" or place[0] == "plugins"
    }
    notes = [f"{conf.path}: {key} has no counterpart here and is ignored" for key in found.unmapped]
    return attrs.evolve(settings, values=values | kept, notes=(*notes, *settings.notes))


def _without_unknown_overrides(settings: Settings, kinds: Mapping[str, type[Any]]) -> Settings:
    """``settings`` without overrides for plugins that were removed since: the broker has kept them, not the user."""
    known = {*kinds, *(f"plugin.{name}" for name in settings.disable)}
    unknown = {
        place: each
        for place, each in settings.values.items()
        if each.origin == "override" and place[0].startswith("plugin.") and place[0] not in known
    }
    notes = [
        f"{each.source}: {section}.{key} has no effect, because no loaded plugin has the section [{section}]: add the"
        " plugin to the configuration again, or delete the line"
        for (section, key), each in unknown.items()
        if key  # else the section is empty
    ]
    values = {place: each for place, each in settings.values.items() if place not in unknown}
    return attrs.evolve(settings, values=values, notes=(*settings.notes, *notes))


def _unknown_sections(settings: Settings, kinds: Mapping[str, type[Any]]) -> list[str]:
    problems = []
    # the section of a disabled plugin may stay in the file
    known = {*kinds, *(f"plugin.{name}" for name in settings.disable)}
    unknown = {section: setting for (section, _), setting in settings.values.items() if section not in known}
    for section, setting in unknown.items():
        if section.startswith("plugin."):
            names = {name.removeprefix("plugin."): name for name in kinds if name.startswith("plugin.")}
            near = did_you_mean(section.removeprefix("plugin."), names)
            hint = near.replace("'", "'plugin.", 1) or (
                "; is the plugin named in plugins.enable or plugins.load? Loaded plugins have:"
                f" {', '.join(names) or 'none'}"
            )
        elif f"plugin.{section}" in kinds:
            hint = f"; did you mean 'plugin.{section}'?"
        else:
            hint = did_you_mean(section, kinds)
        problems.append(f"[{section}] ({setting.origin} {setting.source}): there is no such section{hint}")
    return problems


def _read_section(name: str, kind: type[Any], given: Mapping[str, Setting], problems: list[str]) -> dict[str, object]:
    """Return the constructor arguments of the section; errors are added to ``problems``."""
    if not given:
        return {}
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
            # only one field is set on top of the defaults, so an error belongs to this field
            kind(**{key: value})
        except (ValueError, TypeError) as error:  # TypeError: of attrs.validators.instance_of, for example
            shown = show(setting.value) if field.repr else HIDDEN
            problems.append(f"{name}.{key} = {shown} {where}: {_reason(error)}")
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
            shown, mark = (values[key], b"") if field.repr else (HIDDEN, _mark_of(values[key]))
            rows.append(ExplainedValue(name, key, shown, given[key].origin, given[key].source, mark))
        elif field.init:
            rows.append(ExplainedValue(name, key, shown_default(field), "default", ""))
    return rows


def _mark_of(secret: object) -> bytes:
    """A hash that only this process can compute: a reload finds a changed secret, and nothing keeps a copy of it."""
    return hashlib.blake2b(repr(secret).encode(), key=_MARK_KEY).digest()


def _reason(error: ValueError | TypeError) -> object:
    """The validators of attrs append the attribute and the value to their text."""
    return error.args[0] if error.args else error
