"""The state that a plugin builds from ``dispatch`` and stores by ``save_state`` is exact after any restart."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.plugin_state import SavedState, decode_state, encode_state, state_path
from gantrymq.remoting.channel import open_channel
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio
SMALL = {"store.commit_log_file_bytes": "8 KiB", "store.max_message_bytes": "4 KiB", "plugin.flush.mode": "async"}


class Counter:
    """Counts the messages of each topic, and keeps every place that it has seen."""

    name = "counter"
    from_start: ClassVar[bool] = False
    fails: ClassVar[bool] = False

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.given: list[SavedState] = []

    @hookimpl
    def load_state(self, state: SavedState) -> bool:
        self.given.append(state)
        self.offsets = [] if state.data is None or self.from_start else json.loads(state.data)
        return self.from_start

    @hookimpl
    def save_state(self) -> bytes:
        if self.fails:
            raise RuntimeError("a bug")
        return json.dumps(self.offsets).encode()

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        self.offsets += [offset for offset, topic in zip(batch.offsets, batch.topics, strict=True) if topic == "T"]


@pytest.fixture(autouse=True)
def counter(monkeypatch: pytest.MonkeyPatch) -> type[Counter]:
    """The plugin under test, which can be enabled as ``counter_of_a_test:Counter``."""
    module = types.ModuleType("counter_of_a_test")
    kind = type("Counter", (Counter,), {})
    module.Counter = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return kind


def broker_in(folder: Path, *, counts: bool = True, settings: Mapping[str, str] = SMALL) -> Broker:
    return make_broker(folder, enable=["counter_of_a_test:Counter"] if counts else [], settings=settings)


def counter_of(broker: Broker) -> Any:
    return next(info.plugin for info in broker.manager.plugins if info.name == "counter")


def state_file(folder: Path) -> Path:
    return Path(state_path(str(folder), "counter"))


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def stands_at(path: Path) -> int:
    """The offset in the file of a state; 0 without a file."""
    return decode_state(path.read_bytes())[0] if path.exists() else 0


async def put(broker: Broker, count: int) -> list[int]:
    """Send messages of a hundred bytes; return the log offsets in their responses."""
    offsets = []
    async with open_channel(broker.address) as channel:
        for _ in range(count):
            answer = await channel.call(send("T", bytes(100)))
            assert answer.code == 0, answer.remark
            offsets.append(int((answer.ext or {})["msgId"][16:], 16))
    return offsets


async def live(folder: Path, count: int, *, counts: bool = True) -> tuple[list[int], Any]:
    """Run a broker and send ``count`` messages; return their offsets and the plugin."""
    async with run_broker(broker_in(folder, counts=counts)) as broker:
        plugin = counter_of(broker) if counts else None
        return await put(broker, count), plugin


async def test_a_plugin_enabled_again_gets_the_missed_messages_once(tmp_path: Path) -> None:
    sent, _ = await live(tmp_path, 20)
    for count in (30, 40):
        sent += (await live(tmp_path, count, counts=False))[0]
    more, plugin = await live(tmp_path, 10)
    assert plugin.offsets == sent + more
    assert plugin.given[0].missing is None
    assert len(plugin.given) == 1


async def test_a_new_plugin_starts_with_the_next_message(tmp_path: Path) -> None:
    await live(tmp_path, 20, counts=False)
    sent, plugin = await live(tmp_path, 5)
    assert plugin.offsets == sent
    assert plugin.given == [SavedState(None, sent[0])]


async def test_a_plugin_can_request_the_log_from_its_first_message(tmp_path: Path, counter: Any) -> None:
    sent, _ = await live(tmp_path, 20, counts=False)
    counter.from_start = True
    for _ in range(2):
        more, plugin = await live(tmp_path, 5)
        sent += more
        assert plugin.offsets == sent


async def test_a_plugin_gets_all_messages_before_and_behind_a_damaged_one(tmp_path: Path, counter: Any) -> None:
    sent, _ = await live(tmp_path, 20, counts=False)
    path = tmp_path / "commitlog" / f"{0:020}"
    data, magic = read(path), sent[10] + 4
    write(path, data[:magic] + bytes(4) + data[magic + 4 :])
    counter.from_start = True
    with structlog.testing.capture_logs() as lines:
        more, plugin = await live(tmp_path, 5)
    assert plugin.offsets == [*sent[:10], *sent[11:], *more]
    skipped = [(line["start"], line["end"]) for line in lines if line["event"] == "plugin_state_range_skipped"]
    assert skipped == [(sent[10], sent[11])]


async def test_a_deleted_range_of_the_log_is_reported_to_the_plugin(tmp_path: Path) -> None:
    sent, _ = await live(tmp_path, 20)
    async with run_broker(broker_in(tmp_path, counts=False)) as broker:
        sent += await put(broker, 200)
        stood = stands_at(state_file(tmp_path))
        store = broker.store
        store.discard(store.log.detach_before(store.log.end - 1))
        start = store.log.min_offset
    assert stood < start
    with structlog.testing.capture_logs() as lines:
        more, plugin = await live(tmp_path, 5)
    assert plugin.given[0].missing == (stood, start)
    assert plugin.given[0].offset == start
    assert plugin.offsets == [*sent[:20], *(offset for offset in sent if offset >= start), *more]
    assert [(line["start"], line["end"]) for line in lines if line["event"] == "plugin_state_gap"] == [(stood, start)]


async def test_a_damaged_state_is_replaced_by_the_previous_one(tmp_path: Path) -> None:
    sent, _ = await live(tmp_path, 20)
    sent += (await live(tmp_path, 20))[0]
    path = state_file(tmp_path)
    data = read(path)
    write(path, data[:-5] + b"9" + data[-4:])
    _, plugin = await live(tmp_path, 0)
    assert plugin.offsets == sent
    for name in (path, path.with_name(f"{path.name}.bak")):
        write(name, b"damaged")
    with pytest.raises(StartError, match=r"counter\.state: it is not the state of a plugin.*Repair .*counter\.state"):
        await broker_in(tmp_path).run()


@pytest.mark.parametrize("has_older", [True, False])
async def test_a_state_ahead_of_the_log_is_rebuilt(tmp_path: Path, *, has_older: bool) -> None:
    """The state is discarded at once, as after the truncation of a slave's log, because it is undetectable later."""
    sent, _ = await live(tmp_path, 20)
    path = state_file(tmp_path)
    older = path.with_name(f"{path.name}.bak")
    ahead = encode_state(10**9, json.dumps([*sent, 10**9 - 1]).encode())
    write(older, read(path) if has_older else ahead)
    write(path, ahead)
    with structlog.testing.capture_logs() as lines:
        more, plugin = await live(tmp_path, 5)
    assert plugin.offsets == sent + more
    assert plugin.given[0].data is None or has_older
    assert [line["offset"] for line in lines if line["event"] == "plugin_state_ahead"] == [10**9]
    assert all(stands_at(each) < 10**9 for each in (path, older))


