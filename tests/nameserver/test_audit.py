"""The audit file of a nameserver: changes, refusals and failed handshakes with their clients, without secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from gantrymq.nameserver import NameServer, NameServerConfig, kv
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode as C
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.signing import Credentials
from gantrymq.remoting.tls import ServerTls
from support.certificates import FOLDER

pytestmark = pytest.mark.trio

ADMIN = Credentials("administrator", "secret-of-admin")
STRANGER = Credentials("stranger", "guessed-secret")
FILE = """\
[identities.administrator]
secret = "secret-of-admin"
admin = true
"""


@asynccontextmanager
async def audited(folder: Path, **options: Any) -> AsyncIterator[NameServer]:
    (folder / "access.toml").write_text(FILE)
    server = NameServer(NameServerConfig(port=0, access=folder / "access.toml", audit=folder / "audit.log", **options))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()


def events(folder: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (folder / "audit.log").read_bytes().splitlines()]


def mode_of(file: Path) -> int:
    return file.stat().st_mode & 0o777


async def eventually(condition: Callable[[], Any]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - a thread writes the file
            await trio.sleep(0.02)


async def ask(server: NameServer, command: Command, keys: Credentials | None = ADMIN) -> int:
    async with open_channel(server.address, sign=None if keys is None else keys.sign) as channel:
        return (await channel.call(command, 20.0)).code


def put(key: str) -> Command:
    return Command(C.PUT_KV_CONFIG, {"namespace": "N", "key": key, "value": "hush-hush"})


async def test_changes_and_refusals_are_events_with_who_where_what_and_the_result(tmp_path: Path) -> None:
    async with audited(tmp_path) as server:
        assert await ask(server, put("k")) == 0
        assert await ask(server, Command(C.UPDATE_NAMESRV_CONFIG, None, b"configStorePath=/hush")) == 16
        assert await ask(server, Command(C.GET_BROKER_CLUSTER_INFO), None) == 0
        for _ in range(5):
            assert await ask(server, put("k"), STRANGER) == 16
        assert await ask(server, Command(C.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}), None) == 16
    found = events(tmp_path)
    assert [(each["kind"], each["request"], each["identity"], each["result"], each["count"]) for each in found] == [
        ("action", "PUT_KV_CONFIG", "administrator", 0, 1),
        ("action", "UPDATE_NAMESRV_CONFIG", "administrator", 16, 1),
        ("refusal", "PUT_KV_CONFIG", None, 16, 1),
        ("refusal", "WIPE_WRITE_PERM_OF_BROKER", None, 16, 1),
        ("refusal", "PUT_KV_CONFIG", None, 16, 4),
    ]
    assert [each["object"] for each in found[:4]] == [
        {"namespace": "N", "key": "k"}, {"settings": ["configStorePath"]}, {"namespace": "N", "key": "k"},
        {"brokerName": "b"},
    ]  # fmt: skip
    assert found[2]["access_key"] == "stranger"
    assert found[0]["address"].startswith("127.0.0.1:")
    assert "hush" not in str(found)
    assert "secret" not in str(found)
    assert mode_of(tmp_path / "audit.log") == 0o600


async def test_a_change_that_ends_while_the_nameserver_stops_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, released, write = trio.Event(), Event(), kv._write_atomically

    def wait_and_write(path: Path, data: bytes) -> None:
        trio.from_thread.run_sync(writing.set)
        released.wait()
        write(path, data)

    async def release() -> None:
        await trio.testing.wait_all_tasks_blocked()
        released.set()

    monkeypatch.setattr(kv, "_write_atomically", wait_and_write)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with audited(tmp_path, kv_path=tmp_path / "kv.json") as server:
                stream = await trio.open_tcp_stream(*parse_address(server.address))
                await stream.send_all(encode(ADMIN.sign(put("k"))))
                await writing.wait()
                nursery.start_soon(release)  # after the cancellation
            await stream.aclose()
    assert kv.KVConfig(tmp_path / "kv.json").get("N", "k") == "hush-hush"
    assert [(each["request"], each["identity"], each["result"]) for each in events(tmp_path)] == [
        ("PUT_KV_CONFIG", "administrator", 0)
    ]


async def test_a_failed_tls_handshake_is_an_event_and_a_moved_file_is_created_again(tmp_path: Path) -> None:
    async with audited(tmp_path, tls=ServerTls(str(FOLDER / "server.pem")), plain=False) as server:
        for name in ("audit.log.1", "audit.log.2"):
            async with await trio.open_tcp_stream(*parse_address(server.address)) as stream:
                await stream.send_all(
                    b"plain text" if name == "audit.log.1" else b"\x16\x03\x01\x00\x05\xff\xff\xff\xff\xff"
                )
                with trio.fail_after(20):
                    try:
                        while await stream.receive_some(100):
                            pass
                    except trio.BrokenResourceError:
                        pass
            if name == "audit.log.1":
                await eventually(lambda: events(tmp_path))
                os.rename(tmp_path / "audit.log", tmp_path / name)
    [first] = [msgspec.json.decode(line) for line in (tmp_path / "audit.log.1").read_bytes().splitlines()]
    assert (first["request"], first["object"]) == ("TLS_HANDSHAKE", {"port": "nameserver"})
    assert "plain text" in first["remark"]
    assert [(each["request"], each["count"]) for each in events(tmp_path)] == [("TLS_HANDSHAKE", 1)]


async def test_a_file_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with audited(tmp_path / "nowhere"):
            pytest.fail("it serves")


FULL_DISK = """
import resource, sys
from pathlib import Path
from gantrymq.nameserver.audit import Audit

audit = Audit(Path(sys.argv[1]))
audit._write(b"first\\n")
_soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (9, hard))  # as a disk with room for three bytes more
try:
    audit._write(b"second\\n")
except OSError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    audit._write(b"third\\n")
"""


async def test_a_write_that_fails_half_way_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    with trio.fail_after(60):
        await trio.run_process([sys.executable, "-c", FULL_DISK, str(tmp_path / "audit.log")])
    assert (tmp_path / "audit.log").read_bytes() == b"first\nthird\n"
