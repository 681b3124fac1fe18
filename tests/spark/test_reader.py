from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from structlog.testing import capture_logs

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.spark import reader as reader_module
from gantrymq.spark import wire as wire_module
from gantrymq.spark.errors import BrokenRecord, DataLoss, Refused, Unreachable
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import Pulled, Queue, Wire

if TYPE_CHECKING:
    from conftest import FakeCluster

pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    cluster.add_topic("orders")
    for number in range(10):
        cluster.put("orders", 0, b"body %d" % number)
    return cluster


def read(cluster: FakeCluster, wire: Wire, start: int, end: int, fail: bool = True) -> list[int]:
    options = read_options(
        {"nameserver": cluster.address, "topic": "orders", "failOnDataLoss": "true" if fail else "false"}
    )
    wanted = QueueRange(Queue("orders", "broker-a", 0, cluster.address), start, end)
    batches = list(read_range(wire, wanted, options, ["queueOffset", "body"]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(row["body"] == b"body %d" % row["queueOffset"] for row in rows)
    return [row["queueOffset"] for row in rows]


@pytest.mark.parametrize("pull_rows", [1, 3, 100])
@pytest.mark.parametrize(("start", "end"), [(0, 10), (2, 9), (9, 10), (4, 4)])
def test_a_range_is_read_exactly(orders: FakeCluster, wire: Wire, pull_rows: int, start: int, end: int) -> None:
    orders.pull_rows = pull_rows
    assert read(orders, wire, start, end) == list(range(start, end))


def test_batches_are_cut_by_rows_and_by_bytes(orders: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    options = read_options({"nameserver": orders.address, "topic": "orders"})
    wanted = QueueRange(Queue("orders", "broker-a", 0, orders.address), 0, 10)
    monkeypatch.setattr(reader_module, "BATCH_ROWS", 4)
    assert [batch.num_rows for batch in read_range(wire, wanted, options, ["body"])] == [6, 4]
    monkeypatch.setattr(reader_module, "BATCH_BYTES", 10)
    assert [batch.num_rows for batch in read_range(wire, wanted, options, ["body"])] == [2, 2, 2, 2, 2]


def test_a_batch_of_compressed_messages_is_cut_by_the_bytes_of_their_bodies(
    cluster: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull of some KiB would otherwise become a batch of any size."""
    monkeypatch.setattr(reader_module, "BATCH_BYTES", 1 << 20)
    cluster.add_topic("orders")
    cluster.pull_rows = 32
    for _ in range(40):
        cluster.put("orders", 0, zlib.compress(bytes(1 << 19)), sys_flag=1)
    options = read_options({"nameserver": cluster.address, "topic": "orders"})
    wanted = QueueRange(Queue("orders", "broker-a", 0, cluster.address), 0, 39)
    batches = list(read_range(wire, wanted, options, ["queueOffset", "body"]))
    assert [batch.num_rows for batch in batches] == [2] * 19 + [1]
    assert [offset for batch in batches for offset in batch["queueOffset"].to_pylist()] == list(range(39))
    del cluster.queues["orders", 0].records[5]
    with pytest.raises(DataLoss, match=r"offset 4 is wanted.*\(1 of them"):
        list(read_range(wire, wanted, options, ["queueOffset", "body"]))
    with capture_logs() as logs:
        lossy = attrs.evolve(options, fail_on_data_loss=False)
        batches = list(read_range(wire, wanted, lossy, ["queueOffset", "body"]))
    assert sum(batch.num_rows for batch in batches) == 38
    assert [(entry["wanted"], entry["lost"]) for entry in logs] == [(4, 1)]


def test_bodies_that_cannot_be_read_fail_the_read_or_are_null_and_logged(
    cluster: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "BAD_BODIES_LOGGED", 2)
    cluster.add_topic("orders")
    for _ in range(101):
        cluster.put("orders", 0, b"not zlib", sys_flag=1)
    cluster.put("orders", 0, b"good")
    given = {"nameserver": cluster.address, "topic": "orders"}
    wanted = QueueRange(Queue("orders", "broker-a", 0, cluster.address), 0, 102)
    with pytest.raises(BrokenRecord, match="offset 0: a zlib body cannot be unpacked"):
        list(read_range(wire, wanted, read_options(given), ["body"]))
    assert sum(batch.num_rows for batch in read_range(wire, wanted, read_options(given), ["tags"])) == 102
    with capture_logs() as logs:
        batches = list(read_range(wire, wanted, read_options(given | {"badBodies": "null"}), ["body"]))
    assert [body for batch in batches for body in batch["body"].to_pylist()] == [None] * 101 + [b"good"]
    assert {entry["event"] for entry in logs} == {"body_not_readable"}
    where = [(entry["topic"], entry["broker"], entry["queue_id"], entry["queue_offset"]) for entry in logs]
    assert where == [("orders", "broker-a", 0, offset) for offset in (0, 1, 9, 99)], "the 10th and the 100th as well"


def test_a_task_reads_on_from_a_slave_and_waits_until_it_has_copied_the_messages(
    orders: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "RETRY_PAUSE_SECONDS", 0.01)
    silent = "127.0.0.1:1"
    options = read_options({"nameserver": silent, "topic": "orders", "retrySeconds": "60"})
    asked = 0

    def copy_later(request: Command) -> None:
        nonlocal asked
        asked += request.code == RequestCode.PULL_MESSAGE and request.ext["queueOffset"] == "10"
        if asked == 3 and orders.queues["orders", 0].max_offset == 10:
            for number in (10, 11):
                orders.put("orders", 0, b"body %d" % number)

    orders.script = copy_later
    wanted = QueueRange(Queue("orders", "broker-a", 0, silent, slaves=(orders.address,)), 0, 12)
    batches = list(read_range(wire, wanted, options, ["queueOffset"]))
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(12))
    assert asked == 3
    alone = QueueRange(Queue("orders", "broker-a", 0, silent), 0, 12)
    with pytest.raises(Unreachable, match=silent):
        list(read_range(wire, alone, attrs.evolve(options, retry_seconds=0), ["queueOffset"]))


def test_a_task_waits_for_its_master_while_the_slave_serves_no_pulls(
    orders: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse as slaves of RocketMQ 5 without slaveReadEnable do, with SYSTEM_BUSY."""
    monkeypatch.setattr(wire_module, "BUSY_PAUSES_SECONDS", ())
    monkeypatch.setattr(reader_module, "RETRY_PAUSE_SECONDS", 0.01)
    hang_ups = [b""] * 2
    orders.script = lambda request: hang_ups.pop() if hang_ups else None
    silent = "127.0.0.1:1"
    options = read_options({"nameserver": silent, "topic": "orders", "retrySeconds": "5"})
    with closing(type(orders)()) as slave:
        slave.busy = 100
        wanted = QueueRange(Queue("orders", "broker-a", 0, orders.address, slaves=(slave.address,)), 0, 10)
        batches = list(read_range(wire, wanted, options, ["queueOffset"]))
        assert slave.requests, "the slave was asked"
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(10))


class MasterAndSlave(Wire):
    """The master answers from its third request on; the slave has the messages from 900 on only."""

    def __init__(self, make_record: Callable[..., bytes]) -> None:
        super().__init__()
        self.asked = 0
        self.make_record = make_record

    def find_queues(self, nameservers: object, topic: str) -> list[Queue]:
        return [Queue(topic, "broker-a", 0, "master:1", slaves=("slave:1",))]

    def pull(self, queue: Queue, offset: int, *_: Any, **__: Any) -> Pulled:
        if queue.is_slave:
            return Pulled(ResponseCode.PULL_OFFSET_MOVED, 900, 900, 1000, b"")
        self.asked += 1
        if self.asked < 3:
            raise Unreachable("master:1 restarts")
        return Pulled(ResponseCode.SUCCESS, offset + 1, 0, 1000, self.make_record("orders", 0, offset, b"x"))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_messages_before_the_beginning_of_a_slave_are_read_from_the_master(
    monkeypatch: pytest.MonkeyPatch, make_record: Callable[..., bytes], fail: str
) -> None:
    monkeypatch.setattr(reader_module, "RETRY_PAUSE_SECONDS", 0.01)
    options = read_options({"nameserver": "h:1", "topic": "orders", "failOnDataLoss": fail})
    wanted = QueueRange(Queue("orders", "broker-a", 0, "master:1", slaves=("slave:1",)), 100, 105)
    with capture_logs() as logs:
        batches = list(read_range(MasterAndSlave(make_record), wanted, options, ["queueOffset"]))
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(100, 105))
    assert not logs


def test_messages_that_expire_while_reading_are_data_loss(orders: FakeCluster, wire: Wire) -> None:
    orders.queues["orders", 0].min_offset = 4
    with pytest.raises(DataLoss, match=r"offset 2 is wanted.*\(2 of them; the queue's min offset is 4"):
        read(orders, wire, 2, 10)


def test_remaining_messages_are_read_if_data_loss_is_allowed(orders: FakeCluster, wire: Wire) -> None:
    orders.queues["orders", 0].min_offset = 4
    with capture_logs() as logs:
        assert read(orders, wire, 2, 10, fail=False) == list(range(4, 10))
    assert [(entry["wanted"], entry["lost"]) for entry in logs] == [(2, 2)]


@pytest.mark.parametrize("more", [{}, {"subExpression": "a"}])
@pytest.mark.parametrize("reset_to", [0, 10])
def test_a_reset_of_the_group_in_rocketmq_5_skips_no_message(
    orders: FakeCluster, wire: Wire, more: dict[str, str], reset_to: int
) -> None:
    """The broker answers one pull with the offset of the reset, whatever offset it was asked for."""
    resets = [reset_to]

    def script(request: Command) -> Command | None:
        if request.code != RequestCode.PULL_MESSAGE or (request.ext or {})["queueOffset"] != "4" or not resets:
            return None
        ext = {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(resets.pop()), "minOffset": "0", "maxOffset": "10",
        }  # fmt: skip
        return request.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext)

    orders.add_topic("orders")  # empty again
    for number in range(10):
        orders.put("orders", 0, b"body %d" % number, properties={"TAGS": "a"})
    orders.pull_rows, orders.script = 4, script
    options = read_options({"nameserver": orders.address, "topic": "orders", "groupId": "lines", **more})
    wanted = QueueRange(Queue("orders", "broker-a", 0, orders.address), 0, 10)
    batches = list(read_range(wire, wanted, options, ["queueOffset"]))
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(10))
    assert not resets


