"""A reply is pushed to the requesting producer, stored as well, and answered with both results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog.testing
import trio
import trio.testing

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.store.log.record import Record
from gantrymq.plugins.interfaces import ProducerGroups
from gantrymq.plugins.reply.config import ReplyConfig
from gantrymq.plugins.reply.push import Pusher
from gantrymq.remoting.bodies.clients import HeartbeatData, ProducerData
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.send import SEND_LETTERS, ReplyMessageHeader
from gantrymq.remoting.names import reply_topic
from gantrymq.remoting.properties import decode_properties, encode_properties
from gantrymq.testing.harness import make_broker, run_broker

pytestmark = pytest.mark.trio

TOPIC = reply_topic("DefaultCluster")
ALWAYS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
SHORT = RequestCode.SEND_REPLY_MESSAGE_V2
LONG = RequestCode.SEND_REPLY_MESSAGE


def reply(client_id: str | None = "asker", body: bytes = b"42", *, code: int = SHORT, **changes: object) -> Command:
    """A reply as RocketMQ's clients send it; ``changes`` by the long names of the fields."""
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "TTL": "3000"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    fields = {
        "producerGroup": "repliers", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": 1234, "flag": 7, "properties": encode_properties(properties),
        "reconsumeTimes": 0, "unitMode": "false", **changes,
    }  # fmt: skip
    ext = {SEND_LETTERS[name] if code == SHORT else name: str(value) for name, value in fields.items()}
    return Command(code, ext, body)


@attrs.define
class Requester:
    """A producer that keeps what is pushed to it; ``answering`` is for a silent one to acknowledge it."""

    channel: Channel
    pushes: list[Command]
    answering: trio.Event
    unanswered: int = 0
    most_unanswered: int = 0


async def beat(channel: Channel, client_id: str, *groups: str) -> None:
    """Send a heartbeat of a producer in these groups."""
    data = HeartbeatData(client_id, producer_data_set=[ProducerData(group) for group in groups])
    answer = await channel.call(Command(RequestCode.HEART_BEAT, None, data.to_bytes()))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@asynccontextmanager
async def requesting(
    broker: Broker, client_id: str = "asker", *, code: int = ResponseCode.SUCCESS, silent: bool = False
) -> AsyncIterator[Requester]:
    """A connected producer ``client_id`` that answers each push with ``code``; a silent one waits for the test."""

    async def take(command: Command) -> Command:
        requester.pushes.append(command)
        requester.unanswered += 1
        requester.most_unanswered = max(requester.most_unanswered, requester.unanswered)
        if silent:
            await requester.answering.wait()
        requester.unanswered -= 1
        return command.answer(code, None if code == ResponseCode.SUCCESS else "process reply message fail")

    async with open_channel(broker.address, take) as channel:
        requester = Requester(channel, [], trio.Event())
        await beat(channel, client_id, "askers")
        yield requester


@asynccontextmanager
async def running(tmp_path: Path, **settings: str) -> AsyncIterator[tuple[Broker, Channel]]:
    """A broker with these settings of the plugin, and the replier's connection."""
    given = {f"plugin.reply.{key}": value for key, value in settings.items()}
    async with run_broker(make_broker(tmp_path, settings=given)) as broker, open_channel(broker.address) as channel:
        yield broker, channel


def stored(broker: Broker, answer: Command) -> Record:
    """The record that an answer names."""
    assert answer.ext is not None
    return broker.log.read_record(int(answer.ext["msgId"][16:], 16))


def connection_of(broker: Broker, client_id: str) -> Connection | None:
    """The broker's connection of a producer."""
    return broker.registry.get(ProducerGroups).connection_of(client_id)


async def wait_for(condition: Any) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - conditions of the tests, on the broker's own loop
            await trio.sleep(0.001)


