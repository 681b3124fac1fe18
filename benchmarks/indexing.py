"""The group ``indexing``: build the index of a log from nothing and query it, ours beside the Java broker's.

Both brokers start on the same log, without queues, index and checkpoint, as after a crash that left the log alone. The
clock runs from the start of the process until the last message is found by its key, so consume queues and the check of
all records are in it on both sides. Then random keys are asked for, one after the other.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from figures import Figures
from stores import GIB, free_bytes
from systems import Setup, home_of, processor_seconds, start

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.index.files import IndexFiles
from gantrymq.plugins.index.layout import Shape
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
TOPIC = "Indexing"
QUEUES = 8
BATCH = 1000
BODY = b"x" * 100
SHAPE = Shape(5_000_000, 20_000_000)
PATIENCE_S = 3600.0
POLL_S = 0.05
RECORD_BYTES = 300
SPARE_BYTES = 4 * GIB


def key_of(number: int) -> str:
    """Return the key of a message."""
    return f"order-{number}"


def unique_of(number: int) -> str:
    """Return the client's id of a message, as long as RocketMQ's."""
    return f"7F0000010D5418B4AAC2{number:012X}"


def make_store(folder: Path, messages: int) -> None:
    """A store with the given number of messages, each with a unique id and a key; only its log is left."""
    store = Store(SystemEnv(), str(folder))
    store.open()
    store.recover(lambda batch: None)
    for first in range(0, messages, BATCH):
        batch = AppendBatch()
        for number in range(first, min(first + BATCH, messages)):
            properties = f"KEYS\x01{key_of(number)}\x02UNIQ_KEY\x01{unique_of(number)}\x02WAIT\x01true"
            batch.add(TOPIC, number % QUEUES, BODY, properties.encode())
        store.append(batch)
        for _ in store.dispatch(store.flush() if first % (64 * BATCH) == 0 else store.log.durable):
            pass
    store.close()
    for path in folder.iterdir():
        if path.name != "commitlog":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def build_alone(folder: Path) -> tuple[int, float, float]:
    """Ours without a broker: messages, the seconds of reading the log, and how many of these the index takes."""
    env = SystemEnv()
    store = Store(env, str(folder))
    store.open()
    store.recover(lambda batch: None)
    index = IndexFiles(env, str(folder), SHAPE)
    count, within = 0, 0.0
    began = time.perf_counter()
    for batch in store.log.scan(0, store.log.end):
        start_of_put = time.perf_counter()
        index.put(batch)
        if index.waiting_bytes > 16 * 2**20:
            index.write()
        within += time.perf_counter() - start_of_put
        count += len(batch)
    whole = time.perf_counter() - began
    index.write()
    index.close()
    store.abandon()
    return count, whole, within


def index(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Start ``system`` on a log only, wait until it finds the last message, then query."""
    need = sizes.keyed * RECORD_BYTES * 2 + SPARE_BYTES
    free = free_bytes(tempfile.gettempdir())
    if free < need:
        progress(f"left out: the log to index would need {need / GIB:.1f} GiB of disk, {free / GIB:.1f} are free")
        return
    with home_of(f"indexing-{system}") as home:
        store = home / "store" if system == "gantrymq" else home / "broker" / "store"
        store.mkdir(parents=True)
        make_store(store, sizes.keyed)
        alone = 0.0
        if system == "gantrymq":
            count, _, within = build_alone(store)
            alone = within / count * 1e6
            for path in store.iterdir():
                if path.name != "commitlog":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        (store / "abort").touch()
        began = time.perf_counter()
        with start(system, Setup(pre_touch=False), home) as running:
            processor, numbers = trio.run(_ask, running.address, running.pid, sizes.keyed, timing.seconds, began)
    built, *times = numbers
    times.sort()
    rate = len(times) / sum(times)
    progress(f"{system:9} {sizes.keyed:,} messages indexed in {built:.1f} s, {rate:,.0f} queries/s")
    add = figures.add
    of = f"of {sizes.keyed:,} messages with two keys"
    add("indexing", f"from nothing to the last key {of}", "s", system, built)
    add("indexing", "processor time for it", "s", system, processor)
    if alone:
        add("indexing", "the index alone, for each message", "us", system, alone)
    add("indexing", "random keys, one after the other", "/s", system, rate, more_is_better=True)
    add("indexing", "median of a query", "ms", system, 1000 * times[len(times) // 2])
    add("indexing", "p99 of a query", "ms", system, 1000 * times[len(times) * 99 // 100])


async def _ask(address: str, pid: int, messages: int, seconds: float, began: float) -> tuple[float, list[float]]:
    """Processor seconds until the last message was found, its elapsed seconds, and those of each query."""
    chance = random.Random(1)
    async with open_channel(address) as channel:
        with trio.fail_after(PATIENCE_S):
            while not await _finds(channel, messages - 1):  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(POLL_S)
        times = [time.perf_counter() - began]
        processor = processor_seconds(pid)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            number = chance.randrange(messages)
            asked = time.perf_counter()
            found = await _finds(channel, number)
            times.append(time.perf_counter() - asked)
            if not found:
                raise RuntimeError(f"{key_of(number)} was not found")
    return processor, times


async def _finds(channel: Channel, number: int) -> bool:
    key = key_of(number)
    ext = {"topic": TOPIC, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    answer = await channel.call(Command(RequestCode.QUERY_MESSAGE, ext), 30.0)
    return answer.code == ResponseCode.SUCCESS and unique_of(number).encode() in answer.body
