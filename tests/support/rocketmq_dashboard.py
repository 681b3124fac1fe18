"""RocketMQ's own dashboard (``apache/rocketmq-dashboard``) as a program for tests: built from its source, and asked as
its pages ask it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import attrs

from support.foreign import ToolMissing, find_tool, hold_lock, run_build
from support.processes import Child, free_ports, wait_for

SOURCE = "GANTRYMQ_ROCKETMQ_DASHBOARD_SOURCE"
"""The environment variable that names the folder of the source: ``git clone`` of the repository."""

START_S = 120.0


def find_jar() -> Path:
    """The dashboard's jar, built by Maven into ``target`` of its source unless it is there, without the web pages.

    ToolMissing if :data:`SOURCE` is not set, or Maven is missing.
    """
    given = os.environ.get(SOURCE, "")
    if not given:
        raise ToolMissing(f"{SOURCE} is not set to the source of apache/rocketmq-dashboard")
    source = Path(given).absolute()
    with hold_lock(source / "target.lock"):
        jars = _jars(source)
        if not jars:
            maven = find_tool("mvn", "build RocketMQ's dashboard")
            pages = ("-Dmaven.antrun.skip=true", "-Dskip.npm", "-Dskip.installnodenpm")
            run_build((maven, "-q", "-B", "package", "-DskipTests", *pages), source)
            jars = _jars(source)
    return jars[0]


def _jars(source: Path) -> list[Path]:
    return sorted((source / "target").glob("rocketmq-dashboard-*.jar"))


@attrs.frozen
class Answer:
    """The dashboard's response: its status (0: done), and the data or the error."""

    status: int
    data: Any
    error: str


class JavaDashboard:
    """A running dashboard."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._token: dict[str, str] = {}

    def get(self, path: str, **query: object) -> Answer:
        """A page's question."""
        return self._ask("GET", path, query, None)

    def post(self, path: str, body: object = None, **query: object) -> Answer:
        """A page's change."""
        return self._ask("POST", path, query, body)

    def delete(self, path: str, **query: object) -> Answer:
        """A page's deletion."""
        return self._ask("DELETE", path, query, None)

    def raw(self, method: str, path: str, query: dict[str, object], body: object) -> tuple[int, bytes]:
        """Status of HTTP and body."""
        connection = HTTPConnection(self.address, timeout=60)
        try:
            texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json", **self._token}
            connection.request(method, f"{path}?{urlencode(texts)}", data, headers)
            response = connection.getresponse()
            for name, value in response.getheaders():
                if name.lower() == "set-cookie" and value.startswith("XSRF-TOKEN="):
                    cookie = value.partition(";")[0]
                    self._token = {"Cookie": cookie, "X-XSRF-TOKEN": cookie.partition("=")[2]}
            return response.status, response.read()
        finally:
            connection.close()

    def _ask(self, method: str, path: str, query: dict[str, object], body: object) -> Answer:
        if method != "GET" and not self._token:
            self.raw("GET", "/rocketmq-dashboard/csrf-token", {}, None)
        status, text = self.raw(method, path, query, body)
        try:
            found = json.loads(text)
        except ValueError:
            return Answer(status, None, text.decode(errors="replace"))
        if not isinstance(found, dict) or "status" not in found or not {"data", "errMsg"} & set(found):
            return Answer(0 if status == 200 else status, found, "")
        return Answer(found["status"], found.get("data"), found.get("errMsg") or "")


@contextmanager
def run_dashboard(jar: Path, java: str, home: Path, nameserver: str, **settings: str) -> Iterator[JavaDashboard]:
    """The dashboard of a cluster on a free port of the loopback."""
    home.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports()
    values = {
        "server.port": str(port), "server.address": "127.0.0.1", "rocketmq.config.namesrvAddrs": nameserver,
        "rocketmq.config.isVIPChannel": "false", "rocketmq.config.dataPath": str(home / "data"), **settings,
    }  # fmt: skip
    options = ("-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={home}")
    arguments = [java, *options, "-jar", str(jar), *(f"--{key}={value}" for key, value in values.items())]
    dashboard = JavaDashboard(f"127.0.0.1:{port}")

    def answers() -> bool:
        with suppress(OSError):
            return dashboard.get("/ops/homePage.query").status == 0
        return False

    with Child(arguments, home / "dashboard.err", cwd=home) as child:
        wait_for(answers, START_S)
        yield dashboard
        child.process.kill()


Rename = Callable[[str], str]


def shape(value: Any, rename: Rename) -> Any:
    """The answer without what differs from cluster to cluster: kinds instead of values, one for all elements of a list.

    ``rename`` gives keys that are names of this cluster another one.
    """
    if isinstance(value, dict):
        return {rename(key): shape(each, rename) for key, each in sorted(value.items())}
    if isinstance(value, list):
        kinds: list[Any] = []
        for each in value:
            found = shape(each, rename)
            if found not in kinds:
                kinds.append(found)
        return sorted(kinds, key=repr)
    return {bool: "flag", int: "number", float: "number", str: "text", type(None): None}[type(value)]
