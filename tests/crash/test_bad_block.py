"""A real file system with an unreadable block: reads of it fail with EIO, loads from a map with SIGBUS.

The block of a file is moved behind the end of the loop device's image, where nothing can be read.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.requests import pull, send
from support.hapair import HaPair
from support.loopdisk import LoopDisk, NoLoopDisk, loop_disk
from support.processes import wait_for
from support.rawpeer import RawPeer
from support.served import BODY, Served

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(60)]

MESSAGES = 6


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    try:
        with loop_disk(tmp_path) as disk:
            yield disk
    except NoLoopDisk as reason:
        pytest.skip(str(reason))


def fill(address: str) -> None:
    with RawPeer(address) as peer:
        for number in range(MESSAGES):
            answer = peer.ask(send("T", b"%08d" % number + BODY, properties=f"KEYS\x01k{number}\x02"))
            assert answer is not None
            assert answer.code in (0, ResponseCode.SLAVE_NOT_AVAILABLE)


def read_at(peer: RawPeer, offset: int) -> tuple[int, list[bytes]]:
    answer = peer.ask(pull("T", 0, offset))
    assert answer is not None, "the broker is gone"
    return answer.code, [record.body[:8] for record in decode_records(answer.body)]


def numbers(*found: int) -> list[bytes]:
    return [b"%08d" % number for number in found]


def log_file(disk: LoopDisk) -> Path:
    return disk.folder / "data" / "commitlog" / f"{0:020d}"


def test_row_16_an_unreadable_log_block_affects_its_message_only(disk: LoopDisk, tmp_path: Path) -> None:
    with Served(disk.folder / "data", tmp_path / "err") as broker:
        fill(broker.address)
        assert broker.child.terminate() == 0
    disk.spoil(log_file(disk), 10)  # the second message
    with Served(disk.folder / "data", tmp_path / "again") as broker, RawPeer(broker.address) as peer:
        for _ in range(3):
            assert read_at(peer, 0) == (0, numbers(0)), "as far as the disk gives them"
            assert read_at(peer, 1) == (ResponseCode.SYSTEM_ERROR, [])
            assert read_at(peer, 2) == (0, numbers(2, 3, 4, 5))
        by_tag = peer.ask(pull("T", 0, 1, expression="A"))
        assert by_tag is not None
        assert by_tag.code == ResponseCode.PULL_RETRY_IMMEDIATELY, "its tag is in the queue: it need not be read"
        view = peer.ask(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(len(BODY) + 8 + 100)}))
        assert view is not None
        assert view.code == ResponseCode.SYSTEM_ERROR
        stored = peer.ask(send("T", b"after"))
        assert stored is not None
        assert stored.code == 0
        assert broker.child.terminate() == 0
        assert len([line for line in broker.log() if line["event"] == "log_unreadable"]) == 1, "once for the place"
        assert not [line for line in broker.log() if "exception" in line]
    assert broker.printed() == []


def test_row_16_recovery_skips_an_unreadable_block(disk: LoopDisk, tmp_path: Path) -> None:
    with Served(disk.folder / "data", tmp_path / "err") as broker:
        fill(broker.address)
        wait_for(lambda: (disk.folder / "data" / "gantrymq.watermark").read_bytes().strip(b"\0") != b"")
        broker.child.process.kill()
        broker.child.process.wait()
    shutil.rmtree(disk.folder / "data" / "consumequeue")
    disk.spoil(log_file(disk), 10)
    for life in range(2):
        with Served(disk.folder / "data", tmp_path / f"again{life}") as broker, RawPeer(broker.address) as peer:
            assert read_at(peer, 0) == (0, numbers(0))
            assert read_at(peer, 1)[1][:4] == numbers(2, 3, 4, 5), "the damaged range is known, and stepped over"
            answer = peer.ask(send("T", b"%08d" % (MESSAGES + life)))
            assert answer is not None
            assert (answer.ext or {})["queueOffset"] == str(MESSAGES + life), "no number is given twice"
            assert broker.child.terminate() == 0
        assert broker.printed() == []


def test_row_16_a_delayed_message_in_an_unreadable_block_delays_no_other(disk: LoopDisk, tmp_path: Path) -> None:
    """A delayed message that is not there any more; the others of its level come."""
    with Served(disk.folder / "data", tmp_path / "err") as broker:
        with RawPeer(broker.address) as peer:
            for number in range(MESSAGES):
                answer = peer.ask(send("T", b"%08d" % number + BODY, properties="DELAY\x012\x02"))
                assert answer is not None
                assert answer.code == 0
        assert broker.child.terminate() == 0
    disk.spoil(log_file(disk), 10)
    with Served(disk.folder / "data", tmp_path / "again") as broker, RawPeer(broker.address) as peer:
        wait_for(lambda: read_at(peer, 0)[1][-1:] == numbers(5))
        assert read_at(peer, 0) == (0, numbers(0, 2, 3, 4, 5))
        assert broker.child.terminate() == 0
        assert [line["event"] for line in broker.log() if line["level"] == "error"] == [
            "log_unreadable",
            "delayed_message_lost",
        ]
    assert broker.printed() == []


def search(peer: RawPeer, number: int) -> list[bytes]:
    fields = {"topic": "T", "key": f"k{number}", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    answer = peer.ask(Command(RequestCode.QUERY_MESSAGE, fields))
    assert answer is not None, "the broker is gone"
    return [record.body[:8] for record in decode_records(answer.body)]


def test_row_16_an_index_built_over_an_unreadable_block_has_all_other_messages(disk: LoopDisk, tmp_path: Path) -> None:
    with Served(disk.folder / "data", tmp_path / "err") as broker:
        fill(broker.address)
        assert broker.child.terminate() == 0
    disk.spoil(log_file(disk), 10)
    with Served(disk.folder / "data", tmp_path / "known") as broker, RawPeer(broker.address) as peer:
        assert [search(peer, number) for number in range(3)] == [numbers(0), [], numbers(2)], "it named the message"
        assert broker.child.terminate() == 0
    shutil.rmtree(disk.folder / "data" / "index")
    with Served(disk.folder / "data", tmp_path / "built") as broker, RawPeer(broker.address) as peer:
        assert [search(peer, number) for number in range(3)] == [numbers(0), [], numbers(2)]
        assert broker.child.terminate() == 0
        assert not [line for line in broker.log() if "exception" in line]


@pytest.mark.once
def test_row_16_a_slave_gets_the_log_up_to_a_block_that_its_master_cannot_read(disk: LoopDisk, tmp_path: Path) -> None:
    settings = {"store.queue_file_units": "1000", "plugin.ha.heartbeat": "100ms", "plugin.ha.housekeeping": "2s"}
    stores = (disk.folder / "data", tmp_path / "data-1")
    with HaPair(tmp_path, settings, file_bytes=1 << 20, stores=stores) as pair:
        master = pair.start(0, "SYNC_MASTER")
        fill(pair.addresses[0])
        assert master.terminate() == 0
        disk.spoil(log_file(disk), 10)
        master = pair.start(0, "SYNC_MASTER")
        pair.start(1, "SLAVE")
        wait_for(lambda: "stoppedAt=40960" in pair.runtime(0).get("haSlave_0", ""))
        with RawPeer(pair.addresses[0]) as peer, RawPeer(pair.addresses[1]) as reader:
            wait_for(lambda: read_at(reader, 0) == (0, numbers(0)))
            assert read_at(peer, 2) == (0, numbers(2, 3, 4, 5))
            stored = peer.ask(send("T", b"after"))
            assert stored is not None
            assert stored.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert master.terminate() == 0
        assert master.log.read_text().count('"slave_stopped"') == 1
