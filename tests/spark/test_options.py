from __future__ import annotations

import re
from pathlib import Path

import pytest

from gantrymq.spark import export
from gantrymq.spark.errors import Unreachable, WrongOption
from gantrymq.spark.options import (
    BATCH_OPTIONS,
    BODY_MAX_BYTES,
    EARLIEST,
    LATEST,
    SINK_OPTIONS,
    STREAM_OPTIONS,
    SourceOptions,
    read_options,
    read_sink_options,
    read_stream_options,
)

NEEDED = {"nameserver": "127.0.0.1:9876", "topic": "orders"}


def test_nameserver_and_topic_are_the_only_required_options() -> None:
    assert read_options(NEEDED) == SourceOptions(
        (("127.0.0.1", 9876),), ("orders",), EARLIEST, LATEST, True, 1, BODY_MAX_BYTES, retry_seconds=60
    )


def test_every_option_is_read_with_any_case_of_its_name() -> None:
    options = read_options(
        {
            "NameServer": "a:1; [::1]:2 ;",
            "TOPIC": "orders, refunds ,orders",
            "startingoffsets": '{"orders": {"broker-a": {"0": 23, "1": -2}}}',
            "endingOffsets": '{"refunds": {"broker-b": {"3": -1}}}',
            "failOnDataLoss": "False",
            "minPartitions": "12",
            "maxMessageBytes": "1000",
            "groupId": "dashboard",
            "retrySeconds": "0",
            "storeTimeTolerance": "90s",
            "badBodies": "NULL",
        }
    )
    assert options.null_bad_bodies
    assert options.time_tolerance_seconds == 90
    assert read_options(NEEDED | {"storeTimeTolerance": "None"}).time_tolerance_seconds is None
    assert options.nameservers == (("a", 1), ("::1", 2))
    assert options.topics == ("orders", "refunds")
    assert options.starting == {"orders": {"broker-a": {0: 23, 1: EARLIEST}}}
    assert options.ending == {"refunds": {"broker-b": {3: LATEST}}}
    assert not options.fail_on_data_loss
    assert (options.min_partitions, options.body_max_bytes) == (12, 1000)
    assert (options.group, options.retry_seconds) == ("dashboard", 0)
    assert read_options(NEEDED | {"startingTimestamp": "17"}).starting_millis == 17


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topic": ""}, "option topic is missing"),
        ({"badBodies": "skip"}, "badBodies is fail or null, not 'skip'"),
        ({"topicPattern": "a.*"}, "topic and topicPattern both select topics"),
        ({"topic": "", "topicPattern": "a(*"}, "topicPattern 'a.* is not a regular expression"),
        (
            {"topic": "", "topicPattern": "a.*", "startingOffsets": '{"b":{"x":{"0":1}}}'},
            "topic 'b' is not among the topics",
        ),
        ({"topic": "", "assign": '{"orders": ["0"]}'}, "assign is not a JSON object of queue ids like"),
        ({"topic": "", "assign": '{"orders": {"broker-a": []}}'}, "assign names no queue"),
        ({"subExpression": "||"}, "subExpression: no tag in"),
        ({"subExpression": "x" * 65_537}, "65537 characters, more than 65536"),
        ({"expressionType": "SQL92"}, "subExpression, which is missing"),
        ({"subExpression": "a", "expressionType": "sql"}, "TAG or SQL92, not 'SQL'"),
        ({"includeProperties": "no"}, "includeProperties is true or false"),
        ({"maxBytesPerPartition": "1m"}, "a number from 1"),
        ({"topic": " , "}, "option topic is missing"),
        ({"nameserver": ";"}, "option nameserver: no nameserver given: host:port is expected"),
        ({"nameserver": "https://a:1"}, "'https://a:1' is not a nameserver: give its host:port"),
        ({"nameserver": "localhost"}, "'localhost' is not an address"),
        ({"nameserver": "localhost:0"}, "port must be a number from 1"),
        ({"nameserver": "localhost:99999"}, "port must be a number from 1"),
        ({"startingOffset": "earliest"}, "unknown option 'startingOffset'; did you mean startingOffsets?"),
        ({"zzz": "1"}, "unknown option 'zzz'; known are nameserver"),
        ({"startingOffsets": "latest"}, "cannot start at latest"),
        ({"startingOffsets": '{"orders":{"b":{"0":-1}}}'}, "cannot start at latest"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
        ({"endingOffsets": '{"orders":{"b":{"0":-2}}}'}, "cannot end at earliest"),
        ({"startingOffsets": "23"}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"orders":{"b":{"x":1}}}'}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"orders":{"b":{"0":"1"}}}'}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": "[" * 100_000}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"other":{"b":{"0":1}}}'}, "topic 'other' is not among the topics"),
        ({"startingOffsets": '{"orders":{"b":{"0":-3}}}'}, "cannot have offset -3"),
        ({"startingOffsets": '{"orders":{"b":{"-1":3}}}'}, "queue -1 cannot have offset 3"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"minPartitions": "0"}, "a number from 1"),
        ({"minPartitions": "٣"}, "a number from 1"),
        ({"maxMessageBytes": "9999999999"}, "a number from 1"),
        ({"startingTimestamp": "-1"}, "a number from 0"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "both say where to start"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest, not 'earliest'"),
        ({"storeTimeTolerance": "soon"}, "storeTimeTolerance is a number with ms, s"),
        ({"groupId": "a b"}, "groupId: the specified group"),
        ({"retrySeconds": "forever"}, "a number from 0"),
        ({"maxOffsetsPerTrigger": "3"}, "option maxOffsetsPerTrigger is for a stream only"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongOption, match=says.replace("?", r"\?")):
        read_options(NEEDED | given)


def test_every_option_of_a_stream_is_read() -> None:
    plain = read_stream_options(NEEDED)
    assert (plain.source.starting, plain.source.ending) == (LATEST, LATEST)
    assert (plain.max_rows, plain.min_rows, plain.max_delay_seconds, plain.max_bytes) == (None, None, 900.0, None)
    options = read_stream_options(
        NEEDED
        | {
            "maxoffsetspertrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "90 s",
            "maxBytesPerTrigger": "1000000",
            "startingOffsets": "earliest",
        }
    )
    assert (options.max_rows, options.min_rows, options.max_delay_seconds, options.max_bytes) == (100, 10, 90.0, 10**6)
    assert options.source.starting == EARLIEST


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is for a batch read only"),
        ({"maxOffsetsPerTriger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "a number from 1"),
        ({"maxBytesPerTrigger": "1m"}, "a number from 1"),
        ({"minOffsetsPerTrigger": "2", "maxTriggerDelay": "15"}, "a number with ms, s, m, min, h or d"),
        ({"maxTriggerDelay": "15m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"},
            r"\(20\) is more than maxOffsetsPerTrigger \(10\)",
        ),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongOption, match=says):
        read_stream_options(NEEDED | given)


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1, b:2", "http://a:1;b:2"])
def test_nameservers_are_read_as_by_the_client(text: str) -> None:
    assert read_options(NEEDED | {"nameserver": text}).nameservers == (("a", 1), ("b", 2))
    assert read_sink_options(NEEDED | {"nameserver": text}).nameservers == text


def test_a_url_that_names_no_nameservers_is_unreachable() -> None:
    url = "http://127.0.0.1:1/rocketmq/nsaddr"
    with pytest.raises(Unreachable, match=rf"{url}.*no nameservers"):
        read_options(NEEDED | {"nameserver": url})


def test_a_missing_nameserver_is_named() -> None:
    with pytest.raises(WrongOption, match="option nameserver is missing"):
        read_options({"topic": "orders"})


def test_the_reference_page_has_every_option() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark-options.md"
    reading, writing = page.read_text().partition("## Coming from Kafka")[0].split("## Writing")
    for text, options in ((reading, {*BATCH_OPTIONS, *STREAM_OPTIONS}), (writing, set(SINK_OPTIONS))):
        first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(options)


def test_the_reference_page_has_the_defaults_of_the_code() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark-options.md"
    rows = [re.split(r"(?<!\\)\|", line) for line in page.read_text().splitlines() if line.startswith("| `")]
    shown = {name.strip(" `"): default.strip(" `") for _, name, _, default, *_ in rows if default.strip()}
    source, sink = read_options(NEEDED), read_sink_options(NEEDED)
    stream = read_stream_options(NEEDED)
    assert shown["minPartitions"] == str(source.min_partitions)
    assert shown["maxMessageBytes"] == str(source.body_max_bytes)
    assert shown["retrySeconds"] == str(source.retry_seconds)
    assert shown["failOnDataLoss"] == str(source.fail_on_data_loss).lower()
    assert shown["includeProperties"] == str(source.include_properties).lower()
    assert shown["badBodies"] == ("null" if source.null_bad_bodies else "fail")
    assert shown["tls"] == str(source.security.tls).lower()
    assert shown["storeTimeTolerance"] == f"{(source.time_tolerance_seconds or 0) // 60:.0f}m"
    assert shown["maxTriggerDelay"] == f"{stream.max_delay_seconds // 60:.0f}m"
    assert shown["dedupKeys"] == str(sink.derive_dedup_keys).lower()
    assert shown["lingerMillis"] == f"{sink.linger_seconds * 1000:.0f}"
    assert shown["producerGroup"] == sink.group
    assert source.latest_without_match
    assert shown["startingOffsetsByTimestampStrategy"].startswith("latest")
    for name in ("maxRecordsPerPartition", "maxBytesPerPartition", "maxOffsetsPerTrigger", "groupId", "accessKey"):
        assert shown[name] == "none"


@pytest.mark.parametrize("given", [{"subExpression": "paid"}, {"includeProperties": "false"}])
def test_an_export_takes_no_filter(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(WrongOption, match="not for exports, which have complete queues"):
        export("orders", tmp_path / "out", engine="local", options=given)
    assert not (tmp_path / "out").exists()
