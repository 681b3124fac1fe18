"""``gantrymq store``: the check finds every damaged byte, and backups have every acknowledged message."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

import gantrymq.sync
from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env import Env, File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError, StoreInUse
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.kernel.store.recovery.checkpoint import MarkFiles
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance import store_repair
from gantrymq.maintenance.backup_manifest import list_backups, read_backup
from gantrymq.maintenance.backup_targets import FolderTarget, ObjectTarget, StorageFailed, Target, open_target
from gantrymq.maintenance.store_backup import back_up
from gantrymq.maintenance.store_check import StoreCheck, StoreReport
from gantrymq.maintenance.store_restore import restore
from gantrymq.message import Message
from gantrymq.plugins.index.layout import Shape
from gantrymq.testing.harness import cluster_in_thread
from support.badblocks import BadBlocksEnv
from support.foreign import ToolMissing, cache_folder
from support.object_storage import S3RVER_KEY, run_s3, run_s3rver, s3_settings
from support.stores import log_records, make_store

pytestmark = pytest.mark.timeout(120)

Cli = Callable[..., Any]
MESSAGES = 300
SETTINGS = {
    "store.commit_log_file_bytes": "64 KiB",
    "store.queue_file_units": "40",
    "plugin.index.slots": "64",
    "plugin.index.entries": "200",
}
CACHE = cache_folder(Path(__file__).parents[1] / "interop" / ".cache")
CONFIG = "[plugin.index]\nslots = 64\nentries = 200\n"

FEW_DESCRIPTORS = """
import resource
import sys

from gantrymq.cli.__main__ import run

for command in sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if run(["store", *command.split()]):
        sys.exit(f"{command} has failed")
