"""Each request code needs a right, and requests without it change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.nameserver.requests import Requests
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.remoting.bodies.clients import CheckClientConfig, ConsumerData, HeartbeatData, ProducerData
from gantrymq.remoting.bodies.clients import SubscriptionData as Subscription
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SEND_LETTERS
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.remoting.rights import BROKER_RIGHTS, NAMESERVER_RIGHTS, Right
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.accounts import ACCOUNTS, ACL, ADMIN, NOBODY, WORKER, MakeBroker

pytestmark = pytest.mark.trio

BODIES = {
    RequestCode.HEART_BEAT: HeartbeatData(
        "c", [ProducerData("p")], [ConsumerData("g", subscription_data_set=[Subscription("T")])]
    ),
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody("g", "c", {MessageQueue("T", "b", 0)}),
    RequestCode.UNLOCK_BATCH_MQ: LockBatchRequestBody("g", "c", {MessageQueue("T", "b", 0)}),
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientConfig("c", "g", Subscription("T")),
}  # fmt: skip
TEXTS = {"topic": "T", "b": "T", "group": "g", "consumerGroup": "g", "groupName": "g", "topicFilterType": "SINGLE_TAG"}


def request_of(code: int) -> Command:
    """A request with every field of its header, about the topic T and the group g."""
    spec = REQUESTS[RequestCode(code)]
    ext = {}
    for field in msgspec.structs.fields(spec.header) if spec.header is not None else ():
        kinds = str(field.type)
        number = "int" in kinds or any("int" in str(each) for each in get_args(field.type))
        name = field.encode_name
        ext[name] = "0" if number else "true" if "bool" in kinds else TEXTS.get(name, "x")
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        ext = {{letter: name for name, letter in SEND_LETTERS.items()}[name]: value for name, value in ext.items()}
    body = BODIES.get(RequestCode(code))
    return Command(code, ext, b"x" if body is None else body.to_bytes())


def state_of(broker: Broker) -> dict[str, Any]:
    """The state that requests could change."""
    broker.collect_state()
    return {
        "log": broker.log.end,
        "tables": dict(broker._unwritten),
        "stopping": broker.restarting,
    }


@pytest.mark.parametrize(
    "credentials", [None, Credentials("the-admin", "guessed"), NOBODY], ids=["none", "wrong", "nobody"]
)
async def test_without_rights_every_request_is_refused_and_changes_nothing(
    guarded: MakeBroker, accounts_file: Path, credentials: Credentials | None
) -> None:
    broker = guarded()
    async with run_broker(broker), open_channel(broker.address) as channel:
        assert (await channel.call(ADMIN.sign(send("T", b"x")), 10.0)).code == 0
        before = state_of(broker)
        assert len(broker.request_codes) > 60
        for code in broker.request_codes:
            if credentials is NOBODY and BROKER_RIGHTS[code] is Right.OFFSET:
                continue
            for flag in (0, ONEWAY_FLAG):
                command = request_of(code)
                command = command if credentials is None else credentials.sign(command)
                command.flag |= flag
                if flag:
                    await channel.send_oneway(command)
                else:
                    answer = await channel.call(command, 10.0)
                    assert (answer.code, "AclException" in (answer.remark or "")) == (1, True), RequestCode(code)
        assert (await channel.call(ADMIN.sign(request_of(RequestCode.GET_MAX_OFFSET)), 10.0)).code == 0
        assert state_of(broker) == before
        assert broker.connections[0].closed is False
    assert text_of(accounts_file) == ACCOUNTS


def write(file: Path, text: str) -> None:
    file.write_text(text)


def text_of(file: Path) -> str:
    return file.read_text()


async def test_every_code_of_a_broker_with_all_plugins_has_a_right(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", ACCOUNTS)
    write(tmp_path / "tools.yml", "accessKey: the-root\nsecretKey: root-secret\n")
    others = [ACL, "gantrymq.plugins.ha:HaPlugin", "gantrymq.plugins.metrics:MetricsPlugin",
              "gantrymq.plugins.exporter:ExporterPlugin"]  # fmt: skip
    settings = {
        "plugin.acl.file": f"{tmp_path}/plain_acl.yml", "plugin.metrics.listen": "127.0.0.1:0",
        "plugin.acl.users": f"{tmp_path}/users.json", "plugin.acl.keys": f"{tmp_path}/tools.yml",
        "plugin.ha.listen": "127.0.0.1:0", "plugin.exporter.topics": "none", "plugin.exporter.to": f"{tmp_path}/export",
    }  # fmt: skip
    async with run_broker(make_broker(tmp_path / "store", settings=settings, enable=others)) as broker:
        assert set(broker.request_codes) == set(BROKER_RIGHTS)


async def test_every_code_of_the_nameserver_has_a_right() -> None:
    requests: Requests = NameServer(NameServerConfig()).requests
    assert set(requests.handlers) == set(NAMESERVER_RIGHTS)


PINGING = """\
from gantrymq.kernel import hookimpl