@pytest.mark.parametrize("code", [SHORT, LONG])
async def test_a_reply_is_pushed_with_its_fields_and_stored_as_it_was_sent(tmp_path: Path, code: int) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker) as requester:
        before = broker.env.wall_ms()
        answer = await channel.call(reply(code=code))
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        record = stored(broker, answer)
        (pushed,) = requester.pushes
        assert (pushed.code, pushed.body, pushed.flag) == (326, b"42", 0)
        header = read_header(ReplyMessageHeader, pushed.ext)
        properties = decode_properties(header.properties or "")
        pushed_at = int(properties.pop("PUSH_REPLY_TIME"))
        assert before <= pushed_at == header.store_timestamp <= broker.env.wall_ms()
        sent = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "TTL": "3000", "REPLY_TO_CLIENT": "asker"}
        assert properties == sent
        replier = next(one for one in broker.connections if one.address == header.born_host)
        assert replier is not connection_of(broker, "asker")
        assert (header.store_host, header.producer_group, header.topic) == (broker.address, "repliers", TOPIC)
        assert (header.default_topic, header.default_topic_queue_nums, header.queue_id) == ("TBW102", 4, 0)
        assert (header.sys_flag, header.born_timestamp, header.flag) == (0, 1234, 7)
        assert (header.reconsume_times, header.unit_mode) == (0, False)
        assert (record.topic, record.queue_id, record.body, record.flag) == (TOPIC, 0, b"42", 7)
        assert decode_properties(record.properties.decode()) == sent
        assert (record.born_timestamp, record.sys_flag) == (1234, 0)
        assert answer.ext == {
            **ALWAYS, "msgId": record.message_id, "queueId": "0", "queueOffset": "0",
        }  # fmt: skip


async def test_without_storing_the_answer_has_a_message_id_that_clients_can_read(tmp_path: Path) -> None:
    async with running(tmp_path, store="false") as (broker, channel), requesting(broker) as requester:
        answer = await channel.call(reply())
        assert (answer.code, answer.ext) == (0, {**ALWAYS, "msgId": "0", "queueId": "0", "queueOffset": "0"})
        assert len(requester.pushes) == 1
        assert broker.log.end == broker.log.min_offset


GONE = "push reply message fail, channel of <asker> not found."
NO_CLIENT = "reply message properties[REPLY_TO_CLIENT] is null"


@pytest.mark.parametrize(("client_id", "remark"), [("asker", GONE), (None, NO_CLIENT)])
async def test_a_reply_that_cannot_be_pushed_is_refused_and_stored_all_the_same(
    tmp_path: Path, client_id: str | None, remark: str
) -> None:
    async with running(tmp_path) as (broker, channel):
        answer = await channel.call(reply(client_id))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        record = stored(broker, answer)
        assert (record.topic, record.body) == (TOPIC, b"42")
        assert answer.ext == {**ALWAYS, "msgId": record.message_id, "queueId": "0", "queueOffset": "0"}


async def test_a_reply_that_is_neither_pushed_nor_stored_has_no_place(tmp_path: Path) -> None:
    async with running(tmp_path, store="false") as (_, channel):
        answer = await channel.call(reply())
        assert (answer.code, answer.remark, answer.ext) == (ResponseCode.SYSTEM_ERROR, GONE, ALWAYS)


async def test_a_requester_that_cannot_take_the_reply_fails_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker, code=ResponseCode.SYSTEM_ERROR):
        answer = await channel.call(reply())
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to askerfail.")
        assert stored(broker, answer).body == b"42"


async def test_a_requester_that_does_not_acknowledge_fails_the_reply_in_time(tmp_path: Path) -> None:
    async with running(tmp_path, push_timeout="50ms") as (broker, channel), requesting(broker, silent=True):
        answer = await channel.call(reply())
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to askerfail.")


