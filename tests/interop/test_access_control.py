"""Our client at RocketMQ's brokers with access control: 4.9.7's plain_acl.yml, and 5.3.3's users and permissions.

5.3.3 has no other access control than its own: ``aclEnable`` is read and has no effect there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message
from gantrymq.cli.__main__ import run as run_command
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import Credentials
from gantrymq.spark.errors import Refused, SendFailed
from support.foreign import Java, JavaServer, ask, start_broker, start_nameserver
from support.spark_streams import check_security
from support.user_commands import check_password_from_file, check_user_commands

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.anyio, pytest.mark.slow]

Homes = Callable[[str], Path]
ADMIN = Credentials("rocketmq-admin", "admin-secret")
WORKER = Credentials("rocketmq-worker", "worker-secret")
PLAIN_ACL = """\
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: rocketmq-admin, secretKey: admin-secret, admin: true}
- accessKey: rocketmq-worker
  secretKey: worker-secret
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=PUB|SUB]
  groupPerms: [billing=SUB]
"""
AUTH = "org.apache.rocketmq.auth"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def guarded(request: pytest.FixtureRequest, homes: Homes) -> Iterator[str]:
    """The nameserver of a broker that knows two users: one may do everything, the other what ``PLAIN_ACL`` says."""
    java: Java = request.getfixturevalue("java" if request.param == "4.9.7" else "java5")
    nameserver = start_nameserver(java, homes("nameserver"))
    try:
        broker = (_with_plain_acl if java.version == "4.9.7" else _with_users)(java, homes("guarded"), nameserver)
        try:
            with gantrymq.sync.connect(nameserver.address, **keys(ADMIN)) as client:
                client.admin.create_topic("orders", 2)
                client.admin.create_topic("secrets", 2)
            yield nameserver.address
        finally:
            broker.discard()
    finally:
        nameserver.discard()


def keys(credentials: Credentials) -> dict[str, str]:
    return {"access_key": credentials.access_key, "secret_key": credentials.secret_key}


def _with_plain_acl(java: Java, home: Path, nameserver: JavaServer) -> JavaServer:
    conf = home / "rocketmq" / "conf"
    shutil.copytree(java.conf, conf)
    (conf / "plain_acl.yml").write_text(PLAIN_ACL)
    return start_broker(java, home, nameserver.address, aclEnable="true")


def _with_users(java: Java, home: Path, nameserver: JavaServer) -> JavaServer:
    first = {"username": ADMIN.access_key, "password": ADMIN.secret_key}
    inner = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    broker = start_broker(
        java, home, nameserver.address,
        authConfigPath=str(home / "auth"),
        authenticationEnabled="true",
        authenticationProvider=f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
        authenticationMetadataProvider=f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
        initAuthenticationUser=msgspec.json.encode(first).decode(),
        innerClientAuthenticationCredentials=msgspec.json.encode(inner).decode(),
        authorizationEnabled="true",
        authorizationProvider=f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
        authorizationMetadataProvider=f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    )  # fmt: skip
    user = {"username": WORKER.access_key, "password": WORKER.secret_key, "userType": "Normal"}
    entries = [
        {"resource": resource, "actions": actions, "decision": "Allow"}
        for resource, actions in (("Topic:orders", ["Pub", "Sub", "Get"]), ("Group:billing", ["Sub"]))
    ]
    subject = f"User:{WORKER.access_key}"
    policies = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
    for code, ext, body in (
        (3001, {"username": WORKER.access_key}, user),
        (3006, {"subject": subject}, policies),
    ):
        answer = ask(broker.address, ADMIN.sign(Command(code, ext, msgspec.json.encode(body))))
        assert answer.code == 0, answer.remark
    return broker


async def test_valid_credentials_allow_all_permitted_requests(guarded: str) -> None:
    async with gantrymq.connect(guarded, **keys(WORKER)) as client:
        async with client.producer() as producer, client.consumer("orders", "billing", start="first") as messages:
            sent = {(await producer.send("orders", b"one", keys=["k-1"], properties={"color": "grün"})).message_id}
            batch = [Message("orders", b"%d" % number) for number in range(3)]
            sent |= {result.message_id for result in await producer.send_batch(batch)}
            await producer.send_oneway("orders", b"oneway")
            bodies: set[bytes] = set()
            with anyio.fail_after(60):
                while sent or b"oneway" not in bodies:
                    message = await anext(messages)
                    sent.discard(message.message_id)
                    bodies.add(message.body)
                    await message.ack()
            await messages.commit()


async def test_queries_by_key_and_unique_id_have_valid_signatures(guarded: str) -> None:
    async with gantrymq.connect(guarded, **keys(ADMIN)) as client, client.producer() as producer:
        key = f"key-{time.time_ns()}"
        sent = await producer.send("orders", b"to find", keys=[key])
        with anyio.fail_after(60):
            while not (found := await client.admin.find("orders", key)):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        assert [each.message_id for each in found] == [sent.message_id]
        assert [each.body for each in await client.admin.find_by_id("orders", sent.message_id)] == [b"to find"]


async def test_a_message_sent_back_is_redelivered(guarded: str) -> None:
    async with gantrymq.connect(guarded, **keys(WORKER)) as client:
        async with client.producer() as producer, client.consumer("orders", "billing", start="last") as messages:
            sent = await producer.send("orders", b"again")
            with anyio.fail_after(60):
                async for message in messages:
                    if message.message_id == sent.message_id and not message.reconsume_times:
                        await message.retry(1)
                    else:
                        await message.ack()
                    if message.body == b"again" and message.reconsume_times:
                        break


@pytest.mark.parametrize(
    "wrong",
    [Credentials("rocketmq-worker", "not-the-secret"), Credentials("rocketmq-nobody", "worker-secret"), None],
    ids=["secret", "user", "none"],
)
async def test_wrong_credentials_fail_without_retries(guarded: str, wrong: Credentials | None) -> None:
    given = {} if wrong is None else keys(wrong)
    async with gantrymq.connect(guarded, **given) as client:
        async with client.producer(timeout=60, retries=50) as producer:
            with anyio.fail_after(30):
                with pytest.raises(gantrymq.AuthenticationFailed, match="check access_key and secret_key"):
                    await producer.send("orders", b"x")
                with pytest.raises(gantrymq.AuthenticationFailed):
                    await producer.send_batch([Message("orders", b"x")])
        with anyio.fail_after(30), pytest.raises(gantrymq.AuthenticationFailed):
            async with client.consumer("orders", "billing"):
                pass


async def test_forbidden_requests_fail_without_retries(guarded: str) -> None:
    async with gantrymq.connect(guarded, **keys(WORKER)) as client:
        async with client.producer(timeout=60, retries=50) as producer:
            with anyio.fail_after(30), pytest.raises(gantrymq.AccessDenied) as caught:
                await producer.send("secrets", b"x")
            assert not isinstance(caught.value, gantrymq.AuthenticationFailed)
        with anyio.fail_after(60), pytest.raises(gantrymq.AccessDenied):
            async with client.consumer("secrets", "billing", start="first") as messages:
                await anext(messages)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_blocking_client_behaves_like_the_async_client(guarded: str, backend: str) -> None:
    with gantrymq.sync.connect(guarded, backend=backend, **keys(WORKER)) as client:  # type: ignore[call-overload]
        with client.producer() as producer, client.consumer("orders", "billing", start="last") as messages:
            sent = producer.send("orders", b"x").message_id
            for message in messages:
                message.ack()
                if message.message_id == sent:
                    break
    with gantrymq.sync.connect(guarded, access_key="rocketmq-worker", secret_key="not-it") as client:
        with client.producer() as producer, pytest.raises(gantrymq.AuthenticationFailed):
            producer.send("orders", b"x")


async def test_transaction_ends_are_signed(guarded: str) -> None:
    async def check(half: gantrymq.message.DeliveredRecord) -> gantrymq.Outcome:
        return gantrymq.Outcome.UNKNOWN

    async with gantrymq.connect(guarded, **keys(ADMIN)) as client:
        async with (
            client.consumer("orders", "auditors", start="last") as messages,
            client.transactional_producer("payers", check=check, local=lambda *_: gantrymq.Outcome.COMMIT) as producer,
        ):
            result = await producer.send("orders", b"paid")
            with anyio.fail_after(60):
                async for message in messages:
                    await message.ack()
                    if message.message_id == result.transaction_id:
                        break


@pytest.mark.parametrize(
    ("secret", "code", "said"), [("worker-secret", 0, "sent 1"), ("wrong", 1, "check GANTRYMQ_ACCESS_KEY")]
)
def test_the_command_line_signs_with_credentials_from_the_environment(
    guarded: str, homes: Homes, secret: str, code: int, said: str
) -> None:
    home = homes("produce")
    home.mkdir()
    (home / "lines").write_text("by the command line\n")
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "produce", "--nameserver", guarded, "--topic", "orders",
         "--file", str(home / "lines")],
        env={**os.environ, "GANTRYMQ_ACCESS_KEY": WORKER.access_key, "GANTRYMQ_SECRET_KEY": secret},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_spark_reads_and_writes_with_keys(guarded: str) -> None:
    pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")
    signed = {"nameserver": guarded, "accessKey": WORKER.access_key, "secretKey": WORKER.secret_key}
    check_security({**signed, "groupId": "billing"}, "orders")
    with pytest.raises(Refused):
        check_security({**signed, "groupId": "others"}, "orders")
    with pytest.raises(SendFailed):
        check_security({**signed, "secretKey": "guessed", "groupId": "billing"}, "orders")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run ``gantrymq`` in this process with the administrator's keys and return what it prints."""
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", ADMIN.secret_key)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        done = run_command(list(arguments))
        out, err = capsys.readouterr()
        assert done == 0, err
        return out

    return run


