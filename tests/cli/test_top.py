"""``gantrymq top``: rates and lag, once, as JSON lines, and in a terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from gantrymq import Message
from gantrymq.cli.tables import plural
from gantrymq.cli.top import LiveView
from gantrymq.client.errors import ChannelClosed
from gantrymq.message import MessageQueue
from gantrymq.operations.load import BrokerSample, GroupSample, Sample, load_between, take_sample
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.sync import Client
from support.processes import gantrymq_child

if TYPE_CHECKING:
    from gantrymq.client import Client as AsyncClient

Cli = Callable[..., Any]


def counters(stored: int, delivered: int) -> dict[str, str]:
    return {"msgPutTotalTodayNow": str(stored), "msgGetTotalTodayNow": str(delivered), "commitLogDiskRatio": "0.25"}


def sampled(members: int, end: int, committed: int, behind_ms: int | None, **queues: tuple[int, int]) -> GroupSample:
    """A group with one queue at broker a; ``queues``: end and committed offset of another broker's queue."""
    pairs = {"a": (end, committed)} | queues
    offsets = {MessageQueue("T", broker, 0): pair for broker, pair in pairs.items()}
    return GroupSample(members, offsets, sum(last - done for last, done in offsets.values()), behind_ms)


BEFORE = Sample(
    100.0,
    {
        "a": BrokerSample("h:1", counters(100, 50)),
        "b": BrokerSample("h:2", counters(7, 7)),
        "c": BrokerSample("h:3", {}),
    },
    {
        "fast": sampled(2, 100, 100, 0),
        "slow": sampled(1, 100, 90, 500),
        "hangs": sampled(1, 100, 40, 900),
        "left": sampled(1, 100, 99, 5),
    },
)
AFTER = Sample(
    110.0,
    {
        "a": BrokerSample("h:1", counters(150, 80)),
        "b": BrokerSample("h:2", counters(0, 3) | {"notReady": "disk full"}),  # restarted
        "c": BrokerSample("h:3", {}),
        "d": BrokerSample(None, {}),
    },
    {
        "fast": sampled(2, 200, 190, 20),
        "slow": sampled(1, 200, 100, 4000),
        "hangs": sampled(1, 100, 40, 10_900),
        "left": sampled(0, 100, 99, None),
        "new": sampled(1, 5, 5, 0),
    },
)


class DyingCluster:
    """Its only broker reports its counters and then closes each connection; it is a client and its ``admin``."""

    @property
    def admin(self) -> DyingCluster:
        return self

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: "192.0.2.1:10911"})})

    async def request(self, address: str, command: Command) -> Command:
        if command.code != RequestCode.GET_BROKER_RUNTIME_INFO:
            raise ChannelClosed(address, "closed by the peer")
        return command.answer(0, body=KVTable(counters(1, 1)).to_bytes())


@pytest.mark.trio
async def test_a_broker_that_dies_during_a_sample_raises_an_error_that_the_command_survives() -> None:
    with pytest.raises(ChannelClosed):
        await take_sample(cast("AsyncClient", DyingCluster()))


def test_rates_and_states_follow_from_two_samples() -> None:
    load = load_between(BEFORE, AFTER)
    assert [(each.broker, each.stored_per_second, each.delivered_per_second, each.state) for each in load.brokers] == [
        ("a", 5.0, 3.0, "ok"), ("b", 0.0, 0.0, "disk full"), ("c", None, None, "unreachable"),
        ("d", None, None, "missing"),
    ]  # fmt: skip
    assert [
        (each.group, each.stored_per_second, each.consumed_per_second, each.lag, each.state) for each in load.groups
    ] == [
        ("slow", 10.0, 1.0, 100, "slow"), ("hangs", 0.0, 0.0, 60, "stopped"), ("fast", 10.0, 9.0, 10, "slow"),
        ("left", 0.0, 0.0, 1, "stopped"), ("new", 0.0, 0.0, 0, "ok"),
    ]  # fmt: skip
    assert load.brokers[0].disk_ratio == 0.25
    halves = load_between(Sample(105.0, AFTER.brokers, AFTER.groups), AFTER, BEFORE)
    assert (halves.seconds, halves.groups[0].stored_per_second) == (5.0, 10.0), "groups have a longer window"


