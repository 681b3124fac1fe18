"""Spans of messages in the broker for OpenTelemetry: stored, delayed, retried, dead letter, delivered.

Slot: none; not in the default set: ``--enable otel``, with the extra ``gantrymq[otel]``.
Hooks: acked, before_deliver, collect_metrics, config_section, configure, register_tasks, runtime_info.
Config ``[plugin.otel]``: ``endpoint``, ``service_name``, ``sample``, ``spans_per_second``, ``queue_max``,
``export_interval``, ``export_timeout``.
Files: none.
RocketMQ has no counterpart: its brokers export metrics and logs, and only its clients have traces.

A message belongs to the trace that its property ``traceparent`` names, as the producer's client has set it; messages
without it, and those that the producer has not sampled, have no spans. Stored messages are not changed. ``spans`` notes
what happens, in the broker's loop; ``export`` makes spans of it in a worker thread. ``docs/howto/traces.md``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.otel.config import OtelConfig
from gantrymq.plugins.otel.spans import (
    TRACEPARENT,
    TRACESTATE,
    Note,
    Notes,
    common_attributes,
    operation_of,
    property_reader,
    target_of,
)
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.tasks import background_tasks

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckedBatch
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.delivery import DeliverBatch
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.otel.export import Exporter

log = structlog.get_logger("gantrymq.otel")

EXPORT_SPANS: Final = 512
"""The most spans of one request, as of OpenTelemetry's own processor."""
LAST_EXPORT_S: Final = 3.0
"""How long a stopping broker waits for its last spans."""
_DELIVERIES: Final = {"pull": "deliver", "direct": "deliver", "check": "check"}
"""The names of spans by the purpose of a delivery; queries have none."""


