"""``store check --deep`` on state files: each kind of damage is found, with its meaning, and repaired as announced."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import gantrymq.sync
from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.sections import Config, build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.plugin_state import encode_state
from gantrymq.kernel.stopped_store import FileFinding, StoppedStore
from gantrymq.maintenance import store_repair
from gantrymq.maintenance.state_check import check_plugin_files
from gantrymq.maintenance.store_check import StoreCheck, StoreReport
from gantrymq.message import Message
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS
from gantrymq.plugins.delay.timer.wheel import SLOT
from gantrymq.plugins.index.layout import Shape
from gantrymq.testing.harness import cluster_in_thread

pytestmark = pytest.mark.timeout(120)

SETTINGS = {
    "store.commit_log_file_bytes": "64 KiB",
    "store.queue_file_units": "40",
    "plugin.index.slots": "64",
    "plugin.index.entries": "200",
}
MESSAGES = 60
CONSUMED = 40
LAST_YEAR_2100 = 4_102_444_800_000


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with messages, a group's offsets, a level's position, and timed messages, delivered and waiting."""
    folder = tmp_path_factory.mktemp("sample") / "store"
    with cluster_in_thread(folder, settings=SETTINGS) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        client.admin.create_topic("orders", 2)
        with client.producer() as producer:
            for number in range(MESSAGES):
                producer.send("orders", b"%d" % number, keys=[f"k{number}"])
            producer.send(Message("orders", b"timed", delay=0.05))
            producer.send(Message("orders", b"waiting", delay=3600))
            producer.send(Message("orders", b"waiting, too", delay=7200))
            producer.send(Message("orders", b"level", delay_level=1))
        with client.consumer("orders", "billing", start="first") as consumer:
            seen: set[bytes] = set()
            for message in consumer:
                seen.add(message.body)
                message.ack()
                if len(seen) == MESSAGES + 2:
                    break
    return folder


@pytest.fixture
def store(sample: Path, tmp_path: Path) -> Path:
    # The wheel is sparse, and ``copytree`` would write its holes.
    shutil.copytree(sample, tmp_path / "store", ignore=shutil.ignore_patterns("timerwheel"))
    os.system(f"cp --sparse=always {sample}/timerwheel {tmp_path}/store/timerwheel")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def loaded() -> tuple[Config, PluginManager]:
    manager = load_plugins(DEFAULT_PLUGINS)
    return build_config(read_settings("", None, {}, (), (), ()), manager), manager


@attrs.frozen
class Checked:
    """Check and repair of one store."""

    store: Path
    config: Config
    managers: tuple[PluginManager, ...]

    def report(self) -> StoreReport:
        def files(store: StoppedStore) -> None:
            check_plugin_files(store, self.config, self.managers)

        return StoreCheck(SystemEnv(), str(self.store), Shape(64, 200), deep=True, check_files=files).run()

    def repair(self) -> store_repair.RepairReport:
        lock = SystemEnv().lock(f"{self.store}/lock")
        try:
            return store_repair.repair(SystemEnv(), str(self.store), self.report(), lock)
        finally:
            lock.close()


@pytest.fixture
def checked(store: Path, loaded: tuple[Config, PluginManager]) -> Checked:
    config, manager = loaded
    return Checked(store, config, (manager, load_plugins(OPTIONAL_PLUGINS)))


# ------------------------------------------------------------------------------------------------------------ damage

Damage = Callable[[Path], object]


def text(path: str, before: str, after: str) -> Damage:
    def damage(store: Path) -> None:
        content = (store / path).read_text()
        assert before in content, content
        (store / path).write_text(content.replace(before, after, 1))

    return damage


def content(path: str, data: bytes) -> Damage:
    def damage(store: Path) -> None:
        (store / path).parent.mkdir(exist_ok=True, parents=True)
        (store / path).write_bytes(data)

    return damage


def patch(path: str, at: int, data: bytes) -> Damage:
    def damage(store: Path) -> None:
        with (store / path).open("r+b") as file:
            file.seek(at)
            file.write(data)

    return damage


def without(*paths: str) -> Damage:
    def damage(store: Path) -> None:
        for path in paths:
            place = store / path
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)

    return damage


def both(path: str, data: bytes) -> Damage:
    def damage(store: Path) -> None:
        (store / path).write_bytes(data)
        (store / f"{path}.bak").write_bytes(data)

    return damage


