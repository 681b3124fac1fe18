"""RocketMQ 5.3.3 and ours deliver timed messages from the store of the other.

Nothing but time passes between the two; what each delivered is read from the store, with the moment it was stored.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.recall import RecallMessageHeader
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.foreign import Java, JavaServer, start_broker
from support.processes import free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(240)]

Homes = Callable[[str], Path]
TOPIC = "TimerCrossing"
NAME = "crossing"
SECOND_MS = 1000
PROMPT_MS = 5_000
"""The longest delay of the earliest message."""
LATE_MS = 20_000
"""The longest delay of any message on a busy machine."""
QUIET_S = 3
"""The silence after the last due message that shows that no other one follows."""


@attrs.frozen
class Running:
    """A broker on the store, and whether it delivers at the end of a message's second."""

    channel: Channel
    width_ms: int


@asynccontextmanager
async def ours(store: Path) -> AsyncIterator[Running]:
    settings = {"store.commit_log_file_bytes": "1 GiB", "broker.name": NAME}
    async with run_broker(make_broker(store, settings=settings)) as broker, open_channel(broker.address) as channel:
        yield Running(channel, 0)


@asynccontextmanager
async def killed_ours(home: Path, store: Path) -> AsyncIterator[Running]:
    """Ours in a process of its own, which ends at once."""
    (port,) = free_ports()
    serve = ["broker", "--data", str(store), "--listen", f"127.0.0.1:{port}"]
    serve += ["--set", "store.commit_log_file_bytes=1 GiB", "--set", f"broker.name={NAME}"]
    with gantrymq_child(serve, home / "serve.err") as child:
        await trio.to_thread.run_sync(child.wait_line, lambda line: line.startswith("ready"))
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield Running(channel, 0)
        child.process.kill()


@asynccontextmanager
async def theirs(java: Java, home: Path, store: Path, how: str = "stopped") -> AsyncIterator[Running]:
    def start() -> JavaServer:
        return start_broker(
            java, home, "", name=NAME, store=store, timerWheelEnable="true", recallMessageEnable="true",
            autoCreateTopicEnable="true",
        )  # fmt: skip

    server = await trio.to_thread.run_sync(start)
    try:
        async with open_channel(server.address) as channel:
            yield Running(channel, SECOND_MS)
        if how == "killed":
            server.child.kill()
        else:
            await trio.to_thread.run_sync(server.child.terminate, 40)
    finally:
        server.discard()


async def fill(running: Running, now: int) -> tuple[dict[bytes, int], bytes]:
    """Send messages that are due while this broker runs, after it, and never. Returns when each is, and who never."""
    due: dict[bytes, int] = {}
    await running.channel.call(send(TOPIC, b"first", queues=4))
    for number, after in enumerate((1300, 2100, *range(8_000, 10_000, 250))):
        body = b"%d" % number
        due[body] = now + after
        properties = f"TIMER_DELIVER_MS\x01{now + after}\x02UNIQ_KEY\x01K{number}\x02"
        answer = await running.channel.call(send(TOPIC, body, queues=4, properties=properties))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.ext is not None
    handle = answer.ext["recallHandle"]
    assert base64.urlsafe_b64decode(handle).split()[:3] == [b"v1", TOPIC.encode(), NAME.encode()]
    header = RecallMessageHeader(producer_group="g", topic=TOPIC, recall_handle=handle)
    answer = await running.channel.call(Command(RequestCode.RECALL_MESSAGE, header.to_ext()))
    assert (answer.code, answer.ext and answer.ext["msgId"]) == (0, f"K{number}"), answer.remark
    return due, body


def delivered(store: Path) -> list[Record]:
    """The messages in queue 0 of the topic without the first, which was never delayed."""
    opened = Store(SystemEnv(), str(store))
    opened.open()
    try:
        opened.recover(lambda batch: None)
        queue = opened.queues.get(TOPIC, 0)
        entries = b"" if queue is None else queue.entries(0, queue.max_offset)
        return [opened.log.read_record(offset) for offset, _, _ in ENTRY.iter_unpack(entries)][1:]
    finally:
        opened.close()


async def wait_for_the_last(running: Running, due: int, count: int) -> None:
    """Wait until the last message is due, the queue has ``count``, and no other message has followed for a while."""
    await sleep_until(due)
    with trio.fail_after(60):
        while await max_offset(running) < count:  # noqa: ASYNC110
            await trio.sleep(0.1)
    before = -1
    while (count := await max_offset(running)) != before:
        before = count
        await trio.sleep(QUIET_S)


async def max_offset(running: Running) -> int:
    answer = await running.channel.call(Command(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}))
    return int((answer.ext or {})["offset"])


async def sleep_until(moment: int) -> None:
    await trio.sleep(max(moment - SystemEnv().wall_ms(), 0) / 1000)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("first", "how"),
    [
        pytest.param("ours", "stopped", marks=pytest.mark.soak(1)),
        pytest.param("ours", "killed", marks=pytest.mark.soak(1)),
        ("theirs", "killed"),
    ],
)
async def test_the_other_broker_delivers_timed_messages_once_and_on_time(
    java5: Java, homes: Homes, first: str, how: str
) -> None:
    store = homes("store")
    store.mkdir(parents=True)
    begin = ours(store) if how == "stopped" else killed_ours(homes("ours"), store)
    finish = theirs(java5, homes("java"), store)
    if first == "theirs":
        begin, finish = theirs(java5, homes("java"), store, how), ours(store)
    async with begin as running:
        now = SystemEnv().wall_ms()
        due, recalled = await fill(running, now)
        await sleep_until(now + 3600)
    async with finish as running:
        begun = SystemEnv().wall_ms()
        await wait_for_the_last(running, max(due.values()) + SECOND_MS, len(due))  # one without delay, one recalled
    records = delivered(store)
    counts = Counter(record.body for record in records)
    assert set(counts) == set(due) - {recalled}
    # A killed broker has not stored its progress of the last seconds.
    repeatable = {body for body, moment in due.items() if how == "killed" and moment < now + 3600}
    assert {body for body, count in counts.items() if count > 1} <= repeatable
    assert all(record.store_timestamp >= due[record.body] for record in records), "none early"
    by_second = [record for record in records if record.store_timestamp >= begun]
    late = [record.store_timestamp - max(due[record.body] + SECOND_MS, begun) for record in by_second]
    assert min(late) <= PROMPT_MS
    assert max(late) <= LATE_MS
