"""A broker starts, repairs or refuses a crashed store that was damaged afterwards.

A crashed store is a copy of a running broker's folder: what kill -9 leaves. Small files, so that there are several.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

MESSAGES, FLUSHED = 60, 50
SIZES = {"store.commit_log_file_bytes": "16 KiB", "store.queue_file_units": "20", "broker.persist_interval": "10ms"}
BODIES = [b"%03d " % number + bytes([number]) * 900 for number in range(MESSAGES)]

Tamper = Callable[[Path], None]


def broker_on(folder: Path, **settings: str) -> Broker:
    return make_broker(folder, settings={**SIZES, **settings})


@pytest.fixture
async def crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 acknowledged messages of one queue, 50 of them in the queue's files; a group consumed ten; then a kill."""
    with monkeypatch.context() as housekeeping:
        # on a busy machine it would also flush the last ten
        housekeeping.setattr("gantrymq.kernel.housekeeping._maintain", Store.prepare_next)
        await _run_and_copy(tmp_path)
    return tmp_path / "store"


async def _run_and_copy(tmp_path: Path) -> None:
    async with run_broker(broker_on(tmp_path / "alive")) as broker, open_channel(broker.address) as channel:
        for body in BODIES[:FLUSHED]:
            assert (await channel.call(send("T", body))).code == 0
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "10"}
        await channel.call(pull("T", group="g"))
        assert (await channel.call(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))).code == 0
        broker.collect_state()
        broker.write_state()
        await trio.to_thread.run_sync(broker.store.flush_queues)
        for body in BODIES[FLUSHED:]:
            assert (await channel.call(send("T", body))).code == 0
        shutil.copytree(tmp_path / "alive", tmp_path / "store")


async def read_all(broker: Broker) -> dict[int, bytes]:
    """The readable records of the queue by offset, after a check of each."""
    found: dict[int, bytes] = {}
    async with open_channel(broker.address) as channel:
        at = 0
        while True:
            answer = await channel.call(pull("T", 0, at))
            if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
                return found
            for record in decode_records(answer.body):
                found[record.queue_offset] = record.body
            following = int((answer.ext or {})["nextBeginOffset"])
            assert following > at
            at = following


async def send_one(broker: Broker, body: bytes) -> int:
    async with open_channel(broker.address) as channel:
        answer = await channel.call(send("T", body))
    assert answer.code == 0
    return int((answer.ext or {})["queueOffset"])


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def queue_files(store: Path) -> list[Path]:
    return sorted((store / "consumequeue" / "T" / "0").iterdir())


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def checkpoint_from_the_future(store: Path) -> None:
    data = bytearray((store / "checkpoint").read_bytes())
    for at in (0, 8, 16):
        data[at : at + 8] = (2**62).to_bytes(8, "big")
    (store / "checkpoint").write_bytes(data)


def checkpoint_of_rubbish(store: Path) -> None:
    (store / "checkpoint").write_bytes(os.urandom(4096))


def tear_queue(store: Path) -> None:
    last = queue_files(store)[-1]
    last.write_bytes(last.read_bytes()[:33])


def rubbish_queue(store: Path) -> None:
    for path in queue_files(store):
        path.write_bytes(b"\xff" * path.stat().st_size)


TAMPERED: dict[str, Tamper] = {
    "nothing": lambda store: None,
    "abort file removed": lambda store: (store / "abort").unlink(),
    "checkpoint from the future": checkpoint_from_the_future,
    "checkpoint from the future, abort file removed": lambda store: (
        checkpoint_from_the_future(store),
        (store / "abort").unlink(),
    )[0],
    "checkpoint of rubbish": checkpoint_of_rubbish,
    "checkpoint empty": lambda store: (store / "checkpoint").write_bytes(b"") and None,
    "checkpoint missing": lambda store: (store / "checkpoint").unlink(),
    "queues missing": lambda store: shutil.rmtree(store / "consumequeue"),
    "last queue file missing": lambda store: queue_files(store)[-1].unlink(),
    "middle queue file missing": lambda store: queue_files(store)[1].unlink(),
    "queue file torn": tear_queue,
    "queue files of rubbish": rubbish_queue,
    "a file among the topics": lambda store: (store / "consumequeue" / "stray").write_bytes(b"x") and None,
    "leftovers in staging": lambda store: (store / "staging" / "x").write_bytes(b"x") and None,
}


@pytest.mark.trio
@pytest.mark.parametrize("what", TAMPERED)
@pytest.mark.slow
async def test_acknowledged_messages_are_served_after_any_damage_to_derived_files(what: str, crashed: Path) -> None:
    TAMPERED[what](crashed)
    for life in range(2):
        async with run_broker(broker_on(crashed)) as broker:
            expected = dict(enumerate([*BODIES, *[b"after"] * life]))
            assert await read_all(broker) == expected
            assert await send_one(broker, b"after") == MESSAGES + life


