"""Find and import plugins: the default ones, and what the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from gantrymq.kernel import hookspecs
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager, did_you_mean

ENTRY_POINTS = "gantrymq.plugins"


def load_plugins(defaults: Sequence[str], enable: Sequence[str] = (), disable: Sequence[str] = ()) -> PluginManager:
    """The default plugins less ``disable``, then ``enable`` in its order. A name is an entry point or ``module:attr``.

    Raises :class:`StartError` for what cannot be found or imported, for an essential plugin that is disabled, and for a
    name in ``disable`` that nobody has.
    """
    found = [(origin, _load(origin)) for origin in (*defaults, *enable)]
    names = {str(getattr(plugin, "name", origin)): plugin for origin, plugin in found}
    for name in disable:
        if name not in names:
            raise StartError(f"cannot disable {name!r}: no such plugin{did_you_mean(name, names)}")
        if getattr(names[name], "essential", False):
            raise StartError(f"cannot disable {name!r}: the broker does not work without it")
    chosen = [(origin, plugin) for origin, plugin in found if getattr(plugin, "name", "") not in disable]
    disabled = [plugin for _, plugin in found if getattr(plugin, "name", "") in disable]
    return PluginManager(chosen, hookspecs, disabled)


def _load(origin: str) -> Any:
    if ":" in origin:
        module_name, _, attribute = origin.partition(":")
        try:
            target: Any = importlib.import_module(module_name)
        except ImportError as error:
            raise StartError(f"plugin {origin!r}: {error}; is its package installed in this environment?") from None
        for part in attribute.split("."):
            target = getattr(target, part, None)
        if target is None:
            raise StartError(f"plugin {origin!r}: module {module_name} has no {attribute!r}")
    else:
        points = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
        if origin not in points:
            raise StartError(
                f"no plugin {origin!r} is installed{did_you_mean(origin, points)}; "
                f"name an entry point of {ENTRY_POINTS} or module:attr"
            )
        try:
            target = points[origin].load()
        except (ImportError, AttributeError) as error:
            raise StartError(f"plugin {origin!r}: {error}") from None
    return target() if isinstance(target, type) else target