class OtelPlugin:
    """Notes what happens to sampled messages, and exports it."""

    name = "otel"
    on_error = "skip"
    _broker: Broker  # these are set by configure
    _config: OtelConfig
    _notes: Notes
    _exporter: Exporter
    _outages: Outages

    def __init__(self) -> None:
        self._exported = 0
        self._lost = 0

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.otel]``."""
        return "otel", OtelConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Create the exporter; it connects with the first export."""
        try:
            from gantrymq.plugins.otel.export import Exporter
        except ImportError as error:
            raise StartError(f"plugin 'otel': {error}; install it with `pip install 'gantrymq[otel]'`") from None
        self._broker = broker
        self._outages = Outages(log, broker.env.monotonic)
        self._config = section = config.section(OtelConfig)
        self._notes = Notes(broker, section)
        version = next(info.version for info in broker.manager.plugins if info.plugin is self)
        resource = {
            "service.name": section.service_name,
            "service.namespace": broker.cluster,
            "service.instance.id": f"{broker.name}/{broker.broker_id}",
            "service.version": version,
        }
        try:
            self._exporter = Exporter(section, resource, version)
        except ValueError as error:
            raise StartError(f"plugin.otel: {error}") from None

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The export."""
        return [BackgroundTask("otel", self._export)]

    # ------------------------------------------------------------------------------------------------- what is noted

    @hookimpl
    def acked(self, batch: AckedBatch) -> None:
        """Note each sampled message that was stored or refused."""
        messages, notes = batch.messages, self._notes
        read = messages.property_of
        now_ns = 0
        for row in range(len(messages)):
            traceparent = read(row, TRACEPARENT)
            if traceparent is None or not notes.is_sampled(traceparent) or not notes.has_room():
                continue
            now_ns = now_ns or self._broker.env.wall_ms() * 1_000_000
            stored_in, queue_id = messages.queue_of(row)
            property_of = partial(read, row)
            operation, topic = operation_of(messages.source, stored_in), target_of(stored_in, property_of)
            offset, queue_offset = messages.place_of(row)
            attributes = common_attributes(operation, topic, queue_id, property_of)
            attributes["gantrymq.source"] = messages.source
            if stored_in != topic:
                attributes["gantrymq.stored_in"] = stored_in
            if offset >= 0:
                attributes["gantrymq.log_offset"] = offset
                attributes["messaging.rocketmq.queue_offset"] = queue_offset
            status, error = messages.statuses[row], None
            if status != ResponseCode.SUCCESS:
                attributes["error.type"] = str(int(status))
                error = messages.remarks.get(row) or f"response code {int(status)}"
            span_id = notes.span_of(offset) if offset >= 0 else 0
            start_ns = now_ns - int(batch.seconds * 1e9)
            tracestate = read(row, TRACESTATE)
            notes.add(Note(operation, topic, traceparent, tracestate, 0, span_id, start_ns, now_ns, attributes, error))

    @hookimpl(trylast=True)
    def before_deliver(self, batch: DeliverBatch) -> None:
        """Note each sampled message on its way to a consumer."""
        operation = _DELIVERIES.get(batch.purpose)
        if operation is None:
            return
        notes, read = self._notes, batch.property_of
        for row in batch.live:
            traceparent = read(row, TRACEPARENT)
            if traceparent is None or not notes.is_sampled(traceparent) or not notes.has_room():
                continue
            now_ms = self._broker.env.wall_ms()
            property_of = property_reader(batch.properties[row])
            topic = target_of(batch.topics[row], property_of)
            attributes = common_attributes(operation, topic, batch.queue_ids[row], property_of)
            attributes["messaging.rocketmq.queue_offset"] = batch.queue_offsets[row]
            attributes["gantrymq.log_offset"] = batch.offsets[row]
            attributes["gantrymq.waited_ms"] = max(0, now_ms - batch.store_timestamps[row])
            if batch.group is not None:
                attributes["messaging.consumer.group.name"] = batch.group
            if batch.connection is not None:
                attributes["network.peer.address"] = str(batch.connection.peer)
            parent, now_ns = notes.span_of(batch.offsets[row]), now_ms * 1_000_000
            tracestate = read(row, TRACESTATE)
            notes.add(Note(operation, topic, traceparent, tracestate, parent, 0, now_ns, now_ns, attributes))

    # ------------------------------------------------------------------------------------------------- the export

    async def _export(self) -> None:
        # A stop lets the running export end, because the collector may have its spans already.
        stopping, patience = trio.Event(), trio.CancelScope(shield=True)

        async def watch_for_stop() -> None:
            try:
                await trio.sleep_forever()
            finally:
                patience.deadline = trio.current_time() + LAST_EXPORT_S
                stopping.set()

        try:
            async with background_tasks() as tasks:
                tasks.start_soon(watch_for_stop)
                with patience:
                    while not stopping.is_set():
                        with trio.move_on_after(self._config.export_interval):
                            await stopping.wait()
                        while self._notes:
                            await self._send(self._notes.take(EXPORT_SPANS))
        finally:
            self._exporter.close()

    async def _send(self, notes: list[Note]) -> None:
        reason: str | None = "the broker stops"
        try:
            reason = await trio.to_thread.run_sync(self._exporter.send, notes, abandon_on_cancel=True)
        finally:
            if reason is None:
                self._exported += len(notes)
                self._outages.over("spans_not_exported")
            else:
                self._lost += len(notes)
                self._outages.warning("spans_not_exported", lost=self._lost, reason=reason)

    # ------------------------------------------------------------------------------------------------- metrics

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Counts of spans."""
        return {"otelExported": str(self._exported), "otelDropped": str(self._notes.dropped + self._lost)}

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Spans by what became of them."""
        text = "Spans: exported, lost because the collector did not take them, dropped beyond a limit"
        for result, count in (("exported", self._exported), ("lost", self._lost), ("dropped", self._notes.dropped)):
            metrics.counter("gantrymq_otel_spans_total", text, count, result=result)
        metrics.gauge("gantrymq_otel_waiting_spans", "Spans that wait for their export", len(self._notes))
