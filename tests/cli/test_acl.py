"""``gantrymq acl`` checks the file, explains decisions as the broker takes them, and changes accounts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from gantrymq.kernel.processors import Request
from gantrymq.plugins.acl.accounts import Accounts
from gantrymq.plugins.acl.checks import Checks, Denied
from gantrymq.plugins.acl.explain import explain, needed_names
from gantrymq.remoting.bodies.access import AccountConfig, AclConfigBody
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.rights import BROKER_RIGHTS, Right
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.harness import cluster_in_thread
from support.accounts import ACCOUNTS, ACL, ADMIN, NOBODY, WORKER

Cli = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["the-worker", "send", "--topic", "T"], "topic T: has PUB|SUB (topicPerms), needs PUB"),
        (["the-worker", "consume", "--topic", "read", "--group", "g"], "group g: has SUB (groupPerms), needs SUB"),
        (["the-worker", "send", "--topic", "%RETRY%g"], "group g: has SUB (groupPerms), needs SUB"),
        (["the-admin", "17"], "account 'the-admin' is an admin account"),
        (["the-admin", "SEND_MESSAGE_V2", "--topic", "any"], "an admin account without topicPerms"),
        (["the-nobody", "send", "--topic", "RMQ_SYS_TRACE_TOPIC"], "every account may send message traces"),
        (["the-worker", "heart-beat"], "account 'the-worker' may send to any topic"),
    ],
)
def test_explain_says_why_a_request_is_allowed(cli: Cli, file: Path, arguments: list[str], reason: str) -> None:
    done = cli("acl", "explain", *arguments, "--file", str(file))
    assert done.code == 0, done.err
    assert reason in done.out
    assert done.out.endswith("allowed\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["the-worker", "send", "--topic", "read"], "topic read: has SUB (topicPerms), needs PUB: missing"),
        (["the-worker", "send", "--topic", "x"], "topic x: has DENY (defaultTopicPerm), needs PUB: missing"),
        (["the-worker", "consume", "--topic", "T", "--group", "x"], "group x: has DENY (defaultGroupPerm), needs SUB"),
        (["the-worker", "admin"], "account 'the-worker' is not an admin account"),
        (["stranger", "send", "--topic", "T"], "no account has the access key 'stranger'"),
        (["the-nobody", "heart-beat"], "account 'the-nobody' may not send to any topic"),
    ],
)
def test_explain_says_why_a_request_is_refused(cli: Cli, file: Path, arguments: list[str], reason: str) -> None:
    done = cli("acl", "explain", *arguments, "--file", str(file))
    assert done.code == 1
    assert reason in done.out
    assert "refused: " in done.err


def test_explain_knows_addresses_and_compares_the_secret_key(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(ACCOUNTS + "globalWhiteRemoteAddresses: [10.0.0.*]\n")
    ask = ("acl", "explain", "the-worker", "admin", "--file", str(file))
    assert "10.0.0.7 is in globalWhiteRemoteAddresses" in cli(*ask, "--address", "10.0.0.7").out
    assert cli(*ask, "--address", "10.0.1.7").code == 1
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "the-worker")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "another-secret")
    done = cli("acl", "explain", "the-worker", "send", "--topic", "T", "--file", str(file))
    assert done.code == 1
    assert "the signature would be wrong" in done.out
    assert "another-secret" not in done.out + done.err
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", WORKER.secret_key)
    assert cli("acl", "explain", "the-worker", "send", "--topic", "T", "--file", str(file)).code == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["the-worker", "send"], "SEND_MESSAGE needs --topic"),
        (["the-worker", "nonsense"], "expected send, consume, transaction, admin"),
        (["the-worker", "REGISTER_BROKER"], "brokers do not serve REGISTER_BROKER"),
    ],
)
def test_explain_refuses_a_question_that_it_cannot_answer(
    cli: Cli, file: Path, arguments: list[str], reason: str
) -> None:
    done = cli("acl", "explain", *arguments, "--file", str(file))
    assert done.code == 2
    assert reason in " ".join(done.err.split())


class Peer:
    peer = ("10.1.2.3", 5)


@pytest.mark.parametrize("credentials", [ADMIN, WORKER, NOBODY])
def test_explain_agrees_with_the_broker(credentials: Credentials) -> None:
    """Compare each code whose required rights follow from the header."""
    accounts = Accounts.parse(ACCOUNTS.encode())
    checks = Checks(None, "DefaultCluster", BROKER_RIGHTS, lambda: accounts)  # type: ignore[arg-type]
    rights = (Right.SEND, Right.REPLY, Right.READ, Right.TOPIC, Right.CONSUME, Right.OFFSET, Right.GROUP, Right.ADMIN)
    compared = 0
    for code, right in BROKER_RIGHTS.items():
        if right not in rights:
            continue
        for topic in ("T", "sent", "read", "x", "%RETRY%g", "DefaultCluster_REPLY_TOPIC"):
            for group in ("g", "x"):
                ext = {"topic": topic, "b": topic, "consumerGroup": group, "group": group}
                request = Request(Peer(), credentials.sign(Command(code, ext)))  # type: ignore[arg-type]
                try:
                    checks.check(request)
                    is_allowed = True
                except Denied:
                    is_allowed = False
                found = explain(
                    accounts, credentials.access_key, code, cluster="DefaultCluster", topic=topic, group=group
                )
                assert found.allowed == is_allowed, (RequestCode(code).name, topic, group, found.reasons)
                compared += 1
    assert compared > 500


def test_explain_knows_every_right_of_a_broker() -> None:
    accounts = Accounts.parse(ACCOUNTS.encode())
    for code in BROKER_RIGHTS:
        assert set(needed_names(code)) <= {"topic", "group"}
        assert explain(accounts, "the-admin", code, cluster="DefaultCluster", topic="t", group="g").allowed
        of_nobody = explain(accounts, "the-nobody", code, cluster="DefaultCluster", topic="t", group="g")
        assert of_nobody.allowed == (code == RequestCode.QUERY_CONSUMER_OFFSET)


def test_check_reads_the_file_as_the_broker_and_warns(cli: Cli, file: Path) -> None:
    done = cli("acl", "check", str(file))
    assert (done.code, done.out) == (0, f"{file}: 3 accounts, 1 of them admin, 0 warnings\n")
    file.write_text(
        "globalWhiteRemoteAddresses: ['*']\n"
        "accounts:\n"
        "- {accessKey: the-first, secretKey: hush-hush, topicPerms: [a=WRITE], defaultTopicPerm: ALL}\n"
        "- {accessKey: the-first, secretKey: hush-hush, whiteRemoteAddress: '*'}\n"
    )
    file.chmod(0o644)
    done = cli("acl", "check", str(file))
    assert done.code == 0
    for text in (
        "every address: no client needs a key", "account 2 has the access key of account 1",
        "'WRITE' is not a permission", "'ALL' is not a permission", "no account is an admin", "chmod 600",
    ):  # fmt: skip
        assert text in done.err
    assert "hush" not in done.out + done.err
    file.write_text("accounts: [{accessKey: the-first, secretKey: short}]")
    done = cli("acl", "check", str(file))
    assert done.code == 1
    assert "secretKey=***" in done.err


@contextmanager
def broker_with_accounts(home: Path) -> Iterator[str]:
    conf = home / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    (conf / "tools.yml").write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    settings = {"plugin.acl.file": str(conf / "plain_acl.yml"), "plugin.acl.keys": str(conf / "tools.yml")}
    with cluster_in_thread(home / "store", settings=settings, enable=[ACL]) as cluster:
        yield cluster.address


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with broker_with_accounts(tmp_path) as address:
        yield address


@pytest.fixture
def second(tmp_path: Path) -> Iterator[str]:
    """A second broker, with its files in the folder ``second``."""
    with broker_with_accounts(tmp_path / "second") as address:
        yield address


@pytest.fixture
def as_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", ADMIN.secret_key)


def has_account(cli: Cli, broker: str, access_key: str) -> bool:
    done = cli("acl", "user", "list", "--broker", broker, "--json")
    assert done.code == 0, done.err
    return access_key in [row["access_key"] for row in json.loads(done.out)]


@pytest.mark.usefixtures("as_admin")
def test_a_new_secret_key_is_printed_if_a_later_broker_fails(
    cli: Cli, broker: str, second: str, tmp_path: Path
) -> None:
    rmtree(tmp_path / "second" / "conf")  # it cannot write its accounts any more
    done = cli("acl", "user", "set", "newcomer", "--broker", broker, "--broker", second)
    assert (done.code, f"{second}: " in done.err) == (1, True), done.err
    assert "secret key: " in done.out, "the first broker has it, and nobody else knows it"


@pytest.mark.usefixtures("as_admin")
def test_a_new_account_is_created_at_no_broker_if_one_cannot_be_reached(cli: Cli, broker: str) -> None:
    done = cli("acl", "user", "set", "newcomer", "--broker", broker, "--broker", "127.0.0.1:1")
    assert (done.code, done.out, "127.0.0.1:1" in done.err) == (1, "", True), done.err
    assert not has_account(cli, broker, "newcomer")


@pytest.mark.usefixtures("as_admin")
def test_brokers_never_get_different_random_secret_keys_for_an_account(
    cli: Cli, broker: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("--broker", broker, "--broker", second)
    secret = cli("acl", "user", "set", "newcomer", "--admin", "--broker", broker).out.rpartition("secret key: ")[2]
    done = cli("acl", "user", "set", "newcomer", "--admin", *both)
    assert (done.code, done.out) == (1, "")
    assert f"account newcomer exists at {broker} but not at {second}" in done.err
    assert "GANTRYMQ_NEW_SECRET_KEY" in done.err
    assert not has_account(cli, second, "newcomer")
    monkeypatch.setenv("GANTRYMQ_NEW_SECRET_KEY", secret.strip())
    assert cli("acl", "user", "set", "newcomer", "--admin", *both).code == 0
    monkeypatch.delenv("GANTRYMQ_NEW_SECRET_KEY")
    assert "secret key" not in cli("acl", "user", "set", "newcomer", "--topic-default", "SUB", *both).out
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "newcomer")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", secret.strip())
    assert has_account(cli, broker, "newcomer")
    assert has_account(cli, second, "newcomer")


def test_accounts_of_a_broker_are_listed_created_granted_and_deleted(
    cli: Cli, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", ADMIN.secret_key)

    def accounts() -> dict[str, Any]:
        done = cli("acl", "user", "list", "--broker", broker, "--json")
        assert done.code == 0, done.err
        assert "secret" not in done.out
        return {row["access_key"]: row for row in json.loads(done.out)}

    done = cli("acl", "user", "set", "newcomer", "--topic-default", "SUB", "--broker", broker)
    assert done.code == 0, done.err
    secret = done.out.rpartition("secret key: ")[2].strip()
    assert len(secret) >= 32
    done = cli("acl", "grant", "newcomer", "--topic", "a=PUB", "--topic", "b=PUB|SUB", "--group", "g=SUB",
               "--broker", broker)  # fmt: skip
    assert done.code == 0, done.err
    assert cli("acl", "grant", "newcomer", "--topic", "b=DENY", "--broker", broker).code == 0
    assert accounts()["newcomer"] == {
        "access_key": "newcomer", "admin": False, "topic_default": "SUB", "group_default": None,
        "topics": ["a=PUB", "b=DENY"], "groups": ["g=SUB"], "address": None,
    }  # fmt: skip
    assert "refused" in cli("acl", "explain", "newcomer", "send", "--topic", "b", "--broker", broker).err
    assert cli("acl", "explain", "newcomer", "send", "--topic", "a", "--broker", broker).code == 0

    done = cli("acl", "user", "set", "newcomer", "--admin", "--broker", broker)
    assert "secret" not in done.out, "an account keeps its secret key"
    assert accounts()["newcomer"]["admin"] is True
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "newcomer")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", secret)
    assert accounts()["newcomer"]["topics"] == ["a=PUB", "b=DENY"]
    assert cli("acl", "grant", "newcomer", "--group", "h=SUB", "--broker", broker).code == 0
    assert accounts()["newcomer"]["admin"] is True, "a grant leaves the rest of the account alone"
    done = cli("acl", "user", "delete", "the-nobody", "--broker", broker, "--json")
    assert json.loads(done.out) == [{"broker": broker, "access_key": "the-nobody", "deleted": True}]
    assert "the-nobody" not in accounts()


def test_a_broker_that_shows_secret_keys_gets_whole_accounts(
    cli: Cli, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RocketMQ 4.9.7, which refuses a change without the key."""
    clerk = AccountConfig(
        "the-clerk", "clerk-secret", default_topic_perm="DENY", topic_perms=["a=PUB", "b=SUB"], group_perms=["g=SUB"]
    )
    sent: list[Command] = []

    async def config_of(_: object) -> AclConfigBody:
        return AclConfigBody(plain_access_configs=[clerk])

    async def call(_: object, command: Command) -> None:
        sent.append(command)

    monkeypatch.setattr("gantrymq.cli.acl.config_of", config_of)
    monkeypatch.setattr("gantrymq.cli.acl.call", call)
    granted = cli("acl", "grant", "the-clerk", "--topic", "a=DENY", "--broker", broker)
    changed = cli("acl", "user", "set", "the-clerk", "--admin", "--broker", broker)
    assert (granted.code, changed.code) == (0, 0), granted.err + changed.err
    assert "clerk-secret" not in granted.out + changed.out
    kept = {"accessKey": "the-clerk", "secretKey": "clerk-secret", "defaultTopicPerm": "DENY", "groupPerms": "g=SUB"}
    assert [command.ext for command in sent] == [
        {**kept, "admin": "false", "topicPerms": "a=DENY,b=SUB"},
        {**kept, "admin": "true", "topicPerms": "a=PUB,b=SUB"},
    ]  # fmt: skip


