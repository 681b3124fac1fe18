"""Stands in for Grafana, which no package registry has: reads the same provisioning files, asks the data source.

Runs in a container with the Python of the image. It answers with the dashboards that Grafana would load, and ``up``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import yaml

PROVISIONING = Path("/etc/grafana/provisioning")


class Handler(BaseHTTPRequestHandler):
    """Answers each GET."""

    def do_GET(self) -> None:
        (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yaml").read_text())["datasources"]
        (provider,) = yaml.safe_load((PROVISIONING / "dashboards/gantrymq.yaml").read_text())["providers"]
        boards = [json.loads(path.read_text())["title"] for path in Path(provider["options"]["path"]).glob("*.json")]
        Path("/var/lib/grafana/written").touch()
        with urlopen(f"{source['url']}/api/v1/query?query=up", timeout=5) as answer:
            up = [each["value"][1] for each in json.load(answer)["data"]["result"]]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"dashboards": boards, "up": up}).encode())


if __name__ == "__main__":
    assert os.environ["GF_SECURITY_ADMIN_PASSWORD"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    HTTPServer(("", 3000), Handler).serve_forever()
