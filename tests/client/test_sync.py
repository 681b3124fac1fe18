"""The blocking client: plain iterators, errors, closing, and the end of the event loop's thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, MessageQueue
from gantrymq.client.blocking_lifetime import BlockingLifetime

Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def wait_until(cluster: Any, holds: Callable[[], bool]) -> None:
    """Return when ``holds()``; TimeoutError after 20 seconds."""

    async def wait() -> None:
        with anyio.fail_after(20):
            while not holds():  # noqa: ASYNC110 - another event loop changes it
                await anyio.sleep(0.002)

    cluster.portal.call(wait)


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_the_blocking_client_sends_and_consumes(fake_in_thread: Any, backend: Any) -> None:
    broker = fake_in_thread.broker
    with gantrymq.sync.connect(fake_in_thread.address, backend=backend) as client:
        assert "@" in client.client_id
        with client.producer("p") as producer, client.consumer("T", "g", start="first") as messages:
            results = [producer.send("T", b"%d" % number, tags="a") for number in range(4)]
            results += producer.send_batch([Message("T", b"4"), Message("T", b"5")])
            got = [next(messages) for _ in range(6)]
            assert {message.body for message in got} == {b"0", b"1", b"2", b"3", b"4", b"5"}
            assert {message.message_id for message in got} == {result.message_id for result in results}
            assert len(messages.queues) == len(producer.queues("T")) == 2
            for message in got:
                message.ack()
            messages.commit()
            assert sum(broker.offsets.values()) == 6
            assert (messages.statistics().acknowledged, messages.statistics().outstanding) == (6, 0)
            assert messages.next_batch(timeout=0) == []


def test_the_last_acknowledgments_are_committed_at_the_end(fake_in_thread: Any) -> None:
    for number in range(6):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.consumer("T", "g", start="first") as messages:
            for batch in messages.batches(max=4):
                for message in batch:
                    message.ack()
                if message.queue_offset == 5:
                    break
        assert fake_in_thread.broker.offsets["g", "T", 0] == 6


def test_a_batch_is_acknowledged_at_once(fake_in_thread: Any, backend: Any) -> None:
    for number in range(6):
        fake_in_thread.broker.store("T", number % 2, b"%d" % number)
    left = 6
    with gantrymq.sync.connect(fake_in_thread.address, backend=backend) as client:
        with client.consumer("T", "g", start="first") as messages:
            while left:
                batch = messages.next_batch(max=4)
                left -= len(batch)
                batch[0].ack()
                batch.ack()
            assert (messages.statistics().acknowledged, messages.statistics().outstanding) == (6, 0)
            messages.next_batch(timeout=0).ack()
    assert fake_in_thread.broker.offsets == {("g", "T", 0): 3, ("g", "T", 1): 3}
    with pytest.raises(gantrymq.ClientClosed):
        batch.ack()


def test_a_batch_after_the_iteration_has_the_messages_that_were_read_ahead(fake_in_thread: Any, backend: Any) -> None:
    seen: list[bytes] = []
    watcher = gantrymq.Interceptor()
    watcher.before_consume = lambda context: seen.append(context.message.body)  # type: ignore[method-assign]
    for number in range(6):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    with (
        gantrymq.sync.connect(fake_in_thread.address, interceptors=[watcher], backend=backend) as client,
        client.consumer("T", "g", start="first") as messages,
    ):
        first = next(messages)
        first.ack()
        batches = [messages.next_batch(1, timeout=20), messages.next_batch(timeout=20)]
        for batch in batches:
            batch.ack()
        batches.append(messages.next_batch(timeout=0))
        fake_in_thread.broker.store("T", 0, b"6")
        last = next(messages)
        last.ack()
        assert messages.statistics().outstanding == 0
    got = [[message.body for message in batch] for batch in batches]
    assert [first.body, *got, last.body] == [b"0", [b"1"], [b"2", b"3", b"4", b"5"], [], b"6"]
    assert seen == [b"%d" % number for number in range(7)]
    assert fake_in_thread.broker.offsets["g", "T", 0] == 7


@pytest.mark.parametrize("as_batches", [False, True])
def test_messages_acknowledged_within_the_consume_timeout_are_not_sent_back(
    fake_in_thread: Any, as_batches: bool
) -> None:
    """An acknowledgment counts from when it is made, and a message's time from when the application gets it."""
    broker = fake_in_thread.broker
    broker.answers[36] = lambda request: request.answer(0)
    for number in range(6):
        broker.store("T", 0, b"%d" % number)
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first", consume_timeout=1.0) as messages,
    ):
        if as_batches:
            batch = messages.next_batch(max=6)
            assert len(batch) == 6
            time.sleep(0.2)
            batch[0].ack()
            batch.ack()
            time.sleep(1.4)  # long before the next fetch, which there may never be
        else:
            for message in messages:
                time.sleep(0.25)
                message.ack()
                if message.queue_offset == 5:
                    break
            time.sleep(1.4)
        assert broker.seen(36) == []
        assert (messages.statistics().acknowledged, messages.statistics().returned) == (6, 0)
    assert broker.offsets["g", "T", 0] == 6


