"""``gantrymq acl users`` changes users and policies of RocketMQ 5 at a running broker, which then applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.accounts import ACL
from support.user_commands import check_password_from_file, check_user_commands

Cli = Callable[..., Any]


def broker_with_users(home: Path) -> AbstractContextManager[Cluster]:
    (home / "tools.yml").write_text("accessKey: root\nsecretKey: root-password\n")
    settings = {
        "plugin.acl.file": str(home / "none.yml"),
        "plugin.acl.users": str(home / "users.json"),
        "plugin.acl.keys": str(home / "tools.yml"),
    }
    return cluster_in_thread(home / "store", settings=settings, enable=[ACL])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with broker_with_users(tmp_path_factory.mktemp("users")) as cluster:
        yield cluster


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "root-password")

    def call(*arguments: str) -> str:
        done = cli(*arguments)
        assert done.code == 0, done.err
        return str(done.out)

    return call


def test_users_and_policies_are_created_changed_listed_and_deleted(
    run: Callable[..., str], cluster: Cluster, tmp_path: Path
) -> None:
    check_user_commands(run, cluster.address, tmp_path)


def test_the_password_is_that_of_the_environment_and_grants_decide(
    run: Callable[..., str], cli: Cli, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--broker", cluster.address)
    monkeypatch.setenv("GANTRYMQ_NEW_SECRET_KEY", "of-the-environment")
    assert "of-the-environment" not in run("acl", "users", "set", "alice", *at)
    run("acl", "users", "grant", "alice", "Cluster:*", "--action", "Get", *at)
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "alice")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "of-the-environment")
    assert "alice" in run("acl", "users", "list", *at)
    done = cli("acl", "users", "delete", "alice", *at)
    assert (done.code, "User:alice has no permission" in done.err) == (1, True), done.err
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "another")
    assert "check signature failed" in cli("acl", "users", "list", *at).err


def test_a_new_password_is_printed_once_and_an_empty_file_or_no_resource_is_refused(
    run: Callable[..., str], cli: Cli, cluster: Cluster, tmp_path: Path
) -> None:
    at = ("--broker", cluster.address)
    assert "\npassword: " in run("acl", "users", "set", "bob", *at)
    assert "password: " not in run("acl", "users", "set", "bob", "--type", "Super", *at)
    (tmp_path / "empty").write_text("\n")
    done = cli("acl", "users", "set", "bob", "--password-file", str(tmp_path / "empty"), *at)
    assert (done.code, "has no password" in done.err) == (1, True)
    for arguments in (("bob",), ("bob", "Topic:a", "--all")):
        assert cli("acl", "users", "revoke", *arguments, *at).code == 2


def test_brokers_never_get_different_random_passwords_for_a_user(
    run: Callable[..., str], cli: Cli, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_with_users(tmp_path) as second:
        password = run("acl", "users", "set", "carol", "--broker", cluster.address).rpartition("password: ")[2]
        both = ("--broker", cluster.address, "--broker", second.address)
        done = cli("acl", "users", "set", "carol", *both)
        assert (done.code, done.out) == (1, "")
        assert f"user carol exists at {cluster.address} but not at {second.address}" in done.err
        assert "carol" not in run("acl", "users", "list", "--broker", second.address)
        monkeypatch.setenv("GANTRYMQ_NEW_SECRET_KEY", password.strip())
        run("acl", "users", "set", "carol", "--type", "Super", *both)
        monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "carol")
        monkeypatch.setenv("GANTRYMQ_SECRET_KEY", password.strip())
        assert "carol" in run("acl", "users", "list", "--broker", second.address)


def test_a_password_from_a_file_signs_and_is_kept_when_something_else_changes(
    run: Callable[..., str], cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_password_from_file(run, cluster.address, tmp_path, monkeypatch)


def test_explain_asks_the_broker_about_its_users_as_it_decides(
    run: Callable[..., str], cli: Cli, cluster: Cluster
) -> None:
    at = ("--broker", cluster.address)
    run("acl", "users", "set", "dora", *at)
    run("acl", "users", "grant", "dora", "Topic:orders", "--action", "Pub", *at)
    run("acl", "users", "grant", "dora", "Topic:*", "--action", "Sub", "--address", "10.0.0.0/8", "--policy",
        "Default", *at)  # fmt: skip

    def explained(*arguments: str) -> tuple[int, str]:
        done = cli("acl", "explain", *arguments, *at)
        return done.code, done.out

    for arguments, code, text in (
        (("dora", "send", "--topic", "orders"), 0, "Topic:orders: needs Pub: a policy allows it"),
        (("dora", "send", "--topic", "other"), 1, "Topic:other: needs Pub: no matched policies"),
        (
            ("dora", "VIEW_MESSAGE_BY_ID", "--topic", "other", "--address", "10.1.2.3"),
            0,
            "Topic:other: needs Get or Sub",
        ),
        (
            ("dora", "VIEW_MESSAGE_BY_ID", "--topic", "other", "--address", "11.1.2.3"),
            1,
            "Topic:other: needs Get or Sub",
        ),
        (("dora", "GET_BROKER_CONFIG"), 1, "Cluster:DefaultCluster: needs Get or List: no matched policies"),
        (("root", "admin"), 0, "'root' is a super user"),
        (("dor", "send", "--topic", "orders"), 1, "no account has the access key 'dor', and no user has this name"),
    ):
        found = explained(*arguments)
        assert (found[0], text in found[1]) == (code, True), (arguments, found)
    run("acl", "users", "set", "dora", "--status", "disable", *at)
    assert "the user 'dora' is disabled" in explained("dora", "send", "--topic", "orders")[1]


def test_explain_knows_a_broker_whose_users_need_no_policies_and_one_without_access_control(
    run: Callable[..., str], cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "tools.yml").write_text("accessKey: root\nsecretKey: root-password\n")
    settings = {
        "plugin.acl.file": str(tmp_path / "none.yml"), "plugin.acl.users": str(tmp_path / "users.json"),
        "plugin.acl.keys": str(tmp_path / "tools.yml"), "plugin.acl.authorization": "false",
    }  # fmt: skip
    with cluster_in_thread(tmp_path / "store", settings=settings, enable=[ACL]) as cluster:
        run("acl", "users", "set", "emma", "--broker", cluster.address)
        assert "need no policies" in run("acl", "explain", "emma", "admin", "--broker", cluster.address)
    with cluster_in_thread(tmp_path / "open") as cluster:
        done = cli("acl", "explain", "emma", "admin", "--broker", cluster.address)
        assert (done.code, "the plugin 'acl' is not enabled there" in done.err) == (1, True), done.err


def test_explain_compares_the_password_of_a_file_of_users(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.json").write_text('{"users": {"fred": {"password": "of-fred", "userType": "Super"}}}')
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "fred")
    for password, code in (("of-fred", 0), ("another", 1)):
        monkeypatch.setenv("GANTRYMQ_SECRET_KEY", password)
        done = cli("acl", "explain", "fred", "admin", "--users", str(tmp_path / "users.json"))
        assert (done.code, "the signature would be wrong" in done.out) == (code, bool(code))
