"""The check of a store and its repair: arbitrary bytes, huge, linked, missing and foreign files.

The check ends with a report and changes nothing. The repair changes nothing of the log, and afterwards a broker
delivers each message whose record is intact.
"""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gantrymq.sync
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.stopped_store import StoppedStore
from gantrymq.maintenance import store_repair
from gantrymq.maintenance.state_check import check_plugin_files
from gantrymq.maintenance.store_check import OTHER_PLACE, StoreCheck, StoreReport
from gantrymq.maintenance.store_files import find_files
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS
from gantrymq.plugins.index.layout import Shape
from gantrymq.testing.harness import cluster_in_thread
from support.stores import log_records, make_store

pytestmark = pytest.mark.timeout(120)

MESSAGES = 60
LOG_FILE = 16 * 1024
QUEUE_OFFSET_AT = 20
"""Where a record has its queue offset, of 8 bytes."""
SETTINGS = {
    "store.commit_log_file_bytes": "16 KiB",
    "store.queue_file_units": "10",
    "plugin.index.slots": "16",
    "plugin.index.entries": "50",
}
SHAPE = Shape(16, 50)
MANAGER = load_plugins(DEFAULT_PLUGINS)
CONFIG = build_config(read_settings("", None, {}, (), (), ()), MANAGER)
EXAMPLES = int(os.environ.get("GANTRYMQ_STORE_EXAMPLES", "20"))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 60 messages in two queues."""
    return make_store(tmp_path_factory.mktemp("sample") / "store", SETTINGS, 2, MESSAGES, 500)


@pytest.fixture
def store(sample: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sample, tmp_path / "store")


def examine(store: Path) -> StoreReport:
    def files(stopped: StoppedStore) -> None:
        check_plugin_files(stopped, CONFIG, (MANAGER, load_plugins(OPTIONAL_PLUGINS)))

    return StoreCheck(SystemEnv(), str(store), SHAPE, deep=True, check_files=files).run()


def repair(store: Path) -> store_repair.RepairReport:
    lock = SystemEnv().lock(f"{store}/lock")
    try:
        return store_repair.repair(SystemEnv(), str(store), examine(store), lock)
    finally:
        lock.close()


def contents(store: Path) -> dict[str, bytes | str]:
    """Each file's bytes, without huge ones, and the targets of links."""
    found: dict[str, bytes | str] = {}
    for path in sorted(store.rglob("*")):
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        elif path.is_file():
            small = path.stat().st_size < 1 << 26
            found[str(path)] = path.read_bytes() if small else str(path.stat().st_size)
    return found


def log_of(store: Path) -> dict[str, bytes | str]:
    return contents(store / "commitlog")


def is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def bodies_of(store: Path) -> set[bytes]:
    with cluster_in_thread(store, settings=SETTINGS) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        with client.reader("orders", start="first", until="end") as reader:
            return {message.body for message in reader}


# ------------------------------------------------------------------------------------------------- any damage


@attrs.frozen
class Flip:
    """Change a byte of the ``number``-th file, at a share of its size."""

    number: int
    at: float
    mask: int

    def apply(self, store: Path) -> None:
        paths = [path for path in sorted(store.rglob("*")) if path.is_file() and not path.is_symlink()]
        path = paths[self.number % len(paths)]
        if 0 < path.stat().st_size < 1 << 26:
            data = bytearray(path.read_bytes())
            data[int(self.at * (len(data) - 1))] ^= self.mask
            path.write_bytes(data)


@attrs.frozen
class Replace:
    """Replace the ``number``-th file or folder."""

    number: int
    kind: str
    data: bytes

    def apply(self, store: Path) -> None:
        paths = [path for path in sorted(store.rglob("*")) if path != store / "commitlog" and path.exists()]
        path = paths[self.number % len(paths)]
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if self.kind == "bytes":
            path.write_bytes(self.data)
        elif self.kind == "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        elif self.kind == "link":
            path.symlink_to(store.parent / "elsewhere")
        elif self.kind == "folder":
            path.mkdir()
        elif self.kind == "pipe":
            os.mkfifo(path)


@attrs.frozen
class Add:
    """Add a foreign file to the ``number``-th folder."""

    number: int
    name: str
    data: bytes

    def apply(self, store: Path) -> None:
        paths = [path for path in [store, *sorted(store.rglob("*"))] if path.is_dir() and not path.is_symlink()]
        folder = paths[self.number % len(paths)]
        if not os.path.lexists(folder / self.name):
            (folder / self.name).write_bytes(self.data)


NUMBERS = st.integers(0, 200)
SHORT = st.binary(max_size=200)
DAMAGE = st.one_of(
    st.builds(Flip, NUMBERS, st.floats(0, 1), st.integers(1, 255)),
    st.builds(Replace, NUMBERS, st.sampled_from(["nothing", "bytes", "sparse", "link", "folder", "pipe"]), SHORT),
    st.builds(
        Add, NUMBERS,
        st.sampled_from(["notes.txt", "99999999999999990000", "0", "00", "00000000000000000200", "\udcff", "a" * 200]),
        SHORT,
    ),
)  # fmt: skip


