"""State files that are ahead of or behind the log after power cuts, kills and full disks lose no message."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.kernel.expiry import drop_before
from gantrymq.plugins.interfaces import Retention
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from gantrymq.testing.simulated.cluster import Cluster
from gantrymq.testing.simulated.network import OBSERVER, Process, on
from gantrymq.testing.simulated.run import simulate

HOST = "10.0.0.10"
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
ASYNC = {"plugin.flush.mode": "async", "plugin.flush.interval": "60s"}


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Channel]:
    with on(Process(OBSERVER)):
        async with open_channel(cluster.machine(HOST).address) as channel:
            yield channel


async def ask(channel: Channel, code: RequestCode, **ext: object) -> Command:
    return await channel.call(Command(code, {key: str(value) for key, value in ext.items()}))


async def send_all(channel: Channel, topic: str, bodies: list[bytes], *, queue_id: int = 0, queues: int = 1) -> None:
    for body in bodies:
        answer = await channel.call(send(topic, body, queue_id=queue_id, queues=queues))
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def group_offset(channel: Channel, topic: str, group: str = "shop") -> int:
    answer = await ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int((answer.ext or {})["offset"])


async def read_from(channel: Channel, topic: str, offset: int, queue_id: int = 0) -> list[bytes]:
    first = await ask(channel, RequestCode.GET_MIN_OFFSET, topic=topic, queueId=queue_id)
    offset = max(offset, int((first.ext or {})["offset"]))
    bodies: list[bytes] = []
    while True:
        answer = await channel.call(pull(topic, queue_id, offset, group="shop"))
        if answer.code != ResponseCode.SUCCESS:
            return bodies
        for record in decode_records(answer.body):
            bodies.append(bytes(record.body))
            offset = record.queue_offset + 1


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def events(cluster: Cluster, name: str) -> list[Any]:
    return [line for line in cluster.log if line["event"] == name]


@pytest.mark.parametrize("is_killed", [False, True], ids=["served", "killed"])
def test_a_group_gets_messages_that_reuse_offsets_lost_in_a_power_cut(is_killed: bool) -> None:
    """With asynchronous flush the offsets' file was newer than the log: the next messages were skipped. After a kill
    the queue reaches the old offset, which must not count again."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.start_broker(HOST, settings=ASYNC)
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(0, 20))
            broker.store.flush_queues()
            await send_all(channel, "T", numbered(20, 50))
            # a pull of a member makes its group known
            assert await read_from(channel, "T", 0) == numbered(0, 50)
            commit = {"consumerGroup": "shop", "topic": "T", "queueId": 0, "commitOffset": 50}
            assert (await ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, **commit)).code == ResponseCode.SUCCESS
            broker.collect_state()
            broker.write_state()
            cluster.machine(HOST).power_cut()
        await cluster.start_broker(HOST, settings={**ASYNC, "broker.persist_interval": "1h"})
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(100, 130))
            if is_killed:
                cluster.machine(HOST).kill()
        if is_killed:
            await cluster.start_broker(HOST, settings=ASYNC)
        async with connected(cluster) as channel:
            offset = await group_offset(channel, "T")
            assert offset == 20
            assert await read_from(channel, "T", offset) == numbered(100, 130)
        (warning,) = events(cluster, "offsets_clamped_to_queue_ends")
        assert (warning["group"], warning["topic"], warning["queues"]) == ("shop", "T", {0: "50 -> 20"})

    simulate(scenario, seed=1)


