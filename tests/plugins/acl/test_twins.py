"""Both twins of the signature loop decide as the check of a single request does, and sign as ``hashlib`` does."""

from __future__ import annotations

import hmac
from base64 import b64encode
from functools import partial
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from gantrymq.kernel.fast import plain_requests
from gantrymq.kernel.processors import RequestBatch
from gantrymq.plugins.acl import checks, plain
from gantrymq.plugins.acl.accounts import Accounts
from gantrymq.plugins.acl.checks import Checks, Denied
from gantrymq.plugins.acl.resources import topic_and_group_fields
from gantrymq.plugins.produce import fast as produce
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.rights import BROKER_RIGHTS
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.requests import pull, send
from support.accounts import ACCOUNTS, WORKER

pytestmark = pytest.mark.once  # it runs both twins

requests_twin = pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built")
compiled = pytest.importorskip("gantrymq.plugins.acl._fast", reason="the extension is not built")

TWINS = {"compiled": compiled, "plain": plain}
HOST_KEY = "key-at-its-host"
FILE = (
    ACCOUNTS
    + """\
- {accessKey: key-at-its-host, secretKey: whatever, whiteRemoteAddress: 10.0.0.9}
globalWhiteRemoteAddresses: [10.0.0.8]
"""
)
RETRY = "%RETRY%g"


def long_named(topic: str, *, other: str | None = None, other_first: bool = False) -> Command:
    """SEND_MESSAGE (10), whose topic may be named twice: the last one counts."""
    names = [("topic", topic), *([("b", other)] if other is not None else [])]
    return Command(RequestCode.SEND_MESSAGE, dict(reversed(names) if other_first else names), b"x")


COMMANDS = [
    send("T", b"body"),
    send("T", b"", properties="KEYS\x01é"),
    send("read", b"no right"),
    send("RMQ_SYS_TRACE_TOPIC", b"x" * 3000),
    send(RETRY, b"x"),
    send("t" * 2000, b"long"),
    pull("T", group="g"),
    pull("T", group="other"),
    long_named("T"),
    long_named("T", other="read"),
    long_named("T", other="read", other_first=True),
    Command(RequestCode.QUERY_MESSAGE, {"topic": "read", "_UNIQUE_KEY_QUERY": "true", "key": "k"}),
    Command(RequestCode.HEART_BEAT, None, b"{}"),
    Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}),
    Command(RequestCode.GET_MAX_OFFSET, {}),
    Command(12345),
]
SIGNERS = [
    WORKER,
    Credentials("the-worker", "guessed"),
    Credentials(HOST_KEY, "guessed"),
    Credentials("none-such", "k"),
]


def frames(commands: list[Command]) -> bytes:
    data = b""
    for command in commands:
        frame = encode(command)
        data += bytes(frame)
    return data


def decisions(
    twin: str, data: bytes, hosts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, abilities: int = -1
) -> list[Any]:
    """For each host, by row: who the connection is then, or why the request is refused. Each row is a turn of its own,
    then all are one turn. ``abilities``: see the compiled key."""
    with monkeypatch.context() as patched:
        patched.setattr(checks, "SignedRequests", TWINS[twin].SignedRequests)
        patched.setattr(checks, "SigningKey", partial(TWINS[twin].SigningKey, abilities=abilities))
        accounts = Accounts.parse(FILE.encode())
        judge = Checks(SimpleNamespace(), "DefaultCluster", BROKER_RIGHTS, lambda: accounts)  # type: ignore[arg-type]
        found: list[Any] = []
        for host in hosts:
            connection = SimpleNamespace(peer=(host, 1), identity=None, sock=None, take_response=lambda command: None)
            reader = requests_twin if twin == "compiled" else plain_requests
            readers = requests_twin.Readers(produce.READERS) if twin == "compiled" else None
            args = (connection, data, 1 << 20, readers) if readers is not None else (connection, data, 1 << 20)
            requests, _ = reader.read_requests(*args)
            for rows in [*([row] for row in range(len(requests))), list(range(len(requests)))]:
                batch = RequestBatch([requests[row] for row in rows])
                connection.identity = None
                rest = judge.take_allowed(batch)
                decided: dict[int, str | None] = {}
                for row in rest:
                    try:
                        decided[row] = judge.check(batch.requests[row]) or "trusted"
                    except Denied as denied:
                        decided[row] = f"{denied.reason} {denied}"
                found.append([decided.get(row, "signed") for row in range(len(rows))])
                found.append(connection.identity)
    return found


def flat(rows: list[Any]) -> list[Any]:
    """The decisions, without the difference between rows allowed by the loop and by the check."""
    return [
        ["the-worker" if one == "signed" else one for one in row] if isinstance(row, list) else None for row in rows
    ]


