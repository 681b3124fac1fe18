"""Traces of messages through a broker: a collector gets the spans of producer, broker and consumer over OTLP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import gantrymq
import gantrymq.sync
from gantrymq.kernel import hookimpl
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.testing.fixtures import StartPluginBroker
from support.foreign import ToolMissing, cache_folder, find_go
from support.processes import Child, free_ports, wait_for

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
processors = pytest.importorskip("opentelemetry.sdk.trace.export")
otlp = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
protobuf = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

INTEROP = Path(__file__).parents[2] / "interop"
OTEL = "gantrymq.plugins.otel:OtelPlugin"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, PRODUCER_ID = bytes.fromhex(TRACEPARENT[3:35]), bytes.fromhex(TRACEPARENT[36:52])


class Collector:
    """A receiver of OTLP over HTTP; ``status`` is its answer, which waits for ``may_answer``."""

    def __init__(self) -> None:
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.requests = 0
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector.take(self.path, body)
                collector.may_answer.wait()
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def take(self, path: str, body: bytes) -> int:
        assert path == "/v1/traces"
        request = protobuf.ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.requests += 1
            for each in request.resource_spans if self.status == 200 else ():
                self.resources.append({pair.key: pair.value.string_value for pair in each.resource.attributes})
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
            self._changed.notify_all()
            return self.status  # a test may set another one as soon as it sees the request

    def wait(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 30), [span.name for span in self.spans]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Any:
        self.wait(lambda: self.named(name))
        (span,) = self.named(name)
        return span

    def close(self) -> None:
        self.may_answer.set()  # a request that still waits would keep the server from closing
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def settings(collector: Collector, **given: str) -> dict[str, str]:
    fixed = {"plugin.otel.endpoint": collector.url, "plugin.otel.export_interval": "50ms"}
    return fixed | {f"plugin.otel.{key}": value for key, value in given.items()}


def attributes(span: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) if pair.value.WhichOneof("value") else None
        for pair in span.attributes
    }


def counted_spans(broker: Any) -> dict[str, float]:
    """The metric of spans by their result."""
    metrics = Metrics(100)
    broker.plugin.collect_metrics(None, metrics)
    return {result: count for (result,), count in metrics.families["gantrymq_otel_spans_total"].series.items()}


def test_a_collector_gets_one_trace_of_producer_broker_and_consumer(
    collector: Collector, plugin_broker: StartPluginBroker
) -> None:
    check_one_trace(collector, collector.url, plugin_broker)


def check_one_trace(collector: Collector, endpoint: str, plugin_broker: StartPluginBroker) -> None:
    """``endpoint``: where producer, broker and consumer send their spans, which come to ``collector``."""
    from gantrymq.client.otel import OpenTelemetry

    broker = plugin_broker(OTEL, settings=settings(collector, endpoint=endpoint))
    provider = sdk.TracerProvider()
    provider.add_span_processor(processors.SimpleSpanProcessor(otlp.OTLPSpanExporter(endpoint)))
    with gantrymq.sync.connect(broker.nameserver, interceptors=[OpenTelemetry(provider)]) as client:
        with client.producer("p") as producer:
            sent = producer.send("T", b"hello", tags="a", keys=["k"])
        with client.consumer("T", "g", start="first") as messages:
            message = next(messages)
            message.ack()
    provider.shutdown()
    send, store, deliver, process = (collector.one(f"{each} T") for each in ("send", "store", "deliver", "process"))
    assert len({span.trace_id for span in (send, store, deliver, process)}) == 1
    assert send.parent_span_id == b""
    assert store.parent_span_id == send.span_id
    assert deliver.parent_span_id == store.span_id
    assert process.parent_span_id == send.span_id
    assert store.start_time_unix_nano <= store.end_time_unix_nano <= deliver.end_time_unix_nano
    assert send.start_time_unix_nano - 2_000_000 <= store.start_time_unix_nano
    assert store.kind == deliver.kind == 2  # SERVER
    seen = attributes(store)
    assert seen["messaging.message.id"] == sent.message_id
    assert seen["messaging.destination.name"] == "T"
    assert seen["messaging.destination.partition.id"] == str(sent.queue.queue_id)
    assert seen["messaging.rocketmq.queue_offset"] == sent.queue_offset
    assert (seen["messaging.rocketmq.message.tag"], seen["messaging.rocketmq.message.keys"]) == ("a", "k")
    seen = attributes(deliver)
    assert seen["messaging.consumer.group.name"] == "g"
    assert seen["gantrymq.waited_ms"] >= 0
    assert message.properties["traceparent"].split("-")[2] == send.span_id.hex()
    assert {each["service.name"] for each in collector.resources} >= {"gantrymq-broker"}
    assert {each.get("service.instance.id") for each in collector.resources} >= {"broker-a/0"}


CONFIGURATION = """
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  otlphttp: {{traces_endpoint: "{to}", compression: none, encoding: proto}}
service:
  pipelines:
    traces: {{receivers: [otlp], exporters: [otlphttp]}}
  telemetry: {{metrics: {{level: none}}, logs: {{output_paths: [stdout]}}}}
