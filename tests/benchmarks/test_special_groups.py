"""Measurements beside the scenarios: idle connections, old readers, crashes, growth, the bare disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gantrymq.bench.cluster import prepare_topic, targets_of
from gantrymq.bench.plan import Load, Plan, Target
from gantrymq.bench.running import Outcome, Result, run
from gantrymq.client import connect
from gantrymq.testing.harness import Cluster, cluster_in_thread


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with cluster_in_thread(tmp_path / "store", settings={"plugin.flush.mode": "async"}) as cluster:
        yield cluster


@pytest.fixture
def tiny(load: Any) -> tuple[Any, Any]:
    """Times and sizes of a test."""
    groups, measuring = load("special_groups"), load("measuring")
    return measuring.Timing(0.2, 0.1, 0.4), groups.Sizes(idle=40, old=0.25, crash=0.01, growth=(0.01, 0.02))


@pytest.mark.soak(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("idle", {"idle connections held", "memory of an idle connection", "p99 of a lone sender beside them"}),
        ("mixed", {"p50 from a lone producer to the consumer", "producers 8x16 while old messages are read"}),
        ("recovery", {"recovery for each GiB that is read"}),
        ("growth", {"send 8x16 at 0.01 GiB stored", "memory that is no file at 0.02 GiB stored"}),
    ],
)
def test_each_group_measures_our_broker(
    load: Any, tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, group: str, expected: set[str]
) -> None:
    groups = load("special_groups")
    monkeypatch.setattr(groups, "SMALL_LOG_FILE", 4 * 2**20)
    figures = load("figures").Figures()
    lines: list[str] = []
    for measure in groups.SPECIAL[group]:
        measure("gantrymq", *tiny, figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of(group)}
    assert expected <= set(found)
    assert all(value is not None and value >= 0 for value in found.values())
    assert lines


@pytest.mark.slow
def test_a_reader_that_reads_messages_twice_is_no_result(
    load: Any, tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, outcome: Callable[..., Outcome]
) -> None:
    groups, measuring = load("special_groups"), load("measuring")
    timing, sizes = tiny
    sizes = attrs.evolve(sizes, old=0.01)
    stored = int(sizes.old * groups.GIB / 1024)
    monkeypatch.setattr(groups, "SMALL_LOG_FILE", 4 * 2**20)
    monkeypatch.setattr(groups, "run_together", lambda plans: [Result([outcome(1.0)]), Result([outcome(stored)])])
    figures = load("figures").Figures()
    with pytest.raises(measuring.Failed, match=r"gantrymq, catching up: .* --old"):
        groups.measure_catch_up("gantrymq", timing, sizes, figures, print)
    assert figures.found == []


def test_a_full_disk_skips_scenarios_that_do_not_fit(
    load: Any, tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = load("special_groups")
    monkeypatch.setattr(groups, "free_bytes", lambda folder: 2**20)
    figures = load("figures").Figures()
    lines: list[str] = []
    groups.recovery("gantrymq", *tiny, figures, lines.append)
    groups.measure_catch_up("gantrymq", *tiny, figures, lines.append)
    assert figures.found == []
    assert [line.partition(" would")[0] for line in lines] == ["left out: the crash", "left out: the old messages"]


def test_idle_connections_are_counted_while_they_are_open(load: Any, tmp_path: Path) -> None:
    settings = {"plugin.flush.mode": "async", "limits.connections": 8}
    with cluster_in_thread(tmp_path / "store", settings=settings) as cluster:
        broker = cluster.address
        with load("idle_connections").held(broker, 5) as count:
            assert count() == 5
        with load("idle_connections").held(broker, 30) as count:
            assert 0 < count() <= 8


def test_the_disk_alone_is_timed(load: Any) -> None:
    (lone,) = load("scenarios").chosen("send 1x1 sync")
    found = load("fsync").bare_fdatasync(lone, 0.05)
    assert 0 < found["p50"] <= found["p99"]


def test_files_are_evicted_from_the_page_cache(load: Any, tmp_path: Path) -> None:
    stores = load("stores")
    folder = tmp_path / "commitlog"
    folder.mkdir()
    path = folder / f"{0:020d}"
    path.write_bytes(os.urandom(4 * 2**20))
    assert stores.cached_share(path) == 1
    assert stores.log_files(tmp_path) == [path]
    stores.leave_page_cache(tmp_path)
    assert stores.cached_share(path) < 1


def test_a_spread_load_reaches_every_queue_of_every_topic(cluster: Cluster) -> None:
    topics = ["one", "two", "three"]

    async def find() -> Target:
        async with connect(cluster.nameserver) as client:
            for topic in topics:
                await prepare_topic(client, topic, 4)
            return (await targets_of(client, "one"))[0]

    async def stored() -> list[int]:
        async with connect(cluster.nameserver) as client:
            queues = [queue for topic in topics for queue in await client.admin.queues(topic)]
            return [await client.admin.max_offset(queue) for queue in queues]

    load = Load(
        kind="send", topic="one", targets=[trio.run(find)], topics=topics, connections=2, in_flight=3, requests=24
    )
    (outcome,) = run(Plan(loads=[load])).outcomes
    assert (outcome.messages, outcome.failures) == (24, {})
    found = trio.run(stored)
    assert sum(found) == 24
    assert len(found) == 12
    assert min(found) > 0
