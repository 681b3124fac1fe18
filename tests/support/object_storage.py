"""Object stores on loopback, each with one bucket: two emulators of S3 (moto and s3rver), and Azurite, Microsoft's
emulator of Azure's blobs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from support.foreign import find_npm_program
from support.processes import free_ports, wait_for

AZURITE = ("azurite", "3.35.0", "dist/src/blob/main.js")
S3RVER = ("s3rver", "3.7.1", "bin/s3rver.js")
S3RVER_KEY = "S3RVER"
"""The only key of s3rver, and its secret."""
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's account; both are in its documentation."""


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


@contextmanager
def run_s3rver(cache: Path, home: Path) -> Iterator[str]:
    """The address of an s3rver with the bucket ``bucket``, installed into ``cache`` by npm unless it is there.

    Raises ToolMissing without Node.
    """
    (port,) = free_ports()
    options = ["-d", str(home), "-a", "127.0.0.1", "-p", str(port), "-s", "--configure-bucket", "bucket"]
    command = [*find_npm_program(*S3RVER, cache), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: _is_listening(port), 60)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def s3_settings(address: str, key: str = "key", secret: str = "secret") -> dict[str, str]:
    """The variables of the environment that the how-to guides name, for this S3."""
    return {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


def _has_made_bucket(url: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
    except OSError:
        return False
    return True


@contextmanager
def run_azure(cache: Path, home: Path) -> Iterator[str]:
    """The address of an Azurite with the container ``bucket``, installed into ``cache`` by npm unless it is there.

    Raises ToolMissing without Node.
    """
    (port,) = free_ports()
    address = f"http://127.0.0.1:{port}"
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(home), "--silent"]
    command = [*find_npm_program(*AZURITE, cache), *options, "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: _has_made_container(address), 60)
            yield address
        finally:
            server.kill()


def azure_settings(address: str) -> dict[str, str]:
    """The variables of the environment for this Azurite, of which the how-to guide names account and key."""
    return {
        "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": address,
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
    }  # fmt: skip


def _has_made_container(address: str) -> bool:
    """Sends the request with Azure's signature by a shared key; it has no header that is signed but these two."""
    headers = f"x-ms-date:{formatdate(usegmt=True)}\nx-ms-version:2021-08-06\n"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/bucket\nrestype:container"
    text = "PUT" + "\n" * 12 + headers + resource
    signature = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{address}/{AZURE_ACCOUNT}/bucket?restype=container", method="PUT")
    for line in headers.splitlines():
        name, _, value = line.partition(":")
        request.add_header(name, value)
    request.add_header("Authorization", f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}")
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except OSError:
        return False
    return True
