"""``doctor`` reports a healthy machine as such, and each fault of an unhealthy one."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli import checkup
from gantrymq.testing.harness import cluster_in_thread
from support.authority import Authority
from support.certificates import CA, FOLDER

Cli = Callable[..., Any]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def doctor(cli: Cli, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run ``doctor`` with ``--json``; its exit code, and its findings by check."""

    def call(*arguments: str) -> tuple[int, dict[str, Any]]:
        given = ["--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
        outcome = cli("doctor", *given, *arguments, "--json")
        assert "Traceback" not in outcome.err
        return outcome.code, {row["check"]: row for row in json.loads(outcome.out)}

    return call


def test_every_check_is_reported_and_leaves_no_files(doctor: Callable[..., Any], tmp_path: Path) -> None:
    code, found = doctor("--set", "store.commit_log_file_bytes=1 MiB")
    assert code == 0
    assert list(found) == [
        "system", "hot path", "plugins", "broker port", "nameserver port", "advertised address", "protected mode",
        "data folder", "disk",
        "fdatasync", "file system", "block device", "memory", "kernel settings",
        "open files", "clock", "java", "pyspark",
    ]  # fmt: skip
    assert {row["state"] for row in found.values()} <= {"ok", "warn"}
    assert all(row["advice"] for row in found.values() if row["state"] == "warn")
    assert "topics 0.1.0" in found["plugins"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_text_output_has_a_line_for_each_check_and_advice(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    outcome = cli("doctor", "--data", str(place))
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("fail  data folder"))
    assert lines[at].endswith("is not a folder")
    assert lines[at + 1].strip() == "-> choose another folder (--data)"


def test_a_port_used_by_another_program_fails_the_check(
    doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "WAIT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, found = doctor("--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert code == 1
    assert found["broker port"]["state"] == "fail"
    assert "stop it, or choose another address" in found["broker port"]["advice"]


def test_a_port_used_by_a_broker_is_a_warning(tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path / "store") as cluster:
        found = [checkup.port("broker", cluster.address), checkup.port("nameserver", cluster.nameserver)]
    assert [finding.state for finding in found] == ["warn", "warn"]
    assert "speaks RocketMQ's protocol" in found[0].found


@pytest.mark.parametrize(
    ("advertise", "state", "reported"),
    [
        ("127.0.0.1:10911", "ok", "only clients on this machine"),
        ("192.0.2.7:10911", "warn", "192.0.2.7 is not an address of this machine"),
        ("no-such-host.invalid:10911", "fail", "cannot be resolved"),
    ],
)
def test_the_advertised_address_is_checked_by_a_connection(
    doctor: Callable[..., Any], advertise: str, state: str, reported: str
) -> None:
    _, found = doctor("--set", f"broker.advertise={advertise}")
    assert found["advertised address"]["state"] == state
    assert reported in found["advertised address"]["found"]


def test_a_wildcard_is_resolved_by_the_broker(doctor: Callable[..., Any]) -> None:
    _, found = doctor("--listen", "0.0.0.0:0")
    assert found["advertised address"]["state"] == "ok"


@pytest.mark.parametrize(
    ("flags", "state", "reported"),
    [
        (["--listen", "127.0.0.1:0"], "ok", "only this machine"),
        (["--listen", "0.0.0.0:0"], "fail", "refuses to start"),
        (["--listen", "0.0.0.0:0", "--insecure"], "warn", "has full access"),
        (["--listen", "0.0.0.0:0", "--enable", "acl"], "ok", "0.0.0.0: acl controls access"),
        (["--listen", "0.0.0.0:0", "--enable", "acl", "--insecure"], "ok", "0.0.0.0: acl controls access"),
    ],
)
def test_listening_beyond_loopback_needs_access_control_or_insecure(
    doctor: Callable[..., Any], flags: list[str], state: str, reported: str
) -> None:
    _, found = doctor(*flags)
    assert found["protected mode"]["state"] == state
    assert reported in found["protected mode"]["found"]


def deny(monkeypatch: pytest.MonkeyPatch, place: Path, right: int) -> None:
    """Let this user lack one right to a file or folder, also if the user is root."""
    allowed = os.access
    monkeypatch.setattr(
        checkup.os, "access", lambda path, mode: not (Path(path) == place and mode & right) and allowed(path, mode)
    )


@pytest.mark.parametrize("name", [".", "commitlog", "consumequeue/T/0"])
def test_a_folder_of_the_store_that_belongs_to_another_user_fails_the_check(
    doctor: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = tmp_path / "data" / name
    place.mkdir(parents=True)
    deny(monkeypatch, place, os.X_OK)
    code, found = doctor()
    assert (code, found["data folder"]["state"]) == (1, "fail")
    assert found["data folder"]["found"] == f"{place} cannot be read and written by this user"
    assert found["data folder"]["advice"].startswith("run this as the broker's user")


@pytest.mark.parametrize(
    ("name", "right", "state"),
    [
        ("commitlog/00000000000000000000", os.W_OK, "fail"),
        ("consumequeue/T/0/00000000000000000000", os.R_OK, "fail"),
        ("checkpoint", os.W_OK, "fail"),
        ("gantrymq.watermark", os.W_OK, "fail"),
        ("gantrymq.deleted", os.W_OK, "fail"),
        ("gantrymq.reserve", os.W_OK, "fail"),
        ("gantrymq.index", os.R_OK, "fail"),
        ("gantrymq.index", os.W_OK, "ok"),
        ("transaction/redolog/00000000000000000000", os.W_OK, "fail"),
        ("config/topics.json", os.R_OK, "fail"),
        ("config/topics.json", os.W_OK, "ok"),
        ("notes.txt", os.R_OK, "ok"),
    ],
)
def test_a_file_that_the_broker_cannot_use_fails_the_check_of_the_folder(
    doctor: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, right: int, state: str
) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    deny(monkeypatch, path, right)
    _, found = doctor()
    assert (found["data folder"]["state"], str(path) in found["data folder"]["found"]) == (state, state == "fail")


@pytest.mark.parametrize("name", ["broker-a-1", "broker-a-1/commitlog", "broker-a-1/config/topics.json"])
def test_a_store_of_a_unit_that_its_broker_cannot_use_fails_the_check_of_the_folder(
    doctor: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for number in range(2):
        (tmp_path / "data" / f"broker-a-{number}" / "commitlog").mkdir(parents=True)
    (tmp_path / "data" / "processes.json").write_text('{"processes": 2, "name": "broker-a"}')
    (tmp_path / "data" / "broker-a-1" / "config").mkdir()
    (tmp_path / "data" / "broker-a-1" / "config" / "topics.json").write_text("")
    _, found = doctor()
    assert found["data folder"]["state"] == "ok"
    path = tmp_path / "data" / name
    deny(monkeypatch, path, os.R_OK)
    _, found = doctor()
    assert (found["data folder"]["state"], str(path) in found["data folder"]["found"]) == ("fail", True)


@pytest.mark.parametrize(
    ("free", "state"), [(50_000, "ok"), (20_000, "warn"), (5_000, "warn"), (150, "warn"), (99, "fail")]
)
def test_a_disk_without_space_for_a_log_file_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str
) -> None:
    total = 100_000
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda _: Usage(total, total - free, free))
    assert checkup.disk(str(tmp_path / "not" / "made"), 100).state == state


@pytest.mark.parametrize(("microseconds", "state"), [(1, "warn"), (200, "ok"), (20_000, "warn")])
def test_implausible_fsync_times_are_warnings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, microseconds: int, state: str
) -> None:
    monkeypatch.setattr(checkup, "_sync_times", lambda _: iter([float(microseconds)] * 3))
    assert checkup.fdatasync(str(tmp_path)).state == state


@pytest.mark.parametrize(
    ("code", "disk", "advice"),
    [
        (errno.EIO, True, "choose another folder"),
        (errno.EACCES, False, "grant the permission"),
        (errno.EPERM, False, "grant the permission"),
        (errno.EROFS, False, "choose another folder"),
        (errno.ENOSPC, False, "free disk space"),
        (errno.EBADF, False, "choose another folder"),
    ],
)
def test_an_error_of_a_flush_is_a_fault_of_the_disk_only_if_the_disk_reports_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, disk: bool, advice: str
) -> None:
    def fail(descriptor: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(checkup.os, "posix_fallocate", fail)
    found = checkup.fdatasync(str(tmp_path))
    assert (found.state, found.found) == ("fail", f"{tmp_path}: {os.strerror(code)}")
    assert ("check the disk" in found.advice, advice in found.advice) == (disk, True)


def test_few_descriptors_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 8192))
    assert checkup.open_files(4_081).state == "warn"
    assert checkup.open_files(4_080).state == "ok", "half of them, without 32 of the broker itself"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert checkup.open_files(1_000_000).state == "ok"