async def test_a_client_that_has_room_again_when_the_time_is_up_fails_the_reply_only(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    class Congested:
        """A connection that has room again only when the time of a push has passed."""

        asked = 0

        def is_congested(self) -> bool:
            self.asked += 1
            if self.asked == 2:
                mock_clock.jump(1.5)
            return self.asked == 1

    results: list[str | None] = []
    pusher = Pusher(ReplyConfig(push_timeout=1.0))
    nursery.start_soon(pusher.run)
    await trio.testing.wait_all_tasks_blocked()
    connection: Any = Congested()
    with structlog.testing.capture_logs() as logs:
        pusher.push(connection, "asker", Command(326), 10, results.append)
        await trio.testing.wait_all_tasks_blocked()
    assert results == ["push reply message to askerfail."]
    assert [line["reason"] for line in logs] == ["it had not taken the replies before within 1 s"]
    assert pusher.waiting == 0


async def test_a_requester_that_leaves_fails_the_replies_that_wait_for_it_at_once(tmp_path: Path) -> None:
    answers: list[Command] = []
    async with running(tmp_path) as (broker, channel), trio.open_nursery() as nursery:

        async def send() -> None:
            answers.append(await channel.call(reply()))

        async with requesting(broker, silent=True) as requester:
            for _ in range(60):  # more than are pushed at a time
                nursery.start_soon(send)
            await wait_for(lambda: requester.unanswered == 48)
            await requester.channel.aclose()
            await wait_for(lambda: len(answers) == 60)
        assert {(one.code, one.remark) for one in answers} == {(1, "push reply message to askerfail.")}


async def test_a_oneway_reply_is_pushed_and_not_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker) as requester:
        command = reply()
        command.flag = ONEWAY_FLAG
        await channel.send_oneway(command)
        await wait_for(lambda: requester.pushes)
        assert (await channel.call(reply())).code == 0
        assert broker.queues.get(TOPIC, 0).max_offset == 2


async def test_a_compressed_reply_is_stored_so_that_it_can_be_read(tmp_path: Path) -> None:
    """RocketMQ stores it without the flag. The other bits, a half message's say, are not the sender's to set."""
    async with running(tmp_path) as (broker, channel), requesting(broker) as requester:
        answer = await channel.call(reply(sysFlag=0x301 | 0x4))
        assert read_header(ReplyMessageHeader, requester.pushes[0].ext).sys_flag == 0x305
        assert stored(broker, answer).sys_flag == 0x301


async def test_a_reply_with_a_delay_is_pushed_now_and_stored_for_later(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker) as requester:
        properties = encode_properties({"REPLY_TO_CLIENT": "asker", "DELAY": "3", "TRAN_MSG": "true"})
        answer = await channel.call(reply(properties=properties))
        assert (answer.code, len(requester.pushes)) == (0, 1)
        assert stored(broker, answer).topic == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"", ResponseCode.NO_PERMISSION),
        ({"topic": "not-there", "defaultTopic": "none"}, b"", ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "a/b"}, b"", ResponseCode.SYSTEM_ERROR),
        ({"queueId": 1}, b"", ResponseCode.SYSTEM_ERROR),
        ({}, bytes(4 * 1024 * 1024 + 1), ResponseCode.MESSAGE_ILLEGAL),
        ({"properties": "REPLY_TO_CLIENT\x01asker\x02long\x01" + "x" * 32767}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_a_bad_reply_is_refused_before_it_is_pushed_or_stored(
    tmp_path: Path, changes: dict[str, object], body: bytes, code: int
) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker) as requester:
        answer = await channel.call(reply(body=body, **changes))
        assert (answer.code, answer.ext) == (code, ALWAYS), answer.remark
        assert not requester.pushes
        assert broker.log.end == broker.log.min_offset


async def test_a_reply_to_any_queue_goes_to_one_that_there_is(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker) as requester:
        answer = await channel.call(reply(topic="Replies", defaultTopicQueueNums=2, queueId=-1))
        assert answer.ext is not None
        assert answer.ext["queueId"] in ("0", "1")
        assert stored(broker, answer).queue_id == int(answer.ext["queueId"])
        assert read_header(ReplyMessageHeader, requester.pushes[0].ext).queue_id == -1