def test_changes_of_accounts_are_printed_as_json_for_each_broker_that_has_changed(
    cli: Cli, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", ADMIN.secret_key)
    at = ("--broker", broker, "--json")
    (row,) = json.loads(cli("acl", "user", "set", "scripted", *at).out)
    assert (row.pop("broker"), row.pop("access_key"), len(row.pop("secret_key")) >= 32, row) == (
        broker, "scripted", True, {},
    )  # fmt: skip
    (row,) = json.loads(cli("acl", "user", "set", "scripted", "--no-admin", *at).out)
    assert row == {"broker": broker, "access_key": "scripted"}, "an account keeps its secret key"
    done = cli("acl", "grant", "scripted", "--topic", "a=PUB", "--broker", broker, "--broker", "127.0.0.1:1", "--json")
    assert (done.code, json.loads(done.out)) == (
        1, [{"broker": broker, "access_key": "scripted", "topics": ["a=PUB"], "groups": []}],
    )  # fmt: skip
    assert cli("acl", "user", "delete", "scripted", "--broker", broker).code == 0


def test_changes_without_the_right_key_or_of_unknown_accounts_fail_clearly(
    cli: Cli, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GANTRYMQ_ACCESS_KEY", raising=False)
    monkeypatch.delenv("GANTRYMQ_SECRET_KEY", raising=False)
    done = cli("acl", "user", "list", "--broker", broker)
    assert done.code == 1
    assert "No accessKey is configured" in done.err
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", ADMIN.secret_key)
    done = cli("acl", "grant", "unknown", "--topic", "a=PUB", "--broker", broker)
    assert done.code == 1
    assert "gantrymq acl user set" in done.err
    assert cli("acl", "grant", "unknown", "--topic", "a=WRITE", "--broker", broker).code == 2


USERS = {
    "users": {
        "root": {"username": "root", "password": "root-password", "userType": "Super"},
        "alice": {"username": "alice", "password": "alice-password"},
        "gone": {"username": "gone", "password": "gone-password", "userStatus": "disable"},
    },
    "acls": {
        "User:alice": {
            "subject": "User:alice",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {"resource": "Topic:T", "actions": ["Pub", "Sub"], "decision": "Allow"},
                        {"resource": "Group:g", "actions": ["Sub"], "decision": "Allow"},
                        {"resource": "Topic:near", "actions": ["Pub"], "decision": "Allow",
                         "sourceIps": ["10.0.0.0/8"]},
                        {"resource": "Topic:made-*", "actions": ["Create"], "decision": "Allow"},
                    ],
                }
            ],
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "allowed", "reason"),
    [
        ("root admin", True, "'root' is a super user"),
        ("gone send --topic T", False, "the user 'gone' is disabled"),
        ("nobody send --topic T", False, "no user has the name 'nobody'"),
        ("alice send --topic T", True, "Topic:T: needs Pub: a policy allows it"),
        ("alice send --topic other", False, "Topic:other: needs Pub: no matched policies"),
        ("alice send --topic RMQ_SYS_TRACE_TOPIC", True, "every user may send message traces"),
        ("alice consume --topic T --group g", True, "Group:g: needs Sub: a policy allows it"),
        ("alice consume --topic T --group h", False, "Group:h: needs Sub: no matched policies"),
        ("alice send --topic near --address 10.1.1.1", True, "a policy allows it"),
        ("alice send --topic near --address 11.1.1.1", False, "no matched policies"),
        ("alice heart-beat", True, "Topic:*: needs Pub on some topic: a policy allows it"),
        ("alice admin --topic made-1", True, "Topic:made-1: needs Create: a policy allows it"),
        ("alice GET_BROKER_CONFIG --cluster C", False, "Cluster:C: needs Get or List: no matched policies"),
    ],
)
def test_explain_says_what_policies_decide_about_a_user(
    cli: Cli, tmp_path: Path, arguments: str, allowed: bool, reason: str
) -> None:
    (tmp_path / "users.json").write_text(json.dumps(USERS))
    done = cli("acl", "explain", *arguments.split(), "--users", str(tmp_path / "users.json"))
    assert (done.code == 0) is allowed, done.err
    assert reason in done.out
    assert "password" not in done.out + done.err


@pytest.mark.parametrize(
    ("request_name", "option"),
    [("admin", "--topic"), ("DELETE_TOPIC_IN_BROKER", "--topic"), ("DELETE_SUBSCRIPTIONGROUP", "--group")],
)
def test_explain_asks_for_the_topic_or_group_on_which_policies_decide(
    cli: Cli, tmp_path: Path, request_name: str, option: str
) -> None:
    (tmp_path / "users.json").write_text(json.dumps(USERS))
    done = cli("acl", "explain", "alice", request_name, "--users", str(tmp_path / "users.json"))
    assert (done.code, f"needs {option}" in " ".join(done.err.split())) == (2, True)


def test_a_broker_without_users_of_rocketmq_5_is_named(cli: Cli, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", ADMIN.secret_key)
    done = cli("acl", "users", "list", "--broker", broker)
    assert (done.code, f"{broker} has no users of RocketMQ 5" in done.err) == (1, True), done.err