"""


@pytest.mark.soak(0)
@pytest.mark.timeout(900)
def test_a_real_collector_of_opentelemetry_takes_the_spans_and_passes_them_on(
    collector: Collector, plugin_broker: StartPluginBroker, tmp_path: Path
) -> None:
    """It is built from OpenTelemetry's Go modules, the first time for some minutes."""
    try:
        program = find_go(INTEROP / "collector", cache_folder(INTEROP / ".cache"))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    (port,) = free_ports()
    (file := tmp_path / "collector.yaml").write_text(CONFIGURATION.format(port=port, to=collector.url))
    with Child([str(program.absolute()), "--config", str(file)], tmp_path / "collector.log") as real:
        real.wait_line(lambda line: "Everything is ready" in line, 60)
        check_one_trace(collector, f"http://127.0.0.1:{port}/v1/traces", plugin_broker)


def test_delays_retries_and_dead_letters_have_spans_in_the_trace(
    collector: Collector, plugin_broker: StartPluginBroker
) -> None:
    client = plugin_broker(OTEL, settings=settings(collector)).client
    with client.producer("p") as producer:
        producer.send("T", b"later", properties={"traceparent": TRACEPARENT}, delay=0.05)
    for group, attempts in (("g", 16), ("hasty", 0)):
        with client.consumer("T", group, start="first", max_retries=attempts) as messages:
            next(messages).retry(5)
    store = collector.one("store T")
    assert collector.one("delay T").trace_id == store.trace_id == TRACE_ID
    assert attributes(collector.one("delay T"))["gantrymq.stored_in"] == "rmq_sys_wheel_timer"
    assert attributes(store)["gantrymq.source"] == "timer"
    retry = collector.one("retry %RETRY%g")
    assert (retry.trace_id, retry.parent_span_id) == (TRACE_ID, PRODUCER_ID)
    assert attributes(retry)["gantrymq.stored_in"] == "SCHEDULE_TOPIC_XXXX"
    dead = attributes(collector.one("dead_letter %DLQ%hasty"))
    assert dead["messaging.consumer.group.name"] == "hasty"
    assert dead["gantrymq.retry_topic"] == "T"
    collector.wait(lambda: len(collector.named("deliver T")) == 2)
    assert {span.parent_span_id for span in collector.named("deliver T")} == {store.span_id}


def test_transactions_have_spans_of_the_half_message_and_the_commit(
    collector: Collector, plugin_broker: StartPluginBroker
) -> None:
    client = plugin_broker(OTEL, settings=settings(collector)).client
    with client.transactional_producer("p", check=lambda _: gantrymq.Outcome.COMMIT) as producer:
        producer.send("T", b"x", local=lambda *_: gantrymq.Outcome.COMMIT, properties={"traceparent": TRACEPARENT})
    assert collector.one("half T").parent_span_id == PRODUCER_ID
    assert attributes(collector.one("commit T"))["gantrymq.source"] == "transaction"


def test_only_traces_sampled_by_the_producer_and_by_the_share_have_spans(
    collector: Collector, plugin_broker: StartPluginBroker
) -> None:
    broker = plugin_broker(OTEL, settings=settings(collector, sample="0.5"))
    ids = {"in": f"{'1' * 16}{'0' * 16}", "out": f"{'1' * 16}{'f' * 16}", "unsampled": f"{'2' * 16}{'0' * 16}"}
    with broker.client.producer("p") as producer:
        for name, trace_id in ids.items():
            flags = "00" if name == "unsampled" else "01"
            traceparent = f"00-{trace_id}-b7ad6b7169203331-{flags}"
            producer.send(name, b"x", properties={"traceparent": traceparent})
        for text in ("", "00-x", "-" * 55, f"00-{'x' * 32}-b7ad6b7169203331-01", f"00-{'0' * 32}-{'0' * 16}-01"):
            producer.send("bad", b"x", properties={"traceparent": text} if text else {})
    broker.stop()
    assert [span.name for span in collector.spans] == ["store in"]


def test_spans_beyond_a_limit_are_dropped_and_counted(collector: Collector, plugin_broker: StartPluginBroker) -> None:
    broker = plugin_broker(OTEL, settings=settings(collector, queue_max="100", export_interval="1m"))
    message = gantrymq.Message("T", b"x", properties={"traceparent": TRACEPARENT})
    with broker.client.producer("p") as producer:
        producer.send_batch([message] * 150)
    assert broker.plugin.runtime_info(broker.cluster.broker)["otelDropped"] == "50"
    broker.stop()  # the rest is exported at the end
    assert len(collector.named("store T")) == 100


def test_an_outage_of_the_collector_stops_nothing_and_is_logged_once(
    collector: Collector, plugin_broker: StartPluginBroker
) -> None:
    collector.status = 400
    with capture_logs() as logs:
        broker = plugin_broker(OTEL, settings=settings(collector))
        with broker.client.producer("p") as producer:
            for count in range(1, 4):
                producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
                collector.wait(lambda count=count: collector.requests >= count)
            collector.status = 200
            producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
            collector.one("store T")
        wait_for(lambda: any(each["event"] == "outage_ended" for each in logs))
        broker.stop()
    events = [each for each in logs if each["event"] in ("spans_not_exported", "outage_ended")]
    assert [each["event"] for each in events] == ["spans_not_exported", "outage_ended"]
    assert "400" in events[0]["reason"]
    assert (events[1]["of"], events[1]["lost"]) == ("spans_not_exported", 3)
    assert counted_spans(broker) == {"exported": 1, "lost": 3, "dropped": 0}


