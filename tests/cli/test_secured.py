"""Commands against a broker and a nameserver with TLS and accounts, for several users."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gantrymq
import gantrymq.sync
from gantrymq.remoting.address import parse_address
from support.accounts import ACCOUNTS, ACL, ADMIN, WORKER
from support.certificates import CA, FOLDER, client_context
from support.processes import free_ports, gantrymq_child
from support.user_commands import check_user_commands

pytestmark = [pytest.mark.once, pytest.mark.slow]

TLS = "gantrymq.plugins.tls:TlsPlugin"


@pytest.fixture(scope="module")
def metrics_address() -> str:
    (port,) = free_ports()
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[str]:
    """The address of a nameserver that takes TLS only, as its broker does, which knows the accounts."""
    home = tmp_path_factory.mktemp("secured")
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    (home / "tools.yml").write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    settings = {
        "plugin.acl.file": home / "plain_acl.yml", "plugin.acl.keys": home / "tools.yml",
        "plugin.acl.users": home / "users.json", "plugin.metrics.listen": metrics_address,
        "plugin.tls.certificate": FOLDER / "server.pem", "broker.listen": "127.0.0.1:0",
    }  # fmt: skip
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    arguments = ["serve", "--data", str(home / "data"), "--nameserver-listen", "127.0.0.1:0", "--enable", ACL,
                 "--enable", TLS, "--enable", "metrics", *sets]  # fmt: skip
    with gantrymq_child(arguments, home / "log") as child:
        ready = child.wait_line(lambda line: line.startswith("ready"))
        yield ready.partition("nameserver=")[2].strip()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_client_with_tls_and_keys_sends_and_receives(secured: str, backend: Any) -> None:
    keys = {"access_key": WORKER.access_key, "secret_key": WORKER.secret_key}
    admin = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}
    with gantrymq.sync.connect(secured, tls=client_context(), backend=backend, **admin) as client:
        client.admin.create_topic("T", 2)
    with gantrymq.sync.connect(secured, tls=client_context(), backend=backend, **keys) as client:
        with client.producer() as producer, client.consumer("T", "g", start="last") as messages:
            sent = {producer.send("T", b"%d" % number * 1000).message_id for number in range(20)}
            for message in messages:
                sent.discard(message.message_id)
                message.ack()
                if not sent:
                    break
            with pytest.raises(gantrymq.AccessDenied, match="No default permission for topic:other"):
                producer.send("other", b"x")


def test_a_client_without_tls_or_credentials_gets_a_clear_error(secured: str) -> None:
    with pytest.raises(gantrymq.ConnectError, match="connect with tls=True"):
        with gantrymq.sync.connect(secured) as client:
            client.admin.topics()
    with gantrymq.sync.connect(secured, tls=client_context()) as client, client.producer() as producer:
        with pytest.raises(gantrymq.AuthenticationFailed, match="check access_key and secret_key"):
            producer.send("T", b"x")


@pytest.mark.parametrize(
    ("variables", "advice"),
    [
        ({}, "if it speaks TLS only, set GANTRYMQ_TLS_CA (or GANTRYMQ_TLS=1), or name a context"),
        ({"GANTRYMQ_TLS": "1"}, "GANTRYMQ_TLS_CA, or --tls-ca of the context, must be a file with the certificate of"),
        ({"GANTRYMQ_TLS_CA": str(CA)}, "check GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY, or the keys of the context"),
    ],
)
def test_errors_of_commands_name_what_a_command_reads(
    secured: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], advice: str
) -> None:
    for name, value in {"GANTRYMQ_ACCESS_KEY": "guess", "GANTRYMQ_SECRET_KEY": "guessed", **variables}.items():
        monkeypatch.setenv(name, value)
    done = cli("topic", "create", "orders", "--nameserver", secured)
    assert (done.code, advice in done.err, "tls=" in done.err) == (1, True, False), done.err


def test_the_command_line_reads_tls_and_credentials_from_the_environment(secured: str) -> None:
    environ = {
        "GANTRYMQ_TLS_CA": str(CA), "GANTRYMQ_ACCESS_KEY": ADMIN.access_key, "GANTRYMQ_SECRET_KEY": ADMIN.secret_key,
    }  # fmt: skip

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "gantrymq.cli", *words, "--nameserver", secured]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = run("topic", "list").split()
    assert "TBW102" in names or "T" in names
    # these ask the brokers without a client
    (row,) = json.loads(run("cluster", "status", "--json"))
    assert row["role"] == "master"
    assert json.loads(run("delayed", "list", "--json")) == []


def test_a_context_has_the_keys_and_tls_settings_of_its_cluster(secured: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{ADMIN.secret_key}\n")
    environ = {
        "GANTRYMQ_CONFIG_HOME": str(tmp_path / "home"),
        "GANTRYMQ_ACCESS_KEY": "wrong",
        "GANTRYMQ_SECRET_KEY": "x",
    }

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "gantrymq.cli", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("context", "add", "prod", "--nameserver", secured, "--access-key", ADMIN.access_key, "--secret-key-file",
        str(tmp_path / "secret"), "--tls-ca", str(CA))  # fmt: skip
    (row,) = json.loads(run("cluster", "status", "--json", "--context", "prod"))
    assert row["role"] == "master"
    run("context", "use", "prod")
    assert run("topic", "list").split()


def test_accounts_and_users_change_over_tls_with_the_keys_of_a_context(
    secured: str, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANTRYMQ_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "secret").write_text(f"{ADMIN.secret_key}\n")

    def run(*words: str) -> str:
        done = cli(*words)
        assert done.code == 0, done.err
        return str(done.out)

    run("context", "add", "prod", "--nameserver", secured, "--access-key", ADMIN.access_key, "--secret-key-file",
        str(tmp_path / "secret"), "--tls-ca", str(CA))  # fmt: skip
    (row,) = json.loads(run("cluster", "status", "--json", "--context", "prod"))
    at = ("--broker", row["address"], "--context", "prod")
    run("acl", "user", "set", "invoices", "--topic-default", "DENY", *at)
    run("acl", "grant", "invoices", "--topic", "paid=PUB", *at)
    assert "allowed" in run("acl", "explain", "invoices", "send", "--topic", "paid", *at)
    assert "invoices" in run("acl", "user", "list", *at)
    run("acl", "user", "delete", "invoices", *at)
    assert "invoices" not in run("acl", "user", "list", *at)
    check_user_commands(lambda *words: run(*words, "--context", "prod"), row["address"], tmp_path)
    done = cli("acl", "user", "list", "--broker", row["address"])
    assert (done.code, "TLS" in done.err) == (1, True), done.err


def test_the_page_of_the_broker_has_the_metrics_of_the_nameserver_in_its_process(
    secured: str, metrics_address: str
) -> None:
    with socket.create_connection(parse_address(secured)) as plain:
        plain.sendall(b"plain text")
        assert plain.recv(100) == b""
    with urllib.request.urlopen(f"https://{metrics_address}/metrics", context=client_context(), timeout=10) as page:
        text = page.read().decode()
    handshakes = dict(re.findall(r'^gantrymq_nameserver_tls_handshakes_total{.*result="(\w+)"} (\S+)', text, re.M))
    assert float(handshakes["ok"]) >= 1
    assert float(handshakes["plain"]) >= 1
    assert re.search(r"^gantrymq_nameserver_brokers{.*} 1\.0$", text, re.M)


def test_no_output_shows_a_secret(secured: str, tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    command = [sys.executable, "-m", "gantrymq.cli", "print-config", "--enable", ACL, "--set",
               f"plugin.acl.file={tmp_path}/plain_acl.yml"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "plain_acl.yml" in done.stdout
    assert "admin-secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("produce",), ("produce", "--batch", "8"), ("consume",), ("e2e",)])
def test_a_benchmark_signs_and_encrypts_with_the_settings_of_its_context(
    secured: str, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GANTRYMQ_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "secret").write_text(f"{ADMIN.secret_key}\n")
    cli("context", "add", "prod", "--nameserver", secured, "--access-key", ADMIN.access_key, "--secret-key-file",
        str(tmp_path / "secret"), "--tls-ca", str(CA))  # fmt: skip
    cli("bench", "produce", "measured", "--queues", "2", "--count", "64", "--context", "prod")
    done = cli("bench", *arguments, "measured", "--count", "64", "--processes", "1", "--json", "--context", "prod")
    assert done.code == 0, done.err
    assert ADMIN.secret_key not in done.out + done.err
    for outcome in json.loads(done.out)["outcomes"]:
        assert (outcome["messages"] >= 64, outcome["failures"]) == (True, {})  # pulls in flight may bring more