def main_only(path: str, data: bytes) -> Damage:
    """The file is damaged, and its ``.bak`` is intact."""

    def damage(store: Path) -> None:
        shutil.copy(store / path, store / f"{path}.bak")
        (store / path).write_bytes(data)

    return damage


def offset_of(store: Path) -> int:
    table = (store / "config" / "consumerOffset.json").read_text()
    return int(table.partition("{0:")[2].partition(",")[0].partition("}")[0])


def offset_ahead(store: Path) -> None:
    text("config/consumerOffset.json", f"{{0:{offset_of(store)}", "{0:12345")(store)


def wheel_slot(store: Path) -> None:
    """Let the slot of a waiting message lead elsewhere."""
    with (store / "timerwheel").open("r+b") as file:
        start = 0
        while True:
            start = os.lseek(file.fileno(), start, os.SEEK_DATA)
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            for at in range(start - start % SLOT.size, end, SLOT.size):
                slot = os.pread(file.fileno(), SLOT.size, at)
                second, first, last, number, magic = SLOT.unpack(slot)
                if second * 1000 > LAST_YEAR_2100 or (second and last > 0):
                    os.pwrite(file.fileno(), SLOT.pack(second, first, last + 52, number, magic), at)
                    return
            start = end


def without_slots(store: Path) -> None:
    size = (store / "timerwheel").stat().st_size
    os.truncate(store / "timerwheel", 0)
    os.truncate(store / "timerwheel", size)


def no_valid_slot(store: Path) -> None:
    patch("gantrymq.watermark", 20, b"\xff")(store)
    patch("gantrymq.watermark", 512 + 20, b"\xff")(store)


def deleted_line(store: Path) -> None:
    patch("gantrymq.deleted", 0, b'["gone",100]\n["x\n')(store)


OFFSETS = "config/consumerOffset.json"
DELAYS = "config/delayOffset.json"
STATE = "config/plugins/stamp.state"

REPAIRED: dict[str, tuple[Damage, str, str]] = {
    "topics": (main_only("config/topics.json", b"{"), "config/topics.json", "next start uses config/topics.json.bak"),
    "topics missing": (
        lambda store: (store / "config/topics.json").rename(store / "config/topics.json.bak"),
        "config/topics.json", "it is missing",
    ),
    "topics, both": (both("config/topics.json", b"\0" * 100), "config/topics.json", "lost: the settings of all topics"),
    "topics.json.bak": (content("config/topics.json.bak", b"["), "config/topics.json.bak", "no broker reads it while"),
    "a topic's name": (text("config/topics.json", '"orders":', '"or/ders":'), "config/topics.json", "an illegal name"),
    "groups": (both("config/subscriptionGroup.json", b""), "config/subscriptionGroup.json", "settings of all groups"),
    "offsets": (both(OFFSETS, b"{}x"), OFFSETS, "lost: the offsets of all groups"),
    "an offset": (offset_ahead, "config/consumerOffset.json", "offset 12345 is behind the queue's end, "),
    "a queue without messages": (
        lambda store: text("config/consumerOffset.json", f"{{0:{offset_of(store)}", "{7:3,0:0")(store),
        "config/consumerOffset.json", "queue 7: offset 3 is behind the queue's end, 0",
    ),
    "a group's name": (text(OFFSETS, "orders@", "orders#"), OFFSETS, "names no"),
    "a level's position": (
        content(DELAYS, b'{"offsetTable":{1:99}}'), DELAYS, "level 1 has the offset 99"
    ),
    "a level": (content(DELAYS, b'{"offsetTable":{0:1}}'), DELAYS, "no delay level 0"),
    "filters": (content("config/consumerFilter.json", b"\xff"), "config/consumerFilter.json", "SQL92"),
    "timercheck": (both("config/timercheck", b"short"), "config/timercheck", "the timer's position"),
    "timercheck's queue offset": (
        lambda store: patch("config/timercheck", 16, struct.pack(">qq", 900, 900))(store),
        "config/timercheck", "its entries before 900 are taken",
    ),
    "a timer log's unit": (
        lambda store: patch(f"timerlog/{0:020d}", 52, struct.pack(">i", 53))(store), "timerlog", "no unit at 52"
    ),
    "a timer log that is too short": (
        lambda store: patch("config/timercheck", 8, struct.pack(">q", 5200))(store), "timerlog", "no unit at "
    ),
    "a wheel's slot": (wheel_slot, "timerwheel", "where no unit of it is"),
    "a wheel without slots": (without_slots, "timerwheel", "messages wait in the timer log"),
    "a wheel of another size": (lambda store: os.truncate(store / "timerwheel", 64), "timerwheel", "it has 64 bytes"),
    "checkpoint's time": (
        patch("checkpoint", 0, struct.pack(">q", LAST_YEAR_2100)), "checkpoint", "the log time is"
    ),
    "quarantine": (content("gantrymq.quarantine", b"[[2,1]]"), "gantrymq.quarantine", "ends before it begins"),
    "deletions": (deleted_line, "gantrymq.deleted", "line 2 cannot be read"),
    "a plugin's state": (
        content("config/plugins/stamp.state", encode_state(10, b"x")[:-1]), "config/plugins/stamp.state", "checksum"
    ),
    "a plugin's state of the future": (
        content(STATE, encode_state(10**9, b"x")), STATE, "of offset 1000000000"
    ),
    "exporter": (both("config/exporter.json", b"{"), "config/exporter.json", "the exporter's pause"),
    "ha-cut": (content("config/ha-cut.json", b'{"end":99999999}'), "config/ha-cut.json", "which is not in the log"),
    "ha-progress": (content("config/ha-progress.json", b"{"), "config/ha-progress.json", "it cannot be read"),
    "transaction marks": (content("gantrymq.transaction", b"{}"), "gantrymq.transaction", "it cannot be used"),
}  # fmt: skip


