"""Users and policies of RocketMQ 5: signatures, decisions of policies, and changes by administrators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.api import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.acl.users import Decisions, UserDocument
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode as C
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.signing import SIGNATURE, Credentials
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.accounts import ACCOUNTS, ACL, ADMIN, WORKER

pytestmark = pytest.mark.trio

ROOT = Credentials("root", "root-password")
ALICE = Credentials("alice", "alice-password")


@asynccontextmanager
async def served(
    folder: Path, accounts: str | None = None, *, in_flight: int = 64, **settings: str
) -> AsyncIterator[Broker]:
    (folder / "tools.yml").write_text("accessKey: root\nsecretKey: root-password\n")
    if accounts is not None:
        (folder / "plain_acl.yml").write_text(accounts)
    given = {
        "plugin.acl.file": str(folder / "plain_acl.yml"), "plugin.acl.keys": str(folder / "tools.yml"),
        "plugin.acl.users": str(folder / "users.json"), "limits.requests_in_flight": str(in_flight),
        **{f"plugin.acl.{key}": text for key, text in settings.items()},
    }  # fmt: skip
    async with run_broker(make_broker(folder / "store", settings=given, enable=[ACL])) as broker:
        yield broker


async def ask(broker: Broker, command: Command, keys: Credentials | None = ROOT) -> Command:
    async with open_channel(broker.address, sign=None if keys is None else keys.sign) as channel:
        return await channel.call(command, 20.0)


def user(code: int, name: str, **body: Any) -> Command:
    return Command(code, {"username": name}, json.dumps(body).encode())


def acl(code: int, resource: str, *actions: str, decision: str = "Allow", **more: Any) -> Command:
    entry = {"resource": resource, "actions": list(actions), "decision": decision, **more}
    body = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
    return Command(code, {"subject": "User:alice"}, json.dumps(body).encode())


async def add_alice(broker: Broker, *entries: tuple[str, ...]) -> None:
    assert (await ask(broker, user(C.AUTH_CREATE_USER, "alice", password="alice-password"))).code == 0
    for resource, *actions in entries:
        assert (await ask(broker, acl(C.AUTH_CREATE_ACL, resource, *actions))).code == 0


async def test_a_user_may_do_what_its_policies_allow(tmp_path: Path) -> None:
    async with served(tmp_path) as broker:
        assert (await ask(broker, send("T", b"by the super user"))).code == 0
        await add_alice(broker, ("Topic:sent", "Pub"), ("topic:T", "sub"), ("Group:g", "Sub"))
        assert (await ask(broker, send("sent", b"x"), ALICE)).code == 0
        assert (await ask(broker, pull("T", group="g"), ALICE)).code == 0
        for command, resource in (
            (send("T", b"x"), "Topic:T"),
            (pull("T", group="other"), "Group:other"),
            (pull("sent", group="g"), "Topic:sent"),
            (Command(C.GET_BROKER_CONFIG), "Cluster:"),
            (Command(C.UPDATE_AND_CREATE_TOPIC, {"topic": "new"}), "Topic:new"),
            (user(C.AUTH_CREATE_USER, "mallory", password="mallory-password"), "Cluster:"),
        ):
            answer = await ask(broker, command, ALICE)
            assert answer.code == 16, command
            assert f"User:alice has no permission to access {resource}" in (answer.remark or "")
            assert "no matched policies." in (answer.remark or "")


async def test_get_on_a_group_or_topic_allows_the_queries_for_which_rocketmq_asks_it(tmp_path: Path) -> None:
    async with served(tmp_path) as broker:
        stored = await ask(broker, send("T", b"x"))
        assert stored.ext is not None
        offset = str(int(stored.ext["msgId"][-16:], 16))
        await add_alice(broker, ("Group:g", "Get"), ("Topic:T", "Get"))
        for command in (
            Command(C.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}),
            Command(C.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}),
            Command(C.QUERY_CONSUME_TIME_SPAN, {"group": "g", "topic": "T"}),
            Command(C.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}),
            Command(C.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g", "topic": "T"}),
            Command(C.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}),
            Command(C.VIEW_MESSAGE_BY_ID, {"offset": offset}),
        ):
            assert (await ask(broker, command, ALICE)).code != 16, command
        assert (await ask(broker, pull("T", group="g"), ALICE)).code == 16


@pytest.mark.parametrize(
    ("denied", "action", "command", "code"),
    [
        ("Topic:T", "Pub", Command(C.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}), 0),
        ("Topic:T", "Sub", Command(C.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}), 0),
        ("Topic:T", "Get", Command(C.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}), 16),
        ("Topic:T", "Pub", send("T", b"x"), 16),
        ("Group:g", "Sub", Command(C.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": ""}), 0),
        ("Group:g", "Sub", Command(C.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}), 16),
    ],
)
async def test_a_denied_action_refuses_no_query_for_which_rocketmq_does_not_ask_it(
    tmp_path: Path, denied: str, action: str, command: Command, code: int
) -> None:
    async with served(tmp_path) as broker:
        assert (await ask(broker, send("T", b"x"))).code == 0
        assert (await ask(broker, pull("T", group="g"))).code == 0
        await add_alice(broker, ("Topic:*", "All"), ("Group:*", "All"))
        assert (await ask(broker, acl(C.AUTH_CREATE_ACL, denied, action, decision="Deny"))).code == 0
        assert (await ask(broker, command, ALICE)).code == code


async def test_pub_or_sub_on_a_topic_allows_its_queries_where_the_other_is_denied(tmp_path: Path) -> None:
    query = Command(C.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    async with served(tmp_path) as broker:
        assert (await ask(broker, send("T", b"x"))).code == 0
        await add_alice(broker, ("Topic:*", "Pub", "Sub"))
        assert (await ask(broker, acl(C.AUTH_CREATE_ACL, "Topic:T", "Sub", decision="Deny"))).code == 0
        assert (await ask(broker, query, ALICE)).code == 0
        assert (await ask(broker, acl(C.AUTH_CREATE_ACL, "*", "All", decision="Deny"))).code == 0
        assert (await ask(broker, query, ALICE)).code == 0, "the more specific resource decides"
        assert (await ask(broker, acl(C.AUTH_CREATE_ACL, "Topic:T", "Pub", "Sub", decision="Deny"))).code == 0
        assert (await ask(broker, query, ALICE)).code == 16


async def test_a_reply_needs_pub_on_the_reply_topic_whatever_topic_it_names(tmp_path: Path) -> None:
    plain = send("own", b"x")
    async with served(tmp_path) as broker:
        await add_alice(broker, ("Topic:own", "Pub"))
        answer = await ask(broker, Command(C.SEND_REPLY_MESSAGE_V2, plain.ext, b"x"), ALICE)
        assert answer.code == 16
        assert "no permission to access Topic:DefaultCluster_REPLY_TOPIC" in (answer.remark or "")


async def test_creating_or_deleting_a_retry_topic_needs_the_rights_on_its_group(tmp_path: Path) -> None:
    fields = {
        "topic": "%RETRY%g", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    retry = Command(C.UPDATE_AND_CREATE_TOPIC, fields)
    delete = Command(C.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%g"})
    async with served(tmp_path) as broker:
        assert (await ask(broker, retry)).code == 0
        await add_alice(broker, ("Topic:*", "Create", "Delete"))
        for command in (retry, delete):
            answer = await ask(broker, command, ALICE)
            assert answer.code == 16
            assert "Group:g" in (answer.remark or "")
        assert (await ask(broker, acl(C.AUTH_CREATE_ACL, "Group:g", "Delete"))).code == 0
        assert (await ask(broker, delete, ALICE)).code == 0


async def test_a_body_with_too_many_names_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    groups = [ConsumerData("g", subscription_data_set=[SubscriptionData(f"T{n}", "*") for n in range(20_000)])]
    async with served(tmp_path) as broker:
        await add_alice(broker, ("*", "All"))
        answer = await ask(broker, Command(C.HEART_BEAT, {}, HeartbeatData("c", [], groups).to_bytes()), ALICE)
        assert (answer.code, "objects, are read" in (answer.remark or "")) == (16, True)


async def test_unsigned_altered_unknown_and_disabled_users_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as broker:
        await add_alice(broker, ("*", "All"))
        signed = ALICE.sign(send("T", b"x"))
        assert signed.ext is not None
        for command, keys, text in (
            (send("T", b"x"), None, "username cannot be null."),
            (send("T", b"x"), Credentials("nobody", "any"), "User:nobody is not found."),
            (send("T", b"x"), Credentials("alice", "wrong"), "check signature failed."),
            (Command(signed.code, {**signed.ext, SIGNATURE: ""}, signed.body), None, "check signature failed."),
            (Command(signed.code, signed.ext, b"y"), None, "check signature failed."),
        ):
            answer = await ask(broker, command, keys)
            assert (answer.code, answer.remark) == (16, text)
        assert broker.log.end == 0
        assert (await ask(broker, send("T", b"x"), ALICE)).code == 0
        assert (await ask(broker, user(C.AUTH_UPDATE_USER, "alice", userStatus="disable"))).code == 0
        answer = await ask(broker, send("T", b"x"), ALICE)
        assert (answer.code, answer.remark) == (16, "User:alice is disabled.")


async def test_users_and_policies_are_kept_over_a_restart_and_passwords_are_not_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as broker:
        await add_alice(broker, ("Topic:T", "Pub"))
        again = await ask(broker, user(C.AUTH_CREATE_USER, "alice", password="other-password"))
        assert (again.code, again.remark) == (16, "The user is existed")
    async with served(tmp_path) as broker:
        assert (await ask(broker, send("T", b"x"), ALICE)).code == 0
        listed = await ask(broker, Command(C.AUTH_LIST_USER))
        assert json.loads(listed.body) == [
            {"userStatus": "enable", "userType": "Normal", "username": "alice"},
            {"userStatus": "enable", "userType": "Super", "username": "root"},
        ]
        one = await ask(broker, user(C.AUTH_GET_USER, "alice"))
        acls = await ask(broker, Command(C.AUTH_LIST_ACL, {"subjectFilter": "ali"}))
        assert json.loads(acls.body)[0]["policies"][0]["entries"][0]["resource"] == "Topic:T"
        assert (await ask(broker, Command(C.AUTH_GET_ACL, {"subject": "User:alice"}))).body != b""
        assert b"password" not in listed.body + one.body + acls.body
        removed = Command(C.AUTH_DELETE_ACL, {"subject": "User:alice", "resource": "Topic:T"})
        assert (await ask(broker, removed)).code == 0
        assert (await ask(broker, send("T", b"x"), ALICE)).code == 16
        assert (await ask(broker, user(C.AUTH_DELETE_USER, "alice"))).code == 0
        assert (await ask(broker, send("T", b"x"), ALICE)).remark == "User:alice is not found."
    assert (tmp_path / "users.json").stat().st_mode & 0o077 == 0


FIRST = '{"username": "root", "password": "root-password"}'
INNER = '{"accessKey": "inner", "secretKey": "inner-password"}'


async def test_rocketmqs_first_user_and_inner_credentials_become_super_users_once_and_are_not_shown(
    tmp_path: Path,
) -> None:
    inner = Credentials("inner", "inner-password")
    with capture_logs() as logs:
        async with served(tmp_path, keys="", first_user=FIRST, inner_credentials=INNER) as broker:
            for keys in (ROOT, inner):
                assert (await ask(broker, Command(C.AUTH_LIST_USER), keys)).code == 0
            answer = await ask(broker, user(C.AUTH_UPDATE_USER, "root", password="changed-password"))
            assert answer.code == 0
            shown = (await ask(broker, Command(C.GET_BROKER_CONFIG), inner)).body
            assert b"plugin.acl.first_user=(hidden)" in shown
            assert b"plugin.acl.inner_credentials=(hidden)" in shown
        async with served(tmp_path, keys="", first_user=FIRST, inner_credentials=INNER) as broker:
            answer = await ask(broker, Command(C.AUTH_LIST_USER))
            assert answer.remark == "check signature failed.", "an existing user keeps its password"
            assert (await ask(broker, Command(C.AUTH_LIST_USER), Credentials("root", "changed-password"))).code == 0
    for secret in ("root-password", "inner-password"):
        assert secret.encode() not in shown
        assert secret not in str(logs)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"first_user": "{hush-hush"}, "plugin.acl.first_user: JSON with username and password is expected"),
        ({"first_user": '{"username": "hush-hush"}'}, "username and password is expected"),
        ({"first_user": '{"username": "hush-hush", "password": " "}'}, "username and password is expected"),
        ({"first_user": '["hush-hush"]'}, "username and password is expected"),
        ({"inner_credentials": FIRST}, "plugin.acl.inner_credentials: JSON with accessKey and secretKey is expected"),
        ({"inner_credentials": INNER, "keys": "tools.yml"}, "set one of them"),
    ],
)
async def test_wrong_first_users_and_inner_credentials_refuse_the_start_and_are_not_shown(
    tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with served(tmp_path, **{"keys": "", **settings}):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=reason)
    assert "hush" not in str(failed.value.exceptions)
    assert "root-password" not in str(failed.value.exceptions)


async def test_only_super_users_make_and_change_super_users_and_one_stays(tmp_path: Path) -> None:
    async with served(tmp_path) as broker:
        await add_alice(broker, ("Cluster:*", "All"))
        for command in (
            user(C.AUTH_CREATE_USER, "mallory", password="mallory-password", userType="Super"),
            user(C.AUTH_UPDATE_USER, "alice", userType="super"),
            user(C.AUTH_UPDATE_USER, "root", password="taken-over"),
            user(C.AUTH_DELETE_USER, "root"),
        ):
            answer = await ask(broker, command, ALICE)
            assert "by super user" in (answer.remark or ""), command
        assert (await ask(broker, user(C.AUTH_CREATE_USER, "bob", password="bob-password"), ALICE)).code == 0
        for command in (user(C.AUTH_DELETE_USER, "root"), user(C.AUTH_UPDATE_USER, "root", userStatus="disable")):
            assert (await ask(broker, command)).remark == "the last super user must stay, and stay enabled"


def is_private(file: Path) -> bool:
    return not file.stat().st_mode & 0o77


async def ask_together(broker: Broker, *commands: Command) -> list[Command]:
    """The responses to commands that the broker receives at once, in their order."""
    numbered = [msgspec.structs.replace(each, opaque=number) for number, each in enumerate(commands)]
    found: list[Command] = []
    buffer = bytearray()
    async with await trio.open_tcp_stream(*parse_address(broker.address)) as stream:
        await stream.send_all(b"".join(map(encode, numbered)))
        with trio.fail_after(20):
            while len(found) < len(commands):
                buffer += await stream.receive_some()
                frames, taken = cut_frames(buffer)
                del buffer[:taken]
                found += map(decode, frames)
    return sorted(found, key=lambda each: each.opaque)


@pytest.mark.parametrize("accounts", [None, ACCOUNTS])
async def test_a_user_that_deletes_itself_makes_no_super_user_and_no_account_by_requests_that_wait(
    tmp_path: Path, accounts: str | None
) -> None:
    """Requests of one turn are allowed before the first one runs."""
    for command, text in (
        (user(C.AUTH_CREATE_USER, "mallory", password="mallory-password", userType="Super"), "by super user"),
        (Command(C.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "mallory-account", "secretKey": "mallory-account",
                                                  "admin": "true"}), "by a super user"),
    ):  # fmt: skip
        async with served(tmp_path, accounts, in_flight=1) as broker:
            await add_alice(broker, ("Cluster:*", "All"))
            both = map(ALICE.sign, (user(C.AUTH_DELETE_USER, "alice"), command))
            deleted, answer = await ask_together(broker, *both)
            assert deleted.code == 0
            assert text in (answer.remark or "")
            assert b"mallory" not in (await ask(broker, Command(C.AUTH_LIST_USER))).body
            assert b"mallory" not in (await ask(broker, Command(C.GET_BROKER_CLUSTER_ACL_CONFIG))).body


async def test_a_user_with_the_cluster_takes_no_account_by_creating_a_user_of_its_name(tmp_path: Path) -> None:
    """A user comes before an account of its name, which would be locked out."""
    async with served(tmp_path, ACCOUNTS) as broker:
        await add_alice(broker, ("Cluster:*", "All"))
        taking = user(C.AUTH_CREATE_USER, "the-admin", password="taken-over")
        answer = await ask(broker, taking, ALICE)
        assert (answer.code, "by super user" in (answer.remark or "")) == (1, True)
        assert (await ask(broker, Command(C.GET_BROKER_CONFIG), ADMIN)).code == 0
        assert (await ask(broker, taking)).code == 0


async def test_a_user_with_the_cluster_gets_no_more_by_changing_accounts(tmp_path: Path) -> None:
    """An admin account counts as a super user, and an address of the list needs no key."""
    account = {"accessKey": "made-by-alice", "secretKey": "made-by-alice", "admin": "true"}
    async with served(tmp_path, ACCOUNTS) as broker:
        await add_alice(broker, ("Cluster:*", "All"))
        before = (tmp_path / "plain_acl.yml").read_bytes()
        for command in (
            Command(C.UPDATE_AND_CREATE_ACL_CONFIG, account),
            Command(C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "*"}),
            Command(C.DELETE_ACL_CONFIG, {"accessKey": "the-admin"}),
        ):
            answer = await ask(broker, command, ALICE)
            assert (answer.code, answer.remark) == (16, "accounts can only be changed by a super user")
        assert (tmp_path / "plain_acl.yml").read_bytes() == before
        for keys in (ROOT, ADMIN):
            assert (await ask(broker, Command(C.UPDATE_AND_CREATE_ACL_CONFIG, account), keys)).code == 0


async def test_unknown_names_are_one_line_in_the_log_for_each_address(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with served(tmp_path) as broker:
            for number in range(5):
                name = f"guess-{number}-" + "x" * 10_000
                assert (await ask(broker, send("T", b"x"), Credentials(name, "guessed-it"))).code == 16
    found = [each for each in logs if each["event"] == "request_denied"]
    assert [each["access_key"] for each in found] == [None]
    assert len(str(found)) < 1000


TRACING = "127.0.0.1@PID_CLIENT_INNER_TRACE_PRODUCER_127.0.0.1:9876"


async def test_a_user_that_only_consumes_may_send_heartbeats_of_a_java_consumer(tmp_path: Path) -> None:
    """RocketMQ's consumers also have a producer, of a group that each client has."""
    consumers = [ConsumerData("g", subscription_data_set=[SubscriptionData("T", "*")])]
    async with served(tmp_path) as broker:
        await add_alice(broker, ("Topic:T", "Sub"), ("Group:g", "Sub"))
        for producer, code in (("CLIENT_INNER_PRODUCER", 0), ("orders", 16)):
            data = HeartbeatData("client", [ProducerData(producer)], consumers)
            assert (await ask(broker, Command(C.HEART_BEAT, {}, data.to_bytes()), ALICE)).code == code
            left = Command(C.UNREGISTER_CLIENT, {"clientID": "client", "producerGroup": producer})
            assert (await ask(broker, left, ALICE)).code == code


