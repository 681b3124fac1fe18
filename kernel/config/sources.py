"""The settings by source: file, overrides, environment, flags; merged, not yet typed.

This is the first of two steps: it yields the names of the plugins to load, and only the loaded plugins know the types
of their sections (:mod:`gantrymq.kernel.config.sections`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs

from gantrymq.kernel.config.broker_conf import BrokerConf, translate
from gantrymq.kernel.config.declarations import KERNEL_SECTIONS, plugin_sections
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.remoting.javaproperties import read_properties

Origin = Literal["default", "file", "override", "environment", "flag"]
OVERRIDES_PATH = "config/overrides.toml"
"""A file in the store's folder with the settings that administrators changed while the broker ran, as TOML."""
ENVIRONMENT_PREFIX = "GANTRYMQ_"
PROPERTIES_SUFFIXES = (".conf", ".properties")
DERIVED = "--processes"
"""The source of values that a unit of brokers derives, not the user."""


class ConfigError(StartError):
    """The configuration is invalid. ``problems``: all errors, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@attrs.frozen
class Setting:
    """One raw value. ``source``: the name of the file or variable; ``is_text``: it must be converted to its type."""

    value: object
    origin: Origin
    source: str
    is_text: bool


@attrs.frozen
class Settings:
    """All settings by ``(section, key)``; later origins replace earlier ones. ``notes``: messages for the user.

    ``broker_conf``: the file, if it is RocketMQ's; its values for plugins are translated after these are loaded.
    """

    values: Mapping[tuple[str, str], Setting]
    enable: tuple[str, ...]
    disable: tuple[str, ...]
    notes: tuple[str, ...]
    broker_conf: BrokerConf | None = None


def read_settings(
    path: str = "",
    data: bytes | None = None,
    environ: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    overrides: tuple[str, bytes] | None = None,
    optional: Callable[[], PluginManager] | None = None,
    load: Sequence[str] = (),
    derived: Sequence[str] = (),
) -> Settings:
    """Merge a file's bytes (``path`` only names it), the environment and flags; later ones take precedence.

    ``overrides``: name and bytes of the file of :data:`OVERRIDES_PATH`, whose precedence is between file and
    environment.

    ``*.conf`` and ``*.properties`` are RocketMQ's properties, all else is TOML. ``sets`` are ``section.key=value``;
    ``enable``, ``load`` and ``disable`` add to the lists of ``[plugins]``. ``derived``, of the same form as ``sets``,
    takes precedence over all; its source is :data:`DERIVED`. ``optional`` loads the plugins that RocketMQ's properties
    enable by setting a key of their sections. Raises :class:`ConfigError`.
    """
    values: dict[tuple[str, str], Setting] = {}
    problems: list[str] = []
    notes: list[str] = []
    broker_conf = None
    if data is not None and path.endswith(PROPERTIES_SUFFIXES):
        broker_conf, found = _from_properties(path, data, problems, optional)
        values.update(found)
    elif data is not None:
        values.update(_from_toml(path, data, problems))
    overridden: dict[tuple[str, str], Setting] = {}
    if overrides is not None:
        overridden = _from_toml(*overrides, problems, "override")
    values.update(overridden)
    values.update(_from_environment(environ or {}))
    values.update(_from_flags(sets, problems))
    values.update(_from_flags(derived, problems, DERIVED))
    notes += [
        f"{setting.source}: {place[0]}.{place[1]} = {show(setting.value)} has no effect: {values[place].origin} "
        f"{values[place].source} takes precedence"
        for place, setting in overridden.items()
        if values[place] is not setting
    ]
    given = (("enable", "--enable", enable), ("load", "--plugin", load), ("disable", "--disable", disable))
    names = {key: tuple(dict.fromkeys((*_names(values, key, problems), *added))) for key, _, added in given}
    for key, flag, added in given:
        if added:
            values["plugins", key] = Setting(list(names[key]), "flag", flag, False)
    if problems:
        raise ConfigError(problems)
    chosen = (*names["enable"], *names["load"])
    return Settings(values, chosen, names["disable"], tuple(notes), broker_conf)


_ESCAPES = {
    **{number: f"\\u{number:04x}" for number in (*range(0x20), 0x7F)},
    ord("\n"): "\\n",
    ord('"'): '\\"',
    ord("\\"): "\\\\",
}
"""How a basic string of TOML has the characters that it does not have as they are."""


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def show(value: object) -> str:
    """Return a value in TOML form, for messages and for files that a broker reads."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.translate(_ESCAPES) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{show_key(key)} = {show(item)}" for key, item in value.items()) + "}"
    return str(value)


