"""Unreadable blocks of the log and of the index files: row 16 of the fault catalogue."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog.testing
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.index.follower import Follower
from gantrymq.plugins.index.indexfile import IndexFile
from gantrymq.plugins.interfaces import MessageIndex
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.badblocks import BadBlocksEnv
from support.unreadable import run_out_of_descriptors

pytestmark = pytest.mark.trio

SMALL = {"plugin.index.slots": "5", "plugin.index.entries": "8", "store.commit_log_file_bytes": "1 MiB"}
BODY = b"x" * 10_000
MESSAGES = 20
BAD = (81_920, 86_016)
"""A block of the log inside of the ninth message, whose number is 8."""
LOST = 8


async def fill(path: Path) -> None:
    async with run_broker(make_broker(path, settings=SMALL)) as broker, open_channel(broker.address) as channel:
        for number in range(MESSAGES):
            answer = await channel.call(send("T", b"%08d" % number + BODY, properties=f"KEYS\x01k{number}\x02"))
            assert answer.code == 0
        await level(broker)


async def level(broker: Broker) -> None:
    with trio.fail_after(30):
        await broker.registry.get(MessageIndex).wait_caught_up()


async def query(broker: Broker, key: str) -> list[int]:
    """The numbers of the messages that a search by key finds."""
    fields = {"topic": "T", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    async with open_channel(broker.address) as channel:
        answer = await channel.call(Command(RequestCode.QUERY_MESSAGE, fields))
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.remark
    return [int(record.body[:8]) for record in decode_records(answer.body)]


async def search_all(broker: Broker) -> list[int]:
    await level(broker)
    return [number for each in range(MESSAGES) for number in await query(broker, f"k{each}")]


async def test_row_16_a_block_of_the_log_costs_its_message_in_a_search_and_in_an_index_that_is_built(
    tmp_path: Path,
) -> None:
    await fill(tmp_path)
    others = [number for number in range(MESSAGES) if number != LOST]
    env = BadBlocksEnv()
    env.spoil(f"commitlog/{0:020d}", *BAD)
    async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
        assert await search_all(broker) == others
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    for life in range(2):
        async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
            assert await search_all(broker) == others
            await fill_one_more(broker)
            assert await query(broker, "more") == [99] * (life + 1)


async def test_messages_that_no_descriptor_is_left_to_read_are_indexed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    build = Follower._build

    def build_without_descriptors(self: Follower, target: int) -> None:
        monkeypatch.setattr(Follower, "_build", build)
        with pytest.MonkeyPatch.context() as patch:
            run_out_of_descriptors(patch, self._broker.log)
            build(self, target)

    monkeypatch.setattr(Follower, "_build", build_without_descriptors)
    settings = {**SMALL, "plugin.index.flush_interval": "10ms"}
    with structlog.testing.capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=settings)) as broker:
            assert await search_all(broker) == list(range(MESSAGES))
    events = [entry["event"] for entry in logs]
    assert "damaged_records_not_indexed" not in events
    assert events.count("index_waits_for_descriptor") == 1


async def test_index_files_that_no_descriptor_is_left_to_open_are_loaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    before = {file.name: file.stat().st_ino for file in (tmp_path / "index").iterdir()}
    load = Follower._load

    def load_without_descriptors(self: Follower) -> None:
        monkeypatch.setattr(Follower, "_load", load)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._broker.env, "open", no_descriptor)
            load(self)

    monkeypatch.setattr(Follower, "_load", load_without_descriptors)
    settings = {**SMALL, "plugin.index.flush_interval": "10ms"}
    with structlog.testing.capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=settings, env=SystemEnv())) as broker:
            assert await search_all(broker) == list(range(MESSAGES))
    assert {file.name: file.stat().st_ino for file in (tmp_path / "index").iterdir()} == before
    assert [entry["event"] for entry in logs].count("index_waits_for_descriptor") == 1


async def test_a_search_without_descriptors_does_not_call_a_file_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
        await level(broker)
        with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
            patch.setattr(IndexFile, "_opened", no_descriptor)
            await query(broker, "k1")
        assert "index_search_without_descriptor" in [entry["event"] for entry in logs]
        assert await query(broker, "k1") == [1]
    assert "index_unreadable" not in [entry["event"] for entry in logs]


def no_descriptor(*_: Any, **__: Any) -> NoReturn:
    """Fail as ``open`` does in a process without a free file descriptor."""
    raise OSError(errno.EMFILE, "Too many open files")


async def fill_one_more(broker: Broker) -> None:
    async with open_channel(broker.address) as channel:
        assert (await channel.call(send("T", b"%08d" % 99, properties="KEYS\x01more\x02"))).code == 0
    await level(broker)


async def test_row_16_the_last_message_of_the_index_cannot_be_read_at_the_start(tmp_path: Path) -> None:
    """The size of the file then does not show where the index continues."""
    await fill(tmp_path)
    (tmp_path / "gantrymq.index").unlink()  # so the files alone say how far the index is
    env = BadBlocksEnv()
    env.spoil(f"commitlog/{0:020d}", 188_416, 192_512)
    async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
        found = await search_all(broker)
        assert found == list(range(len(found)))
        assert len(found) >= MESSAGES - 3


@pytest.mark.parametrize("at", [0, 40], ids=["header", "slots"])
async def test_row_16_an_index_file_that_cannot_be_read_at_the_start_is_built_again(tmp_path: Path, at: int) -> None:
    await fill(tmp_path)
    env = BadBlocksEnv()
    last = max((tmp_path / "index").iterdir())
    env.spoil(f"index/{last.name}", at, at + 1)
    with structlog.testing.capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
            assert await search_all(broker) == list(range(MESSAGES))
    (line,) = [entry for entry in logs if entry["event"] == "index_unreadable"]
    assert "built again" in line["reason"]


async def test_row_16_a_full_index_file_whose_end_cannot_be_read_at_the_start_is_built_again(tmp_path: Path) -> None:
    """The last file must be built again, and the end of the one before it says from where."""
    await fill(tmp_path)
    *_, before, last = sorted((tmp_path / "index").iterdir())
    env = BadBlocksEnv()
    env.spoil(f"index/{last.name}", 0, 1)
    env.spoil(f"index/{before.name}", 40 + 5 * 4, 1 << 20)
    with structlog.testing.capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
            assert await search_all(broker) == list(range(MESSAGES))
            await fill_one_more(broker)
            assert await query(broker, "more") == [99]
    for event in ("index_unreadable", "index_file_rebuilt"):
        paths = [entry["path"] for entry in logs if entry["event"] == event]
        assert sorted(Path(path).name for path in paths) == [before.name, last.name]
    assert not [entry for entry in logs if entry["event"] == "index_stopped"]


async def test_row_16_an_index_that_cannot_be_loaded_does_not_stop_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file must be built again, but cannot be deleted."""
    await fill(tmp_path)
    last = max((tmp_path / "index").iterdir())
    env = BadBlocksEnv()
    env.spoil(f"index/{last.name}", 0, 1)
    unlink = env.unlink

    def refuse(path: str) -> None:
        if path.endswith(last.name):
            raise OSError(errno.EIO, "Input/output error")
        unlink(path)

    monkeypatch.setattr(env, "unlink", refuse)
    with structlog.testing.capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
            async with open_channel(broker.address) as channel:
                assert (await channel.call(send("T", b"%08d" % 99, properties="KEYS\x01more\x02"))).code == 0
            assert await query(broker, "k0") == [0]
    (line,) = [entry for entry in logs if entry["event"] == "index_stopped"]
    assert line["log_level"] == "error"