@pytest.mark.parametrize(
    ("client", "producers", "code"),
    [
        (TRACING, ("_INNER_TRACE_PRODUCER-g-CONSUME-1", "CLIENT_INNER_PRODUCER"), 0),
        (TRACING, ("_INNER_TRACE_PRODUCER-g-CONSUME-1", "orders"), 16),
        (TRACING, ("CLIENT_INNER_PRODUCER",), 16),
        (TRACING, (), 16),
        ("127.0.0.1@1", ("_INNER_TRACE_PRODUCER-g-CONSUME-1",), 16),
    ],
)
async def test_a_user_that_only_consumes_may_send_heartbeats_of_the_client_that_sends_its_traces(
    tmp_path: Path, client: str, producers: tuple[str, ...], code: int
) -> None:
    """RocketMQ's consumers with message traces have another client with a producer, and no consumers, for these."""
    data = HeartbeatData(client, [ProducerData(each) for each in producers])
    async with served(tmp_path) as broker:
        await add_alice(broker, ("Topic:T", "Sub"), ("Group:g", "Sub"))
        assert (await ask(broker, Command(C.HEART_BEAT, {}, data.to_bytes()), ALICE)).code == code
        for producer in producers:
            left = Command(C.UNREGISTER_CLIENT, {"clientID": client, "producerGroup": producer})
            assert (await ask(broker, left, ALICE)).code == (16 if producer == "orders" else 0)


