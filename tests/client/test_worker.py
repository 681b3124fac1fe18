"""A worker: handlers at once, retries by the broker, and an end that loses nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


async def test_handlers_run_at_once_and_what_they_finish_is_committed_at_sigterm(fake_cluster: Cluster) -> None:
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


async def test_what_a_handler_does_not_finish_in_time_is_not_committed(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        async def handle(message: gantrymq.ReceivedMessage) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep_forever()

        with anyio.fail_after(20):
            await client.run(handle, "T", "g", start="first", drain_timeout=0.1)
        assert not cluster.broker.offsets.get(("g", "T", 0))


async def test_a_plain_function_runs_in_a_thread_and_its_error_gives_the_message_back(
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


async def test_an_ordered_worker_handles_a_queue_one_by_one(fake_cluster: Cluster) -> None:
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
async def test_a_concurrency_that_cannot_be_is_refused(fake_cluster: Cluster, concurrency: Any) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(ValueError, match="concurrency"):
            await client.run(print, "T", "g", concurrency=concurrency)
