"""A full file system. Needs the right to mount; ``test_conditions.py`` has the tests that do not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.requests import send
from support.rawpeer import RawPeer
from support.served import BODY, Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_stops_no_broker_and_allows_a_restart(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 * 1024 * 1024))
    with Served(small_disk / "data", tmp_path / "err") as broker, RawPeer(broker.address) as peer:
        answer = broker.send(peer)
        while answer.code == 0:
            answer = broker.send(peer)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker.check_all(peer)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(8 * 1024 * 1024))
        for number in range(20):
            answer = peer.ask(send(f"New{number}", BODY))
            assert answer is not None
            assert answer.code in (0, ResponseCode.SERVICE_NOT_AVAILABLE)
        broker.check_all(peer)
        peer.sock.close()
        assert broker.child.terminate() == 0
    assert broker.printed() == []
    assert not [line for line in broker.log() if "exception" in line]
    filler.unlink()
    ballast.unlink()
    with Served(small_disk / "data", tmp_path / "err") as again, RawPeer(again.address) as peer:
        again.sent = broker.sent
        again.check_all(peer)
        assert again.send(peer).code == 0
