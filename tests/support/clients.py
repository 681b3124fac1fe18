"""Foreign clients as tests use them: the Java and Go programs of ``tests/interop`` behind one interface."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import attrs
import msgspec

from support.content import content
from support.processes import Child, ChildFailed, Partner

ADDED_PROPERTIES = frozenset(
    {"UNIQ_KEY", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "MSG_REGION", "TRACE_ON", "WAIT"}
)
"""Properties that producer, broker and consumer may add to a message; any other change is an alteration.

WAIT comes from the producer and stays on those of a batch, and on those that were stored elsewhere first.
"""


class Sent(msgspec.Struct, rename="camel"):
    """One answer to a send: message ``index`` (or a batch of ``count`` from there) and where it lies."""

    index: int
    count: int
    broker: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    status: str | int
    region: str | None = None


class Received(msgspec.Struct, rename="camel"):
    """One message as a consumer saw it."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    msg_id: str
    reconsume_times: int
    size: int
    sha256: str
    properties: dict[str, str]
    born: int = 0
    stored: int = 0
    received: int = 0
    """The times of birth, storage and receipt, in ms since 1970."""

    @property
    def index(self) -> int:
        """The index of the message that it claims to be."""
        return int(self.properties["index"])

    @property
    def place(self) -> tuple[str, int, int]:
        """Broker, queue and offset."""
        return self.broker, self.queue_id, self.queue_offset


def check_unaltered(messages: Iterable[Received], seed: int) -> None:
    """AssertionError for the first message that differs from what ``seed`` and its index stand for."""
    for message in messages:
        wanted = content(seed, message.index)
        if (message.size, message.sha256) != (len(wanted.body), wanted.sha256):
            raise AssertionError(f"body of message {message.index} is altered: {message}")
        added = set(message.properties) - set(wanted.all_properties)
        kept = {name: message.properties.get(name) for name in wanted.all_properties}
        if kept != wanted.all_properties or not added <= ADDED_PROPERTIES:
            raise AssertionError(f"properties of message {message.index} are altered: {message.properties}")


MESSAGES_A_SECOND = 100
"""The minimum rate of a client on a busy machine."""
SEND_SECONDS = 120.0
"""The time limit for a few sends, each of which may wait for the disk and be repeated."""


def check_complete(messages: Sequence[Received], seed: int, indexes: Iterable[int]) -> None:
    """AssertionError unless each message of ``indexes`` is there, unaltered, and no place was read twice."""
    check_unaltered(messages, seed)
    wanted = set(indexes)
    got = {message.index for message in messages}
    if got != wanted:
        raise AssertionError(f"lost {sorted(wanted - got)[:20]}, strange {sorted(got - wanted)[:20]}")
    if len({message.place for message in messages}) != len(messages):
        raise AssertionError(f"{len(messages)} messages came from fewer places")


class Producer:
    """A foreign producer that sends the ordered number of messages, one order after another."""

    def __init__(self, child: Partner) -> None:
        self.child = child
        child.wait_started()

    def send(self, count: int) -> list[Sent]:
        """Sends the next ``count`` messages of its seed; returns when they are acknowledged."""
        self.child.say(str(count))
        sent: list[Sent] = []
        for event in self.child.events(SEND_SECONDS):
            if event["event"] == "obeyed":
                return sent
            sent.append(msgspec.convert(event, Sent))
        raise ChildFailed("the producer ended")


class Consumer:
    """A foreign consumer that is running: what it has received so far, and ways to wait for more."""

    def __init__(self, child: Partner) -> None:
        self.child = child
        self.messages: list[Received] = []
        child.wait_started()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()

    def poll(self, timeout: float) -> bool:
        """Takes what is there; waits up to ``timeout`` seconds for the first of it. Whether anything came."""
        came = False
        line = self.child.try_line(timeout)
        while line is not None:
            if '"event":"message"' in line:
                self.messages.append(msgspec.json.decode(line, type=Received))
                came = True
            line = self.child.try_line(0)
        return came

    def wait(self, count: int, timeout: float = 60.0) -> list[Received]:
        """All messages so far, once they are at least ``count``."""
        wait_until(lambda: len(self.messages) >= count, [self], timeout)
        return self.messages

    def close(self) -> list[Received]:
        """Lets the consumer commit and leave its group; returns all that it has received."""
        self.child.say("stop")
        for event in self.child.events():
            if event["event"] == "stopped":
                break
            if event["event"] == "message":
                self.messages.append(msgspec.convert(event, Received))
        code = self.child.wait()
        if code:
            raise ChildFailed(f"the consumer ended with {code}")
        return self.messages


def wait_until(done: Callable[[], bool], consumers: Sequence[Consumer], timeout: float = 60.0) -> None:
    """Lets ``consumers`` receive until ``done``; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            received = [
                [f"{message.queue_id}/{message.queue_offset}" for message in consumer.messages[-50:]]
                for consumer in consumers
            ]
            counts = [len(consumer.messages) for consumer in consumers]
            raise AssertionError(f"not done in {timeout:g} s; received {counts}, queues and offsets {received}")
        for consumer in consumers:
            consumer.poll(0.05)


@attrs.frozen
class ForeignClient:
    """One foreign client library: its name, and how its program is started in a home of its own.

    ``start`` may run what it starts in a process with others, ``start_alone`` does not.
    """

    name: str
    start: Callable[..., Partner]
    home: Path
    start_alone: Callable[..., Child] | None = None
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    @property
    def alone(self) -> ForeignClient:
        """The same, each command in a process of its own: to kill it, or for the id that a client has by default."""
        if self.start_alone is None:
            return self
        return ForeignClient(self.name, self.start_alone, self.home / "alone")

    def run(self, *arguments: str) -> Partner:
        """The program with these arguments, in a fresh folder."""
        return self.start(self.home / f"{next(self._numbers)}", *arguments)

    def produce(self, nameserver: str, topic: str, count: int, *, seed: int = 1, **options: object) -> list[Sent]:
        """Sends ``count`` messages (in each of ``modes``); AssertionError when one was refused."""
        pairs = {"namesrv": nameserver, "topic": topic, "count": count, "seed": seed, **options}
        sent: list[Sent] = []
        with self.run("produce", *_texts(pairs)) as child:
            for event in child.events(timeout=max(SEND_SECONDS, count / MESSAGES_A_SECOND)):
                if event["event"] == "sent":
                    sent.append(msgspec.convert(event, Sent))
                elif event["event"] != "done":
                    raise AssertionError(f"a send failed: {event}")
            if code := child.wait():
                raise ChildFailed(f"the producer ended with {code}: {child.log.read_text()[-4000:]}")
        return sent

    def consumer(self, nameserver: str, topic: str, group: str, kind: str = "push", **options: object) -> Consumer:
        """A running consumer (``push`` or ``lite-pull``); use it as a context manager."""
        child = self.run(kind, *_texts({"namesrv": nameserver, "topic": topic, "group": group, **options}))
        try:
            return Consumer(child)
        except BaseException:
            child.stop()
            raise

    def consume_all(
        self,
        nameserver: str,
        topic: str,
        group: str,
        count: int,
        *,
        kind: str = "push",
        timeout: float = 60.0,
        **options: object,
    ) -> list[Received]:
        """All messages once ``count`` have come, after the consumer has left in order."""
        with self.consumer(nameserver, topic, group, kind, **options) as consumer:
            consumer.wait(count, timeout)
            return consumer.close()


def _texts(pairs: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in pairs.items()]