async def test_accounts_and_users_work_side_by_side(tmp_path: Path) -> None:
    async with served(tmp_path, ACCOUNTS) as broker:
        assert (await ask(broker, send("T", b"x"), WORKER)).code == 0
        assert (await ask(broker, send("T", b"x"))).code == 0
        assert (await ask(broker, send("T", b"x"), None)).code == 1
        assert (await ask(broker, Command(C.AUTH_LIST_USER), WORKER)).code == 1


async def test_with_users_only_the_first_account_creates_the_file_and_its_folder(tmp_path: Path) -> None:
    made = Credentials("made-by-root", "made-by-root")
    keys = {"accessKey": made.access_key, "secretKey": made.secret_key, "defaultTopicPerm": "PUB"}
    file = tmp_path / "conf" / "plain_acl.yml"
    for count in (1, 2):
        async with served(tmp_path, file=str(file)) as broker:
            if count == 1:
                assert (await ask(broker, Command(C.UPDATE_AND_CREATE_ACL_CONFIG, keys))).code == 0
            assert (await ask(broker, send("T", b"x"), made)).code == 0
    assert is_private(file)


async def test_without_authorization_each_user_may_do_everything(tmp_path: Path) -> None:
    async with served(tmp_path, authorization="false") as broker:
        await add_alice(broker)
        assert (await ask(broker, Command(C.GET_BROKER_CONFIG), ALICE)).code == 0
        assert (await ask(broker, send("T", b"x"), Credentials("alice", "wrong"))).code == 16


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (acl(C.AUTH_CREATE_ACL, "Topic:T", "Any"), "The actions can not be Any."),
        (acl(C.AUTH_CREATE_ACL, "Topic:T"), "The actions is empty."),
        (acl(C.AUTH_CREATE_ACL, "Topic:T", "Fly"), "is not a valid action"),
        (acl(C.AUTH_CREATE_ACL, "Planet:T", "Pub"), "is not a valid resource type"),
        (acl(C.AUTH_CREATE_ACL, "T", "Pub"), "is not a resource"),
        (acl(C.AUTH_CREATE_ACL, "Topic:T", "Pub", decision="Maybe"), "is not a valid decision"),
        (acl(C.AUTH_CREATE_ACL, "Topic:T", "Pub", sourceIps=["300.1.1.1"]), "The source ip is invalid."),
        (Command(C.AUTH_CREATE_ACL, {"subject": "User:nobody"}, acl(0, "Topic:T", "Pub").body), "is not exist."),
        (Command(C.AUTH_CREATE_ACL, {"subject": "Role:x"}, acl(0, "Topic:T", "Pub").body), "The subject type is null."),
        (user(C.AUTH_CREATE_USER, "bob", password=" "), "password can not be blank"),
        (user(C.AUTH_CREATE_USER, " ", password="bob-password"), "username can not be blank"),
        (user(C.AUTH_UPDATE_USER, "bob", password="bob-password"), "The user is not exist"),
    ],
)
async def test_wrong_users_and_policies_change_nothing(tmp_path: Path, command: Command, text: str) -> None:
    async with served(tmp_path) as broker:
        await add_alice(broker)
        before = (tmp_path / "users.json").read_bytes()
        answer = await ask(broker, command)
        assert answer.code == 16
        assert text in (answer.remark or "")
        assert (tmp_path / "users.json").read_bytes() == before


