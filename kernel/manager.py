"""Validate plugins, order them, and call their hooks.

The order is that of the configuration: pluggy calls the last registered plugin first, so plugins are registered in
reverse. A plugin is a class (instantiated without arguments) or an object with ``name``. Only one plugin can have a
given ``slot``; ``essential`` ones cannot be disabled.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from importlib import metadata
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

import attrs
import pluggy
import structlog

from gantrymq.kernel.batch import Source
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError
from gantrymq.kernel.plugin_activity import PluginActivity

log = structlog.get_logger("gantrymq.plugins")

SHIPPED = "gantrymq.plugins."
"""Modules of the plugins that come with GantryMQ begin with this."""


@attrs.frozen
class PluginInfo:
    """The metadata of one loaded plugin."""

    name: str
    version: str
    origin: str
    slot: str | None
    essential: bool
    hooks: tuple[str, ...]
    plugin: Any
    sources: tuple[str, ...] = (Source.CLIENT,)
    """The sources of rows for which ``before_append`` is called: names of :class:`Source`."""

    @property
    def is_shipped(self) -> bool:
        """Whether it comes with GantryMQ."""
        return type(self.plugin).__module__.startswith(SHIPPED)


Guard = Callable[[PluginInfo, str, Callable[[Any], object]], Callable[[Any], object]]
"""Creates the replacement for a plugin's implementation of a hook."""


