"""Error policies of plugins: what follows when one raises in the write path or in a background task.

The user's policy (``plugins.skip_errors``, ``plugins.disable_on_error``) takes precedence over the plugin's attribute
``on_error``; the default is ``stop``. An error of an essential plugin always stops the broker, which cannot serve
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import structlog

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError, TaskFailed
from gantrymq.kernel.manager import Guard, PluginInfo, PluginManager, did_you_mean
from gantrymq.kernel.refusal_counts import RefusalCounts

log = structlog.get_logger("gantrymq.plugins")

STOP: Final = "stop"
SKIP: Final = "skip"
DISABLE: Final = "disable"
FATAL: Final = (StartError, LogPoisoned, PluginError, MemoryError)
"""Errors of a background task that stop the broker whatever the policy is. Their texts say what is wrong."""


class PluginFaults:
    """Applies the error policies of the loaded plugins."""

    def __init__(self, manager: PluginManager, skip: Sequence[str] = (), disable: Sequence[str] = ()) -> None:
        """``skip`` and ``disable`` are names of plugins. :class:`StartError` for one that cannot have the policy."""
        self._manager = manager
        self._policies = {info.name: _own_policy(info) for info in manager.plugins}
        for key, names, policy in (("skip_errors", skip, SKIP), ("disable_on_error", disable, DISABLE)):
            for name in names:
                self._choose(key, name, policy)
        self._disabled: set[str] = set()

    def _choose(self, key: str, name: str, policy: str) -> None:
        info = next((info for info in self._manager.plugins if info.name == name), None)
        if info is None:
            raise StartError(f"plugins.{key}: no plugin {name!r} is loaded{did_you_mean(name, self._policies)}")
        if info.essential:
            raise StartError(
                f"plugins.{key}: {name!r} is essential, so its errors always stop the broker; remove it from the list"
            )
        self._policies[name] = policy

    def policy_of(self, name: str) -> str:
        """Return the policy for errors of this loaded plugin in the write path and in its background tasks."""
        return self._policies[name]

    def before_append(self, counts: RefusalCounts) -> Mapping[str, Callable[[AppendBatch], object] | None]:
        """By source, the function that calls ``before_append`` of the plugins that want batches of this source.

        ``counts`` counts refusals, by plugins that are not shipped with GantryMQ, of rows that the broker keeps.
        Errors are handled as by :meth:`on_batches`.
        """
        return _BySource({source: self._before_append(source, counts) for source in Source.ALL})

    def _before_append(self, source: str, counts: RefusalCounts) -> Callable[[AppendBatch], object] | None:
        hook_name = "before_append"
        others = [info.name for info in self._manager.plugins if source not in info.sources]
        takers = [info for info, _ in self._manager.implementations(hook_name) if source in info.sources]
        third_party = [info.name for info in takers if not info.is_shipped]
        if source in Source.FROM_SENDERS or not third_party:
            return self.on_batches(hook_name, others)
        counts.third_party[source] = " or ".join(third_party)
        if self._manager.wrapping(hook_name) is not None:
            function = self.on_batches(hook_name, others)
            return None if function is None else counts.watch(counts.third_party[source], function)

        def watch(info: PluginInfo, function: Callable[[Any], object]) -> Callable[[Any], object]:
            return function if info.is_shipped else counts.watch(info.name, function)

        return self.on_batches(hook_name, others, watch)

    def on_batches(
        self,
        hook_name: str,
        leave_out: Collection[str] = (),
        watch: Callable[[PluginInfo, Callable[[Any], object]], Callable[[Any], object]] | None = None,
    ) -> Callable[[Any], object] | None:
        """:meth:`PluginManager.on_batches` with the plugins' error policies.

        ``watch`` wraps the function of each plugin. The result raises :class:`PluginError` if the policy is ``stop``.
        :class:`StartError` if a plugin wraps the hook and another policy cannot be applied.
        """
        called = [info.name for info, _ in self._manager.implementations(hook_name) if info.name not in leave_out]
        guard: Guard | None = None
        if watch is not None:
            watched = watch

            def guard(info: PluginInfo, name: str, function: Callable[[Any], object]) -> Callable[[Any], object]:
                return watched(info, self._guard(info, name, function))

        elif skipped := [name for name in called if self._policies[name] != STOP]:
            wrapping = self._manager.wrapping(hook_name)
            if wrapping is not None:
                names = " and ".join(map(repr, skipped))
                raise StartError(
                    f"plugin {wrapping.name!r} wraps {hook_name}, so errors of {names} cannot be skipped there"
                    " (on_error, plugins.skip_errors, plugins.disable_on_error); --disable one of them"
                )
            guard = self._guard

        def explain(error: Exception) -> PluginError:
            failing = self._manager.failing_plugin(hook_name, error)
            log.error("plugin_failed", plugin="?" if failing is None else failing.name, hook=hook_name, exc_info=error)
            return PluginError(self._manager.describe_failure(failing, hook_name, error))

        return self._manager.on_batches(hook_name, guard, leave_out, explain)

    def _guard(self, info: PluginInfo, hook_name: str, function: Callable[[Any], object]) -> Callable[[Any], object]:
        if self._policies[info.name] == STOP:
            return function

        def call(batch: Any) -> None:
            if info.name in self._disabled:
                return
            try:
                function(batch)
            except (LogPoisoned, PluginError):
                raise
            except Exception as error:
                self._note(info, error, hook=hook_name)

        return call

    def is_disabled(self, plugin: str) -> bool:
        """Return whether an error has disabled the plugin."""
        return plugin in self._disabled

    def dispatch_alone(self, plugin: str) -> Callable[[Any], object] | None:
        """:meth:`on_batches` for the hook ``dispatch`` of this plugin alone."""
        others = {info.name for info in self._manager.plugins} - {plugin}
        return self.on_batches("dispatch", others)

    def task_failed(self, info: PluginInfo, task: str, error: Exception) -> None:
        """Apply the policy after the background task ``task`` raised ``error``. Returns if the broker continues.

        Otherwise raises ``error`` if its text says what is wrong, else :class:`TaskFailed`.
        """
        if _is_caused_by(error, FATAL):
            raise error
        if self._policies[info.name] != STOP:
            self._note(info, error, task=task)
            return
        log.error("task_failed", plugin=info.name, task=task, exc_info=error)
        if _is_caused_by(error, OSError):  # the command line adds advice to the system's text
            raise error
        raise TaskFailed(self._manager.describe_failure(info, f"its background task {task!r}", error)) from error

    def _note(self, info: PluginInfo, error: Exception, **where: str) -> None:
        disabled = self._policies[info.name] == DISABLE
        if disabled:
            self._disabled.add(info.name)
        place = where.get("hook") or f"task {where['task']}"
        self._manager.activity.failed(info.name, place, error)
        log.error("plugin_failed", plugin=info.name, disabled=disabled, exc_info=error, **where)


class _BySource(dict[str, Callable[[AppendBatch], object] | None]):
    """The function for each source; an unknown source raises ``ValueError``."""

    def __missing__(self, source: str) -> Callable[[AppendBatch], object] | None:
        raise ValueError(
            f"unknown source {source!r} of a batch to append{did_you_mean(str(source), self)}; use one of Source in"
            " gantrymq.kernel.batch"
        )


def _own_policy(info: PluginInfo) -> str:
    policy = getattr(info.plugin, "on_error", STOP)
    if policy not in (STOP, SKIP, DISABLE):
        raise StartError(f"plugin {info.name!r}: on_error = {policy!r} must be 'stop', 'skip' or 'disable'")
    return STOP if info.essential else policy


def _is_caused_by(error: Exception, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Return whether ``error`` is of one of the ``kinds``, or a group that contains such an error."""
    return isinstance(error, kinds) or (isinstance(error, ExceptionGroup) and error.subgroup(kinds) is not None)