def damage_of(report: StoreReport) -> list[FileFinding]:
    return [finding for finding in report.state if finding.is_damage]


def test_intact_state_files_have_no_findings(checked: Checked) -> None:
    report = checked.report()
    assert (report.ok, report.state) == (True, [])


@pytest.mark.parametrize("name", REPAIRED)
def test_damage_of_a_state_file_is_found_and_repaired(checked: Checked, store: Path, name: str) -> None:
    damage, path, expected = REPAIRED[name]
    damage(store)
    if name == "checkpoint's time":
        belong_to_checkpoint(store)
    before = {each: each.read_bytes() for each in store.rglob("*") if each.is_file() and each.name != "timerwheel"}
    report = checked.report()
    found = damage_of(report)
    assert not report.ok
    assert [finding.path for finding in found] == [path]
    line = f"{found[0].problem}: {found[0].meaning}; --repair {found[0].repair}"
    assert expected in line
    assert "\n" not in line
    assert found[0].repair
    assert before == {
        each: each.read_bytes() for each in store.rglob("*") if each.is_file() and each.name != "timerwheel"
    }, "the check changes nothing"
    done = checked.repair()
    assert done.moved or done.state_files_written
    assert [(finding.path, finding.problem) for finding in damage_of(checked.report())] == []


def belong_to_checkpoint(store: Path) -> None:
    """Let the watermark belong to the checkpoint as it is now, as if the broker had written both."""
    checksum = struct.pack(">I", zlib.crc32((store / "checkpoint").read_bytes()[:24]))
    data = bytearray((store / "gantrymq.watermark").read_bytes())
    for start in (0, 512):
        if any(data[start : start + 52]):
            data[start + 44 : start + 48] = checksum
            data[start + 48 : start + 52] = struct.pack(">I", zlib.crc32(data[start : start + 48]))
    (store / "gantrymq.watermark").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "path", "expected"),
    [
        (content("config/ha-epoch.json", b"{"), "config/ha-epoch.json", "no broker starts with it"),
        (no_valid_slot, "gantrymq.watermark", "neither of its two slots is valid"),
        (without("checkpoint"), "checkpoint", "it is missing"),
        (text("config/topics.json", '"readQueueNums":2', '"readQueueNums":-2'), "config/topics.json", "-2 queues to"),
    ],
)  # fmt: skip
def test_damage_without_a_repair_says_what_to_do(
    checked: Checked, store: Path, damage: Damage, path: str, expected: str
) -> None:
    damage(store)
    (found,) = damage_of(checked.report())
    assert (found.path, found.repair) == (path, "")
    assert expected in f"{found.problem}: {found.meaning}"


