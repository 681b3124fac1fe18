"""Decisions of a watcher, on simulated time with given states of the brokers and a lock in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from gantrymq.failover import watcher
from gantrymq.failover.brokers import REFUSING, UNREACHABLE
from gantrymq.failover.lock import LockKeeper
from gantrymq.failover.members import Members
from gantrymq.failover.promotion import Promoted
from gantrymq.failover.watcher import Watcher, WatchRules
from gantrymq.remoting.epoch import Epoch
from support.memorylock import MemoryLock, MemoryStore

A, B, C = "10.0.0.10:10911", "10.0.0.11:10911", "10.0.0.12:10911"
RULES = WatchRules()


def row(number: int, address: str, role: str, epoch: str | None) -> dict[str, Any]:
    return {
        "broker": "broker-a", "id": number, "address": address, "role": role, "epoch": epoch, "offset": 100,
        "is_registered": role != UNREACHABLE, "master_silent_s": 99.0 if role == "slave" else None,
        "not_promotable": "",
    }  # fmt: skip


class Scene:
    """A is the master, B and C are its slaves; ``promotions`` has the time of each and the master that was lost."""

    def __init__(self) -> None:
        self.is_lost = False
        """A is lost, and B does not respond either, as a promoted slave that restarts. C responds."""
        self.refuses = False
        """A answers with an error."""
        self.b_not_promotable = ""
        """Why B refuses a promotion."""
        self.store = MemoryStore()
        self.promotions: list[tuple[float, list[str]]] = []

    async def query(
        self, more: Mapping[str, int], without: Collection[str], timeout: float
    ) -> Sequence[dict[str, Any]]:
        if self.refuses:
            master = row(0, A, REFUSING, None) | {"refusal": "no permission"}
            return [master, row(1, B, "slave", "0-"), row(2, C, "slave", "0-")]
        if not self.is_lost:
            slave = row(1, B, "slave", "0-") | {"not_promotable": self.b_not_promotable}
            return [row(0, A, "async_master", "0-"), slave, row(2, C, "slave", "0-")]
        gone = [row(number, address, UNREACHABLE, None) for address, number in more.items() if address in (A, B)]
        return [row(2, C, "slave", "5-aa"), *gone]

    async def promote(
        self, name: str, brokers: Callable[[], Awaitable[Sequence[dict[str, Any]]]], **_: Any
    ) -> Promoted:
        self.promotions.append((trio.current_time(), [each["address"] for each in await brokers() if not each["id"]]))
        return Promoted(C, Epoch(9, "x"), 100)

    async def watch(self, holder: str) -> None:
        keeper = LockKeeper(MemoryLock(self.store, holder), trio.current_time, RULES.interval)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            nursery.start_soon(Watcher("broker-a", self.query, keeper, trio.current_time, RULES).run)

    async def promote_b_and_release(self, lock: MemoryLock) -> float:
        """Act as a watcher that ends right after its promotion of B; return the time."""
        assert await lock.write(Members(B, {C: 2}, 100).to_bytes())
        await lock.release()
        return trio.current_time()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr(watcher, "promote", scene.promote)
    return scene


@pytest.mark.parametrize("is_fresh", [False, True], ids=["it watched before", "it starts now"])
def test_the_next_holder_of_the_lock_gives_a_slave_that_was_just_promoted_its_time(
    scene: Scene, is_fresh: bool
) -> None:
    async def scenario() -> None:
        first = MemoryLock(scene.store, "first")
        await first.take()
        await first.write(Members(A, {B: 1, C: 2}, 0).to_bytes())
        async with trio.open_nursery() as nursery:
            if not is_fresh:
                nursery.start_soon(scene.watch, "second")
            await trio.sleep(2)
            scene.is_lost = True
            assert await first.renew()
            await trio.sleep(3)
            promoted_at = await scene.promote_b_and_release(first)
            if is_fresh:
                nursery.start_soon(scene.watch, "second")
            await trio.sleep(RULES.promoted_timeout - 1)
            assert scene.promotions == []
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        ((at, lost),) = scene.promotions
        assert RULES.promoted_timeout <= at - promoted_at < RULES.promoted_timeout + 2
        assert B in lost

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_the_next_holder_of_the_lock_replaces_the_master_that_both_lost_at_once(scene: Scene) -> None:
    async def scenario() -> None:
        first = MemoryLock(scene.store, "first")
        await first.take()
        await first.write(Members(A, {C: 2}, 0).to_bytes())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.watch, "second")
            await trio.sleep(2)
            scene.is_lost = True
            assert await first.renew()
            await trio.sleep(3)
            await first.release()
            await trio.sleep(1)
            assert [lost for _, lost in scene.promotions] == [[A]]
            nursery.cancel_scope.cancel()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_a_master_that_answers_with_an_error_is_not_replaced(scene: Scene) -> None:
    """The master is alive, and the watchers' stored data about it stays."""

    async def scenario() -> None:
        lock = MemoryLock(scene.store, "a test")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.watch, "first")
            await trio.sleep(3)
            stored = await lock.read()
            scene.refuses = True
            with structlog.testing.capture_logs() as logs:
                await trio.sleep(60)
            assert scene.promotions == []
            assert await lock.read() == stored
            assert [entry["reason"] for entry in logs if entry["event"] == "master_refuses"] == ["no permission"]
            scene.refuses, scene.is_lost = False, True
            await trio.sleep(10)
            assert [lost for _, lost in scene.promotions][:1] == [[A]]
            nursery.cancel_scope.cancel()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_a_slave_that_cannot_be_promoted_is_reported_while_the_master_is_alive(scene: Scene) -> None:
    scene.b_not_promotable = "broker.id is set by flag --set"

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.watch, "first")
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

    with structlog.testing.capture_logs() as logs:
        trio.run(scenario, clock=MockClock(autojump_threshold=0))
    (warned,) = [entry for entry in logs if entry["event"] == "slave_not_promotable"]
    assert (warned["address"], warned["reason"]) == (B, scene.b_not_promotable)
