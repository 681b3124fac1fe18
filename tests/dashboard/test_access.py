"""The access checks before a request reaches the API, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")

from starlette.datastructures import URL
from starlette.requests import Request

from gantrymq.dashboard.access import Access

NAMES = ("mq.example.com",)


class MisledRequest(Request):
    """A request whose URL a crafted ``Host`` has changed: Starlette before 1.0.1 parses the path out of both."""

    @property
    def url(self) -> URL:
        return URL("http://localhost/x?/api/v1/topics/orders")


def request_of(host: str, path: str = "/", method: str = "GET", kind: type[Request] = Request) -> Request:
    """A request as a server hands it to an ASGI application, with the header of changes."""
    headers = [(b"host", host.encode("latin-1")), (b"x-gantrymq-change", b"1")]
    scope: dict[str, Any] = {
        "type": "http", "method": method, "scheme": "http", "path": path, "query_string": b"", "headers": headers,
        "server": ("127.0.0.1", 8559),
    }  # fmt: skip
    return kind(scope)


def refusal_of(access: Access, request: Request) -> tuple[int, str] | None:
    """Status and code of the refusal, or None."""
    found = access.refusal(request)
    return None if found is None else (found.status_code, json.loads(bytes(found.body))["error"]["code"])


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_token_is_required_by_the_path_that_is_routed_and_not_by_the_url(method: str) -> None:
    access = Access({"looks-only-0123456789": "viewer"})
    assert refusal_of(access, request_of("localhost", "/api/v1/topics/orders", method, MisledRequest)) == (401, "token")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:1/x?", "localhost:1/x?", "localhost:1#", "localhost:1\\x", "localhost:1@attacker.example",
        "localhost:pw@attacker.example", "[::1]/x?", "[::1]attacker.example", "[::1]:1/x?", "[fe80::1%a?b]",
        "[fe80::1%a#b]", "[fe80::1%a@b]", "localhost:1 x", "localhost:one", "mq.example.com:443/x", "[127.0.0.1",
        "::1", "[localhost", "localhost]", "",
    ],
)  # fmt: skip
def test_a_host_that_is_more_than_a_name_and_a_port_is_refused(host: str) -> None:
    access = Access({"looks-only-0123456789": "viewer"}, hosts=NAMES)
    assert refusal_of(access, request_of(host)) == (421, "host")
    assert refusal_of(access, request_of(host, "/api/v1/topics/orders", "DELETE")) == (421, "host")


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LocalHost:8559", "localhost:", "127.0.0.1", "10.0.0.5:8559", "[::1]", "[::1]:8559",
        "[fe80::1%eth0]:8559", "MQ.example.com", "mq.example.com:443",
    ],
)  # fmt: skip
def test_an_address_or_a_configured_name_is_an_own_name(host: str) -> None:
    assert refusal_of(Access(hosts=NAMES), request_of(host)) is None