def test_a_clock_slightly_behind_the_store_is_a_warning_and_far_behind_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").write_text("")
    assert checkup.clock(str(tmp_path)).state == "ok"
    ahead = time.time() + 3600
    os.utime(tmp_path / "checkpoint", (ahead, ahead))
    found = checkup.clock(str(tmp_path))
    assert found.state == "warn"
    assert "behind the store's newest file" in found.found
    monkeypatch.setattr(checkup.time, "time", lambda: 0.0)
    assert checkup.clock(str(tmp_path)).state == "fail"


def test_the_clock_is_compared_with_the_stores_of_all_brokers_of_a_unit(tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text('{"processes": 2, "name": "broker-a"}')
    path = tmp_path / "broker-a-1" / "commitlog" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert checkup.clock(str(tmp_path)).state == "ok"
    ahead = time.time() + 3600
    os.utime(path, (ahead, ahead))
    assert checkup.clock(str(tmp_path)).state == "warn"


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ("no such thing", None),
    ],
)
def test_the_version_of_java_is_read(line: str, number: int | None) -> None:
    assert checkup.java_version(line) == number


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("echo 'openjdk version \"21.0.1\"' >&2", "ok"),
        ("echo 'java version \"1.8.0_392\"' >&2", "warn"),
        ("exit 1", "warn"),
    ],
)
def test_a_java_that_is_too_old_or_broken_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, state: str
) -> None:
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert checkup.java().state == state