class PluginManager:
    """The loaded plugins and ``hook``, the callable hooks. No plugin can be added later."""

    def __init__(self, plugins: Sequence[tuple[str, Any]], hookspecs: ModuleType, disabled: Sequence[Any] = ()) -> None:
        """``plugins``: origin (``module:attr`` or ``entry point name``) and object, in call order.

        ``hookspecs``: the page of the hooks, :mod:`gantrymq.kernel.hookspecs`. ``disabled``: known plugins that are
        disabled.
        """
        self.disabled = tuple(disabled)
        self.activity = PluginActivity(lambda: 0.0)
        """What the plugins of the running broker do; each broker sets its own."""
        self._project = hookspecs.PROJECT
        self._api = hookspecs.GANTRYMQ_API
        specs = vars(hookspecs)
        self._hookspecs = {name: spec for name, spec in specs.items() if hasattr(spec, f"{self._project}_spec")}
        self._manager = _NamedHooks(self._project, frozenset(self._hookspecs))
        self._manager.add_hookspecs(hookspecs)
        self.hook = self._manager.hook
        self.plugins = tuple(self._inspect(origin, plugin) for origin, plugin in plugins)
        self._check_names_and_slots()
        for info in reversed(self.plugins):
            try:
                self._manager.register(info.plugin, info.name)
            except pluggy.PluginValidationError as error:
                raise StartError(f"plugin {info.name!r} ({info.origin}): {error}") from None

    def call_each(
        self, hook_name: str, kind: type[Any] | None = None, **arguments: Any
    ) -> list[tuple[PluginInfo, Any]]:
        """Call a hook of the start; returns the results with their plugins, in call order.

        :class:`StartError` names the plugin that raised, or whose result is not of ``kind``.
        """
        answers = []
        for info, call in self.calls(hook_name, **arguments):
            try:
                answer = call()
            except (StartError, OSError):
                raise
            except Exception as error:
                log.exception("plugin_failed", plugin=info.name, hook=hook_name)
                raise StartError(self.describe_failure(info, hook_name, error)) from error
            if kind is not None and not isinstance(answer, kind):
                raise StartError(
                    f"plugin {info.name!r}: {hook_name} returned {type(answer).__name__}, it must be {kind.__name__}"
                )
            answers.append((info, answer))
        return answers

    def calls(self, hook_name: str, **arguments: Any) -> list[tuple[PluginInfo, Callable[[], Any]]]:
        """Return the single calls of a hook in call order, for callers that continue after the failure of one
        plugin."""
        return [
            (info, partial(implementation.function, *[arguments[name] for name in implementation.argnames]))
            for info, implementation in self.implementations(hook_name)
        ]

    def on_batches(
        self,
        hook_name: str,
        guard: Guard | None = None,
        leave_out: Collection[str] = (),
        explain: Callable[[Exception], PluginError] | None = None,
    ) -> Callable[[Any], object] | None:
        """Return a hook with the argument ``batch`` and without a result as a plain function; None if no plugin
        implements it.

        For the hot path: pluggy's own call costs more than most plugins' work on an ordinary batch. ``guard`` replaces
        each plugin's function, unless a plugin wraps the hook (:meth:`wrapping`). Plugins in ``leave_out`` are not
        called. An exception of a plugin, other than ``LogPoisoned`` and ``PluginError``, is replaced by what
        ``explain`` returns for it.
        """
        left_out = [info.plugin for info in self.plugins if info.name in leave_out]
        hook = self._manager.subset_hook_caller(hook_name, left_out)
        found = [(info, each) for info, each in self.implementations(hook_name) if info.name not in leave_out]
        if not found:
            return None
        functions: list[Callable[[Any], object]] = [lambda batch: hook(batch=batch)]
        if self.wrapping(hook_name) is None:
            plain = [(info, function_of(each)) for info, each in found]
            functions = [guard(info, hook_name, function) if guard else function for info, function in plain]
            for index, (info, _) in enumerate(found):
                put = partial(functions.__setitem__, index)
                self.activity.times.follow(info.name, hook_name, functions[index], put)

        def call(batch: Any) -> None:
            try:
                for function in functions:
                    function(batch)
            except (LogPoisoned, PluginError):
                raise
            except Exception as error:
                if explain is None:
                    raise
                raise explain(error) from error

        return call

    def wrapping(self, hook_name: str) -> PluginInfo | None:
        """Return a plugin that wraps the others, so that pluggy must call the hook; None if there is none."""
        found = self.implementations(hook_name)
        return next((info for info, each in found if each.wrapper or each.hookwrapper), None)

    def implementations(self, hook_name: str) -> list[tuple[PluginInfo, pluggy.HookImpl]]:
        """Return the plugins that implement the hook, in call order."""
        owners = {id(info.plugin): info for info in self.plugins}
        return [
            (owners[id(implementation.plugin)], implementation)
            for implementation in reversed(getattr(self.hook, hook_name).get_hookimpls())
        ]

    def batch_functions(self, hook_name: str) -> list[tuple[PluginInfo, Callable[[Any], Any]]]:
        """Return the implementations of a hook that the kernel calls one by one with a batch, in call order.

        :class:`StartError` for one that wraps others or does not take exactly ``batch``.
        """
        found = self.implementations(hook_name)
        for info, implementation in found:
            if implementation.wrapper or implementation.hookwrapper or implementation.argnames != ("batch",):
                raise StartError(
                    f"plugin {info.name!r}: {hook_name} cannot wrap others; it must be {hook_name}(self, batch)"
                )
        functions = [(info, implementation.function) for info, implementation in found]
        for index, (info, function) in enumerate(functions):

            def put(timed: Callable[[Any], Any], index: int = index, info: PluginInfo = info) -> None:
                functions[index] = info, timed

            self.activity.times.follow(info.name, hook_name, function, put)
        return functions

    def failing_plugin(self, hook_name: str, error: BaseException) -> PluginInfo | None:
        """Return the plugin in whose implementation of the hook ``error`` was raised; None if none is found."""
        owners = {
            implementation.function.__code__: info
            for info, implementation in self.implementations(hook_name)
            if hasattr(implementation.function, "__code__")
        }
        codes = (frame.f_code for frame, _ in walk_tb(error.__traceback__))
        return next((owners[code] for code in codes if code in owners), None)

    def describe_failure(self, info: PluginInfo | None, what: str, error: BaseException) -> str:
        """Return the text for ``error``, which a plugin raised in ``what``: plugin, place, and what to do."""
        name = "?" if info is None else info.name
        text = f"plugin {name!r}: {what} failed: {error!r}{self._place(name, error)}"
        if info is None or info.essential:
            return text
        if info.is_shipped:
            text += "; this plugin is part of GantryMQ, please report it"
        return f"{text}; --disable {name} starts the broker without it"

    def _place(self, name: str, error: BaseException) -> str:
        """`` at file:line``: the innermost line of the plugin's own code, or of any if none is its own."""
        frames = list(walk_tb(error.__traceback__))
        own = [frame for frame in frames if self.owner_of(frame[0]) == name]
        for frame, line in (own or frames)[-1:]:
            return f" at {frame.f_code.co_filename}:{line}"
        return ""

    def owner_of(self, frame: FrameType) -> str | None:
        """Return the name of the plugin whose code runs in ``frame``; None for other code."""
        module = frame.f_globals.get("__name__", "")
        for info in self.plugins:
            home = type(info.plugin).__module__
            if module == home or module.startswith(f"{home}."):
                return info.name
            codes = (getattr(getattr(info.plugin, hook), "__code__", None) for hook in info.hooks)
            if frame.f_code in codes:
                return info.name
        return None

    def _inspect(self, origin: str, plugin: Any) -> PluginInfo:
        name = getattr(plugin, "name", None)
        if not isinstance(name, str) or not name:
            raise StartError(f"plugin {origin}: it needs a `name` attribute")
        self._check_version(name, origin, plugin)
        hooks = []
        for attribute in dir(type(plugin)):
            function = getattr(type(plugin), attribute, None)
            if not hasattr(function, f"{self._project}_impl"):
                if attribute in self._hookspecs and inspect.isfunction(function):
                    log.warning("hook_not_marked", plugin=name, hook=attribute)
                continue
            if attribute not in self._hookspecs:
                near = did_you_mean(attribute, self._hookspecs)
                raise StartError(f"plugin {name!r} ({origin}): there is no hook {attribute!r}{near}")
            owner = f"plugin {name!r} ({origin})"
            self._check_plain(owner, function, attribute)
            self._check_arguments(owner, plugin, attribute)
            hooks.append(attribute)
        package = type(plugin).__module__.partition(".")[0]
        return PluginInfo(
            name,
            str(plugin.version if hasattr(plugin, "version") else _version_of(package)),
            origin,
            getattr(plugin, "slot", None),
            bool(getattr(plugin, "essential", False)),
            tuple(sorted(hooks)),
            plugin,
            _sources_of(name, plugin),
        )

    def _check_version(self, name: str, origin: str, plugin: Any) -> None:
        """A plugin for another version of the API stops the start before any of its hooks is called."""
        wanted = getattr(plugin, "api_version", self._api)
        if wanted == self._api and not isinstance(wanted, bool):
            return
        owner = f"plugin {name!r} ({origin})"
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
            raise StartError(f"{owner}: api_version = {wanted!r} must be a number like {self._api}")
        cure = "a newer release of the plugin" if wanted < self._api else "a newer GantryMQ or an older plugin"
        raise StartError(
            f"{owner} is for version {wanted} of the plugin API, and this broker has version {self._api}:"
            f" install {cure}, or --disable {name}"
        )

    def _check_plain(self, owner: str, function: Any, hook_name: str) -> None:
        """The broker would never run the body of an async function or of a generator, unless it wraps the hook."""
        options = getattr(function, f"{self._project}_impl")
        is_wrapper = options["wrapper"] or options["hookwrapper"]
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise StartError(
                f"{owner}: the hook {hook_name} must be a plain function, not an async one: await in a background task,"
                " which the hook register_tasks returns"
            )
        if inspect.isgeneratorfunction(function) and not is_wrapper:
            raise StartError(
                f"{owner}: the hook {hook_name} must be a plain function, not a generator: remove 'yield', or mark the"
                " hook with @hookimpl(wrapper=True) to wrap the other plugins"
            )

    def _check_arguments(self, owner: str, plugin: Any, hook_name: str) -> None:
        """An implementation may omit arguments of its hook; additional ones need a default."""
        given = _arguments_of(self._hookspecs[hook_name])
        wanted = inspect.signature(getattr(plugin, hook_name)).parameters.values()
        unknown = [each.name for each in wanted if each.name not in given and each.default is each.empty]
        if unknown:
            raise StartError(
                f"{owner}: the hook {hook_name} has no argument {unknown[0]!r}{did_you_mean(unknown[0], given)};"
                f" write {hook_name}({', '.join(('self', *given))})"
            )

    def _check_names_and_slots(self) -> None:
        names: dict[str, PluginInfo] = {}
        slots: dict[str, PluginInfo] = {}
        for info in self.plugins:
            if info.name in names:
                raise StartError(
                    f"two plugins are called {info.name!r}: {names[info.name].origin} and {info.origin}; rename or"
                    " remove one of them"
                )
            names[info.name] = info
            if info.slot is None:
                continue
            if info.slot in slots:
                other = slots[info.slot].name
                raise StartError(
                    f"plugins {other!r} and {info.name!r} both hold the slot {info.slot!r}: disable one of them"
                )
            slots[info.slot] = info


