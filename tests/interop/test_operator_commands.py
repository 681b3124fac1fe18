"""Our command line, our client's copies of messages, and Spark's source and sink, against RocketMQ's servers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.cli.__main__ import run as run_command
from gantrymq.cli.group import cli as root
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper
from gantrymq.remoting.codes import PERM_READ, RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.topics import CreateTopicHeader
from gantrymq.spark import export, read_export
from support.foreign import ask, wait_readable
from support.processes import wait_for
from support.spark_session import start_query
from support.spark_streams import check_options, check_sink_and_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

SPARK_ROWS = 200


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, by their names."""
    if isinstance(command, click.Group):
        context = click.Context(command, info_name="gantrymq")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, f"{path} {name}".strip())
        if not command.invoke_without_command:
            return
    yield path, command


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


@pytest.mark.soak(1)
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


Check = Callable[[Any], object]
ELSEWHERE = {
    "broker": "test_mixed_cluster.py", "context add": "no server", "dashboard": "tests/dashboard",
    "bench consume": "as bench produce", "bench e2e": "as bench produce", "bench latency": "as bench produce",
    "export": "test_exports_take_each_message_of_rocketmq_once", "export status": "the same",
}  # fmt: skip
"""Commands with ``--nameserver`` that other tests run against RocketMQ, or that ask no broker."""


def commands_for(kind: str, topic: str, group: str, facts: dict[str, str]) -> list[tuple[str, list[str], int, Check]]:
    """Each command that works on a cluster: its arguments, its exit code at RocketMQ, and what its JSON must have.

    ``kind``: ``java_system`` (4.9.7) or ``java5_system`` (5.3.3).
    """
    failing = 0 if kind == "java_system" else 1  # 5.3.3 without its timer deletes a topic and then fails
    message_id, file = facts["id"], facts["file"]

    def only(rows: Any) -> Any:
        (row,) = rows
        return row

    return [
        ("topic create", [topic, "--queues", "3"], 1, lambda _: True),  # it exists
        ("topic update", [topic, "--queues", "4"], 0, lambda row: (row["topic"], row["queues"]) == (topic, 4)),
        ("topic describe", [topic], 0, lambda rows: sum(row["messages"] for row in rows) == 5),
        ("topic list", [], 0, lambda rows: {"topic": topic, "system": False} in rows),
        ("topic peek", [topic, "--max", "2"], 0, lambda rows: len(rows) == 2),
        ("produce", [topic, "--file", file, "--tag", "t", "--key", "k9"], 0, lambda row: row["sent"] == 1),
        ("consume", [topic, "--group", group, "--from", "first", "--max", "6"], 0, lambda rows: len(rows) == 6),
        ("query", [topic, "--key", "k3"], 0, lambda rows: only(rows)["body"] == "3"),
        ("message get", [message_id, topic], 0, lambda row: row["body"] == "0"),
        ("message trace", [message_id], 0, lambda rows: rows[0]["event"] in ("sent", "send")),
        ("message why", [message_id, topic, "--group", group], 0, lambda rows: rows != []),
        ("group describe", [group], 0, lambda row: {each["topic"] for each in row["queues"]} >= {topic}),
        ("group lag", [group], 0, lambda rows: sum(row["lag"] for row in rows) == 0),
        ("group list", [], 0, lambda rows: group in [row["group"] for row in rows]),
        ("group reset-offsets", [group, "--to", "first", "--dry-run"], 0, lambda rows: len(rows) >= 3),
        ("client list", [], 0, lambda rows: isinstance(rows, list)),
        ("client kick", ["nobody"], 1, lambda _: True),
        ("dlq list", [], 0, lambda rows: isinstance(rows, list)),
        ("dlq peek", [group], 1, lambda _: True),  # the group has no dead letters
        ("dlq replay", [group], 1, lambda _: True),
        ("top", ["--once", "--interval", "300ms"], 0, lambda row: row["brokers"] != []),
        ("cluster status", [], 0, lambda rows: rows != []),
        ("cluster promote", ["nobody"], 1, lambda _: True),
        ("cluster watch", ["nobody", "--interval", "soon"], 2, lambda _: True),  # needs GantryMQ's replication
        ("config show", ["brokerName"], 0, lambda rows: rows[0]["settings"]["brokerName"] == "java-broker"),
        ("config set", ["deleteWhen=04"], 0, lambda rows: rows != []),
        ("delayed list", [], 0, lambda rows: rows == []),
        ("delayed recall", [topic, "AAAA"], 2, lambda _: True),  # test_java_recall.py recalls messages
        ("definitions export", [], 0, lambda tree: topic in [row["name"] for row in tree["topics"]]),
        ("definitions import", [facts["definitions"], "--dry-run"], 0, lambda rows: rows != []),
        ("bench produce", [f"{topic}-bench", "--count", "200", "--connections", "1"], 0, lambda row: row != {}),
        ("group delete", [group, "--yes"], failing, lambda _: True),
        ("topic delete", [topic, "--yes"], failing, lambda _: True),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["java_system", "java5_system"])
