"""``consumerFilter.json`` has RocketMQ 4.9.7's bytes, and its entries expire as there."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.filter import consumers
from gantrymq.plugins.filter.consumers import ConsumerFilters, bloom_positions
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.memory_env import MemoryEnv

PATH = "/config/consumerFilter.json"
BORN = 1795262795780
FROM_JAVA = (
    b'{"filterDataByTopic":{"orders":{"groupFilterData":{"shop":{"bloomFilterData":{"bitNum":112,"bitPos":[66,71,76]},'
    b'"bornTime":1795262795780,"clientVersion":7,"consumerGroup":"shop","dead":false,"deadTime":0,'
    b'"expression":"a > 1 AND b = \'x\'","expressionType":"SQL92","topic":"orders"}},"topic":"orders"}}}'
)
"""Written by the jar of rocketmq-broker 4.9.7 with its default filter (20 %, 32)."""


class Checks:
    """Counts what is compiled; ``?`` cannot be."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, expression_type: str, expression: str) -> None:
        self.count += 1
        if expression == "?":
            raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "unreadable")


@pytest.fixture
def env() -> MemoryEnv:
    env = MemoryEnv(start_ms=BORN)
    env.mkdirs("/config")
    return env


@pytest.fixture
def checks() -> Checks:
    return Checks()


@pytest.fixture
def filters(env: MemoryEnv, checks: Checks) -> ConsumerFilters:
    return ConsumerFilters(env, PATH, checks)


def wish(expression: str = "a > 1 AND b = 'x'", version: int = 7, **more: Any) -> tuple[str, SubscriptionData]:
    given = {"topic": "orders", "expression_type": "SQL92", **more}
    return "shop", SubscriptionData(sub_string=expression, sub_version=version, **given)


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("shop#orders", [66, 71, 76]),
        ("g#T", [90, 68, 28]),
        ("", [0, 0, 0]),
        ("\u00e4\u4e16#\U0001f600", [106, 42, 21]),
        ("group-1#TopicTest", [21, 32, 57]),
    ],
)
def test_the_bits_are_those_of_rocketmq(text: str, positions: list[int]) -> None:
    assert bloom_positions(text) == positions  # BloomFilter.createByFn(20, 32).calcBitPositions(text)


def test_the_file_is_rocketmqs_byte_for_byte(filters: ConsumerFilters) -> None:
    filters.update([wish()])
    assert filters.changes() == {PATH: FROM_JAVA}
    filters.update([wish()])
    assert filters.changes() is None


@pytest.mark.parametrize("other", [{"expression_type": "TAG"}, {"expression_type": ""}, {"expression": ""}])
def test_tag_expressions_and_empty_ones_are_not_stored(filters: ConsumerFilters, other: dict[str, str]) -> None:
    filters.update([wish(**other)])
    assert filters.changes() is None


def test_a_consumer_that_leaves_is_dead_and_alive_again_on_return(filters: ConsumerFilters, env: MemoryEnv) -> None:
    filters.update([wish()])
    env.advance(1000)
    filters.update([])
    entry = filters.get("shop", "orders")
    assert entry is not None
    assert (entry.dead, entry.dead_time) == (True, BORN + 1000)
    filters.update([wish(version=6)])
    assert entry.dead, "an older subscription says nothing"
    filters.update([wish()])
    assert (entry.dead, entry.dead_time, entry.born_time) == (False, 0, BORN)
    assert filters.changes() == {PATH: FROM_JAVA}


def test_a_newer_expression_replaces_the_old_one(filters: ConsumerFilters, env: MemoryEnv) -> None:
    filters.update([wish()])
    env.advance(1000)
    for version, expression, born, known in ((7, "b = 1", BORN, 7), (8, "a > 1 AND b = 'x'", BORN, 8)):
        filters.update([wish(expression, version)])
        entry = filters.get("shop", "orders")
        assert entry is not None
        assert (entry.expression, entry.born_time, entry.client_version) == ("a > 1 AND b = 'x'", born, known)
    filters.update([wish("b = 1", 9)])
    entry = filters.get("shop", "orders")
    assert entry is not None
    assert (entry.expression, entry.born_time, entry.client_version) == ("b = 1", BORN + 1000, 9)


def test_an_invalid_expression_is_not_kept_and_is_compiled_once(filters: ConsumerFilters, checks: Checks) -> None:
    filters.update([wish()])
    for _ in range(3):
        filters.update([wish("?", 8)])
    assert filters.get("shop", "orders") is None
    assert checks.count == 2


def test_a_day_behind_its_death_an_entry_goes(filters: ConsumerFilters, env: MemoryEnv) -> None:
    filters.update([wish()])
    filters.update([])
    env.advance(24 * 3600 * 1000 - 1)
    filters.update([])
    assert filters.get("shop", "orders") is not None
    env.advance(1)
    filters.update([])
    assert filters.changes() == {PATH: b'{"filterDataByTopic":{}}'}


