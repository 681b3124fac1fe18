"""Export topics continuously to Parquet files or tables, each message exactly once, in a process beside the broker.

Slot: none; not in the default set: ``--enable exporter``, with the extra ``gantrymq[spark]``.
Hooks: check_files, collect_metrics, config_section, configure, persist, recovered, register_processors,
register_tasks, retention_floor, runtime_info, started.
Config ``[plugin.exporter]``: ``topics``, ``to``, ``every``, ``at_bytes``, ``format``, ``engine``, ``cores``,
``memory``, ``file_rows``, ``file_bytes``, ``skip_lost``, ``bad_bodies``, ``hold_bytes``, ``hold_age``, ``retry``,
``timeout``, ``nice``, ``access_key``, ``secret_key``, ``tls``, ``tls_ca_file``.
Files: ``config/exporter.json``, the offsets that are exported; ``config/exporterStarts.json``, where the queues ended
at the start of the broker, until a run has compared the export with that. The process writes to ``to``.
RocketMQ has no counterpart.

``runs`` starts the runs, ``positions`` computes lag and retention, ``state`` survives restarts. The process is
:mod:`gantrymq.exporter`. It reads over the wire, as consumers do, so hooks and access control apply. 47003 is a request
code of GantryMQ. ``docs/howto/exporter.md``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.exporter.place import find_fault
from gantrymq.kernel import hookimpl
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.exporter.config import ExporterConfig
from gantrymq.plugins.exporter.file_check import check_state
from gantrymq.plugins.exporter.runs import Exporter
from gantrymq.plugins.exporter.state import PATH, load_state
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.brokers import ControlExporterHeader
from gantrymq.remoting.headers.header import read_header

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor, Request
    from gantrymq.kernel.stopped_store import StoppedStore


class ExporterPlugin:
    """One object per broker. On a slave it does nothing until the slave is promoted."""

    name = "exporter"
    _broker: Broker  # these are set by configure
    _exporter: Exporter

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.exporter]``."""
        return "exporter", ExporterConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Load the state. Raises StartError for a configuration that cannot export."""
        section = config.section(ExporterConfig)
        if not section.topics or not section.to:
            raise StartError("plugin 'exporter': set plugin.exporter.topics, such as [\"orders\"], and .to, a folder")
        to = section.to.replace("{broker}", broker.name)
        _check_format(section)
        if section.format == "parquet" and (fault := find_fault(to)):
            raise StartError(f"plugin 'exporter': {fault}")
        self._broker = broker
        self._exporter = Exporter(broker, section, to, load_state(broker.env, broker.root, to))

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 47003, for ``gantrymq export status | run-now | pause | resume``."""
        return {RequestCode.CONTROL_EXPORTER: self._control}

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the task that starts the runs."""
        return [BackgroundTask("exporter", self._exporter.run, "masters")]

    @hookimpl
    def recovered(self, broker: Broker) -> None:
        """Note where the queues end, and find exported offsets behind that."""
        self._exporter.recovered()

    @hookimpl
    def started(self, broker: Broker) -> None:
        """Let runs start: their processes can connect now."""
        self._exporter.listens()

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        """Check the exported offsets."""
        check_state(store)

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """Return the exported offsets, the pause and the last run, if they changed."""
        content = self._exporter.changes()
        return None if content is None else {f"{broker.root}/{PATH}": content}

    @hookimpl
    def retention_floor(self, broker: Broker) -> int:
        """Return the offset of the first message that is not exported, within ``hold_bytes`` and ``hold_age``.

        A slave keeps nothing: its master exports.
        """
        return broker.log.end if broker.broker_id else self._exporter.floor()

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Return the state, the lag and the last run."""
        exporter = self._exporter
        state, last = exporter.status()["state"], exporter.state.last
        return {
            "exporterState": state,
            "exporterTo": exporter.to,
            "exporterLag": str(sum(exporter.lag().values())),
            "exporterFailures": str(exporter.state.failures),
            "exporterLastRun": f"{int(last.ended * 1000)},{last.rows},{last.error}" if last.ended else "",
        }

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Add the lag, the runs, and what they wrote."""
        if broker.broker_id:
            return
        exporter = self._exporter
        for topic, lag in exporter.lag().items():
            metrics.gauge("gantrymq_exporter_lag_messages", "Messages that are not exported yet", lag, topic=topic)
        for result, count in exporter.totals.runs.items():
            metrics.counter("gantrymq_exporter_runs_total", "Runs that have ended", count, result=result)
        totals, last = exporter.totals, exporter.state.last
        metrics.counter("gantrymq_exporter_messages_total", "Exported messages", totals.rows)
        metrics.counter("gantrymq_exporter_bytes_total", "Bytes of the files that were written", totals.bytes)
        metrics.counter(
            "gantrymq_exporter_lost_messages_total", "Messages deleted before they were exported", totals.lost
        )
        metrics.gauge("gantrymq_exporter_failures", "Failed runs in a row", exporter.state.failures)
        metrics.gauge("gantrymq_exporter_paused", "1 while paused", exporter.state.paused)
        metrics.gauge("gantrymq_exporter_running", "1 while a run is going on", exporter.pid is not None)
        if exporter.state.last_success:
            text = "When the last run without a failure ended, in seconds since 1970"
            metrics.gauge("gantrymq_exporter_last_success_seconds", text, exporter.state.last_success)
        if last.ended:
            text = "How long the last run took, in seconds"
            metrics.gauge("gantrymq_exporter_last_run_seconds", text, last.ended - last.started)

    def _control(self, request: Request) -> Command:
        """Answer 47003. The body of the response is the status after the action, as a JSON object."""
        header = read_header(ControlExporterHeader, request.command.ext)
        exporter = self._exporter
        actions: dict[str, Callable[[], object]] = {
            "status": exporter.status,
            "run": exporter.run_now,
            "pause": partial(exporter.pause, True),
            "resume": partial(exporter.pause, False),
        }
        if header.action not in actions:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"unknown action {header.action!r}; allowed: {', '.join(actions)}"
            )
        if self._broker.broker_id:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "this broker is a slave; its master exports")
        actions[header.action]()
        return request.command.answer(ResponseCode.SUCCESS, body=json.dumps(exporter.status()).encode())


def _check_format(section: ExporterConfig) -> None:
    """Raise StartError if the engine cannot write the format, or a library is missing."""
    if section.format != "parquet" and section.engine != "local":
        raise StartError(f"plugin 'exporter': plugin.exporter.format {section.format!r} needs the engine 'local'")
    extras = {"pyarrow": "spark"}
    if section.engine == "spark":
        extras["pyspark"] = "spark"
    if section.format != "parquet":
        extras[{"delta": "deltalake", "iceberg": "pyiceberg"}[section.format]] = section.format
    for package, extra in extras.items():
        if importlib.util.find_spec(package) is None:
            raise StartError(f"plugin 'exporter': {package} is missing: pip install 'gantrymq[{extra}]'")
