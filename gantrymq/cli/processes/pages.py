"""The health pages and the metrics of a unit: one address for all brokers, whose own pages it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
import trio

from gantrymq._version import __version__
from gantrymq.cli.processes.exposition import merge
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.http import HttpConfig
from gantrymq.plugins.http.pages import TEXT, Page, Pages, response_of
from gantrymq.plugins.http.server import HttpServer
from gantrymq.remoting.address import parse_address

if TYPE_CHECKING:
    from gantrymq.cli.loading import Loaded
    from gantrymq.cli.processes.layout import Layout
    from gantrymq.nameserver import NameServer
    from gantrymq.plugins.interfaces import Encryption

PAGE_SECONDS: Final = 5.0
"""How long a broker may take to serve a page; by default, Prometheus waits 10 s for the page of all."""
PAGE_MAX_BYTES: Final = 64 * 1024 * 1024

log = structlog.get_logger("gantrymq.processes")


class Processes(Protocol):
    """What the pages show, see :class:`gantrymq.cli.processes.unit.Unit`."""

    def not_alive(self) -> Mapping[str, str]:
        """Reasons that restarts have not removed."""

    def not_ready(self) -> Mapping[str, str]:
        """Reasons for which clients cannot work with all brokers."""

    def degraded(self) -> Mapping[str, str]:
        """What does not work although clients can work with all brokers."""

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """``name``, ``pid``, ``state``, ``address``, ``pages`` and ``restarts`` of each process."""


async def serve_pages(
    unit: Processes,
    loaded: Loaded,
    layout: Layout,
    encryption: Encryption | None = None,
    nameserver: NameServer | None = None,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the pages until cancelled; reports their URL, empty if there are none. The metrics have those of
    ``nameserver``, if there is one.

    :class:`StartError` if an address is in use.
    """
    url, cluster = "", loaded.config.broker.cluster
    async with trio.open_nursery() as nursery:
        if layout.pages:
            section = loaded.config.section(HttpConfig)
            pages = Pages(health_pages(unit))
            if layout.metrics:
                pages.add("/metrics", lambda accept: _metrics(unit, cluster, nameserver, accept))
            host, port = parse_address(layout.pages, any_port=True)
            try:
                server = HttpServer(SystemEnv(), host, port, pages, section.connections_max, section.timeout)
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or error
                raise StartError(
                    f"the health pages cannot be served on {layout.pages}: {reason}; set plugin.http.listen to another "
                    "address, or to nothing"
                ) from None
            server.encryption = encryption
            url = server.url
            nursery.start_soon(server.run)
        if layout.metrics:
            from gantrymq.plugins.metrics.config import MetricsConfig
            from gantrymq.plugins.metrics.exposition import Text
            from gantrymq.plugins.metrics.server import MetricsServer

            async def render(accept: str) -> Text:
                _, content_type, body = await _metrics(unit, cluster, nameserver, accept)
                return Text(content_type, body)

            metrics = MetricsServer(SystemEnv(), loaded.config.section(MetricsConfig), render)
            metrics.encryption = encryption
            nursery.start_soon(metrics.run)
        task_status.started(url)


def health_pages(unit: Processes) -> dict[str, Page]:
    """``/healthz``, ``/readyz`` and ``/status.json`` of all brokers."""

    async def healthz(accept: str) -> tuple[int, str, bytes]:
        return response_of(unit.not_alive())

    async def readyz(accept: str) -> tuple[int, str, bytes]:
        return response_of(unit.not_ready(), unit.degraded())

    async def status(accept: str) -> tuple[int, str, bytes]:
        not_alive, not_ready = unit.not_alive(), unit.not_ready()
        rows = [dict(row) for row in unit.rows()]

        async def read(row: dict[str, Any]) -> None:
            answer = await _fetch(str(row["pages"]), "/status.json", "*/*")
            row["status"] = json.loads(answer[2]) if answer is not None and answer[0] == 200 else None

        async with trio.open_nursery() as nursery:
            for row in rows:
                nursery.start_soon(read, row)
        state = {
            "alive": not not_alive,
            "ready": not not_ready,
            "reasons": dict(not_ready),
            "degraded": dict(unit.degraded()),
            "version": __version__,
            "processes": rows,
        }
        return 200, "application/json", json.dumps(state, indent=1).encode() + b"\n"

    return {"/healthz": healthz, "/readyz": readyz, "/status.json": status}


async def _metrics(unit: Processes, cluster: str, nameserver: NameServer | None, accept: str) -> tuple[int, str, bytes]:
    """The metrics of all brokers and the nameserver as one text, without brokers that do not respond."""
    rows = unit.rows()
    texts: dict[int, bytes] = {}
    content_type = TEXT

    async def read(number: int, address: str) -> None:
        nonlocal content_type
        answer = await _fetch(address, "/metrics", accept)
        if answer is not None and answer[0] == 200:
            content_type, texts[number] = answer[1], answer[2]

    async with trio.open_nursery() as nursery:
        for number, row in enumerate(rows):
            nursery.start_soon(read, number, str(row["pages"]))
    own = {str(row["name"]): (row["state"] == "ready", int(row["restarts"])) for row in rows}
    found = [texts[number] for number in sorted(texts)]
    if nameserver is not None:
        from gantrymq.cli.nameserver_metrics import exposed

        text = exposed(nameserver, accept, with_process=False)
        content_type = text.content_type
        found.append(text.body)
    return 200, content_type, merge(found, own, cluster)


async def _fetch(address: str, path: str, accept: str) -> tuple[int, str, bytes] | None:
    """Status, media type and body of a page of a broker; None if it does not respond."""
    if not address:
        return None
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept or '*/*'}\r\nConnection: close\r\n\r\n"
    answer = b""
    try:
        with trio.fail_after(PAGE_SECONDS):
            async with await trio.open_tcp_stream(*parse_address(address)) as stream:
                await stream.send_all(request.encode("latin-1", "replace"))
                async for piece in stream:
                    answer += piece
                    if len(answer) > PAGE_MAX_BYTES:
                        return None
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        log.debug("process_page_missing", address=address, path=path, reason=str(error) or "too slow")
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    values = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    status = first.split(" ")[1:2]
    if not status or not status[0].isdecimal() or values.get("content-length") != str(len(body)):
        return None
    return int(status[0]), values.get("content-type", TEXT), body