def policy(*rows: tuple[str, str, str], policy_type: str = "Custom") -> AclInfo:
    entries = [PolicyEntryInfo(resource, [action], None, decision) for resource, action, decision in rows]
    return AclInfo("User:alice", [PolicyInfo(policy_type, entries)])


def decide(found: AclInfo | None, resource: str, actions: tuple[str, ...], address: str) -> str:
    return Decisions(found, actions, address).of(resource)


async def test_the_most_specific_resource_decides_and_a_denial_among_equal_ones() -> None:
    found = policy(
        ("*", "All", "Deny"), ("Topic:*", "Pub", "Allow"), ("Topic:orders-*", "Pub", "Deny"),
        ("Topic:orders-eu-*", "Pub", "Allow"), ("Topic:orders-eu-1", "Pub", "Deny"),
    )  # fmt: skip
    for topic, allowed in (("x", True), ("orders-1", False), ("orders-eu-2", True), ("orders-eu-1", False)):
        assert (decide(found, f"Topic:{topic}", ("Pub",), "10.0.0.1") == "") is allowed, topic
    assert decide(found, "Group:g", ("Sub",), "10.0.0.1") == "the decision is deny."
    assert decide(policy(("Topic:T", "Pub", "Allow"), policy_type="Default"), "Topic:T", ("Pub",), "10.0.0.1") == ""
    assert decide(policy(("Topic:T", "Pub", "Allow")), "Topic:TT", ("Pub",), "10.0.0.1") == "no matched policies."
    assert decide(None, "Topic:T", ("Pub",), "10.0.0.1") == "no matched policies."
    near = AclInfo("User:alice", [PolicyInfo("Custom", [PolicyEntryInfo("Topic:T", ["All"], ["10.0.0.0/8"], "Allow")])])
    assert decide(near, "Topic:T", ("Pub",), "10.9.9.9") == ""
    assert decide(near, "Topic:T", ("Pub",), "11.0.0.1") != ""