@pytest.mark.parametrize("guarded", ["4.9.7"], indirect=True)
def test_our_commands_change_accounts_of_rocketmq_4(guarded: str, call: Callable[..., str]) -> None:
    (row,) = json.loads(call("cluster", "status", "--nameserver", guarded, "--json"))
    at = ("--broker", row["address"])
    call("acl", "user", "set", "rocketmq-clerk", "--topic-default", "DENY", *at)
    call("acl", "grant", "rocketmq-clerk", "--topic", "orders=PUB", "--group", "billing=SUB", *at)
    call("acl", "grant", "rocketmq-clerk", "--topic", "invoices=SUB", *at)
    call("acl", "user", "set", "rocketmq-clerk", "--group-default", "SUB", *at)
    shown = call("acl", "user", "list", *at, "--json")
    assert "secret" not in shown
    assert {row["access_key"]: row for row in json.loads(shown)}["rocketmq-clerk"] == {
        "access_key": "rocketmq-clerk", "admin": False, "topic_default": "DENY", "group_default": "SUB",
        "topics": ["orders=PUB", "invoices=SUB"], "groups": ["billing=SUB"], "address": None,
    }  # fmt: skip
    call("acl", "user", "delete", "rocketmq-clerk", *at)


@pytest.mark.parametrize("guarded", ["5.3.3"], indirect=True)
def test_our_commands_manage_users_and_policies_of_rocketmq_5(
    guarded: str, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = json.loads(call("cluster", "status", "--nameserver", guarded, "--json"))
    check_user_commands(call, rows[0]["address"], tmp_path)
    worker = ("acl", "explain", WORKER.access_key, "send", "--broker", rows[0]["address"])
    assert "Topic:orders: needs Pub: a policy allows it" in call(*worker, "--topic", "orders")
    assert run_command([*worker, "--topic", "secrets"]) == 1
    check_password_from_file(call, rows[0]["address"], tmp_path, monkeypatch)
