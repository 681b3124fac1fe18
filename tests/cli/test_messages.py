"""``topic``, ``produce`` and ``consume`` against a real broker, and their error messages."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq._version import __version__
from gantrymq.cli.lines import BATCH_BYTES, BATCH_LINES, LINE_BYTES, cut_batches
from gantrymq.message import Message
from gantrymq.testing.harness import cluster_in_thread
from support.processes import Child, gantrymq_child

pytestmark = pytest.mark.timeout(60)

Cli = Callable[..., Any]


@pytest.fixture
def shell(cli: Cli, nameserver: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, whose nameserver is the cluster's."""
    monkeypatch.setenv("GANTRYMQ_NAMESERVER", nameserver)
    return cli


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[bytes], str]:
    def write(data: bytes) -> str:
        path = tmp_path / "lines"
        path.write_bytes(data)
        return str(path)

    return write


def test_a_topic_is_created_listed_and_described(shell: Cli) -> None:
    created = shell("topic", "create", "made", "--queues", "3")
    assert (created.code, created.err) == (0, "")
    assert created.out.startswith("topic made has 3 queues on each of: 127.0.0.1:")
    assert "made" in shell("topic", "list").out.splitlines()
    assert {"topic": "made", "system": False} in json.loads(shell("topic", "list", "--json").out)
    rows = json.loads(shell("topic", "describe", "made", "--json").out)
    assert [(row["broker"], row["queue"], row["perm"], row["messages"]) for row in rows] == [
        ("broker-a", number, "read+write", 0) for number in range(3)
    ]
    table = shell("topic", "describe", "made").out.splitlines()
    assert table[0].split() == ["broker", "queue", "perm", "min", "max", "messages"]
    assert len(table) == 4


def test_an_existing_topic_changes_only_with_update_and_loses_queues_only_with_force(
    shell: Cli, lines: Callable[[bytes], str]
) -> None:
    assert shell("topic", "create", "shrunk", "--queues", "4").code == 0
    assert shell("produce", "--topic", "shrunk", "--file", lines(b"\n".join([b"x"] * 40))).code == 0
    refused = shell("topic", "create", "shrunk", "--queues", "2")
    assert (refused.code, refused.err) == (
        1, "gantrymq: topic shrunk exists with 4 queues on broker-a; --update changes it\n",
    )  # fmt: skip
    bodies = lines(b"\n".join([b"x" * 100_000] * 200))  # five batches at least: more than queues
    assert shell("produce", "--topic", "shrunk", "--file", bodies).code == 0
    rows = json.loads(shell("topic", "describe", "shrunk", "--json").out)
    hidden = sum(row["messages"] for row in rows if row["queue"] >= 2)
    assert hidden > 0
    refused = shell("topic", "create", "shrunk", "--queues", "2", "--update")
    assert refused.code == 1
    assert f"consumers could no longer read {hidden} messages of topic shrunk, in queue" in refused.err
    assert len(json.loads(shell("topic", "describe", "shrunk", "--json").out)) == 4
    assert shell("topic", "create", "shrunk", "--queues", "2", "--update", "--force").code == 0
    assert len(json.loads(shell("topic", "describe", "shrunk", "--json").out)) == 2
    assert shell("topic", "create", "shrunk", "--queues", "4", "--update").code == 0
    assert json.loads(shell("topic", "describe", "shrunk", "--json").out) == rows


def test_lines_are_produced_and_consumed_unaltered_and_in_order(shell: Cli, lines: Callable[[bytes], str]) -> None:
    bodies = [b"line %d \xc3\xa4 \t" % number for number in range(300)] + [b"\xff\x00binary", b"last without newline"]
    shell("topic", "create", "ordered", "--queues", "1")
    sent = shell(
        "produce", "--topic", "ordered", "--file", lines(b"\n".join(bodies)), "--tag", "t", "--key", "k{n}-{n}"
    )
    assert sent.code == 0
    assert sent.out.startswith(f"sent 302 messages, {sum(map(len, bodies))} bytes in ")
    got = shell("consume", "--topic", "ordered", "--group", "g", "--max", "302", "--json")
    assert got.err == "consumed 302 messages\n"
    rows = [json.loads(line) for line in got.out.splitlines()]
    assert [row["body"].encode() if "body" in row else base64.b64decode(row["body_base64"]) for row in rows] == bodies
    assert [row["queue_offset"] for row in rows] == list(range(302))
    assert (rows[4]["keys"], rows[4]["tags"], rows[4]["properties"]["TAGS"]) == (["k5-5"], "t", "t")


