"""An S3 on loopback: moto's server, with one bucket."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from support.processes import free_ports, wait_for


@contextmanager
def run_s3() -> Iterator[str]:
    """The address of an S3 with the bucket ``bucket``."""
    (port,) = free_ports()
    address = f"http://127.0.0.1:{port}"
    # Not a thread of this process, because deltalake holds the GIL during some of its requests.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: _has_made_bucket(f"{address}/bucket"), 60)
            yield address
        finally:
            server.kill()


def s3_settings(address: str) -> dict[str, str]:
    """The variables of the environment that the how-to guides name, for this S3."""
    return {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def _has_made_bucket(url: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
    except OSError:
        return False
    return True
