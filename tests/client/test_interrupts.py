"""Ctrl-C in a waiting call of the blocking client, as by a notebook's stop button, loses nothing."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue, Outcome
from gantrymq.client.loop import Loop

Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


@pytest.fixture(params=["asyncio", "trio"])
def client(request: pytest.FixtureRequest, fake_in_thread: Any) -> Iterator[gantrymq.sync.Client]:
    with gantrymq.sync.connect(fake_in_thread.address, backend=request.param) as client:
        yield client


@contextmanager
def interrupted(cluster: Any, when: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C comes as soon as ``when()``, and the block must be interrupted by it."""
    begun = arrived = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal arrived
        arrived = True
        raise KeyboardInterrupt

    async def send() -> None:
        with anyio.fail_after(20):
            while not (begun and when()):  # noqa: ASYNC110 - another event loop changes it
                await anyio.sleep(0.002)
            while not arrived:  # a thread that is about to wait for a lock does not notice it
                os.kill(os.getpid(), signal.SIGINT)
                with anyio.move_on_after(0.5):
                    while not arrived:  # noqa: ASYNC110 - a thread sets it
                        await anyio.sleep(0.002)

    before = signal.signal(signal.SIGINT, interrupt)
    sent = cluster.portal.start_task_soon(send)
    try:
        begun = True
        yield
    except KeyboardInterrupt:
        sent.result()
    else:
        pytest.fail("it was not interrupted")
    finally:
        signal.signal(signal.SIGINT, before)


def store(cluster: Any, *bodies: bytes) -> None:
    for body in bodies:
        cluster.portal.call(cluster.broker.store, "T", 0, body)


async def wait_for(event: threading.Event) -> None:
    with anyio.fail_after(20):
        while not event.is_set():  # noqa: ASYNC110 - a thread sets it
            await anyio.sleep(0.002)


def waits(member: Any) -> Callable[[], bool]:
    """Whether a call of a consumer or reader waits for messages."""
    return lambda: bool(member._inner._arrived.statistics().tasks_waiting)


def calls_in(client: gantrymq.sync.Client) -> int:
    """How many calls of threads run in the client's event loop."""

    async def count() -> int:
        return sum("_call_func" in (task.name or "") for task in anyio.get_running_tasks()) - 1  # this one

    return client._loop.portal.call(count)


