"""The sink without Spark: columns, options, and Arrow batches that become messages of a real broker."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from gantrymq import sync
from gantrymq.client.sender import queue_of_key
from gantrymq.message import DeliveredRecord
from gantrymq.plugins.interfaces import Registration
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.spark.errors import SendFailed, WrongOption
from gantrymq.spark.options import read_sink_options
from gantrymq.spark.rows import DEDUP_PROPERTY
from gantrymq.spark.sink import _Sending, check_sink_columns, send_rows
from gantrymq.testing.harness import Cluster, cluster_in_thread, make_broker, run_broker, run_cluster
from support.processes import wait_for

pa = pytest.importorskip("pyarrow", reason="rows are Arrow's: pip install 'gantrymq[spark]'")

T = TypeVar("T")
NEEDED = {"nameserver": "127.0.0.1:9876", "topic": "orders"}
DEDUP = Path(__file__).parents[2] / "examples" / "plugins" / "dedup" / "gantrymq_dedup.py"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path / "store") as cluster:
        yield cluster


def stored(nameserver: str, topic: str = "orders") -> list[DeliveredRecord]:
    with sync.connect(nameserver) as client:
        wait_for(lambda: topic in client.admin.topics())  # a topic that a send has created is registered soon after it
        queues = client.admin.queues(topic)
        found = [
            client.admin.message_at(queue, offset)
            for queue in queues
            for offset in range(client.admin.max_offset(queue))
        ]
    return [message for message in found if message is not None]


@pytest.mark.parametrize(
    ("types", "options", "says"),
    [
        ({"value": "string"}, {}, "column 'value' is not a part of a message; there are topic, body"),
        ({"topic": "string"}, {}, 'column "body" is missing'),
        ({"body": "int"}, {}, "column 'body' is of type int; it must be binary or string"),
        (
            {"body": "string"},
            {"topic": ""},
            'where to send is missing: .option("topic", "orders"), or a column "topic"',
        ),
        ({"body": "string", "dedup_key": "string"}, {"dedupKeys": "true"}, "take one of them"),
        ({"body": "string", "deliver_at": "bigint"}, {}, "it must be timestamp"),
    ],
)
def test_columns_that_make_no_message_are_named(types: dict[str, str], options: dict[str, str], says: str) -> None:
    with pytest.raises(WrongOption) as caught:
        check_sink_columns(types, read_sink_options(NEEDED | options))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nameserver": "x"}, "'x' is not an address"),
        ({"startingOffsets": "latest"}, "option startingOffsets is for reading only"),
        ({"topc": "x"}, "did you mean topic"),
        ({"dedupKeys": "1"}, "dedupKeys is true or false"),
        ({"producerGroup": "a b"}, "producerGroup: the specified group"),
        ({"lingerMillis": "-1"}, "lingerMillis is a number from 0"),
        ({"accessKey": "a"}, "secret_key is missing"),
        ({"tls": "yes"}, "tls is true, false or unverified, not 'yes'"),
        ({"tls": "unverified", "tlsCaFile": "/x"}, "tls=unverified verifies nothing: leave out tlsCaFile"),
        ({"tlsCaFile": "/x"}, "tlsCaFile is for tls=true only"),
        ({"tlsCertFile": "/x"}, "tlsCertFile is for tls=true only"),
        ({"tls": "true", "tlsCaFile": "/x"}, "tlsCaFile '/x' cannot be read: No such file"),
        ({"tls": "true", "tlsCertFile": "/x", "tlsKeyFile": "/y"}, "read from '/x' and '/y': No such file"),
        ({"tls": "true", "tlsKeyFile": "/y"}, "tlsKeyFile needs tlsCertFile"),
        ({"namespace": "a b"}, "namespace 'a b' has characters"),
    ],
)
def test_a_wrong_option_of_a_write_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(WrongOption, match=says):
        read_sink_options(NEEDED | given)


def test_every_option_of_a_write_is_read() -> None:
    options = read_sink_options(
        NEEDED
        | {"DEDUPKEYS": "true", "lingerMillis": "20", "producerGroup": "etl", "accessKey": "a", "secretKey": "s",
           "namespace": "n", "namespaceV2": "m", "tls": "true", "checkpointLocation": "/c", "path": "p"}
    )  # fmt: skip
    assert (options.derive_dedup_keys, options.linger_seconds, options.group) == (True, 0.02, "etl")
    security = options.security
    assert (security.access_key, security.namespace, security.namespace_v2, security.tls) == ("a", "n", "m", True)
    assert "secret" not in repr(options).replace("secret_key", ""), "secrets are not shown"


def test_rows_become_messages_with_all_values_of_their_columns(running: Cluster) -> None:
    deliver_at = datetime.now(UTC) - timedelta(seconds=5)
    rows: list[dict[str, Any]] = [
        {"topic": None, "body": b"plain"},
        {"topic": "refunds", "body": b"full", "tags": "paid", "keys": ["a", "b"], "properties": [("color", "grün")],
         "dedup_key": "mine"},
        {"topic": None, "body": b"late", "deliver_at": deliver_at},
        *({"topic": None, "body": b"ordered", "order_key": "customer 7"} for _ in range(20)),
    ]  # fmt: skip
    schema = pa.schema(
        [
            ("topic", pa.string()), ("body", pa.binary()), ("tags", pa.string()), ("keys", pa.list_(pa.string())),
            ("properties", pa.map_(pa.string(), pa.string())), ("deliver_at", pa.timestamp("us", "UTC")),
            ("order_key", pa.string()), ("dedup_key", pa.string()),
        ]
    )  # fmt: skip
    batches = pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=9)
    options = read_sink_options({"nameserver": running.nameserver, "topic": "orders"})
    assert send_rows(iter(batches), options, "") == 23
    (full,) = stored(running.nameserver, "refunds")
    assert (full.body, full.tags, full.keys) == (b"full", "paid", ("a", "b"))
    assert {"color": "grün", DEDUP_PROPERTY: "mine"}.items() <= full.properties.items()
    orders = stored(running.nameserver)
    assert {message.body for message in orders} >= {b"plain", b"ordered"}
    assert len({message.queue_id for message in orders if message.body == b"ordered"}) == 1


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"body": [b"x", None]}, "row 1 of the task has no body: it is null"),
        ({"body": [b"x"], "topic": [None]}, "row 0 of the task has no topic: it is null"),
        ({"body": [b"x", b""]}, "row 1 of the task is not a valid message: the body is empty"),
        ({"body": [b"x" * 4_194_305]}, "row 0 of the task is not a valid message: the body has 4194305 bytes"),
        ({"body": [b"x"], "topic": ["no topic!"]}, "row 0 of the task is not a valid message: .*no topic!"),
        ({"body": [b"x"], "delay": [-1]}, "row 0 of the task is not a valid message: .*delay"),
        ({"body": [b"x"], "keys": ["ok"], "properties": [[("TAGS", "x")]]}, "property TAGS is reserved"),
    ],
)
def test_a_row_that_is_no_message_is_named(running: Cluster, rows: dict[str, list[Any]], says: str) -> None:
    given = {"nameserver": running.nameserver} | ({} if "topic" in rows else {"topic": "orders"})
    types = {"properties": pa.map_(pa.string(), pa.string()), "topic": pa.string(), "body": pa.binary()}
    batch = pa.record_batch({name: pa.array(values, types.get(name)) for name, values in rows.items()})
    with pytest.raises(SendFailed, match=says):
        send_rows(iter([batch]), read_sink_options(given), "")


def test_unusual_rows_are_sent_beside_the_encoded_ones(running: Cluster) -> None:
    """A key with a tab is no usual one: the client separates it."""
    bodies = [b"%d" % number for number in range(20_000)]
    keys = ["a\tb" if number % 5000 == 77 else str(number) for number in range(20_000)]
    options = read_sink_options({"nameserver": running.nameserver, "topic": "orders"})
    assert send_rows(iter([pa.record_batch({"body": bodies, "keys": keys})]), options, "") == 20_000
    with sync.connect(running.nameserver) as client:
        found = sum(client.admin.max_offset(queue) for queue in client.admin.queues("orders"))
    assert found == 20_000


def test_rows_with_one_order_key_keep_their_order_among_unusual_ones(running: Cluster) -> None:
    """A key with a tab goes the way of single messages, into the same queue."""
    count = 3_000
    columns = {
        "body": [b"%d" % number for number in range(count)],
        "order_key": [None if number % 7 == 0 else f"customer {number % 7}" for number in range(count)],
        "keys": ["a\tb" if number % 300 == 5 else None for number in range(count)],
    }
    batch = pa.record_batch({**columns, "keys": pa.array(columns["keys"], pa.string())})
    options = read_sink_options({"nameserver": running.nameserver, "topic": "orders"})
    assert send_rows(iter([batch]), options, "") == count
    found: dict[str | None, list[DeliveredRecord]] = {}
    for message in stored(running.nameserver):
        found.setdefault(message.properties.get("__SHARDINGKEY"), []).append(message)
    assert sum(map(len, found.values())) == count
    del found[None]
    for key, messages in found.items():
        numbers = [int(message.body) for message in sorted(messages, key=lambda message: message.queue_offset)]
        assert len({message.queue_id for message in messages}) == 1, key
        assert numbers == sorted(numbers), key
    assert len(found) == 6


def test_an_unstorable_message_fails_the_task() -> None:
    options = read_sink_options({"nameserver": "127.0.0.1:1", "topic": "orders"})
    with pytest.raises(SendFailed, match=r"127\.0\.0\.1:1"):
        send_rows(iter([pa.record_batch({"body": [b"x"]})]), options, "")


def test_a_message_that_is_stored_less_safely_than_asked_fails_the_task(tmp_path: Path) -> None:
    """A synchronous master without its slave stores a message and says that it did not reach the slave."""
    settings = {"plugin.ha.role": "sync_master", "plugin.ha.listen": "127.0.0.1:0"}
    with cluster_in_thread(tmp_path / "store", enable=["ha"], settings=settings) as cluster:
        options = read_sink_options({"nameserver": cluster.nameserver, "topic": "orders"})
        with pytest.raises(SendFailed, match="SLAVE_NOT_AVAILABLE"):
            send_rows(iter([pa.record_batch({"body": [b"x"]})]), options, "")


def test_a_task_that_is_repeated_stores_each_row_once_with_deduplication(tmp_path: Path) -> None:
    dedup = runpy.run_path(str(DEDUP))["DedupPlugin"]
    batch = pa.record_batch({"body": [b"%d" % number for number in range(500)]})
    settings = {"plugin.dedup.property": DEDUP_PROPERTY}
    with cluster_in_thread(tmp_path / "store", enable=[dedup], settings=settings) as cluster:
        options = read_sink_options({"nameserver": cluster.nameserver, "topic": "orders", "dedupKeys": "true"})
        send_rows(iter([batch.slice(0, 300)]), options, "query-7-0")  # a task that died after 300 rows
        send_rows(iter([batch.slice(0, 100), batch.slice(100)]), options, "query-7-0")
        send_rows(iter([batch.slice(0, 1)]), options, "query-8-0")
        by_key = read_sink_options({"nameserver": cluster.nameserver, "topic": "orders"})
        for first in (500, 501):  # with keys of the user's own, in any order and task
            numbers = range(first, first + 3)
            keyed = pa.record_batch(
                {"body": [b"%d" % number for number in numbers], "dedup_key": [f"order-{number}" for number in numbers]}
            )
            send_rows(iter([keyed]), by_key, f"query-{first}")
        bodies = sorted(int(message.body) for message in stored(cluster.nameserver))
    assert bodies == sorted([*range(504), 0])


def run_on_two_brokers(folder: Path, work: Callable[[str], T]) -> T:
    """What ``work`` returns for the nameserver of two brokers that have the plugin ``dedup`` and the topic
    ``orders``."""
    dedup = runpy.run_path(str(DEDUP))["DedupPlugin"]
    settings = {"plugin.dedup.property": DEDUP_PROPERTY}

    def create_and_work(nameserver: str) -> T:
        with sync.connect(nameserver) as client:
            client.admin.create_topic("orders")
        return work(nameserver)

    async def main() -> T:
        first = settings | {"broker.name": "broker-a"}
        async with run_cluster(folder / "a", settings=first, enable=[dedup]) as cluster:
            second = settings | {"broker.name": "broker-b"}
            other = make_broker(folder / "b", [cluster.nameserver], settings=second, enable=[dedup])
            async with run_broker(other):
                await other.registry.get(Registration).wait_first(10)
                return await trio.to_thread.run_sync(create_and_work, cluster.nameserver)

    return trio.run(main)


@pytest.mark.parametrize("kind", ["derived", "derived one by one", "own", "own one by one", "own among order keys"])
def test_a_task_that_is_repeated_stores_each_row_once_in_a_topic_of_two_brokers(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each broker knows the keys of its own messages alone."""
    monkeypatch.setattr("gantrymq.spark.sink.BLOCK_ROWS", 16, raising=False)
    count = 120
    columns: dict[str, list[Any]] = {"body": [b"%d" % number for number in range(count)]}
    if kind.startswith("own"):
        columns["dedup_key"] = [f"order {number}" for number in range(count)]
    if "order keys" in kind:
        columns["order_key"] = [f"customer {number % 5}" if number % 2 else None for number in range(count)]
    if "one by one" in kind:
        columns["topic"] = ["orders"] * count
    batch = pa.record_batch(columns)

    def work(nameserver: str) -> list[DeliveredRecord]:
        given = {"nameserver": nameserver, "topic": "orders", "dedupKeys": str(kind.startswith("derived")).lower()}
        options = read_sink_options(given)
        for end in (count // 3, count):
            for size in (count, count // 7):
                parts = [batch.slice(at, min(size, end - at)) for at in range(0, end, size)]
                send_rows(iter(parts), options, "query-7-0")
        return stored(nameserver)

    messages = run_on_two_brokers(tmp_path, work)
    assert sorted(int(message.body) for message in messages) == list(range(count))
    assert {message.queue.broker_name for message in messages} == {"broker-a", "broker-b"}


@pytest.mark.parametrize(("queues", "partitions"), [(2, 4), (3, 8), (4, 4), (6, 4), (8, 8)])
def test_the_partitions_of_a_small_write_begin_in_different_queues(queues: int, partitions: int) -> None:
    producer: Any = None
    options = read_sink_options({"nameserver": "n:1", "topic": "orders", "dedupKeys": "true"})
    places = [MessageQueue("orders", "broker-a", number) for number in range(queues)]
    for job in ("query-7", "5f0c2d", "batch-41-9", "e2"):
        codes = [_Sending(producer, options, f"{job}-{number}")._code_of_row(0) for number in range(partitions)]
        used = Counter(queue_of_key(code, places) for code in codes)
        assert max(used.values()) <= -(-partitions // queues), (job, used)
