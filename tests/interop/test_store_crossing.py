"""RocketMQ 4.9.7 opens a store of ours and vice versa, after a clean stop and after kill -9."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

import gantrymq.sync
from gantrymq.cli.__main__ import run as run_command
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.layouts import ENTRY
from gantrymq.maintenance.backup_targets import FolderTarget
from gantrymq.maintenance.store_backup import back_up
from gantrymq.maintenance.store_restore import restore
from support.clients import ForeignClient, Sent, check_complete
from support.content import content
from support.foreign import BROKER_STOP_SECONDS, Java, start_broker
from support.object_storage import run_s3, s3_settings
from support.processes import LATE_DISK, Child, free_ports, gantrymq_child, wait_for
from support.stores import expected_queues, log_records, written_queues

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]
TOPIC = "CrossingTest"
EACH = 300
"""Messages of each of three kinds of producer; then MORE are appended by the other broker."""
MORE = 60
ENDS = ["stopped", "killed"]
"""After a kill the other broker recovers what was written."""
SMALL_FILE_BYTES = 128 * 1024
"""Small enough that the messages fill several log files."""
SMALL_EXTENSION = 4096
"""Bytes of a file of an extension: 204 units, and 16 bytes over."""


@attrs.frozen
class Running:
    """A broker on a store, and the nameserver where it is found."""

    child: Child
    nameserver: str


@attrs.frozen
class Brokers:
    """Starts either broker on a store."""

    java: Java
    java_nameserver: str
    homes: Homes

    @contextmanager
    def ours(self, store: Path, file_bytes: int | None = None, extended: bool = False) -> Iterator[Running]:
        broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
        serve = ["serve", "--data", str(store), "--listen", broker, "--nameserver-listen", nameserver, *LATE_DISK]
        if file_bytes is not None:
            serve += ["--set", f"store.commit_log_file_bytes={file_bytes}"]
        if extended:
            serve += [
                "--set",
                "store.queue_extension=true",
                "--set",
                f"store.queue_extension_file_bytes={SMALL_EXTENSION}",
            ]
        with gantrymq_child(serve, self.homes("ours") / "serve.err") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            yield Running(child, nameserver)

    @contextmanager
    def theirs(self, store: Path, file_bytes: int | None = None, extended: bool = False) -> Iterator[Running]:
        settings = {} if file_bytes is None else {"mappedFileSizeCommitLog": str(file_bytes)}
        if extended:
            settings |= {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": str(SMALL_EXTENSION)}
        home = self.homes("theirs")
        server = start_broker(self.java, home, self.java_nameserver, name=home.name, store=store, **settings)
        with server.child as child:
            yield Running(child, self.java_nameserver)
            child.process.kill()  # tests that need a clean stop have stopped it before


@pytest.fixture
def brokers(java: Java, own_nameserver: str, homes: Homes) -> Brokers:
    return Brokers(java, own_nameserver, homes)


def end(running: Running, how: str) -> None:
    if how == "killed":
        running.child.kill()
    else:
        assert running.child.terminate(BROKER_STOP_SECONDS) in (0, 143)  # 143: how Java says that it heeded SIGTERM


def fill(client: ForeignClient, running: Running, topic: str) -> list[Sent]:
    return client.produce(running.nameserver, topic, EACH, seed=41, modes="sync,async,batch")


def check_all(client: ForeignClient, running: Running, topic: str, group: str, sent: list[Sent], count: int) -> None:
    """Every message is there, and where it was when it was acknowledged."""
    messages = client.consume_all(running.nameserver, topic, group, count)
    check_complete(messages, 41, range(count))
    places = {message.index: message.place[1:] for message in messages}
    assert {answer.index: places[answer.index] for answer in sent} == {
        answer.index: (answer.queue_id, answer.queue_offset) for answer in sent
    }


@pytest.mark.soak(1)
@pytest.mark.parametrize("how", ENDS)
def test_java_opens_our_store(java4_client: ForeignClient, brokers: Brokers, tmp_path: Path, how: str):
    store, topic, count = tmp_path / "store", f"{TOPIC}-ours-{how}", 3 * EACH
    with brokers.ours(store) as first:
        sent = fill(java4_client, first, topic)
        end(first, how)
    with brokers.theirs(store) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)
        end(second, how)
    with brokers.ours(store) as third:
        check_all(java4_client, third, topic, "back", sent, count + MORE)


@pytest.mark.soak(1)
@pytest.mark.parametrize("how", ENDS)
def test_our_broker_opens_the_store_of_java(java4_client: ForeignClient, brokers: Brokers, tmp_path: Path, how: str):
    store, topic, count = tmp_path / "store", f"{TOPIC}-java-{how}", 3 * EACH
    with brokers.theirs(store) as first:
        sent = fill(java4_client, first, topic)
        end(first, how)
    run("store", "check", "--deep", "--data", str(store))
    with brokers.ours(store) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)
        end(second, how)
    with brokers.theirs(store) as third:
        check_all(java4_client, third, topic, "back", sent, count + MORE)


@pytest.mark.soak(1, among="files")  # whoever begins, each broker reads what the other wrote
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_each_broker_opens_a_store_of_several_log_files_of_the_other(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path, writer: str
):
    store, topic, count = tmp_path / "store", f"{TOPIC}-rolled-{writer}", 3 * EACH
    start = {"ours": (brokers.ours, brokers.theirs), "theirs": (brokers.theirs, brokers.ours)}[writer]
    with start[0](store, SMALL_FILE_BYTES) as first:
        sent = fill(java4_client, first, topic)
        end(first, "stopped")
    assert len(list((store / "commitlog").iterdir())) >= 4
    assert expected_queues(log_records(store)) == written_queues(store)
    with start[1](store, SMALL_FILE_BYTES) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)


def test_java_opens_a_store_that_was_restored_from_a_backup(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path
):
    """The first backup is of a running broker; the second one continues it."""
    store, topic, count = tmp_path / "store", f"{TOPIC}-restored", 3 * EACH
    target, env = FolderTarget(tmp_path / "backups"), SystemEnv()
    with brokers.ours(store, SMALL_FILE_BYTES) as first:
        sent = fill(java4_client, first, topic)
        back_up(env, str(store), target)
        end(first, "stopped")
    back_up(env, str(store), target)
    restore(env, target, str(tmp_path / "restored"))
    assert expected_queues(log_records(tmp_path / "restored")) == written_queues(tmp_path / "restored")
    with brokers.theirs(tmp_path / "restored", SMALL_FILE_BYTES) as second:
        check_all(java4_client, second, topic, "restored", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("moto", reason="pip install 'moto[s3]' flask-cors")
    pytest.importorskip("obstore", reason="pip install 'gantrymq[backup]'")
    with run_s3() as address:
        for name, value in s3_settings(address).items():
            monkeypatch.setenv(name, value)
        yield


def run(*arguments: str) -> None:
    assert run_command(list(arguments)) == 0


def is_found(running: Running, topic: str, key: str) -> bool:
    return run_command(["query", topic, "--key", key, "--nameserver", running.nameserver]) == 0


def offsets_of(nameserver: str, topic: str, group: str) -> list[int | None]:
    with gantrymq.sync.connect(nameserver) as client:
        return [client.admin.consumer_offset(group, queue) for queue in sorted(client.admin.queues(topic))]


@pytest.mark.soak(1)
@pytest.mark.once
@pytest.mark.parametrize("version", ["java", "java5"])
def test_java_opens_a_repaired_store_and_one_that_was_restored_from_s3(
    request: pytest.FixtureRequest,
    java4_client: ForeignClient,
    brokers: Brokers,
    tmp_path: Path,
    s3: None,
    version: str,
) -> None:
    """Every message is there in both, and the groups have the offsets that they had.

    RocketMQ's broker does not build an index that a repair or a restore left out, so ours runs before, as the page
    says.
    """
    brokers = attrs.evolve(brokers, java=request.getfixturevalue(version))
    store, restored, url = tmp_path / "store", tmp_path / "restored", f"s3://bucket/{version}"
    topic, count = f"{TOPIC}-repaired-{version}", 3 * EACH
    with brokers.ours(store, SMALL_FILE_BYTES) as first:
        sent = fill(java4_client, first, topic)
        check_all(java4_client, first, topic, "done", sent, count)
        wait_for(lambda: sum(offset or 0 for offset in offsets_of(first.nameserver, topic, "done")) == count)
        committed = offsets_of(first.nameserver, topic, "done")
        end(first, "stopped")
    run("store", "backup", url, "--data", str(store))
    run("store", "restore", url, "--data", str(restored))
    queues = sorted((store / "consumequeue" / topic).iterdir())
    with next(queues[0].iterdir()).open("r+b") as file:
        file.write(b"\xff" * 10 * ENTRY.size)
    shutil.rmtree(queues[1])
    offsets = store / "config" / "consumerOffset.json"
    shutil.copy(offsets, f"{offsets}.bak")
    offsets.write_bytes(b"\0" * 100)
    (store / "config" / "topics.json.bak").write_bytes(b"{")
    with next((store / "index").iterdir()).open("r+b") as file:
        file.write(b"\xff" * 40)
    run("store", "check", "--deep", "--repair", "--data", str(store))
    newest = content(41, count - 1).keys.split()[0]
    for folder in (store, restored):
        assert expected_queues(log_records(folder)) == written_queues(folder)
        assert not list((folder / "index").glob("*"))
        with brokers.ours(folder, SMALL_FILE_BYTES) as between:
            wait_for(lambda: is_found(between, topic, newest))
            end(between, "stopped")
        with brokers.theirs(folder, SMALL_FILE_BYTES) as second:
            for index in (0, 1, count // 2, count - 1):
                assert is_found(second, topic, content(41, index).keys.split()[0])
            assert offsets_of(second.nameserver, topic, "done") == committed
            check_all(java4_client, second, topic, "again", sent, count)
            java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
            end(second, "killed")
        run("store", "check", "--deep", "--data", str(folder))


def written_extensions(store: Path) -> dict[str, bytes]:
    """The concatenated extension files of each queue."""
    folders = sorted((store / "consumequeue_ext").glob("*/*"))
    whole = {folder: b"".join(path.read_bytes() for path in sorted(folder.iterdir())) for folder in folders}
    return {f"{folder.parent.name}/{folder.name}": data for folder, data in whole.items() if data}


def check_extensions(store: Path, topic: str) -> int:
    """Every byte of the extensions follows from the log, and every entry has its place; how many files there are."""
    wanted: dict[str, bytearray] = {}
    for record, _ in log_records(store):
        data = wanted.setdefault(f"{record.topic}/{record.queue_id}", bytearray())
        if SMALL_EXTENSION - len(data) % SMALL_EXTENSION < 24:
            data += b"\xff\xff".ljust(SMALL_EXTENSION - len(data) % SMALL_EXTENSION, b"\0")
        data += struct.pack(">hqqh", 20, tag_code(record.properties), record.store_timestamp, 0)
    found = written_extensions(store)
    queues = {name: data for name, data in wanted.items() if name.startswith(f"{topic}/")}
    assert queues
    for name, data in queues.items():
        files = -(-len(data) // SMALL_EXTENSION)
        assert found[name] == bytes(data).ljust(files * SMALL_EXTENSION, b"\0")
        codes = [code for _, _, code in ENTRY.iter_unpack(written_queues(store)[name])]
        assert len(set(codes)) == len(codes)
        assert codes[:2] == [-(2**63), -(2**63) + 20]
    return sum(len(data) // SMALL_EXTENSION for data in found.values())


@pytest.mark.soak(1, among="files")  # whoever begins, each broker reads what the other wrote
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_queue_extension_files_have_the_same_bytes_and_are_readable_by_both(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path, writer: str
):
    store, topic, count = tmp_path / "store", f"{TOPIC}-extended-{writer}", 3 * EACH
    start = [brokers.ours, brokers.theirs] if writer == "ours" else [brokers.theirs, brokers.ours]
    tagged = {index for index in range(count + MORE) if content(41, index).tags == "TagB"}
    with start[0](store, extended=True) as first:
        sent = fill(java4_client, first, topic)
        end(first, "stopped")
    assert check_extensions(store, topic) > 4
    with start[1](store, extended=True) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        messages = java4_client.consume_all(second.nameserver, topic, "tag", len(tagged), tags="TagB")
        assert {message.index for message in messages} == tagged
        end(second, "stopped")
    check_extensions(store, topic)
    with start[0](store, extended=True) as third:
        messages = java4_client.consume_all(third.nameserver, topic, "back", len(tagged), tags="TagB")
        assert {message.index for message in messages} == tagged
        end(third, "stopped")