@pytest.mark.parametrize("left", [6, 3])
def test_a_queue_that_became_shorter_is_data_loss(orders: FakeCluster, wire: Wire, left: int) -> None:
    orders.queues["orders", 0].max_offset = left
    with pytest.raises(DataLoss, match=r"messages from there on are gone"):
        read(orders, wire, 5, 10)
    with capture_logs() as logs:
        assert read(orders, wire, 5, 10, fail=False) == list(range(5, left))
    assert sum(entry["lost"] for entry in logs) == 10 - max(left, 5)


def test_a_hole_inside_an_answer_is_data_loss(orders: FakeCluster, wire: Wire) -> None:
    del orders.queues["orders", 0].records[4]
    with pytest.raises(DataLoss, match=r"offset 3 is wanted.*\(1 of them"):
        read(orders, wire, 0, 10)


def test_a_pull_is_repeated_at_once_on_request_of_the_broker(orders: FakeCluster, wire: Wire) -> None:
    retries = [ResponseCode.PULL_RETRY_IMMEDIATELY] * 3

    def script(request: Command) -> Command | None:
        if request.code != RequestCode.PULL_MESSAGE or not retries or request.ext is None:
            return None
        bounds = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "10"}
        return request.answer(retries.pop(), ext=bounds | {"nextBeginOffset": request.ext["queueOffset"]})

    orders.script = script
    assert read(orders, wire, 0, 10) == list(range(10))