def test_a_damaged_offset_gets_its_older_value_and_others_stay(checked: Checked, store: Path) -> None:
    shutil.copy(store / "config/consumerOffset.json", store / "config/consumerOffset.json.bak")
    older = offset_of(store)
    offset_ahead(store)
    (found,) = damage_of(checked.report())
    assert found.repair == f"sets it to {older}, that of config/consumerOffset.json.bak"
    checked.repair()
    assert offset_of(store) == older


@pytest.mark.parametrize(
    "damage",
    [
        without_slots,
        REPAIRED["a timer log's unit"][0],
        without("timerlog", "timerwheel"),
    ],
)
def test_a_broker_on_the_repaired_store_still_has_the_timed_messages(
    checked: Checked, store: Path, damage: Damage, cli: Any
) -> None:
    damage(store)
    checked.repair()
    assert damage_of(checked.report()) == []
    with cluster_in_thread(store, settings=SETTINGS) as cluster:
        listed = cli("delayed", "list", "--nameserver", cluster.nameserver, "--json")
        rows = json.loads(listed.out[listed.out.index("[\n") : listed.out.rindex("]") + 1])
        assert len(rows) == 2
        with gantrymq.sync.connect(cluster.nameserver) as client, client.producer() as producer:
            producer.send(Message("orders", b"soon", delay=0.1))
            with client.consumer("orders", "billing") as consumer:
                bodies = []
                while b"soon" not in bodies:
                    bodies.append(next(iter(consumer)).body)
                assert set(bodies) <= {b"soon", b"timed"}, "the timer's last second may come again"


def test_after_a_crash_what_the_next_start_corrects_is_a_note(checked: Checked, store: Path) -> None:
    (store / "abort").touch()
    offset_ahead(store)
    content("config/delayOffset.json", b'{"offsetTable":{1:99}}')(store)
    report = checked.report()
    assert report.ok
    assert [finding.path for finding in report.state] == ["config/consumerOffset.json", "config/delayOffset.json"]
    assert all("next start" in finding.meaning or "continues at" in finding.meaning for finding in report.state)


def test_messages_that_no_client_reads_are_noted(checked: Checked, store: Path) -> None:
    text("config/topics.json", '"readQueueNums":2', '"readQueueNums":1')(store)
    (note,) = checked.report().state
    assert (note.is_damage, "no client reads the other queues" in note.meaning) == (False, True)


class Broken:
    """A plugin with files whose check fails."""

    name = "broken"

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        raise RuntimeError("unexpected")


class Notes:
    """A plugin that checks its own file."""

    name = "notes"

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        store.read_table("config/notes.json", json.loads, "all notes")


@pytest.fixture
def others() -> PluginManager:
    from gantrymq.kernel import hookspecs

    return PluginManager([("test", Broken()), ("test", Notes())], hookspecs)


def test_a_plugin_checks_its_own_file_and_a_failing_one_does_not_end_the_check(
    checked: Checked, store: Path, others: PluginManager
) -> None:
    both("config/notes.json", b"?")(store)
    found = damage_of(attrs.evolve(checked, managers=(*checked.managers, others)).report())
    assert [finding.path for finding in found] == [".", "config/notes.json"]
    assert "the check of plugin 'broken' failed: RuntimeError('unexpected')" in found[0].problem
    assert "lost: all notes" in found[1].meaning


def test_the_command_prints_a_line_for_each_finding(cli: Any, store: Path) -> None:
    config = store.parent / "broker.toml"
    config.write_text("[plugin.index]\nslots = 64\nentries = 200\n")
    offset_ahead(store)
    outcome = cli("store", "check", "--deep", "--data", str(store), "--config", str(config))
    assert outcome.code == 1
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("state: ")]
    assert line.startswith(
        "state: config/consumerOffset.json: group 'billing', topic 'orders', queue 0: offset 12345 is"
    )
    assert line.endswith("the queue's end") and "; --repair sets it to " in line  # noqa: PT018 - one line
    shown = json.loads(cli("store", "check", "--deep", "--data", str(store), "--config", str(config), "--json").out)
    assert sorted(shown["state"][0]) == ["is_damage", "meaning", "path", "problem", "repair"]
    repaired = cli("store", "check", "--deep", "--repair", "--data", str(store), "--config", str(config), "--json")
    assert repaired.code == 0, repaired.out
    assert json.loads(repaired.out)["repaired"]["state_files_written"] == ["config/consumerOffset.json"]
