"""Loads the plugins and the typed configuration from the flags of a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import rich_click as click

if TYPE_CHECKING:
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.config.sources import Settings
    from gantrymq.kernel.manager import PluginManager

F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen(kw_only=True)
class ConfigFlags:
    """The values of the flags of :func:`config_options`."""

    config: str | None = None
    data: str | None = None
    listen: str | None = None
    sets: Sequence[str] = ()
    enable: Sequence[str] = ()
    load: Sequence[str] = ()
    disable: Sequence[str] = ()
    insecure: bool = False
    derived: Sequence[str] = ()
    number: int | None = None
    """The number of a broker of a unit, beside the settings that were derived for it when the unit started, see
    :func:`gantrymq.cli.processes.layout.derive`."""


@attrs.frozen
class Loaded:
    """A configuration and its plugins."""

    config: Config
    manager: PluginManager


def config_options(function: F) -> F:
    """The options of every command that reads a configuration."""
    options = (
        click.option(
            "--config",
            metavar="FILE",
            help="Configuration file: TOML, or RocketMQ's broker.conf (*.conf, *.properties).",
        ),
        click.option("--data", metavar="DIR", help="The store's folder (broker.data)."),
        click.option("--listen", metavar="HOST:PORT", help="The address for clients (broker.listen)."),
        click.option(
            "--insecure",
            is_flag=True,
            help="Listen beyond the loopback address without access control (broker.insecure).",
        ),
        click.option(
            "--enable",
            multiple=True,
            metavar="PLUGIN",
            help="Add a plugin: an entry point, module:attr, or ./file.py:attr. Repeatable.",
        ),
        click.option(
            "--plugin",
            "load",
            multiple=True,
            metavar="./FILE.PY:CLASS",
            help="Add a plugin without a package, from a file or as module:attr (plugins.load). Repeatable.",
        ),
        click.option("--disable", multiple=True, metavar="PLUGIN", help="Disable a plugin. Repeatable."),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="SECTION.KEY=VALUE",
            help="Set a value; takes precedence over file and environment. Repeatable.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


class Loader:
    """Loads the configuration of a server at its start, and again while it runs."""

    def __init__(self, flags: ConfigFlags, extra_sets: Sequence[str] = ()) -> None:
        self._flags, self._extra_sets = flags, extra_sets
        self._file: bytes | None = None

    def load(self) -> Loaded:
        """As :func:`load`, with the present file."""
        file = _read_file(self._flags)
        loaded = _load(self._flags, self._extra_sets, file)
        self._file = file
        return loaded

    def load_known(self) -> Loaded:
        """As :func:`load`, with the file as :meth:`load` found it when it last succeeded, and present overrides."""
        return _load(self._flags, self._extra_sets, self._file)


def load(flags: ConfigFlags, extra_sets: Sequence[str] = ()) -> Loaded:
    """Read the file, the environment and the flags, load the plugins, decode the sections; prints notes to stderr.

    It also reads the settings that administrators changed at run time, from the store's folder. Raises ``ConfigError``
    and ``StartError``.
    """
    return _load(flags, extra_sets, _read_file(flags))


def _read_file(flags: ConfigFlags) -> bytes | None:
    from gantrymq.cli.failures import advice_for
    from gantrymq.kernel.config.sources import ConfigError

    try:
        return Path(flags.config).read_bytes() if flags.config is not None else None
    except OSError as error:
        raise ConfigError([f"--config {flags.config}: {advice_for(error)}"]) from None


def _load(flags: ConfigFlags, extra_sets: Sequence[str], data: bytes | None) -> Loaded:
    from gantrymq.cli.failures import warn
    from gantrymq.kernel.config.sections import build_config
    from gantrymq.kernel.config.sources import read_settings
    from gantrymq.kernel.loading import load_plugins
    from gantrymq.plugins import DEFAULT_PLUGINS, optional_plugins

    named = [
        ("broker.data", flags.data),
        ("broker.listen", flags.listen),
        ("broker.insecure", "true" if flags.insecure else None),
    ]
    sets = [*flags.sets, *extra_sets, *(f"{place}={value}" for place, value in named if value is not None)]
    given = (flags.config or "", data, os.environ, sets, flags.enable, flags.disable)
    settings = read_settings(*given, optional=optional_plugins, load=flags.load, derived=flags.derived)
    overrides = _overrides(settings)
    if overrides is not None:
        settings = read_settings(*given, overrides, optional_plugins, flags.load, flags.derived)
    manager = load_plugins(DEFAULT_PLUGINS, settings.enable, settings.disable)
    if flags.number is not None:
        shared = build_config(read_settings(*given, overrides, optional_plugins, flags.load), manager)
        derived = _derive_again(shared, flags.number, flags.derived)
        settings = read_settings(*given, overrides, optional_plugins, flags.load, derived)
    config = build_config(settings, manager)
    for note in config.notes:
        warn(note)
    return Loaded(config, manager)


def _derive_again(config: Config, number: int, at_start: Sequence[str]) -> list[str]:
    """The derived settings of a broker of a unit for the present configuration: for a plugin that was added since the
    unit started it needs an address of its own, and for one that was removed no setting may be left."""
    from gantrymq.cli.processes.layout import derive

    before = {place: value for place, _, value in (text.partition("=") for text in at_start)}
    return [f"{place}={value}" for place, value in derive(config, number, before).items()]


def _overrides(settings: Settings) -> tuple[str, bytes] | None:
    """The file with the settings that administrators changed, in the configured folder; None if there is none."""
    from gantrymq.cli.failures import advice_for
    from gantrymq.kernel.config.declarations import BrokerConfig
    from gantrymq.kernel.config.sources import OVERRIDES_PATH, ConfigError

    place = settings.values.get(("broker", "data"))
    folder = place.value if place is not None else attrs.fields(BrokerConfig).data.default
    path = Path(str(folder)) / OVERRIDES_PATH
    try:
        return str(path), path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError([f"{path}: {advice_for(error)}"]) from None
