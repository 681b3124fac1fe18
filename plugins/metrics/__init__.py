"""Serve the metrics of all plugins to Prometheus over HTTP, with RocketMQ 5's names where it has them.

Slot: none; not in the default set: ``--enable metrics``, with the extra ``gantrymq[metrics]``.
Hooks: authorize, config_section, configure, hold_pulls, register_tasks, runtime_info.
Config ``[plugin.metrics]``: ``listen``, ``series_max``, ``connections_max``, ``timeout``, ``hook_times``,
``request_times``.
Files: none.
Replaces RocketMQ 5.3.3's ``BrokerMetricsManager`` with ``metricsExporterType = PROM``.

Each scrape asks all plugins for what they have counted (hook ``collect_metrics``); this one times a sample of the
requests (``requests``). ``server`` is the web server, ``exposition`` the text. ``docs/howto/metrics.md``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.fast.durations import BOUNDS_S as TURN_BOUNDS_S
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.plugin_activity import BOUNDS_S
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import Encryption, FurtherMetrics, HttpPages
from gantrymq.plugins.metrics.config import MetricsConfig
from gantrymq.plugins.metrics.requests import RequestTimes

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import PullBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.fast.durations import Durations
    from gantrymq.kernel.processors import RequestBatch
    from gantrymq.plugins.metrics.exposition import Text
    from gantrymq.plugins.metrics.process import LoopLag
    from gantrymq.plugins.metrics.server import MetricsServer

log = structlog.get_logger("gantrymq.metrics")


class MetricsPlugin:
    """Collects the plugins' metrics, for one reader at a time, and serves them."""

    name = "metrics"
    _broker: Broker  # these four from configure on
    _config: MetricsConfig
    _server: MetricsServer

    _loop_lag: LoopLag
    _turns: Durations  # from register_tasks on
    _requests: RequestTimes | None = None

    def __init__(self) -> None:
        self._turn = trio.Lock()

    @property
    def address(self) -> str:
        """The listen address, ``host:port``."""
        return self._server.address

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.metrics]``."""
        return "metrics", MetricsConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Bind the address."""
        try:
            from gantrymq.plugins.metrics.process import LoopLag
            from gantrymq.plugins.metrics.server import MetricsServer
        except ImportError as error:
            raise StartError(f"plugin 'metrics': {error}; install it with `pip install 'gantrymq[metrics]'`") from None
        self._broker = broker
        self._config = config.section(MetricsConfig)
        self._loop_lag = LoopLag()
        self._requests = RequestTimes(broker.env.monotonic) if self._config.request_times else None
        self._server = MetricsServer(broker.env, self._config, self.render)
        if self._config.hook_times:
            broker.manager.activity.times.measure_for(math.inf)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the web server; the page is also at the address of the plugin ``http``."""
        pages = broker.registry.find(HttpPages)
        if pages is not None:
            pages.add("/metrics", self._page)
        self._server.encryption = broker.registry.find(Encryption)
        self._turns = broker.measure_turns()
        if self._requests is not None:
            self._requests.serve(broker.request_codes)
        return [BackgroundTask("metrics", self._server.run), BackgroundTask("loop lag", self._loop_lag.measure)]

    @hookimpl(trylast=True)
    def authorize(self, batch: RequestBatch) -> None:
        """Time some of the requests that no plugin has refused."""
        if self._requests is not None:
            self._requests.observe(batch)

    @hookimpl(tryfirst=True)
    def hold_pulls(self, batch: PullBatch) -> None:
        """Note which timed pulls wait for messages; another plugin holds them."""
        if self._requests is not None:
            self._requests.held(batch)

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Return the address of the page."""
        return {"metricsAddress": self.address}

    async def _page(self, accept: str) -> tuple[int, str, bytes]:
        text = await self.render(accept)
        return 200, text.content_type, text.body

    async def render(self, accept: str) -> Text:
        """Return the present metrics of all plugins, in the format of the header ``accept``."""
        from gantrymq.plugins.metrics.exposition import expose

        async with self._turn:
            broker, metrics = self._broker, Metrics(self._config.series_max)
            failed = 0
            for info, call in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
                try:
                    call()
                except Exception as error:  # if a plugin fails, only its part is missing
                    failed += 1
                    broker.manager.activity.failed(info.name, "collect_metrics", error)
                    log.exception("plugin_failed", plugin=info.name, hook="collect_metrics")
                await trio.lowlevel.checkpoint()
            further = broker.registry.find(FurtherMetrics)
            if further is not None:
                further.collect_metrics(metrics)
            self._loop_lag.report(metrics)
            if self._requests is not None:
                self._requests.report(metrics)
            metrics.histogram(
                "gantrymq_turn_latency_seconds", "How long turns with requests take, until their responses are sent",
                TURN_BOUNDS_S, list(self._turns.counts), self._turns.seconds,
            )  # fmt: skip
            if self._config.hook_times:
                for (plugin, hook), time in broker.manager.activity.times.totals.items():
                    metrics.histogram(
                        "gantrymq_plugin_seconds", "How long calls of plugins' hooks with a batch take, in seconds",
                        BOUNDS_S, time.counts, time.seconds, plugin=plugin, hook=hook,
                    )  # fmt: skip
            for plugin, tasks in broker.manager.activity.failed_tasks().items():
                metrics.gauge(
                    "gantrymq_plugin_failed_tasks", "Background tasks that raised an error, while the broker continues",
                    len(tasks), plugin=plugin,
                )  # fmt: skip
            common = {"cluster": broker.cluster, "node_type": "broker", "node_id": broker.name}
            return await trio.to_thread.run_sync(partial(self._finish, metrics, failed, common, expose, accept))

    def _finish(self, metrics: Metrics, failed: int, common: dict[str, str], expose: Any, accept: str) -> Text:
        from gantrymq.plugins.metrics.process import report_process

        report_process(metrics)
        for work in metrics.work():
            try:
                work()
            except Exception:
                failed += 1
                log.exception("plugin_failed", hook="collect_metrics")
        metrics.cut()
        version = next(info.version for info in self._broker.manager.plugins if info.plugin is self)
        metrics.gauge(
            "gantrymq_broker_info", "The broker's version and number; the number of a master is 0", 1,
            version=version, broker_id=str(self._broker.broker_id),
        )  # fmt: skip
        metrics.gauge("gantrymq_metrics_failed_plugins", "Plugins whose metrics were not collected", failed)
        metrics.gauge(
            "gantrymq_metrics_dropped_series", "Series left out this time (plugin.metrics.series_max)", metrics.dropped
        )
        text: Text = expose(metrics, common, accept)
        return text