async def delete(channel: Channel, topic: str) -> None:
    answer = await ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def max_offset(channel: Channel, topic: str) -> int:
    answer = await ask(channel, RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int((answer.ext or {})["offset"])


def lose_queues(cluster: Cluster) -> None:
    """Delete all queues, as a failed file system check does, so that they are built from the log again."""
    env = cluster.machine(HOST).env
    for name in [name for name in env.files if name.startswith("store/consumequeue/")]:
        env.unlink(name)


@pytest.mark.parametrize("end", ["kill", "power cut", "stop", "lost queues"])
def test_a_deleted_topic_stays_deleted_and_a_new_one_of_its_name_starts_empty(end: str) -> None:
    """A kill right after the answer, and any rebuild of the queues from the log, brought all of it back."""

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        await cluster.start_broker(HOST)
        async with connected(cluster) as channel:
            for topic in ("T", "again", "kept"):
                await send_all(channel, topic, numbered(0, 40))
            await trio.sleep(2)
            await delete(channel, "T")
            await delete(channel, "again")
            if end == "lost queues":
                await send_all(channel, "again", numbered(100, 110))
        if end == "kill":
            machine.kill()
        elif end == "power cut":
            machine.power_cut()
        else:
            await machine.stop()
        if end == "lost queues":
            lose_queues(cluster)
        for _ in range(2):
            broker = await cluster.start_broker(HOST)
            assert {queue.topic for queue in broker.queues} - {"again"} == {"kept"}
            async with connected(cluster) as channel:
                assert await max_offset(channel, "T") == 0
                if end != "lost queues":
                    await send_all(channel, "again", numbered(100, 110))
                assert (await read_from(channel, "again", 0))[:10] == numbered(100, 110)
                assert await read_from(channel, "kept", 0) == numbered(0, 40)
            await machine.stop()

    simulate(scenario, seed=1)


def test_a_deletion_beyond_a_lost_log_tail_deletes_no_later_message() -> None:
    """With asynchronous flush, a power cut truncates the log before the deletion."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.start_broker(HOST, settings=ASYNC)
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(0, 20))
            broker.store.flush_queues()
            await send_all(channel, "T", numbered(20, 50))
            await delete(channel, "T")
            cluster.machine(HOST).power_cut()
        for _ in range(2):
            await cluster.start_broker(HOST, settings=ASYNC)
            async with connected(cluster) as channel:
                if not await read_from(channel, "T", 0):
                    await send_all(channel, "T", numbered(100, 130))
                assert await read_from(channel, "T", 0) == numbered(100, 130)
            await cluster.machine(HOST).stop()
            lose_queues(cluster)

    simulate(scenario, seed=1)


@pytest.mark.parametrize("waits", ["level", "timed", "half message"])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_message_that_waited_while_its_topic_was_deleted_does_not_restore_the_topic(waits: str, end: str) -> None:
    """It is delivered after the deletion, which does not cover it; the next start once created the topic again."""
    properties = {"level": "DELAY\x013", "timed": "TIMER_DELAY_MS\x0110000", "half message": ""}[waits]

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        await cluster.start_broker(HOST)
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(0, 3))
            if waits == "half message":
                header = await send_half(channel)
            else:
                assert (await channel.call(send("T", b"late", properties=properties))).code == ResponseCode.SUCCESS
            await delete(channel, "T")
            if waits == "half message":
                header.commit_or_rollback = COMMIT
                ended = await channel.call(Command(RequestCode.END_TRANSACTION, header.to_ext()))
                assert ended.code == ResponseCode.SUCCESS, ended.remark
            await trio.sleep(15)
            assert await max_offset(channel, "T") == 4, "the message is in the queue, as at a RocketMQ broker"
        for _ in range(2):
            if end == "kill":
                machine.kill()
            else:
                await machine.stop()
            await cluster.start_broker(HOST)
            async with connected(cluster) as channel:
                config = await ask(channel, RequestCode.GET_TOPIC_CONFIG, topic="T")
                assert config.code != ResponseCode.SUCCESS
        async with connected(cluster) as channel:
            # As a message that was delivered to another topic and then stored here, such as a dead letter.
            sent = await channel.call(send("T", *numbered(4, 5), properties="REAL_TOPIC\x01%RETRY%g"))
            assert sent.code == ResponseCode.SUCCESS, sent.remark
            for name in ("topics.json", "topics.json.bak"):
                machine.env.unlink(f"store/config/{name}")
        machine.kill()
        await cluster.start_broker(HOST)
        async with connected(cluster) as channel:
            last = [b"half" if waits == "half message" else b"late", *numbered(4, 5)]
            assert await read_from(channel, "T", 0) == last, "messages sent to the topic restore it"

    simulate(scenario, seed=1)


@pytest.mark.parametrize("loss", ["full disk", "deleted file"])
def test_acknowledged_messages_of_an_unregistered_topic_are_readable_after_a_kill(loss: str) -> None:
    """topics.json cannot be written on a full disk, and the topic was once lost with the process."""

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        await cluster.start_broker(HOST)
        async with connected(cluster) as channel:
            await send_all(channel, "first", numbered(0, 1))  # the log's file is there
            if loss == "full disk":
                machine.env.free_bytes = 0
            for queue_id in (0, 2):
                await send_all(channel, "New", numbered(0, 5), queue_id=queue_id, queues=4)
        machine.kill()
        machine.env.free_bytes = None
        if loss == "deleted file":
            for name in ("topics.json", "topics.json.bak"):
                machine.env.unlink(f"store/config/{name}")
        for _ in range(2):
            await cluster.start_broker(HOST)
            async with connected(cluster) as channel:
                config = await ask(channel, RequestCode.GET_TOPIC_CONFIG, topic="New")
                assert config.code == ResponseCode.SUCCESS, config.remark
                assert json.loads(config.body)["readQueueNums"] == 3
                for queue_id in (0, 2):
                    assert await read_from(channel, "New", 0, queue_id) == numbered(0, 5)
            await machine.stop()
        restored = {line["topic"]: line["queues"] for line in events(cluster, "topic_restored_from_queues")}
        assert restored == {"New": 3} | ({"first": 1} if loss == "deleted file" else {})

    simulate(scenario, seed=1)


LOG_FOLDER = "store/commitlog"


async def several_files(cluster: Cluster) -> list[str]:
    """A broker whose log has three files or more; their names."""
    broker = await cluster.start_broker(HOST)
    async with connected(cluster) as channel:
        await send_all(channel, "T", [b"%03d" % number + b"x" * 10_000 for number in range(70)])
    assert len(broker.log.segments) >= 3
    await trio.sleep(1)
    return [f"{LOG_FOLDER}/{name}" for name in cluster.machine(HOST).env.listdir(LOG_FOLDER)]


def test_a_missing_oldest_log_file_refuses_the_start_after_a_crash() -> None:
    """There is no gap between files in this case, and RocketMQ starts without an error."""

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        oldest = (await several_files(cluster))[0]
        machine.kill()
        content = machine.env.read_bytes(oldest)
        machine.env.unlink(oldest)
        env = machine.env
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=r"it began at 0 .*restore the missing files")):
            async with run_broker(make_broker("store", env=env, settings={"store.commit_log_file_bytes": "256 KiB"})):
                pytest.fail("it serves")
        file = env.open(oldest, create=True)
        file.pwrite(content, 0)
        await cluster.start_broker(HOST)
        async with connected(cluster) as channel:
            assert len(await read_from(channel, "T", 0)) == 70

    simulate(scenario, seed=1)


def test_a_missing_oldest_log_file_is_reported_after_a_clean_stop() -> None:
    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        oldest = (await several_files(cluster))[0]
        await machine.stop()
        machine.env.unlink(oldest)
        for _ in range(2):
            broker = await cluster.start_broker(HOST)
            async with connected(cluster) as channel:
                assert len(await read_from(channel, "T", 0)) < 70
            await machine.stop()
        (missing,) = events(cluster, "log_files_missing")
        assert (missing["start"], missing["end"]) == (0, broker.log.min_offset)

    simulate(scenario, seed=1)


@pytest.mark.parametrize("room", [None, 0])
def test_files_deleted_by_retention_are_not_reported_as_missing(room: int | None) -> None:
    """The same holds on a full disk, where deletions matter most."""

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        files = await several_files(cluster)
        machine.env.free_bytes = room
        broker = machine.running_broker
        assert (await drop_before(broker, broker.log.segments.file_bytes)).files == 1
        assert not machine.env.exists(files[0])
        machine.kill()
        broker = await cluster.start_broker(HOST)
        assert broker.log.min_offset == broker.log.segments.file_bytes
        assert not events(cluster, "log_files_missing")

    simulate(scenario, seed=1)


YEAR_S = 365 * 24 * 3600


def test_a_store_with_future_timestamps_is_refused_or_started_on_request() -> None:
    """One start with a clock a year ahead once made all timed messages early for years."""

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        machine.env.clock_ms = YEAR_S * 1000
        await cluster.start_broker(HOST)
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(0, 5))
        machine.kill()
        machine.env.clock_ms = 0
        shape = {"store.commit_log_file_bytes": "256 KiB"}
        text = r"was stored 87\d\d\.\d hours ahead of this machine's clock: .*store.clock_ahead_max = \"87\d\dh\""
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=text)) as refused:
            async with run_broker(make_broker("store", env=machine.env, settings=shape)):
                pytest.fail("it serves")
        advised = re.search(r'clock_ahead_max = "(\w+)"', str(refused.value.exceptions[0]))
        assert advised is not None
        await cluster.start_broker(HOST, settings={"store.clock_ahead_max": advised[1]})
        async with connected(cluster) as channel:
            due = machine.env.wall_ms() + 20_000
            answer = await channel.call(send("T", b"timed", properties=f"TIMER_DELIVER_MS\x01{due}"))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await trio.sleep(19)
            assert await read_from(channel, "T", 0) == numbered(0, 5)
            await trio.sleep(3)
            assert await read_from(channel, "T", 0) == [*numbered(0, 5), b"timed"]

    simulate(scenario, seed=1)


SMALL_DISK = {
    "plugin.retention.check_interval": "1s",
    "plugin.retention.enough_free": "1000 GiB",
    "plugin.delay.levels": "1s 20s",
}
FILE_BYTES = 256 * 1024


async def fill(channel: Channel, topic: str = "T") -> Command:
    """Send until it is refused; the refusal."""
    size = 10_000
    for number in range(10_000):
        answer = await channel.call(send(topic, b"%04d" % number + b"x" * size))
        if answer.code != ResponseCode.SUCCESS and not size:
            return answer
        if answer.code != ResponseCode.SUCCESS:
            size = 0  # into the last gap
    raise AssertionError("the disk does not fill up")


async def send_half(channel: Channel) -> EndTransactionHeader:
    """A half message, and what its producer would say to roll it back."""
    half = send("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01u")
    half.ext["f"] = str(PREPARED)
    answer = await channel.call(half)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return EndTransactionHeader(
        producer_group="producers",
        tran_state_table_offset=int(answer.ext["queueOffset"]),
        commit_log_offset=int(answer.ext["msgId"][-16:], 16),
        commit_or_rollback=ROLLBACK,
        msg_id="u",
    )


@pytest.mark.parametrize("full", ["a share of the disk", "no room for another file"])
def test_a_full_disk_held_by_an_open_transaction_is_freed_by_its_end(full: str) -> None:
    """The rollback was refused like any message, so that nothing could ever free space again."""

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        shares = {"plugin.retention.disk_full": "100", "plugin.retention.disk_force": "1"}
        settings = SMALL_DISK if full == "a share of the disk" else {**SMALL_DISK, **shares}
        broker = await cluster.start_broker(HOST, settings=settings)
        async with connected(cluster) as channel:
            end = await send_half(channel)
            if full == "a share of the disk":
                await send_all(channel, "T", [b"x" * 10_000] * 100)
                machine.env.free_bytes = 8 * 1024
                await trio.sleep(2)
            else:
                machine.env.free_bytes = 3 * FILE_BYTES
            answer = await fill(channel)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await trio.sleep(30)
            assert (await fill(channel)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert broker.log.min_offset == 0
            assert {line["plugin"] for line in events(cluster, "log_files_held")} == {"transaction"}
            held = broker.registry.get(Retention).held
            assert held.holder == "transaction"
            assert held.held_bytes >= FILE_BYTES
            answer = await channel.call(Command(RequestCode.END_TRANSACTION, end.to_ext()))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await cluster.until(lambda: broker.log.min_offset > 0, 10)
            await trio.sleep(5)
            await send_all(channel, "T", [b"again"])

    simulate(scenario, seed=1)


def test_delayed_messages_are_delivered_on_a_full_disk() -> None:
    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(HOST)
        broker = await cluster.start_broker(HOST, settings=SMALL_DISK)
        async with connected(cluster) as channel:
            await send_all(channel, "later", [b"first"])
            answer = await channel.call(send("later", b"level", properties="DELAY\x012"))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            answer = await channel.call(send("later", b"time", properties="TIMER_DELAY_SEC\x0120"))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await send_all(channel, "T", [b"x" * 10_000] * 100)
            machine.env.free_bytes = 8 * 1024
            await trio.sleep(5)
            assert (await fill(channel)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (await read_from(channel, "later", 0)) == [b"first"]
            await trio.sleep(18)
            commit = {"consumerGroup": "shop", "topic": "later", "queueId": 0, "commitOffset": 1}
            assert (await ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, **commit)).code == ResponseCode.SUCCESS
            assert sorted(await read_from(channel, "later", 1)) == [b"level", b"time"]
            await cluster.until(lambda: broker.log.min_offset > 0, 10)

    simulate(scenario, seed=1)