"""


@attrs.frozen
class Sample:
    """A store with 300 messages of one topic, and where their records are: offset, size, queue, queue offset, body."""

    folder: Path
    records: list[tuple[int, int, int, int, bytes]]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = make_store(tmp_path_factory.mktemp("sample") / "store", SETTINGS, 4, MESSAGES, 400)
    rows = [
        (record.offset, len(raw), record.queue_id, record.queue_offset, record.body)
        for record, raw in log_records(folder)
        if record.topic == "orders"
    ]
    assert len(rows) == MESSAGES
    return Sample(folder, rows)


@pytest.fixture
def store(sample: Sample, tmp_path: Path) -> Path:
    shutil.copytree(sample.folder, tmp_path / "store")
    (tmp_path / "broker.toml").write_text(CONFIG)
    return tmp_path / "store"


@pytest.fixture
def check(cli: Cli, store: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*options: str) -> tuple[int, dict[str, Any]]:
        config = str(store.parent / "broker.toml")
        outcome = cli("store", "check", "--data", str(store), "--config", config, "--json", *options)
        assert outcome.code in (0, 1), outcome.err
        return outcome.code, json.loads(outcome.out)

    return run


def flip(path: Path, offset: int, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for at in range(offset, offset + count):
        data[at] ^= 0xFF
    path.write_bytes(data)


def log_file(store: Path, offset: int) -> tuple[Path, int]:
    """The file that has this log offset, and the position in it."""
    base = offset - offset % 65536
    return store / "commitlog" / f"{base:020d}", offset - base


def bodies_of(store: Path) -> set[bytes]:
    """What a consumer reads when a broker runs on the store."""
    with cluster_in_thread(store, settings=SETTINGS) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        with client.reader("orders", start="first", until="end") as reader:
            bodies = {message.body for message in reader}
        client.admin.find("orders", "k0")  # the broker answers as soon as the index has all messages
        return bodies


def test_an_undamaged_store_is_reported_so_and_stays_as_it_is(check: Any, store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    code, found = check("--deep")
    assert (code, found["ok"], found["queues"] >= 4) == (0, True, True), found
    assert found["records"] >= MESSAGES
    assert found["index_entries"] >= 2 * MESSAGES, "a unique id and a key of each message"
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_300_flipped_bytes_of_the_log_are_found_with_the_messages_that_they_hit(
    check: Any, store: Path, sample: Sample
) -> None:
    offset, _, _, _, _ = sample.records[100]
    place, at = log_file(store, offset + 150)
    flip(place, at, 300)
    hit = [row for row in sample.records if row[0] < offset + 450 and row[0] + row[1] > offset + 150]
    code, found = check()
    assert (code, found["ok"]) == (1, False)
    (damage,) = found["damage"]
    assert (damage["start"], damage["end"]) == (hit[0][0], hit[-1][0] + hit[-1][1])
    assert damage["path"] == str(place)
    assert damage["message_count"] == len(hit)
    assert [(each["topic"], each["queue"], each["queue_offset"], each["offset"], each["size"])
            for each in damage["messages"]] == [("orders", row[2], row[3], row[0], row[1]) for row in hit]  # fmt: skip
    assert found["wrong_entries"] == [], "the entries are right; the records are not"


@pytest.mark.parametrize("number", [0, 57, MESSAGES - 1])
def test_one_flipped_byte_of_a_body_is_found(check: Any, store: Path, sample: Sample, number: int) -> None:
    offset, size, queue, queue_offset, body = sample.records[number]
    place, _ = log_file(store, offset)
    flip(place, place.read_bytes().index(body) + 7)
    code, found = check()
    assert code == 1
    assert [(each["start"], each["end"]) for each in found["damage"]] == [(offset, offset + size)]
    assert [(each["queue"], each["queue_offset"]) for each in found["damage"][0]["messages"]] == [(queue, queue_offset)]


def test_flipped_bytes_outside_of_bodies_are_found_through_queues_and_index(
    check: Any, store: Path, sample: Sample
) -> None:
    offset, _, queue, queue_offset, body = sample.records[20]
    place, _ = log_file(store, offset)
    data = place.read_bytes()
    behind = data.index(body) + len(body)
    flip(place, data.index(b"red", behind))  # a tag: the entry has its hash
    other = sample.records[25]
    key = data.index(b"k25", data.index(other[4]) + len(other[4]))
    flip(place, key + 1)
    _, found = check("--deep")
    assert [(each["queue"], each["queue_offset"]) for each in found["wrong_entries"]] == [(queue, queue_offset)]
    assert len(found["suspect_records"]) == 2, "a flipped letter is not UTF-8"
    assert sum(each["entries"] for each in found["index"]) == 1


def test_damaged_queues_and_index_are_repaired_from_the_log(check: Any, store: Path, sample: Sample) -> None:
    whole = {path: path.read_bytes() for path in (store / "consumequeue" / "orders").rglob("*") if path.is_file()}
    flip(store / "consumequeue" / "orders" / "0" / f"{0:020d}", 10 * ENTRY.size + 5, 60)
    shutil.rmtree(store / "consumequeue" / "orders" / "2")
    (store / "consumequeue" / "orders" / "1" / f"{800:020d}").write_bytes(b"short")
    index = sorted((store / "index").iterdir())
    flip(index[1], 40 + 64 * 4 + 20 * 5 + 2)
    code, found = check("--deep")
    assert code == 1
    wrong = found["wrong_entries"]
    assert [each["queue_offset"] for each in wrong if each["queue"] == 0] == [10, 11, 12, 13]
    assert sum(each["queue"] == 2 for each in wrong) == sum(row[2] == 2 for row in sample.records)
    assert [each["path"] for each in found["index"]] == [str(index[1])]
    assert [each["reason"] for each in found["files"]] == ["has 5 bytes instead of 800"]
    assert found["damage"] == []
    code, done = check("--deep", "--repair")
    assert (code, done["ok"]) == (0, True), "queues are built again at once, the index at the start"
    assert [(each["path"], each["is_damage"]) for each in done["state"]] == [(f"index/{index[1].name}", False)]
    assert done["repaired"]["corrected_entries"] == 4
    assert done["repaired"]["queues_rebuilt"] == [f"{store}/consumequeue/orders/{number}" for number in (2, 1)]
    assert done["repaired"]["index_files_removed"] == [str(path) for path in index[1:]]
    assert bodies_of(store) == {row[4] for row in sample.records}
    code, after = check("--deep")
    assert (code, after["ok"]) == (0, True), after
    assert after["index_entries"] >= 2 * MESSAGES
    for path, data in whole.items():
        assert path.read_bytes() == data, path


def test_a_quarantined_range_costs_only_the_messages_in_it(check: Any, store: Path, sample: Sample) -> None:
    offset, size, _, _, body = sample.records[150]
    place, at = log_file(store, offset)
    flip(place, at, 40)
    _, found = check("--quarantine")
    assert found["quarantined"] == [[offset, offset + size]]
    assert bodies_of(store) == {row[4] for row in sample.records} - {body}


def test_cutting_needs_the_start_of_a_damaged_range_and_keeps_the_rest_aside(
    cli: Cli, check: Any, store: Path, sample: Sample
) -> None:
    offset = sample.records[200][0]
    place, at = log_file(store, offset)
    flip(place, at, 40)
    refused = cli("store", "check", "--data", str(store), "--cut", str(offset + 1))
    assert refused.code == 1
    assert f"Damaged ranges begin at: {offset}" in " ".join(refused.err.split())
    code, found = check("--cut", str(offset))
    assert code == 0
    assert all(Path(path).parent.name == "lost+found" for path in found["cut"]["kept"])
    assert bodies_of(store) == {row[4] for row in sample.records[:200]}
    assert check()[0] == 0


def test_a_cut_reports_the_damage_that_remains_before_it(check: Any, store: Path, sample: Sample) -> None:
    first, second = sample.records[200][0], sample.records[240][0]
    for offset in (first, second):
        place, at = log_file(store, offset)
        flip(place, at, 40)
    code, found = check("--deep", "--cut", str(second))
    assert (code, [each["start"] for each in found["damage"]], found["log_end"]) == (1, [first], second)
    assert found["cut"]["offset"] == second
    code, found = check("--deep", "--cut", str(first))
    assert (code, found["ok"], found["log_end"]) == (0, True, first), found


def test_messages_sent_after_a_cut_are_readable_where_a_quarantined_range_was(
    check: Any, store: Path, sample: Sample
) -> None:
    for row in (sample.records[200], sample.records[240]):
        place, at = log_file(store, row[0])
        flip(place, at, 40)
    _, found = check("--quarantine")
    ranges = [[row[0], row[0] + row[1]] for row in (sample.records[200], sample.records[240])]
    assert found["quarantined"] == ranges
    check("--cut", str(ranges[0][0]))
    assert json.loads((store / "gantrymq.quarantine").read_bytes()) == []
    bodies = {b"new %03d" % number * 60 for number in range(80)}
    with cluster_in_thread(store, settings=SETTINGS) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        with client.producer() as producer:
            for body in sorted(bodies):
                producer.send(Message("orders", body))
    assert max(record.offset for record, _ in log_records(store)) > ranges[1][1]
    assert bodies_of(store) == {row[4] for row in sample.records[:200]} | bodies
    assert check()[0] == 0


def test_a_log_of_more_files_than_the_soft_limit_of_descriptors_is_checked_backed_up_and_restored(
    tmp_path: Path,
) -> None:
    filled = Store(SystemEnv(), str(tmp_path / "store"), StoreConfig(commit_log_file_bytes=4096, queue_file_units=40))
    filled.open()
    filled.recover(lambda batch: None)
    batch = AppendBatch()
    for _ in range(120):
        batch.add("orders", 0, b"x" * 3000, b"")
    filled.append(batch)
    for _ in filled.dispatch(filled.flush()):
        pass
    filled.close()
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) >= 120
    commands = "check --data store", "backup backup --data store", "restore backup --data restored"
    subprocess.run([sys.executable, "-c", FEW_DESCRIPTORS, *commands], cwd=tmp_path, check=True)


def test_a_missing_log_file_is_damage_with_its_messages(check: Any, store: Path, sample: Sample) -> None:
    (store / "commitlog" / f"{65536:020d}").unlink()
    code, found = check()
    (damage,) = found["damage"]
    assert (code, damage["start"], damage["end"]) == (1, 65536, 131072)
    assert damage["message_count"] == sum(65536 <= row[0] < 131072 for row in sample.records)
    check("--quarantine")
    assert bodies_of(store) == {row[4] for row in sample.records if not 65536 <= row[0] < 131072}


@pytest.fixture
def read_only(store: Path) -> Iterator[Path]:
    """The store on a read-only file system; without the right to mount, in a folder that this user may not write."""
    if os.geteuid() != 0:
        everything = [store, *store.rglob("*")]
        for path in everything:
            path.chmod(0o500 if path.is_dir() else 0o400)
        yield store
        for path in everything:
            path.chmod(0o700 if path.is_dir() else 0o600)
        return
    bound = subprocess.run(["mount", "--bind", str(store), str(store)], capture_output=True, text=True)
    if bound.returncode != 0:
        pytest.skip(f"this user may not mount: {bound.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(store)], check=True)
        yield store
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_store_on_a_read_only_file_system_is_checked_but_not_repaired(
    cli: Cli, check: Any, store: Path, request: pytest.FixtureRequest, has_lock: bool
) -> None:
    flip(store / "consumequeue" / "orders" / "0" / f"{0:020d}", 10 * ENTRY.size + 5)
    if not has_lock:
        (store / "lock").unlink()  # as in a restored store on which no broker has started
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    request.getfixturevalue("read_only")
    code, found = check("--deep")
    assert (code, [each["queue_offset"] for each in found["wrong_entries"]]) == (1, [10])
    refused = cli("store", "check", "--data", str(store), "--repair")
    assert refused.code == 1
    reason = " ".join(refused.err.split())
    assert re.search(f"gantrymq: .*{store}.*(the file system is read-only|no permission)", reason)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_cut_keeps_the_lock_from_the_check_to_the_end(
    cli: Cli, store: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = sample.records[200][0]
    place, at = log_file(store, offset)
    flip(place, at, 40)
    held: list[str] = []
    original = store_repair.cut

    def cut(env: Env, root: str, *rest: Any) -> tuple[str, ...]:
        with pytest.raises(StoreInUse):
            env.lock(f"{root}/lock")
        held.append(root)
        kept = original(env, root, *rest)
        with pytest.raises(StoreInUse):
            env.lock(f"{root}/lock")
        return kept

    monkeypatch.setattr(store_repair, "cut", cut)
    assert cli("store", "check", "--data", str(store), "--cut", str(offset)).code == 0
    assert held == [str(store)]
    SystemEnv().lock(f"{store}/lock").close()  # and it is released then


@pytest.mark.parametrize("option", ["--deep", "--repair", "--quarantine", "--cut=0"])
def test_the_store_of_a_running_broker_is_refused_with_the_process(cli: Cli, store: Path, option: str) -> None:
    script = (
        "import sys; from gantrymq.kernel.env.system import SystemEnv\n"
        "lock = SystemEnv().lock(sys.argv[1]); print('locked', flush=True); input()"
    )
    command = [sys.executable, "-c", script, f"{store}/lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline() == b"locked\n"
            refused = cli("store", "check", "--data", str(store), option)
            reason = " ".join(refused.err.split())
            assert (refused.code, f"is in use by process {broker.pid}: stop it first" in reason) == (1, True)
        finally:
            broker.communicate(b"\n")


def test_a_folder_without_store_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    outcome = cli("store", "check", "--data", str(tmp_path / "empty"))
    assert outcome.code == 1
    assert "is not the folder of a store" in outcome.err


def test_a_backup_of_a_folder_without_store_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    """A wrong --data may be the home of a user, whose files have secrets."""
    config = tmp_path / "home" / "config"
    config.mkdir(parents=True)
    (config / "credentials").write_text("secret")
    target = tmp_path / "backups"
    target.mkdir()
    outcome = cli("store", "backup", str(target), "--data", str(tmp_path / "home"))
    assert (outcome.code, "is not the folder of a store" in outcome.err) == (1, True)
    assert list(target.rglob("*")) == []


# ------------------------------------------------------------------------------------------------------------- backup


def parsed(out: str) -> Any:
    """The JSON that a command printed, without the log lines of the broker in this process."""
    lines = out.splitlines()
    start = next(number for number, line in enumerate(lines) if line in ("{", "["))
    return json.loads("\n".join(lines[start : lines.index({"{": "}", "[": "]"}[lines[start]], start) + 1]))


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("busy") / "store"
    with cluster_in_thread(folder, settings=SETTINGS) as cluster:
        with gantrymq.sync.connect(cluster.nameserver) as client:
            client.admin.create_topic("orders", 4)
            yield folder, client


@pytest.mark.parametrize("kind", ["folder", "fsspec"])
@pytest.mark.slow
def test_a_backup_under_load_has_every_message_acknowledged_before_it(
    cli: Cli, busy: tuple[Path, Any], tmp_path: Path, kind: str
) -> None:
    folder, client = busy
    target = str(tmp_path / "backups") if kind == "folder" else f"memory://{tmp_path.name}/backups"
    acknowledged: list[bytes] = []
    ending = threading.Event()

    def load() -> None:
        with client.producer() as producer:
            while not ending.is_set():
                body = b"%s %d " % (kind.encode(), len(acknowledged)) + b"y" * 300
                producer.send("orders", body)
                acknowledged.append(body)

    def back_up() -> tuple[dict[str, Any], int]:
        known = len(acknowledged)
        outcome = cli("store", "backup", target, "--data", str(folder), "--json")
        assert outcome.code == 0, outcome.err
        return parsed(outcome.out), known

    thread = threading.Thread(target=load)
    thread.start()
    try:
        while len(acknowledged) < 300:
            ending.wait(0.01)
        reports = []
        for _ in range(3):
            reports.append(back_up())
            goal = len(acknowledged) + 100
            while len(acknowledged) < goal and thread.is_alive():
                ending.wait(0.01)
    finally:
        ending.set()
        thread.join()
    for (earlier, _), (later, _) in pairwise(reports):
        assert later["copied_log_bytes"] == later["log_end"] - earlier["log_end"] > 0, "only what is new"
    listed = parsed(cli("store", "backups", target, "--json").out)
    assert [row["name"] for row in listed] == [report["name"] for report, _ in reports]
    for number, (report, known) in enumerate(reports):
        data = tmp_path / f"restored-{number}"
        outcome = cli("store", "restore", target, "--data", str(data), "--backup", report["name"])
        assert outcome.code == 0, outcome.err
        assert cli("store", "check", "--data", str(data)).code == 0
        assert set(acknowledged[:known]) <= bodies_of(data)


def test_a_restored_broker_goes_on_with_offsets_keys_and_timed_messages(cli: Cli, tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path / "store", settings=SETTINGS) as cluster:
        with gantrymq.sync.connect(cluster.nameserver) as client, client.producer() as producer:
            client.admin.create_topic("orders", 1)
            for number in range(10):
                producer.send("orders", b"%d" % number, keys=[f"k{number}"])
            producer.send(Message("orders", b"delivered", delay=0.2))
            producer.send(Message("orders", b"waiting", delay=3600))
            with client.consumer("orders", "billing", start="first") as consumer:
                seen = []
                for message in consumer:
                    seen.append(message.body)
                    message.ack()
                    if message.body == b"delivered":
                        break
            outcome = cli("store", "backup", str(tmp_path / "backups"), "--data", str(tmp_path / "store"))
            assert outcome.code == 0, outcome.err
    # The state of the first backup is as old as the broker's last write; after a stop it is complete.
    assert cli("store", "backup", str(tmp_path / "backups"), "--data", str(tmp_path / "store"), "--keep", "1").code == 0
    assert len(list((tmp_path / "backups" / "backups").iterdir())) == 1
    assert cli("store", "restore", str(tmp_path / "backups"), "--data", str(tmp_path / "new")).code == 0
    with cluster_in_thread(tmp_path / "new", settings=SETTINGS) as cluster:
        with gantrymq.sync.connect(cluster.nameserver) as client, client.producer() as producer:
            producer.send("orders", b"new")
            with client.consumer("orders", "billing") as consumer:
                bodies = []
                while b"new" not in bodies:
                    bodies.append(next(iter(consumer)).body)
                # The timer delivers its last second again, as after a crash.
                assert set(bodies) <= {b"delivered", b"new"}, "the group continues behind what it has acknowledged"
            waiting = cli("delayed", "list", "--nameserver", cluster.nameserver, "--json")
            assert waiting.code == 0, waiting.err
            assert waiting.out.count("orders") == 1


def test_damaged_and_incomplete_backups_are_refused(cli: Cli, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    assert cli("store", "backup", str(target), "--data", str(store)).code == 0
    taken = cli("store", "restore", str(target), "--data", str(store))
    assert (taken.code, "is not empty" in taken.err) == (1, True)
    piece = sorted((target / "log").iterdir())[1]
    flip(piece, 100)
    outcome = cli("store", "restore", str(target), "--data", str(tmp_path / "a"))
    assert (outcome.code, "does not have the bytes that were written" in outcome.err) == (1, True)
    for arguments in (("check",), ("restore", str(target)), ("backup", str(tmp_path / "of-it"))):
        outcome = cli("store", *arguments, "--data", str(tmp_path / "a"))
        assert (outcome.code, "has not finished" in outcome.err) == (1, True), "a part is not taken for whole"
    with pytest.raises(StoreDamaged, match="has not finished"):
        Store(SystemEnv(), str(tmp_path / "a"), StoreConfig(commit_log_file_bytes=64 * 1024)).open()
    piece.unlink()
    outcome = cli("store", "backup", str(target), "--data", str(store))
    assert (outcome.code, "are missing" in outcome.err) == (1, True), "no backup builds on objects that are gone"
    outcome = cli("store", "restore", str(target), "--data", str(tmp_path / "b"))
    assert (outcome.code, "is missing" in outcome.err) == (1, True)
    manifest = next((target / "backups").iterdir())
    manifest.write_text(manifest.read_text().replace("config/", "config/../../"))
    outcome = cli("store", "restore", str(target), "--data", str(tmp_path / "c"))
    assert (outcome.code, "is not a state file" in outcome.err) == (1, True)


def test_a_manifest_cannot_name_files_outside_of_the_backup(cli: Cli, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    assert cli("store", "backup", str(target), "--data", str(store)).code == 0
    manifest = next((target / "backups").iterdir())
    tree = json.loads(manifest.read_text())
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    tree["state"][0] |= {"name": "../secret", "size": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    manifest.write_text(json.dumps(tree))
    outcome = cli("store", "restore", str(target), "--data", str(tmp_path / "new"))
    assert (outcome.code, "is not an object of a backup" in outcome.err) == (1, True)
    assert not (tmp_path / "new").exists()


def test_only_the_user_can_read_the_objects_of_a_backup(cli: Cli, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "shared"
    target.mkdir(mode=0o755)
    assert cli("store", "backup", str(target), "--data", str(store)).code == 0
    modes = {path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_a_log_that_was_replaced_is_not_appended_to_the_backup(cli: Cli, store: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "backups")
    assert cli("store", "backup", target, "--data", str(store)).code == 0
    last = [path for path in sorted((store / "commitlog").iterdir()) if path.read_bytes().strip(b"\0")][-1]
    flip(last, 100)
    outcome = cli("store", "backup", target, "--data", str(store))
    assert (outcome.code, "is not the continuation of the last backup" in " ".join(outcome.err.split())) == (1, True)
    assert cli("store", "backup", target, "--data", str(store), "--full").code == 0


@pytest.mark.slow
def test_an_object_store_that_fails_is_named_in_one_line(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="pip install 'gantrymq[backup]'")
    for name, value in s3_settings("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    outcome = cli("store", "backup", "s3://bucket/broker-a", "--data", str(store))
    assert (outcome.code, outcome.err.startswith("gantrymq: s3://bucket/broker-a/")) == (1, True), outcome.err


@pytest.mark.parametrize(
    "url",
    [
        "sftp://keeper:pass-word@host/x", "sftp://keeper:pass-word@2@host/x", "nope://keeper:pass-word@host/x",
        pytest.param("az://keeper:pass-word@host/x", id="obstore"),
    ],
)  # fmt: skip
def test_the_password_of_a_url_is_not_in_the_message(
    cli: Cli, store: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="pip install 'gantrymq[backup]'")
    monkeypatch.setitem(sys.modules, "paramiko", None)
    outcome = cli("store", "backup", url, "--data", str(store))
    shown = f"{url.partition(':')[0]}://host/x"
    assert (outcome.code, outcome.err.startswith(f"gantrymq: {shown}: ")) == (1, True), outcome.err
    assert "pass-word" not in outcome.err


def test_the_password_of_a_url_is_not_in_the_message_of_a_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = pytest.importorskip("obstore.exceptions", reason="pip install 'gantrymq[backup]'")
    place = open_target("s3://keeper:pass-word@bucket/x")

    def fail(*_: object) -> None:
        raise exceptions.BaseError("the bucket is gone")

    monkeypatch.setattr(place, "_store", SimpleNamespace(put=fail))
    with pytest.raises(StorageFailed, match=r"^s3://bucket/x/note: the bucket is gone$"):
        place.write("note", b"")


@pytest.fixture(params=["moto", "s3rver"])
def s3(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an S3 on loopback, with the settings for its bucket ``bucket``."""
    pytest.importorskip("obstore", reason="pip install 'gantrymq[backup]'")
    if request.param == "moto":
        pytest.importorskip("moto", reason="pip install 'moto[s3]' flask-cors")
    with ExitStack() as stack:
        try:
            server = run_s3() if request.param == "moto" else run_s3rver(CACHE, tmp_path / "s3")
            address = stack.enter_context(server)
        except ToolMissing as missing:
            pytest.skip(str(missing))
        key = {} if request.param == "moto" else {"key": S3RVER_KEY, "secret": S3RVER_KEY}
        for name, value in s3_settings(address, **key).items():
            monkeypatch.setenv(name, value)
        yield request.param