def function_of(implementation: pluggy.HookImpl) -> Callable[[Any], Any]:
    """Return an implementation of a hook with the argument ``batch``, which it may omit, as a function of the batch."""
    function: Callable[..., Any] = implementation.function
    return function if implementation.argnames else lambda batch: function()


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if a choice is similar, else empty."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class _NamedHooks(pluggy.PluginManager):
    """Looks for implementations only under the hooks' names; checking every attribute takes a fifth of a broker's
    start."""

    def __init__(self, project: str, names: frozenset[str]) -> None:
        super().__init__(project)
        self._names = names

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        """Return the options of an implementation; None if it is not a hook."""
        return super().parse_hookimpl_opts(plugin, name) if name in self._names else None


@cache
def _arguments_of(hookspec: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(hookspec).parameters)


def _sources_of(name: str, plugin: Any) -> tuple[str, ...]:
    sources = getattr(plugin, "sources", (Source.CLIENT,))
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise StartError(f"plugin {name!r}: sources = {sources!r} must be a tuple of names of Source")
    sources = tuple(sources)
    unknown = [each for each in sources if each not in Source.ALL]
    if unknown:
        hint = did_you_mean(str(unknown[0]), Source.ALL)
        raise StartError(f"plugin {name!r}: no source {unknown[0]!r}{hint}; there are: {', '.join(Source.ALL)}")
    return sources


@cache
def _version_of(package: str) -> str:
    """Return the version of the distribution with the package's name, from its metadata file."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
