"""The load of a cluster: rates of its brokers, and rates and lag of its consumer groups, between two samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
import attrs

from gantrymq.client.consumer import COMMIT_INTERVAL_SECONDS
from gantrymq.client.groups import group_lags, group_names
from gantrymq.client.routes import MASTER_ID
from gantrymq.operations.brokers import runtime_info
from gantrymq.operations.groups import AT_ONCE, group_members
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.names import is_retry_topic
from gantrymq.remoting.tasks import concurrent_tasks

if TYPE_CHECKING:
    from gantrymq.client import Client

_STORED: Final = "msgPutTotalTodayNow"
_DELIVERED: Final = "msgGetTotalTodayNow"
_DISK: Final = "commitLogDiskRatio"


@attrs.frozen
class BrokerSample:
    """The counters of a master; ``runtime`` is empty if it does not respond, ``address`` is None if it is missing."""

    address: str | None
    runtime: Mapping[str, str]


@attrs.frozen
class GroupSample:
    """A consumer group. ``queues``: each to the offset at its end and the committed one; ``lag``: messages that wait in
    all of them."""

    members: int
    queues: Mapping[MessageQueue, tuple[int, int]]
    lag: int
    behind_ms: int | None


@attrs.frozen
class Sample:
    """What the brokers count at one moment. ``at``: seconds of a monotonic clock."""

    at: float
    brokers: Mapping[str, BrokerSample]
    groups: Mapping[str, GroupSample]


@attrs.frozen
class BrokerLoad:
    """One master. Rates are messages per second; None if the broker did not respond to both samples.

    ``state``: ``ok``, ``unreachable``, ``missing`` (the nameservers know slaves only), or what keeps a broker of
    GantryMQ from being ready.
    """

    broker: str
    address: str | None
    stored_per_second: float | None
    delivered_per_second: float | None
    disk_ratio: float | None
    state: str


@attrs.frozen
class GroupLoad:
    """One consumer group. Rates are messages per second in the topics of the group.

    ``behind_ms``: how long the oldest waiting message has waited; None if no broker tells. ``state``: ``ok``;
    ``slow``: messages wait and more were stored than consumed; ``stopped``: messages wait, and the group has no member
    or consumed none of them in the time between two commits of a member.
    """

    group: str
    members: int
    stored_per_second: float
    consumed_per_second: float
    lag: int
    behind_ms: int | None
    state: str


@attrs.frozen
class Load:
    """The load between two samples, ``seconds`` apart; the groups with the largest lag first."""

    seconds: float
    brokers: list[BrokerLoad]
    groups: list[GroupLoad]


async def take_sample(client: Client) -> Sample:
    """Ask all masters for their counters, and for the offsets of all consumer groups."""
    info = await client.admin.cluster()
    addresses = {name: data.broker_addrs.get(MASTER_ID) for name, data in sorted(info.broker_addr_table.items())}
    brokers: dict[str, BrokerSample] = {}
    groups: dict[str, GroupSample] = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def ask_broker(name: str, address: str | None) -> None:
        brokers[name] = BrokerSample(address, {} if address is None else await runtime_info(client, address))

    async def ask_group(name: str) -> None:
        async with limit:
            with suppress(GantryError):  # a broker has just gone, or refuses: no wrong numbers
                groups[name] = await _group_sample(client, name, masters)

    async with concurrent_tasks() as tasks:
        for name, address in addresses.items():
            tasks.start_soon(ask_broker, name, address)
    masters = {name: each.address for name, each in brokers.items() if each.address is not None and each.runtime}
    at = anyio.current_time()
    async with concurrent_tasks() as tasks:
        for name in await group_names(client.admin, masters=masters):
            tasks.start_soon(ask_group, name)
    return Sample(at, brokers, groups)


async def _group_sample(client: Client, name: str, masters: Mapping[str, str]) -> GroupSample:
    admin = client.admin
    members = await group_members(client, name, masters=masters)
    lags = [lag for lag in await group_lags(admin, name, masters=masters) if not is_retry_topic(lag.queue.topic)]
    waiting = sum(lag.lag for lag in lags)
    behind: list[int] = []
    if waiting:
        timed = await group_lags(admin, name, times=True, masters=masters)
        behind = [lag.behind_ms for lag in timed if lag.behind_ms is not None and not is_retry_topic(lag.queue.topic)]
    return GroupSample(
        members=len(members),
        queues={lag.queue: (lag.end, lag.committed) for lag in lags},
        lag=waiting,
        behind_ms=max(behind, default=None) if waiting else 0,
    )


def load_between(before: Sample, after: Sample, groups_before: Sample | None = None) -> Load:
    """Return the load between two samples of one cluster.

    ``groups_before``: the sample to compare the groups with, whose members commit their offsets every 5 seconds only.
    """
    seconds = max(after.at - before.at, 1e-3)
    brokers = [_broker_load(name, before.brokers.get(name), each, seconds) for name, each in after.brokers.items()]
    earlier = before if groups_before is None else groups_before
    window = max(after.at - earlier.at, 1e-3)
    groups = [_group_load(name, earlier.groups.get(name), each, window) for name, each in after.groups.items()]
    groups.sort(key=lambda each: (-each.lag, -each.consumed_per_second, each.group))
    return Load(round(seconds, 3), sorted(brokers, key=lambda each: each.broker), groups)


def _broker_load(name: str, before: BrokerSample | None, after: BrokerSample, seconds: float) -> BrokerLoad:
    def rate(counter: str) -> float | None:
        if before is None or counter not in before.runtime or counter not in after.runtime:
            return None
        return _rate(int(before.runtime[counter]), int(after.runtime[counter]), seconds)

    state = "missing" if after.address is None else "ok" if after.runtime else "unreachable"
    ratio = after.runtime.get(_DISK)
    return BrokerLoad(
        broker=name,
        address=after.address,
        stored_per_second=rate(_STORED),
        delivered_per_second=rate(_DELIVERED),
        disk_ratio=None if ratio is None else float(ratio),
        state=after.runtime.get("notReady") or state,
    )


def _group_load(name: str, before: GroupSample | None, after: GroupSample, seconds: float) -> GroupLoad:
    # a queue of only one sample, because its broker has come or gone, says nothing of what happened between them
    known = {} if before is None else before.queues
    pairs = [(known[queue], after.queues[queue]) for queue in known.keys() & after.queues]
    stored = sum(max(end - end_before, 0) for (end_before, _), (end, _) in pairs)
    consumed = sum(max(done - done_before, 0) for (_, done_before), (_, done) in pairs)
    waited = seconds >= COMMIT_INTERVAL_SECONDS and any(end > done for (end, done), _ in pairs)
    state = "ok"
    if after.lag and (not after.members or (waited and not consumed)):
        state = "stopped"
    elif after.lag and stored > consumed:
        state = "slow"
    return GroupLoad(
        group=name,
        members=after.members,
        stored_per_second=_rate(0, stored, seconds),
        consumed_per_second=_rate(0, consumed, seconds),
        lag=after.lag,
        behind_ms=after.behind_ms,
        state=state,
    )


def _rate(before: int, after: int, seconds: float) -> float:
    """Messages per second; 0 if the counter began anew."""
    return round(max(after - before, 0) / seconds, 1)
