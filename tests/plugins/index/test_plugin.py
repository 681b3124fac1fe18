"""The index in a broker: caught up with acknowledgments, resumed at a restart, rebuilt when it is behind."""

from __future__ import annotations

import errno
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import trio

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.plugins.index import follower
from gantrymq.plugins.index.files import IndexFiles
from gantrymq.plugins.interfaces import MessageIndex
from gantrymq.remoting.channel import open_channel
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio
FOREVER = 2**63 - 1
SMALL = {"plugin.index.slots": "5", "plugin.index.entries": "8", "store.commit_log_file_bytes": "64 KiB"}


async def put(broker: Broker, first: int, last: int) -> None:
    async with open_channel(broker.address) as channel:
        for number in range(first, last):
            answer = await channel.call(send("T", b"%d" % number, properties=f"KEYS\x01k{number} all"))
            assert answer.code == 0


def find(broker: Broker, key: str) -> list[int]:
    """The bodies of what the index finds, as numbers, newest first."""
    index = broker.registry.get(MessageIndex)
    records = [broker.log.read_record(offset) for offset in index.find("T", key, 0, FOREVER)]
    return [int(record.body) for record in records if f"KEYS\x01{key}" in record.properties.decode() or key == "all"]


async def level(broker: Broker) -> None:
    """Return once the index has all messages. Before that it may not even be loaded, and a stop writes nothing."""
    with trio.fail_after(60):
        await broker.registry.get(MessageIndex).wait_caught_up()


async def first_file(store: Path) -> Path:
    """The index's first file, which a worker thread writes."""
    with trio.fail_after(60):
        while not (files := sorted(store.glob("index/*"))):  # noqa: ASYNC110, ASYNC240 - no await in it
            await trio.sleep(0.01)
    return files[0]


async def test_an_acknowledged_message_is_found_at_once(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)  # until then a worker thread loads the files
        for number in range(12):
            await put(broker, number, number + 1)
            assert find(broker, f"k{number}") == [number]
        assert find(broker, "all") == list(range(11, -1, -1))


async def test_a_restart_takes_the_index_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await put(broker, 0, 10)
        await level(broker)

    def read_nothing(*_arguments: object) -> None:
        raise AssertionError("nothing was missing")

    monkeypatch.setattr(follower.Follower, "_build", read_nothing)
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)
        assert find(broker, "all") == list(range(9, -1, -1))
        await put(broker, 10, 11)
        assert find(broker, "k10") == [10]


async def test_a_cancelled_broker_leaves_an_index_that_is_built_on(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[Any]) -> None:
            await make_broker(tmp_path, settings=SMALL).run(task_status=task_status)

        broker = await nursery.start(run)
        await put(broker, 0, 10)
        nursery.cancel_scope.cancel()
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)
        assert find(broker, "all") == list(range(9, -1, -1))


async def test_messages_stored_while_the_plugin_was_disabled_are_indexed(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await put(broker, 0, 4)
    without = {name: value for name, value in SMALL.items() if "index" not in name}
    async with run_broker(make_broker(tmp_path, settings=without, disable=["index"])) as broker:
        await put(broker, 4, 8)
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)
        assert find(broker, "all") == list(range(7, -1, -1))


async def test_a_large_index_is_built_in_steps_while_the_broker_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        async with open_channel(broker.address) as channel:
            for number in range(40):
                await channel.call(send("T", b"%d" % number + b" " * 9000, properties="KEYS\x01all"))
        await level(broker)
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    monkeypatch.setattr(follower, "STEPS_A_SECOND", 100)
    steps = []
    build = follower.Follower._build

    def counted(self: follower.Follower, target: int) -> None:
        steps.append(self._index.position)
        build(self, target)

    monkeypatch.setattr(follower.Follower, "_build", counted)
    settings = {**SMALL, "plugin.index.catch_up_bytes": "1 MiB"}
    async with run_broker(make_broker(tmp_path, settings=settings)) as broker:
        await put(broker, 40, 41)
        await level(broker)
        assert len(steps) >= 5
        assert find(broker, "all") == list(range(40, -1, -1))


async def test_the_index_steps_over_damaged_records(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await put(broker, 0, 5)
        await level(broker)
        begin, end = (broker.queues.get("T", 0).entries(at, 1)[:8] for at in (2, 3))  # type: ignore[union-attr]
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    first, last = int.from_bytes(begin, "big"), int.from_bytes(end, "big")
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(first)
        file.write(b"\xff" * (last - first))
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)
        assert find(broker, "all") == [4, 3, 1, 0]
        await put(broker, 5, 6)
        assert find(broker, "k5") == [5]