@pytest.mark.parametrize("address", ["10.9.9.9", "::ffff:10.9.9.9", "no-address"])
async def test_a_denial_for_addresses_counts_at_a_port_that_serves_ipv6_too(address: str) -> None:
    """Such a port has IPv4 peers as ``::ffff:10.9.9.9``."""
    rows = [
        PolicyEntryInfo("Topic:*", ["All"], None, "Allow"), PolicyEntryInfo("Topic:T", ["All"], ["10.0.0.0/8"], "Deny"),
    ]  # fmt: skip
    found = AclInfo("User:alice", [PolicyInfo("Custom", rows)])
    assert decide(found, "Topic:T", ("Pub",), address) == "the decision is deny."
    assert decide(found, "Topic:T", ("Pub",), "::ffff:11.0.0.1") == ""
    assert decide(found, "Topic:T", ("Pub",), "2001:db8::1") == ""


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"users":{"a":{}}}',
        b'{"users":{"a":{"password":"hush-hush","userType":"x"}}}',
        b'{"acls":{"User:a":{"policies":[]}}}',
        b" " * 5_000_000,
    ],
)
async def test_a_wrong_file_refuses_the_start_without_its_passwords(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it |can not|is no|is empty") as wrong:
        UserDocument.parse(data)
    assert "hush" not in str(wrong.value)
    (tmp_path / "users.json").write_bytes(data)
    with pytest.raises(ExceptionGroup) as failed:
        async with served(tmp_path):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=r"plugin\.acl\.users")