def test_an_export_that_raises_loses_its_spans_only(
    collector: Collector, plugin_broker: StartPluginBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [OSError("no CA bundle")]
    export = otlp.OTLPSpanExporter.export

    def fail_first(self: Any, spans: Any) -> Any:
        if faults:
            raise faults.pop()
        return export(self, spans)

    monkeypatch.setattr(otlp.OTLPSpanExporter, "export", fail_first)
    with capture_logs() as logs:
        broker = plugin_broker(OTEL, settings=settings(collector))
        with broker.client.producer("p") as producer:
            producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
            wait_for(lambda: not faults)
            producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
        collector.one("store T")
        broker.stop()
    reasons = [each["reason"] for each in logs if each["event"] == "spans_not_exported"]
    assert reasons == ["OSError: no CA bundle"]
    assert counted_spans(broker) == {"exported": 1, "lost": 1, "dropped": 0}


def test_a_stop_waits_for_the_running_export(collector: Collector, plugin_broker: StartPluginBroker) -> None:
    collector.may_answer.clear()
    broker = plugin_broker(OTEL, settings=settings(collector))
    with broker.client.producer("p") as producer:
        producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
    collector.wait(lambda: collector.requests)
    answering = threading.Timer(0.3, collector.may_answer.set)
    answering.start()
    broker.stop()
    answering.join()
    assert counted_spans(broker) == {"exported": 1, "lost": 0, "dropped": 0}


def test_a_stop_gives_up_on_a_collector_that_does_not_answer(
    collector: Collector, plugin_broker: StartPluginBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.plugins.otel.LAST_EXPORT_S", 0.1)
    collector.may_answer.clear()
    with capture_logs() as logs:
        broker = plugin_broker(OTEL, settings=settings(collector))
        with broker.client.producer("p") as producer:
            producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
        collector.wait(lambda: collector.requests)
        broker.stop()
    assert [each["reason"] for each in logs if each["event"] == "spans_not_exported"] == ["the broker stops"]
    assert counted_spans(broker) == {"exported": 0, "lost": 1, "dropped": 0}


def test_a_refused_message_has_a_span_with_the_reason(collector: Collector, plugin_broker: StartPluginBroker) -> None:
    class Refusing:
        name = "refusing"

        @hookimpl
        def before_append(self, batch: Any) -> None:
            batch.refuse(0, 1, "not today")

    broker = plugin_broker(OTEL, Refusing, settings=settings(collector))
    with broker.client.producer("p") as producer, pytest.raises(gantrymq.GantryError):
        producer.send("T", b"x", properties={"traceparent": TRACEPARENT})
    collector.wait(lambda: collector.named("store T"))
    span = collector.spans[0]
    assert (span.status.code, span.status.message) == (2, "not today")


def test_a_wrong_endpoint_refuses_the_start(plugin_broker: StartPluginBroker) -> None:
    with pytest.raises(StartError, match=r"plugin\.otel: endpoint = 'collector:4318' must begin with http"):
        plugin_broker(OTEL, settings={"plugin.otel.endpoint": "collector:4318"})


@pytest.mark.parametrize(
    "tracestate", ["nonsense", "a=b,=", "A=b", "a=\u00e9", ",".join(f"k{number}=v" for number in range(33))]
)
def test_an_invalid_tracestate_is_left_out_and_writes_nothing_to_standard_error(
    collector: Collector, plugin_broker: StartPluginBroker, tracestate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry warns with :mod:`logging`, whose last resort is the standard error of the broker."""
    warnings: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert logging.lastResort is not None
    monkeypatch.setattr(logging.lastResort, "emit", warnings.append)
    broker = plugin_broker(OTEL, settings=settings(collector))
    with broker.client.producer("p") as producer:
        producer.send("T", b"x", properties={"traceparent": TRACEPARENT, "tracestate": tracestate})
        producer.send("U", b"x", properties={"traceparent": TRACEPARENT, "tracestate": "a=b,c=d"})
    assert [collector.one(name).trace_state for name in ("store T", "store U")] == ["", "a=b,c=d"]
    assert [record.getMessage() for record in warnings] == []


def test_long_properties_are_cut_before_spans_wait(collector: Collector, plugin_broker: StartPluginBroker) -> None:
    broker = plugin_broker(OTEL, settings=settings(collector))
    properties = {"traceparent": TRACEPARENT + "-" * 5_000, "tracestate": "a=" + "b" * 5_000}
    with broker.client.producer("p") as producer:
        producer.send("T", b"x", keys=["k" * 5_000], properties=properties)
    span = collector.one("store T")
    assert attributes(span)["messaging.rocketmq.message.keys"] == "k" * 512
    assert (span.trace_id, span.trace_state) == (TRACE_ID, "")
