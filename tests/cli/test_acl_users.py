"""``gantrymq acl users``: users and policies of RocketMQ 5 are changed at a running broker, which then decides so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.accounts import ACL
from support.user_commands import check_password_from_file, check_user_commands

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("users")
    (home / "tools.yml").write_text("accessKey: root\nsecretKey: root-password\n")
    settings = {
        "plugin.acl.file": str(home / "none.yml"),
        "plugin.acl.users": str(home / "users.json"),
        "plugin.acl.keys": str(home / "tools.yml"),
    }
    with cluster_in_thread(home / "store", settings=settings, enable=[ACL]) as cluster:
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


def test_a_new_password_is_printed_if_a_later_broker_fails(run: Callable[..., str], cli: Cli, cluster: Cluster) -> None:
    run("acl", "users", "list", "--broker", cluster.address)  # it sets the keys of the environment
    done = cli("acl", "users", "set", "carol", "--broker", cluster.address, "--broker", "127.0.0.1:1")
    assert (done.code, "password: " in done.out) == (1, True), (done.out, done.err)


def test_a_password_from_a_file_signs_and_is_kept_when_something_else_changes(
    run: Callable[..., str], cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_password_from_file(run, cluster.address, tmp_path, monkeypatch)