@pytest.mark.parametrize("size", [0, -1])
def test_batches_of_less_than_one_message_are_refused(fake_in_thread: Any, size: int) -> None:
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first") as messages,
    ):
        for use in (messages.next_batch, messages.batches):
            with pytest.raises(ValueError, match=f"max {size}: ask for at least one message"):
                use(size)


def test_messages_of_a_revoked_queue_are_dropped(fake_in_thread: Any) -> None:
    for number in range(6):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first") as messages,
    ):
        first = next(messages)
        assert first.delivery is not None
        client._inner._cluster._consumers["g"]._pullers[first.queue].dropped = True
        fake_in_thread.broker.store("T", 1, b"other")
        assert next(messages).body == b"other"


def test_an_ordered_message_of_a_queue_revoked_meanwhile_is_given_out_and_its_ack_frees_the_queue(
    fake_in_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = fake_in_thread.broker
    broker.store("T", 0, b"x")

    async def add_member() -> None:
        broker.groups["g"].insert(0, "0-another-member")  # sorts first, so it gets queue 0
        await broker.notify("g")

    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        fetch = messages.next_batch

        def fetch_slowly(*arguments: Any) -> Any:
            monkeypatch.undo()
            batch = fetch(*arguments)
            fake_in_thread.portal.call(add_member)
            wait_until(fake_in_thread, lambda: batch[0].delivery.dropped)
            fake_in_thread.portal.call(broker.store, "T", 1, b"of the queue that is left")
            return batch

        monkeypatch.setattr(messages, "next_batch", fetch_slowly)
        message = next(messages)
        assert message.body == b"x"
        message.ack()
        messages.commit()
        wait_until(fake_in_thread, lambda: ("g", Q0) not in broker.locks)
    assert broker.offsets["g", "T", 0] == 1


def test_the_blocking_client_queries_topics_and_offsets(fake_in_thread: Any) -> None:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    fake_in_thread.broker.store("T", 0, b"x")
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        admin = client.admin
        assert admin.topics() == ["T"]
        assert admin.queues("T")[0] == queue
        assert len(admin.route("T").queue_datas) == 1
        assert list(admin.cluster().cluster_addr_table) == ["C"]
        assert (admin.min_offset(queue), admin.max_offset(queue), admin.search_offset(queue, 0)) == (0, 1, 1)
        assert admin.consumer_offset("g", queue) is None
        admin.set_consumer_offset("g", queue, 1)
        assert admin.consumer_offset("g", queue) == 1
        assert admin.create_topic("T", cluster="C") == [fake_in_thread.broker.address]


def test_the_blocking_client_raises_the_same_errors(fake_in_thread: Any) -> None:
    with pytest.raises(gantrymq.ConnectFailed, match="connection refused"), gantrymq.sync.connect("127.0.0.1:1"):
        pytest.fail("nobody is there")
    with pytest.raises(ValueError, match="host:port"), gantrymq.sync.connect("nowhere"):
        pytest.fail("no address")
    with gantrymq.sync.connect(fake_in_thread.address) as client, client.producer() as producer:
        with pytest.raises(gantrymq.InvalidMessage):
            producer.send("T", b"")
        with pytest.raises(gantrymq.InvalidName), client.consumer("T", "a b"):
            pytest.fail("no group")


def test_a_closed_blocking_client_raises_and_its_thread_has_ended(fake_in_thread: Any) -> None:
    fake_in_thread.broker.store("T", 0, b"x")
    before = threading.active_count()
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.producer("p") as producer, client.consumer("T", "g", start="first") as messages:
            message = next(messages)
        with pytest.raises(gantrymq.ClientClosed, match="producer of group p is closed"):
            producer.send("T", b"x")
        with pytest.raises(gantrymq.ClientClosed, match="consumer of group g is closed"):
            next(messages)
        with pytest.raises(gantrymq.ClientClosed):
            messages.commit()
        with pytest.raises(gantrymq.ClientClosed):
            message.ack()
    for use in (client.admin.topics, client.producer("p").__enter__, client.consumer("T", "g").__enter__):
        with pytest.raises(gantrymq.ClientClosed, match="client is closed"):
            use()
    assert threading.active_count() <= before  # a thread of an earlier test may end meanwhile


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_ctrl_c_in_the_block_propagates_and_settled_messages_are_committed(
    fake_in_thread: Any, backend: Any, stop: type[BaseException]
) -> None:
    fake_in_thread.broker.store("T", 0, b"x")

    def work() -> None:
        with (
            gantrymq.sync.connect(fake_in_thread.address, backend=backend) as client,
            client.producer("p"),
            client.consumer("T", "g", start="first") as messages,
        ):
            next(messages).ack()
            raise stop

    with pytest.raises(stop):
        work()
    assert fake_in_thread.broker.offsets["g", "T", 0] == 1
    assert fake_in_thread.broker.groups["g"] == []


FORKED = """
import os, sys, warnings
import gantrymq, gantrymq.sync

warnings.simplefilter("ignore")
with gantrymq.sync.connect(sys.argv[1]) as client, client.producer() as producer, client.consumer("T", "g") as messages:
    producer.send("T", b"parent")
    child = os.fork()
    if child == 0:
        for use in (lambda: producer.send("T", b"child"), lambda: next(messages), client.admin.topics):
            try:
                use()
            except gantrymq.ClientClosed as error:
                assert "connect after the fork" in str(error), error
            else:
                sys.exit("a forked client must not work")
    else:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        producer.send("T", b"parent again")
if child == 0:
    with gantrymq.sync.connect(sys.argv[1]) as client, client.producer() as producer:
        producer.send("T", b"child")
    os._exit(7)
"""


def test_a_forked_process_gets_an_error_that_asks_it_to_connect(fake_in_thread: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, fake_in_thread.address], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(fake_in_thread.broker.seen(310)) == 3


def test_clients_producers_and_consumers_have_start_and_close(fake_in_thread: Any, backend: Any) -> None:
    broker = fake_in_thread.broker
    before = threading.active_count()
    client = gantrymq.sync.connect(fake_in_thread.address, backend=backend)
    with pytest.raises(gantrymq.ClientClosed, match="the client is not started: use `with`, or call its start"):
        client.producer()
    assert client.start() is client
    producer, consumer, reader = client.producer("p"), client.consumer("T", "g", start="first"), client.reader("T")
    transactional = client.transactional_producer("tx", check=lambda half: gantrymq.Outcome.UNKNOWN)
    calls: dict[str, Callable[[], object]] = {
        "producer of group p": lambda: producer.send("T", b"x"),
        "consumer of group g": lambda: next(consumer),
        "reader": reader.poll,
        "producer of group tx": lambda: transactional.send("T", b"x", local=lambda *_: gantrymq.Outcome.COMMIT),
    }
    for what, call in calls.items():
        text = f"^the {what} is not started: use `with`, or call its start\\(\\) first$"
        with pytest.raises(gantrymq.ClientClosed, match=text):
            call()
    for one in (producer, consumer, reader, transactional):
        assert one.start() is one  # type: ignore[attr-defined]
    producer.send("T", b"x")
    assert [each.body for each in reader.poll()] == [b"x"]
    next(consumer).ack()
    for one in (reader, consumer, transactional, producer):
        one.close()  # type: ignore[attr-defined]
        one.close()  # type: ignore[attr-defined]
    assert sum(broker.offsets.values()) == 1
    with pytest.raises(gantrymq.ClientClosed, match="the producer of group p was started before"):
        producer.start()
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(20)
    assert threading.active_count() <= before  # a thread of an earlier test may end meanwhile


def test_closing_the_client_closes_what_was_started_from_it(fake_in_thread: Any, backend: Any) -> None:
    client = gantrymq.sync.connect(fake_in_thread.address, backend=backend).start()
    producer = client.producer("p", linger=60).start()
    consumer = client.consumer("T", "g", start="first").start()
    pending = producer.enqueue("T", b"x")
    client.close()
    assert pending.result().status is gantrymq.SendStatus.OK
    for use in (producer.flush, consumer.next_batch, client.admin.topics):
        with pytest.raises(gantrymq.ClientClosed, match="is closed"):
            use()


def test_a_program_without_close_ends_and_sends_its_enqueued_messages(fake_in_thread: Any, backend: Any) -> None:
    program = f"""
import gantrymq.sync
client = gantrymq.sync.connect({fake_in_thread.address!r}, backend={backend!r}).start()
producer = client.producer(linger=60).start()
producer.enqueue("T", b"x")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert sum(len(queue) for queue in fake_in_thread.broker.queues.values()) == 1


@pytest.mark.parametrize("kind", ["consumer", "reader"])
def test_an_iteration_ends_with_an_error_once_its_object_is_closed(fake_in_thread: Any, kind: str) -> None:
    for number in range(6):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        options = {"group": "g", "start": "first"} if kind == "consumer" else {}
        with getattr(client, kind)("T", **options) as messages:
            assert next(messages).body == b"0"
            messages.close()
            with pytest.raises(gantrymq.ClientClosed):
                next(messages)


def test_close_during_the_close_of_the_same_thread_returns() -> None:
    """The handler of a second signal does this."""

    class Closing(BlockingLifetime):
        @contextmanager
        def _open(self) -> Iterator[None]:
            yield
            self.close()

    closing = Closing("test")
    closing.start()
    thread = threading.Thread(target=closing.close, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