async def test_a_slave_pushes_replies_and_stores_none(tmp_path: Path) -> None:
    settings = {"broker.id": "1"}
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(run_broker(make_broker(tmp_path, settings=settings)))
        channel = await stack.enter_async_context(open_channel(broker.address))
        requester = await stack.enter_async_context(requesting(broker))
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                answer = await channel.call(reply())
                assert (answer.code, answer.ext) == (0, {**ALWAYS, "msgId": "0", "queueId": "0", "queueOffset": "0"})
        assert len(requester.pushes) == 3
        assert [each["event"] for each in logs].count("reply_not_stored") == 1, "not for each reply"


async def test_many_replies_reach_a_requester_that_owes_a_bounded_number_of_answers(tmp_path: Path) -> None:
    codes: list[int] = []
    async with running(tmp_path) as (broker, channel), requesting(broker, silent=True) as requester:

        async def send(number: int) -> None:
            codes.append((await channel.call(reply(body=b"%d" % number))).code)

        async with trio.open_nursery() as nursery:
            for number in range(150):
                nursery.start_soon(send, number)
            await wait_for(lambda: requester.unanswered == 48)
            # Another client's replies pass.
            async with requesting(broker, "other"):
                assert (await channel.call(reply("other"))).code == 0
            assert len(requester.pushes) == 48
            requester.answering.set()
        assert codes == [0] * 150
        assert sorted(int(push.body) for push in requester.pushes) == list(range(150))
        assert requester.most_unanswered == 48


async def test_a_requester_that_has_its_share_waiting_gets_no_more_and_others_do(tmp_path: Path) -> None:
    async with running(tmp_path, max_waiting="8") as (broker, channel), trio.open_nursery() as nursery:
        async with requesting(broker, silent=True) as requester, requesting(broker, "other"):
            nursery.start_soon(channel.call, reply())
            nursery.start_soon(channel.call, reply())
            await wait_for(lambda: requester.unanswered == 2)
            answer = await channel.call(reply())
            assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
            assert stored(broker, answer).body == b"42"
            assert (await channel.call(reply("other"))).code == 0
            requester.answering.set()
            await wait_for(lambda: requester.unanswered == 0)
            assert (await channel.call(reply())).code == 0


@pytest.mark.parametrize(
    ("settings", "body"), [({"max_waiting": "4"}, b"42"), ({"max_waiting_bytes": "64 KiB"}, bytes(16_000))]
)
async def test_senders_get_system_busy_when_too_many_replies_wait(
    tmp_path: Path, settings: dict[str, str], body: bytes
) -> None:
    async with running(tmp_path, **settings) as (broker, channel), AsyncExitStack() as stack:
        requesters = [
            await stack.enter_async_context(requesting(broker, f"asker-{number}", silent=True)) for number in range(4)
        ]
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(channel.call, reply(f"asker-{number}", body))
            await wait_for(lambda: all(requester.unanswered for requester in requesters))
            end = broker.log.end
            answer = await channel.call(reply("asker-0", body))
            assert (answer.code, answer.ext, broker.log.end) == (ResponseCode.SYSTEM_BUSY, ALWAYS, end)
            assert (answer.remark or "").startswith("[OVERLOAD]system busy, start flow control for a while")
            for requester in requesters:
                requester.answering.set()
        assert (await channel.call(reply("asker-0", body))).code == 0


async def test_a_reply_larger_than_the_limit_is_pushed_when_no_other_waits(tmp_path: Path) -> None:
    large = bytes(70_000)
    async with (
        running(tmp_path, max_waiting_bytes="64 KiB") as (broker, channel),
        requesting(broker) as requester,
        requesting(broker, "silent", silent=True) as silent,
        trio.open_nursery() as nursery,
    ):
        assert (await channel.call(reply(body=large))).code == ResponseCode.SUCCESS
        nursery.start_soon(channel.call, reply("silent"))
        await wait_for(lambda: silent.unanswered)
        assert (await channel.call(reply(body=large))).code == ResponseCode.SYSTEM_BUSY
        silent.answering.set()
        await wait_for(lambda: not silent.unanswered)
        assert [len(push.body or b"") for push in requester.pushes] == [len(large)]


