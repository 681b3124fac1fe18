"""Java clients and the Spark reader with a broker that runs the examples ``dedup`` and ``encrypt``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import Wire
from support.clients import ForeignClient, check_complete
from support.content import content
from support.processes import LATE_DISK, free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.twins]
pytest.importorskip("cryptography", reason="the example encrypt needs it: pip install cryptography")
pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")

Names = Callable[[str], str]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plugins"
MODES = ("sync", "async", "batch")
EACH = 40
ALL = EACH * len(MODES)


@attrs.frozen
class Server:
    """A nameserver and a broker with both plugins, and the folder of its store."""

    nameserver: str
    store: Path


@pytest.fixture(scope="module")
def server(homes: Callable[[str], Path]) -> Iterator[Server]:
    home = homes("example-plugins")
    home.mkdir(parents=True)
    keys = home / "keys.txt"
    keys.write_text(f"1 {base64.b64encode(b'k' * 32).decode()}\n")
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    arguments = [
        "serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
        "--plugin", str(EXAMPLES / "dedup" / "gantrymq_dedup.py:DedupPlugin"),
        "--plugin", str(EXAMPLES / "encrypt" / "gantrymq_encrypt.py:EncryptPlugin"),
        "--set", f"plugin.encrypt.keys={keys}", "--set", "store.commit_log_file_bytes=16 MiB", *LATE_DISK,
    ]  # fmt: skip
    with gantrymq_child(arguments, home / "gantry.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield Server(nameserver, home / "data")


def test_a_java_producer_that_sends_keys_again_gets_the_places_of_the_earlier_messages(
    java_client: ForeignClient, server: Server, names: Names
) -> None:
    topic = names("t")
    first = java_client.produce(server.nameserver, topic, EACH, seed=31, modes=",".join(MODES))
    again = java_client.produce(server.nameserver, topic, EACH, seed=31, modes=",".join(MODES))
    assert {answer.status for answer in first + again} == {"SEND_OK"}

    earlier = {answer.index: answer for answer in first}
    assert len(again) == len(first) == len(earlier)
    for answer in again:
        before = earlier[answer.index]
        assert (answer.broker, answer.queue_id, answer.queue_offset, answer.offset_msg_id) == (
            before.broker,
            before.queue_id,
            before.queue_offset,
            before.offset_msg_id,
        )
    java_client.produce(server.nameserver, topic, 1, seed=32)
    messages = java_client.consume_all(server.nameserver, topic, names("g"), ALL + 1)
    mine = [message for message in messages if message.properties["KEYS"].startswith("key-31-")]
    assert len(messages) == ALL + 1
    check_complete(mine, 31, range(ALL))


@pytest.mark.parametrize("kind", ["push", "lite-pull"])
def test_a_java_consumer_reads_clear_bodies_of_messages_that_the_files_have_encrypted(
    java_client: ForeignClient, server: Server, names: Names, kind: str
) -> None:
    topic, seed = names("t"), 41 if kind == "push" else 42
    java_client.produce(server.nameserver, topic, EACH, seed=seed, modes=",".join(MODES))
    messages = java_client.consume_all(server.nameserver, topic, names("g"), ALL, kind=kind)
    check_complete(messages, seed, range(ALL))
    assert not any("ENCRYPTED" in message.properties for message in messages)
    check_encrypted(server.store, seed)


def test_the_spark_reader_gets_clear_bodies(java4_client: ForeignClient, server: Server, names: Names) -> None:
    topic = names("t")
    java4_client.produce(server.nameserver, topic, EACH, seed=43, modes=",".join(MODES))
    options = read_options({"nameserver": server.nameserver, "topic": topic})
    with Wire() as wire:
        batches = [
            batch
            for item in plan_ranges(options, wire)
            for batch in read_range(wire, item, options, ["body", "properties"])
        ]
    rows = {int(dict(row["properties"])["index"]): row for batch in batches for row in batch.to_pylist()}
    assert {index: row["body"] for index, row in rows.items()} == {
        index: content(43, index).body for index in range(ALL)
    }
    assert not any("ENCRYPTED" in dict(row["properties"]) for row in rows.values())
    check_encrypted(server.store, 43)


def check_encrypted(store: Path, seed: int) -> None:
    """The log has the keys of the seed's messages, and no body of them."""
    log = b"".join(path.read_bytes().rstrip(b"\0") for path in sorted((store / "commitlog").iterdir()))
    for index in range(ALL):
        wanted = content(seed, index)
        assert b"KEYS\x01" + wanted.keys.encode() in log, "the messages are elsewhere"
        if len(wanted.body) >= 64:
            assert wanted.body not in log, f"body {index} is readable"
