"""Requests to a dashboard under test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import fastjsonschema

from gantrymq.dashboard.api import PREFIX, openapi_document
from gantrymq.dashboard.schemas import ERROR
from gantrymq.sync import connect
from gantrymq.testing.harness import Cluster, cluster_in_thread

PLUGIN = "gantrymq.plugins.dashboard:DashboardPlugin"


def check_answer(method: str, path: str, status: int, answer: object) -> None:
    """AssertionError unless the answer is what the OpenAPI document says about this request."""
    if (path, status) == (f"{PREFIX}/openapi.json", 200):
        return
    methods = next((paths for pattern, paths in _documented() if pattern.fullmatch(path.partition("?")[0])), {})
    responses = methods.get(method.lower())
    check = responses["200" if status == 200 else "default"] if responses else _error_check()
    try:
        check(answer)
    except fastjsonschema.JsonSchemaException as error:
        raise AssertionError(f"{method} {path}: {error}: {answer}") from None


@cache
def _documented() -> list[tuple[re.Pattern[str], dict[str, dict[str, Any]]]]:
    """A pattern of each path, those without parameters first, and the checks of its answers by method and status."""
    document = openapi_document()
    found = []
    for path, methods in sorted(document["paths"].items(), key=lambda each: each[0].count("{")):
        checks = {
            method: {status: _check(document, response) for status, response in operation["responses"].items()}
            for method, operation in methods.items()
        }
        found.append((re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), checks))
    return found


def _check(document: dict[str, Any], response: dict[str, Any]) -> Callable[[object], object]:
    ((kind, content),) = response["content"].items()
    return _compiled(
        json.dumps(content["schema"] if kind == "application/json" else {}), json.dumps(document["components"])
    )


@cache
def _compiled(schema: str, components: str) -> Callable[[object], object]:
    return fastjsonschema.compile({**json.loads(schema), "components": json.loads(components)})


def _error_check() -> Callable[[object], object]:
    return fastjsonschema.compile(ERROR)


class Site:
    """The dashboard at ``address``; ``client`` sends to the same cluster."""

    def __init__(self, address: str, cluster: Cluster, client: Any = None) -> None:
        self.address = address
        self.cluster = cluster
        self.client = client

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, *, plain: bool = False
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (decoded, or as bytes) and headers; ``plain``: without the header of changes."""
        host, _, port = self.address.rpartition(":")
        connection = HTTPConnection(host, int(port), timeout=60)
        try:
            given = {} if plain or method == "GET" else {"X-GantryMQ-Change": "1"}
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {**given, **(headers or {})})
            response = connection.getresponse()
            found = response.read()
            fields = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        if "json" not in fields["content-type"]:
            return response.status, found, fields
        answer = json.loads(found)
        check_answer(method, path, response.status, answer)
        return response.status, answer, fields

    def get(self, path: str) -> Any:
        """The body of the API's answer."""
        status, found, _ = self.request("GET", f"/api/v1{path}")
        assert status == 200, found
        return found

    def change(self, method: str, path: str, body: object = None) -> Any:
        """The body of the answer to a change."""
        status, found, _ = self.request(method, f"/api/v1{path}", body)
        assert status == 200, found
        return found


def address_of(cluster: Cluster) -> str:
    """The address at which the broker's plugin serves the dashboard."""
    return next(str(info.plugin.address) for info in cluster.broker.manager.plugins if info.name == "dashboard")


@contextmanager
def started_site(folder: Path, **more: object) -> Iterator[Site]:
    """A cluster whose broker serves the dashboard. ``more``: settings of plugins, ``transaction__check_max``."""
    settings = {"plugin.dashboard.listen": "127.0.0.1:0"}
    settings |= {f"plugin.{name.replace('__', '.')}": str(value) for name, value in more.items()}
    with cluster_in_thread(folder, settings=settings, enable=[PLUGIN]) as cluster:
        with connect(cluster.nameserver) as client:
            yield Site(address_of(cluster), cluster, client)
