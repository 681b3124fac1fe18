"""Transactional sends: the half message, the local branch, the end, and check-backs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, Outcome, SendStatus, TransactionResult
from gantrymq.client import transactions
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.command import Command
from gantrymq.remoting.properties import decode_properties

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]

LOG_OFFSET = 5_000_000_123
HALF_OFFSET = 11


def stored(code: int = 0, message_id: str = f"7F00000100002A9F{LOG_OFFSET:016X}") -> Callable[[Command], Command]:
    """How a broker answers a half message."""
    return lambda request: request.answer(
        code, ext={"msgId": message_id, "queueId": request.ext["e"], "queueOffset": str(HALF_OFFSET)}
    )


def commit(message: Message, transaction_id: str) -> Outcome:
    return Outcome.COMMIT


def never(message: Message, transaction_id: str) -> Outcome:
    pytest.fail("the branch must not run")


def unknown(record: DeliveredRecord) -> Outcome:
    return Outcome.UNKNOWN


async def commit_later(message: Message, transaction_id: str) -> Outcome:
    await anyio.lowlevel.checkpoint()
    return Outcome.COMMIT


class BrokenText(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def test_a_half_message_is_sent_before_its_outcome(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("payers", local=commit, check=unknown) as producer,
    ):
        cluster.broker.answers[310] = stored()
        result = await producer.send("T", b"x" * 4096, tags="a", keys="k", properties={"own": "1"})
        (half,) = cluster.broker.seen(310)
        (end,) = await cluster.broker.wait_for(37)
    assert decode_properties(half.ext["i"]) == {
        "own": "1", "KEYS": "k", "TAGS": "a", "UNIQ_KEY": result.transaction_id, "TRAN_MSG": "true",
        "PGROUP": "payers",
    }  # fmt: skip
    assert (half.ext["a"], half.ext["f"]) == ("payers", "5"), "prepared and compressed"
    assert end.is_oneway
    assert end.remark is None
    assert end.ext == {
        "producerGroup": "payers", "tranStateTableOffset": str(HALF_OFFSET), "commitLogOffset": str(LOG_OFFSET),
        "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": result.transaction_id,
        "transactionId": result.transaction_id, "topic": "T",
    }  # fmt: skip
    assert result == TransactionResult(result.sent, Outcome.COMMIT)
    assert (result.sent.status, result.sent.queue_offset) == (SendStatus.OK, HALF_OFFSET)


async def test_the_local_branch_gets_the_stored_message_and_its_id(fake_cluster: Cluster) -> None:
    seen: list[tuple[Message, str, int, int]] = []
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=commit, check=unknown) as producer,
    ):
        broker = cluster.broker
        broker.answers[310] = stored()

        async def branch(message: Message, transaction_id: str) -> Outcome:
            seen.append((message, transaction_id, len(broker.seen(310)), len(broker.seen(37))))
            return Outcome.ROLLBACK

        result = await producer.send(Message("T", b"x"), local=branch)
        (end,) = await broker.wait_for(37)
    assert seen == [(Message("T", b"x"), result.transaction_id, 1, 0)]
    assert (end.ext["commitOrRollback"], result.outcome) == ("12", Outcome.ROLLBACK)


@pytest.mark.parametrize("status", [10, 11, 12])
async def test_a_half_message_with_an_unmet_guarantee_is_rolled_back_without_the_branch(
    fake_cluster: Cluster, status: int
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=never, check=unknown) as producer,
    ):
        cluster.broker.answers[310] = stored(status)
        result = await producer.send("T", b"x")
        (end,) = await cluster.broker.wait_for(37)
    assert (end.ext["commitOrRollback"], result.outcome) == ("12", Outcome.ROLLBACK)
    assert result.sent.status is SendStatus(status)


@pytest.mark.parametrize("fault", [ValueError("no money"), BrokenText(), None, "commit", 8])
async def test_a_branch_that_fails_leaves_the_outcome_unknown_and_the_producer_usable(
    fake_cluster: Cluster, fault: Any
) -> None:
    def branch(message: Message, transaction_id: str) -> Any:
        if isinstance(fault, Exception):
            raise fault
        return fault

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=branch, check=unknown) as producer,
    ):
        cluster.broker.answers[310] = stored()
        result = await producer.send("T", b"x")
        good = await producer.send("T", b"x", local=commit_later)
        failed, ended = await cluster.broker.wait_for(37, 2)
        assert len(cluster.broker.connections) == 1
    assert (failed.ext["commitOrRollback"], result.outcome) == ("0", Outcome.UNKNOWN)
    if isinstance(fault, Exception):
        assert result.error is fault
        assert ("ValueError: no money" if isinstance(fault, ValueError) else "BrokenText: ") in failed.remark
    else:
        assert isinstance(result.error, TypeError)
        assert f"not {fault!r}" in failed.remark
    assert (ended.ext["commitOrRollback"], good.outcome, good.error) == ("8", Outcome.COMMIT, None)


async def test_a_refused_half_message_starts_no_transaction(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=never, check=unknown) as producer,
    ):
        cluster.broker.answers[310] = lambda request: request.answer(13, "too long")
        with pytest.raises(gantrymq.BrokerError, match="too long"):
            await producer.send("T", b"x")
        with pytest.raises(gantrymq.InvalidMessage, match="empty"):
            await producer.send("T", b"")
        with pytest.raises(gantrymq.InvalidMessage, match="TRAN_MSG is reserved"):
            await producer.send("T", b"x", properties={"TRAN_MSG": "false"})
    assert not cluster.broker.seen(37)


async def test_the_outcome_goes_to_the_broker_that_has_the_half_message(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=commit, check=unknown) as producer,
    ):
        for number, broker in enumerate(cluster.brokers):
            broker.answers[310] = stored(message_id=f"7F00000100002A9F{number:016X}")
        for _ in range(6):
            await producer.send("T", b"x")
        for number, broker in enumerate(cluster.brokers):
            ends = await broker.wait_for(37, 3)
            assert {end.ext["commitLogOffset"] for end in ends} == {str(number)}


async def test_a_broker_lost_before_the_outcome_does_not_fail_the_send(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", check=unknown) as producer,
    ):
        cluster.broker.answers[310] = stored(message_id="no id")
        for _ in range(3):
            assert (await producer.send("T", b"x", local=commit)).outcome is Outcome.COMMIT
        cluster.broker.answers[310] = stored()

        def branch(message: Message, transaction_id: str) -> Outcome:
            client._cluster.routes._brokers.clear()
            return Outcome.COMMIT

        assert (await producer.send("T", b"x", local=branch)).outcome is Outcome.COMMIT
        assert not cluster.broker.seen(37)
        assert (await producer.send("T", b"x", local=commit)).outcome is Outcome.COMMIT
    lines = [text for record in caplog.records if "transaction_end_failed" in (text := record.getMessage())]
    assert len(lines) == 2, "one line at the begin of the outage, and one at its end"
    assert "of='transaction_end_failed'" in lines[1]
    assert "failures=4" in lines[1]


async def test_a_producer_closed_during_the_branch_does_not_fail_the_send(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    async def branch(message: Message, transaction_id: str) -> Outcome:
        begun.set()
        await may_end.wait()
        return Outcome.COMMIT

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[310] = stored()
        producer = await client.transactional_producer("g", local=branch, check=unknown).start()
        results: list[TransactionResult] = []
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                results.append(await producer.send("T", b"x"))

            tasks.start_soon(send)
            await begun.wait()
            await producer.close()
            may_end.set()
        assert [result.outcome for result in results] == [Outcome.COMMIT]
        assert not cluster.broker.seen(37)
    assert any("transaction_end_failed" in record.getMessage() for record in caplog.records)


async def test_a_cancelled_branch_sends_no_outcome(fake_cluster: Cluster) -> None:
    async def branch(message: Message, transaction_id: str) -> Outcome:
        scope.cancel()
        await anyio.sleep_forever()
        return Outcome.COMMIT

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=branch, check=unknown) as producer,
    ):
        cluster.broker.answers[310] = stored()
        with anyio.CancelScope() as scope:
            await producer.send("T", b"x")
        await producer.send("T", b"x", local=commit)
        await cluster.broker.wait_for(37)
    assert [end.ext["commitOrRollback"] for end in cluster.broker.seen(37)] == ["8"]


async def test_brokers_get_the_producer_group_before_the_first_message(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("payers", check=unknown, topics=["T", "none"]),
    ):
        (beat,) = cluster.broker.seen(34)
        assert b'"groupName":"payers"' in beat.body
    (bye,) = cluster.broker.seen(35)
    assert bye.ext["producerGroup"] == "payers"


async def test_brokers_that_create_topics_get_the_producer_group(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(TBW102=8) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("payers", check=unknown),
    ):
        (beat,) = cluster.broker.seen(34)
        assert b'"groupName":"payers"' in beat.body


async def test_a_check_back_is_answered_by_check_beside_other_work(fake_cluster: Cluster) -> None:
    asked: list[DeliveredRecord] = []
    known = anyio.Event()

    async def check(record: DeliveredRecord) -> Outcome:
        asked.append(record)
        await known.wait()
        return Outcome.COMMIT

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=commit, check=check) as producer,
    ):
        broker = cluster.broker
        broker.answers[310] = stored()
        await producer.send("T", b"x")
        await broker.wait_for(37)
        await broker.ask("g", "KEY1", offset=LOG_OFFSET, body=b"the half")
        await producer.send("T", b"x")
        await broker.wait_for(37, 2)
        known.set()
        answer = (await broker.wait_for(37, 3))[-1]
    (record,) = asked
    assert (record.message_id, record.topic, record.body) == ("KEY1", "T", b"the half")
    assert answer.is_oneway
    assert answer.ext == {
        "producerGroup": "g", "tranStateTableOffset": "3", "commitLogOffset": str(LOG_OFFSET), "topic": "T",
        "commitOrRollback": "8", "fromTransactionCheck": "true", "msgId": "KEY1",
    }  # fmt: skip


@pytest.mark.parametrize("fault", [LookupError("no row"), BrokenText(), None])
async def test_a_failing_check_answers_unknown_and_the_next_one_runs(fake_cluster: Cluster, fault: Any) -> None:
    def check(record: DeliveredRecord) -> Any:
        if record.message_id == "GOOD":
            return Outcome.ROLLBACK
        if fault is not None:
            raise fault
        return None

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", check=check, topics=["T"], checks_at_once=1),
    ):
        await cluster.broker.ask("g", "BAD")
        await cluster.broker.ask("g", "GOOD")
        bad, good = await cluster.broker.wait_for(37, 2)
    assert (bad.ext["msgId"], bad.ext["commitOrRollback"]) == ("BAD", "0")
    assert (type(fault).__name__ if fault else "TypeError: the outcome of a transaction is") in bad.remark
    assert (good.ext["msgId"], good.ext["commitOrRollback"], good.remark) == ("GOOD", "12", None)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_branches_and_checks_that_await_something_cancelled_leave_the_outcome_unknown(
    fake_cluster: Cluster,
) -> None:
    async def cancelled_elsewhere(*_: object) -> Outcome:
        task = asyncio.ensure_future(asyncio.sleep(20, Outcome.COMMIT))
        asyncio.get_running_loop().call_soon(task.cancel)
        return await task

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer(
            "g", local=cancelled_elsewhere, check=cancelled_elsewhere, topics=["T"], checks_at_once=1
        ) as producer,
    ):
        cluster.broker.answers[310] = stored()
        sent = await producer.send("T", b"x")
        assert sent.outcome is Outcome.UNKNOWN
        assert "was cancelled" in str(sent.error)
        for number in range(3):
            await cluster.broker.ask("g", f"KEY{number}")
        ends = await cluster.broker.wait_for(37, 4)
    assert [end.ext["commitOrRollback"] for end in ends] == ["0"] * 4
    assert "was cancelled" in ends[-1].remark


async def test_running_and_waiting_checks_are_limited_and_the_rest_is_dropped(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "CHECKS_WAITING_MAX", 3)
    running: list[str] = []
    begun = anyio.Event()
    finish = anyio.Event()

    async def check(record: DeliveredRecord) -> Outcome:
        running.append(record.message_id)
        if len(running) == 2:
            begun.set()
        await finish.wait()
        return Outcome.COMMIT

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", local=commit, check=check, topics=["T"], checks_at_once=2) as producer,
    ):
        broker = cluster.broker
        broker.answers[310] = stored()
        for number in range(2):
            await broker.ask("g", f"K{number}")
        await begun.wait()
        for number in range(2, 7):
            await broker.ask("g", f"K{number}")
        await producer.send("T", b"x")  # its answer comes behind the questions
        assert sorted(running) == ["K0", "K1"]
        finish.set()
        ends = await broker.wait_for(37, 6)
        await broker.ask("g", "later")
        await broker.wait_for(37, 7)
    answered = {end.ext["msgId"] for end in ends if end.ext["fromTransactionCheck"] == "true"}
    assert answered == {"K0", "K1", "K2", "K3", "K4"}


async def test_unanswerable_check_backs_are_ignored(fake_cluster: Cluster) -> None:
    ext = {"tranStateTableOffset": "3", "commitLogOffset": "4"}
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.transactional_producer("g", check=unknown, topics=["T"]),
    ):
        broker = cluster.broker
        await broker.ask("strangers", "K")
        await broker.ask_with(b"no record", ext)
        await broker.ask_with(b"", ext)
        await broker.ask_with(b"", {"commitLogOffset": "x"})
        await broker.ask("g", "mine")
        (answer,) = await broker.wait_for(37)
        assert answer.ext["msgId"] == "mine"
        assert len(broker.connections) == 1


async def test_a_group_has_one_transactional_producer_at_a_time(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.transactional_producer("g", check=unknown) as producer, client.producer("g"):
            with pytest.raises(gantrymq.GantryError, match="already has a transactional producer of group g"):
                async with client.transactional_producer("g", check=unknown):
                    pytest.fail("a second one")
            with pytest.raises(gantrymq.InvalidMessage, match="needs a local branch"):
                await producer.send("T", b"x")
        with pytest.raises(gantrymq.ClientClosed, match="producer of group g is closed"):
            await producer.send("T", b"x", local=commit)
        with pytest.raises(gantrymq.InvalidName):
            async with client.transactional_producer("a b", check=unknown):
                pytest.fail("no group")
        async with client.transactional_producer("g", check=unknown):
            pass


def test_the_blocking_producer_runs_branches_in_the_caller_and_checks_in_threads(fake_in_thread: Any) -> None:
    broker = fake_in_thread.broker
    broker.answers[310] = stored()
    threads: dict[str, int] = {}
    asked = threading.Event()

    def branch(message: Message, transaction_id: str) -> Outcome:
        threads["branch"] = threading.get_ident()
        return Outcome.COMMIT

    def check(record: DeliveredRecord) -> Outcome:
        threads["check"] = threading.get_ident()
        asked.set()
        return Outcome.ROLLBACK

    def broken(message: Message, transaction_id: str) -> Outcome:
        raise ValueError("no money")

    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.transactional_producer("g", local=branch, check=check) as producer:
            assert producer.send("T", b"x", keys="k").outcome is Outcome.COMMIT
            failed = producer.send("T", b"x", local=broken)
            assert (failed.outcome, str(failed.error)) == (Outcome.UNKNOWN, "no money")
            broker.answers[310] = stored(10)
            assert producer.send("T", b"x", local=never).outcome is Outcome.ROLLBACK
            fake_in_thread.portal.call(broker.ask, "g", "K")
            assert asked.wait(20)
            fake_in_thread.portal.call(broker.wait_for, 37, 4)
        with pytest.raises(gantrymq.ClientClosed, match="producer of group g is closed"):
            producer.send("T", b"x")
    assert threads["branch"] == threading.get_ident()
    assert threads["check"] not in (0, threading.get_ident())
    assert [end.ext["commitOrRollback"] for end in broker.seen(37)] == ["8", "0", "12", "12"]


@pytest.mark.parametrize("closes", ["producer", "client"])
def test_a_branch_that_closes_the_blocking_producer_does_not_fail_the_send(
    fake_in_thread: Any, caplog: pytest.LogCaptureFixture, closes: str
) -> None:
    fake_in_thread.broker.answers[310] = stored()
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.transactional_producer("g", check=unknown) as producer,
    ):

        def branch(message: Message, transaction_id: str) -> Outcome:
            (producer if closes == "producer" else client).close()
            return Outcome.COMMIT

        assert producer.send("T", b"x", local=branch).outcome is Outcome.COMMIT
    assert any("transaction_end_failed" in record.getMessage() for record in caplog.records)