@pytest.mark.trio
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("at", [0, 5, FLUSHED - 1])
async def test_a_flipped_bit_in_a_record_affects_that_record_only(
    crashed: Path, tmp_path: Path, clean: bool, at: int
) -> None:
    if clean:
        async with run_broker(broker_on(crashed)):
            pass
    found = [path for path in log_files(crashed) if BODIES[at] in path.read_bytes()]
    flip(found[0], found[0].read_bytes().index(BODIES[at]) + 500)
    sizes = [path.stat().st_size for path in log_files(crashed)]
    async with run_broker(broker_on(crashed)) as broker:
        bodies = dict(enumerate(BODIES))
        del bodies[at]
        assert await read_all(broker) == bodies, "all others are served, the damaged one is not"
        assert await send_one(broker, b"after") == MESSAGES, "and no number is given twice"
    assert [path.stat().st_size for path in log_files(crashed)][: len(sizes)] == sizes


@pytest.mark.trio
async def test_a_flipped_bit_behind_the_watermark_truncates_the_log_and_the_tail_is_saved(crashed: Path) -> None:
    file = next(path for path in log_files(crashed) if BODIES[58] in path.read_bytes())
    flip(file, file.read_bytes().index(BODIES[58]) + 500)
    async with run_broker(broker_on(crashed)) as broker:
        assert await read_all(broker) == dict(enumerate(BODIES[:58]))
        assert await send_one(broker, b"after") == 58
    kept = b"".join(path.read_bytes() for path in (crashed / "lost+found").iterdir())
    assert BODIES[59] in kept, "nothing is thrown away"


LOG_DAMAGE: dict[str, tuple[Tamper, str]] = {
    "too short": (lambda store: os.truncate(log_files(store)[1], 5000), "has 5000 bytes where 16384 are configured"),
    "too long": (lambda store: os.truncate(log_files(store)[0], 40_000), "has 40000 bytes where 16384 are configured"),
    "missing": (lambda store: log_files(store)[1].unlink(), "no file between offset"),
    "stray": (lambda store: (store / "commitlog" / "copy of 0").write_bytes(b"") and None, "does not belong"),
}


@pytest.mark.trio
@pytest.mark.parametrize("what", LOG_DAMAGE)
async def test_a_log_with_inconsistent_files_refuses_the_start_and_is_not_changed(what: str, crashed: Path) -> None:
    tamper, reported = LOG_DAMAGE[what]
    tamper(crashed)
    before = {path.name: path.read_bytes() for path in log_files(crashed)}
    with pytest.raises(StartError, match=reported):
        await broker_on(crashed).run()
    assert {path.name: path.read_bytes() for path in log_files(crashed)} == before


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "half": b'{"offsetTable":{"T@g":{0:1',
    "not utf-8": b'{"offsetTable":{"\xff":{}},"topicConfigTable":{"\xff":{}},"subscriptionGroupTable":{"\xff":{}}}',
    "another type": b'{"offsetTable":[1,2],"topicConfigTable":"x","subscriptionGroupTable":7}',
    "huge numbers": b'{"offsetTable":{"T@g":{0:%s}},"topicConfigTable":{"T":{"perm":%s}},'
    b'"subscriptionGroupTable":{"g":{"retryMaxTimes":%s}}}' % ((b"9" * 400,) * 3),
    "too deep": b"[" * 10_000,
    "zeros": bytes(4096),
}
FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")


async def offset_of_group(broker: Broker) -> Command:
    async with open_channel(broker.address) as channel:
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        return await channel.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields))


@pytest.mark.trio
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.slow
async def test_a_broken_state_file_is_replaced_by_its_backup_or_refuses_the_start(
    name: str, how: str, crashed: Path
) -> None:
    path = crashed / "config" / name
    backup = path.with_name(name + ".bak")
    backup.write_bytes(path.read_bytes())
    path.write_bytes(BROKEN[how])
    with structlog.testing.capture_logs() as lines:
        async with run_broker(broker_on(crashed)) as broker:
            assert len(await read_all(broker)) == MESSAGES
            assert (await offset_of_group(broker)).ext == {"offset": "10"}
    assert "state_restored_from_backup" in [line["event"] for line in lines]
    path.write_bytes(BROKEN[how])
    backup.write_bytes(BROKEN[how])
    marks = (crashed / "gantrymq.watermark").read_bytes()
    with pytest.raises(StartError, match=name) as refused:
        await broker_on(crashed).run()
    assert "Repair" in str(refused.value)
    assert path.read_bytes() == BROKEN[how], "nothing is written over it"
    assert (crashed / "gantrymq.watermark").read_bytes() == marks, "what is known of the log stays known"
