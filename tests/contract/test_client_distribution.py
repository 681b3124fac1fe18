"""The distribution ``gantrymq-client``: the client's modules alone, in plain Python, with its own dependencies."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from gantrymq.testing.harness import cluster_in_thread

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "packaging" / "client"
DEPENDENCIES = {"anyio", "attrs", "msgspec", "structlog"}
UNIX_ONLY = ("_posixsubprocess", "epoll", "fcntl", "grp", "mmap", "pwd", "resource", "select", "termios")
BROKER_ONLY = (
    "click", "etcd3gw", "h11", "mmh3", "pluggy", "prometheus_client", "pyspark", "rich", "rich_click", "trio",
)  # fmt: skip
GUARD = f"""
import builtins, sys

forbidden = {(*UNIX_ONLY, *BROKER_ONLY)!r}
load = builtins.__import__


def guarded(name, globals=None, *rest, **more):
    importer = (globals or {{}}).get("__name__") or ""
    if importer.partition(".")[0] == "gantrymq" and name.partition(".")[0] in forbidden:
        raise ImportError(f"{{importer}} imports {{name}}")
    return load(name, globals, *rest, **more)


builtins.__import__ = guarded
sys.path.insert(0, sys.argv[1])
import gantrymq, gantrymq.sync

assert gantrymq.__file__.startswith(sys.argv[1]), gantrymq.__file__
for name in gantrymq.__all__:
    getattr(gantrymq, name)
try:
    with gantrymq.sync.connect("127.0.0.1:1"):
        pass
except gantrymq.ConnectFailed as error:
    print(error)
with gantrymq.sync.connect(sys.argv[2]) as client:
    with client.producer(serializer="json") as producer:
        producer.send("Wheel", [1, 2])
    with client.consumer("Wheel", group="wheel", start="first", deserializer="json") as messages:
        message = next(messages)
        print("consumed", message.value)
        message.ack()
print(*sorted(name for name in sys.modules if name.startswith("gantrymq.")))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "kernel", "plugins", "build", "*.egg-info")
    shutil.copytree(PROJECT, source / "client", ignore=ignored)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source / "client")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_client_wheel_is_pure_python_and_has_the_clients_modules(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {f"gantrymq/{name}" for name in ("__init__.py", "_version.py", "message.py", "py.typed", "sync.py")}
    for folder in ("client", "remoting"):
        expected |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "gantrymq" / folder).rglob("*.py")}
    assert names == expected


@pytest.mark.slow
def test_the_wheel_needs_no_dependency_of_the_broker(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist") or []
    assert {line.partition(">")[0] for line in required if "extra ==" not in line} == DEPENDENCIES


@pytest.mark.slow
def test_the_client_works_and_imports_nothing_of_unix_or_of_the_broker(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    with cluster_in_thread(tmp_path / "data") as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", GUARD, str(tmp_path / "installed"), cluster.nameserver],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "consumed [1, 2]" in done.stdout
    assert "127.0.0.1:1: no nameserver can be reached: connection refused" in done.stdout
    assert "gantrymq.client.consumer" in done.stdout
    assert "gantrymq.kernel" not in done.stdout


def test_both_distributions_require_the_same_versions() -> None:
    own, whole = configparser.ConfigParser(), configparser.ConfigParser()
    own.read(PROJECT / "setup.cfg")
    whole.read(ROOT / "setup.cfg")
    lines = set(own["options"]["install_requires"].split())
    assert {line.partition(">")[0] for line in lines} == DEPENDENCIES
    assert lines < set(whole["options"]["install_requires"].split())
    assert own["metadata"]["version"] == whole["metadata"]["version"]
