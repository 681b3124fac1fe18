"""Requests to a dashboard under test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from gantrymq.sync import connect
from gantrymq.testing.harness import Cluster, cluster_in_thread

PLUGIN = "gantrymq.plugins.dashboard:DashboardPlugin"


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
        return response.status, json.loads(found) if "json" in fields["content-type"] else found, fields

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
    """Where the broker's plugin serves the dashboard."""
    return next(str(info.plugin.address) for info in cluster.broker.manager.plugins if info.name == "dashboard")


@contextmanager
def started_site(folder: Path, **more: object) -> Iterator[Site]:
    """A cluster whose broker serves the dashboard. ``more``: settings of plugins, ``transaction__check_max``."""
    settings = {"plugin.dashboard.listen": "127.0.0.1:0"}
    settings |= {f"plugin.{name.replace('__', '.')}": str(value) for name, value in more.items()}
    with cluster_in_thread(folder, settings=settings, enable=[PLUGIN]) as cluster:
        with connect(cluster.nameserver) as client:
            yield Site(address_of(cluster), cluster, client)