class LateCall:
    """An async function that does its work and returns the result only when it is cancelled."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.done = threading.Event()

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = await self.work(*arguments, **options)
        self.done.set()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        return result


@pytest.mark.parametrize("ordered", [False, True, "key"])
def test_messages_that_come_after_an_interrupted_wait_go_to_the_next_call(
    fake_in_thread: Any, client: gantrymq.sync.Client, ordered: Any
) -> None:
    with client.consumer("T", "g", start="first", ordered=ordered) as messages:
        with interrupted(fake_in_thread, waits(messages)):
            next(messages)
        assert calls_in(client) == 0
        store(fake_in_thread, b"0", b"1", b"2")
        for number in range(3):
            (message,) = messages.next_batch(1, timeout=20)
            assert message.body == b"%d" % number
            message.ack()
        assert messages.statistics().outstanding == 0
    assert fake_in_thread.broker.offsets["g", "T", 0] == 3


@pytest.mark.parametrize("ordered", [False, True, "key"])
@pytest.mark.parametrize("interceptors", [(), (gantrymq.Interceptor(),)], ids=["plain", "intercepted"])
def test_a_batch_that_comes_at_the_moment_of_the_interrupt_is_given_out_again(
    fake_in_thread: Any, ordered: Any, interceptors: tuple[gantrymq.Interceptor, ...]
) -> None:
    for number in range(4):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    client = gantrymq.sync.connect(fake_in_thread.address, interceptors=interceptors)
    with client, client.consumer("T", "g", start="first", ordered=ordered) as messages:
        fetch = messages._fetch
        late = LateCall(fetch)
        messages._fetch = late  # type: ignore[method-assign]
        with interrupted(fake_in_thread, late.done.is_set):
            messages.next_batch(3)
        messages._fetch = fetch  # type: ignore[method-assign]
        got: list[bytes] = []
        while len(got) < 4:
            batch = messages.next_batch(2, timeout=20)
            got += [message.body for message in batch]
            batch.ack()
        assert got == [b"0", b"1", b"2", b"3"]
        assert messages.statistics().outstanding == 0
    assert fake_in_thread.broker.offsets["g", "T", 0] == 4


def test_an_ordered_message_that_nobody_got_does_not_keep_a_revoked_queue(fake_in_thread: Any) -> None:
    broker = fake_in_thread.broker
    broker.store("T", 0, b"x")

    async def move_queue() -> None:
        broker.groups["g"].insert(0, "0-another-member")  # sorts first, so it gets queue 0
        await broker.notify("g")

    async def wait_for_unlock() -> None:
        with anyio.fail_after(20):
            while ("g", Q0) in broker.locks:
                await broker.changed.wait()

    client = gantrymq.sync.connect(fake_in_thread.address)
    with client, client.consumer("T", "g", start="first", ordered=True) as messages:
        late = LateCall(messages._fetch)
        messages._fetch = late  # type: ignore[method-assign]
        with interrupted(fake_in_thread, late.done.is_set):
            next(messages)
        fake_in_thread.portal.call(move_queue)
        fake_in_thread.portal.call(wait_for_unlock)
    assert broker.offsets["g", "T", 0] == 0


def test_a_reader_whose_poll_was_interrupted_continues_where_it_was(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    with client.reader("T", start="first") as reader:
        reader.assign([Q0])
        with interrupted(fake_in_thread, waits(reader)):
            reader.poll()
        store(fake_in_thread, b"0", b"1", b"2")
        assert [message.body for message in reader.poll(20, max=1)] == [b"0"]
        poll = reader._inner.poll
        late = LateCall(poll)
        reader._inner.poll = late  # type: ignore[method-assign]
        with interrupted(fake_in_thread, late.done.is_set):
            reader.poll()
        reader._inner.poll = poll  # type: ignore[method-assign]
        assert reader.position(Q0) == 1
        assert [next(reader).body for _ in range(2)] == [b"1", b"2"]


def test_an_interrupt_after_the_result_has_come_returns_the_result(client: gantrymq.sync.Client) -> None:
    portal = client._loop.portal

    class Portal:
        def call(self, function: Any, *arguments: Any) -> Any:
            result = portal.call(function, *arguments)
            if result is not None:
                raise KeyboardInterrupt
            return result

    async def fetch() -> list[int]:
        return [1]

    async def take(result: list[int]) -> None:
        taken.extend(result)

    taken: list[int] = []
    for reclaim in (taken.extend, take):
        taken.clear()
        with pytest.raises(KeyboardInterrupt):
            Loop(Portal(), "test").call(fetch, reclaim=reclaim)  # type: ignore[arg-type]
        assert taken == [1]


def test_an_interrupted_send_is_not_tried_again(fake_in_thread: Any, client: gantrymq.sync.Client) -> None:
    broker = fake_in_thread.broker
    broker.answers[310] = lambda request: request.answer(2, "busy")  # which is tried again until the timeout
    with client.producer(timeout=60) as producer:
        with interrupted(fake_in_thread, lambda: len(broker.seen(310)) > 1):
            producer.send("T", b"x", queue=0)
        assert calls_in(client) == 0
        del broker.answers[310]
        producer.send("T", b"y")
        assert broker.sent()[-1] == b"y"
        assert producer._inner._sender.window.empty


def test_an_interrupted_flush_or_wait_for_a_result_loses_no_enqueued_message(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    broker, store_message = fake_in_thread.broker, fake_in_thread.broker.on_send_message_v2
    release = threading.Event()

    async def answer_late(request: Any) -> Any:
        await wait_for(release)
        return store_message(request)

    broker.answers[310] = answer_late
    with client.producer(timeout=60) as producer:
        pending = producer.enqueue("T", b"x")

        def is_awaited() -> bool:
            changed = pending._inner._batch._changed
            return changed is not None and changed.statistics().tasks_waiting > 0

        for wait in (producer.flush, pending.result):
            with interrupted(fake_in_thread, is_awaited):
                wait()
        assert calls_in(client) == 0
        release.set()
        assert pending.result(timeout=20).status is gantrymq.SendStatus.OK
        last = producer.enqueue("T", b"y")
    assert last.result().status is gantrymq.SendStatus.OK
    assert sorted(broker.sent()) == [b"x", b"y"]


def test_an_interrupted_enqueue_that_waits_for_room_puts_nothing_in(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    broker = fake_in_thread.broker
    with client.producer(linger=60, buffer_bytes=1) as producer:
        first = producer.enqueue("T", b"x")
        window = producer._inner._accumulator._window
        with interrupted(fake_in_thread, lambda: bool(window._waiting)):
            producer.enqueue("T", b"y")
        producer.flush()
        assert first.done
        producer.enqueue("T", b"z")
    assert broker.sent() == [b"x", b"z"]


def test_an_interrupted_request_waits_for_no_reply(fake_in_thread: Any, client: gantrymq.sync.Client) -> None:
    with client.producer() as producer:
        with interrupted(fake_in_thread, lambda: bool(fake_in_thread.broker.seen(310))):
            producer.request("T", b"x", timeout=60)
        assert client._inner._cluster.replies._waiting == {}
        assert calls_in(client) == 0


def test_the_outcome_of_a_transaction_is_sent_after_an_interrupt(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    stored = {"msgId": f"7F00000100002A9F{7:016X}", "queueId": "0", "queueOffset": "3"}
    fake_in_thread.broker.answers[310] = lambda request: request.answer(0, ext=stored)
    with client.transactional_producer("tx", check=lambda half: Outcome.UNKNOWN) as producer:
        end, is_ending, may_end = producer._inner.end, threading.Event(), threading.Event()

        async def end_late(*arguments: Any) -> None:
            is_ending.set()
            await wait_for(may_end)
            await end(*arguments)

        producer._inner.end = end_late  # type: ignore[method-assign]
        with interrupted(fake_in_thread, is_ending.is_set):
            producer.send("T", b"x", local=lambda message, transaction: Outcome.COMMIT)
        assert fake_in_thread.broker.seen(37) == []
        may_end.set()
        (ended,) = fake_in_thread.portal.call(fake_in_thread.broker.wait_for, 37)
        assert ended.ext["commitOrRollback"] == "8"


def test_an_interrupted_retry_still_gives_the_message_back(fake_in_thread: Any, client: gantrymq.sync.Client) -> None:
    broker, release = fake_in_thread.broker, threading.Event()

    async def answer_late(request: Any) -> Any:
        await wait_for(release)
        return request.answer(0)

    broker.answers[36] = answer_late
    broker.store("T", 0, b"x")
    with client.consumer("T", "g", start="first") as messages:
        message = next(messages)
        with interrupted(fake_in_thread, lambda: bool(broker.seen(36))):
            message.retry()
        release.set()

        async def wait_returned() -> None:
            with anyio.fail_after(20):
                while messages._inner.statistics().outstanding:  # noqa: ASYNC110 - it has no event
                    await anyio.sleep(0.002)

        client._loop.portal.call(wait_returned)
    assert broker.offsets["g", "T", 0] == 1
    assert len(broker.seen(36)) == 1


def test_a_consumer_whose_start_was_interrupted_is_no_member(fake_in_thread: Any, client: gantrymq.sync.Client) -> None:
    broker = fake_in_thread.broker
    broker.store("T", 0, b"x")
    broker.answers[38] = lambda request: anyio.sleep_forever()  # the members of the group
    with interrupted(fake_in_thread, lambda: bool(broker.seen(38))):
        client.consumer("T", "g", start="first").start()
    assert calls_in(client) == 0
    assert broker.groups["g"] == []
    del broker.answers[38]
    with client.consumer("T", "g", start="first") as messages:
        assert next(messages).body == b"x"


def test_an_object_that_was_started_at_the_moment_of_the_interrupt_is_closed(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    consumer = client.consumer("T", "g", start="first")
    late = LateCall(consumer._inner.start)
    consumer._inner.start = late  # type: ignore[method-assign]
    with interrupted(fake_in_thread, late.done.is_set):
        consumer.start()
    assert fake_in_thread.broker.groups["g"] == []
    with client.consumer("T", "g", start="first"):
        assert len(fake_in_thread.broker.groups["g"]) == 1


def test_an_object_that_is_interrupted_with_the_last_step_of_its_start_is_closed(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    class Owner(set[Any]):
        def add(self, each: Any) -> None:
            raise KeyboardInterrupt

    consumer = client.consumer("T", "g", start="first")
    consumer._owner = Owner()
    with pytest.raises(KeyboardInterrupt):
        consumer.start()
    assert fake_in_thread.broker.groups["g"] == []
    consumer.close()


def test_an_interrupted_connect_leaves_no_thread(fake_in_thread: Any) -> None:
    before = threading.active_count()
    fake_in_thread.nameserver.answers[105] = lambda request: anyio.sleep_forever()
    seen = threading.Event()
    client = gantrymq.sync.connect(fake_in_thread.address)
    start = client._inner.start

    async def begin() -> Any:
        await start()
        seen.set()
        await anyio.sleep_forever()

    client._inner.start = begin  # type: ignore[method-assign]
    with interrupted(fake_in_thread, seen.is_set), client:
        pytest.fail("it has not begun")
    assert threading.active_count() <= before


def test_an_interrupted_end_still_sends_what_is_enqueued(fake_in_thread: Any, client: gantrymq.sync.Client) -> None:
    broker, store_message = fake_in_thread.broker, fake_in_thread.broker.on_send_message_v2
    release = threading.Event()

    async def answer_late(request: Any) -> Any:
        await wait_for(release)
        return store_message(request)

    broker.answers[310] = answer_late
    producer = client.producer(timeout=60).start()
    pending = producer.enqueue("T", b"x")
    with interrupted(fake_in_thread, lambda: bool(broker.seen(310))):
        producer.close()
    release.set()
    client.close()
    assert pending.result().status is gantrymq.SendStatus.OK
    with pytest.raises(gantrymq.ClientClosed):
        producer.enqueue("T", b"y")


def test_an_interrupted_worker_without_signals_leaves_its_group(
    fake_in_thread: Any, client: gantrymq.sync.Client
) -> None:
    broker = fake_in_thread.broker
    with interrupted(fake_in_thread, lambda: bool(broker.groups["g"]) and bool(broker.seen(11))):
        client.run(lambda message: None, "T", "g", signals=False)
    fake_in_thread.portal.call(broker.wait_for, 35)
    assert broker.groups["g"] == []


def client_objects() -> Counter[str]:
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    return Counter(
        kind.__qualname__ for kind in kinds if str(kind.__module__).startswith(("gantrymq.client", "gantrymq.sync"))
    )


def test_interrupted_calls_leave_no_objects_behind(fake_in_thread: Any, client: gantrymq.sync.Client) -> None:
    with client.consumer("T", "g") as messages, client.reader("T") as reader:
        counts = []
        for _ in range(4):
            for member, use in ((messages, messages.next_batch), (reader, reader.poll)):
                with interrupted(fake_in_thread, waits(member)):
                    use()
            assert calls_in(client) == 0
            counts.append(client_objects())
        assert counts[3] == counts[1]


@pytest.mark.parametrize("ordered", [False, True])
def test_members_that_were_used_and_closed_leave_no_objects_behind(
    fake_in_thread: Any, client: gantrymq.sync.Client, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0)
    fake_in_thread.broker.answers[36] = lambda request: request.answer(0)

    def use() -> None:
        with client.producer() as producer, client.consumer("T", "g", start="first", ordered=ordered) as messages:
            producer.send("T", b"x", queue=0)
            pending = producer.enqueue("T", b"y", queue=0)
            assert pending.result(timeout=20).status is gantrymq.SendStatus.OK
            for number in range(5):
                message = next(messages)
                if number < 3 and ordered:
                    message.retry()
                else:
                    message.ack()
                    producer.send("T", b"z", queue=0)
            with interrupted(fake_in_thread, lambda: not messages._done):
                while True:
                    messages.next_batch(1).ack()
        with client.reader("T", start="first") as reader:
            assert reader.poll(20)

    counts = []
    for _ in range(4):
        use()
        counts.append(client_objects())
    assert counts[3] == counts[1]
