"""The audit of a running broker: its file or topic has each administrative action and each refusal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.audit.audit_file import AuditFile
from gantrymq.plugins.interfaces import RefusalLog, Replication, TopicTable
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.rights import BROKER_RIGHTS, READING_CODES, Right
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.accounts import ACCOUNTS, ACL, ADMIN, WORKER
from support.certificates import FOLDER, client_context

pytestmark = pytest.mark.trio

SECURED = ["gantrymq.plugins.tls:TlsPlugin", "gantrymq.plugins.ha:HaPlugin"]
AUDIT = "gantrymq.plugins.audit:AuditPlugin"
REFUSED = "org.apache.rocketmq.acl.common.AclException: "


def audited(folder: Path, *, acl: bool = True, **settings: str) -> Any:
    given = {"plugin.audit.file": str(folder / "audit.log"), "plugin.audit.interval": "1h"}
    if acl:
        (folder / "plain_acl.yml").write_text(ACCOUNTS)
        given["plugin.acl.file"] = str(folder / "plain_acl.yml")
    given |= {name.replace("__", "."): value for name, value in settings.items()}
    return make_broker(folder / "store", settings=given, enable=[*([ACL] if acl else []), AUDIT])


def events(folder: Path, name: str = "audit.log") -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (folder / name).read_bytes().splitlines()]


async def eventually(condition: Callable[[], Any]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - a thread writes the file
            await trio.sleep(0.02)


async def call(channel: Channel, command: Command, credentials: Credentials | None = ADMIN) -> int:
    return (await channel.call(command if credentials is None else credentials.sign(command), 10.0)).code


def totals(broker: Broker) -> dict[tuple[str, ...], Any]:
    metrics = Metrics(1000)
    for _, collect in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
        collect()
    return dict(metrics.families["gantrymq_audit_events_total"].series)


def create(topic: str) -> Command:
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


def settings_of(text: str) -> Command:
    return Command(RequestCode.UPDATE_BROKER_CONFIG, None, text.encode())


async def test_connections_of_known_peers_are_events_if_configured(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path, plugin__audit__connections="true")) as broker:
        async with open_channel(broker.address) as channel, open_channel(broker.address) as stranger:
            for _ in range(2):
                assert await call(channel, send("T", b"x"), WORKER) == 0
            assert await call(stranger, send("T", b"x"), None) == 1
            await eventually(lambda: len(events(tmp_path)) == 2)
            assert await call(channel, create("made"), ADMIN) == 0  # another account on the same connection
        await eventually(lambda: len(events(tmp_path)) == 5)
    found = [each for each in events(tmp_path) if each["kind"] == "connection"]
    assert [(each["request"], each["identity"], each["result"]) for each in found] == [
        ("CONNECTION_IDENTIFIED", "the-worker", 0),
        ("CONNECTION_IDENTIFIED", "the-admin", 0),
        ("CONNECTION_CLOSED", "the-admin", 0),
    ]
    assert len({each["address"] for each in found}) == 1


async def test_actions_and_refusals_are_events_with_who_where_what_and_the_result(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path)) as broker, open_channel(broker.address) as channel:
        assert await call(channel, create("made")) == 0
        assert await call(channel, create("no good!")) == 1
        assert await call(channel, create("other"), WORKER) == 1
        assert await call(channel, send("secret", b"x"), WORKER) == 1
        assert await call(channel, send("T", b"x"), Credentials("stranger", "guessed-it")) == 1
        assert await call(channel, send("T", b"x"), None) == 1
        assert await call(channel, send("T", b"x"), WORKER) == 0
        assert await call(channel, Command(RequestCode.GET_BROKER_CONFIG)) == 0
        assert await call(channel, settings_of("fileReservedTime=48\nunknownKey=hush")) == 1
        group = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"g2"}')
        assert await call(channel, group) == 0
        account = {"accessKey": "newcomer", "secretKey": "hush-hush", "topicPerms": "T=PUB", "admin": "false"}
        assert await call(channel, Command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)) == 0
        counted = totals(broker)
    found = events(tmp_path)
    assert [(each["kind"], each["request"], each["access_key"], each["result"]) for each in found] == [
        ("action", "UPDATE_AND_CREATE_TOPIC", "the-admin", 0),
        ("action", "UPDATE_AND_CREATE_TOPIC", "the-admin", 1),
        ("refusal", "UPDATE_AND_CREATE_TOPIC", "the-worker", 1),
        ("refusal", "SEND_MESSAGE_V2", "the-worker", 1),
        ("refusal", "SEND_MESSAGE_V2", "stranger", 1),
        ("refusal", "SEND_MESSAGE_V2", None, 1),
        ("action", "UPDATE_BROKER_CONFIG", "the-admin", 1),
        ("action", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "the-admin", 0),
        ("action", "UPDATE_AND_CREATE_ACL_CONFIG", "the-admin", 0),
    ]
    first, bad, not_admin, no_right = found[:4]
    assert first["object"] == {"topic": "made", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert (first["identity"], first["code"], first["broker"], first["count"]) == ("the-admin", 17, broker.name, 1)
    assert first["address"].startswith("127.0.0.1:")
    assert first["time"].endswith("Z")
    assert "illegal characters" in bad["remark"]
    assert not_admin["remark"] == REFUSED + "Need admin permission for request code=17, but accessKey=the-worker is not"
    assert no_right["object"] == {"topic": "secret"}
    assert found[6]["object"] == {"settings": ["fileReservedTime", "unknownKey"]}
    assert found[7]["object"] == {"groupName": "g2"}
    assert found[8]["object"] == {"accessKey": "newcomer", "admin": "false", "topicPerms": "T=PUB"}
    assert "hush" not in str(found)
    assert counted["action", "the-admin", "0"] == 3
    assert counted["action", "the-admin", "1"] == 2
    assert (tmp_path / "audit.log").stat().st_mode & 0o77 == 0


async def test_equal_refusals_are_merged_and_none_is_missing(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path)) as broker, open_channel(broker.address) as channel:
        for number in range(50):
            assert await call(channel, send(f"secret{number}", b"x"), WORKER) == 1
        assert await call(channel, send("T", b"x"), None) == 1
    found = events(tmp_path)
    assert [(each["access_key"], each["count"]) for each in found] == [
        ("the-worker", 1), (None, 1), ("the-worker", 49),
    ]  # fmt: skip
    assert (found[0]["object"], found[2]["object"]) == ({"topic": "secret0"}, {"topic": "secret49"})


async def test_failed_tls_handshakes_and_refused_slaves_are_events(tmp_path: Path) -> None:
    settings = {
        "plugin.audit.file": str(tmp_path / "audit.log"), "plugin.audit.interval": "1h", "plugin.tls.mode": "enforcing",
        "plugin.tls.certificate": str(FOLDER / "server.pem"), "plugin.ha.listen": "127.0.0.1:0",
        "plugin.ha.authentication": "required",
    }  # fmt: skip
    made = make_broker(tmp_path / "store", settings=settings, enable=[AUDIT, *SECURED])
    async with run_broker(made) as broker:
        ha = broker.registry.get(Replication).ha_address
        for _ in range(3):
            assert await answered(broker.address, b"plain text") == b""
        assert await answered(ha, b"plain text") == b""
        tls = client_context()
        async with trio.SSLStream(
            await trio.open_tcp_stream(*parse_address(ha)), tls, server_hostname="127.0.0.1"
        ) as stream:
            await stream.send_all(bytes(8))
            with trio.fail_after(20):
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some(100):
                        pass
    found = events(tmp_path)
    assert [(each["request"], each["object"], each["count"], each["result"]) for each in found] == [
        ("TLS_HANDSHAKE", {"port": "broker"}, 1, 16),
        ("SLAVE_CONNECTION", {"port": "replication"}, 1, 16),
        ("TLS_HANDSHAKE", {"port": "replication"}, 3, 16),
        ("SLAVE_CONNECTION", {"port": "replication"}, 1, 16),
    ], "those that are equal are merged, with the object of the last one"
    assert {each["kind"] for each in found} == {"refusal"}
    assert "plain text" in found[0]["remark"]
    assert "ticket" in found[3]["remark"]


async def answered(address: str, data: bytes) -> bytes:
    """All bytes until the peer closes the connection."""
    received = b""
    async with await trio.open_tcp_stream(*parse_address(address)) as stream:
        await stream.send_all(data)
        with trio.fail_after(20), suppress(trio.BrokenResourceError):
            while part := await stream.receive_some(100):
                received += bytes(part)
    return received


async def test_merged_refusals_are_written_when_their_time_is_over(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path, plugin__audit__interval="100ms")) as broker:
        async with open_channel(broker.address) as channel:
            for _ in range(20):
                assert await call(channel, send("secret", b"x"), WORKER) == 1
            await eventually(lambda: sum(each["count"] for each in events(tmp_path)) == 20)


async def test_requests_that_nobody_serves_are_merged(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path)) as broker:
        async with open_channel(broker.address) as channel:
            for _ in range(20):
                assert await call(channel, Command(12345), WORKER) == 3
    found = events(tmp_path)
    assert (len(found), sum(each["count"] for each in found)) == (2, 20)


async def test_reads_are_events_only_where_they_are_asked_for(tmp_path: Path) -> None:
    broker = audited(tmp_path, acl=False, plugin__audit__reads="true")
    async with run_broker(broker), open_channel(broker.address) as channel:
        assert await call(channel, Command(RequestCode.GET_BROKER_CONFIG), None) == 0
        assert await call(channel, Command(12345), None) == 3
        assert await call(channel, create("made"), None) == 0
    found = [(each["kind"], each["code"], each["result"], each["identity"]) for each in events(tmp_path)]
    assert found == [("read", 26, 0, None), ("action", 12345, 3, None), ("action", 17, 0, None)]


async def test_a_oneway_action_is_an_event_too(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path)) as broker, open_channel(broker.address) as channel:
        command = ADMIN.sign(create("made"))
        command.flag |= ONEWAY_FLAG
        await channel.send_oneway(command)
        assert await call(channel, create("other")) == 0
    # Both are created at the same time: either may be first.
    assert sorted(each["object"]["topic"] for each in events(tmp_path)) == ["made", "other"]


async def test_events_go_to_a_topic_that_clients_cannot_forge(tmp_path: Path) -> None:
    broker = audited(tmp_path, plugin__audit__file="", plugin__audit__topic="audit-trail")
    async with run_broker(broker), open_channel(broker.address) as channel:
        assert await call(channel, create("made")) == 0
        assert await call(channel, send("audit-trail", b"forged")) == 16
        await eventually(lambda: broker.queues.get("audit-trail", 0) is not None)
        answer = await channel.call(ADMIN.sign(pull("audit-trail", group="g")), 10.0)
        [record] = decode_records(answer.body)
        assert msgspec.json.decode(record.body)["object"]["topic"] == "made"
        assert record.properties == {"TAGS": "action", "KEYS": "the-admin"}
        delete = Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "audit-trail"})
        answer = await channel.call(ADMIN.sign(delete), 10.0)
        assert answer.remark == "topic audit-trail belongs to a plugin of this broker and cannot be deleted"
        assert broker.registry.get(TopicTable).get("audit-trail") is not None
    assert not (tmp_path / "audit.log").exists()


async def test_the_file_is_reopened_at_sigusr1_and_after_its_removal(tmp_path: Path) -> None:
    async with run_broker(audited(tmp_path)) as broker, open_channel(broker.address) as channel:
        assert await call(channel, create("one")) == 0
        await eventually(lambda: len(events(tmp_path)) == 1)
        os.rename(tmp_path / "audit.log", tmp_path / "audit.log.1")
        (tmp_path / "audit.log").touch(0o600)
        with capture_logs() as logs:
            os.kill(os.getpid(), signal.SIGUSR1)
            await eventually(lambda: any(each["event"] == "audit_file_reopened" for each in logs))
        assert await call(channel, create("two")) == 0
        await eventually(lambda: len(events(tmp_path)) == 1)
        os.rename(tmp_path / "audit.log", tmp_path / "audit.log.2")
        assert await call(channel, create("three")) == 0
        await eventually(lambda: (tmp_path / "audit.log").exists() and events(tmp_path))
    names = {name: [each["object"]["topic"] for each in events(tmp_path, name)] for name in os.listdir(tmp_path)
             if name.startswith("audit")}  # fmt: skip
    assert names == {"audit.log.1": ["one"], "audit.log.2": ["two"], "audit.log": ["three"]}


async def test_events_that_come_while_the_last_write_runs_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, finish = threading.Event(), threading.Event()
    write = AuditFile.write

    def slow(file: AuditFile, data: bytes) -> None:
        if data and not began.is_set():
            began.set()
            assert finish.wait(30)
        write(file, data)

    class Late:
        """Refuses a connection when the broker's tasks are cancelled, and then lets the write end."""

        name = "late"

        @hookimpl
        def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
            async def run() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    broker.registry.get(RefusalLog).connection_refused("LATE", "10.0.0.1:1", "broker", "too late")
                    finish.set()

            return [BackgroundTask("late", run)]

    monkeypatch.setattr(AuditFile, "write", slow)
    settings = {"plugin.audit.file": str(tmp_path / "audit.log")}
    made = make_broker(tmp_path / "store", settings=settings, enable=[AUDIT, Late()])
    async with run_broker(made) as broker, open_channel(broker.address) as channel:
        assert await call(channel, create("one"), None) == 0
        await eventually(began.is_set)
        assert await call(channel, create("two"), None) == 0
    assert [each["object"].get("topic", each["request"]) for each in events(tmp_path)] == ["one", "two", "LATE"]


