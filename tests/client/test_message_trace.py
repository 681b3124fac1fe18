"""Message traces: lines in the form of RocketMQ's tools, sending them, and the limit of waiting traces."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq import Message, Outcome
from gantrymq.client.outgoing import prepare
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.properties import decode_properties
from gantrymq.remoting.recall_handles import encode_handle
from gantrymq.remoting.records import COMPRESSED

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
TRACES = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.message_trace.GATHER_SECONDS", 0.01)
    monkeypatch.setattr("gantrymq.client.message_trace.FLUSH_SECONDS", 60)


def stored_traces(cluster: Any, topic: str = TRACES) -> tuple[list[list[str]], set[str]]:
    """The fields of all traces, and the keys of the messages that have them."""
    lines: list[list[str]] = []
    keys: set[str] = set()
    for request in cluster.broker.seen(RequestCode.SEND_MESSAGE_V2):
        if request.ext["b"] == topic:
            body = zlib.decompress(request.body) if int(request.ext["f"]) & COMPRESSED else request.body
            text = body.decode()
            assert text.endswith("\x02")
            lines += [line.split("\x01") for line in text[:-1].split("\x02")]
            keys.update(decode_properties(request.ext["i"])["KEYS"].split(" "))
    return lines, keys


async def test_message_traces_equal_those_of_javas_clients(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.message_trace.FLUSH_SECONDS", 60.0)  # traces that are late are dropped
    async with fake_cluster(**{"NS%T": 1, TRACES: 1}) as cluster:
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(0)
        async with gantrymq.connect(cluster.address, trace=True, namespace="NS") as client:
            async with (
                client.producer("p") as producer,
                client.transactional_producer(
                    "tp", check=lambda _: Outcome.COMMIT, local=lambda *_: Outcome.COMMIT
                ) as transactional,
            ):
                first = await producer.send("T", b"123", tags="a", keys=["k1", "k2"])
                later = await producer.send("T", b"12", delay_level=1)
                batch = await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
                half = (await transactional.send("T", b"half")).sent
                await producer.send_oneway("T", b"x")
            async with client.consumer("T", "g", start="first") as messages:
                await (await anext(messages)).ack()
                await (await anext(messages)).retry()
        lines, keys = stored_traces(cluster)
    sent = [line for line in lines if line[0] == "Pub"]
    assert {len(line) for line in sent} == {14}
    by_id = {line[5]: line for line in sent}
    results = [first, later, *batch, half]
    assert set(by_id) == {result.message_id for result in results}
    assert keys >= {*by_id, "k1", "k2"}
    pub = by_id[first.message_id]
    assert pub[2:5] == ["DefaultRegion", "p", "T"]
    assert pub[6:8] == ["a", "k1 k2"]
    assert (pub[9], pub[11:]) == ("3", ["0", first.offset_message_id, "true"])
    assert by_id[later.message_id][6:8] == ["null", "null"]
    assert [by_id[each.message_id][11] for each in (later, half, *batch)] == ["3", "1", "0", "0"]
    before = [line for line in lines if line[0] == "SubBefore"]
    after = [line for line in lines if line[0] == "SubAfter"]
    assert [(line[3], line[5], line[6], line[7]) for line in before] == [
        ("g", first.message_id, "0", "k1 k2"), ("g", later.message_id, "0", "null"),
    ]  # fmt: skip
    assert [line[1] for line in after] == [line[4] for line in before]
    assert [(line[2], line[4], line[5], line[6], line[8]) for line in after] == [
        (first.message_id, "true", "k1 k2", "0", "g"), (later.message_id, "false", "null", "4", "g"),
    ]  # fmt: skip


def give_offset_ids(broker: Any) -> None:
    """Let the broker answer sends with ids that are offsets in a log, as the outcome of a transaction needs."""

    def answer(request: Any) -> Any:
        stored = broker.on_send_message_v2(request)
        stored.ext["msgId"] = f"7F00000100002A9F{7:016X}"
        return stored

    broker.answers[RequestCode.SEND_MESSAGE_V2] = answer


async def test_outcomes_requests_and_recalls_are_traced_as_by_javas_clients(fake_cluster: Cluster) -> None:
    async with fake_cluster(**{"T": 1, TRACES: 1}) as cluster:
        regions = iter([{}, {"MSG_REGION": "eu"}])
        give_offset_ids(cluster.broker)
        cluster.broker.answers[RequestCode.RECALL_MESSAGE] = lambda request: request.answer(
            0, ext={"msgId": "STORED", **next(regions)}
        )
        async with gantrymq.connect(cluster.address, trace=True) as client:
            async with client.transactional_producer(
                "tp", check=lambda _: Outcome.UNKNOWN, local=lambda *_: Outcome.ROLLBACK
            ) as transactional:
                half = (await transactional.send("T", b"half", tags="a", keys=["k1", "k2"])).sent
                await cluster.broker.ask("tp", "KEY")
                await cluster.broker.wait_for(RequestCode.END_TRANSACTION, 2)
            async with client.producer("p") as producer:
                for _ in range(2):  # a broker before 5.3 names no region: Java's client traces no recall there
                    await producer.recall(encode_handle("T", "broker-a", 5, "LATER"))
                with pytest.raises(gantrymq.ReplyTimeout):
                    await producer.request("T", b"1", keys="asked", timeout=1.5)
        lines, keys = stored_traces(cluster)
    broker = cluster.broker.address
    ended = [line for line in lines if line[0] == "EndTransaction"]
    assert all(abs(int(line[1]) - time.time() * 1000) < 60_000 for line in ended)
    assert [line[2:] for line in ended] == [
        ["DefaultRegion", "tp", "T", half.message_id, "a", "k1 k2", broker, "2", half.message_id, "ROLLBACK_MESSAGE",
         "false"],
        ["DefaultRegion", "tp", "T", "KEY", "null", "null", broker, "2", "KEY", "UNKNOW", "true"],
    ]  # fmt: skip
    assert [line[2:] for line in lines if line[0] == "Recall"] == [["eu", "p", "T", "LATER", "true"]]
    (request,) = [line for line in lines if line[0] == "Pub" and line[7] == "asked"]
    assert (request[3:5], request[11], request[13]) == (["p", "T"], "0", "true")
    assert int(request[10]) < 1250  # ms until it was stored, not until the reply did not come
    assert keys >= {half.message_id, "KEY", "LATER", "k1", "k2", "asked"}


async def test_interceptors_get_outcomes_and_recalls(fake_cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []

    class Watch(gantrymq.Interceptor):
        def after_transaction(self, context: gantrymq.TransactionContext) -> None:
            got.append((context.message.body, context.transaction_id, context.outcome, context.group, context.checked))
            raise LookupError("broken")

        def after_recall(self, context: gantrymq.RecallContext) -> None:
            got.append((context.topic, context.message_id, context.region))
            raise LookupError("broken")

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[Watch()]) as client,
        client.producer("p") as producer,
        client.transactional_producer(
            "tp", check=lambda _: Outcome.COMMIT, local=lambda *_: Outcome.UNKNOWN
        ) as transactional,
    ):
        give_offset_ids(cluster.broker)
        cluster.broker.answers[RequestCode.RECALL_MESSAGE] = lambda request: request.answer(0, ext={"msgId": "ID"})
        half = (await transactional.send("T", b"own")).sent
        await cluster.broker.ask("tp", half.message_id)
        await cluster.broker.wait_for(RequestCode.END_TRANSACTION, 2)
        await producer.recall(encode_handle("T", "broker-a", 5, "LATER"))
    assert got == [
        (b"own", half.message_id, Outcome.UNKNOWN, "tp", False), (b"half", half.message_id, Outcome.COMMIT, "tp", True),
        ("T", "LATER", None),
    ]  # fmt: skip
    assert caplog.text.count("interceptor_failed") == 3


async def test_traces_are_sent_in_the_background_to_the_configured_topic(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1, mine=1) as cluster,
        gantrymq.connect(cluster.address, trace="mine") as client,
        client.producer("p") as producer,
    ):
        for number in range(3):
            await producer.send("T", b"1")
            await cluster.broker.wait_for(RequestCode.SEND_MESSAGE_V2, 2 * (number + 1))
        assert len(stored_traces(cluster, "mine")[0]) == 3
        await producer.send("mine", b"a message of the user's own is not traced there")


async def test_many_traces_are_split_over_messages_and_excess_ones_dropped(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gantrymq.client.message_trace.GATHER_SECONDS", 3600)
    monkeypatch.setattr("gantrymq.client.message_trace.TRACES_WAITING_MAX", 1500)
    async with fake_cluster(**{"T": 1, TRACES: 1}) as cluster:
        async with gantrymq.connect(cluster.address, trace=True) as client, client.producer("p") as producer:
            for _ in range(1600):
                await producer.enqueue("T", b"1")
        assert len(stored_traces(cluster)[0]) == 1500
        requests = [one for one in cluster.broker.seen(RequestCode.SEND_MESSAGE_V2) if one.ext["b"] == TRACES]
        assert len(requests) >= 2
        assert all(len(one.ext["i"]) < 32_767 for one in requests)
    assert "message_traces_lost" in caplog.text
    assert "100" in caplog.text


async def test_traces_with_long_keys_fit_into_the_properties_of_their_messages(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.message_trace.GATHER_SECONDS", 3600)
    monkeypatch.setattr("gantrymq.client.message_trace.TRACES_WAITING_MAX", 1100)
    async with fake_cluster(**{"T": 1, TRACES: 1}) as cluster:
        async with gantrymq.connect(cluster.address, trace=True) as client, client.producer("p") as producer:
            for number in range(1000):
                await producer.enqueue("T", b"1", keys=["订单" * 10 + str(number)])
            for letter in "ab":  # each alone has most of what fits
                await producer.enqueue("T", b"1", keys=[letter * 20_000])
        assert len(stored_traces(cluster)[0]) == 1002
        requests = [one for one in cluster.broker.seen(RequestCode.SEND_MESSAGE_V2) if one.ext["b"] == TRACES]
        assert all(len(one.ext["i"].encode()) <= 32_767 for one in requests)


async def test_a_closing_client_waits_for_the_traces_that_are_being_sent(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = anyio.Event()

    async def prepare_slowly(*arguments: Any) -> Any:
        begun.set()
        await anyio.sleep(0.1)
        return await prepare(*arguments)

    monkeypatch.setattr("gantrymq.client.message_trace.prepare", prepare_slowly)
    async with fake_cluster(**{"T": 1, TRACES: 1}) as cluster:
        async with gantrymq.connect(cluster.address, trace=True) as client, client.producer("p") as producer:
            await producer.send("T", b"1")
            with anyio.fail_after(60):
                await begun.wait()
        assert len(stored_traces(cluster)[0]) == 1


async def test_unstored_traces_do_not_affect_messages(fake_cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(T=1) as cluster:
        broker = cluster.broker

        def answer(request: Any) -> Any:
            return request.answer(13, "no") if request.ext["b"] == TRACES else broker.on_send_message_v2(request)

        broker.answers[RequestCode.SEND_MESSAGE_V2] = answer
        cluster.nameserver.topics[TRACES] = 1
        with anyio.fail_after(60):
            async with gantrymq.connect(cluster.address, trace=True) as client, client.producer("p") as producer:
                await producer.send("T", b"1")
    assert "message_traces_lost" in caplog.text


async def test_unknown_choices_are_rejected() -> None:
    for bad in (1, "", None):
        with pytest.raises(ValueError, match="trace is True, False or a topic"):
            gantrymq.connect("127.0.0.1:1", trace=bad)  # type: ignore[arg-type]