async def test_deletion_during_a_read_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        async with open_channel(broker.address) as channel:
            for number in range(20):
                await channel.call(send("T", b"%d" % number + b" " * 9000, properties="KEYS\x01all"))
        await level(broker)
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    put_until = follower.Follower._put_until
    searched: list[int] = []

    def late(self: follower.Follower, target: int, enough: int) -> bool:
        monkeypatch.setattr(follower.Follower, "_put_until", put_until)
        self._broker.log.segments.delete_before(self._broker.log.end - 64 * 1024)
        return False

    find_record = follower.find_record

    def search(segments: Segments, start: int) -> tuple[int, Record] | None:
        searched.append(start)
        return find_record(segments, start)

    monkeypatch.setattr(follower, "find_record", search)
    monkeypatch.setattr(follower.Follower, "_put_until", late)
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)
        assert broker.log.min_offset > 0
        assert next(broker.registry.get(MessageIndex).find("T", "all", 0, FOREVER)) >= broker.log.min_offset
    assert searched == []


class FullEnv(SystemEnv):
    """A disk on which index files have no room while ``full`` is set."""

    full = False

    def open(self, path: str, create: bool = False) -> File:
        if self.full and "/index/" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create)


async def test_a_full_disk_costs_the_index_time_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "WAITING_MAX_BYTES", 200)
    env = FullEnv()
    env.full = True
    settings = {**SMALL, "plugin.index.flush_interval": "10ms", "plugin.index.entries": "1000"}
    async with run_broker(make_broker(tmp_path, settings=settings, env=env)) as broker:
        await put(broker, 0, 30)
        assert len(find(broker, "all")) < 30
        env.full = False
        await level(broker)
        assert find(broker, "all") == list(range(29, -1, -1))
        await put(broker, 30, 31)
        await level(broker)
        assert find(broker, "all")[0] == 30


async def test_retention_deletes_index_files_without_messages(tmp_path: Path) -> None:
    settings = {**SMALL, "plugin.index.sync_interval": "10ms", "plugin.index.flush_interval": "10ms"}
    async with run_broker(make_broker(tmp_path, settings=settings)) as broker:
        async with open_channel(broker.address) as channel:
            for number in range(20):
                await channel.call(send("T", b"%d" % number + b" " * 9000, properties="KEYS\x01all"))
        await level(broker)
        first = await first_file(tmp_path)
        broker.log.segments.delete_before(broker.log.segments.end - 64 * 1024)
        with trio.fail_after(60):
            while first.exists():  # noqa: ASYNC110 - a worker thread deletes it
                await trio.sleep(0.01)
        assert next(broker.registry.get(MessageIndex).find("T", "all", 0, FOREVER)) >= broker.log.min_offset


async def test_a_batch_without_keys_costs_next_to_nothing(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path)) as broker:
        await level(broker)
        async with open_channel(broker.address) as channel:
            await channel.call(send("T", b"x", properties="TAGS\x01a"))
        assert broker.registry.get(MessageIndex).last() == (0, 0)
    assert not (tmp_path / "index").exists()


async def test_the_index_is_built_although_the_front_of_the_log_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"store.commit_log_file_bytes": "256 KiB"}
    async with run_broker(make_broker(tmp_path, settings=settings)) as broker, open_channel(broker.address) as channel:
        for number in range(30):
            answer = await channel.call(send("T", b"x" * 30_000, properties=f"KEYS\x01k{number}\x02"))
            assert answer.code == 0
        await level(broker)
    rmtree(tmp_path / "index")
    (tmp_path / "gantrymq.index").unlink()
    broker = make_broker(tmp_path, settings=settings)
    put_rows = IndexFiles.put

    def put_and_delete(index: IndexFiles, batch: DispatchBatch) -> None:
        put_rows(index, batch)
        broker.store.discard(broker.log.detach_before(512 * 1024))

    monkeypatch.setattr(IndexFiles, "put", put_and_delete)
    async with run_broker(broker):
        await level(broker)
        assert broker.log.min_offset == 512 * 1024
        index = broker.registry.get(MessageIndex)
        assert [len(list(index.find("T", f"k{number}", 0, FOREVER))) for number in (0, 29)] == [1, 1]
