"""The state of this broker's plugins: DESCRIBE_PLUGINS (47002), which only GantryMQ has.

``gantrymq plugins show NAME --broker`` and ``gantrymq plugins trace`` send it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import structlog

from gantrymq.kernel.config.declarations import PluginsSection
from gantrymq.kernel.manager import PluginInfo, did_you_mean
from gantrymq.kernel.metrics import Distribution, Metrics
from gantrymq.kernel.plugin_faults import PluginFaults
from gantrymq.kernel.processors import Handler, Request
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.brokers import DescribePluginsHeader
from gantrymq.remoting.headers.header import read_header

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

MEASURE_MAX_S: Final = 600
"""The longest time, in seconds, for which one request can have the hooks timed."""
SERIES_MAX: Final = 1000
"""The most series of a plugin's metrics in a response."""

log = structlog.get_logger("gantrymq.admin")


class PluginAdmin:
    """Handler of the code."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def processors(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.DESCRIBE_PLUGINS: self.describe}

    def describe(self, request: Request) -> Command:
        """Answer 47002 for all plugins, or for the plugin of the header with its metrics. The body is a JSON object."""
        header = read_header(DescribePluginsHeader, request.command.ext)
        manager = self._broker.manager
        times = manager.activity.times
        if header.measure_seconds:
            if not 0 < header.measure_seconds <= MEASURE_MAX_S:
                remark = f"measureSeconds {header.measure_seconds}: allowed is 1 to {MEASURE_MAX_S}"
                raise RemoteFault(ResponseCode.SYSTEM_ERROR, remark)
            times.measure_for(header.measure_seconds)
        infos = [info for info in manager.plugins if header.plugin_name in (None, info.name)]
        if not infos:
            near = did_you_mean(str(header.plugin_name), [info.name for info in manager.plugins])
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"no plugin {header.plugin_name!r} is loaded here{near}")
        found = {
            "seconds": self._broker.env.monotonic(),
            "is_timed": times.is_on,
            "plugins": [self._describe(info, with_metrics=header.plugin_name is not None) for info in infos],
        }
        return request.command.answer(ResponseCode.SUCCESS, body=json.dumps(found).encode())

    def _describe(self, info: PluginInfo, with_metrics: bool) -> dict[str, Any]:
        manager, activity = self._broker.manager, self._broker.manager.activity
        section = self._broker.config.section(PluginsSection)
        faults = PluginFaults(manager, section.skip_errors, section.disable_on_error)
        hooks: dict[str, dict[str, Any]] = {}
        for hook in info.hooks:
            called = [other.name for other, _ in manager.implementations(hook)]
            hooks[hook] = {"place": called.index(info.name) + 1, "of": len(called)}
            time = activity.times.totals.get((info.name, hook))
            if time is not None:
                hooks[hook] |= {"calls": time.calls, "rows": time.rows, "seconds": time.seconds}
        refused = self._broker.refusal_counts.refused
        found: dict[str, Any] = {
            "name": info.name,
            "version": info.version,
            "origin": info.origin,
            "essential": info.essential,
            "on_error": faults.policy_of(info.name),
            "hooks": hooks,
            "tasks": activity.tasks.get(info.name, {}),
            "request_codes": sorted(activity.request_codes.get(info.name, [])),
            "files": sorted(activity.files.get(info.name, ())),
            "errors": {
                place: {"count": error.count, "last": error.last}
                for place, error in activity.errors.get(info.name, {}).items()
            },
            "kept_messages_refused": sum(count for (name, _), count in refused.items() if name == info.name),
        }
        if with_metrics:
            found["metrics"] = self._metrics_of(info)
        return found

    def _metrics_of(self, info: PluginInfo) -> dict[str, Any]:
        """Return the plugin's metrics by name: the value, or the number of series of a histogram or of several
        series."""
        metrics = Metrics(SERIES_MAX)
        calls = self._broker.manager.calls("collect_metrics", broker=self._broker, metrics=metrics)
        for owner, call in calls:
            if owner is info:
                try:
                    call()
                except Exception as error:
                    self._broker.manager.activity.failed(info.name, "collect_metrics", error)
                    log.exception("plugin_failed", plugin=info.name, hook="collect_metrics")
        metrics.cut()
        found: dict[str, Any] = {}
        for name, family in metrics.families.items():
            first = next(iter(family.series.values()), None)
            is_value = len(family.series) == 1 and not isinstance(first, Distribution)
            found[name] = {"kind": family.kind, "series": len(family.series), "value": first if is_value else None}
        return found
