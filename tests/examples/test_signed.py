"""The example ``signed``: the hook ``authorize`` suffices to check signatures of RocketMQ's clients."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SEND_LETTERS
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "signed"
REFUSED = "the request is not signed by a key that this broker knows"


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOURCE))


def broker(tmp_path: Path, keys: str = "alice secret-of-alice\n\nbob secret-of-bob\n", readers: str = "bob") -> Broker:
    file = tmp_path / "keys.txt"
    file.write_text(keys)
    settings = {"plugin.signed.keys": str(file), "plugin.signed.readers": readers}
    return make_broker(tmp_path / "store", settings=settings, enable=["gantrymq_signed:SignedPlugin"])


def signed(command: Command, key: str = "alice", secret: str = "secret-of-alice") -> Command:
    """Sign as ``AclClientRPCHook`` does."""
    ext = {**(command.ext or {}), "AccessKey": key}
    covered = "".join(ext[name] for name in sorted(ext)).encode() + command.body
    signature = base64.b64encode(hmac.new(secret.encode(), covered, hashlib.sha1).digest()).decode()
    command.ext = {**ext, "Signature": signature}
    return command


def long_named(command: Command) -> Command:
    """The same as SEND_MESSAGE (10)."""
    names = {letter: name for name, letter in SEND_LETTERS.items()}
    command.code = RequestCode.SEND_MESSAGE
    command.ext = {names[letter]: value for letter, value in (command.ext or {}).items()}
    return command


@pytest.mark.parametrize("kind", [0, 1], ids=["json", "binary"])
async def test_signed_requests_of_all_kinds_are_accepted_and_unsigned_ones_refused(tmp_path: Path, kind: int) -> None:
    properties = "KEYS\x01é\x02TAGS\x01a"
    commands = [
        send("T", b"one", properties=properties),
        long_named(send("T", b"two", properties=properties)),
        pull("T"),
        Command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}),
        Command(RequestCode.GET_BROKER_RUNTIME_INFO),
        Command(12345),
    ]
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:

        async def codes(*some: Command) -> list[int]:
            answers = [await channel.call(copy_of(each, kind), 5.0) for each in some]
            return [answer.code for answer in answers]

        assert await codes(*commands) == [ResponseCode.NO_PERMISSION] * 6
        assert running.log.end == 0, "nothing was stored"
        assert await codes(*map(signed, commands)) == [0, 0, 0, 0, 0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
        assert [connection.identity for connection in running.connections] == ["alice"]
        answer = await channel.call(signed(pull("T")), 5.0)
        assert [record.body for record in decode_records(answer.body)] == [b"one", b"two"]


def copy_of(command: Command, kind: int) -> Command:
    return Command(command.code, dict(command.ext or {}) or None, command.body, kind=kind)


async def test_an_altered_request_is_refused_with_the_reason(tmp_path: Path) -> None:
    def altered(name: str, value: str) -> Command:
        command = signed(send("T", b"x"))
        assert command.ext is not None
        command.ext[name] = value
        return command

    other_body = signed(send("T", b"x"))
    other_body.body = b"y"
    commands = [
        other_body, altered("b", "U"), altered("n", "more"), altered("Signature", ""), altered("Signature", "é"),
        signed(send("T", b"x"), secret="guessed"), signed(send("T", b"x"), key="mallory"),
    ]  # fmt: skip
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        for command in commands:
            answer = await channel.call(command, 5.0)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, REFUSED)
        assert running.log.end == 0


async def test_an_account_with_read_access_can_pull_and_not_send(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        assert (await channel.call(signed(send("T", b"x")), 5.0)).code == 0
        answer = await channel.call(signed(send("T", b"y"), "bob", "secret-of-bob"), 5.0)
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "'bob' may not send to 'T'")
        answer = await channel.call(signed(pull("T"), "bob", "secret-of-bob"), 5.0)
        assert [record.body for record in decode_records(answer.body)] == [b"x"]
