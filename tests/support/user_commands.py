"""``gantrymq acl users`` at a broker, the same calls for GantryMQ's and RocketMQ 5.3.3's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., str]


def check_user_commands(run: Run, broker: str, folder: Path) -> None:
    """Create, change, list and delete a user and its policies.

    ``run`` runs ``gantrymq`` with the keys of a super user and returns stdout; the command must succeed.
    """
    at = ("--broker", broker)

    def listed(*command: str) -> list[Any]:
        rows = json.loads(run("acl", "users", *command, *at, "--json"))
        return [row for row in rows if row["user"] == "newcomer"]

    made = json.loads(run("acl", "users", "set", "newcomer", *at, "--json"))
    assert [(row["broker"], row["user"], row["created"], len(row["password"])) for row in made] == [
        (broker, "newcomer", True, 32)
    ]
    assert listed("list") == [{"user": "newcomer", "type": "Normal", "status": "enable"}]
    password = folder / "password"
    password.write_text("from-a-file\n")
    run("acl", "users", "set", "newcomer", "--password-file", str(password), "--status", "disable", *at)
    assert listed("list") == [{"user": "newcomer", "type": "Normal", "status": "disable"}]
    run("acl", "users", "set", "newcomer", "--status", "enable", *at)

    run("acl", "users", "grant", "newcomer", "Topic:orders", "Topic:paid-*", "--action", "Pub", "--action", "Sub", *at)
    run("acl", "users", "grant", "newcomer", "Group:billing", "--action", "Sub", "--deny", "--address", "10.0.0.1", *at)
    row = {"user": "newcomer", "policy": "Custom", "actions": ["Pub", "Sub"], "addresses": [], "decision": "Allow"}
    orders, paid = row | {"resource": "Topic:orders"}, row | {"resource": "Topic:paid-*"}
    denied = {"resource": "Group:billing", "actions": ["Sub"], "addresses": ["10.0.0.1"], "decision": "Deny"}
    assert listed("policies") == [row | denied, orders, paid]
    run("acl", "users", "grant", "newcomer", "Topic:orders", "--action", "Pub", *at)
    run("acl", "users", "revoke", "newcomer", "Topic:paid-*", *at)
    assert listed("policies", "--user", "newcomer") == [row | denied, orders | {"actions": ["Pub"]}]
    default = ("--policy", "Default")
    run("acl", "users", "grant", "newcomer", "Topic:orders", "Topic:*", "--action", "Get", *default, *at)
    orders |= {"actions": ["Pub"]}
    last = [row | {"policy": "Default", "resource": each, "actions": ["Get"]} for each in ("Topic:*", "Topic:orders")]
    assert listed("policies") == [row | denied, orders, *last]
    run("acl", "users", "revoke", "newcomer", "Topic:orders", *default, *at)
    assert listed("policies") == [row | denied, orders, last[0]]
    run("acl", "users", "revoke", "newcomer", "--all", *at)
    assert listed("policies") == []

    run("acl", "users", "delete", "newcomer", *at)
    assert listed("list") == []


def check_password_from_file(run: Run, broker: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user signs with the password of a file, also after its type has changed. The environment then has its keys."""
    at = ("--broker", broker)
    (folder / "password").write_text("of-the-file\n")
    run("acl", "users", "set", "carol", "--password-file", str(folder / "password"), *at)
    run("acl", "users", "set", "carol", "--type", "Super", *at)
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "carol")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "of-the-file")
    assert "carol" in run("acl", "users", "list", *at)
