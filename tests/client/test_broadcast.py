"""Broadcast consumption: every member gets everything, and offsets are in a file of RocketMQ's format."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue
from gantrymq.client.local_offsets import LocalOffsets, default_path
from gantrymq.remoting.bodies.clients import HeartbeatData

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
Q0, Q1 = (MessageQueue(topic="T", broker_name="broker-a", queue_id=number) for number in range(2))
JAVA = '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:2\n\t}\n}'
"""The file of RocketMQ 4.9.7's client."""


async def take(messages: gantrymq.Consumer[gantrymq.ReceivedMessage], count: int) -> list[gantrymq.ReceivedMessage]:
    with anyio.fail_after(20):
        return [await anext(messages) for _ in range(count)]


async def test_broadcast_members_get_all_messages_and_resume_at_their_offsets(
    fake_cluster: Cluster, tmp_path: Path
) -> None:
    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as one,
        gantrymq.connect(cluster.address) as two,
    ):
        for number in range(6):
            cluster.broker.store("T", number % 2, b"%d" % number)
        for client, name in ((one, "one"), (two, "two")):
            file = tmp_path / name / "offsets.json"
            async with client.consumer("T", "g", start="first", broadcast=True, offsets_file=file) as messages:
                got = await take(messages, 6)
                assert {message.body for message in got} == {b"%d" % number for number in range(6)}
                for message in got:
                    await message.ack()
                if name == "one":
                    await messages.commit()
                    offsets = LocalOffsets(file)
                    offsets.load()
                    assert (offsets.get(Q0), offsets.get(Q1)) == (3, 3)
        assert not cluster.broker.offsets
        assert not any(int(pull.ext["sysFlag"]) & 1 for pull in cluster.broker.seen(11))
        (consumer,) = HeartbeatData.from_bytes(cluster.broker.seen(34)[0].body).consumer_data_set
        assert consumer.message_model == "BROADCASTING"
        assert [each.topic for each in consumer.subscription_data_set] == ["T"]
        cluster.broker.store("T", 0, b"new")
        async with one.consumer("T", "g", broadcast=True, offsets_file=tmp_path / "one" / "offsets.json") as messages:
            assert (await take(messages, 1))[0].body == b"new"


async def test_a_broadcast_message_sent_back_is_acknowledged_and_logged(
    fake_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        file = tmp_path / "offsets.json"
        async with client.consumer("T", "g", start="first", broadcast=True, offsets_file=file) as messages:
            await (await take(messages, 1))[0].retry()
        assert not cluster.broker.seen(36)
    assert "broadcast_message_skipped" in caplog.text
    offsets = LocalOffsets(file)
    offsets.load()
    assert offsets.get(Q0) == 1


async def test_a_damaged_offset_file_is_an_error_that_names_it(fake_cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text("{ no json")
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(gantrymq.GantryError, match=r"offsets.json cannot be read"):
            async with client.consumer("T", "g", broadcast=True, offsets_file=file):
                pytest.fail("damaged")


def test_the_offset_file_has_rocketmqs_format(tmp_path: Path) -> None:
    file = tmp_path / "group" / "offsets.json"
    offsets = LocalOffsets(file)
    offsets.load()
    assert offsets.get(Q0) is None
    offsets.save()
    assert not file.exists()
    offsets.set(Q0, 2)
    offsets.save()
    assert "".join(JAVA.split()) == "".join(file.read_text().split())
    file.write_text(JAVA)
    read = LocalOffsets(file)
    read.load()
    assert read.get(Q0) == 2
    file.rename(tmp_path / "group" / "offsets.json.bak")
    read = LocalOffsets(file)
    read.load()
    assert read.get(Q0) == 2
    file.touch()  # a Java client that was killed may leave an empty file and the copy
    read = LocalOffsets(file)
    read.load()
    assert read.get(Q0) == 2
    assert default_path("10.0.0.1", "g").parts[-4:] == (".rocketmq_offsets", "10.0.0.1@DEFAULT", "g", "offsets.json")
    assert default_path("10.0.0.1", "g", "east").parts[-3] == "10.0.0.1@DEFAULT@east"


def test_a_client_of_a_unit_has_an_offset_file_of_its_own(
    fake_in_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with (
        gantrymq.sync.connect(fake_in_thread.address, unit_name="east") as client,
        client.consumer("T", "g", start="first", broadcast=True) as messages,
    ):
        messages.commit()
    files = [file.relative_to(tmp_path).parts for file in tmp_path.rglob("offsets.json")]
    assert files == [(".rocketmq_offsets", "127.0.0.1@DEFAULT@east", "g", "offsets.json")]


async def test_offsets_have_the_names_of_a_java_client_with_a_namespace(fake_cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(JAVA.replace('"T"', '"eu%T"').replace("}:2", "}:1"))
    async with fake_cluster(**{"eu%T": 1}) as cluster, gantrymq.connect(cluster.address, namespace="eu") as client:
        for body in (b"read", b"new"):
            cluster.broker.store("eu%T", 0, body)
        async with client.consumer("T", "g", start="last", broadcast=True, offsets_file=file) as messages:
            (message,) = await take(messages, 1)
            assert message.body == b"new"
            await message.ack()
            await messages.commit()
    assert "".join(file.read_text().split()) == "".join(JAVA.replace('"T"', '"eu%T"').split())


async def test_a_failed_write_of_the_offset_file_loses_no_message(
    fake_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "offsets.json"
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        with pytest.raises(gantrymq.GantryError, match="cannot be read"):
            async with client.consumer("T", "g", start="first", broadcast=True, offsets_file=file):
                pytest.fail("no folder")
        file = tmp_path / "folder" / "offsets.json"
        async with client.consumer("T", "g", start="first", broadcast=True, offsets_file=file) as messages:
            await (await take(messages, 1))[0].ack()
            (tmp_path / "folder").write_text("in the way")
            with pytest.raises(OSError, match="folder"):
                await messages.commit()
    assert "commit_failed" in caplog.text


def test_two_threads_may_save_the_offsets_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "offsets.json"
    offsets = LocalOffsets(file)
    is_writing, second_writes = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if is_writing.is_set():
            second_writes.set()
            first.join(20)
        else:
            is_writing.set()
            second_writes.wait(0.2)

    monkeypatch.setattr("os.fsync", slow_fsync)
    offsets.set(Q0, 1)
    first = threading.Thread(target=offsets.save)
    first.start()
    assert is_writing.wait(20)
    offsets.set(Q0, 2)
    offsets.save()
    first.join(20)
    read = LocalOffsets(file)
    read.load()
    assert read.get(Q0) == 2


def test_the_blocking_consumer_supports_broadcast(fake_in_thread: Any, tmp_path: Path) -> None:
    fake_in_thread.broker.store("T", 0, b"x")
    file = str(tmp_path / "offsets.json")
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first", broadcast=True, offsets_file=file) as messages,
    ):
        next(messages).ack()
        messages.commit()
        assert "}:1" in Path(file).read_text()