def test_a_group_gets_consumed_messages_only_once(shell: Cli, lines: Callable[[bytes], str]) -> None:
    shell("produce", "--topic", "once", "--file", lines(b"a\nb\nc\n"))
    first = shell("consume", "--topic", "once", "--group", "g", "--max", "3")
    assert sorted(first.out.splitlines()) == ["a", "b", "c"]
    again = shell("consume", "--topic", "once", "--group", "g", "--timeout", "0.5")
    assert (again.code, again.out, again.err) == (0, "", "consumed 0 messages\n")
    other = shell("consume", "--topic", "once", "--group", "other", "--max", "3")
    assert sorted(other.out.splitlines()) == ["a", "b", "c"]


def test_only_messages_with_the_given_tags_are_consumed(shell: Cli, lines: Callable[[bytes], str]) -> None:
    for tag in ("red", "green", "blue"):
        shell("produce", "--topic", "tagged", "--file", lines(tag.encode()), "--tag", tag)
    got = shell("consume", "--topic", "tagged", "--group", "g", "--tags", "red || blue", "--max", "2")
    assert sorted(got.out.splitlines()) == ["blue", "red"]


def test_empty_lines_are_skipped_and_counted(shell: Cli, lines: Callable[[bytes], str]) -> None:
    sent = shell("produce", "--topic", "gaps", "--file", lines(b"\n\na\n\nb\n"))
    assert sent.out.startswith("sent 2 messages, 2 bytes")
    assert sent.out.endswith("skipped 3 empty lines\n")


@pytest.mark.slow
def test_a_line_from_a_slow_pipe_is_sent_at_once(shell: Cli, nameserver: str, tmp_path: Path) -> None:
    shell("topic", "create", "piped")
    arguments = [sys.executable, "-m", "gantrymq.cli"]
    to = ["--nameserver", nameserver]
    with (
        Child([*arguments, "produce", "--topic", "piped", *to], tmp_path / "producer") as producer,
        Child([*arguments, "consume", "--topic", "piped", "--group", "g", *to], tmp_path / "consumer") as consumer,
    ):
        for word in ("one", "two"):
            producer.say(word)
            assert consumer.wait_line(lambda line, word=word: line == word)  # type: ignore[misc]
        assert producer.process.stdin is not None
        producer.process.stdin.close()
        assert producer.wait() == 0
        consumer.process.send_signal(signal.SIGINT)
        assert consumer.wait(60) == 130
        assert consumer.log.read_text() == "consumed 2 messages\n"
    left = shell("consume", "--topic", "piped", "--group", "g", "--timeout", "0.5")
    assert left.err == "consumed 0 messages\n"


@pytest.mark.parametrize(
    ("option", "value", "properties"),
    [
        ("--delay", "400ms", {"TIMER_DELAY_MS": "400"}),
        ("--deliver-at", "2026-01-01T00:00:00.0005+01:00", {"TIMER_DELIVER_MS": "1767222000001"}),
        ("--delay-level", "1", {"DELAY": "1"}),
    ],
)
def test_timed_lines_arrive_at_their_times_in_order(
    shell: Cli, lines: Callable[[bytes], str], option: str, value: str, properties: dict[str, str]
) -> None:
    topic = f"later{option}"
    shell("topic", "create", topic, "--queues", "1")
    sent = shell("produce", "--topic", topic, "--file", lines(b"a\nb\nc\n"), "--key", "k{n}", option, value)
    assert (sent.code, sent.out[:24]) == (0, "sent 3 messages, 3 bytes")
    got = shell("consume", "--topic", topic, "--group", "g", "--max", "3", "--json")
    rows = [json.loads(line) for line in got.out.splitlines()]
    assert [(row["body"], row["keys"]) for row in rows] == [("a", ["k1"]), ("b", ["k2"]), ("c", ["k3"])]
    for row in rows:
        assert row["properties"].items() >= properties.items()
        if option != "--deliver-at":
            wait = 400 if option == "--delay" else 1000
            assert row["stored_ms"] >= row["born_ms"] + wait


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_producer_that_waits_for_lines_ends_at_a_signal(
    shell: Cli, nameserver: str, tmp_path: Path, number: int
) -> None:
    shell("topic", "create", "waiting")
    command = [sys.executable, "-m", "gantrymq.cli", "produce", "--topic", "waiting", "--nameserver", nameserver]
    with Child(command, tmp_path / "log") as child:
        child.say("a line")
        got = shell("consume", "--topic", "waiting", "--group", f"g{number}", "--max", "1")
        assert got.out == "a line\n"
        child.process.send_signal(number)
        assert child.wait(10) in (128 + number, -number)
    assert child.log.read_text().strip() == ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", [["consume", "ended", "--group", "g"], ["topic", "peek", "ended", "--follow"]])