async def test_a_state_is_written_after_the_log_is_durable(tmp_path: Path) -> None:
    """Else it would count what a power cut takes back."""
    settings = {**SMALL, "plugin.flush.interval": "10s"}
    async with run_broker(broker_in(tmp_path, settings=settings)) as broker:
        await put(broker, 20)
        broker.collect_state()
        assert broker.log.durable < broker.log.end, "the test needs something that is not flushed"
        broker.write_state()
        stands = stands_at(state_file(tmp_path))
        assert stands == broker.log.end == broker.log.durable


async def test_a_failed_save_keeps_the_previous_state(tmp_path: Path, counter: Any) -> None:
    sent, _ = await live(tmp_path, 20)
    counter.fails = True
    with structlog.testing.capture_logs() as lines:
        sent += (await live(tmp_path, 20))[0]
    counter.fails = False
    assert [line["hook"] for line in lines if line["event"] == "plugin_failed"] == ["save_state"]
    assert (await live(tmp_path, 0))[1].offsets == sent


async def test_a_plugin_disabled_by_an_error_resumes_there_at_the_next_start(tmp_path: Path, counter: Any) -> None:
    sent, _ = await live(tmp_path, 20)
    counter.on_error = "disable"
    proper = counter.dispatch

    def fail(self: Any, batch: DispatchBatch) -> None:
        raise RuntimeError("a bug")

    counter.dispatch = hookimpl(fail)
    sent += (await live(tmp_path, 20))[0]
    counter.dispatch = proper
    assert (await live(tmp_path, 0))[1].offsets == sent


@pytest.mark.parametrize("hook_name", ["load_state", "save_state", "dispatch"])
async def test_load_state_and_save_state_require_each_other(tmp_path: Path, hook_name: str, counter: Any) -> None:
    module = sys.modules["counter_of_a_test"]
    rest = {name: value for name, value in vars(Counter).items() if name not in (hook_name, "__dict__", "__weakref__")}
    module.Counter = type("Counter", (), rest)  # type: ignore[attr-defined]
    with pytest.raises(
        StartError, match=f"'counter': save_state, load_state and dispatch belong together: add {hook_name}"
    ):
        broker_in(tmp_path)