@pytest.mark.parametrize("signer", SIGNERS, ids=lambda signer: signer.access_key + signer.secret_key[:2])
def test_both_twins_decide_as_the_check_of_one_request(signer: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    data = frames([signer.sign(command) for command in COMMANDS])
    hosts = ("10.0.0.1", "10.0.0.9", "10.0.0.8")
    by_twin = {twin: decisions(twin, data, hosts, monkeypatch) for twin in TWINS}
    assert flat(by_twin["compiled"]) == flat(by_twin["plain"])
    accounts = Accounts.parse(FILE.encode())
    judge = Checks(SimpleNamespace(), "DefaultCluster", BROKER_RIGHTS, lambda: accounts)  # type: ignore[arg-type]
    expected = []
    for host in hosts:
        peer = SimpleNamespace(peer=(host, 1), sock=None, take_response=lambda command: None)
        requests, _ = plain_requests.read_requests(peer, data, 1 << 20)  # type: ignore[arg-type]
        single = []
        for request in requests:
            try:
                single.append(judge.check(request) or "trusted")
            except Denied as denied:
                single.append(f"{denied.reason} {denied}")
        expected += [each for one in single for each in ([one], None)]
        expected += [single, None]
    assert flat(by_twin["compiled"]) == expected
    if signer is WORKER:
        # the loop decides, and does not leave it to the check
        assert by_twin["compiled"][:2] == [["signed"], "the-worker"]


@pytest.mark.parametrize("abilities", range(4), ids=["C", "instructions", "vectors", "both"])
def test_requests_verified_together_are_decided_one_by_one(monkeypatch: pytest.MonkeyPatch, abilities: int) -> None:
    """The compiled loop hashes up to 16 requests at a time: every size of the first and last block, beside other sizes
    and beside the same, and a wrong signature, an unsigned request or fields in another order between them."""
    sizes = [*range(131), 1000, 64, 70_000, *[300] * 37, *range(3000, 0, -190)]
    commands = [send("T", b"x" * size, properties="k" * (size % 7)) for size in sizes]
    signed = [WORKER.sign(command) for command in commands]
    signed[10] = Credentials("the-worker", "guessed").sign(commands[10])
    signed[20] = Credentials("none-such", "k").sign(commands[20])
    signed[33] = commands[33]
    signed[40] = Command(signed[40].code, dict(reversed((signed[40].ext or {}).items())), commands[40].body)
    signed[50].body = b"y" * 50
    signed[150].body = b"y" * 300
    found = {twin: decisions(twin, frames(signed), ("10.0.0.1",), monkeypatch, abilities) for twin in TWINS}
    assert found["compiled"] == found["plain"]
    turn = found["compiled"][-2]
    assert [row for row, result in enumerate(turn) if result != "signed"] == [10, 20, 33, 50, 150]


@given(st.data())
def test_both_twins_agree_about_frames_with_a_changed_byte(data: st.DataObject) -> None:
    signed = bytearray(frames([WORKER.sign(send("T", b"some body", properties="KEYS\x01k"))]))
    at = data.draw(st.integers(8, len(signed) - 1))
    signed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            plain_decisions = decisions("plain", bytes(signed), ("10.0.0.1",), monkeypatch)
        except FatalRemoteFault:
            return  # it is no longer a header
        assert flat(decisions("compiled", bytes(signed), ("10.0.0.1",), monkeypatch)) == flat(plain_decisions)
    if at >= len(signed) - len(b"some body"):
        assert plain_decisions[0] != ["signed"]


@given(st.binary(max_size=200), st.binary(max_size=300))
@example(b"", b"")
@example(b"k" * 64, b"d" * 55)
@example(b"k" * 65, b"d" * 56)
@example(b"k", b"d" * 64)
@example(b"k", b"d" * 100_000)
def test_keys_sign_as_hashlib_does(secret: bytes, data: bytes) -> None:
    expected = b64encode(hmac.digest(secret, data, "sha1"))
    assert plain.SigningKey(secret).sign(data) == expected
    assert compiled.SigningKey(secret).sign(data) == expected
    for abilities in range(4):
        assert compiled.SigningKey(secret, abilities=abilities).sign(data) == expected


@pytest.mark.parametrize("readers", [None, produce.READERS], ids=["moved", "in place"])
def test_headers_of_a_long_turn_are_verified_with_their_own_fields(readers: Any) -> None:
    """The kernel keeps the fields of the last 256 headers for those who read them again: a header beyond them, or one
    that was moved in memory, must not be verified with the fields of another."""
    connection = SimpleNamespace(peer=("10.0.0.1", 1), identity=None, sock=None, take_response=lambda command: None)
    key = compiled.SigningKey(WORKER.secret_key.encode())

    def allows(_request: Any, _access_key: str) -> bool:
        return True

    loop = compiled.SignedRequests(lambda *_: key, allows, topic_and_group_fields(BROKER_RIGHTS))

    def read(first: int, count: int) -> list[Any]:
        signed = [WORKER.sign(send(f"topic-{number}", b"x" * (number % 90))) for number in range(first, first + count)]
        for place in range(7, count, 50):
            signed[place].ext = {**(signed[place].ext or {}), "b": f"topic-{first}"}
        found, _ = requests_twin.read_requests(
            connection, frames(signed), 1 << 22, requests_twin.Readers(readers or {})
        )  # type: ignore[arg-type]
        return list(found)

    for turn in (read(0, 10), read(10, 300), read(310, 40) + read(350, 250)):
        assert len(turn) in (10, 300, 290)
        refused = loop.take(turn, range(len(turn)))
        wrong = [7] if len(turn) == 10 else [*range(7, 300, 50)] if len(turn) == 300 else [7, *range(47, 290, 50)]
        assert refused == wrong