def test_ctrl_c_ends_a_command_that_prints_messages_with_130_and_sigterm_with_0(
    shell: Cli, nameserver: str, lines: Callable[[bytes], str], tmp_path: Path, command: list[str]
) -> None:
    shell("topic", "create", "ended", "--queues", "1")
    shell("produce", "ended", "--file", lines(b"a line\n"))
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        words = [f"{word}{number}" if word == "g" else word for word in command]
        with gantrymq_child([*words, "--nameserver", nameserver], tmp_path / f"log{number}") as child:
            assert child.wait_line(lambda line: line == "a line", 60)
            child.process.send_signal(number)
            assert child.wait(60) == code, child.log.read_text()


def test_a_consumer_can_wait_for_its_topic(nameserver: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "gantrymq.cli"]
    address = ["--nameserver", nameserver]
    with Child([*arguments, "consume", "--topic", "later", "--group", "g", "--wait", "--max", "1", *address],
               tmp_path / "consumer") as consumer:  # fmt: skip
        path = tmp_path / "line"
        path.write_text("one\n")
        subprocess.run([*arguments, "produce", "--topic", "later", "--file", str(path), *address], check=True)
        assert consumer.wait_line(lambda line: line == "one")
        assert consumer.wait(20) == 0


def test_lines_that_cannot_be_sent_end_with_a_count_of_sent_lines(shell: Cli, lines: Callable[[bytes], str]) -> None:
    shell("topic", "create", "halfway", "--queues", "1")
    too_long = b"x" * (4 * 1024 * 1024 + 1)
    sent = shell("produce", "--topic", "halfway", "--file", lines(b"a\n\nb\n" + too_long + b"\nc\n"))
    assert sent.code == 1
    assert "; 2 messages were sent before that, and line 4 is the first that may be missing" in sent.err
    got = shell("consume", "--topic", "halfway", "--group", "g", "--max", "2")
    assert got.out == "a\nb\n"
    described = json.loads(shell("topic", "describe", "halfway", "--json").out)
    assert sum(row["messages"] for row in described) == 2


def test_a_closed_output_pipe_ends_the_consumer_quietly(
    shell: Cli, nameserver: str, lines: Callable[[bytes], str], tmp_path: Path
) -> None:
    shell("produce", "--topic", "headed", "--file", lines(b"\n".join([b"x" * 1000] * 500)))
    command = f"{sys.executable} -m gantrymq.cli consume --topic headed --group g --nameserver {nameserver}"
    with Child(["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"], tmp_path / "log") as child:
        assert child.wait(30) == 0
    assert "Traceback" not in child.log.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["produce", "--topic", "../x", "--file", "FILE"], 1, "topic '../x' has characters other than"),
        (["produce", "--topic", "x" * 128, "--file", "FILE"], 1, "127"),
        (["produce", "--topic", "t", "--file", "/nowhere"], 1, "/nowhere: No such file or directory; check the path"),
        (["produce", "--topic", "t", "--file", "/tmp"], 1, "/tmp: Is a directory; name a file"),
        (["produce", "--topic", "t", "--file", "FILE", "--key", "a\x01b"], 1, "holds U+0001 or U+0002"),
        (
            ["produce", "--topic", "t", "--delay", "1s", "--delay-level", "2"],
            2,
            "give one of --delay, --delay-level and",
        ),
        (
            ["produce", "--topic", "t", "--deliver-at", "2026-11-21T20:00:00Z", "--delay", "1s"],
            2,
            "give one of --delay",
        ),
        (
            ["produce", "--topic", "t", "--delay", "soon"],
            2,
            "'soon' is not a duration: give seconds",
        ),
        (["produce", "--topic", "t", "--delay", "0s"], 2, "more than 0s is needed"),
        (["produce", "--topic", "t", "--delay-level", "0"], 2, "0 is not in the range x>=1"),
        (["produce", "--topic", "t", "--deliver-at", "noon"], 2, "a time as 2026-11-21T20:00:00Z is expected"),
        (
            ["produce", "--topic", "t", "--deliver-at", "2026-11-21T20:00:00"],
            2,
            "has no time zone; add one, such as Z",
        ),
        (["produce", "--topic", "t", "--deliver-at", "1969-12-31T23:00:00Z"], 2, "that is before 1970"),
        (["produce", "--topic", "t", "--file", "FILE", "--delay", "4d"], 1, "at most 259200000 ms are allowed"),
        (["topic", "describe", "nobody-has-it"], 1, "topic nobody-has-it does not exist: no broker has it"),
        (["topic", "create", "bad topic"], 1, "topic 'bad topic' has characters other than"),
        (["topic", "create", "t", "--queues", "0"], 2, "0 is not in the range 1<=x<=1024"),
        (["consume", "--topic", "t", "--group", "a b"], 1, "group 'a b'"),
        (["consume", "--topic", "nobody-has-it", "--group", "g"], 1, "topic nobody-has-it does not exist"),
        (["consume", "--topic", "t", "--group", "g", "--max", "0"], 2, "0 is not in the range x>=1"),
        (["topic", "list", "--nameserver", "127.0.0.1:1"], 1, "127.0.0.1:1: no nameserver can be reached"),
        (["topic", "list", "--nameserver", "here"], 2, "'here' is not an address: host:port is expected"),
    ],
)
def test_bad_input_is_one_line_without_a_traceback(
    shell: Cli, lines: Callable[[bytes], str], arguments: list[str], code: int, reported: str
) -> None:
    path = lines(b"a line\n")
    outcome = shell(*[path if word == "FILE" else word for word in arguments])
    assert (outcome.code, outcome.out) == (code, "")
    assert reported in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