@pytest.mark.slow
@pytest.mark.once
def test_backups_in_two_implementations_of_s3_are_incremental_deleted_and_restored(
    cli: Cli, store: Path, tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "s3://bucket/my données/broker a"
    first = json.loads(cli("store", "backup", target, "--data", str(store), "--json").out)
    again = json.loads(cli("store", "backup", target, "--data", str(store), "--json").out)
    assert (first["copied_log_bytes"], again["copied_log_bytes"]) == (first["log_end"], 0)
    for _ in range(2):
        done = cli("store", "backup", target, "--data", str(store), "--full", "--keep", "2", "--json")
        assert done.code == 0, done.err
    listed = json.loads(cli("store", "backups", target, "--json").out)
    assert len(listed) == 2
    assert first["name"] not in [row["name"] for row in listed]
    restored = tmp_path / "restored"
    done = cli("store", "restore", target, "--data", str(restored))
    assert done.code == 0, done.err
    assert [record.body for record, _ in log_records(restored)] == [record.body for record, _ in log_records(store)]
    assert cli("store", "check", "--data", str(restored)).code == 0
    if s3 == "s3rver":  # moto takes any key
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
        refused = cli("store", "backup", target, "--data", str(store))
        assert (refused.code, refused.err.count("\n")) == (1, 1), refused.err
        assert refused.err.startswith(f"gantrymq: {target}/")


# ------------------------------------------------------------------------------------------------- unreadable blocks


@attrs.frozen
class BadDisk:
    """A store whose log has one block that cannot be read; ``hit``: the numbers of the records that touch it."""

    env: BadBlocksEnv
    root: str
    hit: list[int]
    start: int
    """The offset of the first record that touches the block."""
    block: int
    """The log offset of the block."""

    def check(self) -> StoreReport:
        return StoreCheck(self.env, self.root, Shape(64, 200)).run()

    def quarantine(self) -> None:
        store_repair.quarantine(self.env, self.root, self.check())


@pytest.fixture(params=[2 * 4096])
def bad_disk(store: Path, sample: Sample, request: pytest.FixtureRequest) -> BadDisk:
    block: int = request.param
    hit = [number for number, row in enumerate(sample.records) if row[0] < block + 4096 and row[0] + row[1] > block]
    env = BadBlocksEnv()
    path, at = log_file(store, block)
    env.spoil(f"commitlog/{path.name}", at, at + 4096)
    return BadDisk(env, str(store), hit, sample.records[hit[0]][0], block)


def test_a_backup_of_an_unreadable_block_is_refused_with_the_remedy(bad_disk: BadDisk, tmp_path: Path) -> None:
    place = FolderTarget(tmp_path / "backups")
    reason = rf"{0:020d} cannot be read at offset {bad_disk.block} .*stop the broker.* store check --quarantine"
    with pytest.raises(StartError, match=reason):
        back_up(bad_disk.env, bad_disk.root, place)
    assert list_backups(place) == []


def test_a_backup_of_a_quarantined_unreadable_block_has_all_other_messages(
    bad_disk: BadDisk, sample: Sample, tmp_path: Path
) -> None:
    bad_disk.quarantine()
    place = FolderTarget(tmp_path / "backups")
    assert back_up(bad_disk.env, bad_disk.root, place).copied_log_bytes > 0
    assert back_up(bad_disk.env, bad_disk.root, place).copied_log_bytes == 0, "the next one continues it"
    restore(SystemEnv(), place, str(tmp_path / "restored"))
    expected = {row[4] for number, row in enumerate(sample.records) if number not in bad_disk.hit}
    assert bodies_of(tmp_path / "restored") == expected


@pytest.mark.parametrize("bad_disk", [2 * 65536 + 4096], indirect=True)
def test_a_backup_continues_one_that_was_made_before_a_block_of_its_last_object_became_unreadable(
    bad_disk: BadDisk, store: Path, tmp_path: Path
) -> None:
    place = FolderTarget(tmp_path / "backups")
    back_up(SystemEnv(), bad_disk.root, place)
    with pytest.raises(StartError, match="cannot be read"):
        back_up(bad_disk.env, bad_disk.root, place)
    bad_disk.quarantine()
    assert back_up(bad_disk.env, bad_disk.root, place).copied_log_bytes == 0
    path, at = log_file(store, bad_disk.block + 5000)
    flip(path, at)
    with pytest.raises(StartError, match="is not the continuation"):
        back_up(bad_disk.env, bad_disk.root, place)


def test_a_log_is_cut_at_an_unreadable_block_which_is_overwritten_with_zeros(
    bad_disk: BadDisk, store: Path, sample: Sample
) -> None:
    path, _ = log_file(store, 0)
    before = path.read_bytes()
    lock = bad_disk.env.lock(f"{bad_disk.root}/lock")
    kept = store_repair.cut(bad_disk.env, bad_disk.root, bad_disk.check(), bad_disk.start, lock)
    lock.close()
    saved = Path(kept[0]).read_bytes()
    at, behind = bad_disk.block - bad_disk.start, bad_disk.block + 4096
    assert saved[:at] == before[bad_disk.start : bad_disk.block]
    assert saved[at : at + 4096] == bytes(4096), "what cannot be read"
    assert saved[at + 4096 :] == before[behind : bad_disk.start + len(saved)]
    assert path.read_bytes() == before[: bad_disk.start] + bytes(65536 - bad_disk.start)
    bad_disk.env.bad.clear()  # the disk has replaced the block that was overwritten
    assert bodies_of(store) == {row[4] for row in sample.records[: bad_disk.hit[0]]}


# --------------------------------------------------------------------------------- backups at the same time


@attrs.define
class Interrupting:
    """A target that calls ``act`` before operation number ``at``, once."""

    inner: Target
    at: int
    act: Callable[[], Any]
    done: int = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)

        def operation(*arguments: Any) -> Any:
            self.done += 1
            if self.done == self.at:
                self.act()
            return call(*arguments)

        return operation