class Pinging:
    name = "pinging"

    @hookimpl
    def register_processors(self):
        return {9001: lambda request: request.command.answer(0, body=b"pong")}
"""


async def test_a_code_without_a_right_refuses_the_start(tmp_path: Path, accounts_file: Path) -> None:
    write(accounts_file, ACCOUNTS)
    write(tmp_path / "pinging.py", PINGING)
    given = {"plugin.acl.file": str(accounts_file)}
    enable = [ACL, f"{tmp_path}/pinging.py:Pinging"]
    with pytest.raises(ExceptionGroup) as failed:
        async with run_broker(make_broker(tmp_path / "store", settings=given, enable=enable)):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=r"request codes 9001 are served .*plugin\.acl\.codes = \{ 9001")
    given["plugin.acl.codes"] = "9001=admin"
    async with run_broker(make_broker(tmp_path / "store", settings=given, enable=enable)) as broker:
        async with open_channel(broker.address) as channel:
            assert (await channel.call(NOBODY.sign(Command(9001)), 10.0)).code == 1
            assert (await channel.call(ADMIN.sign(Command(9001)), 10.0)).body == b"pong"


@pytest.mark.parametrize(
    ("right", "ext", "code"),
    [
        ("consume", {"topic": "T", "consumerGroup": "g"}, 0),
        ("consume", {"topic": "T", "group": "g"}, 0),
        ("consume", {"topic": "T", "consumerGroup": "other"}, 1),
        ("consume", {"topic": "other", "consumerGroup": "g"}, 1),
        ("group", {"consumerGroup": "g"}, 0),
        ("group", {"group": "g"}, 0),
        ("group", {"group": "g", "consumerGroup": "g"}, 0),
        ("group", {"group": "other"}, 1),
        ("group", {"group": "other", "consumerGroup": "g"}, 1),
        ("group", {}, 1),
        ("read", {"topic": "read"}, 0),
        ("send", {"topic": "read"}, 1),
        ("topic", {"topic": "sent"}, 0),
    ],
)
async def test_codes_of_other_plugins_need_the_right_that_the_configuration_gives_them(
    tmp_path: Path, accounts_file: Path, right: str, ext: dict[str, str], code: int
) -> None:
    write(accounts_file, ACCOUNTS)
    write(tmp_path / "pinging.py", PINGING)
    given = {"plugin.acl.file": str(accounts_file), "plugin.acl.codes": f"9001={right}"}
    enable = [ACL, f"{tmp_path}/pinging.py:Pinging"]
    async with run_broker(make_broker(tmp_path / "store", settings=given, enable=enable)) as broker:
        async with open_channel(broker.address) as channel:
            answer = await channel.call(WORKER.sign(Command(9001, dict(ext))), 10.0)
    assert answer.code == code, answer.remark
    assert "failed to authorize" not in (answer.remark or "")
