"""Call the implementations of a hook that only observes: their errors are logged and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginInfo, PluginManager, function_of

log = structlog.get_logger("gantrymq.plugins")

FAILURES_MAX: Final = 10

Function = Callable[[Any], object]


class Observers:
    """One observing hook with the argument ``batch``. A plugin that failed ten times is not called again unless it is
    essential.

    :class:`StartError` for a plugin that wraps the hook.
    """

    def __init__(self, manager: PluginManager, hook_name: str) -> None:
        self._activity = manager.activity
        self._hook_name = hook_name
        self._failures: dict[str, int] = {}
        self._owners: list[PluginInfo] = []
        self._functions: list[Function] = []
        for info, implementation in manager.implementations(hook_name):
            if implementation.wrapper or implementation.hookwrapper:
                raise StartError(
                    f"plugin {info.name!r}: {hook_name} cannot wrap others; it must be {hook_name}(self, batch)"
                )
            function = function_of(implementation)
            put = partial(self._functions.__setitem__, len(self._functions))
            self._owners.append(info)
            self._functions.append(function)
            self._activity.times.follow(info.name, hook_name, function, put)

    def __bool__(self) -> bool:
        return bool(self._functions)

    def __call__(self, batch: Any) -> None:
        for index, function in enumerate(self._functions):
            try:
                function(batch)
            except Exception as error:
                self._failed(index, error)

    def _failed(self, index: int, error: Exception) -> None:
        info = self._owners[index]
        self._activity.failed(info.name, self._hook_name, error)
        count = self._failures[info.name] = self._failures.get(info.name, 0) + 1
        disabled = count >= FAILURES_MAX and not info.essential
        log.error("plugin_failed", plugin=info.name, hook=self._hook_name, disabled=disabled, exc_info=error)
        if disabled:
            self._activity.times.leave(info.name, self._hook_name)
            self._functions[index] = _nothing


def observe(manager: PluginManager, hook_name: str) -> Observers | None:
    """Return the observers of a hook; None if no plugin implements it."""
    return Observers(manager, hook_name) or None


def _nothing(_batch: Any) -> None:
    pass