def test_each_command_works_with_rocketmq_or_says_why_it_cannot(
    request: pytest.FixtureRequest,
    kind: str,
    names: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    nameserver = request.getfixturevalue(kind).nameserver
    topic, group = names("all"), names("everyone")
    file, definitions = tmp_path / "lines", tmp_path / "definitions.json"
    file.write_text("from a file\n")
    definitions.write_text(json.dumps({"version": 1, "topics": [{"name": f"{topic}-new", "settings": {"perm": 6}}]}))
    with gantrymq.sync.connect(nameserver, trace=True) as client:
        client.admin.create_topic(topic, 3)
        with client.producer() as producer:
            ids = [producer.send(topic, b"%d" % number, keys=[f"k{number}"]).message_id for number in range(5)]
    facts = {"id": ids[0], "file": str(file), "definitions": str(definitions)}
    table = commands_for(kind, topic, group, facts)
    asking = {name for name, command in leaves(root) if "--nameserver" in {o for p in command.params for o in p.opts}}
    assert {name for name, *_ in table} | ELSEWHERE.keys() == asking

    def attempt(name: str, arguments: list[str], code: int, check: Check) -> str:
        """Run it once; the reason why that is not as expected, or nothing."""
        capsys.readouterr()
        takes_json = [] if name in ("definitions export", "cluster watch") else ["--json"]
        done = run_command([*name.split(), *arguments, "--nameserver", nameserver, *takes_json])
        out, err = capsys.readouterr()
        if done != code:
            return f"exit code {done} instead of {code}: {err}{out[:300]}"
        if code:
            lines = err.splitlines()
            return "" if lines and lines[-1].startswith("gantrymq: ") and "bug" not in err else f"no reason: {err}"
        lists = name in ("consume", "topic peek", "query", "dlq peek")
        found = [json.loads(line) for line in out.splitlines()] if lists else json.loads(out)
        try:
            return "" if check(found) else f"unexpected: {out[:500]}"
        except (KeyError, TypeError, IndexError, ValueError) as error:
            return f"{error!r}: {out[:500]}"

    problems = []
    for name, arguments, code, check in table:
        end = time.monotonic() + 15  # RocketMQ's index, routes and traces appear some moments later
        while problem := attempt(name, arguments, code, check):
            if time.monotonic() > end:
                problems.append(f"{name}: {problem}")
                break
            time.sleep(0.5)
    assert problems == [], "\n".join(problems)


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
    assert run("import", str(file), "--json") == []


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
            wait_readable(client, topic, len(sent))
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


@pytest.mark.soak(1)
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
        await_rows(written, first + SPARK_ROWS)

    def await_rows(topic: str, count: int) -> None:
        with gantrymq.sync.connect(nameserver) as client:
            wait_readable(client, topic, count)

    def read(topic: str, **options: str) -> list[tuple[str, str, str, str]]:
        frame = spark.read.format("gantrymq").options(**at, topic=topic, **options).load()
        rows = frame.selectExpr("cast(body AS string) body", "tags", "keys", "properties['price'] price").collect()
        return sorted((row.body, row.tags, row["keys"], row.price) for row in rows)

    def copy() -> None:
        """Copy from the checkpoint to the current end by the source and the sink of streams."""
        stream = spark.readStream.format("gantrymq").options(
            **at, topic=written, startingOffsets="earliest", maxOffsetsPerTrigger="150", groupId=group
        )
        frame = stream.load().selectExpr(
            "body", "tags", "split(keys, ' ') AS keys", "map('price', properties['price']) AS properties"
        )
        writer = frame.writeStream.format("gantrymq").options(**at, topic=copied)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert start_query(writer.start).awaitTermination(300)

    def expected(end: int) -> list[tuple[str, str, str, str]]:
        return sorted((f"order {number}", f"t{number % 3}", f"{number}", f"{number}") for number in range(end))

    write(0)
    assert read(written) == expected(SPARK_ROWS)
    assert len(read(written, subExpression="price < 50 AND TAGS = 't1'", expressionType="SQL92")) == 17
    copy()
    await_rows(copied, SPARK_ROWS)
    assert read(copied) == expected(SPARK_ROWS)
    assert export(written, tmp_path / "out", nameserver, spark=spark).rows == SPARK_ROWS
    write(SPARK_ROWS)
    copy()
    await_rows(copied, 2 * SPARK_ROWS)
    assert read(copied) == expected(2 * SPARK_ROWS)
    assert export(written, tmp_path / "out", nameserver, spark=spark).rows == SPARK_ROWS
    exported = read_export(tmp_path / "out", spark).selectExpr("cast(body AS string) body").collect()
    assert sorted(row.body for row in exported) == [row[0] for row in expected(2 * SPARK_ROWS)]
    with gantrymq.sync.connect(nameserver) as client:
        queues = client.admin.queues(written)
        assert sum(client.admin.consumer_offset(group, queue) or 0 for queue in queues) == 2 * SPARK_ROWS


@pytest.mark.parametrize("fixture", ["gantry", "java5_system"])
def test_times_are_searched_as_clients_of_rocketmq_5_ask(
    request: pytest.FixtureRequest, fixture: str, names: Callable[[str], str]
) -> None:
    system, topic = request.getfixturevalue(fixture), names("timed")
    with gantrymq.sync.connect(system.nameserver) as client:
        client.admin.create_topic(topic, 1)
        with client.producer(names("p")) as producer:
            for number in range(3):
                producer.send(topic, b"%d" % number)
                time.sleep(0.05)
        wait_readable(client, topic, 3)
        with client.reader(topic, start="first", until="end") as reader:
            first, second, third = (message.store_timestamp for message in reader)

    def found(timestamp: int, bound: str) -> int:
        ext = {"topic": topic, "queueId": "0", "timestamp": str(timestamp), "boundaryType": bound}
        return int(ask(system.broker, Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext["offset"])

    times = (first - 1, first, first + 1, second, third - 1, third, third + 1, third + 3_600_000)
    assert [found(each, "LOWER") for each in times] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [found(each, "UPPER") for each in times] == [0, 0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("fixture", ["java_system", "java5_system"])
def test_more_queues_leave_the_other_settings_of_a_topic_of_rocketmq(
    request: pytest.FixtureRequest, fixture: str, names: Callable[[str], str], command_output: Callable[..., str]
) -> None:
    system, topic = request.getfixturevalue(fixture), names("drained")
    header = CreateTopicHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=PERM_READ,
        topic_filter_type="MULTI_TAG", topic_sys_flag=1,
    )  # fmt: skip
    ask(system.broker, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()))
    with gantrymq.sync.connect(system.nameserver) as client:
        wait_for(lambda: topic in client.admin.topics(), 60.0)
    command_output("topic", "update", topic, "--queues", "3", "--nameserver", system.nameserver)
    body = ask(system.broker, Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body
    config = TopicConfigSerializeWrapper.from_bytes(body).topic_config_table[topic]
    assert (config.read_queue_nums, config.write_queue_nums) == (3, 3)
    assert (config.perm, config.topic_filter_type, config.topic_sys_flag) == (PERM_READ, "MULTI_TAG", 1)


@pytest.mark.parametrize("fixture", ["gantry", "java_system", "java5_system"])
def test_a_message_that_the_client_copies_to_the_retry_topic_is_redelivered_max_retries_times(
    request: pytest.FixtureRequest, fixture: str, names: Callable[[str], str]
) -> None:
    nameserver = request.getfixturevalue(fixture).nameserver
    topic, group = names("copied"), names("copying")
    with gantrymq.sync.connect(nameserver) as client:
        client.admin.create_topic(topic)
        with client.producer() as producer:
            producer.send(topic, b"x")
        with client.consumer(topic, group, start="first", max_retries=2) as consumer:
            times = []
            for _, message in zip(range(3), consumer, strict=False):
                times.append(message.reconsume_times)
                message.commit_log_offset = 1 << 60  # the broker does not find it there
                message.retry(1)
        assert times == [0, 1, 2]
        wait_for(lambda: f"%DLQ%{group}" in client.admin.topics())  # its broker registers it a moment later
        with client.reader(f"%DLQ%{group}") as reader:
            letter = next(reader)
        assert (letter.body, letter.reconsume_times) == (b"x", 3)
