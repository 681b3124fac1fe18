"""``group``, ``dlq`` and ``topic`` of our command line, and Spark's source and sink, against RocketMQ's servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.cli.__main__ import run as run_command
from gantrymq.spark import export, read_export
from support.processes import wait_for
from support.spark_streams import check_options, check_sink_and_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

SPARK_ROWS = 200


@pytest.fixture
def command_output(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run ``gantrymq`` in this process and return what it prints."""

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        done = run_command(list(arguments))
        out, err = capsys.readouterr()
        assert done == code, err
        return out

    return call


@pytest.mark.parametrize("fixture", ["java_system", "java5_system"])
def test_our_commands_operate_groups_dead_letters_and_topics_of_rocketmq(
    request: pytest.FixtureRequest, fixture: str, names: Callable[[str], str], command_output: Callable[..., str]
) -> None:
    nameserver = request.getfixturevalue(fixture).nameserver
    topic, group, selecting = names("operated"), names("operators"), names("selecting")

    def run(*arguments: str, code: int = 0) -> str:
        return command_output(*arguments, "--nameserver", nameserver, code=code)

    def read(*arguments: str) -> Any:
        return json.loads(run(*arguments, "--json"))

    run("config", "set", "deleteWhen=05")
    assert {row["settings"]["deleteWhen"] for row in read("config", "show", "deleteWhen")} == {"05"}
    assert all(row["settings"]["kvConfigPath"] for row in read("config", "show", "--nameservers"))

    run("topic", "create", topic, "--queues", "2")
    with gantrymq.sync.connect(nameserver) as client:
        with client.producer(f"{group}-p") as producer:
            for number in range(4):
                sent = producer.send(Message(topic, b"%d" % number)).message_id
            wait_for(lambda: [row["kind"] for row in read("client", "list", "--group", f"{group}-p")] == ["producer"])
        with client.consumer(topic, group, start="first", max_retries=0) as consumer:
            for _, message in zip(range(4), consumer, strict=False):
                message.retry()  # for the last time: a dead letter
            described = read("group", "describe", group)
            assert [member["subscriptions"] for member in described["members"]] == [{topic: "*"}]
            (member,) = read("client", "list", "--group", group)
            assert (member["client_id"], member["kind"]) == (described["members"][0]["client_id"], "consumer")
            run("client", "kick", member["client_id"], code=1)  # RocketMQ's brokers cannot
            wait_for(lambda: read("dlq", "list", group)[0]["messages"] == 4, 60.0)
            reasons = {row["code"] for row in read("message", "why", sent, topic, "--group", group)}
            assert reasons == {"dead_letter"}
        with client.consumer(topic, selecting, tags=gantrymq.Sql("size > 5"), start="first") as consumer:
            with client.producer() as producer:
                small = producer.send(Message(topic, b"s", properties={"size": "1"})).message_id
                large = producer.send(Message(topic, b"l", properties={"size": "9"})).message_id
            message = next(iter(consumer))
            assert message.body == b"l"

            def reasons_of(message_id: str) -> set[str]:
                return {row["code"] for row in read("message", "why", message_id, topic, "--group", selecting)}

            wait_for(lambda: "filtered" in reasons_of(small))
            assert reasons_of(large) == {"waiting", "in_progress"}
            message.ack()
        listed = {row["group"]: row["topics"] for row in read("group", "list")}

        def lag_in_top() -> int | None:
            load = read("top", "--once", "--interval", "300ms", "--max", "1000")
            is_ok = [row["state"] for row in load["brokers"]] == [
                "ok"
            ]  # a busy broker may take more than three seconds
            return next(row["lag"] for row in load["groups"] if row["group"] == group) if is_ok else None

        wait_for(lambda: lag_in_top() == 2, 60.0)
        assert listed[group] == 1
        assert sorted(run("dlq", "peek", group).splitlines()) == ["0", "1", "2", "3"]

        run("group", "reset-offsets", group, "--to", "first", "--topic", topic)
        wait_for(lambda: sum(row["lag"] for row in read("group", "describe", group)["queues"]) == 6, 30.0)
        rows = read("group", "reset-offsets", group, "--to", "last", "--topic", topic)
        assert sum(row["after"] for row in rows) == 6

        assert run("dlq", "replay", group) == "replayed 4 messages\n"
        assert run("dlq", "replay", group) == "replayed 0 messages\n"
        with client.consumer(topic, group) as consumer:
            got = []
            for _, message in zip(range(4), consumer, strict=False):
                got.append((message.topic, bytes(message.body)))
                message.ack()
        assert sorted(got) == [(topic, b"%d" % number) for number in range(4)]
        assert sorted(run("topic", "peek", topic).splitlines()) == ["0", "1", "2", "3", "l", "s"]

    wait_for(lambda: not read("group", "describe", group)["members"], 60.0)
    # with timerWheelEnable=false, as on this broker, RocketMQ 5.3.3 deletes a topic and then fails (getTimerMetrics)
    deleted = 0 if fixture == "java_system" else 1
    run("group", "delete", group, "--yes", code=deleted)
    wait_for(lambda: group not in run("group", "list"), 60.0)
    run("topic", "delete", topic, "--yes", code=deleted)
    if not deleted:
        assert topic not in run("topic", "list").splitlines()


