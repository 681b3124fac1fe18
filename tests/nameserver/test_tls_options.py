"""The options for TLS of ``gantrymq nameserver``."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from gantrymq.cli.serve import nameserver
from gantrymq.remoting.tls import client_context
from support.authority import Authority
from support.certificates import FOLDER
from support.processes import free_ports, gantrymq_child

HANDSHAKES = "gantrymq_nameserver_tls_handshakes_total{"


def subject(address: str, *arguments: str) -> str:
    """The subject of the certificate that ``openssl s_client`` gets."""
    command = ["openssl", "s_client", "-connect", address, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    return next(line for line in done.stdout.splitlines() if line.startswith("subject")).replace(" = ", "=")


def test_the_command_serves_a_certificate_for_each_name_that_clients_ask_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    names = ("first.example.org", "second.example.org")
    files = [f"--tls-name={name}={authority.issue(name)}" for name in names]
    (port,) = free_ports()
    address = f"127.0.0.1:{port}"
    arguments = ["nameserver", "--listen", address, "--tls-certificate", str(FOLDER / "server.pem"), *files]
    with gantrymq_child(arguments, tmp_path / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        for name in names:
            assert f"CN={name}" in subject(address, "-servername", name)
        for others in (("-servername", "third.example.org"), ("-noservername",)):
            assert "example.org" not in subject(address, *others)


def test_the_command_in_test_mode_makes_its_certificate_and_warns(tmp_path: Path) -> None:
    address, pages = (f"127.0.0.1:{port}" for port in free_ports(2))
    arguments = ["nameserver", "--listen", address, "--tls-test-mode", "--metrics", pages]
    with gantrymq_child(arguments, tmp_path / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        assert "CN=gantrymq-test-mode" in subject(address)
        for tls, code in (("unverified", 0), ("1", 1)):
            environ = {"GANTRYMQ_TLS": tls, "GANTRYMQ_NAMESERVER": address}
            with gantrymq_child(["topic", "list"], tmp_path / f"list-{tls}", env=environ) as command:
                assert command.wait(30) == code, tls
        text = urllib.request.urlopen(f"https://{pages}/metrics", context=client_context(verify=False), timeout=10)
        handshakes = {line.split('result="')[1].partition('"')[0]: float(line.split()[-1]) for line in
                      text.read().decode().splitlines() if line.startswith(HANDSHAKES)}  # fmt: skip
        assert (handshakes["ok"] >= 1, handshakes["failed"] + handshakes["unfinished"]) == (True, 1)
        assert "its certificate is not accepted" in (tmp_path / "list-1").read_text()
    assert "tls_in_test_mode" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tls-test-mode", "--tls-certificate", "x.pem"], "leave out other options"),
        (["--tls-certificate", "x.pem", "--tls-name", "x.pem"], "--tls-name takes NAME=FILE"),
        (["--tls-name", "name=x.pem"], "need --tls-certificate"),
    ],
)
def test_options_of_tls_that_do_not_fit_together_are_named(arguments: list[str], reason: str) -> None:
    done = CliRunner().invoke(nameserver, ["--log-level", "error", *arguments])
    assert done.exit_code == 2
    assert reason in " ".join(done.output.replace("│", " ").split())
