"""Find and import plugins: the default ones, and those that the configuration names.

A plugin is named by its entry point, as ``module:attr`` of an installed module, or as ``./file.py:attr``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

from gantrymq.kernel import hookspecs
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager, did_you_mean

ENTRY_POINTS = "gantrymq.plugins"


def load_plugins(defaults: Sequence[str], enable: Sequence[Any] = (), disable: Sequence[str] = ()) -> PluginManager:
    """Return the default plugins without ``disable``, then ``enable`` in its order, each named as described above.

    ``enable`` may also have plugins themselves, as a class or an object. Raises :class:`StartError` for a plugin that
    cannot be found or imported or has the name of a default one, for a disabled essential plugin, and for an unknown
    name in ``disable``.
    """
    found = [_load(origin) for origin in (*defaults, *enable)]
    _check_names(found[: len(defaults)], found[len(defaults) :])
    names = {str(getattr(plugin, "name", origin)): plugin for origin, plugin in found}
    for name in disable:
        if name not in names:
            raise StartError(f"cannot disable {name!r}: no such plugin{did_you_mean(name, names)}")
        if getattr(names[name], "essential", False):
            raise StartError(f"cannot disable {name!r}: the broker does not work without it")
    chosen = [(origin, plugin) for origin, plugin in found if getattr(plugin, "name", "") not in disable]
    disabled = [plugin for _, plugin in found if getattr(plugin, "name", "") in disable]
    return PluginManager(chosen, hookspecs, disabled)


def _check_names(defaults: Sequence[tuple[str, Any]], enabled: Sequence[tuple[str, Any]]) -> None:
    """Refuse the name of a default plugin also if that one is disabled, because ``disable`` means both then."""
    taken = {getattr(plugin, "name", None): (origin, plugin) for origin, plugin in defaults}
    for origin, plugin in enabled:
        name = getattr(plugin, "name", None)
        if name is not None and name in taken:
            first, known = taken[name]
            cure = "it is a default plugin, remove it from those to enable"
            if type(plugin) is not type(known):
                cure = "give yours a name of its own"
            raise StartError(f"two plugins are called {name!r}: {first} and {origin}; {cure}")


def _load(origin: Any) -> tuple[str, Any]:
    """Return the origin as text and the plugin; a class is instantiated."""
    target = _find(origin) if isinstance(origin, str) else origin
    try:
        plugin = target() if isinstance(target, type) else target
    except StartError:
        raise
    except Exception as error:
        raise StartError(f"plugin {origin!r}: its class failed: {error!r}") from error
    return origin if isinstance(origin, str) else f"{type(plugin).__module__}:{type(plugin).__qualname__}", plugin


def _find(origin: str) -> Any:
    if ":" in origin:
        module_name, _, attribute = origin.rpartition(":")
        target: Any = _run_file(origin, module_name) if module_name.endswith(".py") else _import(origin, module_name)
        for part in attribute.split("."):
            target = getattr(target, part, None)
        if target is None:
            raise StartError(f"plugin {origin!r}: module {module_name} has no {attribute!r}")
    else:
        points = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
        if origin not in points:
            raise StartError(
                f"no plugin {origin!r} is installed{did_you_mean(origin, points)}; "
                f"name an entry point of {ENTRY_POINTS}, module:attr, or ./file.py:attr"
            )
        try:
            target = points[origin].load()
        except (ImportError, AttributeError) as error:
            raise StartError(f"plugin {origin!r}: {error}") from None
        except Exception as error:
            raise StartError(f"plugin {origin!r}: its module failed: {error!r}") from error
    return target


def _import(origin: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StartError(f"plugin {origin!r}: {error}; is its package installed in this environment?") from None
    except Exception as error:
        raise StartError(f"plugin {origin!r}: module {name} failed: {error!r}") from error


def _run_file(origin: str, path: str) -> ModuleType:
    """Return the module in the file ``path``, which need not be on Python's path; modules beside it cannot be
    imported."""
    name = "plugin_file_" + path.rpartition("/")[2].removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path.removeprefix("./"))
    if spec is None or spec.loader is None:
        raise StartError(f"plugin {origin!r}: {path} cannot be loaded as a module")
    known = sys.modules.get(name)
    if known is not None and known.__file__ == spec.origin:
        return known
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes with annotations look their module up there
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        del sys.modules[name]
        if error.filename != spec.origin:
            raise StartError(f"plugin {origin!r}: {spec.origin} failed: {error!r}") from error
        raise StartError(f"plugin {origin!r}: there is no file {spec.origin}") from None
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise StartError(f"plugin {origin!r}: {spec.origin} failed: {error!r}") from error
        raise
    return module