def assert_all_restorable(place: Target) -> None:
    for name in list_backups(place):
        found = read_backup(place, name)
        for piece in (*found.log, *found.state):
            assert hashlib.sha256(place.read(piece.name, piece.size)).hexdigest() == piece.sha256


@pytest.mark.parametrize(("full", "other_full"), [(False, True), (True, False)])
def test_backups_with_keep_to_one_target_never_delete_what_the_other_one_needs(
    store: Path, tmp_path: Path, full: bool, other_full: bool
) -> None:
    for path in sorted((store / "commitlog").iterdir())[1:]:
        path.unlink()  # one log file is enough
    shutil.rmtree(store / "consumequeue")
    for name in ("gantrymq.watermark", "abort"):
        (store / name).unlink(missing_ok=True)
    env, root = SystemEnv(), str(store)
    number, operations = 0, 1
    while number < operations:
        number += 1
        place = ObjectTarget(f"memory://{tmp_path.name}/{number}")
        back_up(env, root, place)  # both runs find this one
        (store / "config" / "topics.json").write_text(json.dumps({"run": number}))

        def other(place: Target = place) -> None:
            back_up(env, root, place, full=other_full, keep=1)
            assert_all_restorable(place)

        target = Interrupting(place, number, other)
        back_up(env, root, target, full=full, keep=1)
        assert_all_restorable(place)
        operations = target.done
        last = back_up(env, root, place, full=True, keep=1)
        assert not last.deletion_deferred
        assert_all_restorable(place)
        objects = {f"{folder}/{name}" for folder in ("log", "state") for name in place.names(folder)}
        found = read_backup(place, last.name)
        assert objects == {piece.name for piece in (*found.log, *found.state)}, "and nothing stays for ever"
    assert operations > 10