async def test_an_index_that_cannot_be_built_does_not_stop_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    for file in (tmp_path / "index").iterdir():
        file.unlink()

    def fail(*_: Any) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Follower, "_build", fail)
    with structlog.testing.capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=SMALL)) as broker:
            async with open_channel(broker.address) as channel:
                assert (await channel.call(send("T", b"%08d" % 99, properties="KEYS\x01more\x02"))).code == 0
            assert await query(broker, "k0") == []
    (line,) = [entry for entry in logs if entry["event"] == "index_stopped"]
    assert line["log_level"] == "error"


async def test_row_16_a_search_over_a_bad_block_of_the_index_returns_the_rest(tmp_path: Path) -> None:
    await fill(tmp_path)
    env = BadBlocksEnv()
    async with run_broker(make_broker(tmp_path, settings=SMALL, env=env)) as broker:
        assert await search_all(broker) == list(range(MESSAGES))
        first = min((tmp_path / "index").iterdir())
        env.spoil(f"index/{first.name}", 40, 1 << 20)
        with structlog.testing.capture_logs() as logs:
            found = await search_all(broker)
        assert 0 < len(found) < MESSAGES
        assert found == list(range(MESSAGES))[-len(found) :]
        (line,) = [entry for entry in logs if entry["event"] == "index_unreadable"]
        assert "delete the file" in line["reason"]
        assert not [entry for entry in logs if "exc_info" in entry]
        await fill_one_more(broker)
        assert await query(broker, "more") == [99]
