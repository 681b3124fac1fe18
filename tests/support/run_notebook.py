"""Runs a notebook as JupyterLab's page does: run_notebook.py URL TOKEN NAME. Prints the outputs of each cell as JSON.

It opens the page, reads the notebook and starts a kernel by the server's REST API, and sends it the cells by the
WebSocket of its channels. It runs in the environment that has JupyterLab, and with it websocket-client.
"""

from __future__ import annotations

import json
import sys
import urllib.request
import uuid
from typing import Any

import websocket  # type: ignore[import-untyped, import-not-found, unused-ignore]

CELL_S = 300.0


class Server:
    """A running Jupyter server."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}

    def ask(self, path: str, body: Any = None, method: str | None = None) -> bytes:
        """The body of an answer; an error status raises."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: bytes = answer.read()
        return found

    def run(self, name: str) -> list[list[str]]:
        """The outputs of each code cell, as text. Raises RuntimeError for a cell that fails."""
        if b"JupyterLab" not in self.ask("/lab"):
            raise RuntimeError("/lab is not the page of JupyterLab")
        notebook = json.loads(self.ask(f"/api/contents/{name}"))["content"]
        about = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
        session = json.loads(self.ask("/api/sessions", about))
        channels = f"{self._url.replace('http', 'ws', 1)}/api/kernels/{session['kernel']['id']}/channels"
        link = websocket.create_connection(channels, header=self._headers, timeout=CELL_S)
        try:
            cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
            return [self._run_cell(link, "".join(cell["source"])) for cell in cells]
        finally:
            link.close()
            self.ask(f"/api/sessions/{session['id']}", method="DELETE")

    def _run_cell(self, link: Any, source: str) -> list[str]:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "version": "5.3",
            "username": "",
            "session": "",
        }
        content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        link.send(
            json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"})
        )
        outputs: list[str] = []
        while True:
            message = json.loads(link.recv())
            if message["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            content, kind = message["content"], message["msg_type"]
            if kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            if kind == "stream":
                outputs.append(content["text"])
            elif kind in ("execute_result", "display_data"):
                outputs.append(content["data"].get("text/plain", ""))
            elif kind == "status" and content["execution_state"] == "idle":
                return outputs


if __name__ == "__main__":
    print(json.dumps(Server(*sys.argv[1:3]).run(sys.argv[3])))
