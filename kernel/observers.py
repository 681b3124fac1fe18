"""Plugins that only observe: what one of them raises is logged and kept from the others and from the sweep."""

from __future__ import annotations

from typing import Any

import structlog

from gantrymq.kernel.manager import PluginManager

log = structlog.get_logger("gantrymq.plugins")

FAILURES_MAX = 10


class Observers:
    """One observing hook. Who failed ten times is not called again, unless the broker does not work without it."""

    def __init__(self, manager: PluginManager, hook_name: str) -> None:
        self._hook_name = hook_name
        self._observers = manager.implementations(hook_name)
        self._failures: dict[str, int] = {}

    def __call__(self, batch: Any) -> None:
        for info, implementation in list(self._observers):
            try:
                implementation.function(*[batch for _ in implementation.argnames])
            except Exception:
                count = self._failures[info.name] = self._failures.get(info.name, 0) + 1
                disabled = count >= FAILURES_MAX and not info.essential
                log.exception("plugin_failed", plugin=info.name, hook=self._hook_name, disabled=disabled)
                if disabled:
                    self._observers = [row for row in self._observers if row[0] is not info]