def show_key(key: str) -> str:
    """Return a key in TOML form."""
    return key if _BARE_KEY.fullmatch(key) else show(key)


def show_section(section: str) -> str:
    """Return the header of a section in TOML form. A plugin's name is one key, even with a dot."""
    name = section.removeprefix("plugin.")
    return f"[plugin.{show_key(name)}]" if name != section else f"[{show_key(name)}]"


def _names(values: Mapping[tuple[str, str], Setting], key: str, problems: list[str]) -> tuple[str, ...]:
    setting = values.get(("plugins", key))
    if setting is None:
        return ()
    value = setting.value
    if setting.is_text and isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        problems.append(
            f"plugins.{key} = {show(value)} ({setting.origin} {setting.source}): allowed: a list of names, "
            'each an entry point, "module:attr", or "./file.py:attr"'
        )
        return ()
    return tuple(value)


def _from_toml(path: str, data: bytes, problems: list[str], origin: Origin = "file") -> dict[tuple[str, str], Setting]:
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(f"{path}: invalid TOML: {error}")
        return {}
    values: dict[tuple[str, str], Setting] = {}
    sections = [(name, table) for name, table in document.items() if name != "plugin"]
    plugins = document.get("plugin", {})
    if isinstance(plugins, dict):
        sections += [(f"plugin.{name}", table) for name, table in plugins.items()]
    else:
        sections.append(("plugin", plugins))
    for section, table in sections:
        if not isinstance(table, dict):
            problems.append(f"{path}: {section} = {show(table)} is outside of a section such as [broker]")
            continue
        for key, value in table.items():
            values[section, key] = Setting(value, origin, path, False)
        if not table:
            # an empty section has no values, but its name is still checked
            values[section, ""] = Setting(None, origin, path, False)
    return values


def _from_properties(
    path: str, data: bytes, problems: list[str], optional: Callable[[], PluginManager] | None
) -> tuple[BrokerConf | None, dict[tuple[str, str], Setting]]:
    """Return the file with its values for the kernel and for optional plugins, which it enables by setting them."""
    manager = optional() if optional is not None else None
    sections = plugin_sections(manager) if manager is not None else {}
    try:
        conf = BrokerConf(path, read_properties(data), sections)
        found = dict(translate(conf.properties, KERNEL_SECTIONS, sections).settings)
    except ValueError as error:
        problems.append(f"{path}: {error}")
        return None, {}
    enabled = [name for name in sections if any(section == name for section, _ in found)]
    if enabled:
        found["plugins", "enable"] = ",".join(name.removeprefix("plugin.") for name in enabled)
    return conf, {place: Setting(value, "file", path, True) for place, value in found.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[tuple[str, str], Setting]:
    """``GANTRYMQ_BROKER__NAME``, ``GANTRYMQ_PLUGIN__FLUSH__MODE``; without ``__`` it is not a setting."""
    values: dict[tuple[str, str], Setting] = {}
    for name, value in sorted(environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            *section, key = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            values[".".join(section), key] = Setting(value, "environment", name, True)
    return values


def _from_flags(sets: Sequence[str], problems: list[str], source: str = "--set") -> dict[tuple[str, str], Setting]:
    values: dict[tuple[str, str], Setting] = {}
    for text in sets:
        place, equals, value = text.partition("=")
        section, dot, key = place.strip().rpartition(".")
        if not equals or not dot or not section or not key:
            problems.append(f"--set {text}: allowed: section.key=value, such as broker.name=broker-b")
            continue
        values[section, key] = Setting(value, "flag", source, True)
    return values
