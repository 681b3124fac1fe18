"""The plugin in a broker: responses to senders, delivered messages, and the files in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Distribution, Metrics
from gantrymq.plugins.delay import DelayPlugin
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.recall import RecallMessageHeader
from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.recall_handles import RecallHandle, decode_handle, encode_handle
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker
from gantrymq.testing.requests import pull, send


@pytest.mark.trio
async def test_a_delayed_message_arrives_whole_and_late_enough(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        answer = await channel.call(send("T", b"later", queue_id=3, queues=4, properties="DELAY\x011\x02TAGS\x01a"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext is not None
        assert answer.ext["queueId"] == "3", "the queue that was asked for, not the one where it waits"
        waiting = broker.log.read_record(int(answer.ext["msgId"][16:], 16))
        assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 0)
        found = await channel.call(pull("T", 3, suspend_ms=8000, expression="a"), 30.0)
        assert found.code == ResponseCode.SUCCESS, "the tag is the filter's again"
        arrived = decode_records(found.body)[0]
        assert arrived.body == b"later"
        assert arrived.store_timestamp >= waiting.store_timestamp + 1000
    stored = (tmp_path / "config" / "delayOffset.json").read_bytes()
    assert stored == b'{"offsetTable":{1:1}}'
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert topics[SCHEDULE_TOPIC]["readQueueNums"] == 18


class Later:
    """Delays each message with the tag ``later`` by a second, by a level or by a time."""

    name = "later"

    def __init__(self, name: bytes, value: bytes) -> None:
        self._change: dict[bytes, bytes | None] = {name: value}

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            if batch.property_of(row, b"TAGS") == b"later":
                batch.properties[row] = replace_properties(batch.properties[row], self._change)
                batch.traits |= Trait.DELAY


@pytest.mark.trio
@pytest.mark.parametrize(
    ("name", "value", "topic"), [(b"DELAY", b"1", SCHEDULE_TOPIC), (b"TIMER_DELAY_MS", b"1000", TIMER_TOPIC)]
)
async def test_a_plugin_delays_messages_of_clients_and_its_own(
    tmp_path: Path, name: bytes, value: bytes, topic: str
) -> None:
    async with (
        run_broker(make_broker(tmp_path, enable=[Later(name, value)])) as broker,
        open_channel(broker.address) as channel,
    ):
        assert (await channel.call(send("T", b"at once", properties="TAGS\x01now"))).code == ResponseCode.SUCCESS
        answer = await channel.call(send("T", b"later", properties="TAGS\x01later"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        own = AppendBatch(traits=Trait.DELAY)
        own.add("T", 0, b"own", name + b"\x01" + value, born_timestamp=1)
        broker.append(own)
        with trio.fail_after(10):
            found = []
            while len(found) < 3:
                pulled = await channel.call(pull("T", 0, offset=len(found), suspend_ms=8000))
                found += decode_records(pulled.body)
        assert [record.body for record in found] == [b"at once", b"later", b"own"]
        queue = broker.queues.get(topic, 0)
        assert queue is not None
        assert queue.max_offset == 2
        waiting = broker.log.read_record(int((answer.ext or {})["msgId"][16:], 16))
        assert (waiting.topic, waiting.body) == (topic, b"later")
        assert found[1].store_timestamp >= waiting.store_timestamp + 1000


@pytest.mark.trio
async def test_clients_may_not_write_to_the_topic_of_the_levels(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(send(SCHEDULE_TOPIC, b"x", properties="DELAY\x011"))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.trio
async def test_a_broken_file_of_positions_refuses_the_start(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path)):
        pass
    (tmp_path / "config" / "delayOffset.json").write_text("{")
    with pytest.raises(ExceptionGroup) as caught:
        async with run_broker(make_broker(tmp_path)):
            raise AssertionError("it started")
    assert caught.group_contains(StartError, match="delayOffset.json")


@pytest.mark.trio
async def test_the_runtime_info_says_how_far_each_level_is(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await channel.call(send("T", b"x", properties="DELAY\x0118"))
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        assert json.loads(answer.body)["table"]["scheduleMessageOffset_18"] == "0,1"


def recall(topic: str, handle: str) -> Command:
    return Command(RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic=topic, recall_handle=handle).to_ext())


@pytest.mark.trio
async def test_metrics_say_how_many_timed_messages_wait_and_when_they_are_due(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        assert (await channel.call(send("T", b"x", properties="TIMER_DELAY_SEC\x0150"))).code == ResponseCode.SUCCESS
        metrics, wheel = Metrics(1000), ("local", "disk")

        def waiting() -> float:
            broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
            for work in metrics.work():
                work()
            family = metrics.families.get("rocketmq_timer_dequeue_lag")
            return family.series[wheel] if family else 0

        with trio.fail_after(20):
            while not waiting():  # noqa: ASYNC110 - the message is on its way into the wheel
                await trio.sleep(0.01)
        snapshot = metrics.families["rocketmq_timer_message_snapshot"].series
        bounds = ("5", "60", "300", "900", "3600", "14400", "28800", "86400")
        assert snapshot == {(bound, *wheel): int(bound == "60") for bound in bounds}


@pytest.mark.trio
async def test_a_message_with_a_time_arrives_at_it_and_one_that_is_recalled_does_not(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        due = broker.log.clock.now_ms() + 1500
        for body, properties in (
            (b"a", f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01A\x02TAGS\x01t"),
            (b"b", "TIMER_DELAY_SEC\x0130\x02UNIQ_KEY\x01B"),  # a slow disk must not make it due before the recall
            (b"c", "TIMER_DELAY_MS\x013000\x02UNIQ_KEY\x01C"),
        ):
            answer = await channel.call(send("T", body, queue_id=1, queues=4, properties=properties))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert answer.ext is not None
            assert answer.ext["queueId"] == "1"
            handle = decode_handle(answer.ext["recallHandle"])
            assert (handle.topic, handle.broker, handle.unique_key) == ("T", broker.name, body.decode().upper())
            if body == b"b":
                recalled = await channel.call(recall("T", answer.ext["recallHandle"]))
                assert (recalled.code, recalled.ext) == (
                    ResponseCode.SUCCESS,
                    {"msgId": "B", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
                )
        found = await channel.call(pull("T", 1, suspend_ms=8000, expression="t"), 30.0)
        (arrived,) = decode_records(found.body)
        assert arrived.body == b"a"
        assert due <= arrived.store_timestamp < due + 2000
        found = await channel.call(pull("T", 1, offset=1, suspend_ms=8000), 30.0)
        assert [record.body for record in decode_records(found.body)] == [b"c"]
        metrics = Metrics(1000)
        broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
    for name, labels, expected in (
        ("rocketmq_timer_enqueue_total", ("T", "local", "disk"), 3),
        ("rocketmq_timer_dequeue_total", ("T", "local", "disk"), 2),
        ("rocketmq_timer_enqueue_lag", ("local", "disk"), 0),
        ("rocketmq_timer_enqueue_latency_milliseconds", ("local", "disk"), 0),
    ):
        assert metrics.families[name].series == {labels: expected}
    (delays,) = metrics.families["rocketmq_delay_message_latency_seconds"].series.values()
    assert isinstance(delays, Distribution)
    assert delays.buckets[-1][1] == 3
    assert delays.total == pytest.approx(3 * due / 1000 + 30, abs=10), (
        "since 1970, when these senders made their messages"
    )
    assert (tmp_path / "timerwheel").stat().st_size == 38_707_200
    assert [file.stat().st_size for file in (tmp_path / "timerlog").iterdir()] == [104_857_600]
    assert (tmp_path / "config" / "timercheck").stat().st_size == 4096
    assert TIMER_TOPIC in json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]


@pytest.mark.trio
async def test_a_recall_that_cannot_be_is_answered_as_rocketmq_answers_it(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await channel.call(send("T", b"x", queues=4))
        now = broker.log.clock.now_ms()
        far = now + 60_000
        cases = [
            ("U", encode_handle("U", broker.name, far, "K"), ResponseCode.TOPIC_NOT_EXIST, "not exist"),
            ("T", "no handle", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
            ("T", encode_handle("U", broker.name, far, "K"), ResponseCode.ILLEGAL_OPERATION, "topic not match"),
            ("T", encode_handle("T", "other", far, "K"), ResponseCode.ILLEGAL_OPERATION, "not available"),
            ("T", encode_handle("T", broker.name, now - 1, "K"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
            ("T", encode_handle("T", broker.name, now + 10**9, "K"), ResponseCode.ILLEGAL_OPERATION, "timestamp"),
        ]
        for topic, handle, code, remark in cases:
            answer = await channel.call(recall(topic, handle))
            assert answer.code == code
            assert remark in (answer.remark or "")


@pytest.mark.trio
async def test_clients_may_not_write_to_the_timer_topic(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(send(TIMER_TOPIC, b"x", properties="TIMER_DELAY_SEC\x011"))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.trio
async def test_a_time_beyond_the_longest_is_refused_and_says_what_is_allowed(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, plugin__delay__max_delay="1h") as (_, channel):
        answer = await channel.call(send("T", b"x", properties="TIMER_DELAY_SEC\x013601"))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "plugin.delay.max_delay" in (answer.remark or "")


def test_a_handle_is_rocketmq_s() -> None:
    text = "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAxIEtFWQ=="
    assert encode_handle("T", "broker-a", 1_700_000_000_001, "KEY") == text
    assert decode_handle(text) == RecallHandle("T", "broker-a", 1_700_000_000_001, "KEY")


@pytest.mark.trio
async def test_recalls_that_a_slave_refuses_take_no_memory(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, broker__id="1") as (broker, channel):
        answer = await channel.call(send("T", b"0", properties="TIMER_DELAY_SEC\x0150\x02TIMER_DEL_UNIQKEY\x01T+K"))
        assert answer.code != ResponseCode.SUCCESS
        [plugin] = [info.plugin for info in broker.manager.plugins if isinstance(info.plugin, DelayPlugin)]
        assert plugin._timer is not None
        assert not plugin._timer.recalls._rows
