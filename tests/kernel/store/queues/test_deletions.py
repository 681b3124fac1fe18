"""Deleted topics are recorded first, as long as the log has their records, and for these records only."""

from __future__ import annotations

import errno

import pytest

from gantrymq.kernel.store.queues import deletions as module
from gantrymq.kernel.store.queues.deletions import Deletions
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv

PATH = "s/gantrymq.deleted"


def made(env: MemoryEnv | FaultEnv) -> Deletions:
    env.mkdirs("s")
    deletions = Deletions(env, PATH)
    deletions.load()
    return deletions


def test_recorded_deletions_survive_a_power_cut() -> None:
    env = MemoryEnv()
    deletions = made(env)
    for number in range(2000):
        deletions.add(f"T{number % 1500}", number + 1)
    assert (deletions.ends["T3"], deletions.ends["T700"], deletions.end) == (1504, 701, 2000)
    assert made(env.power_cut()).ends == deletions.ends


def test_a_torn_last_line_loses_that_line_only() -> None:
    env = MemoryEnv()
    deletions = made(env)
    deletions.add("T", 5)
    deletions.add("U", 6)
    size = len(env.read_bytes(PATH).rstrip(b"\0"))
    env.open(PATH).pwrite(bytes(3), size - 3)
    again = made(env)
    assert again.ends == {"T": 5}
    again.add("V", 7)
    assert made(env).ends == {"T": 5, "V": 7}


@pytest.mark.parametrize("line", [b"[1,2]", b'["T"]', b'["T",-1]', b'["T",true]', b'{"T":1}', b"\xff", b"[" * 5000])
def test_meaningless_lines_are_ignored(line: bytes) -> None:
    env = MemoryEnv()
    env.mkdirs("s")
    env.replace(PATH, line + b'\n["U",6]\n')
    assert made(env).ends == {"U": 6}


def test_a_deletion_beyond_the_log_is_clamped_and_one_before_its_start_dropped() -> None:
    """After a truncation of the log, new records reuse offsets of the deletion and are not deleted."""
    env = MemoryEnv()
    deletions = made(env)
    for topic, end in (("old", 10), ("T", 50), ("U", 90)):
        deletions.add(topic, end)
    deletions.settle(10, 60)
    assert (deletions.ends, deletions.end) == ({"T": 50, "U": 60}, 60)
    assert made(env.power_cut()).ends == {"T": 50, "U": 60}


def test_a_deletion_stays_while_the_topic_has_messages() -> None:
    """The records are newer than the deletion, which still shows that the topic need not exist."""
    env = MemoryEnv()
    deletions = made(env)
    for topic, end in (("old", 10), ("late", 10)):
        deletions.add(topic, end)
    deletions.settle(10, 60, {"late", "other"})
    assert deletions.ends == {"late": 10}
    assert made(env.power_cut()).ends == {"late": 10}


def test_deletions_are_dropped_if_another_broker_wrote_to_the_store() -> None:
    env = MemoryEnv()
    made(env).add("T", 5)
    deletions = Deletions(env, PATH)
    deletions.load(trusted=False)
    assert deletions.ends == {}
    assert made(env).ends == {}


@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync"])
def test_a_deletion_that_cannot_be_written_never_takes_effect(kind: str) -> None:
    disk = MemoryEnv()
    made(disk).add("T", 5)
    env = FaultEnv(disk, 1, kinds=(kind,))
    deletions = made(env)
    with pytest.raises(OSError, match="injected"):
        deletions.add("U", 6)
    assert deletions.ends == {"T": 5}
    assert made(disk).ends == {"T": 5}
    deletions.add("V", 7)
    assert made(disk).ends == {"T": 5, "V": 7}


def test_a_full_disk_does_not_prevent_deletions() -> None:
    env = MemoryEnv()
    deletions = made(env)
    deletions.settle(0, 0)
    env.free_bytes = 0
    for number in range(1000):
        deletions.add(f"T{number}", number + 1)
    assert len(made(env.power_cut()).ends) == 1000


def test_a_store_opens_on_a_full_disk_and_refuses_deletions() -> None:
    env = MemoryEnv()
    deletions = made(env)
    env.free_bytes = 0
    deletions.settle(0, 0)
    with pytest.raises(OSError, match="No space") as refused:
        deletions.add("T", 5)
    assert refused.value.errno == errno.ENOSPC
    assert deletions.ends == {}


def test_repeated_deletions_of_one_topic_do_not_grow_the_file() -> None:
    env = MemoryEnv()
    deletions = made(env)
    for number in range(10_000):
        deletions.add("T", number + 1)
    assert len(env.read_bytes(PATH).rstrip(b"\0")) < 20_000
    assert made(env).ends == {"T": 10_000}


def test_the_oldest_deletions_are_dropped_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX", 3)
    deletions = made(MemoryEnv())
    for number in range(5):
        deletions.add(f"T{number}", number + 1)
    assert list(deletions.ends) == ["T2", "T3", "T4"]