class StoppedClock(SystemEnv):
    def wall_ms(self) -> int:
        return 1_800_000_000_000


def test_names_of_full_backups_in_one_millisecond_are_in_their_order(store: Path, tmp_path: Path) -> None:
    place = ObjectTarget(f"memory://{tmp_path.name}")
    place.write("backups/note.json", b"{}")  # not ours: a full backup does not read it
    env = StoppedClock()
    made = [back_up(env, str(store), place, full=True).name for _ in range(4)]
    assert [name for name in list_backups(place) if name != "note"] == made


def test_a_killed_backup_delays_the_deletion_for_an_hour(cli: Cli, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    running = target / "running" / "0123abcd"
    running.parent.mkdir(parents=True)
    running.write_text(str(int(time.time() * 1000)))
    for _ in range(2):
        outcome = cli("store", "backup", str(target), "--data", str(store), "--full", "--keep", "1")
        assert outcome.code == 0, outcome.err
    assert "another backup runs to this target" in outcome.out
    running.write_text(str(int(time.time() * 1000) - 3_600_001))
    outcome = cli("store", "backup", str(target), "--data", str(store), "--full", "--keep", "1", "--json")
    report = json.loads(outcome.out)
    assert not report["deletion_deferred"]
    assert list(running.parent.iterdir()) == []
    assert (
        sum(path.is_file() for folder in ("log", "state") for path in (target / folder).iterdir())
        == (report["objects"])
    )


def test_a_backup_that_was_taken_for_killed_is_not_listed(store: Path, tmp_path: Path) -> None:
    place = FolderTarget(tmp_path / "backups")

    def take_for_killed() -> None:
        for name in place.names("running"):
            place.delete(f"running/{name}")

    target = Interrupting(place, 8, take_for_killed)
    with pytest.raises(StartError, match="back up again"):
        back_up(SystemEnv(), str(store), target)
    assert list_backups(place) == []


class JumpingClock(SystemEnv):
    """``passed_ms`` have passed beside the time of the system."""

    passed_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.passed_ms


def test_a_backup_that_paused_until_it_was_taken_for_killed_is_not_listed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a backup must not register again, because another run has deleted its objects meanwhile."""
    monkeypatch.setattr("gantrymq.maintenance.store_backup.OBJECT_BYTES", 8192)
    place, env = FolderTarget(tmp_path / "backups"), JumpingClock()

    class Pausing:
        """The target of a run that is suspended for 61 minutes before it stores its third object of the log."""

        stored = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(place, name)

        def write(self, name: str, data: bytes) -> None:
            self.stored += name.startswith("log/")
            if self.stored == 3 and env.passed_ms == 0:
                env.passed_ms = 61 * 60_000
                assert not back_up(env, str(store), place, full=True, keep=1).deletion_deferred
            place.write(name, data)

    target = Pausing()
    with pytest.raises(StartError, match=r"another backup considered this one killed.*back up again"):
        back_up(env, str(store), target)
    assert target.stored == 3, "it ends at once"
    assert len(list_backups(place)) == 1
    assert place.names("running") == []
    assert_all_restorable(place)


class DeletingEnv(SystemEnv):
    """Retention deletes the first ``count`` files of the log when the last of them is opened for the first time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.names = [f"{number * 65536:020d}" for number in range(count)]

    def open(self, path: str, create: bool = False) -> File:
        folder, _, name = path.rpartition("/")
        if folder.endswith("/commitlog") and self.names and name == self.names[-1]:
            marks = MarkFiles(self, folder.removesuffix("/commitlog"))
            marks.save_start(len(self.names) * 65536)
            marks.close()
            while self.names:
                self.unlink(f"{folder}/{self.names.pop(0)}")
        return super().open(path, create)


@pytest.mark.parametrize("count", [1, 2])
def test_a_backup_succeeds_while_retention_deletes_the_oldest_files(store: Path, tmp_path: Path, count: int) -> None:
    env, place = DeletingEnv(count), FolderTarget(tmp_path / "backups")
    assert back_up(env, str(store), place).log_start == count * 65536
    assert_all_restorable(place)


@pytest.fixture
def torn_files(tmp_path: Path) -> Any:
    """A storage of files, whose writing ends half way at each path that contains ``torn_files.at``."""
    fsspec = pytest.importorskip("fsspec", reason="pip install 'gantrymq[backup]'")
    from fsspec.implementations.memory import MemoryFileSystem

    class TornFiles(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "torn"
        store: dict[str, Any] = {}  # noqa: RUF012 - as the base class has it
        pseudo_dirs = [""]  # noqa: RUF012
        at = "nowhere"
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.removeprefix("torn://")))

        def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
            is_torn = TornFiles.at in path
            super().pipe_file(path, value[: len(value) // 2] if is_torn else value, **options)
            if is_torn:
                raise OSError(errno.ECONNRESET, "the connection is lost")

    fsspec.register_implementation("torn", TornFiles, clobber=True)
    return TornFiles


@pytest.mark.parametrize("folder", ["state", "log", "backups"])
def test_an_object_that_was_written_half_is_not_taken_for_one(store: Path, torn_files: Any, folder: str) -> None:
    place = ObjectTarget("torn://server/a")
    torn_files.at = f"/{folder}/"
    with pytest.raises(OSError, match="the connection is lost"):
        back_up(SystemEnv(), str(store), place)
    assert place.names(folder) == []
    torn_files.at = "nowhere"
    report = back_up(SystemEnv(), str(store), place, keep=1)
    assert list_backups(place) == [report.name]
    assert_all_restorable(place)
    assert not [path for path in torn_files.store if path.endswith(".part")]


@pytest.mark.parametrize("text", [b"", b"18000"])
def test_a_backup_whose_registration_is_written_half_is_taken_for_killed_after_an_hour(
    store: Path, tmp_path: Path, text: bytes
) -> None:
    place, env = FolderTarget(tmp_path / "backups"), JumpingClock()
    place.write("running/0123abcd", text)
    assert back_up(env, str(store), place, full=True, keep=1).deletion_deferred
    env.passed_ms = 3_500_000
    assert back_up(env, str(store), place, full=True, keep=1).deletion_deferred
    env.passed_ms = 3_700_000
    assert not back_up(env, str(store), place, full=True, keep=1).deletion_deferred
    assert place.names("running") == []