@pytest.mark.parametrize("next_offset", [0, -1])
def test_endless_redirections_of_pulls_end_with_an_error(orders: FakeCluster, wire: Wire, next_offset: int) -> None:
    bounds = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "10", "nextBeginOffset": str(next_offset)}
    orders.script = lambda request: request.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, ext=bounds)
    with pytest.raises(Refused, match="returns neither messages nor a new offset"):
        read(orders, wire, 0, 10)


def test_a_refused_pull_has_the_text_of_the_broker(orders: FakeCluster, wire: Wire) -> None:
    orders.script = lambda request: request.answer(ResponseCode.NO_PERMISSION, "the topic is not for reading")
    with pytest.raises(Refused, match=r"a pull of orders broker-a queue 0 at 0: \[16\] the topic is not for reading"):
        read(orders, wire, 0, 10)


def test_a_filtered_read_has_exactly_the_tags_and_counts_only_expired_messages_as_lost(
    cluster: FakeCluster, wire: Wire
) -> None:
    """The broker compares hashes of tags: "Aa" and "BB" have the same one."""
    cluster.add_topic("orders")
    cluster.pull_rows = 4
    for number in range(12):
        cluster.put("orders", 0, b"body %d" % number, properties={"TAGS": ("Aa", "BB", "other")[number % 3]})
    queue = cluster.queues["orders", 0]
    queue.records = {offset: record for offset, record in queue.records.items() if offset % 3 != 2}
    options = read_options({"nameserver": cluster.address, "topic": "orders", "subExpression": "Aa || x"})
    wanted = QueueRange(Queue("orders", "broker-a", 0, cluster.address), 0, 12)
    found = [batch.to_pydict() for batch in read_range(wire, wanted, options, ["queueOffset"])]
    assert found == [{"queueOffset": [0, 3, 6, 9]}]
    sent = [request.ext or {} for request in cluster.requests if request.code == RequestCode.PULL_MESSAGE]
    assert {(ext["subscription"], ext["expressionType"]) for ext in sent} == {("Aa || x", "TAG")}
    queue.min_offset = 5
    with pytest.raises(DataLoss, match="5 of them"):
        list(read_range(wire, wanted, options, ["queueOffset"]))
