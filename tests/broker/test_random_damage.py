"""A broker serves every acknowledged message from an intact log after random damage to all derived files.

``GANTRYMQ_DAMAGES=160`` sets the number of damages; a run of all tests has fewer.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

DAMAGES = int(os.environ.get("GANTRYMQ_DAMAGES", "16"))
QUEUES = [("A", 0), ("A", 1), ("B", 0), ("C", 3)]
MESSAGES = 600
SIZES = {"store.commit_log_file_bytes": "64 KiB", "store.queue_file_units": "60"}
PATIENCE_S = 20.0

Chance = random.Random


def body(number: int) -> bytes:
    return b"%05d" % number + bytes(40)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store of records of one size in several queues, after a clean stop and after a kill."""
    folder = tmp_path_factory.mktemp("damage")

    async def fill() -> None:
        settings = {**SIZES, "broker.persist_interval": "10ms"}
        async with run_broker(make_broker(folder / "clean", settings=settings)) as broker:
            async with open_channel(broker.address) as channel:
                for number in range(MESSAGES):
                    topic, queue_id = QUEUES[number % len(QUEUES)]
                    assert (await channel.call(send(topic, body(number), queue_id=queue_id, queues=4))).code == 0
                    if number == MESSAGES * 3 // 4:
                        await trio.to_thread.run_sync(broker.store.flush_queues)
                broker.collect_state()
                broker.write_state()
                shutil.copytree(folder / "clean", folder / "killed")

    trio.run(fill)
    return {"clean": folder / "clean", "killed": folder / "killed"}


def flip(data: bytearray, chance: Chance) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def scribble(data: bytearray, chance: Chance) -> None:
    at, size = chance.randrange(len(data)), chance.randrange(1, 65)
    data[at : at + size] = chance.randbytes(len(data[at : at + size]))


def erase(data: bytearray, chance: Chance) -> None:
    size = chance.choice([20, 512, 4096])
    at = chance.randrange(max(len(data) - size, 0) + 1)
    data[at : at + size] = bytes(len(data[at : at + size]))


def shift(data: bytearray, chance: Chance) -> None:
    at = 20 * chance.randrange(max(len(data) // 20 - 2, 1))
    data[at : at + 20], data[at + 20 : at + 40] = data[at + 20 : at + 40], data[at : at + 20]


def cut(data: bytearray, chance: Chance) -> None:
    del data[chance.randrange(len(data)) :]


KINDS: list[Callable[[bytearray, Chance], None]] = [flip, flip, flip, scribble, erase, shift, cut]


def damage(store: Path, chance: Chance) -> str:
    """Damage a file that is derived from the log; says which and how."""
    files = sorted((store / "consumequeue").rglob("0*")) * 2
    files = [path for path in files if path.is_file()] + [store / "checkpoint", store / "gantrymq.watermark"]
    files += sorted((store / "index").rglob("2*"))
    path, kind = chance.choice(files), chance.choice(KINDS)
    data = bytearray(path.read_bytes())
    written = len(bytes(data).rstrip(b"\0"))
    head = data[: max(written, 1)]
    kind(head, chance)
    rest = data[max(written, 1) :]
    path.write_bytes(bytes(head) + (b"" if kind is cut else bytes(rest)))
    return f"{kind.__name__} of {path.relative_to(store)}"


async def read_queue(channel: Channel, topic: str, queue_id: int, count: int) -> list[bytes]:
    found: dict[int, bytes] = {}
    at = 0
    with trio.move_on_after(PATIENCE_S):
        while at < count:
            answer = await channel.call(pull(topic, queue_id, at))
            if answer.code == ResponseCode.SYSTEM_ERROR:  # what a client answers to by coming again
                await trio.sleep(0.05)
                continue
            found |= {record.queue_offset: record.body for record in decode_records(answer.body)}
            following = int((answer.ext or {})["nextBeginOffset"])
            if following <= at and answer.code != 0:
                break
            at = following
    return [found.get(place, b"") for place in range(count)]


async def check(broker: Broker, extra: int) -> None:
    async with open_channel(broker.address) as channel:
        for row, (topic, queue_id) in enumerate(QUEUES):
            expected = [body(number) for number in range(row, MESSAGES, len(QUEUES))]
            expected += [b"later %d" % number for number in range(extra)]
            found = await read_queue(channel, topic, queue_id, len(expected))
            missing = [place for place, wanted in enumerate(expected) if found[place] != wanted]
            assert not missing, f"{topic} {queue_id}: {len(missing)} of {len(expected)} are not served: {missing[:5]}"


@pytest.mark.trio
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(DAMAGES))
@pytest.mark.slow
async def test_every_message_is_served_while_the_log_is_intact(
    stores: dict[str, Path], tmp_path: Path, number: int
) -> None:
    chance = random.Random(number)
    store = tmp_path / "store"
    await trio.to_thread.run_sync(partial(shutil.copytree, stores[chance.choice(["clean", "killed"])], store))
    what = [damage(store, chance) for _ in range(chance.choice([1, 1, 1, 3]))]
    try:
        for life in range(2):
            async with run_broker(make_broker(store, settings=SIZES)) as broker:
                async with open_channel(broker.address) as channel:
                    for topic, queue_id in QUEUES:
                        sent = await channel.call(send(topic, b"later %d" % life, queue_id=queue_id, queues=4))
                        assert sent.code == 0
                await check(broker, life + 1)
    except BaseException as error:
        error.add_note(f"{what}")
        raise