def test_a_machine_without_java_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkup.java().state == "warn"


def test_an_invalid_configuration_is_a_usage_error(cli: Cli) -> None:
    outcome = cli("doctor", "--set", "broker.liste=1")
    assert (outcome.code, outcome.out) == (2, "")
    assert cli("doctor", "--nameserver-listen", "x").code == 2


ACCOUNTS = "accounts: [{accessKey: the-admin, secretKey: admin-secret, admin: true}]"
ROOT = '"root": {"username": "root", "password": "root-password", "userType": "Super"}'
ALICE = '"alice": {"username": "alice", "password": "short"}'
MAY_GRANT = """"User:alice": {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [
    {"resource": "Cluster:*", "actions": ["All"], "decision": "Allow"}]}]}"""


@pytest.mark.parametrize(
    ("accounts", "users", "mode", "state", "reported"),
    [
        (ACCOUNTS, None, 0o600, "ok", "1 accounts, 0 users"),
        (ACCOUNTS, f'{{"users": {{{ROOT}}}}}', 0o600, "ok", "1 accounts, 1 users"),
        (ACCOUNTS, None, 0o644, "warn", "other users can read or change"),
        (ACCOUNTS.replace("true", "false"), None, 0o600, "warn", "no account is an admin"),
        ("accounts: [{accessKey: the-admin}]", None, 0o600, "fail", "plugin.acl.file"),
        (None, None, 0o600, "fail", "cannot be read"),
        (None, f'{{"users": {{{ALICE}}}}}', 0o600, "fail", "has no super user"),
        (None, "{", 0o600, "fail", "it is not JSON"),
        (None, f'{{"users": {{{ROOT}, {ALICE}}}}}', 0o600, "warn", "the password of the user 'alice' has fewer"),
        (None, f'{{"users": {{{ROOT}, {ALICE}}}, "acls": {{{MAY_GRANT}}}}}', 0o600, "warn", "may change policies"),
    ],
)
def test_files_of_accounts_and_users_are_checked_without_showing_secrets(
    doctor: Callable[..., Any],
    tmp_path: Path,
    accounts: str | None,
    users: str | None,
    mode: int,
    state: str,
    reported: str,
) -> None:
    arguments = ["--enable", "acl", "--set", f"plugin.acl.file={tmp_path / 'plain_acl.yml'}"]
    for name, text in (("plain_acl.yml", accounts), ("users.json", users)):
        if text is not None:
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(mode)
    if users is not None:
        arguments += ["--set", f"plugin.acl.users={tmp_path / 'users.json'}"]
    code, found = doctor(*arguments)
    assert (found["access control"]["state"], code) == (state, int(state == "fail"))
    assert reported in found["access control"]["found"]
    for secret in ("admin-secret", "root-password", "short"):
        assert secret not in str(found["access control"])