async def test_events_that_cannot_be_written_are_counted_and_the_action_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    made = audited(tmp_path, plugin__audit__file=str(folder / "audit.log"))
    with capture_logs() as logs:
        async with run_broker(made) as broker, open_channel(broker.address) as channel:
            os.rename(folder, tmp_path / "moved")
            assert await call(channel, create("one")) == 0
            await eventually(lambda: any(each["event"] == "audit_events_lost" for each in logs))
            folder.mkdir()
            assert await call(channel, create("two")) == 0
            await eventually(lambda: (folder / "audit.log").exists() and events(folder))
            metrics = Metrics(1000)
            for _, collect in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
                collect()
            assert metrics.families["gantrymq_audit_lost_events_total"].series == {(): 1}
    assert [each["object"]["topic"] for each in events(folder)] == ["two"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"plugin__audit__file": ""}, "set plugin.audit.file, plugin.audit.topic or both"),
        ({"plugin__audit__file": "/nowhere/audit.log"}, "cannot be opened: No such file"),
        ({"plugin__audit__topic": "no good!"}, "illegal characters"),
        ({"plugin__audit__topic": "TBW102"}, "is conflict with system topic"),
    ],
)
async def test_a_broker_that_could_not_audit_does_not_start(
    tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises((StartError, ExceptionGroup)) as failed:
        async with run_broker(audited(tmp_path, acl=False, **settings)):
            pytest.fail("it serves")
    assert reason in str(failed.value) or failed.group_contains(StartError, match=reason)


async def test_every_administrative_code_either_reads_or_changes() -> None:
    admin = {code for code, right in BROKER_RIGHTS.items() if right is Right.ADMIN}
    assert admin >= READING_CODES
    assert {RequestCode(code).name for code in admin - READING_CODES} == {
        "UPDATE_AND_CREATE_TOPIC", "UPDATE_BROKER_CONFIG", "UPDATE_AND_CREATE_ACL_CONFIG", "DELETE_ACL_CONFIG",
        "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "DELETE_SUBSCRIPTIONGROUP",
        "DELETE_TOPIC_IN_BROKER", "INVOKE_BROKER_TO_RESET_OFFSET", "CLEAN_EXPIRED_CONSUMEQUEUE",
        "CONSUME_MESSAGE_DIRECTLY", "CLONE_GROUP_OFFSET", "CLEAN_UNUSED_TOPIC", "RESUME_CHECK_HALF_MESSAGE",
        "DELETE_EXPIRED_COMMITLOG", "NOTIFY_BROKER_ROLE_CHANGED", "AUTH_CREATE_USER", "AUTH_UPDATE_USER",
        "AUTH_DELETE_USER", "AUTH_CREATE_ACL", "AUTH_UPDATE_ACL", "AUTH_DELETE_ACL", "CONTROL_EXPORTER",
        "GET_SLAVE_TICKET", "CLOSE_CLIENT_CONNECTIONS",
    }  # fmt: skip