async def test_a_requester_that_does_not_read_keeps_its_connection_and_delays_no_other(tmp_path: Path) -> None:
    settings = {
        "limits.write_buffer_bytes": "1 MiB", "plugin.reply.push_timeout": "3s", "plugin.flush.mode": "async",
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(run_broker(make_broker(tmp_path, settings=settings)))
        channel = await stack.enter_async_context(open_channel(broker.address))
        other = await stack.enter_async_context(requesting(broker, "other"))
        host, _, port = broker.address.rpartition(":")
        stream = await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
        data = HeartbeatData("asker", producer_data_set=[ProducerData("askers")])
        await stream.send_all(encode(Command(RequestCode.HEART_BEAT, None, data.to_bytes())))
        assert await stream.receive_some()
        requester = connection_of(broker, "asker")
        assert requester is not None
        answers: list[Command] = []

        async def send() -> None:
            answers.append(await channel.call(reply(body=bytes(256 * 1024)), 30))

        async with trio.open_nursery() as nursery:
            for _ in range(48):
                nursery.start_soon(send)
            await wait_for(lambda: requester.is_congested())
            assert (await channel.call(reply("other"), 30)).code == 0
            assert not answers, "the other requester's reply overtakes those that wait"
        assert {(answer.code, answer.remark) for answer in answers} == {(1, "push reply message to askerfail.")}
        assert len(other.pushes) == 1
        assert not requester.closed
        assert requester.outbound_bytes <= 512 * 1024 + 1024, "one reply past the mark of congestion"


async def test_storing_can_be_switched_while_the_broker_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker):
        for value, stored_then in (("false", 0), ("true", 1)):
            body = f"storeReplyMessageEnable={value}".encode()
            answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, body))
            assert answer.code == 0, answer.remark
            assert (await channel.call(reply())).code == 0
            queue = broker.queues.get(TOPIC, 0)
            assert (0 if queue is None else queue.max_offset) == stored_then


async def test_replies_are_counted_by_result(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel), requesting(broker), requesting(broker, "bad", code=1):
        for client_id in ("asker", "asker", "bad"):
            await channel.call(reply(client_id))
        metrics = Metrics(1000)
        broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
        assert metrics.families["gantrymq_replies_pushed_total"].series == {("acknowledged",): 2, ("failed",): 1}
        assert metrics.families["rocketmq_processor_watermark"].series[("reply",)] == 0


async def test_a_producer_is_found_by_its_newest_connection_as_long_as_it_has_one(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, channel):
        async with requesting(broker) as first, AsyncExitStack() as later:
            second = await later.enter_async_context(requesting(broker))
            await beat(second.channel, "asker", "askers", "others")
            await channel.call(reply())
            assert (len(first.pushes), len(second.pushes)) == (0, 1)
            # Leaving one group of two changes nothing; a heartbeat of the other connection does not take the id away.
            header = {"clientID": "asker", "producerGroup": "others"}
            assert (await second.channel.call(Command(RequestCode.UNREGISTER_CLIENT, header))).code == 0
            await beat(first.channel, "asker", "askers")
            await channel.call(reply())
            assert (len(first.pushes), len(second.pushes)) == (0, 2)
            # The end of the newest connection: the next heartbeat makes the other one known.
            await later.aclose()
            await wait_for(lambda: connection_of(broker, "asker") is None)
            await beat(first.channel, "asker", "askers")
            await channel.call(reply())
            assert len(first.pushes) == 1
            # Leaving the last group does.
            header["producerGroup"] = "askers"
            assert (await first.channel.call(Command(RequestCode.UNREGISTER_CLIENT, header))).code == 0
            assert (await channel.call(reply())).remark == GONE
            # A new id in the place of the old one.
            await beat(first.channel, "asker", "askers")
            await beat(first.channel, "renamed", "askers")
            assert (await channel.call(reply())).remark == GONE
            assert (await channel.call(reply("renamed"))).code == 0
