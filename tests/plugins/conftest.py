"""A broker without sockets and without a store: real plugins, real configuration, a real folder, queues by hand."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.network.requests import RequestTable
from gantrymq.kernel.processors import Request
from gantrymq.kernel.registry import Registry
from gantrymq.remoting.codes import ONEWAY_FLAG
from gantrymq.remoting.command import Command


class ClockEnv(SystemEnv):
    """The real disk, a clock that stands still until a test moves it, and writes that a test can let fail."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.writes: list[str] = []
        self.write_error: OSError | None = None

    def wall_ms(self) -> int:
        return int(1_700_000_000_000 + self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def replace(self, path: str, data: bytes) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.writes.append(path.rpartition("/")[2])
        super().replace(path, data)


class FakeConnection:
    """The part of a connection that plugins use; it keeps sent commands."""

    peer_left = False

    count = 0

    def __init__(self) -> None:
        FakeConnection.count += 1
        self.id = FakeConnection.count
        self.peer = ("127.0.0.1", 40_000 + self.id)
        self.address = f"127.0.0.1:{40_000 + self.id}"
        self.closed = self.peer_left = False
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        if not self.closed:
            self.sent.append(command)

    def close(self, reason: str) -> None:
        self.closed = True

    def is_congested(self) -> bool:
        """Return False: the client has read everything."""
        return False

    def pause(self) -> None:
        """Do nothing, because nothing is read from it."""

    def resume(self) -> None:
        """Do nothing, as :meth:`pause`."""


@attrs.define
class FakeQueue:
    """A consume queue with bounds; entry 0 lies at ``first_at`` in the log."""

    min_offset: int = 0
    max_offset: int = 0
    first_at: int = 0

    def entries(self, offset: int, count: int) -> bytes:
        inside = self.min_offset <= offset < self.max_offset
        return self.first_at.to_bytes(8, "big") + bytes(12) if inside else b""


class FakeQueues(dict[tuple[str, int], FakeQueue]):
    """Consume queues by topic and number."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_times: list[tuple[str, int, int]] = []

    def add(self, topic: str, queue_id: int, max_offset: int, *, min_offset: int = 0, first_at: int = 0) -> None:
        """Let there be a queue with messages from ``min_offset`` to ``max_offset``."""
        self[topic, queue_id] = FakeQueue(min_offset, max_offset, first_at)

    def get(self, topic: str, queue_id: int) -> FakeQueue | None:  # type: ignore[override]
        return super().get((topic, queue_id))

    def delete_topic(self, topic: str) -> None:
        for key in [key for key in self if key[0] == topic]:
            del self[key]

    def is_whole_since_deletion(self, topic: str, log_start: int) -> bool:
        """Return False: no topic was deleted."""
        return False

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, stored_at: Callable[[int], int | None], bound: object = None
    ) -> int:
        self.asked_times.append((topic, queue_id, timestamp))
        return 7 if self.get(topic, queue_id) else 0


@attrs.define
class FakeStore:
    """A store of which only the queues matter."""

    queues: FakeQueues

    def delete_topic(self, topic: str, before: int | None = None) -> None:
        self.queues.delete_topic(topic)


@attrs.define
class FakeLog:
    """A log of which only the bounds matter."""

    end: int = 0
    min_offset: int = 0


class FakeBroker:
    """A configured broker; ``ask`` sends a request through the real request table."""

    def __init__(self, root: Path, plugins: Sequence[str], settings: Mapping[str, str]) -> None:
        origins = [f"gantrymq.plugins.{name}:{name.capitalize()}Plugin" for name in plugins]
        sets = [f"{key}={value}" for key, value in {"broker.data": str(root), **settings}.items()]
        self.manager = load_plugins(origins)
        self.config = build_config(read_settings(sets=sets), self.manager)
        self.env = ClockEnv()
        self.root = str(root)
        self.name = self.config.broker.name
        self.cluster = self.config.broker.cluster
        self.broker_id = self.config.broker.id
        self.address = "127.0.0.1:10911"
        self.registry = Registry()
        self.queues = FakeQueues()
        self.store = FakeStore(self.queues)
        self.log = FakeLog()

    def configure(self) -> None:
        """Up to the point where requests are answered."""
        broker: Any = self
        self.manager.hook.configure(broker=broker, config=self.config)
        self.requests = RequestTable(self.manager, broker, self._spawn)

    def ask(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        connection: FakeConnection | None = None,
        oneway: bool = False,
    ) -> Command | None:
        """The answer, or None when none was sent."""
        peer: Any = connection or FakeConnection()
        before = len(peer.sent)
        fields = None if ext is None else {key: str(value) for key, value in ext.items()}
        command = Command(code, fields, body, opaque=5, flag=ONEWAY_FLAG if oneway else 0)
        self.requests.handle([Request(peer, command)])
        while self.requests.has_waiting():
            self.requests.handle([])
        answers = peer.sent[before:]
        assert len(answers) <= 1
        assert all(answer.opaque == 5 and answer.is_response for answer in answers)
        return answers[0] if answers else None

    def persist(self) -> None:
        """The hook, as the kernel calls it now and then."""
        broker: Any = self
        for files in self.manager.hook.persist(broker=broker):
            for path, data in files.items():
                self.env.replace(path, data)

    def _spawn(self, function: Callable[[Request], Awaitable[None]], request: Request) -> None:
        """Run the handler to its end, in a thread of its own, because the test may be a task of trio."""
        thread = threading.Thread(target=trio.run, args=(function, request))
        thread.start()
        thread.join()


MakeBroker = Callable[..., FakeBroker]


@pytest.fixture
def make_broker(tmp_path: Path) -> MakeBroker:
    """``make_broker("topics", "offsets", **{"plugin.topics.auto_create": "false"})``; the same folder each time."""

    def make(*plugins: str, configured: bool = True, **settings: str) -> FakeBroker:
        broker = FakeBroker(tmp_path, plugins, settings)
        if configured:
            broker.configure()
        return broker

    return make


@pytest.fixture
def connect() -> Callable[[], FakeConnection]:
    """Makes connections, each with an id of its own."""
    return FakeConnection
