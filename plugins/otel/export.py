"""Makes spans of notes and sends them to a collector. It runs in a worker thread, and needs the extra ``otel``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gantrymq.plugins.otel.config import OtelConfig
from gantrymq.plugins.otel.spans import Note

_LIBRARY: Final = "opentelemetry.exporter.otlp"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Exporter:
    """One connection to the collector. Calls come from one thread at a time, but for :meth:`close`."""

    def __init__(self, config: OtelConfig, resource: dict[str, str], version: str) -> None:
        """``ValueError`` if the endpoint is no URL."""
        if config.endpoint and not config.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint = {config.endpoint!r} must begin with http:// or https://")
        logging.getLogger(_LIBRARY).addHandler(_LAST)  # the plugin reports errors itself, once for each outage
        logging.getLogger(_LIBRARY).propagate = False
        # It warns about each invalid tracestate, and producers may write anything there.
        logging.getLogger(TraceState.__module__).disabled = True
        self._exporter = OTLPSpanExporter(config.endpoint or None, timeout=config.export_timeout)
        self._resource = Resource.create(resource)
        self._scope = InstrumentationScope("gantrymq.broker", version)
        self._ids = RandomIdGenerator()

    def send(self, notes: Sequence[Note]) -> str | None:
        """Export the spans of ``notes``; returns why it failed."""
        spans = [span for span in map(self._span, notes) if span is not None]
        _LAST.text = ""
        try:
            if not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS:
                return None
        except Exception as error:  # older releases raise what requests raises, as for a missing file of certificates
            return f"{type(error).__name__}: {error}"
        return _LAST.text or "the collector did not take them"

    def close(self) -> None:
        """End a running export soon, and close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _span(self, note: Note) -> ReadableSpan | None:
        """None if the message's ``traceparent`` is not valid."""
        text = note.traceparent.decode("ascii", "replace")
        try:
            trace_id, producer_id = int(text[3:35], 16), int(text[36:52], 16)
        except ValueError:
            return None
        state = TraceState.from_header([note.tracestate.decode("utf-8", "replace")]) if note.tracestate else None
        parent = SpanContext(trace_id, note.parent_id or producer_id, True, _SAMPLED, state)
        if not parent.is_valid:
            return None
        own = SpanContext(trace_id, note.span_id or self._ids.generate_span_id(), False, _SAMPLED, state)
        status = Status(StatusCode.UNSET) if note.error is None else Status(StatusCode.ERROR, note.error)
        return ReadableSpan(
            f"{note.operation} {note.topic}", own, parent, self._resource, note.attributes,
            kind=SpanKind.SERVER, status=status, start_time=note.start_ns, end_time=note.end_ns,
            instrumentation_scope=self._scope,
        )  # fmt: skip


class _Last(logging.Handler):
    """Keeps the last message of OpenTelemetry's exporter, which logs the reason of a failure and returns none."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.text = record.getMessage()


_LAST: Final = _Last()
