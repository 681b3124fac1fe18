"""How long the disk alone takes for one small record: the minimum that a lone synchronous sender waits."""

from __future__ import annotations

import os
import tempfile
import time

from scenarios import Scenario

from gantrymq.bench.latencies import Latencies

RECORD_BYTES_FIXED = 91
"""A record without its topic, properties and body. Source: RocketMQ 4.9.7 ``CommitLog.calMsgLength``."""
FILE_BYTES = 64 * 2**20


def bare_fdatasync(scenario: Scenario, seconds: float) -> dict[str, int]:
    """Percentiles in microseconds of writing a record of this scenario behind the last one and waiting for the disk,
    into a file that was allocated before, as the brokers' logs are, in the folder where their stores are."""
    record = b"r" * (RECORD_BYTES_FIXED + len(scenario.topic) + scenario.size)
    times = Latencies()
    with tempfile.TemporaryFile(prefix="gantrymq-bench-") as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.fsync(descriptor)
        end = time.perf_counter_ns() + int(seconds * 1e9)
        offset, now = 0, time.perf_counter_ns()
        while now < end and offset + len(record) <= FILE_BYTES:
            os.pwrite(descriptor, record, offset)
            os.fdatasync(descriptor)
            offset += len(record)
            now, before = time.perf_counter_ns(), now
            times.add([(now - before) // 1000])
    return times.summary()