@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.lists(DAMAGE, min_size=1, max_size=4))
def test_any_damage_is_reported_and_the_repair_keeps_the_log(sample: Path, tmp_path: Path, damage: list[Any]) -> None:
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    store = shutil.copytree(sample, tmp_path / "store")
    (tmp_path / "elsewhere").write_bytes(b"of another program")
    for each in damage:
        each.apply(store)
    before = contents(store)
    if any((store / name).exists() and not is_plain(store / name) for name in ("checkpoint", "gantrymq.watermark")):
        with pytest.raises(StartError, match="no broker starts with it: move it away"):
            examine(store)
        return
    examine(store)
    assert contents(store) == before, "the check changes nothing"
    lost = store / "lost+found"
    if os.path.lexists(lost) and not lost.is_dir():
        lost.unlink()  # the repair says so otherwise
        before = contents(store)
    lock = store / "lock"
    if os.path.lexists(lock) and not is_plain(lock):
        shutil.rmtree(lock) if lock.is_dir() and not lock.is_symlink() else lock.unlink()  # nobody could take it
        before = contents(store)
    repair(store)
    assert log_of(store) == {path: data for path, data in before.items() if "/commitlog/" in path}
    assert (tmp_path / "elsewhere").read_bytes() == b"of another program"
    # Whatever is not the broker's own is still somewhere; the folder staging is emptied whenever a store is opened.
    kept = list(contents(store).values())
    for path, data in before.items():
        if path.endswith("notes.txt") and not path.startswith(f"{store}/staging/"):
            assert data in kept
    report = examine(store)  # the store can still be read
    failed = [finding.problem for finding in report.state if "the check of plugin" in finding.problem]
    assert failed == []


# ------------------------------------------------------------------------------------------------- chosen damage


def test_a_record_with_a_damaged_queue_offset_is_reported_and_keeps_its_entry(store: Path) -> None:
    record = [record for record, _ in log_records(store) if record.topic == "orders"][17]
    base = record.offset // LOG_FILE * LOG_FILE
    with (store / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(record.offset - base + QUEUE_OFFSET_AT + 7)
        file.write(bytes([record.queue_offset ^ 1]))  # the place of another record
    report = examine(store)
    (suspect,) = report.suspect_records
    place = suspect.topic, suspect.queue, suspect.queue_offset, suspect.offset
    assert place == ("orders", record.queue_id, record.queue_offset, record.offset)
    assert suspect.reason == OTHER_PLACE
    assert report.wrong_entry_count == 0, "its entry alone leads to the message"
    before = contents(store)
    repair(store)
    assert contents(store) == before


def test_a_tag_code_above_the_hashes_of_tags_is_reported_and_corrected(store: Path) -> None:
    path = store / "consumequeue" / "orders" / "0" / f"{0:020d}"
    before = path.read_bytes()
    offset, size, code = ENTRY.unpack_from(before, 3 * ENTRY.size)
    assert code >= 0
    path.write_bytes(before[: 3 * ENTRY.size] + ENTRY.pack(offset, size, code | 1 << 32) + before[4 * ENTRY.size :])
    report = examine(store)
    assert [(wrong.topic, wrong.queue, wrong.queue_offset, wrong.reason) for wrong in report.wrong_entries] == [
        ("orders", 0, 3, "the tag code is not that of the message's tags")
    ]
    repair(store)
    assert path.read_bytes() == before
    assert examine(store).ok


def test_a_huge_state_file_is_not_read_into_memory(store: Path) -> None:
    for name in ("gantrymq.index", "gantrymq.deleted", "gantrymq.quarantine"):
        with (store / name).open("wb") as file:
            file.truncate(1 << 40)
    tracemalloc.start()
    try:
        report = examine(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    assert [index.reason for index in report.index] == [
        f"is not what the broker writes: has {1 << 40} bytes; no broker writes more than {64 << 20}"
    ]


@pytest.mark.parametrize("sizes", [(2000, 4096), (2048, 4096), (4096, 2000), (4096, 2048)])
def test_the_truncated_one_of_two_files_is_reported(tmp_path: Path, sizes: tuple[int, int]) -> None:
    for base, size in zip((0, 4096), sizes, strict=True):
        (tmp_path / f"{base:020d}").write_bytes(bytes(size))
    file_bytes, bases, problems = find_files(SystemEnv(), str(tmp_path))
    intact = sizes.index(4096)
    assert (file_bytes, bases) == (4096, [intact * 4096])
    assert [(problem.path, problem.reason) for problem in problems] == [
        (f"{tmp_path}/{4096 - intact * 4096:020d}", f"has {sizes[1 - intact]} bytes instead of 4096")
    ]


def test_a_file_far_away_lists_a_bounded_number_of_missing_ones(store: Path) -> None:
    queue = store / "consumequeue" / "orders" / "0"
    shutil.copy(queue / f"{0:020d}", queue / f"{200 * 10**12:020d}")
    assert len(examine(store).files) < 200


def test_foreign_files_move_to_lost_and_found_and_the_queues_are_rebuilt(store: Path) -> None:
    (store / "consumequeue" / "notes.txt").write_bytes(b"1")
    (store / "consumequeue" / "orders" / "00").mkdir()
    (store / "consumequeue" / "orders" / "00" / "notes.txt").write_bytes(b"2")
    (store / "consumequeue" / "orders" / "1" / f"{200:020d}").write_bytes(b"short")
    moved = repair(store).moved
    assert len(moved) == 3
    assert {path.read_bytes() for path in (store / "lost+found").rglob("*") if path.name.startswith("notes")} == {b"2"}
    assert any(path.is_file() and path.read_bytes() == b"1" for path in (store / "lost+found").iterdir())
    assert len(bodies_of(store)) == MESSAGES
