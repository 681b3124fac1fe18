"""The planner of streams without Spark: offsets, limits, added and removed queues, unreachable brokers."""

from __future__ import annotations

import json
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from structlog.testing import capture_logs

from gantrymq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.spark import wire as wire_module
from gantrymq.spark.errors import DataLoss, Refused, SparkError, UnknownTopic, Unreachable, WrongOption
from gantrymq.spark.options import read_stream_options
from gantrymq.spark.planner import StreamPlanner, pack, unpack
from gantrymq.spark.wire import Pulled, Queue, Wire, connect
from support.authority import Authority

if TYPE_CHECKING:
    from conftest import FakeCluster


@attrs.define
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(cluster: FakeCluster, wire: Wire, clock: Clock) -> Callable[..., StreamPlanner]:
    def make(**options: Any) -> StreamPlanner:
        given = {"nameserver": cluster.address, "topic": "orders"} | {key: str(value) for key, value in options.items()}
        return StreamPlanner(read_stream_options(given), wire, clock, clock.sleep)

    return make


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """Queue 0 holds 10..29 (its beginning is gone), queue 1 holds 0..4, queue 2 is empty."""
    cluster.add_topic("orders", queues=3)
    cluster.queues["orders", 0].min_offset, cluster.queues["orders", 0].max_offset = 10, 30
    cluster.queues["orders", 1].max_offset = 5
    return cluster


def at(*offsets: int, topic: str = "orders") -> dict[str, Any]:
    return {topic: {"broker-a": {str(number): offset for number, offset in enumerate(offsets)}}}


def rows(planner: StreamPlanner, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(item.queue.queue_id, item.start, item.end) for item in planner.ranges(start, end)]


