"""Commands of ``gantrymq export`` connect as other commands do: by contexts, and by the same variables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.cli.__main__ import run
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from support.certificates import CA, server_context

if TYPE_CHECKING:
    from conftest import FakeCluster

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

NOWHERE = "127.0.0.1:1"
STATUS = {
    "format": "parquet", "engine": "local", "broker": "broker-a", "to": "/out", "state": "waiting", "next_start": None,
    "pid": None, "progress": None, "last_run": None, "lag": {}, "failures": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's configuration, and no variable that names a cluster."""
    for variable in ("GANTRYMQ_NAMESERVER", "NAMESRV_ADDR", "GANTRYMQ_CONTEXT", "GANTRYMQ_ACCESS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GANTRYMQ_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def add_context(name: str, cluster: FakeCluster, tmp_path: Path, *options: str) -> None:
    (tmp_path / "secret").write_text("its-secret\n")
    keys = ["--access-key", f"of-{name}", "--secret-key-file", str(tmp_path / "secret")]
    assert run(["context", "add", name, "--nameserver", cluster.address, *keys, *options]) == 0


def accounts(cluster: FakeCluster) -> set[str | None]:
    """The accounts that the requests since the last call were signed by."""
    found = {(request.ext or {}).get("AccessKey") for request in cluster.requests}
    cluster.requests.clear()
    return found


def export(folder: Path, *options: str) -> int:
    return run(["export", "--topic", "orders", "--to", str(folder), "--engine", "local", *options])


@pytest.mark.parametrize(
    ("variables", "options", "account"),
    [
        ({}, (), "of-current"),
        ({}, ("--context", "prod"), "of-prod"),
        ({"GANTRYMQ_CONTEXT": "prod"}, (), "of-prod"),
        ({"GANTRYMQ_NAMESERVER": NOWHERE, "GANTRYMQ_CONTEXT": "prod"}, (), "of-prod"),
        ({"GANTRYMQ_NAMESERVER": "{cluster}"}, (), "of-nobody"),
        ({"NAMESRV_ADDR": "{cluster}"}, (), "of-nobody"),
        ({"GANTRYMQ_NAMESERVER": NOWHERE}, ("--nameserver", "{cluster}"), "of-nobody"),
    ],
)
def test_an_export_uses_contexts_and_variables_as_other_commands(
    orders: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: tuple[str, ...],
    account: str,
) -> None:
    add_context("current", orders, tmp_path, "--use")
    add_context("prod", orders, tmp_path)
    keys = {"GANTRYMQ_ACCESS_KEY": "of-nobody", "GANTRYMQ_SECRET_KEY": "its-secret"}
    for name, value in (keys | variables).items():
        monkeypatch.setenv(name, value.format(cluster=orders.address))
    assert export(tmp_path / "out", *(option.format(cluster=orders.address) for option in options)) == 0
    assert accounts(orders) == {account}


@pytest.fixture
def directory(orders: FakeCluster) -> Iterator[str]:
    """A URL that answers with the addresses of the nameservers, of which the first does not answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{NOWHERE};{orders.address}\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("nameserver", [f"{NOWHERE},{{cluster}}", "http://{cluster}", "{directory}"])
def test_an_export_takes_nameservers_in_the_forms_of_other_commands(
    orders: FakeCluster, directory: str, tmp_path: Path, nameserver: str
) -> None:
    given = nameserver.format(cluster=orders.address, directory=directory)
    assert run(["context", "add", "prod", "--nameserver", given, "--use"]) == 0
    assert export(tmp_path / "out") == 0
    assert run(["export", "status", str(tmp_path / "out"), "--context", "prod"]) == 0


def test_the_status_of_a_folder_asks_brokers_only_if_a_nameserver_or_a_context_is_given(
    orders: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_context("prod", orders, tmp_path, "--use")
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", "of-nobody")
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", "its-secret")
    assert export(tmp_path / "out") == 0
    accounts(orders)
    status = ["export", "status", str(tmp_path / "out")]
    capsys.readouterr()
    assert run(status) == 0
    assert "lag" not in capsys.readouterr().out
    assert accounts(orders) == set()
    assert run([*status, "--context", "prod"]) == 0
    assert "lag 0" in capsys.readouterr().out
    assert accounts(orders) == {"of-prod"}
    assert run([*status, "--nameserver", orders.address]) == 0
    assert "lag 0" in capsys.readouterr().out
    assert accounts(orders) == {"of-nobody"}, "a nameserver on the command line is used without a context"
    assert run([*status, "--nameserver", orders.address, "--context", "prod"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["status", "run-now", "pause", "resume"])
@pytest.mark.parametrize("options", [(), ("--context", "prod")])
def test_commands_for_an_exporter_have_the_keys_of_the_context(
    orders: FakeCluster, tmp_path: Path, action: str, options: tuple[str, ...]
) -> None:
    def script(request: Command) -> Command | None:
        if request.code != RequestCode.CONTROL_EXPORTER:
            return None
        return request.answer(ResponseCode.SUCCESS, body=json.dumps(STATUS).encode())

    orders.script = script
    add_context("prod", orders, tmp_path)
    add_context("current", orders, tmp_path, "--use")
    assert run(["export", action, "--broker", orders.address, *options]) == 0
    assert accounts(orders) == {"of-prod" if options else "of-current"}


@pytest.fixture
def encrypted(orders: FakeCluster) -> FakeCluster:
    """The cluster with TLS."""
    orders._server.socket = server_context().wrap_socket(orders._server.socket, server_side=True)
    return orders


def test_an_export_has_the_tls_settings_of_other_commands(
    encrypted: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--nameserver", encrypted.address)
    monkeypatch.setenv("GANTRYMQ_TLS", "1")
    assert export(tmp_path / "out", *where) == 1
    assert "no nameserver answers" in capsys.readouterr().err
    monkeypatch.setenv("GANTRYMQ_TLS", "unverified")
    assert export(tmp_path / "out", *where) == 0
    assert run(["export", "status", str(tmp_path / "out"), *where]) == 0
    add_context("prod", encrypted, tmp_path, "--tls-ca", str(CA))
    assert export(tmp_path / "out", "--context", "prod") == 0
    monkeypatch.setenv("GANTRYMQ_TLS_CA", str(CA))
    assert export(tmp_path / "out", *where) == 2
    assert "GANTRYMQ_TLS=unverified verifies nothing" in capsys.readouterr().err


def test_a_command_without_a_cluster_needs_no_context(orders: FakeCluster, tmp_path: Path, home: Path) -> None:
    add_context("prod", orders, tmp_path, "--use")
    assert export(tmp_path / "out") == 0
    (home / "contexts" / "prod.toml").unlink()
    assert run(["export", "compact", str(tmp_path / "out")]) == 0
    assert export(tmp_path / "out") == 2


def test_options_before_a_subcommand_are_refused(
    orders: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_context("prod", orders, tmp_path)
    assert run(["export", "--context", "prod", "status", str(tmp_path)]) == 2
    assert "write --context after 'status'" in " ".join(capsys.readouterr().err.split())
