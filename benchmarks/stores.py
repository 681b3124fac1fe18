"""Stores after some use: filled with a given number of bytes, and evicted from the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import trio
from measuring import checked
from systems import Running

from gantrymq.bench.cluster import prepare_topic, targets_of
from gantrymq.bench.plan import Load, Plan, Target
from gantrymq.bench.running import default_processes, run
from gantrymq.client import connect

GIB = 2**30
PAGE = 4096
SAMPLES = 512


def fill(running: Running, topic: str, size: float, body_bytes: int = 65_536, batch: int = 1) -> None:
    """Send ``size`` bytes of bodies to ``topic``; measuring.Failed if the broker refuses them."""

    async def find() -> list[Target]:
        async with connect(running.nameserver) as client:
            await prepare_topic(client, topic, 8)
            return await targets_of(client, topic)

    requests = max(1, int(size / (body_bytes * batch)))
    load = Load(
        kind="send", topic=topic, targets=trio.run(find), connections=4, in_flight=4, body_bytes=body_bytes,
        batch=batch, requests=requests,
    )  # fmt: skip
    checked("filling", topic, run(Plan(loads=[load], timeout=60.0), default_processes()))


def log_files(store: Path) -> list[Path]:
    """Return the files of the commit log, oldest first."""
    return sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())


def leave_page_cache(store: Path) -> None:
    """Flush every file of a stopped broker's store and evict it from the page cache."""
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def cached_share(path: Path) -> float:
    """Return the cached share of a file, by samples: a read that must not wait for the disk fails for an uncached
    page."""
    size = path.stat().st_size
    buffer = bytearray(1)
    found = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for number in range(SAMPLES):
            offset = size * number // SAMPLES // PAGE * PAGE
            try:
                found += os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
    finally:
        os.close(descriptor)
    return found / SAMPLES


def free_bytes(folder: str) -> int:
    """The free bytes of a folder's disk."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
