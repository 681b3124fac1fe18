"""Calls the hook ``authorize`` before any processor gets a request.

If a plugin raises, the request is refused, whatever the plugin's error policy is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from gantrymq.kernel.errors import LogPoisoned, PluginError
from gantrymq.kernel.manager import PluginInfo, PluginManager
from gantrymq.kernel.processors import Request, RequestBatch, attach_observers
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.rare_warnings import RareWarnings

log = structlog.get_logger("gantrymq.requests")

HOOK = "authorize"
Take = Callable[[list[Request]], None]


def authorized(manager: PluginManager, take: Take, clock: Callable[[], float]) -> Take:
    """Return ``take``, wrapped in an :class:`Authorization` if a plugin implements the hook."""
    plugins = manager.batch_functions(HOOK)
    return Authorization(manager, plugins, take, RareWarnings(clock)) if plugins else take


class Authorization:
    """Passes the requests of a turn to the plugins, answers refused ones, and passes the others to ``take``."""

    def __init__(
        self,
        manager: PluginManager,
        plugins: list[tuple[PluginInfo, Callable[[RequestBatch], Any]]],
        take: Take,
        warnings: RareWarnings,
    ) -> None:
        self._manager = manager
        self._plugins = plugins
        self._take = take
        self._warnings = warnings

    def __call__(self, requests: list[Request]) -> None:
        """Authorize ``requests`` and call ``take``, also with an empty list: it then handles requests that wait for
        their turn, which were authorized when they arrived."""
        if requests:
            batch = RequestBatch(requests)
            for info, function in self._plugins:
                self._ask(info, function, batch)
            if batch.refusals:
                for row, (code, remark) in batch.refusals.items():
                    requests[row].answer(code, remark)
                requests = [requests[row] for row in batch.live]
        self._take(requests)

    def _ask(self, info: PluginInfo, function: Callable[[RequestBatch], Any], batch: RequestBatch) -> None:
        try:
            function(batch)
            attach_observers(batch, keep=True)
        except (LogPoisoned, PluginError, MemoryError):
            raise
        except Exception as error:
            attach_observers(batch, keep=False)
            if len(batch) > 1:
                self._ask_singly(info, function, batch)
                return
            self._note(info, error)
            batch.refuse(0, ResponseCode.SYSTEM_ERROR, f"the plugin {info.name!r} failed to authorize the request")

    def _ask_singly(self, info: PluginInfo, function: Callable[[RequestBatch], Any], batch: RequestBatch) -> None:
        """Call the plugin, which raised for the batch, for each request alone, and refuse those for which it raises
        again."""
        for row in batch.live:
            single = RequestBatch([batch.requests[row]])
            self._ask(info, function, single)
            batch.requests[row] = single.requests[0]  # it may be observed now
            for code, remark in single.refusals.values():
                batch.refuse(row, code, remark)

    def _note(self, info: PluginInfo, error: Exception) -> None:
        self._manager.activity.failed(info.name, HOOK, error)
        text = self._manager.describe_failure(info, HOOK, error)
        if self._warnings.is_due(text.partition(" failed: ")[0] + type(error).__name__):
            log.error("authorization_failed", plugin=info.name, reason=text, exc_info=error)
