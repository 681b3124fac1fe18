"""The dashboard's port with a certificate: https only, and a changed certificate without a restart."""

from __future__ import annotations

import shutil
import ssl
import time
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import pytest

from gantrymq.dashboard import server
from gantrymq.kernel.errors import StartError
from support.authority import Authority
from support.certificates import FOLDER, client_context
from support.dashboard import Site, started_site


def session(site: Site, context: ssl.SSLContext) -> tuple[int, str]:
    """Status of the answer about the session, and the cookie that a wrong token does not get."""
    host, _, port = site.address.rpartition(":")
    connection = HTTPSConnection(host, int(port), timeout=20, context=context)
    try:
        connection.request("POST", "/api/v1/session", b'{"token": "' + b"t" * 16 + b'"}',
                           {"X-GantryMQ-Change": "1", "Origin": f"https://{site.address}"})  # fmt: skip
        response = connection.getresponse()
        response.read()
        return response.status, response.headers.get("set-cookie", "")
    finally:
        connection.close()


def test_the_dashboard_serves_https_and_uses_a_changed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RELOAD_S", 0.1)
    authority = Authority(tmp_path)
    current, tokens = tmp_path / "current.pem", tmp_path / "tokens"
    shutil.copy(FOLDER / "server.pem", current)
    tokens.write_text(f"admin {'t' * 16}\n")
    with started_site(tmp_path / "data", dashboard__certificate=current, dashboard__tokens=tokens) as site:
        status, cookie = session(site, client_context())
        assert (status, "Secure" in cookie) == (200, True)
        with pytest.raises((HTTPException, OSError)):
            site.request("GET", "/api/v1/session")
        current.write_bytes(b"no certificate")
        time.sleep(0.3)
        assert session(site, client_context())[0] == 200
        shutil.copy(authority.issue("renewed"), current)
        end = time.monotonic() + 20
        while True:
            try:
                assert session(site, client_context(authority.file))[0] == 200
                break
            except ssl.SSLError:
                assert time.monotonic() < end
                time.sleep(0.05)


def test_a_certificate_that_cannot_be_used_refuses_the_start(tmp_path: Path) -> None:
    refused = pytest.RaisesExc(StartError, match="/nowhere.pem: No such file")
    with (
        pytest.RaisesGroup(refused, flatten_subgroups=True),
        started_site(tmp_path, dashboard__certificate="/nowhere.pem"),
    ):
        pass
