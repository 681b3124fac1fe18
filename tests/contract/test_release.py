"""Releases are reproducible: the same source gives the same bytes, and their accompanying files are correct."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from gantrymq import __version__
from support.wheels import SDIST_DATE, copy_source

pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_builds_of_one_source_have_the_same_bytes(gantrymq_sdist: Path, tmp_path: Path) -> None:
    again = tmp_path / "another-name"
    copy_source(again)
    for path in again.rglob("*.py"):
        os.utime(path, (1, 1))
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path / "out")]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(SDIST_DATE)}
    subprocess.run(command, cwd=again, capture_output=True, check=True, umask=0o077, env=environment)
    (other,) = (tmp_path / "out").iterdir()
    assert other.name == gantrymq_sdist.name == f"gantrymq-{__version__}.tar.gz"
    assert hashlib.sha256(other.read_bytes()).digest() == hashlib.sha256(gantrymq_sdist.read_bytes()).digest()
    with tarfile.open(gantrymq_sdist) as archive:
        members = archive.getmembers()
        assert {(member.mtime, member.uid, member.uname) for member in members} == {(SDIST_DATE, 0, "")}
        assert not [member.name for member in members if member.name.endswith((".so", ".c", ".pyc"))]


def test_checksums_are_those_that_sha256sum_checks_and_a_signature_verifies(
    release: ModuleType, gantrymq_sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    shutil.copy(gantrymq_sdist, dist)
    (dist / "sbom.cdx.json").write_text("{}")
    sums = release.write_checksums(dist)
    check = ["sha256sum", "--check", "--strict", sums.name]
    assert subprocess.run(check, cwd=dist, capture_output=True, check=False).returncode == 0
    assert len(sums.read_text().splitlines()) == 2
    if shutil.which("gpg"):
        home = tmp_path / "gpg"
        home.mkdir(mode=0o700)
        monkeypatch.setenv("GNUPGHOME", str(home))
        make = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "release@example.org", "ed25519", "sign"]
        subprocess.run(make, capture_output=True, check=True)
        release.sign(sums, "release@example.org")
        verify = ["gpg", "--verify", f"{sums}.asc", str(sums)]
        assert subprocess.run(verify, capture_output=True, check=False).returncode == 0
        subprocess.run(["gpgconf", "--kill", "all"], capture_output=True, check=False)
    (dist / "sbom.cdx.json").write_text("{ }")
    assert subprocess.run(check, cwd=dist, capture_output=True, check=False).returncode == 1


def test_the_sbom_lists_the_packages_of_an_environment(release: ModuleType, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in ("gantrymq", "trio", "attrs"):
        found = metadata.distribution(name)
        (packages / f"{name}-{found.version}.dist-info").mkdir()
        text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
        (packages / f"{name}-{found.version}.dist-info" / "METADATA").write_text(text)
    for number in range(2):
        release.describe_environment(str(environment / "bin" / "python"), tmp_path / f"{number}.json")
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    assert first == second
    assert first["bomFormat"] == "CycloneDX"
    parts = {each["name"]: each for each in first["components"]}
    assert parts["gantrymq"]["version"] == metadata.version("gantrymq")
    assert parts["trio"]["version"] == metadata.version("trio")
    assert parts["trio"]["licenses"]
    edges = {each["ref"]: each.get("dependsOn", []) for each in first["dependencies"]}
    assert parts["trio"]["bom-ref"] in edges[parts["gantrymq"]["bom-ref"]]


def test_the_version_stands_in_one_place_and_heads_the_changelog(release: ModuleType, tmp_path: Path) -> None:
    assert release.version_of(ROOT) == __version__
    (tmp_path / "gantrymq").mkdir()
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    (tmp_path / "gantrymq" / "_version.py").write_text('__version__ = "9.9.9"\n')
    with pytest.raises(SystemExit, match=r"the version is 9\.9\.9, but CHANGELOG.md begins with"):
        release.version_of(tmp_path)


def test_cibuildwheel_builds_for_each_python_and_its_test_passes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", "linux", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for python in ("cp311", "cp312", "cp313", "cp314"):
        for system in ("manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64"):
            assert f"{python}-{system}" in done.stdout.split()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    tested = subprocess.run(["sh", "-c", config["test-command"]], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
