"""The examples that are packages with tests of their own pass them, installed as wheels into an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plugins"
PACKAGES = sorted(path.parent for path in EXAMPLES.glob("*/tests"))
NEEDED = {"schema": "fastjsonschema"}
"""What an example imports beyond GantryMQ's own dependencies."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the examples, without their sources and tests."""
    work = tmp_path_factory.mktemp("examples")
    unwanted = shutil.ignore_patterns("__pycache__")
    # copies, because the build writes beside its sources
    sources = [shutil.copytree(package, work / package.name, ignore=unwanted) for package in PACKAGES]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    target = work / "site"
    command = [*pip, "--disable-pip-version-check", "--target", str(target), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_the_examples_are_found() -> None:
    assert {"route", "schema", "webhook"} <= {package.name for package in PACKAGES}


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_an_installed_example_passes_its_own_tests(installed: Path, tmp_path: Path, package: Path) -> None:
    if package.name in NEEDED:
        pytest.importorskip(NEEDED[package.name], reason=f"the example needs it: pip install {NEEDED[package.name]}")
    shutil.copytree(package / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
