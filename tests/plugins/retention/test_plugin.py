"""The plugin in a broker on a scripted disk and clock: deleted files, moved queues, and refusals on a full disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import attrs
import pytest
import structlog.testing
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env import DiskUsage, File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.segments import Segment
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.plugins.delay.timer.check import TimerCheck
from gantrymq.plugins.interfaces import ConsumerOffsets, Retention, TimerProgress
from gantrymq.plugins.retention.clean import Cleaner
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.unreadable import break_queue

pytestmark = pytest.mark.trio

FILE = 8192
GIB = 1 << 30
HOUR_MS = 3_600_000
ROOMY = DiskUsage(100 * GIB, 50 * GIB)


class DiskEnv(SystemEnv):
    """The real disk, with the sizes and the clock that a test gives."""

    usage = ROOMY
    ahead_ms = 0
    error: OSError | None = None
    has_room = True
    now: float | None = None
    refused = 0
    """The number of failed requests for a file in the thread that serves clients."""

    def open(self, path: str, create: bool = False) -> File:
        if create and "/staging/" in path and not self.has_room:
            self.refused += threading.current_thread() is threading.main_thread()
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open(path, create=create)

    def monotonic(self) -> float:
        return super().monotonic() if self.now is None else self.now

    def disk_usage(self, path: str) -> DiskUsage:
        if self.error is not None:
            raise self.error
        return self.usage

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@asynccontextmanager
async def filled(data: Path, env: DiskEnv, **settings: str) -> AsyncIterator[tuple[Broker, Channel, Cleaner]]:
    """A broker with some files of messages; its own rounds are far apart, tests make theirs."""
    given = {
        "store.commit_log_file_bytes": str(FILE),
        "store.queue_file_units": "20",
        "plugin.retention.check_interval": "1h",
        "plugin.retention.at": "",
        "plugin.retention.enough_free": "1000 GiB",
        **settings,
    }
    async with (
        run_broker(make_broker(data, settings=given, env=env)) as broker,
        open_channel(broker.address) as channel,
    ):
        for _ in range(40):
            assert (await channel.call(send("T", b"x" * 1000))).code == ResponseCode.SUCCESS
        broker.store.flush_queues()
        cleaner = broker.registry.get(Retention)
        assert isinstance(cleaner, Cleaner)
        with trio.fail_after(60):  # until the round of the start is over
            while not cleaner._asked.statistics().tasks_waiting:  # noqa: ASYNC110
                await trio.sleep(0.01)
        yield broker, channel, cleaner


async def test_a_requested_cleanup_deletes_expired_files_and_moves_the_start_of_queues(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, channel, cleaner):
        assert await cleaner.clean(asked=True) == 0, "nothing is old"
        env.ahead_ms = 73 * 3_600_000
        assert await cleaner.clean() == 0, "nobody asked"
        gone = await cleaner.clean(asked=True)
        assert gone >= 4
        assert broker.log.min_offset == gone * FILE
        assert broker.log.segments.at(broker.log.end - 1) is not None, "the file in use stays"
        queue = broker.queues.get("T", 0)
        assert queue is not None
        first = int.from_bytes(queue.entries(queue.min_offset, 1)[:8], "big")
        assert first >= broker.log.min_offset
        answer = await channel.call(pull("T", 0, 0))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext is not None
        assert answer.ext["nextBeginOffset"] == str(queue.min_offset) != "0"
        assert (await channel.call(pull("T", 0, queue.min_offset))).code == ResponseCode.SUCCESS
    names = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir())
    assert names[0] != "0" * 20, "files of the queue that pointed to nothing else are gone"
    async with run_broker(make_broker(tmp_path, settings={"store.commit_log_file_bytes": str(FILE),
                                                          "store.queue_file_units": "20"})) as again:  # fmt: skip
        assert again.log.min_offset == gone * FILE


@pytest.mark.parametrize("files_at_once", ["1", "2", "100"])
@pytest.mark.parametrize("damaged", [1, 2, -1], ids=["second", "third", "last"])
async def test_old_files_go_although_the_first_message_of_one_cannot_be_read(
    tmp_path: Path, damaged: int, files_at_once: str
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": files_at_once}) as (broker, _, cleaner):
        segments = list(broker.log.segments)
        base = segments[damaged].base
        broker.log.quarantine_range(base, base + 1000)
        env.ahead_ms = 73 * 3_600_000
        gone = 0
        while deleted := await cleaner.clean(asked=True):
            assert deleted <= int(files_at_once)
            gone += deleted
        assert gone == len(segments) - 1


async def test_the_time_of_a_file_is_read_once_and_no_file_behind_a_young_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, _, cleaner):
        bases = [segment.base for segment in broker.log.segments]
        read: list[int] = []
        read_record = CommitLog.read_record

        def noted(log: CommitLog, offset: int) -> Record:
            if offset in bases[1:]:
                read.append(offset)
            return read_record(log, offset)

        monkeypatch.setattr(CommitLog, "read_record", noted)
        for _ in range(3):
            assert await cleaner.clean() == 0
        assert read == bases[1:2]
        env.ahead_ms = 73 * HOUR_MS
        for _ in range(3):
            assert await cleaner.clean() == 0, "nobody asked"
        assert read == bases[1:]
        assert await cleaner.clean(asked=True) == len(bases) - 1
        assert read == bases[1:]


async def test_a_longer_keep_that_is_set_during_a_check_protects_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.keep": "1h"}) as (broker, channel, cleaner):
        env.ahead_ms = 2 * HOUR_MS
        for _ in range(20):
            assert (await channel.call(send("T", b"x" * 1000))).code == ResponseCode.SUCCESS
        longer = attrs.evolve(cleaner._rules, keep_ms=72 * HOUR_MS)

        def measured(path: str) -> DiskUsage:
            trio.from_thread.run_sync(cleaner.set_rules, longer)
            return ROOMY

        monkeypatch.setattr(env, "disk_usage", measured)
        assert await cleaner.clean(asked=True) == 0
        assert broker.log.min_offset == 0


async def test_a_file_whose_age_cannot_be_read_stays_with_the_young_one_behind_it(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, channel, cleaner):
        env.ahead_ms = 73 * 3_600_000
        old = len(broker.log.segments)
        for _ in range(20):
            assert (await channel.call(send("T", b"x" * 1000))).code == ResponseCode.SUCCESS
        broker.log.quarantine_range(old * FILE, old * FILE + 1000)
        assert await cleaner.clean(asked=True) == old - 1
        assert broker.log.min_offset == (old - 1) * FILE


async def test_no_queue_begins_with_a_deleted_message_while_files_are_still_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, channel, cleaner):
        begun, go_on = trio.Event(), threading.Event()
        delete = broker.log.discard

        def slowly(detached: list[Segment]) -> None:
            trio.from_thread.run_sync(begun.set)
            assert go_on.wait(10)
            delete(detached)

        monkeypatch.setattr(broker.log, "discard", slowly)
        env.ahead_ms = 73 * 3_600_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(cleaner.clean, asked=True))
            await begun.wait()
            queue = broker.queues.get("T", 0)
            assert queue is not None
            assert queue.min_offset > 0
            first = await channel.call(pull("T", 0, queue.min_offset))
            go_on.set()
        assert first.code == ResponseCode.SUCCESS


async def test_a_stop_waits_for_one_file_and_the_next_start_deletes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DiskEnv()
    deleted: list[str] = []
    async with filled(tmp_path, env) as (broker, _, cleaner):
        scope = trio.CancelScope()

        def delete_large(path: str, staging: str) -> None:
            trio.from_thread.run_sync(scope.cancel)
            SystemEnv.delete_large(env, path, staging)
            deleted.append(path)

        monkeypatch.setattr(env, "delete_large", delete_large)
        env.ahead_ms = 73 * 3_600_000
        files = len(broker.log.segments)
        with scope:
            await cleaner.clean(asked=True)
        left = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
        assert scope.cancelled_caught
        assert [path.rpartition("/")[2] for path in deleted] == [f"{0:020}"]
        assert left[0] == f"{FILE:020}", "the oldest is deleted first"
        assert len(left) >= files - 1 > 4
    monkeypatch.undo()
    settings = {"store.commit_log_file_bytes": str(FILE), "store.queue_file_units": "20", "plugin.retention.at": ""}
    async with (
        run_broker(make_broker(tmp_path, settings=settings, env=env)) as again,
        open_channel(again.address) as channel,
    ):
        assert again.log.min_offset == FILE
        cleaner = again.registry.get(Retention)
        assert isinstance(cleaner, Cleaner)
        assert await cleaner.clean(asked=True) >= files - 2
        queue = again.queues.get("T", 0)
        assert queue is not None
        assert (await channel.call(pull("T", 0, queue.min_offset))).code == ResponseCode.SUCCESS


async def test_a_nearly_full_disk_refuses_messages_and_the_oldest_files_make_room(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": "2"}) as (_, channel, cleaner):
        env.usage = DiskUsage(100 * GIB, 9 * GIB)
        assert await cleaner.clean() == 2, "however young they are"
        answer = await channel.call(send("T", b"x"))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None
        assert "91% of the broker's disk is used" in answer.remark
        env.usage = DiskUsage(100 * GIB, 12 * GIB)
        await cleaner.clean()
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SERVICE_NOT_AVAILABLE, "not yet"
        env.usage = ROOMY
        await cleaner.clean()
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS
        assert (await channel.call(pull("T", 0, 39))).code == ResponseCode.SUCCESS


async def test_while_the_disk_has_no_room_for_the_next_file_it_is_asked_once_a_second_and_at_each_check(
    tmp_path: Path,
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"store.queue_file_units": "100000"}) as (_, channel, cleaner):
        env.has_room, env.now = False, env.monotonic()
        with trio.fail_after(60):
            while (answer := await channel.call(send("T", b"x" * 1000))).code == ResponseCode.SUCCESS:
                pass
        assert "no room for the log's next file" in str(answer.remark)
        before = env.refused
        for _ in range(10):
            assert (await channel.call(send("T", b"x"))).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert env.refused == before
        env.now += 1.1
        for _ in range(10):
            assert (await channel.call(send("T", b"x"))).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert env.refused == before + 1
        env.has_room = True
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SERVICE_NOT_AVAILABLE, "it is not asked yet"
        await cleaner.clean()
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS


async def test_a_forced_deletion_logs_the_number_of_messages_and_the_groups_that_had_not_read_them(
    tmp_path: Path,
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": "2"}) as (broker, _, cleaner):
        for group, offset in (("behind", 1), ("done", 40)):
            broker.registry.get(ConsumerOffsets).commit(group, "T", 0, offset)
        env.usage = DiskUsage(100 * GIB, 9 * GIB)
        with structlog.testing.capture_logs() as logs:
            assert await cleaner.clean() == 2
        (event,) = [each for each in logs if each["event"] == "messages_deleted_for_space"]
        queue = broker.queues.get("T", 0)
        assert queue is not None
        assert event["messages"] == queue.min_offset > 0
        assert (event["files"], event["groups_behind"], event["used_percent"]) == (2, ["behind"], 91)
        assert event["log_level"] == "warning"
        env.usage, env.ahead_ms = ROOMY, 73 * 3_600_000
        with structlog.testing.capture_logs() as logs:
            assert await cleaner.clean(asked=True) > 0
        assert "messages_deleted_for_space" not in [each["event"] for each in logs], "they were old"


async def test_a_message_that_waits_for_its_time_is_not_deleted(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, channel, cleaner):
        waiting = await channel.call(send("T", b"later", properties="DELAY\x0118"))
        assert waiting.code == ResponseCode.SUCCESS
        offset = broker.log.end - 1  # within its record
        for _ in range(40):
            await channel.call(send("T", b"x" * 1000))
        env.usage = DiskUsage(100 * GIB, 1 * GIB)
        for _ in range(5):
            await cleaner.clean()
        assert FILE < broker.log.min_offset <= offset - offset % FILE


async def test_a_disk_that_cannot_be_measured_deletes_nothing(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (_, channel, cleaner):
        env.error = OSError(5, "Input/output error")
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert await cleaner.clean(asked=True) == 0
            env.error = None
            await cleaner.clean()
        names = ("disk_not_measured", "outage_ended")
        assert tuple(each["event"] for each in logs if each["event"] in names) == names, "not for each attempt"
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("ends", ["with the disk full", "with enough space", "with a restart"])
async def test_while_one_file_cannot_be_deleted_no_younger_one_is_and_the_next_start_finds_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    env = DiskEnv()
    first = tmp_path / "commitlog" / f"{0:020}"

    def failing(path: str, staging: str) -> None:
        if path == str(first):
            raise OSError(30, "Read-only file system")
        SystemEnv.delete_large(env, path, staging)

    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": "2"}) as (broker, _, cleaner):
        env.usage = DiskUsage(100 * GIB, 9 * GIB)
        with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
            patch.setattr(env, "delete_large", failing)
            assert [await cleaner.clean() for _ in range(3)] == [2, 0, 0]
        named = [each for each in logs if each["event"] == "expired_files_not_deleted"]
        assert [each["reason"] for each in named] == ["[Errno 30] Read-only file system"], "not for each attempt"
        assert broker.log.min_offset == 2 * FILE, "messages become unreadable only for files that can be deleted"
        on_disk = sorted(int(path.name) for path in first.parent.iterdir())
        assert on_disk == list(range(0, on_disk[-1] + 1, FILE))
        left = 0
        if ends != "with a restart":
            env.usage = ROOMY if ends == "with enough space" else env.usage
            left = (2 if ends == "with enough space" else 4) * FILE
            with structlog.testing.capture_logs() as logs:
                await cleaner.clean()
            ended = [each for each in logs if each["event"] == "outage_ended"]
            assert [(each["of"], each["failures"]) for each in ended] == [("expired_files_not_deleted", 3)]
    assert min(int(path.name) for path in first.parent.iterdir()) == left
    env.usage = ROOMY
    settings = {"store.commit_log_file_bytes": str(FILE), "store.queue_file_units": "20"}
    async with run_broker(make_broker(tmp_path, settings=settings, env=env)) as again:
        assert again.log.min_offset == left


async def test_a_queue_that_cannot_be_read_stops_no_deletion_and_is_corrected_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": "1"}) as (broker, channel, cleaner):
        queue = broker.queues.get("T", 0)
        assert queue is not None
        env.usage = DiskUsage(100 * GIB, 9 * GIB)
        with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
            break_queue(patch, "T")
            assert await cleaner.clean() == 1
        assert (queue.min_offset, broker.log.min_offset) == (0, FILE)
        (named,) = [each for each in logs if each["event"] == "expired_files_not_deleted"]
        assert "Too many open files" in named["reason"]
        answer = await channel.call(pull("T", 0, 0))
        assert answer.code == ResponseCode.SUCCESS, "the deleted messages are passed"
        assert await cleaner.clean() == 1
        assert int.from_bytes(queue.entries(queue.min_offset, 1)[:8], "big") >= broker.log.min_offset == 2 * FILE


async def test_a_queue_whose_files_cannot_be_deleted_keeps_no_other_from_losing_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, dropped = DiskEnv(), list[str]()
    async with filled(tmp_path, env) as (_, channel, cleaner):
        assert (await channel.call(send("U", b"x"))).code == ResponseCode.SUCCESS
        env.usage = DiskUsage(100 * GIB, 9 * GIB)

        def drop(queue: ConsumeQueue) -> None:
            if queue.topic == "T":
                raise OSError(30, "Read-only file system")
            dropped.append(queue.topic)

        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "drop_expired", drop)
            assert await cleaner.clean()
        assert "U" in dropped
        assert cleaner.held.error == "[Errno 30] Read-only file system"


async def test_a_cleanup_request_wakes_the_service(tmp_path: Path) -> None:
    async with filled(tmp_path, env := DiskEnv()) as (broker, _, cleaner):
        env.ahead_ms = 73 * 3_600_000
        cleaner.delete_expired()
        with trio.fail_after(60):
            while not broker.log.min_offset:
                await trio.lowlevel.checkpoint()


async def test_asking_once_deletes_all_old_files_in_rounds(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": "1"}) as (broker, _, cleaner):
        env.ahead_ms = 73 * 3_600_000
        assert len(broker.log.segments) > 4
        cleaner.delete_expired()
        with trio.fail_after(60):
            while len(broker.log.segments) > 1:
                await trio.lowlevel.checkpoint()
            while not cleaner._asked.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()


async def test_asking_deletes_no_young_file_sooner_than_the_check_interval(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.files_at_once": "1"}) as (broker, _, cleaner):
        env.usage = DiskUsage(100 * GIB, 9 * GIB)
        files = len(broker.log.segments)
        cleaner.delete_expired()
        with trio.fail_after(60):
            while not broker.log.min_offset or not cleaner._asked.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()
        assert len(broker.log.segments) == files - 1


async def test_a_request_during_a_round_causes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, _, cleaner):
        rounds: list[bool] = []
        clean = cleaner.clean

        async def clean_counted(*, asked: bool = False) -> int:
            rounds.append(asked)
            deleted = await clean(asked=asked)
            if len(rounds) == 1:
                env.ahead_ms = 73 * 3_600_000
                cleaner.delete_expired()
            return deleted

        monkeypatch.setattr(cleaner, "clean", clean_counted)
        cleaner.delete_expired()
        with trio.fail_after(60):
            while not broker.log.min_offset:
                await trio.lowlevel.checkpoint()
        assert rounds == [True, True]


@pytest.mark.parametrize("hours", ["4am", "24", "-1"])
async def test_hours_that_are_none_refuse_the_start(tmp_path: Path, hours: str) -> None:
    with pytest.raises(StartError, match=r"plugin\.retention\.at"):
        make_broker(tmp_path, settings={"plugin.retention.at": hours})


async def test_the_reserve_file_is_released_while_messages_are_refused_and_allocated_again(tmp_path: Path) -> None:
    env = DiskEnv()
    reserve = tmp_path / "gantrymq.reserve"
    async with filled(tmp_path, env) as (broker, _, cleaner):
        size = broker.log.segments.file_bytes // 16
        assert reserve.stat().st_size == size
        env.usage = DiskUsage(100 * GIB, 0)
        await cleaner.clean()
        assert cleaner.refusal()
        assert not reserve.exists()
        env.usage = DiskUsage(100 * GIB, 2 * size)
        await cleaner.clean()
        assert not reserve.exists()
        env.usage = ROOMY
        await cleaner.clean()
        assert reserve.stat().st_size == size


async def test_another_size_of_the_reserve_file_applies_from_the_next_check_on(tmp_path: Path) -> None:
    reserve = tmp_path / "gantrymq.reserve"
    async with filled(tmp_path, DiskEnv()) as (_, _, cleaner):
        rules = cleaner._rules
        for size in (100, 300, 0, 200):
            cleaner.set_rules(attrs.evolve(rules, reserve_file=size))
            await cleaner.clean()
            assert (reserve.stat().st_size if reserve.exists() else 0) == size


async def test_a_reserve_file_keeps_its_size_while_there_is_no_room_for_a_larger_one(tmp_path: Path) -> None:
    env = DiskEnv()
    async with filled(tmp_path, env, **{"plugin.retention.reserve_file": "100"}) as (_, _, cleaner):
        env.usage = DiskUsage(10**6, 1000)
        cleaner.set_rules(attrs.evolve(cleaner._rules, reserve_file=300, full_ratio=1.0, enough_free=0))
        await cleaner.clean()
        assert (tmp_path / "gantrymq.reserve").stat().st_size == 100


async def test_an_empty_reserve_file_that_a_kill_left_gets_its_size(tmp_path: Path) -> None:
    reserve = tmp_path / "gantrymq.reserve"
    reserve.touch()
    async with filled(tmp_path, DiskEnv()) as (broker, _, _):
        assert reserve.stat().st_size == broker.log.segments.file_bytes // 16


async def test_without_a_size_there_is_no_reserve(tmp_path: Path) -> None:
    async with filled(tmp_path, DiskEnv(), **{"plugin.retention.reserve_file": "0"}):
        assert not (tmp_path / "gantrymq.reserve").exists()


async def test_a_plugin_that_holds_expired_files_is_named_once_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DiskEnv()
    with structlog.testing.capture_logs() as logs:
        async with filled(tmp_path, env) as (broker, _, cleaner):
            floor = broker.log.segments.file_bytes
            transaction = next(info.plugin for info in broker.manager.plugins if info.name == "transaction")
            monkeypatch.setattr(transaction.strategy, "floor", lambda: floor)
            env.usage = DiskUsage(100 * GIB, 9 * GIB)
            assert await cleaner.clean() == 1
            assert await cleaner.clean() == 0
            metrics = Metrics(10_000)
            broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
            family = metrics.families["gantrymq_log_held_bytes"]
            assert family.series == {("transaction",): cleaner.held.held_bytes}
            assert cleaner.held.held_bytes > 0
            monkeypatch.undo()
            assert await cleaner.clean() >= 1
    events = [line["event"] for line in logs if line["event"] in ("log_files_held", "log_files_released")]
    assert events == ["log_files_held", "log_files_released"]


@pytest.mark.parametrize("files_at_once", ["1", "10"])
async def test_expired_files_are_held_at_every_hour_and_all_of_them_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_at_once: str
) -> None:
    env = DiskEnv()
    ahead_ms = 73 * HOUR_MS + HOUR_MS // 2 - env.wall_ms() % HOUR_MS
    due = datetime.fromtimestamp((env.wall_ms() + ahead_ms) / 1000).hour
    settings = {"plugin.retention.at": str(due), "plugin.retention.files_at_once": files_at_once}
    with structlog.testing.capture_logs() as logs:
        async with filled(tmp_path, env, **settings) as (broker, _, cleaner):
            transaction = next(info.plugin for info in broker.manager.plugins if info.name == "transaction")
            monkeypatch.setattr(transaction.strategy, "floor", lambda: 0)
            for hours in (0, 1, 23, 24):
                env.ahead_ms = ahead_ms + hours * HOUR_MS
                assert await cleaner.clean() == 0
                assert cleaner.held.holder == "transaction"
                assert cleaner.held.held_bytes == FILE * (len(broker.log.segments) - 1) >= 3 * FILE
    events = [line["event"] for line in logs if line["event"] in ("log_files_held", "log_files_released")]
    assert events == ["log_files_held"]


async def test_a_slave_keeps_files_that_a_timed_message_still_needs_however_full_its_disk_is(tmp_path: Path) -> None:
    """The master's timer has delivered one of two messages; the slave was the master before, which fills its log."""
    env = DiskEnv()
    async with filled(tmp_path, env) as (broker, channel, _):
        for name, delay_ms in (("soon", 1), ("later", 3_600_000)):
            properties = f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{name}\x02"
            answer = await channel.call(send("T", b"timed", properties=properties))
            assert answer.code == ResponseCode.SUCCESS
        for _ in range(40):
            assert (await channel.call(send("T", b"x" * 1000))).code == ResponseCode.SUCCESS
        timed = broker.queues.get(TIMER_TOPIC, 0)
        assert timed is not None
        waiting = int.from_bytes(timed.entries(1, 1)[:8], "big")
        now, end = broker.log.clock.now_ms(), broker.log.end
    settings = {
        "broker.id": "1", "store.commit_log_file_bytes": str(FILE), "store.queue_file_units": "20",
        "plugin.ha.master": "127.0.0.1:1", "plugin.retention.check_interval": "1h", "plugin.retention.at": "",
    }  # fmt: skip
    enable = ["gantrymq.plugins.ha:HaPlugin"]
    async with run_broker(make_broker(tmp_path, settings=settings, enable=enable, env=env)) as slave:
        slave.registry.get(TimerProgress).adopt_timer(TimerCheck(now + 60_000, 0, 2).to_body(), end)
        cleaner = slave.registry.get(Retention)
        assert isinstance(cleaner, Cleaner)
        env.ahead_ms = 73 * 3_600_000
        with trio.fail_after(60):
            while slave.log.min_offset < waiting // FILE * FILE:  # the first waiting message is found once a second
                await cleaner.clean(asked=True)
                await trio.sleep(0.1)
        await cleaner.clean(asked=True)
        assert slave.log.min_offset == waiting // FILE * FILE > 0
        env.usage = DiskUsage(100 * GIB, GIB // 100)
        await cleaner.clean()
        assert slave.log.min_offset == waiting // FILE * FILE
        assert slave.log.read_record(waiting).body == b"timed"