def groups_between(before: GroupSample, after: GroupSample, seconds: float = 10.0) -> tuple[float, float, str]:
    (load,) = load_between(Sample(0.0, {}, {"g": before}), Sample(seconds, {}, {"g": after})).groups
    return load.stored_per_second, load.consumed_per_second, load.state


def test_a_broker_in_only_one_of_two_samples_changes_no_rate_of_a_group() -> None:
    both = sampled(1, 200, 190, 20, b=(9_000_000, 8_000_000))
    assert groups_between(sampled(1, 100, 90, 20), both) == (10.0, 10.0, "ok"), "b came"
    alone = sampled(1, 200, 190, 20)
    assert groups_between(sampled(1, 100, 90, 20, b=(9_000_000, 8_000_000)), alone) == (10.0, 10.0, "ok"), "b went"
    first_commit = sampled(1, 0, 0, 20, b=(9_000_000, 0))
    assert groups_between(sampled(1, 0, 0, 0), first_commit) == (0.0, 0.0, "ok"), "its queue was not known before"


def test_an_offset_that_is_reset_hides_no_consumption_of_other_queues() -> None:
    before, after = sampled(1, 100, 90, 20, b=(500, 500)), sampled(1, 100, 100, 20, b=(500, 0))
    assert groups_between(before, after) == (0.0, 1.0, "ok")


def test_a_group_with_members_is_stopped_only_after_the_time_between_two_commits() -> None:
    waits, left = sampled(1, 100, 40, 900), sampled(0, 100, 40, 900)
    assert groups_between(waits, waits, 4.9)[2] == "ok"
    assert groups_between(waits, waits, 5.0)[2] == "stopped"
    assert groups_between(waits, left, 0.5)[2] == "stopped"


def test_the_terminal_is_redrawn_with_the_slowest_groups() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, height=40)
    with LiveView(2, console) as view:
        view.show(load_between(BEFORE, AFTER))
        view.show_error("127.0.0.1:9876: no nameserver can be reached")
    shown = text.getvalue()
    assert "5.0 stored/s, 3.0 delivered/s, 171 messages wait in 5 groups" in shown
    assert "hangs" in shown
    assert "left" not in shown
    assert "no sample: 127.0.0.1:9876" in shown


def test_a_count_of_one_has_a_singular() -> None:
    assert [plural(count, "group") for count in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]
    assert plural(1, "process", "processes") == "1 process"


def test_one_interval_is_printed_as_a_table_and_as_json(
    cli: Cli, gantry_broker: Any, gantry_client: Client, gantry_topic: str
) -> None:
    group = f"g-{gantry_topic[-8:]}"
    with gantry_client.producer() as producer:
        for number in range(3):
            producer.send(Message(gantry_topic, b"%d" % number))
    with gantry_client.consumer(gantry_topic, group, start="first") as consumer:
        next(iter(consumer)).ack()
    at = ("--once", "--interval", "200ms", "--max", "1000", "--nameserver", gantry_broker.nameserver)
    load = json.loads(cli("top", "--json", *at).out)
    (broker,) = load["brokers"]
    assert (broker["broker"], broker["state"]) == ("broker-a", "ok")
    assert broker["stored_per_second"] >= 0
    row = next(each for each in load["groups"] if each["group"] == group)
    assert (row["members"], row["lag"], row["state"], row["behind_ms"] > 0) == (0, 2, "stopped", True)
    assert 0.2 <= load["seconds"] < 30
    table = cli("top", *at).out
    assert "messages wait in" in table.splitlines()[0]
    (line,) = [line for line in table.splitlines() if line.startswith(group)]
    assert line.split()[4:] == ["2", line.split()[5], "stopped"]


@pytest.mark.timeout(60)
def test_top_prints_until_interrupted(gantry_broker: Any, tmp_path: Path) -> None:
    arguments = ["top", "--json", "--interval", "100ms", "--nameserver", gantry_broker.nameserver]
    with gantrymq_child(arguments, tmp_path / "log") as child:
        loads = [json.loads(child.wait_line(bool)) for _ in range(2)]
        assert all(load["brokers"] for load in loads)
        child.terminate()
        assert child.wait() == 0