def test_names_of_chance_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, filters: ConsumerFilters, env: MemoryEnv
) -> None:
    monkeypatch.setattr(consumers, "ENTRIES_MAX", 2)
    for number in range(4):
        filters.update([wish(topic=f"t{number}"), wish(topic="stays")])
        env.advance(1)
    assert [filters.get("shop", f"t{number}") is not None for number in range(4)] == [False, False, False, True]
    assert filters.get("shop", "stays") is not None


@pytest.mark.parametrize(("later", "died"), [(10_000, BORN), (100_000, BORN + 70_000)])
def test_consumers_alive_in_the_file_are_dead_after_a_restart(
    env: MemoryEnv, checks: Checks, later: int, died: int
) -> None:
    env.replace(PATH, FROM_JAVA.replace(b'"bitNum":112,"bitPos":[66,71,76]', b'"bitNum":216,"bitPos":[122,199,60]'))
    env.advance(later)
    filters = ConsumerFilters(env, PATH, checks)
    entry = filters.get("shop", "orders")
    assert entry is not None
    assert (entry.dead, entry.dead_time) == (True, died)
    filters.update([wish()])
    assert filters.changes() == {PATH: FROM_JAVA}, "with the bits of our filter"


def test_a_broken_file_is_mended_by_its_bak_or_refuses_the_start(env: MemoryEnv, checks: Checks) -> None:
    env.replace(PATH, FROM_JAVA)
    env.replace(PATH, b"{")
    assert ConsumerFilters(env, PATH, checks).get("shop", "orders") is not None
    env.replace(PATH, b"[")
    env.replace(PATH, b"{")
    with pytest.raises(StartError, match=r"Repair /config/consumerFilter\.json"):
        ConsumerFilters(env, PATH, checks)


def test_one_update_reads_some_new_expressions_and_the_next_ones_read_the_others(
    filters: ConsumerFilters, checks: Checks
) -> None:
    long = "a = '" + "x" * 6000 + "'"
    live = [wish(long, topic=f"T{number}") for number in range(10)] + [wish("?", topic="odd")]
    counts = []
    for _ in range(6):
        filters.update(live)
        counts.append(checks.count)
    assert counts == [3, 6, 9, 11, 11, 11]
    assert all(filters.get("shop", f"T{number}") is not None for number in range(10))
    assert filters.get("shop", "odd") is None


def test_a_large_table_is_followed_and_written_in_steps(filters: ConsumerFilters) -> None:
    live = [wish(topic=f"T{number}") for number in range(900)]
    steps = filters.update_in_steps(live)
    assert sum(1 for _ in steps) > 50
    assert filters.get("shop", "T899") is not None
    assert sum(1 for _ in filters.changes_in_steps()) > 50
    assert filters.changes() is None


@pytest.mark.trio
async def test_the_table_is_not_looked_at_as_long_as_no_subscription_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Persisting used to go through all subscriptions of all groups each time, in one go."""
    updates = 0
    update = ConsumerFilters.update_in_steps

    def counted(self: ConsumerFilters, live: Any) -> Any:
        nonlocal updates
        updates += 1
        return update(self, live)

    monkeypatch.setattr(ConsumerFilters, "update_in_steps", counted)
    path = tmp_path / "config/consumerFilter.json"
    async with broker_and_channel(tmp_path, broker__persist_interval="20ms") as (_, channel):

        async def subscribe(expression: str, version: int) -> None:
            given = SubscriptionData("orders", expression, expression_type="SQL92", sub_version=version)
            data = HeartbeatData("c", [], [ConsumerData("shop", subscription_data_set=[given])])
            assert (await channel.call(Command(RequestCode.HEART_BEAT, body=data.to_bytes()))).code == 0

        async def written(expression: str) -> None:
            with trio.fail_after(20):
                while not path.exists() or expression not in path.read_text():  # noqa: ASYNC110 - a file has no event
                    await trio.sleep(0.01)

        long = "a = 1 OR " * 1800 + "a = 2"
        for version, expression in enumerate(("a = 1", "a = 2", long), start=1):
            await subscribe(expression, version)
            await written(f'"expression":"{expression}"')
            before = updates
            for _ in range(5):
                await subscribe(expression, version)
                await trio.sleep(0.05)
            assert updates - before <= 1
    assert updates <= 9


def test_no_step_of_writing_a_large_table_makes_much_of_the_file(filters: ConsumerFilters) -> None:
    long = "a = '" + "x" * 2000 + "'"
    for _ in range(200):  # some are read each time
        filters.update([(f"g{number}", wish(long, topic="T")[1]) for number in range(1000)])
    tracemalloc.start()
    try:
        steps, allocated, before = filters.changes_in_steps(), [], 0
        while True:
            try:
                next(steps)
            except StopIteration as done:
                [text] = done.value.values()
                break
            finally:
                now, peak = tracemalloc.get_traced_memory()
                allocated.append(max(now, peak) - before)
                before = now
                tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert len(text) > 1_000_000
    assert max(allocated) < len(text) / 4
