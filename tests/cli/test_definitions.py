"""``definitions export`` and ``import`` between real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gantrymq.sync
from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.processes import wait_for

pytestmark = pytest.mark.timeout(120)

Cli = Callable[..., Any]
TOPIC = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
         "order": False}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path / "source") as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path / "target", settings={"broker.name": "other"}) as running:
        yield running


def document(path: Path, **parts: Any) -> str:
    path.write_text(json.dumps({"version": 1, **parts}))
    return str(path)


def test_an_import_creates_what_was_exported_with_its_settings(
    cli: Cli, source: Cluster, target: Cluster, tmp_path: Path
) -> None:
    with gantrymq.sync.connect(source.nameserver) as client:
        client.admin.create_topic("orders", 3)
        client.admin.create_topic("archive", 2, perm=4)
        with client.producer() as producer:
            producer.send("orders", b"1")
        with client.consumer("orders", "billing", start="first") as consumer:
            next(iter(consumer)).ack()
    file = str(tmp_path / "definitions.json")
    made = cli("definitions", "export", "--file", file, "--nameserver", source.nameserver)
    assert (made.code, made.err) == (0, "exported 2 topics and 1 group\n")
    exported = json.loads(Path(file).read_text())
    assert [entry["name"] for entry in exported["topics"]] == ["archive", "orders"]
    assert [entry["name"] for entry in exported["groups"]] == ["billing"]

    def changes(*options: str) -> list[tuple[str, ...]]:
        outcome = cli("definitions", "import", file, "--json", *options, "--nameserver", target.nameserver)
        assert outcome.code == 0, outcome.err
        return [(row["kind"], row["name"], row["broker"], row["action"]) for row in json.loads(outcome.out)]

    planned = changes("--dry-run")
    assert planned == [(kind, name, "other", "create") for kind, name in
                       (("topic", "archive"), ("topic", "orders"), ("group", "billing"))]  # fmt: skip
    assert changes() == planned, "a dry run changes nothing"
    assert changes() == [], "everything is there"
    again = cli("definitions", "import", file, "--nameserver", target.nameserver)
    assert again.err == "0 changes were made\n"
    copied = json.loads(cli("definitions", "export", "--nameserver", target.nameserver).out)
    assert [entry | {"brokers": ["other"]} for entry in exported["topics"] + exported["groups"]] == (
        copied["topics"] + copied["groups"]
    )


def test_the_order_of_a_topic_which_the_nameservers_set_is_no_change(cli: Cli, target: Cluster, tmp_path: Path) -> None:
    file = document(tmp_path / "file", topics=[{"name": "orders", "settings": TOPIC | {"order": True}}])
    arguments = ("definitions", "import", file, "--json", "--nameserver", target.nameserver)
    assert [row["action"] for row in json.loads(cli(*arguments).out)] == ["create"]
    assert json.loads(cli(*arguments, "--dry-run").out) == []


def test_the_defaults_of_groups_that_rocketmq_5_adds_are_no_change(cli: Cli, target: Cluster, tmp_path: Path) -> None:
    added = {"consumeMessageOrderly": False, "consumeTimeoutMinute": 15, "groupSysFlag": 0,
             "groupRetryPolicy": {"type": "CUSTOMIZED"}}  # fmt: skip

    def actions(settings: dict[str, Any]) -> list[str]:
        file = document(tmp_path / "file", groups=[{"name": "billing", "settings": settings}])
        outcome = cli("definitions", "import", file, "--json", "--nameserver", target.nameserver)
        return [row["action"] for row in json.loads(outcome.out)]

    assert actions({"retryMaxTimes": 3} | added) == ["create"]
    assert actions({"retryMaxTimes": 3}) == []
    assert actions({"retryMaxTimes": 3, "consumeTimeoutMinute": 20}) == ["change"]
    assert actions({"retryMaxTimes": 3} | added) == ["change"]


def test_a_topic_loses_queues_only_by_force(cli: Cli, target: Cluster, tmp_path: Path) -> None:
    with gantrymq.sync.connect(target.nameserver) as client:
        client.admin.create_topic("orders", 8)
    file = document(
        tmp_path / "file",
        topics=[{"name": "new", "settings": TOPIC}, {"name": "orders", "settings": TOPIC}],
    )
    arguments = ("definitions", "import", file, "--nameserver", target.nameserver)
    refused = cli(*arguments)
    assert refused.code == 1
    assert "topic orders would lose 4 queues on other" in " ".join(refused.err.split())
    assert "new" not in cli("topic", "list", "--nameserver", target.nameserver).out
    assert cli(*arguments, "--force").code == 0

    def queues() -> int:
        with gantrymq.sync.connect(target.nameserver) as client:
            return len(client.admin.queues("orders"))

    wait_for(lambda: queues() == 4)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"version": 2}, "of version 1"),
        ({"topics": {}}, "'topics' must be a list"),
        ({"topics": [{"name": "a"}]}, "entry 0 of 'topics' is invalid: 'settings'"),
        ({"topics": ["a"]}, "entry 0 of 'topics' is invalid"),
        ({"topics": [{"name": "a b", "settings": TOPIC}]}, "illegal characters"),
        ({"topics": [{"name": "TBW102", "settings": TOPIC}]}, "of the brokers themselves"),
        ({"topics": [{"name": "a", "settings": TOPIC | {"readQueueNums": 0}}]}, "needs at least one queue"),
        ({"topics": [{"name": "a", "settings": TOPIC | {"perm": "x"}}]}, "entry 0 of 'topics' is invalid"),
        ({"topics": [{"name": "a", "brokers": [broker], "settings": TOPIC} for broker in ("x", "y")]}, "keep one"),
        ({"groups": [{"name": "TOOLS_CONSUMER", "settings": {}}]}, "of the brokers themselves"),
    ],
)
def test_an_invalid_document_changes_nothing_and_says_why(
    cli: Cli, gantry_broker: Any, tmp_path: Path, parts: dict[str, Any], reason: str
) -> None:
    good = [{"name": "unwanted", "settings": TOPIC}]
    file = document(tmp_path / "file", **{"topics": good, **parts})
    outcome = cli("definitions", "import", file, "--nameserver", gantry_broker.nameserver)
    assert outcome.code == 1
    assert reason in " ".join(outcome.err.split())
    assert "unwanted" not in cli("topic", "list", "--nameserver", gantry_broker.nameserver).out


def test_a_file_that_is_no_utf_8_is_a_clear_error(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"version": 1, "topics": [{"name": "ü"', encoding="latin-1")
    outcome = cli("definitions", "import", str(file), "--nameserver", "127.0.0.1:1")
    assert (outcome.code, outcome.err.startswith(f"gantrymq: {file} is not UTF-8 text: ")) == (1, True)


def test_a_file_that_is_no_json_is_a_clear_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{")
    outcome = cli("definitions", "import", str(tmp_path / "file"), "--nameserver", "127.0.0.1:1")
    assert outcome.code == 1
    assert "is not JSON" in outcome.err
