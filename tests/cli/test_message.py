"""``gantrymq message get`` and ``trace`` on a real broker, with traces in all forms of RocketMQ's clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import gantrymq.sync
from gantrymq import Message
from gantrymq.operations.clock import clock
from gantrymq.operations.traces import read_traces
from gantrymq.remoting.names import TRACE_TOPIC
from gantrymq.sync import Client
from support.processes import wait_for


class Stored(NamedTuple):
    """A message of a trace topic."""

    body: bytes
    born_host: str


def traces(*lines: tuple[object, ...]) -> list[Any]:
    text = "".join("\x01".join(map(str, line)) + "\x02" for line in lines)
    return [Stored(text.encode(), "10.0.0.7:4711")]


def test_traces_show_producer_and_each_attempt_of_each_group(
    cli: Callable[..., Any], gantry_broker: Any, gantry_topic: str
) -> None:
    at = ("--nameserver", gantry_broker.nameserver)

    def events(message_id: str) -> list[dict[str, Any]]:
        done = cli("message", "trace", message_id, "--json", *at)
        return json.loads(done.out) if done.code == 0 else []

    with gantrymq.sync.connect(gantry_broker.nameserver, trace=True) as client:
        with client.producer("shop") as producer:
            sent = producer.send(gantry_topic, b"one", tags="red", keys=["k1", "k2"])
        with client.consumer(gantry_topic, "billing", start="first", max_retries=1) as consumer:
            next(iter(consumer)).retry(1)
            next(iter(consumer)).ack()
    with gantrymq.sync.connect(gantry_broker.nameserver) as client, client.producer("shop") as producer:
        untraced = producer.send(gantry_topic, b"two").message_id

    wait_for(lambda: len(events(sent.message_id)) == 3)
    found = events(sent.message_id)
    assert [(each["event"], each["group"], each["result"], each["retries"]) for each in found] == [
        ("sent", "shop", "success", None), ("consumed", "billing", "failed", 0), ("consumed", "billing", "success", 1),
    ]  # fmt: skip
    assert (found[0]["topic"], found[0]["tags"], found[0]["keys"]) == (gantry_topic, "red", "k1 k2")
    assert (found[0]["body_bytes"], found[0]["kind"], found[0]["client"]) == (3, "normal", "127.0.0.1")
    assert [each["time_ms"] for each in found] == sorted(each["time_ms"] for each in found)
    assert events(sent.offset_message_id) == found, "the broker's id is as good"

    table = cli("message", "trace", sent.message_id, *at)
    assert table.out.splitlines()[0] == f"topic {gantry_topic}, tags red, keys k1 k2, 3 bytes"
    missing = cli("message", "trace", untraced, *at)
    assert (missing.code, missing.err.startswith(f"gantrymq: no trace of message {untraced} in RMQ_SYS")) == (1, True)
    nowhere = cli("message", "trace", untraced, "--trace-topic", "mine", *at)
    assert (nowhere.code, "has no trace topic mine" in nowhere.err) == (1, True)


def test_a_message_is_printed_by_both_of_its_ids(
    cli: Callable[..., Any], gantry_broker: Any, gantry_client: Client, gantry_topic: str
) -> None:
    at = ("--nameserver", gantry_broker.nameserver)
    with gantry_client.producer() as producer:
        sent = producer.send(gantry_topic, b"one", tags="red")
    for message_id in (sent.message_id, sent.offset_message_id):
        assert cli("message", "get", message_id, gantry_topic, *at).out == "one\n"
    row = json.loads(cli("message", "get", sent.message_id, gantry_topic, "--json", *at).out)
    assert (row["message_id"], row["tags"], row["body"]) == (sent.message_id, "red", "one")
    missing = cli("message", "get", "0" * 32, gantry_topic, *at)
    assert (missing.code, missing.out) == (1, "")


def test_traces_in_all_known_forms_are_read_and_others_counted() -> None:
    sent = ("Pub", 1000, "DefaultRegion", "p", "T", "ID", "a", "k", "10.0.0.1:10911", 5, 3)
    found, unreadable = read_traces(
        traces(
            (*sent, 0, "true"),  # before 4.3
            (*sent, 1, "OFFSET-ID", "false"),
            (*sent, 3, "OFFSET-ID", "true", "10.0.0.9"),  # the client's own address
            ("SubAfter", "r1", "ID", 20, "false", "k", 1, 2020, "g"),  # before its beginning
            ("SubBefore", 2000, "DefaultRegion", "g", "r1", "ID", 2, "k"),
            ("SubBefore", 3000, "DefaultRegion", "g", "r2", "ID", 0, "k"),
            ("SubBefore", 3000, "DefaultRegion", "g", "r2", "OTHER", 0, "k"),  # of the same batch
            ("SubAfter", "r2", "OTHER", 7, "true", "k", 0, 3007, "g"),
            ("SubAfter", "r3", "ID", 20, "true", "k", 0, ""),  # of Alibaba's cloud
            ("EndTransaction", 1500, "R", "p", "T", "ID", "null", "k", "h", 2, "x", "COMMIT_MESSAGE", "false"),
            ("Recall", 1600, "DefaultRegion", "p", "T", "ID", "true"),
            ("Pub", "then"),
            ("Unheard", 1, 2),
        ),
        "ID",
    )  # fmt: skip
    assert unreadable == 2
    assert [(each.event, each.time_ms, each.result, each.duration_ms, each.retries, each.kind) for each in found] == [
        ("consumed", None, "success", 20, None, None),
        ("sent", 1000, "success", 3, None, "normal"),
        ("sent", 1000, "failed", 3, None, "half"),
        ("sent", 1000, "success", 3, None, "delayed"),
        ("transaction_ended", 1500, "commit", None, None, None),
        ("recalled", 1600, "success", None, None, None),
        ("consumed", 2000, "timeout", 20, 2, None),
        ("consumed", 3000, "unfinished", None, 0, None),
    ]
    assert [each.offset_message_id for each in found[1:4]] == [None, "OFFSET-ID", "OFFSET-ID"]
    assert (found[4].tags, {each.client for each in found}) == (None, {"10.0.0.7"})


def test_traces_with_impossible_times_are_printed_with_their_numbers(
    cli: Callable[..., Any], gantry_broker: Any, gantry_client: Client
) -> None:
    message_id = "7F0000010000000000000000TIME0001"
    times = (-(10**18), 1600, 10**18, 10**30)
    (stored,) = traces(*(("Recall", time, "DefaultRegion", "p", "T", message_id, "true") for time in times))
    with gantry_client.producer() as producer:
        producer.send(Message(TRACE_TOPIC, stored.body, keys=[message_id]))
    trace = ("message", "trace", message_id, "--nameserver", gantry_broker.nameserver)
    wait_for(lambda: cli(*trace).code == 0)
    rows = cli(*trace).out.splitlines()[1:]
    assert [row.split("  ")[0] for row in rows] == [f"{-(10**18)} ms", clock(1600), f"{10**18} ms", f"{10**30} ms"]
    assert [each["time_ms"] for each in json.loads(cli(*trace, "--json").out)] == list(times)
