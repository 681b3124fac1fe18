"""RocketMQ 5.3.3's mqadmin, producer and consumer at our broker with users and policies.

mqadmin signs with the keys in ``conf/tools.yml``; its commands that send and read messages are RocketMQ's producer and
consumer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import gantrymq.sync
from gantrymq.remoting.signing import Credentials
from support.foreign import Java, ToolMissing
from support.mqadmin import KeyedMqAdmin
from support.processes import free_ports, gantrymq_child
from support.rocketmq_dashboard import SOURCE, find_jar, run_dashboard

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(400)]

Homes = Callable[[str], Path]
ROOT = Credentials("root", "root-password")
ALICE = Credentials("alice", "alice-password")


@attrs.frozen
class Guarded:
    """Our nameserver and broker, whose first user is ``ROOT``, by the keys of RocketMQ's ``broker.conf``."""

    nameserver: str
    broker: str
    users: Path


@pytest.fixture(scope="module")
def guarded(homes: Homes) -> Iterator[Guarded]:
    home = homes("users")
    home.mkdir()
    (home / "auth").mkdir()
    first = {"username": ROOT.access_key, "password": ROOT.secret_key}
    properties = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authConfigPath": str(home / "auth"),
        "initAuthenticationUser": json.dumps(first),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-password"}),
    }
    conf = home / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    (home / "access.toml").write_text('[identities.inner]\nsecret = "inner-password"\nbrokers = ["*"]\n')
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--config", str(conf), "--data", str(home / "data"), "--listen", broker,
             "--nameserver-listen", nameserver, "--nameserver-access", str(home / "access.toml"),
             "--set", "plugin.flush.mode=async")  # fmt: skip
    with gantrymq_child(serve, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        with gantrymq.sync.connect(nameserver, access_key=ROOT.access_key, secret_key=ROOT.secret_key) as client:
            for topic in ("orders", "secrets"):
                client.admin.create_topic(topic, 1)
        yield Guarded(nameserver, broker, home / "auth" / "users.json")


def test_mqadmin_manages_users_and_policies_and_rocketmqs_client_is_limited_by_them(
    guarded: Guarded, mqadmin5: KeyedMqAdmin
) -> None:
    at, through = ("-n", guarded.nameserver, "-b", guarded.broker), ("-n", guarded.nameserver)
    assert "success" in mqadmin5(ROOT, "createUser", *at, "-u", "alice", "-p", "alice-password", "-t", "Normal")
    listed = mqadmin5(ROOT, "listUser", *at)
    assert "alice" in listed
    assert "Super" in listed
    assert "inner" in listed
    assert "-password" not in listed
    refused = mqadmin5(ALICE, "sendMessage", *through, "-t", "orders", "-p", "x")
    assert "User:alice has no permission to access Topic:orders" in refused
    for resource, action in (("Topic:orders", "Pub,Sub"), ("Group:billing", "Sub")):
        assert "success" in mqadmin5(
            ROOT, "createAcl", *at, "-s", "User:alice", "-r", resource, "-a", action, "-d", "Allow"
        )
    shown = mqadmin5(ROOT, "listAcl", *at, "-s", "alice")
    assert "Topic:orders" in shown
    assert "Group:billing" in shown
    assert "SEND_OK" in mqadmin5(ALICE, "sendMessage", *through, "-t", "orders", "-p", "by-rocketmq-5", "-k", "key")
    got = mqadmin5(ALICE, "consumeMessage", *through, "-t", "orders", "-c", "1", "-g", "billing")
    assert "by-rocketmq-5" in got
    refused = mqadmin5(ALICE, "sendMessage", *through, "-t", "secrets", "-p", "x")
    assert "User:alice has no permission to access Topic:secrets" in refused
    assert "check signature failed" in mqadmin5(
        Credentials("alice", "wrong-password"), "sendMessage", *through, "-t", "orders", "-p", "x"
    )


def test_mqadmin_changes_and_deletes_users_and_policies(guarded: Guarded, mqadmin5: KeyedMqAdmin) -> None:
    at, through = ("-n", guarded.nameserver, "-b", guarded.broker), ("-n", guarded.nameserver)
    assert "success" in mqadmin5(ROOT, "createUser", *at, "-u", "bob", "-p", "bob-password")
    bob = Credentials("bob", "new-password")
    assert "success" in mqadmin5(ROOT, "createAcl", *at, "-s", "User:bob", "-r", "Topic:*", "-a", "Pub", "-d", "Allow")
    assert "success" in mqadmin5(ROOT, "updateUser", *at, "-u", "bob", "-p", "new-password")
    assert "SEND_OK" in mqadmin5(bob, "sendMessage", *through, "-t", "orders", "-p", "x")
    assert "success" in mqadmin5(ROOT, "updateAcl", *at, "-s", "User:bob", "-r", "Topic:*", "-a", "Pub", "-d", "Deny")
    assert "the decision is deny" in mqadmin5(bob, "sendMessage", *through, "-t", "orders", "-p", "x")
    assert "bob" in mqadmin5(ROOT, "getUser", *at, "-u", "bob")
    assert "Deny" in mqadmin5(ROOT, "getAcl", *at, "-s", "User:bob")
    assert "success" in mqadmin5(ROOT, "deleteAcl", *at, "-s", "User:bob", "-r", "Topic:*")
    assert "success" in mqadmin5(ROOT, "deleteUser", *at, "-u", "bob")
    assert "bob" not in json.loads(guarded.users.read_text())["users"]
    refused = mqadmin5(Credentials("stranger", "any-password"), "deleteUser", *at, "-u", "root")
    assert "User:stranger is not found" in refused
    assert "root" in json.loads(guarded.users.read_text())["users"]


@pytest.mark.needs_variable(SOURCE)
def test_the_dashboard_of_rocketmq_manages_users_and_policies(guarded: Guarded, java5: Java, homes: Homes) -> None:
    try:
        jar = find_jar()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    here = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    user = {"username": "carol", "password": "carol-password", "userType": "Normal"}
    entry = {"resource": ["Topic:orders"], "actions": ["Pub"], "sourceIps": ["192.168.0.0/16"], "decision": "Allow"}
    keys = {"rocketmq.config.accessKey": ROOT.access_key, "rocketmq.config.secretKey": ROOT.secret_key}
    with run_dashboard(jar, java5.java, homes("dashboard"), guarded.nameserver, **keys) as dashboard:

        def do(method: str, path: str, **values: Any) -> Any:
            found = dashboard.delete(path, **values) if method == "DELETE" else dashboard.post(path, values)
            assert found.status == 0, found.error

        def users() -> dict[str, tuple[str, str]]:
            rows = dashboard.get("/acl/users.query", **here).data
            return {row["username"]: (row["userType"], row["userStatus"]) for row in rows}

        def policies() -> list[tuple[str, str, str]]:
            rows = dashboard.get("/acl/acls.query", **here).data
            entries = [
                (row["subject"], each) for row in rows for policy in row["policies"] for each in policy["entries"]
            ]
            return [
                (subject, str(each["resource"]), each["decision"]) for subject, each in entries if "carol" in subject
            ]

        assert users()["root"] == ("Super", "enable")
        do("POST", "/acl/createUser.do", **here, userInfo=user | {"userStatus": "enable"})
        assert users()["carol"] == ("Normal", "enable")
        do("POST", "/acl/updateUser.do", **here, userInfo=user | {"userStatus": "disable"})
        assert users()["carol"] == ("Normal", "disable")
        policy = {"policyType": "Custom", "entries": [entry]}
        do("POST", "/acl/createAcl.do", **here, subject="User:carol", policies=[policy])
        assert policies() == [("User:carol", "Topic:orders", "Allow")]
        policy["entries"] = [entry | {"decision": "Deny"}]
        do("POST", "/acl/updateAcl.do", **here, subject="User:carol", policies=[policy])
        assert policies() == [("User:carol", "Topic:orders", "Deny")]
        do("DELETE", "/acl/deleteAcl.do", **here, subject="User:carol", resource="Topic:orders")
        assert policies() == []
        do("DELETE", "/acl/deleteUser.do", **here, username="carol")
        assert "carol" not in users()
