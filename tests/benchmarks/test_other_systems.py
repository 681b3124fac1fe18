"""Redis, Kafka and NATS: the output of their tools is parsed, and each runs the scenarios that it supports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

PRODUCED = """50000 records sent, 9999.1 records/sec (0.95 MB/sec), 1.0 ms avg latency, 2.0 ms max latency.
100000 records sent, 123456.78 records/sec (11.77 MB/sec), 40.94 ms avg latency, 241.00 ms max latency, 35 ms 50th.
"""
CONSUMED = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
    "2026-11-21 10:00:00:000, 2026-11-21 10:00:02:000, 95.3, 47.6, 1000000, 500000.0, 900, 1100, 86.6, 909090.9\n"
)


def test_output_of_redis_benchmark_is_parsed(load: Any) -> None:
    text = '"test","rps","avg_latency_ms"\n"XADD s * body xxx","123456.78","0.1"\n'
    assert load("streams").parse_rate(text) == 123456.78


def test_output_of_kafkas_tools_is_parsed(load: Any) -> None:
    kafka = load("kafka")
    assert kafka.parse_producer(PRODUCED) == 123456.78
    assert kafka.parse_consumer(CONSUMED) == 909090.9


def test_kafka_scenarios_are_those_that_its_tools_support(load: Any) -> None:
    expresses, scenarios = load("kafka").expresses, load("scenarios").SCENARIOS
    names = {each.name for each in scenarios if expresses(each)}
    assert {"pull 8 queues, 32 a pull", "send 8x16 async", "send 1x1 sync", "send 8x16 64 KiB"} <= names
    assert not names & {"send 1,000x1", "send 8x16 to 10,000 queues", "send 8x16 with consumers", "batch 8, 4x4"}


def test_kafka_without_java_is_a_missing_tool(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = load("kafka")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(kafka.ToolMissing, match="java and mvn are needed"):
        kafka.find()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_stream_is_measured(load: Any, flush: str) -> None:
    streams = load("streams")
    assert streams.version_line().startswith("Redis ")
    with streams.redis(flush) as server:
        rate, cost = server.rate(load("scenarios").Scenario("", flush, 2, 4), 0.1)
    assert rate > 0
    assert 0 < cost < 10_000


def test_nats_scenarios_are_plain_sends_of_few_connections(load: Any) -> None:
    expresses, scenarios = load("nats").expresses, load("scenarios").SCENARIOS
    names = {each.name for each in scenarios if expresses(each)}
    assert {"send 8x16 async", "send 64x1 sync", "send 8x16 64 KiB"} <= names
    assert not names & {"send 1,000x1", "batch 8, 4x4", "pull 8 queues, 32 a pull", "send 8x16 with consumers"}


def test_nats_without_go_is_a_missing_tool(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nats = load("nats")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(nats, "cache_folder", lambda _folder: tmp_path)
    with pytest.raises(nats.ToolMissing, match="go is needed"):
        nats.find()


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_jetstream_is_measured(load: Any, flush: str) -> None:
    nats = load("nats")
    with nats.nats(flush) as server:
        rate, cost = server.rate(load("scenarios").Scenario("", flush, 2, 4), 0.5)
    assert rate > 0
    assert 0 < cost < 100_000


def test_kafkas_python_clients_have_columns_beside_ours(load: Any, report: Any) -> None:
    found = {"enqueue": [74_000.0, 5.0], "send and wait": [236.0]}
    printed: list[str] = []
    report.figures.add("client", "enqueue", "/s", "gantrymq", 270_000.0, more_is_better=True)
    load("kafka_clients").add("aiokafka", found, report.figures, printed.append)
    columns, rows = report.figure_table("client")
    assert columns == ("what", "gantrymq", "java", "aiokafka", "ours")
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("enqueue", "270,000 /s", "74,000 /s"),
        ("processor time of the client for a message: enqueue", "-", "5 us"),
        ("p50 of send and wait", "-", "236 us"),
    ]
    assert printed == ["aiokafka  Python client: enqueue 74,000/s (5.0 us), send and wait 236 us"]


def test_loads_of_kafkas_clients_have_the_names_of_ours(load: Any) -> None:
    ours, theirs = load("client"), load("kafka_clients_load")
    assert (ours.BODY, ours.TASKS, ours.BATCH_MESSAGES) == (theirs.BODY, theirs.TASKS, theirs.BATCH_MESSAGES)


def test_kafkas_clients_that_cannot_be_installed_are_a_missing_tool(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clients = load("kafka_clients")
    monkeypatch.setattr(clients, "ROOT", tmp_path)
    monkeypatch.setattr(clients.sys, "executable", shutil.which("false"))
    with pytest.raises(clients.ToolMissing, match="pip could not install confluent-kafka"):
        clients.find_python()