def test_a_configuration_file_with_a_secret_that_others_can_read_is_named(
    doctor: Callable[..., Any], tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    first = '{"username": "root", "password": "root-password"}'
    conf.write_text(f"authenticationEnabled=true\nauthConfigPath={tmp_path}\ninitAuthenticationUser={first}\n")
    for mode, state in ((0o644, "warn"), (0o600, "ok")):
        conf.chmod(mode)
        _, found = doctor("--config", str(conf))
        assert found["access control"]["state"] == state, found["access control"]
        assert (f"other users can read or change {conf}" in found["access control"]["found"]) is (state == "warn")
        assert "root-password" not in str(found)


@pytest.mark.parametrize(
    ("certificate", "mode", "settings", "state", "reported"),
    [
        ("server.pem", 0o600, {}, "ok", "server.pem is valid for"),
        ("server.pem", 0o600, {"client_certificates": "required", "ca": str(CA)}, "ok", "is valid for"),
        ("server.pem", 0o644, {}, "warn", "other users can read or change"),
        ("server.pem", 0o600, {"mode": "permissive"}, "warn", "plain connections are served too"),
        ("server.pem", 0o600, {"mode": "disabled"}, "ok", "disabled"),
        ("expired.pem", 0o600, {}, "fail", "certificate has expired"),
        ("soon.pem", 0o600, {}, "warn", "is valid for 30 days"),
        ("missing.pem", 0o600, {}, "fail", "No such file"),
        ("", 0o600, {"test_mode": "true"}, "warn", "made by the server itself"),
    ],
)
def test_certificates_are_checked_as_clients_do(
    doctor: Callable[..., Any],
    tmp_path: Path,
    certificate: str,
    mode: int,
    settings: dict[str, str],
    state: str,
    reported: str,
) -> None:
    file = tmp_path / certificate
    if certificate == "soon.pem":
        Authority(tmp_path).issue("soon")
    elif (FOLDER / certificate).is_file():
        file.write_bytes((FOLDER / certificate).read_bytes())
    if file.is_file():
        file.chmod(mode)
    given = {"certificate": str(file) if certificate else "", **settings}
    arguments = [word for name, value in given.items() for word in ("--set", f"plugin.tls.{name}={value}")]
    code, found = doctor("--enable", "tls", *arguments)
    assert (found["TLS"]["state"], code) == (state, int(state == "fail"))
    assert reported in found["TLS"]["found"]