def test_a_stream_from_earliest_reads_everything_at_once(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(startingOffsets="earliest")
    start = planner.initial()
    assert start == at(10, 0, 0)
    end = planner.latest(start)
    assert end == at(30, 5, 0)
    assert rows(planner, start, end) == [(0, 10, 30), (1, 0, 5)]
    assert planner.latest(end) == end
    assert planner.ranges(end, end) == []


def test_a_stream_follows_replaced_certificates(
    tmp_path: Path, clock: Clock, start_cluster: Callable[[ssl.SSLContext], FakeCluster]
) -> None:
    authorities = [Authority(tmp_path, name) for name in ("first", "second")]
    trusted, tls = tmp_path / "trusted.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.verify_mode = ssl.CERT_REQUIRED

    def replace_certificates(authority: Authority) -> None:
        trusted.write_bytes(authority.file.read_bytes())
        authority.issue("stream")
        tls.load_cert_chain(authority.issue("server"))
        tls.load_verify_locations(trusted)

    replace_certificates(authorities[0])
    cluster = start_cluster(tls)
    cluster.add_topic("orders")
    given = {"nameserver": cluster.address, "topic": "orders", "tls": "true", "tlsCaFile": str(trusted)}
    options = read_stream_options({**given, "tlsCertFile": str(tmp_path / "stream.pem")})
    with connect(options.source) as wire:
        planner = StreamPlanner(options, wire, clock, clock.sleep)
        start = planner.initial()
        replace_certificates(authorities[1])
        restarts = iter([b""])
        cluster.script = lambda _: next(restarts, None)
        cluster.put("orders", 0, b"new")
        assert planner.latest(start) == start, "batch 0 is empty"
        assert planner.latest(start) == at(1)


def test_a_stream_starts_at_latest_by_default_and_records_that_before_it_reads(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make()
    start = planner.initial()
    assert start == at(30, 5, 0)
    orders.queues["orders", 0].max_offset = 50
    assert planner.latest(start) == start, "batch 0 is empty"
    assert planner.ranges(start, start) == []
    assert planner.latest(start) == at(50, 5, 0)


def test_a_first_batch_that_failed_is_planned_again_from_its_recorded_end(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    recorded = make().initial()
    orders.queues["orders", 0].max_offset = 50
    again = make()  # a new process runs batch 0 again, and Spark asks for its start again
    assert again.initial() == at(50, 5, 0)
    assert again.ranges(at(50, 5, 0), recorded) == []
    assert again.latest(recorded) == at(50, 5, 0), "nothing between is skipped"


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_first_batch_that_failed_waits_for_the_masters_of_all_its_queues(
    make: Callable[..., StreamPlanner], orders: FakeCluster, fail_on_data_loss: str
) -> None:
    options = {"startingOffsets": "earliest", "retrySeconds": 1, "failOnDataLoss": fail_on_data_loss}
    first = make(**options)
    recorded = first.latest(first.initial())
    orders.broker_ids = (1,)
    again = make(**options)
    start = again.initial()
    assert start == {}, "only the master knows where a queue begins"
    with pytest.raises(Unreachable, match="only a slave answers for orders broker-a queue"):
        again.ranges(start, recorded)
    orders.broker_ids = (0,)
    assert sorted(rows(again, start, recorded)) == [(0, 10, 30), (1, 0, 5)]
    orders.queues["orders", 0].min_offset = 40
    assert rows(again, start, recorded) == [(1, 0, 5)], "earliest is where the queue begins now"


def test_a_first_batch_that_failed_needs_the_queues_that_left_the_route(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    orders.queues["orders", 2].max_offset = 3
    first = make(startingOffsets="earliest")
    recorded = first.latest(first.initial())
    routes_have_queues(orders, 2)
    again = make(startingOffsets="earliest", retrySeconds=1)
    with pytest.raises(Unreachable, match="orders broker-a queue 2 has messages of a batch that was begun"):
        again.ranges(again.initial(), recorded)
    without = make(startingOffsets="earliest", retrySeconds=1, failOnDataLoss="false")
    with capture_logs() as logs:
        assert rows(without, without.initial(), recorded) == [(0, 10, 30), (1, 0, 5)]
    assert [(entry["event"], entry["queue_id"], entry["lost"]) for entry in logs] == [("messages_lost", 2, 3)]


@pytest.mark.parametrize("topics", [{}, {"topic": "", "topicPattern": "ord.*"}], ids=["name", "pattern"])
def test_an_empty_first_batch_needs_no_queue(
    make: Callable[..., StreamPlanner], orders: FakeCluster, topics: dict[str, str]
) -> None:
    recorded = make(**topics).initial()
    if topics:
        orders.queues.clear()
    else:
        routes_have_queues(orders, 2)
    again = make(retrySeconds=1, **topics)
    assert again.ranges(again.initial(), recorded) == []


@pytest.mark.parametrize(
    ("offsets", "start"),
    [
        ('{"orders": {"broker-a": {"0": 12, "1": -1}}}', (12, 5, 0)),
        ('{"orders": {"broker-a": {"0": -2, "2": -1}}}', (10, 0, 0)),
        ('{"orders": {"broker-a": {"0": 3}}}', (3, 0, 0)),
    ],
)
def test_offsets_of_single_queues(
    make: Callable[..., StreamPlanner], orders: FakeCluster, offsets: str, start: tuple[int, ...]
) -> None:
    assert make(startingOffsets=offsets).initial() == at(*start)


def test_a_start_behind_the_last_message_is_refused(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    with pytest.raises(WrongOption, match="orders broker-a queue 1 ends at offset 5, 6 lies behind"):
        make(startingOffsets='{"orders": {"broker-a": {"1": 6}}}').initial()
    with pytest.raises(WrongOption, match="no queue 7"):
        make(startingOffsets='{"orders": {"broker-a": {"7": 6}}}').initial()


def test_a_stream_from_a_time(make: Callable[..., StreamPlanner], cluster: FakeCluster) -> None:
    cluster.add_topic("orders", queues=2)
    for number in range(10):
        cluster.put("orders", 0, b"x", store_timestamp=1000 + number)
    planner = make(startingTimestamp=1007)
    start = planner.initial()
    assert start == at(7, 0)
    assert planner.latest(start) == start, "the start is recorded first"
    with pytest.raises(
        WrongOption, match=r"queue 1 has no message since 1007\. Set startingOffsetsByTimestampStrategy"
    ):
        make(startingTimestamp=1007, startingOffsetsByTimestampStrategy="error").initial()


def test_a_batch_is_limited_in_proportion_and_ends_are_reached(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = planner.initial()
    ends = [start]
    while (end := planner.latest(ends[-1])) != ends[-1]:
        ends.append(end)
    assert ends == [at(10, 0, 0), at(18, 2, 0), at(26, 4, 0), at(30, 5, 0)]
    assert planner.latest(start, read_all=True) == at(30, 5, 0), "Trigger.Once ignores the limit"


def test_a_batch_waits_for_enough_messages_or_for_the_delay(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    planner = make(startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="5m")
    start = planner.latest(planner.initial())
    assert start == at(30, 5, 0), "the first batch does not wait"
    orders.queues["orders", 2].max_offset = 9
    clock.now = 299.0
    assert planner.latest(start) == start
    assert planner.latest(start, read_all=True) == at(30, 5, 9)
    clock.now = 299.0 + 300.0
    assert planner.latest(start) == at(30, 5, 9)
    orders.queues["orders", 2].max_offset = 19
    assert planner.latest(at(30, 5, 9)) == at(30, 5, 19)
    orders.queues["orders", 2].max_offset = 20
    planner.prepare_available_now()
    assert planner.latest(at(30, 5, 19)) == at(30, 5, 20), "a run that ends does not wait"


def test_a_batch_is_limited_by_bytes(make: Callable[..., StreamPlanner], cluster: FakeCluster) -> None:
    cluster.add_topic("orders", queues=2)
    for number in range(40):
        cluster.put("orders", number % 2, b"x" * (10_000 if number % 2 else 100))
    planner = make(startingOffsets="earliest", maxBytesPerTrigger=50_000)
    start = planner.initial()
    end = planner.latest(start)
    assert 4 <= end["orders"]["broker-a"]["1"] <= 5
    assert 0 < end["orders"]["broker-a"]["0"] <= 20
    single = make(startingOffsets="earliest", maxBytesPerTrigger=1)
    assert sum(single.latest(start)["orders"]["broker-a"].values()) == 1, (
        "a message larger than the limit is read alone"
    )


def test_messages_that_expired_do_not_lift_the_limit_of_bytes(
    make: Callable[..., StreamPlanner], cluster: FakeCluster
) -> None:
    cluster.add_topic("orders")
    for _ in range(40):
        cluster.put("orders", 0, b"x" * 10_000)
    queue = cluster.queues["orders", 0]
    queue.min_offset = 10
    planner = make(failOnDataLoss="false", maxBytesPerTrigger=50_000)
    assert 14 <= planner.latest(at(0))["orders"]["broker-a"]["0"] <= 16, "the first ten take no part of the limit"
    queue.min_offset = 40
    assert planner.latest(at(0)) == at(40), "nothing is left to read"
    cluster.broker_ids, queue.min_offset = (1,), 10
    assert 4 <= planner.latest(at(0))["orders"]["broker-a"]["0"] <= 6, "the master may have what a slave lacks"


def test_a_run_of_available_now_ends_at_what_was_there(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    planner = make(startingOffsets="earliest", maxOffsetsPerTrigger=20)
    planner.prepare_available_now()
    orders.queues["orders", 0].max_offset = 500
    orders.add_topic("orders", queues=4)
    orders.queues["orders", 0] = attrs.evolve(orders.queues["orders", 0], min_offset=10, max_offset=500)
    orders.queues["orders", 1].max_offset = 5
    orders.queues["orders", 3].max_offset = 7
    position = at(10, 0, 0)
    for _ in range(5):
        position = planner.latest(position)
    assert position == at(30, 5, 0), "neither later messages nor a later queue"


def test_a_new_queue_is_read_from_its_first_message_and_recorded_before(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(startingOffsets="earliest")
    start = planner.latest(planner.initial())
    del orders.queues["orders", 2]
    orders.queues["orders", 2] = attrs.evolve(orders.queues["orders", 1], min_offset=0, max_offset=0)
    orders.add_topic("orders", queues=0)
    orders.queues["orders", 3] = attrs.evolve(orders.queues["orders", 1], min_offset=40, max_offset=60)
    end = planner.latest(start)
    assert end == at(30, 5, 0, 40)
    assert planner.ranges(start, end) == []
    last = planner.latest(end)
    assert rows(planner, end, last) == [(3, 40, 60)]


def test_a_new_topic_is_read_from_its_first_message(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    start = make(startingOffsets="earliest").latest(at(10, 0, 0))
    orders.add_topic("refunds")
    orders.queues["refunds", 0].max_offset = 4
    planner = make(topic="orders,refunds")
    end = planner.latest(start)
    assert end == start | at(0, topic="refunds")
    assert planner.latest(end) == start | at(4, topic="refunds")
    assert make().latest(end) == end, "a topic that is not read any more keeps its offset"


def test_a_stream_of_a_pattern_finds_topics_that_are_made_later(
    make: Callable[..., StreamPlanner], cluster: FakeCluster
) -> None:
    planner = make(topic="", topicPattern="orders-.*", startingOffsets="earliest")
    start = planner.initial()
    assert start == planner.latest(start) == {}
    cluster.add_topic("orders-eu")
    cluster.queues["orders-eu", 0].max_offset = 4
    cluster.add_topic("refunds")
    recorded = planner.latest(start)
    assert recorded == at(0, topic="orders-eu")
    end = planner.latest(recorded)
    assert end == at(4, topic="orders-eu")
    assert rows(planner, recorded, end) == [(0, 0, 4)]


def test_a_stream_reads_assigned_queues_only(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    planner = make(topic="", assign='{"orders": {"broker-a": [1]}}', startingOffsets="earliest")
    start = planner.initial()
    assert start == {"orders": {"broker-a": {"1": 0}}}
    assert planner.latest(start) == {"orders": {"broker-a": {"1": 5}}}


def routes_have_queues(cluster: FakeCluster, count: int) -> None:
    """Let the nameserver leave out the queues from ``count`` on."""
    queues = [QueueData(cluster.broker, count, count, cluster.perm)]
    brokers = [BrokerData("c", cluster.broker, {0: cluster.address})]
    body = TopicRouteData(queue_datas=queues, broker_datas=brokers).to_bytes()

    def script(request: Command) -> Command | None:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return None
        return request.answer(ResponseCode.SUCCESS, body=body)

    cluster.script = script


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"orders": {"broker-a": {"2": 0}}}'},
        {"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"2": 1000}}}'},
        {"topic": "", "assign": '{"orders": {"broker-a": [0, 1, 2]}}', "startingOffsets": "earliest"},
    ],
    ids=["offsets", "times", "assign"],
)
def test_a_named_queue_that_leaves_the_route_keeps_its_offset(
    make: Callable[..., StreamPlanner], orders: FakeCluster, options: dict[str, str]
) -> None:
    planner = make(**options)
    start = planner.initial()
    orders.queues["orders", 1].max_offset = 8
    routes_have_queues(orders, 2)
    for again in (planner, make(**options)):  # the restarted query reads the same checkpoint
        again.latest(start)
        assert again.latest(start) == at(30, 8, 0)
    restarted = make(**options)
    restarted.prepare_available_now()
    assert restarted.latest(start) == at(30, 8, 0)
    orders.script = lambda request: None
    orders.queues["orders", 2].max_offset = 3
    assert make(**options).latest(start) == at(30, 8, 3), "it is read once it is back"


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize(
    "topics", [{"topic": "orders,refunds"}, {"topic": "", "topicPattern": "orders|refunds"}], ids=["names", "pattern"]
)
def test_a_running_stream_keeps_the_offsets_of_a_deleted_topic_and_reads_others(
    make: Callable[..., StreamPlanner], orders: FakeCluster, topics: dict[str, str], fail_on_data_loss: str
) -> None:
    orders.add_topic("refunds")
    orders.queues["refunds", 0].max_offset = 5
    planner = make(startingOffsets="earliest", failOnDataLoss=fail_on_data_loss, groupId="dashboard", **topics)
    start = planner.latest(planner.initial())
    for number in range(3):
        del orders.queues["orders", number]
    orders.queues["refunds", 0].max_offset = 9
    with capture_logs() as logs:
        end = planner.latest(start)
    assert end == at(30, 5, 0) | at(9, topic="refunds")
    assert [(item.queue.topic, item.start, item.end) for item in planner.ranges(start, end)] == [("refunds", 5, 9)]
    assert not logs
    orders.committed.clear()
    orders.queues["refunds", 0].max_offset = 12
    planner.prepare_available_now()
    assert planner.latest(end) == at(30, 5, 0) | at(12, topic="refunds")
    assert orders.committed == {("dashboard", "refunds", 0): 9}, "offsets are committed only for queues in the route"


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize(
    ("topics", "reason"),
    [({}, "'orders' is not known"), ({"topic": "", "topicPattern": "ord.*"}, "no nameserver lists a topic")],
)
def test_a_running_stream_fails_after_a_while_if_its_only_topic_was_deleted(
    make: Callable[..., StreamPlanner],
    orders: FakeCluster,
    clock: Clock,
    topics: dict[str, str],
    reason: str,
    fail_on_data_loss: str,
) -> None:
    planner = make(startingOffsets="earliest", failOnDataLoss=fail_on_data_loss, **topics)
    start = planner.latest(planner.initial())
    orders.queues.clear()
    for clock.now in (100.0, 159.0):
        assert planner.latest(start) == start
    clock.now = 160.0
    with pytest.raises(UnknownTopic, match=reason):
        planner.latest(start)


def test_a_running_stream_reads_each_message_once_after_its_broker_got_another_name(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    """The address of the old name answers for the new one."""
    planner = make(startingOffsets="earliest")
    position = planner.latest(planner.initial())
    orders.broker = "broker-b"
    position = planner.latest(position)
    orders.queues["orders", 0].max_offset = 50
    end = planner.latest(position)
    assert end["orders"]["broker-a"] == {"0": 30, "1": 5, "2": 0}
    found = [(item.queue.broker, item.queue.queue_id, item.start, item.end) for item in planner.ranges(position, end)]
    assert found == [("broker-b", 0, 10, 50), ("broker-b", 1, 0, 5)]


def test_a_queue_that_became_shorter_is_no_data_loss_until_a_nameserver_lists_it(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(startingOffsets="earliest")
    start = planner.latest(planner.initial())
    silence(orders, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    orders.queues["orders", 0].max_offset, orders.queues["orders", 1].max_offset = 0, 8
    end = planner.latest(start)
    assert end == at(30, 8, 0)
    orders.script = lambda request: None
    with pytest.raises(DataLoss, match="orders broker-a queue 0 was read up to offset 30, but ends at 0"):
        planner.latest(end)


def test_a_restarted_stream_refuses_an_assigned_queue_that_it_never_knew(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(topic="", assign='{"orders": {"broker-a": [1, 7]}}')
    with pytest.raises(WrongOption, match="assign: orders has no queue 7 on 'broker-a'; its brokers: broker-a"):
        planner.latest({"orders": {"broker-a": {"1": 0}}})


def test_a_topic_that_no_broker_serves_keeps_its_offsets_and_others_are_read(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    known = at(10, 0, 0) | at(4, topic="absent")
    planner = make(topic="absent,orders", startingOffsets="earliest")
    assert planner.latest(known) == at(30, 5, 0) | at(4, topic="absent")
    clock.now = 100.0
    assert planner.latest(known) == at(30, 5, 0) | at(4, topic="absent")
    unknown = make(topic="absent,orders")
    assert unknown.latest(at(10, 0, 0)) == at(10, 0, 0)
    clock.now = 200.0
    with pytest.raises(UnknownTopic, match="'absent' is not known"):
        unknown.latest(at(10, 0, 0))


def test_a_queue_that_became_shorter_is_data_loss(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    orders.queues["orders", 0].max_offset = 20
    with pytest.raises(DataLoss, match="orders broker-a queue 0 was read up to offset 30, but ends at 20"):
        make().latest(at(30, 5, 0))
    with capture_logs() as logs:
        planner = make(failOnDataLoss="false")
        end = planner.latest(at(30, 5, 0))
    assert end == at(20, 5, 0)
    assert planner.ranges(at(30, 5, 0), end) == []
    assert [(entry["event"], entry["lost"]) for entry in logs] == [("messages_lost", 10)]
    orders.queues["orders", 0].max_offset = 25
    assert rows(planner, end, planner.latest(end)) == [(0, 20, 25)]


def test_a_queue_that_became_shorter_continues_at_its_end_also_while_a_batch_waits(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(startingOffsets="earliest", minOffsetsPerTrigger=10, failOnDataLoss="false")
    start = planner.latest(planner.initial())
    assert start == at(30, 5, 0)
    orders.queues["orders", 0].max_offset = 20
    end = planner.latest(start)
    assert end == at(20, 5, 0)
    orders.queues["orders", 0].max_offset = 40
    assert rows(planner, end, planner.latest(end)) == [(0, 20, 40)]


def test_a_slave_that_is_behind_is_no_data_loss(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    orders.broker_ids = (1,)
    orders.queues["orders", 0].max_offset = 20
    planner = make()
    assert planner.latest(at(30, 5, 0)) == at(30, 5, 0)
    orders.queues["orders", 0].max_offset = 31
    assert planner.latest(at(30, 5, 0)) == at(31, 5, 0)


def test_new_queues_wait_for_their_master_while_only_a_slave_answers(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    """The slave may have only the newest messages."""
    orders.broker_ids = (1,)
    orders.queues["orders", 0].min_offset = 25
    planner = make(startingOffsets='{"orders": {"broker-a": {"1": 2}}}')
    with capture_logs() as logs:
        start = planner.latest(planner.initial())
        end = planner.latest(start)
    assert start == end == {"orders": {"broker-a": {"1": 5}}}, "a given offset needs no master"
    assert [(entry["event"], entry["broker"]) for entry in logs] == [("stream_queues_wait_for_master", "broker-a")]
    orders.broker_ids = (0,)
    orders.queues["orders", 0].min_offset = 10
    recorded = planner.latest(end)
    assert recorded == at(10, 5, 0)
    assert rows(planner, recorded, planner.latest(recorded)) == [(0, 10, 30)]


def test_a_start_by_time_before_the_beginning_of_a_slave_waits_for_the_master(
    make: Callable[..., StreamPlanner], cluster: FakeCluster, clock: Clock
) -> None:
    """The master may have older messages that were stored since that time."""
    cluster.add_topic("orders")
    for number in range(10):
        cluster.put("orders", 0, b"x", store_timestamp=1000 + number)
    queue = cluster.queues["orders", 0]
    cluster.broker_ids, queue.min_offset = (1,), 4
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 from offset 4 on only"):
        make(startingTimestamp=1004).initial()
    assert clock.now == 60.0
    assert make(startingTimestamp=1005).initial() == at(5), "the slave has an older message"
    cluster.broker_ids, queue.min_offset = (0,), 0
    assert make(startingTimestamp=1002).initial() == at(2)


def silence(cluster: FakeCluster, *codes: RequestCode) -> None:
    cluster.script = lambda request: b"" if request.code in codes else None


def test_a_broker_that_does_not_answer_keeps_its_offsets_for_a_while(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    planner = make(startingOffsets="earliest", retrySeconds=60)
    start = planner.latest(planner.initial())
    silence(orders, RequestCode.GET_MAX_OFFSET)
    orders.queues["orders", 1].max_offset = 8
    with capture_logs() as logs:
        for clock.now in (100.0, 130.0, 159.0):
            assert planner.latest(start) == start
    assert [entry["event"] for entry in logs] == ["stream_broker_unreachable"]
    orders.script = lambda request: None
    clock.now = 159.5
    assert planner.latest(start) == at(30, 8, 0)
    silence(orders, RequestCode.GET_MAX_OFFSET)
    clock.now = 200.0
    planner.latest(start)
    clock.now = 260.0
    with pytest.raises(Unreachable, match="no answer from"):
        planner.latest(start)


def test_a_stream_runs_on_while_no_nameserver_answers(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    planner = make(startingOffsets="earliest")
    start = planner.latest(planner.initial())
    silence(orders, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    for clock.now in (100.0, 1000.0):
        orders.queues["orders", 1].max_offset += 1
        assert planner.latest(start)["orders"]["broker-a"]["1"] == orders.queues["orders", 1].max_offset
    restarted = make()
    assert restarted.latest(start) == start
    clock.now = 1060.0
    with pytest.raises(Unreachable, match="no nameserver answers"):
        restarted.latest(start)


def test_a_topic_that_is_gone_fails_the_stream_after_a_while(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    planner = make()
    orders.queues.clear()
    assert planner.latest(at(30, 5, 0)) == at(30, 5, 0)
    clock.now = 61.0
    with pytest.raises(UnknownTopic, match="'orders' is not known"):
        planner.latest(at(30, 5, 0))


def test_a_start_waits_for_the_cluster(make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock) -> None:
    planner = make(startingOffsets="earliest", retrySeconds=10)

    def script(request: Command) -> bytes | None:
        return b"" if clock.now < 5 and request.code == RequestCode.GET_MAX_OFFSET else None

    orders.script = script
    assert planner.initial() == at(10, 0, 0)
    assert clock.now == 5.0
    silence(orders, RequestCode.GET_MAX_OFFSET)
    with pytest.raises(Unreachable):
        planner.prepare_available_now()
    assert clock.now == 15.0


def test_a_restart_waits_while_a_restarted_nameserver_has_no_topics(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    ready = 5.0

    def script(request: Command) -> Command | None:
        if clock.now >= ready or request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return None
        return request.answer(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")

    orders.script = script
    assert rows(make(retrySeconds=60), at(20, 5, 0), at(30, 5, 0)) == [(0, 20, 30)]
    assert clock.now == ready
    ready = 10.0
    planner = make(retrySeconds=60)
    planner.prepare_available_now()
    assert clock.now == ready
    assert planner.latest(at(20, 5, 0)) == at(30, 5, 0)
    ready = 100.0
    with pytest.raises(UnknownTopic):
        make(retrySeconds=60).initial()
    assert clock.now == 10.0, "a topic that does not exist is a mistake in a first start"
    with pytest.raises(UnknownTopic):
        make(retrySeconds=60).prepare_available_now()
    assert clock.now == 70.0


def test_a_batch_that_was_begun_needs_its_queues(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    del orders.queues["orders", 2]
    with pytest.raises(Unreachable, match="orders broker-a queue 2 has messages of a batch that was begun"):
        make(retrySeconds=1).ranges(at(30, 5, 0), at(30, 5, 4))
    assert make().ranges(at(30, 5, 0), at(30, 5, 0)) == []


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_batch_that_was_begun_has_the_messages_of_a_topic_that_is_not_read_any_more(
    make: Callable[..., StreamPlanner], orders: FakeCluster, fail_on_data_loss: str
) -> None:
    orders.add_topic("refunds")
    orders.queues["refunds", 0].max_offset = 9
    planner = make(topic="refunds", retrySeconds=1, failOnDataLoss=fail_on_data_loss)
    start, end = at(20, 5, 0) | at(5, topic="refunds"), at(30, 5, 0) | at(9, topic="refunds")
    with capture_logs() as logs:
        found = [(item.queue.topic, item.start, item.end) for item in planner.ranges(start, end)]
    assert sorted(found) == [("orders", 20, 30), ("refunds", 5, 9)]
    assert not logs
    orders.queues["orders", 1].max_offset = 8
    assert planner.latest(end) == end, "later batches do not read it"


def test_a_batch_that_was_begun_goes_on_without_a_queue_that_was_deleted_if_data_loss_is_allowed(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    del orders.queues["orders", 2]
    planner = make(retrySeconds=10, failOnDataLoss="false")
    with capture_logs() as logs:
        assert rows(planner, at(20, 5, 0), at(30, 5, 4)) == [(0, 20, 30)]
    assert [(entry["event"], entry["queue_id"], entry["wanted"], entry["lost"]) for entry in logs] == [
        ("messages_lost", 2, 0, 4)
    ]
    assert clock.now == 10.0, "it may come back"
    silence(orders, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    with pytest.raises(Unreachable, match="no nameserver answers"):
        planner.ranges(at(20, 5, 0), at(30, 5, 4))
    orders.script = lambda request: None
    orders.queues.clear()
    with pytest.raises(UnknownTopic):
        planner.ranges(at(20, 5, 0), at(30, 5, 4))


def test_offsets_are_committed_for_the_group_and_failures_are_logged(
    make: Callable[..., StreamPlanner], orders: FakeCluster
) -> None:
    planner = make(startingOffsets="earliest", groupId="dashboard")
    end = planner.latest(planner.initial())
    assert not orders.committed, "no pull has made the group yet"
    planner.commit(end)
    assert orders.committed == {("dashboard", "orders", 0): 30, ("dashboard", "orders", 1): 5}
    orders.committed.clear()
    make(groupId="dashboard").latest(end)
    assert orders.committed[("dashboard", "orders", 0)] == 30, "Spark does not report a run's last batch"
    asked = len(orders.requests)
    planner.commit(end)
    assert len(orders.requests) == asked, "unchanged offsets are not committed again"
    orders.script = lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "no")
    with capture_logs() as logs:
        planner.commit(at(30, 9, 0))
    assert [(entry["event"], entry["group"]) for entry in logs] == [("stream_offsets_not_committed", "dashboard")]
    orders.committed.clear()
    orders.script = lambda request: None
    silent = make(startingOffsets="earliest")
    silent.commit(silent.initial())
    assert not orders.committed


class TwoBrokers(Wire):
    """The master of ``broker-a`` fails with ``error``; the queues of both end at 50, those of a slave at ``slave_end``.

    Both have a slave if ``slave_end`` is given.
    """

    def __init__(self, error: SparkError | None = None, slave_end: int | None = None) -> None:
        super().__init__()
        self.error = error
        self.slave_end = slave_end
        self.asked: list[str] = []
        self.pulls: list[str] = []
        self.commits: list[tuple[str, int, int]] = []

    def find_queues(self, nameservers: object, topic: str) -> list[Queue]:
        brokers = ("broker-a", "broker-b")
        return [
            Queue(topic, broker, queue_id, f"{broker}:1", () if self.slave_end is None else (f"{broker}-slave:1",))
            for broker in brokers
            for queue_id in (0, 1)
        ]

    def _answer(self, queue: Queue) -> None:
        self.asked.append(queue.address.partition(":")[0])
        if self.error is not None and queue.address == "broker-a:1":
            raise self.error

    def find_end(self, queue: Queue) -> int:
        self._answer(queue)
        return self.slave_end if queue.is_slave and self.slave_end is not None else 50

    def find_bounds(self, queue: Queue) -> tuple[int, int]:
        return 0, self.find_end(queue)

    def pull(self, queue: Queue, offset: int, *options: object, **more: object) -> Pulled:
        self._answer(queue)
        self.pulls.append(queue.address)
        return Pulled(ResponseCode.PULL_NOT_FOUND, offset, 0, 50, b"")

    def commit(self, queue: Queue, group: str, offset: int) -> None:
        self._answer(queue)
        self.commits.append((queue.broker, queue.queue_id, offset))


def of_two(first: int, second: int) -> dict[str, Any]:
    return {"orders": {"broker-a": {"0": first, "1": first}, "broker-b": {"0": second, "1": second}}}


SILENT = Unreachable("broker-a is silent")
FORBIDDEN = Refused("broker-a:1", "the last offset", ResponseCode.NO_PERMISSION, "no")


@pytest.fixture
def of_both(clock: Clock) -> Callable[..., StreamPlanner]:
    def make(wire: TwoBrokers, **options: str) -> StreamPlanner:
        given = read_stream_options({"nameserver": "h:1", "topic": "orders"} | options)
        return StreamPlanner(given, wire, clock, clock.sleep)

    return make


@pytest.mark.parametrize(("error", "asked"), [(SILENT, 1), (FORBIDDEN, 2)])
def test_offsets_of_other_brokers_are_committed_when_one_fails(
    of_both: Callable[..., StreamPlanner], error: SparkError, asked: int
) -> None:
    wire = TwoBrokers()
    planner = of_both(wire, groupId="dashboard")
    planner.latest(of_two(10, 10))
    wire.error = error
    wire.asked.clear()
    wire.commits.clear()
    with capture_logs() as logs:
        planner.commit(of_two(20, 20))
    assert wire.commits == [("broker-b", 0, 20), ("broker-b", 1, 20)]
    assert wire.asked.count("broker-a") == asked, "a broker that does not answer is asked once"
    assert [(entry["event"], entry["broker"]) for entry in logs] == [("stream_offsets_not_committed", "broker-a:1")]
    wire.error = None
    planner.commit(of_two(20, 20))
    assert wire.commits[2:] == [("broker-a", 0, 20), ("broker-a", 1, 20)]


@pytest.mark.parametrize("error", [SILENT, FORBIDDEN])
def test_queues_of_other_brokers_are_read_while_one_refuses_or_is_silent(
    of_both: Callable[..., StreamPlanner], clock: Clock, error: SparkError
) -> None:
    wire = TwoBrokers(error)
    planner = of_both(wire)
    with capture_logs() as logs:
        for clock.now in (0.0, 100.0, 200.0):
            assert planner.latest(of_two(10, 10)) == of_two(10, 50)
    assert [(entry["event"], entry["broker"]) for entry in logs] == [("stream_broker_unreachable", "broker-a:1")]
    only_b = {"orders": {"broker-b": {"0": 10, "1": 10}}}
    assert planner.latest(only_b) == {"orders": {"broker-b": {"0": 50, "1": 50}}}, "new queues wait for their broker"
    wire.error = None
    assert planner.latest(of_two(10, 10)) == of_two(50, 50)


@pytest.mark.parametrize("slave_end", [50, 40])
def test_slaves_are_asked_while_the_route_lists_a_silent_master(
    of_both: Callable[..., StreamPlanner], clock: Clock, slave_end: int
) -> None:
    wire = TwoBrokers(SILENT, slave_end)
    planner = of_both(wire, groupId="dashboard", maxBytesPerTrigger="1000000")
    for clock.now in (0.0, 100.0, 200.0):
        wire.asked.clear()
        end = planner.latest(of_two(10, 50))
        assert end == of_two(slave_end, 50)
        assert wire.asked.count("broker-a") == 1, "the silent master is asked once"
    assert {item.queue.address for item in planner.ranges(of_two(10, 50), end)} == {"broker-a-slave:1"}
    assert planner.latest(of_two(45, 50)) == of_two(max(slave_end, 45), 50), "a slave may be behind"
    only_b = {"orders": {"broker-b": {"0": 50, "1": 50}}}
    with capture_logs() as logs:
        assert planner.latest(only_b) == only_b, "new queues wait for their master"
    assert [(entry["event"], entry["broker"]) for entry in logs] == [("stream_queues_wait_for_master", "broker-a")]
    assert {broker for broker, _, _ in wire.commits} == {"broker-b"}
    wire.error = None
    assert planner.latest(of_two(10, 50)) == of_two(50, 50)
    assert planner.latest(only_b) == {"orders": {"broker-a": {"0": 0, "1": 0}, "broker-b": {"0": 50, "1": 50}}}


class RefusingSlaves(TwoBrokers):
    """The slaves tell offsets, and serve no pulls: as those of RocketMQ 5 without slaveReadEnable."""

    def pull(self, queue: Queue, offset: int, *options: object, **more: object) -> Pulled:
        answer = super().pull(queue, offset, *options, **more)
        if queue.is_slave:
            raise Unreachable(f"{queue.address} is busy")
        return answer


def test_no_batch_is_planned_on_a_slave_that_serves_no_pulls(of_both: Callable[..., StreamPlanner]) -> None:
    planner = of_both(RefusingSlaves(SILENT, slave_end=50))
    with capture_logs() as logs:
        assert planner.latest(of_two(10, 10)) == of_two(10, 50)
    assert {entry["broker"] for entry in logs} == {"broker-a:1", "broker-a-slave:1"}


@pytest.mark.parametrize(("kind", "read"), [(RefusingSlaves, 10), (TwoBrokers, 50)])
def test_a_slave_is_asked_for_a_message_once_in_a_while(
    of_both: Callable[..., StreamPlanner], clock: Clock, kind: type[TwoBrokers], read: int
) -> None:
    """A slave that refuses may be asked for long, and each batch would wait for it."""
    wire = kind(SILENT, slave_end=50)
    planner = of_both(wire)
    with capture_logs() as logs:
        for clock.now in (0.0, 5.0, 10.0):
            assert planner.latest(of_two(10, 10)) == of_two(read, 50)
    assert wire.pulls == ["broker-a-slave:1"]
    assert len(logs) == len({entry["broker"] for entry in logs}), "each broker is logged once"
    clock.now = 40.0
    planner.latest(of_two(10, 10))
    assert wire.pulls == ["broker-a-slave:1"] * 2, "a slave may have been configured anew"


def test_a_begun_batch_that_is_split_by_bytes_asks_the_slaves_of_a_silent_master(
    of_both: Callable[..., StreamPlanner], clock: Clock
) -> None:
    wire = TwoBrokers(SILENT, slave_end=50)
    planner = of_both(wire, maxBytesPerPartition="1000")
    ranges = planner.ranges(of_two(10, 10), of_two(50, 50))
    assert [(item.queue.broker, item.start, item.end) for item in ranges] == [
        (broker, 10, 50) for broker in ("broker-a", "broker-a", "broker-b", "broker-b")
    ]
    assert clock.now == 0.0
    wire.slave_end = 40
    with pytest.raises(Unreachable, match="broker-a is silent; broker-a-slave:1, a slave, has orders broker-a queue 0"):
        planner.ranges(of_two(10, 10), of_two(50, 50))


def test_a_run_of_available_now_asks_the_slaves_of_a_silent_master(
    of_both: Callable[..., StreamPlanner], clock: Clock
) -> None:
    planner = of_both(TwoBrokers(SILENT, slave_end=40))
    planner.prepare_available_now()
    assert clock.now == 0.0
    assert planner.latest(of_two(10, 10)) == of_two(40, 50)


@pytest.mark.parametrize(("error", "waited"), [(SILENT, 60.0), (FORBIDDEN, 0.0)])
def test_a_run_of_available_now_goes_on_without_a_broker_that_does_not_answer(
    of_both: Callable[..., StreamPlanner], clock: Clock, error: SparkError, waited: float
) -> None:
    wire = TwoBrokers(error)
    planner = of_both(wire)
    planner.prepare_available_now()
    assert clock.now == waited, "a broker that may come back is waited for"
    assert planner.latest(of_two(10, 10)) == of_two(10, 50)
    wire.error = None
    assert planner.latest(of_two(10, 50)) == of_two(10, 50), "what the next run reads"
    planner.prepare_available_now()
    assert planner.latest(of_two(10, 50)) == of_two(50, 50)


def test_a_first_start_waits_for_a_busy_broker(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "BUSY_PAUSES_SECONDS", ())
    orders.busy = 2
    assert make(startingOffsets="earliest").initial() == at(10, 0, 0)
    assert clock.now == 1.0
    orders.busy = 1000
    with pytest.raises(Unreachable, match="broker busy"):
        make().initial()


def test_the_last_known_ends_are_reported(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    planner = make(startingOffsets="earliest", maxOffsetsPerTrigger=1)
    assert planner.report() is None
    planner.latest(planner.initial())
    assert planner.report() == at(30, 5, 0)


def test_large_batches_are_split(make: Callable[..., StreamPlanner], orders: FakeCluster) -> None:
    planner = make(minPartitions=5)
    assert rows(planner, at(10, 0, 0), at(30, 5, 0)) == [(0, 10, 15), (0, 15, 20), (0, 20, 25), (0, 25, 30), (1, 0, 5)]


def test_offsets_have_one_text(make: Callable[..., StreamPlanner]) -> None:
    offsets = {("t", "b", number): number for number in range(12)}
    mixed = list(offsets.items())
    random.Random(7).shuffle(mixed)
    text = json.dumps(pack(dict(mixed)))
    assert text == json.dumps(pack(offsets))
    assert unpack(json.loads(text)) == offsets


@pytest.mark.parametrize("packed", [{"offset": 3}, {"t": {"b": {"x": 1}}}, {"t": {"b": {"0": "y"}}}])
def test_a_checkpoint_of_another_source_is_named(make: Callable[..., StreamPlanner], packed: dict[str, Any]) -> None:
    with pytest.raises(WrongOption, match="the checkpoint is of another source"):
        make().latest(packed)


def test_twelve_hours_of_batches_read_every_message_once(
    make: Callable[..., StreamPlanner], orders: FakeCluster, clock: Clock
) -> None:
    """A trigger every minute for 12 hours, with restarts, queues that come, and a broker that is away now and then."""
    chance = random.Random(19)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40, "minPartitions": 4, "retrySeconds": 600}
    planner = make(**options)
    position = start = planner.initial()
    read: dict[int, list[tuple[int, int]]] = {}
    for number in range(12 * 60):
        clock.now += 60.0
        for queue in orders.queues.values():
            queue.max_offset += chance.randrange(12)
        if number % 200 == 100:
            orders.add_topic("more", queues=0)
            orders.queues["orders", len(orders.queues)] = attrs.evolve(orders.queues["orders", 1], max_offset=0)
        if number % 100 == 50:
            planner = make(**options)
        silence(orders, *([RequestCode.GET_MAX_OFFSET] if number % 60 in (10, 11, 12) else []))
        end = planner.latest(position)
        for queue_id, first, until in rows(planner, position, end):
            read.setdefault(queue_id, []).append((first, until))
        position = end
    orders.script = lambda request: None
    last = planner.latest(position, read_all=True)
    for queue_id, first, until in rows(planner, position, last):
        read.setdefault(queue_id, []).append((first, until))
    for (_, queue_id), queue in orders.queues.items():
        begin = start["orders"]["broker-a"].get(str(queue_id), 0)
        pieces = sorted(read[queue_id])
        assert [first for first, _ in pieces] == [begin, *(until for _, until in pieces[:-1])]
        assert pieces[-1][1] == queue.max_offset