@pytest.mark.parametrize("fixture", ["java_system", "java5_system"])
def test_definitions_of_rocketmq_are_exported_and_imported(
    request: pytest.FixtureRequest,
    fixture: str,
    names: Callable[[str], str],
    command_output: Callable[..., str],
    tmp_path: Path,
) -> None:
    nameserver = request.getfixturevalue(fixture).nameserver
    topic, group, file = names("defined"), names("definers"), tmp_path / "definitions.json"

    def run(*arguments: str) -> Any:
        return json.loads(command_output("definitions", *arguments, "--nameserver", nameserver))

    def exported() -> dict[str, Any]:
        document = run("export")
        return {entry["name"]: entry["settings"] for entry in document["topics"] + document["groups"]}

    with gantrymq.sync.connect(nameserver) as client:
        client.admin.create_topic(topic, 3, perm=4)
    settings = exported()[topic]
    assert (settings["readQueueNums"], settings["perm"]) == (3, 4)
    copies = {"topics": [{"name": f"{topic}-2", "settings": settings | {"perm": 6}}],
              "groups": [{"name": group, "settings": {"retryMaxTimes": 3}}]}  # fmt: skip
    file.write_text(json.dumps({"version": 1, **copies}))
    assert {(row["kind"], row["action"]) for row in run("import", str(file), "--json")} == {
        ("topic", "create"), ("group", "create")
    }  # fmt: skip
    after = exported()
    assert after[f"{topic}-2"] == settings | {"perm": 6}
    assert after[group]["retryMaxTimes"] == 3


@pytest.mark.parametrize("fixture", ["java_system", "java5_system"])
def test_spark_reads_and_writes_topics_of_rocketmq(
    request: pytest.FixtureRequest, fixture: str, names: Callable[[str], str]
) -> None:
    pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")
    nameserver = request.getfixturevalue(fixture).nameserver
    check_sink_and_stream(nameserver, names("spark"), names("streams"))
    check_options(nameserver, names("options"))


