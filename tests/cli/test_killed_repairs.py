"""A second repair completes one that was killed at any step, and no message is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.stopped_store import StoppedStore
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance import store_repair
from gantrymq.maintenance.state_check import check_plugin_files
from gantrymq.maintenance.store_check import StoreCheck, StoreReport
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.plugins.index.layout import Shape
from support.stores import expected_queues, log_records, make_store, written_queues

pytestmark = pytest.mark.timeout(300)

MESSAGES = 60
SETTINGS = {
    "store.commit_log_file_bytes": "16 KiB",
    "store.queue_file_units": "10",
    "plugin.index.slots": "16",
    "plugin.index.entries": "50",
}
STORE = StoreConfig(commit_log_file_bytes=16 * 1024, queue_file_units=10)
MANAGER = load_plugins(DEFAULT_PLUGINS)
CONFIG = build_config(read_settings("", None, {}, (), (), ()), MANAGER)
FLIPPED = range(3 * 20, 6 * 20)
"""Bytes of queue 0 whose entries are damaged."""
EVERY = 8
"""The number of steps, of which each test kills one."""
KILLS = int(os.environ.get("GANTRYMQ_REPAIR_KILLS", "2"))


class Killed(BaseException):
    """The process ends here."""


CHANGES = ("replace", "rename", "unlink", "mkdirs", "sync_dir", "rmtree")


class DyingEnv(SystemEnv):
    """Ends before the change number ``at`` of files and names; of a write, it does a part before."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.changes = 0

    def change(self) -> bool:
        self.changes += 1
        return self.changes == self.at

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in CHANGES:
            return value

        def call(*arguments: Any, **others: Any) -> Any:
            if self.change():
                raise Killed(name)
            return value(*arguments, **others)

        return call

    def open(self, path: str, create: bool = False) -> File:
        return DyingFile(self, super().open(path, create))  # type: ignore[return-value]


@attrs.frozen
class DyingFile:
    """A file of :class:`DyingEnv`."""

    env: DyingEnv
    file: File

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int, zeros: int = 0) -> None:
        if self.env.change():
            self.file.pwrite(bytes(data)[: len(data) // 2], offset)
            raise Killed("pwrite")
        self.file.pwrite(data, offset, zeros)

    def truncate(self, size: int) -> None:
        if self.env.change():
            raise Killed("truncate")
        self.file.truncate(size)


def flip(path: Path, at: int, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for place in range(at, at + count):
        data[place] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("whole") / "store", SETTINGS, 3, MESSAGES, 300)


@pytest.fixture(scope="module")
def damaged(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with damage of each kind that is repaired."""
    store = shutil.copytree(whole, tmp_path_factory.mktemp("damaged") / "store")
    queues = store / "consumequeue" / "orders"
    flip(queues / "0" / f"{0:020d}", FLIPPED.start + 5, 50)
    shutil.rmtree(queues / "2")
    (queues / "1" / f"{200:020d}").write_bytes(b"short")
    (store / "consumequeue" / "notes.txt").write_bytes(b"foreign")
    flip(sorted((store / "index").iterdir())[0], 40 + 16 * 4 + 20 * 5 + 2)
    (store / "config" / "topics.json").write_bytes(b"{")
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:12345,1:3}}}')
    (store / "config" / "subscriptionGroup.json.bak").write_bytes(b"[")
    (store / "gantrymq.quarantine").write_bytes(b"?")
    return store


def examine(store: Path) -> StoreReport:
    def files(stopped: StoppedStore) -> None:
        check_plugin_files(stopped, CONFIG, (MANAGER,))

    return StoreCheck(SystemEnv(), str(store), Shape(16, 50), deep=True, check_files=files).run()


def repair(store: Path, env: SystemEnv) -> None:
    report = examine(store)
    lock = env.lock(f"{store}/lock")
    try:
        store_repair.repair(env, str(store), report, lock)
    finally:
        lock.close()


def contents(folder: Path) -> dict[str, bytes]:
    """Each file's bytes, without the file that was prepared in advance and has no records."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {name: data for name, data in found.items() if data.strip(b"\0")}


def open_and_check(store: Path, *, is_repaired: bool = True) -> None:
    """Start on a copy of the store: all queues have their entries.

    Before a repair has ended, the entries that were damaged at first may still be so.
    """
    copy = shutil.copytree(store, store.with_name("copy"))
    try:
        opened = Store(SystemEnv(), str(copy), STORE)
        opened.open()
        try:
            opened.recover(lambda batch: None)
            opened.close()
        finally:
            opened.abandon()
        queues = {name: entries for name, entries in written_queues(copy).items() if name.startswith("orders/")}
        expected = {name: each for name, each in expected_queues(log_records(copy)).items() if name in queues}
        if not is_repaired:
            for each in (queues, expected):
                each["orders/0"] = each["orders/0"][: FLIPPED.start] + each["orders/0"][FLIPPED.stop :]
        assert queues == expected
        assert len(queues) == 3
    finally:
        shutil.rmtree(copy)


def remaining(report: StoreReport) -> tuple[Any, ...]:
    """All faults except those of the index, which the next start builds."""
    damage = [(finding.path, finding.problem) for finding in report.state if finding.is_damage]
    return report.damage, report.files, report.wrong_entries, report.suspect_records, damage


@pytest.mark.soak(1)
@pytest.mark.parametrize("first", range(1, EVERY + 1))
def test_a_repair_that_is_killed_at_any_step_loses_nothing_and_is_completed_by_another(
    whole: Path, damaged: Path, tmp_path: Path, first: int
) -> None:
    log = contents(whole / "commitlog")
    open_and_check(damaged, is_repaired=False)
    for at in range(first, 1000, EVERY):
        store = shutil.copytree(damaged, tmp_path / "store")
        env = DyingEnv(at)
        try:
            repair(store, env)
        except Killed:
            assert contents(store / "commitlog") == log
            open_and_check(store, is_repaired=False)
        else:
            break
        finally:
            repair(store, SystemEnv())
            assert remaining(examine(store)) == ([], [], [], [], []), at
            assert contents(store / "commitlog") == log
            assert (store / "config" / "topics.json").read_bytes() == (damaged / "config/topics.json.bak").read_bytes()
            shutil.rmtree(store)
    assert at > 40, "the repair has that many steps"


@pytest.mark.slow
def test_a_process_that_repairs_can_be_killed_at_any_time(damaged: Path, whole: Path, tmp_path: Path) -> None:
    store = shutil.copytree(damaged, tmp_path / "store")
    config = tmp_path / "broker.toml"
    config.write_text("[plugin.index]\nslots = 16\nentries = 50\n")
    command = [
        sys.executable, "-m", "gantrymq.cli", "store", "check", "--deep", "--repair", "--json", "--data", str(store),
        "--config", str(config),
    ]  # fmt: skip
    chance = random.Random(21)
    began = time.monotonic()
    subprocess.run(command, check=False, capture_output=True)
    whole_s = time.monotonic() - began
    for _ in range(KILLS):
        shutil.rmtree(store)
        shutil.copytree(damaged, store)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            time.sleep(whole_s * chance.uniform(0.6, 1.0))  # most of the time goes into its imports
            child.send_signal(signal.SIGKILL)
        assert contents(store / "commitlog") == contents(whole / "commitlog")
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        found = json.loads(done.stdout)
        damage = [finding for finding in found["state"] if finding["is_damage"]]
        assert (found["wrong_entries"], found["files"], damage) == ([], [], [])
        open_and_check(store)
