"""Workers: concurrent handlers, retries by the broker, and a stop without loss."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import gantrymq
import gantrymq.sync
from gantrymq.client.deliveries import DeliveryToThread
from gantrymq.remoting.command import Command
from gantrymq.remoting.properties import encode_properties

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


async def test_handlers_run_concurrently_and_finished_messages_are_committed_at_sigterm(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(20):
            cluster.broker.store("T", number % 2, b"%d" % number)
        done: list[bytes] = []
        begun = together = most = 0
        last = anyio.Event()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            nonlocal begun, together, most
            begun += 1
            together += 1
            most = max(most, together)
            if begun == 20:
                os.kill(os.getpid(), signal.SIGTERM)
                await last.wait()
            await anyio.sleep(0.001)
            together -= 1
            done.append(message.body)
            if len(done) == 19:
                last.set()

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", concurrency=4)
        assert len(done) == 20
        assert 1 < most <= 4
        assert cluster.broker.offsets == {("g", "T", 0): 10, ("g", "T", 1): 10}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_signals_reach_workers_where_asyncio_has_no_signal_handlers(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_on_windows(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", as_on_windows)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        done: list[bytes] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep(0.01)
            done.append(message.body)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", drain_timeout=10)
        assert done == [b"x"]
        assert cluster.broker.offsets == {("g", "T", 0): 1}
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_messages_of_a_batch_are_handled_concurrently(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        begun: list[bytes] = []
        together = anyio.Event()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            begun.append(message.body)
            if len(begun) == 4:
                together.set()
                os.kill(os.getpid(), signal.SIGTERM)
            await together.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run(handle, "T", "g", start="first", concurrency=4, drain_timeout=1))
            await cluster.broker.wait_for(11)  # all handlers wait for messages
            for number in range(4):
                cluster.broker.store("T", 0, b"%d" % number)
            with anyio.fail_after(5):
                await together.wait()


async def test_messages_unfinished_after_the_drain_timeout_are_not_committed(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep_forever()

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", drain_timeout=0.1)
        assert not cluster.broker.offsets.get(("g", "T", 0))


async def test_a_plain_function_runs_in_a_thread_and_its_error_sends_the_message_back(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        threads: set[threading.Thread] = set()

        def handle(message: gantrymq.ReceivedMessage) -> None:
            threads.add(threading.current_thread())
            if message.body == b"1":
                raise ZeroDivisionError

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                lambda: client.run(handle, "T", "g", start="first", max_retries=3, concurrency=2, signals=False)
            )
            (back,) = await cluster.broker.wait_for(36)
            assert (back.ext["delayLevel"], back.ext["maxReconsumeTimes"]) == ("0", "3")
            consumer = client._cluster._consumers["g"]
            with anyio.fail_after(20):
                while consumer.statistics().acknowledged < 3:  # type: ignore[attr-defined]  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert threading.main_thread() not in threads
        assert cluster.broker.offsets["g", "T", 0] == 3
    assert "handler_failed" in caplog.text


async def test_an_ordered_worker_handles_messages_of_a_queue_in_sequence(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(20):
            cluster.broker.store("T", number % 2, b"%d" % number)
        busy: set[int] = set()
        done: list[int] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            assert message.queue.queue_id not in busy
            busy.add(message.queue.queue_id)
            await anyio.sleep(0.001)
            busy.discard(message.queue.queue_id)
            done.append(int(message.body))
            if len(done) == 20:
                os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", ordered=True)
        assert [number for number in done if number % 2] == list(range(1, 20, 2))


@pytest.mark.parametrize("concurrency", [0, 1001, "2"])
async def test_an_invalid_concurrency_is_rejected(fake_cluster: Cluster, concurrency: Any) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(ValueError, match="concurrency"):
            await client.run(print, "T", "g", concurrency=concurrency)


def order_key(key: object) -> str:
    return f"__SHARDINGKEY\x01{key}\x02"


async def test_messages_of_a_key_are_handled_in_sequence_beside_other_keys(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(60):
            cluster.broker.store("T", 0, b"%d" % number, order_key(number % 3))
        busy: set[int] = set()
        done: list[int] = []
        together = anyio.Event()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            number = int(message.body)
            assert number % 3 not in busy
            busy.add(number % 3)
            if len(busy) == 3:
                together.set()
            await together.wait()
            await anyio.lowlevel.checkpoint()
            busy.discard(number % 3)
            done.append(number)
            if len(done) == 60:
                os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", ordered="key", concurrency=8)
        for key in range(3):
            assert [number for number in done if number % 3 == key] == list(range(key, 60, 3))
        assert cluster.broker.offsets["g", "T", 0] == 60


async def test_a_failed_message_blocks_its_key_only_and_no_later_offset_is_committed(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(20):
            cluster.broker.store("T", 0, b"%d" % number, order_key(number % 2))
        done: list[int] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            number = int(message.body)
            if number == 6:
                await anyio.lowlevel.checkpoint()
                raise ZeroDivisionError
            done.append(number)
            if len(done) == 13:
                os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", ordered="key")
        assert [number for number in done if number % 2 == 0] == [0, 2, 4]
        assert [number for number in done if number % 2] == list(range(1, 20, 2))
        assert cluster.broker.offsets["g", "T", 0] == 6


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_handler_can_choose_the_retry_delay_or_no_retry(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture, ordered: bool
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        for body in (b"later", b"never", b"last"):
            cluster.broker.store("T", 0, body)
        attempts: list[bytes] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            attempts.append(message.body)
            if message.body == b"later" and not message.reconsume_times:
                raise gantrymq.RetryLater("not yet", delay_level=3)
            if message.body == b"never":
                raise gantrymq.DeadLetter("no such customer")
            if message.body == b"last":
                os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", ordered=ordered, concurrency=1)
        levels = [back.ext["delayLevel"] for back in cluster.broker.seen(36)]
        assert levels == (["-1"] if ordered else ["3", "-1"])
        assert attempts == [b"later"] * (1 + ordered) + [b"never", b"last"]
        assert cluster.broker.offsets["g", "T", 0] == 3
    assert "message_rejected" in caplog.text
    assert "no such customer" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_delay_level_that_the_broker_defines_differently_is_rejected() -> None:
    with pytest.raises(ValueError, match="raise DeadLetter"):
        gantrymq.RetryLater(delay_level=-1)


async def test_a_failed_send_back_is_retried_while_others_are_handled(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gantrymq.client.worker.SEND_BACK_PAUSE_SECONDS", 0.01)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        handled = anyio.Event()

        async def give_back(request: Any) -> Any:
            if len(cluster.broker.seen(36)) < 3:
                return request.answer(14, "the disk is full")
            await handled.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            return request.answer(0)

        cluster.broker.answers[36] = give_back
        for number in range(2):
            cluster.broker.store("T", 0, b"%d" % number)

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            if message.body == b"0":
                raise ZeroDivisionError
            handled.set()

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", concurrency=1)
        assert cluster.broker.offsets["g", "T", 0] == 2
    assert caplog.text.count("send_back_failed") == 2, "the first failure and the end of the outage, not each attempt"
    assert "failures=2" in caplog.text


async def test_a_failed_message_that_its_broker_no_longer_has_does_not_stop_its_queue(fake_cluster: Cluster) -> None:
    async with fake_cluster(**{"T": 1, "%RETRY%g": 1}) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(1, "look message by offset failed, 0")
        cluster.broker.store("T", 0, b"x")
        attempts: list[tuple[str, str]] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            attempts.append((message.queue.topic, message.topic))
            if len(attempts) == 1:
                raise ZeroDivisionError
            os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first")
        assert attempts == [("T", "T"), ("%RETRY%g", "T")]
        assert cluster.broker.offsets == {("g", "T", 0): 1, ("g", "%RETRY%g", 0): 1}


async def test_messages_that_cannot_be_sent_back_at_the_end_are_left_to_the_next_member(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(14, "the disk is full")
        cluster.broker.store("T", 0, b"x")

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            raise ZeroDivisionError

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first")
        assert not cluster.broker.offsets.get(("g", "T", 0))


async def test_a_handler_that_fails_after_the_consume_timeout_sends_no_second_copy(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        cluster.broker.store("T", 0, b"x")

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            await cluster.broker.wait_for(36)
            os.kill(os.getpid(), signal.SIGTERM)
            raise TimeoutError

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", consume_timeout=0.1)
        assert len(cluster.broker.seen(36)) == 1
        assert cluster.broker.offsets["g", "T", 0] == 1


async def cancelled_elsewhere() -> None:
    """Await something that is cancelled by others, as a request that several tasks share."""
    task = asyncio.ensure_future(asyncio.sleep(20))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_that_awaits_something_cancelled_sends_its_message_back_and_the_worker_continues(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture, in_thread: bool
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        for number in range(2):
            cluster.broker.store("T", 0, b"%d" % number)
        handled: list[bytes] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            if message.body == b"0":
                await cancelled_elsewhere()
            handled.append(message.body)
            await cluster.broker.wait_for(36)
            os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run((lambda message: handle(message)) if in_thread else handle, "T", "g", start="first")
        assert handled == [b"1"]
        assert [back.ext["delayLevel"] for back in cluster.broker.seen(36)] == ["0"]
        assert cluster.broker.offsets["g", "T", 0] == 2
    assert "handler_failed" in caplog.text
    assert "worker_drain_timed_out" not in caplog.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_worker_sends_nothing_back(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        begun = anyio.Event()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            begun.set()
            await anyio.sleep_forever()

        run = asyncio.ensure_future(client.run(handle, "T", "g", start="first", signals=False))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not cluster.broker.seen(36)
        assert not cluster.broker.offsets.get(("g", "T", 0))


async def test_a_broker_that_refuses_the_credentials_ends_the_worker_with_that_error(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[11] = lambda request: request.answer(
            1, "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=worker, org.apache"
        )
        async with gantrymq.connect(cluster.address) as client:
            with anyio.fail_after(20), pytest.raises(gantrymq.AuthenticationFailed):
                await client.run(print, "T", "g", start="first", concurrency=4)


async def test_one_signal_stops_all_workers(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1, U=1, V=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        gantrymq.connect(cluster.address) as other,
    ):
        cluster.broker.answers[36] = lambda request: request.answer(0)
        waiting: set[str] = set()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            waiting.add(message.topic)
            if waiting >= {"T", "U", "V"}:
                os.kill(os.getpid(), signal.SIGINT)

        async with anyio.create_task_group() as tasks:
            short = anyio.CancelScope()

            async def run_shortly() -> None:
                with short:
                    await client.run(handle, "T", "first")

            tasks.start_soon(run_shortly)  # it receives signals for all, until it ends
            await cluster.broker.wait_for(11)
            for topic, by in (("T", client), ("U", client), ("V", other)):
                tasks.start_soon(lambda topic, by: by.run(handle, topic, f"g-{topic}", start="first"), topic, by)
            await cluster.broker.wait_for(11, 4)
            short.cancel()
            for topic in "TUV":
                cluster.broker.store(topic, 0, b"x")
            tasks.cancel_scope.deadline = anyio.current_time() + 20
        assert not tasks.cancel_scope.cancelled_caught
        assert {cluster.broker.offsets[f"g-{topic}", topic, 0] for topic in "TUV"} == {1}


@pytest.fixture
def servers_signals() -> Iterator[list[int]]:
    """The signals of a SIGTERM handler that is older than the worker, as that of a web server."""
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        received.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    yield received
    assert signal.getsignal(signal.SIGTERM) is handle
    signal.signal(signal.SIGTERM, before)


async def test_workers_leave_the_signals_to_a_server_that_handles_them(
    fake_cluster: Cluster, servers_signals: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gantrymq")
    async with fake_cluster(T=1) as cluster, anyio.create_task_group() as tasks:
        cluster.broker.store("T", 0, b"x")
        begun = anyio.Event()
        done: list[bytes] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            begun.set()
            while not servers_signals:  # noqa: ASYNC110 - set by a handler of a signal
                await anyio.sleep(0.01)
            done.append(message.body)

        app = gantrymq.App(cluster.address)
        app.on("T", group="of-app", start="first")(handle)
        with anyio.fail_after(20):
            async with gantrymq.connect(cluster.address) as client:
                tasks.start_soon(lambda: client.run(handle, "T", "g", start="first"))
                tasks.start_soon(app.run)
                await begun.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                while len(done) < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                cluster.broker.store("T", 0, b"y")
                while len(done) < 4:  # noqa: ASYNC110 - the workers continue
                    await anyio.sleep(0.01)
                app.stop()
        assert len(servers_signals) == 1
        assert caplog.text.count("signals_left_to_application") == 2


async def test_a_worker_with_signals_true_replaces_the_handlers_of_a_server(
    fake_cluster: Cluster, servers_signals: list[int]
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        handler = signal.getsignal(signal.SIGTERM)

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", signals=True)
        assert not servers_signals
        signal.signal(signal.SIGTERM, handler)  # asyncio sets the default


async def test_closing_the_client_drains_its_workers_before_their_resources_close(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, anyio.create_task_group() as tasks:
        client = await gantrymq.connect(cluster.address).start()
        producer = await client.producer().start()
        cluster.broker.store("T", 0, b"x")
        begun, closing = anyio.Event(), anyio.Event()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            begun.set()
            await closing.wait()
            await anyio.sleep(0.01)
            await producer.send("T", b"more", queue=0)

        async def close() -> None:
            closing.set()
            await client.close()

        tasks.start_soon(lambda: client.run(handle, "T", "g", start="first", signals=False))
        with anyio.fail_after(20):
            await begun.wait()
            await close()
        assert cluster.broker.offsets["g", "T", 0] == 1
        assert len(cluster.broker.queues["T", 0]) == 2


async def test_a_plain_function_that_returns_a_coroutine_is_awaited(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        done: list[bytes] = []

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            done.append(message.body)
            os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(lambda message: handle(message), "T", "g", start="first")
        assert done == [b"x"]


async def test_the_methods_of_a_message_block_in_a_plain_handler(fake_cluster: Cluster) -> None:
    events: list[str] = []
    asked = {"CORRELATION_ID": "id", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "CLUSTER": "C"}

    async def answer(request: Command) -> Command:
        await anyio.sleep(0.02)
        events.append(f"response to {request.code}")
        return request.answer(0, ext={"msgId": "0", "queueId": "0", "queueOffset": "0"})

    def handle(message: gantrymq.sync.ReceivedMessage) -> None:
        if message.body == b"retry":
            message.retry(3)
        elif message.body == b"reply":
            message.reply(b"42")
        else:
            message.ack()
            os.kill(os.getpid(), signal.SIGTERM)
        events.append(message.body.decode())

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[36] = broker.answers[325] = answer
        for body, properties in ((b"retry", {}), (b"reply", asked), (b"ack", {})):
            broker.store("T", 0, body, encode_properties(properties))
        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", concurrency=1)
        assert events == ["response to 36", "retry", "response to 325", "reply", "ack"]
        assert [back.ext["delayLevel"] for back in broker.seen(36)] == ["3"]
        assert [reply.body for reply in broker.seen(325)] == [b"42"]
        assert broker.offsets["g", "T", 0] == 3


async def test_a_coroutine_that_a_plain_function_returns_awaits_the_methods_of_its_message(
    fake_cluster: Cluster,
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        cluster.broker.store("T", 0, b"x")

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            await message.retry(3)
            await message.ack()
            os.kill(os.getpid(), signal.SIGTERM)

        with anyio.fail_after(20):
            await client.run(lambda message: handle(message), "T", "g", start="first")
        assert [back.ext["delayLevel"] for back in cluster.broker.seen(36)] == ["3"]


async def test_a_handler_that_retries_an_ordered_message_itself_does_not_acknowledge_it(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        again = anyio.Event()

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            if not message.reconsume_times:
                await message.retry()
                await again.wait()
                return
            again.set()
            await anyio.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep_forever()

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", ordered=True, drain_timeout=0.05)
        assert not cluster.broker.offsets.get(("g", "T", 0)), "the second attempt was not finished"


@pytest.mark.parametrize(
    ("handler", "options", "error"),
    [
        ("orders", {}, TypeError),
        (print, {"drain_timeout": -1}, ValueError),
        (print, {"ordered": "topic"}, ValueError),
        (print, {"prefetch": 0}, ValueError),
        (print, {"pre_fetch": 10}, TypeError),
    ],
)
async def test_invalid_worker_options_are_rejected(
    fake_cluster: Cluster, handler: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(error):
            await client.run(handler, "T", "g", **options)


def test_the_blocking_worker_has_the_options_of_the_async_one() -> None:
    options, blocking = (
        {key: value.default for key, value in inspect.signature(kind.run).parameters.items()}
        for kind in (gantrymq.Client, gantrymq.sync.Client)
    )
    assert options == blocking


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_worker_drains_at_a_signal(fake_in_thread: Any, backend: Any) -> None:
    broker = fake_in_thread.broker
    broker.answers[36] = lambda request: request.answer(0)
    for number in range(20):
        broker.store("T", number % 2, b"%d" % number)
    together = threading.Barrier(4, timeout=20)
    begun = itertools.count()
    done: list[bytes] = []
    previous = signal.getsignal(signal.SIGTERM)

    def handle(message: gantrymq.sync.ReceivedMessage) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if next(begun) < 4:
            together.wait()
        if message.body == b"5":
            raise gantrymq.DeadLetter("no")
        if message.body == b"6":
            message.ack()
        done.append(message.body)
        if len(done) == 19:
            os.kill(os.getpid(), signal.SIGTERM)

    with gantrymq.sync.connect(fake_in_thread.address, backend=backend) as client:
        client.run(handle, "T", "g", start="first", concurrency=4)
        assert signal.getsignal(signal.SIGTERM) is previous
    assert sorted(map(int, done)) == sorted({*range(20)} - {5})
    assert [back.ext["delayLevel"] for back in broker.seen(36)] == ["-1"]
    assert (broker.offsets["g", "T", 0], broker.offsets["g", "T", 1]) == (10, 10)


def test_a_handler_of_a_signal_ends_a_blocking_worker_by_closing_the_client(fake_in_thread: Any) -> None:
    fake_in_thread.broker.store("T", 0, b"x")
    received: list[int] = []

    with gantrymq.sync.connect(fake_in_thread.address) as client:

        def end(number: int, frame: object) -> None:
            received.append(number)
            client.close()

        before = signal.signal(signal.SIGTERM, end)
        try:
            client.run(lambda message: os.kill(os.getpid(), signal.SIGTERM), "T", "g", start="first")
        finally:
            signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert fake_in_thread.broker.offsets["g", "T", 0] == 1


def test_a_second_signal_ends_a_blocking_worker_at_once(fake_in_thread: Any) -> None:
    fake_in_thread.broker.store("T", 0, b"x")
    released = threading.Event()

    def handle(message: gantrymq.sync.ReceivedMessage) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            released.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        released.wait(20)

    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with pytest.raises(KeyboardInterrupt):
            client.run(handle, "T", "g", start="first")
        committed = fake_in_thread.broker.offsets.get(("g", "T", 0))
        released.set()
    assert not committed


def test_a_blocking_worker_in_a_thread_stops_when_the_client_closes(fake_in_thread: Any) -> None:
    fake_in_thread.broker.store("T", 0, b"x")
    client = gantrymq.sync.connect(fake_in_thread.address).start()
    begun, closing = threading.Event(), threading.Event()

    def handle(message: gantrymq.sync.ReceivedMessage) -> None:
        begun.set()
        assert closing.wait(20)
        message.ack()

    thread = threading.Thread(target=client.run, args=(handle, "T", "g"), kwargs={"start": "first"})
    thread.start()
    assert begun.wait(20)
    closing.set()
    client.close()
    thread.join(20)
    assert not thread.is_alive()
    assert fake_in_thread.broker.offsets["g", "T", 0] == 1


def test_an_ordered_message_sent_back_by_a_blocking_handler_is_redelivered(
    fake_in_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0)
    for number in range(3):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    attempts: list[tuple[bytes, int]] = []

    def handle(message: gantrymq.sync.ReceivedMessage) -> None:
        attempts.append((message.body, message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 2:
            message.retry()
        if message.body == b"2":
            os.kill(os.getpid(), signal.SIGTERM)

    with gantrymq.sync.connect(fake_in_thread.address) as client:
        client.run(handle, "T", "g", start="first", ordered=True)
    assert attempts == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]
    assert fake_in_thread.broker.offsets["g", "T", 0] == 3


def test_a_blocking_worker_accepts_plain_functions_only(fake_in_thread: Any) -> None:
    async def handle(message: gantrymq.ReceivedMessage) -> None:
        pass

    handlers: list[Any] = [handle, "orders"]
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        for handler in handlers:
            with pytest.raises(TypeError, match="handler"):
                client.run(handler, "T", "g")
        with pytest.raises(ValueError, match="concurrency"):
            client.run(print, "T", "g", concurrency=0)


def test_a_handler_that_ends_after_its_message_was_redelivered_takes_nothing_from_the_next_one() -> None:
    second_has_begun, first_has_ended = threading.Event(), threading.Event()
    message: Any = SimpleNamespace(delivery="the queue's")
    used: list[Any] = []

    def handle(message: Any) -> None:
        if second.ident is None:
            second.start()
            assert second_has_begun.wait(20)
        else:
            second_has_begun.set()
            assert first_has_ended.wait(20)
            used.append(message.delivery)

    call: Any = gantrymq.sync._for_worker(handle, Any)
    second = threading.Thread(target=call, args=(message,))
    call(message)
    first_has_ended.set()
    second.join(20)
    assert [isinstance(each, DeliveryToThread) for each in used] == [True]
    assert message.delivery == "the queue's"