@pytest.mark.parametrize("fixture", ["java_system", "java5_system"])
def test_exports_take_each_message_of_rocketmq_once(
    request: pytest.FixtureRequest,
    fixture: str,
    names: Callable[[str], str],
    command_output: Callable[..., str],
    tmp_path: Path,
) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'gantrymq[spark]'")
    deltalake = pytest.importorskip("deltalake", reason="pip install 'gantrymq[delta]'")
    nameserver, topic = request.getfixturevalue(fixture).nameserver, names("exported")
    where = ["--topic", topic, "--nameserver", nameserver]
    files, table = tmp_path / "files", tmp_path / "table"

    def run_both() -> list[int]:
        return [
            json.loads(command_output("export", *where, "--json", *more))["rows"]
            for more in (
                ("--to", str(files), "--engine", "local"),
                ("--to", str(table), "--format", "delta"),
            )
        ]

    sent: dict[tuple[int, int], tuple[bytes, str, str, str]] = {}
    command_output("topic", "create", topic, "--queues", "2", "--nameserver", nameserver)
    with gantrymq.sync.connect(nameserver) as client, client.producer(names("p")) as producer:
        for size in (200, 50):
            batch = [
                Message(topic, b"%d" % number, tags="t", keys=(f"k{number}",), properties={"n": str(number)})
                for number in range(size)
            ]
            for message, result in zip(batch, producer.send_batch(batch), strict=True):
                place = (result.queue.queue_id, result.queue_offset)
                sent[place] = (bytes(message.body), "t", message.keys[0], message.properties["n"])
            assert run_both() == [size, size]
            assert run_both() == [0, 0]
    status = json.loads(command_output("export", "status", str(files), "--nameserver", nameserver, "--json"))
    assert [queue["lag"] for queue in status["queues"]] == [0, 0]
    columns = ["queueId", "queueOffset", "body", "tags", "keys", "properties"]
    found = [
        row for path in files.glob("topic=*/*/*.parquet") for row in pq.ParquetFile(path).read(columns).to_pylist()
    ]
    for rows in (found, deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=columns).to_pylist()):
        assert len(rows) == len(sent)
        assert {
            (row["queueId"], row["queueOffset"]): (
                row["body"], row["tags"], row["keys"], dict(row["properties"])["n"],
            )
            for row in rows
        } == sent  # fmt: skip


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fixture", ["java_system", "java5_system"])
def test_a_batch_a_stream_and_an_export_have_what_the_sink_wrote(
    spark: SparkSession, request: pytest.FixtureRequest, fixture: str, names: Callable[[str], str], tmp_path: Path
) -> None:
    """A real Spark at RocketMQ's own brokers."""
    nameserver = request.getfixturevalue(fixture).nameserver
    written, copied, group = names("written"), names("copied"), names("group")
    at = {"nameserver": nameserver}

    def write(first: int) -> None:
        frame = spark.range(first, first + SPARK_ROWS).selectExpr(
            "concat('order ', id) AS body", "concat('t', id % 3) AS tags", "array(cast(id AS string)) AS keys",
            "map('price', cast(id AS string)) AS properties",
        )  # fmt: skip
        frame.write.format("gantrymq").options(**at, topic=written).mode("append").save()

    def read(topic: str, **options: str) -> list[tuple[str, str, str, str]]:
        frame = spark.read.format("gantrymq").options(**at, topic=topic, **options).load()
        rows = frame.selectExpr("cast(body AS string) body", "tags", "keys", "properties['price'] price").collect()
        return sorted((row.body, row.tags, row["keys"], row.price) for row in rows)

    def copy() -> None:
        """From the checkpoint to the present end, by the source and the sink of streams."""
        stream = spark.readStream.format("gantrymq").options(
            **at, topic=written, startingOffsets="earliest", maxOffsetsPerTrigger="150", groupId=group
        )
        frame = stream.load().selectExpr(
            "body", "tags", "split(keys, ' ') AS keys", "map('price', properties['price']) AS properties"
        )
        writer = frame.writeStream.format("gantrymq").options(**at, topic=copied)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert writer.start().awaitTermination(300)

    def expected(end: int) -> list[tuple[str, str, str, str]]:
        return sorted((f"order {number}", f"t{number % 3}", f"{number}", f"{number}") for number in range(end))

    write(0)
    assert read(written) == expected(SPARK_ROWS)
    assert len(read(written, subExpression="price < 50 AND TAGS = 't1'", expressionType="SQL92")) == 17
    copy()
    assert read(copied) == expected(SPARK_ROWS)
    assert export(written, tmp_path / "out", nameserver, spark=spark).rows == SPARK_ROWS
    write(SPARK_ROWS)
    copy()
    assert read(copied) == expected(2 * SPARK_ROWS)
    assert export(written, tmp_path / "out", nameserver, spark=spark).rows == SPARK_ROWS
    exported = read_export(tmp_path / "out", spark).selectExpr("cast(body AS string) body").collect()
    assert sorted(row.body for row in exported) == [row[0] for row in expected(2 * SPARK_ROWS)]
    with gantrymq.sync.connect(nameserver) as client:
        queues = client.admin.queues(written)
        assert sum(client.admin.consumer_offset(group, queue) or 0 for queue in queues) == 2 * SPARK_ROWS