def test_an_overlong_line_is_not_sent(shell: Cli, lines: Callable[[bytes], str]) -> None:
    outcome = shell("produce", "--topic", "long", "--file", lines(b"x" * (LINE_BYTES + 1)))
    assert outcome.code == 1
    assert outcome.err == (
        f"gantrymq: a line is longer than {LINE_BYTES} bytes, the limit of a message; check that this is a text file\n"
    )


def test_output_to_a_file_shows_no_progress_bar(shell: Cli, lines: Callable[[bytes], str]) -> None:
    outcome = shell("produce", "--topic", "plain", "--file", lines(b"a\n" * 1000))
    assert outcome.err == ""
    assert "\x1b" not in outcome.out


def test_batches_keep_order_and_bounds() -> None:
    messages = [Message("t", b"x" * size) for size in [10] * 200 + [BATCH_BYTES, 5, BATCH_BYTES - 5, 1, LINE_BYTES, 1]]
    batches = cut_batches(messages)
    assert [message for batch in batches for message in batch] == messages
    for batch in batches:
        assert len(batch) <= BATCH_LINES
        assert len(batch) == 1 or sum(len(message.body) for message in batch) <= BATCH_BYTES
    assert cut_batches([]) == []
    assert [len(batch) for batch in cut_batches(messages, 1)] == [1] * len(messages)


def test_messages_that_are_stored_but_not_replicated_are_reported_with_their_status(
    cli: Cli, tmp_path: Path, lines: Callable[[bytes], str]
) -> None:
    settings = {"plugin.ha.role": "sync_master", "plugin.ha.sync_timeout": "50ms"}
    with cluster_in_thread(tmp_path / "store", settings=settings, enable=["ha"]) as cluster:
        sent = cli("produce", "alone", "--file", lines(b"a\nb\n"), "--nameserver", cluster.nameserver)
    assert (sent.code, sent.err) == (0, "")
    assert sent.out.strip().endswith(", 2 stored, but not yet safe (SLAVE_NOT_AVAILABLE)")


def test_the_process_exits_with_the_right_code_and_signal(tmp_path: Path) -> None:
    with Child([sys.executable, "-m", "gantrymq.cli", "--version"], tmp_path / "log") as child:
        assert list(child.lines()) == [f"gantrymq, version {__version__}"]
        assert child.wait() == 0


def test_an_access_key_without_a_secret_key_is_a_usage_error(shell: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "hush-hush")
    result = shell("topic", "list")
    assert result.code == 2
    assert "GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY must be set together" in result.err
    assert "hush-hush" not in result.err
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "me")
    assert shell("topic", "list").code == 0  # our broker ignores signatures
