"""A schema registry on loopback that answers as Apicurio 3.3.3 does by Confluent's API, or as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Answer = tuple[int, dict[str, str], bytes]


class StubRegistry:
    """Keeps schemas by id and subject; the first has the id 1.

    ``script`` may answer a request itself (method, path, body), or return None. ``requests`` has the methods and paths
    of all requests, ``headers`` the headers of the last. With ``context`` it speaks TLS.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.script: Callable[[str, str, bytes], Answer | None] = lambda method, path, body: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]  # refused TLS
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop, so that connections are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, subject: str, schema: Any, kind: str = "AVRO", **more: Any) -> int:
        """Add a schema, JSON or text, to ``subject``; its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind}) | more
        if found not in self.schemas:
            self.schemas.append(found)
        number = self.schemas.index(found) + 1
        if number not in (versions := self.subjects.setdefault(subject, [])):
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """The status, headers and body of the answer to a request."""
        self.requests.append(f"{method} {path}")
        if (scripted := self.script(method, path, body)) is not None:
            return scripted
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 1 <= number <= len(self.schemas):
                return as_json(404, {"message": f"Schema {number} not found.", "error_code": 40403})
            return as_json(200, self.schemas[number - 1])
        subject = parts[1]
        if method == "POST":
            given = json.loads(body)
            if len(parts) == 3:
                return as_json(200, {"id": self.add(subject, given.pop("schema"), given.pop("schemaType", "AVRO"))})
            for number in self.subjects.get(subject, ()):
                if self.schemas[number - 1] == given:
                    return as_json(200, {"subject": subject, "id": number, "version": 1, **given})
            return as_json(404, {"message": "Schema not found", "error_code": 40403})
        versions = self.subjects.get(subject)
        if versions is None:
            return as_json(404, {"message": f"Subject '{subject}' not found.", "error_code": 40401})
        version = len(versions) if parts[3] == "latest" else int(parts[3])
        number = versions[version - 1]
        return as_json(200, {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.headers = dict(self.headers)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, content = registry.answer(self.command, self.path, body)
                self.send_response(status)
                for name, value in ({"content-length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        return Handler


def as_json(status: int, found: Any) -> Answer:
    """An answer with ``found`` as its body."""
    return status, {"content-type": "application/json"}, json.dumps(found).encode()
