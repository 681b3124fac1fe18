"""A worker thread reads due messages that left the page cache, which delays no other client."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest
import trio

from gantrymq.plugins.delay.timer.log import TimerLog
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of
from support.colddisk import Disk
from support.delays import DelayedStore
from support.timers import LARGER, SlaveStore, TimedStore

MESSAGES = 20


def fill(world: DelayedStore | TimedStore) -> None:
    """Write more than a file of the log."""
    world.store.append(batch_of([b"y" * 1700] * 2, topic="U"))
    world.commit()


def log_files(paths: list[str]) -> list[str]:
    return [path for path in paths if "/commitlog/" in path]


def timer_files(paths: list[str]) -> list[str]:
    return [path for path in paths if "/timerlog/" in path]


async def deliver(world: DelayedStore | TimedStore, count: int = MESSAGES) -> None:
    """Run the tasks until so many messages are delivered."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.delivery.run if isinstance(world, DelayedStore) else world.timer.run)
            while len(world.bodies()) < count:
                world.commit()
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_due_messages_that_are_only_on_the_disk_delay_no_client() -> None:
    disk = Disk()
    world = DelayedStore(disk)
    for number in range(MESSAGES):
        world.send(b"%d" % number, 3)
        fill(world)
    world.store.flush_queues()
    disk.cool()
    disk.advance(10_000)
    await deliver(world)
    assert world.bodies() == [b"%d" % number for number in range(MESSAGES)]
    assert len(log_files(disk.reads)) >= MESSAGES
    assert log_files(disk.waited_for) == []


@pytest.mark.trio
async def test_a_level_in_the_page_cache_does_not_wait_for_one_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    world = DelayedStore(disk)
    world.send(b"cold", 2)
    for _ in range(2):
        fill(world)
    world.store.flush_queues()
    disk.cool()
    disk.advance(5000)
    world.send(b"warm", 1)
    world.commit()
    disk.advance(1000)
    started, go_on = trio.Event(), trio.Event()
    token, run_sync = trio.lowlevel.current_trio_token(), trio.to_thread.run_sync

    async def read_slowly(*arguments: Any, **options: Any) -> None:
        if trio.lowlevel.current_trio_token() is not token:  # of a broker in another thread, which several tests share
            await run_sync(*arguments, **options)
            return
        started.set()
        await go_on.wait()

    monkeypatch.setattr(trio.to_thread, "run_sync", read_slowly)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, world, 2)
            await started.wait()
            while world.bodies() != [b"warm"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            go_on.set()
    assert world.bodies() == [b"warm", b"cold"], "read although the first read brought nothing into the page cache"


@pytest.mark.trio
@pytest.mark.parametrize("is_restarted", [False, True], ids=["dequeued", "enqueued"])
async def test_timed_messages_that_are_only_on_the_disk_delay_no_client(is_restarted: bool) -> None:
    disk = Disk()
    config = attrs.evolve(LARGER, commit_log_file_bytes=TINY.commit_log_file_bytes)
    world = TimedStore(disk, config=config)
    for number in range(MESSAGES):
        world.send_in(b"%d" % number, 40_000)
        fill(world)
    if is_restarted:
        world.store.close()
        world = TimedStore(disk, config=config)
    else:
        world.settle()
    world.store.flush_queues()
    disk.cool()
    if is_restarted:
        await enqueued(world)
        assert len(log_files(disk.reads)) >= MESSAGES
    disk.advance(41_000)
    await deliver(world)
    assert sorted(world.bodies(), key=int) == [b"%d" % number for number in range(MESSAGES)]
    assert len(log_files(disk.reads)) >= MESSAGES
    assert log_files(disk.waited_for) == []


@pytest.mark.trio
async def test_units_and_recalls_that_are_only_on_the_disk_delay_no_client() -> None:
    disk = Disk()
    world = TimedStore(disk, config=attrs.evolve(LARGER, commit_log_file_bytes=TINY.commit_log_file_bytes))
    for number in range(MESSAGES):
        world.send_in(b"%d" % number, 40_000)
        if number % 2:
            fill(world)
            world.recall(b"%d" % number, world.now + 40_000)
        fill(world)
    world.settle()
    world.save()
    world.store.flush_queues()
    disk.cool()
    disk.advance(41_000)
    await deliver(world, MESSAGES // 2)
    assert sorted(world.bodies(), key=int) == [b"%d" % number for number in range(0, MESSAGES, 2)]
    assert len(log_files(disk.reads)) >= MESSAGES
    assert len(timer_files(disk.reads)) >= 2
    assert log_files(disk.waited_for) + timer_files(disk.waited_for) == []


@pytest.mark.trio
async def test_due_messages_do_not_wait_for_the_units_of_the_next_second(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    disk.advance(1000 - disk.wall_ms() % 1000)
    world = TimedStore(disk)
    world.send_in(b"cold", 6500)
    world.settle()
    world.save()
    disk.cool()
    disk.advance(4000)
    world.send_in(b"warm", 1900)
    world.settle()
    disk.advance(1950)
    started, go_on = threading.Event(), threading.Event()

    def fetch_slowly(*_arguments: object) -> None:
        started.set()
        assert go_on.wait(30)

    monkeypatch.setattr(TimerLog, "fetch", fetch_slowly)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, world, 2)
            assert await trio.to_thread.run_sync(started.wait, 30)
            while world.bodies() != [b"warm"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert world.timer.turn() > 0, "the timer sleeps while the worker thread reads"
            disk.advance(1000)
            go_on.set()
    assert world.bodies() == [b"warm", b"cold"]


async def enqueued(world: TimedStore) -> None:
    """Run the timer until every message is in the wheel."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.timer.run)
            while world.timer.files.queue_offset < MESSAGES:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_slave_checks_messages_that_are_only_on_the_disk_without_delaying_clients() -> None:
    disk = Disk()
    config = attrs.evolve(LARGER, commit_log_file_bytes=TINY.commit_log_file_bytes)
    world = TimedStore(MemoryEnv(), config=config)
    for number in range(MESSAGES):
        world.send_in(b"%d" % number, 2000)
        fill(world)
    for _ in range(8):
        world.env.advance(1000)
        world.settle()
        world.save()
    disk.advance(world.env.wall - disk.wall)
    slave = SlaveStore(disk, config=config)
    slave.copy(world)
    assert slave.adopt(world)
    slave.store.flush_queues()
    disk.cool()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slave.progress.run)
            while slave.progress.floor() < slave.store.log.end:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert len(log_files(disk.reads)) >= MESSAGES
    assert log_files(disk.waited_for) == []
