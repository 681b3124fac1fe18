"""All examples pass their own tests, with GantryMQ and each example installed from wheels into a fresh environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "plugins"
PACKAGES = sorted(path.parent for path in EXAMPLES.glob("*/pyproject.toml"))
NEEDED = {"encrypt": "cryptography", "oidc": "jwt", "schema": "fastjsonschema"}
"""Packages that an example imports beyond GantryMQ's own dependencies."""

BUILD = """
import os, sys
from setuptools import build_meta
target, *sources = sys.argv[1:]  # the backend changes them
for source in sources:
    os.chdir(source)
    build_meta.build_wheel(target)
"""
"""Calls the packages' build backend as pip does, but in one process: pip starts two for each package."""

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(600)]


def run(command: list[str], folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GANTRYMQ_PURE")}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(gantrymq_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment. Dependencies are those of this one: nothing is fetched. The compiled
    modules are this tree's, too, because a compiler takes minutes."""
    work = tmp_path_factory.mktemp("examples")
    unwanted = shutil.ignore_patterns("__pycache__")
    # copies, because the build writes beside its sources
    sources = [shutil.copytree(package, work / package.name, ignore=unwanted) for package in PACKAGES]
    wheels = work / "wheels"
    wheels.mkdir()
    run([sys.executable, "-c", BUILD, str(wheels), *map(str, sources)], work)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    home = work / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    interpreter = home / "bin" / "python"
    run(
        [*pip, "--python", str(interpreter), "install", "--no-deps", "--no-index", "--no-compile", str(gantrymq_wheel),
         *map(str, wheels.glob("*.whl"))],
        work,
    )  # fmt: skip
    [site] = home.glob("lib/python*/site-packages")
    for path in (site / "gantrymq").rglob("*.so"):
        built = ROOT / path.relative_to(site)
        if built.is_file():
            shutil.copy(built, path)
        else:
            path.unlink()
    # A line in a .pth file adds the folder itself, and not what its own .pth files name, such as this tree.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def test_the_examples_all_have_tests() -> None:
    wanted = {"dedup", "encrypt", "group_health", "oidc", "route", "schema", "signed", "stamp", "webhook"}
    assert wanted <= {path.name for path in PACKAGES}
    assert [package.name for package in PACKAGES if not list((package / "tests").glob("test_*.py"))] == []


def test_the_installed_examples_pass_their_own_tests(python: Path, tmp_path: Path) -> None:
    for name, module in NEEDED.items():
        pytest.importorskip(module, reason=f"the example {name} needs it: pip install {module}")
    for package in PACKAGES:
        shutil.copytree(
            package / "tests", tmp_path / package.name / "tests", ignore=shutil.ignore_patterns("__pycache__")
        )
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --import-mode=importlib\n")
    modules = ["gantrymq", *(f"gantrymq_{package.name}" for package in PACKAGES)]
    show = "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
    found = run([str(python), "-c", show, *modules], tmp_path).splitlines()
    assert [path for path in found if not path.startswith(str(python.parents[1]))] == []
    printed = run([str(python), "-m", "pytest", "-v", "-p", "no:cacheprovider", "."], tmp_path)
    for package in PACKAGES:
        assert f"{package.name}/tests/test_{package.name}.py::" in printed
    assert "SKIPPED" not in printed


READ_WITH_SPARK = """
import sys
from pyspark.sql import SparkSession
from pyspark.errors import PySparkException
import pyspark_gantrymq
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert not [name for name in sys.modules if name.partition(".")[0] == "gantrymq"]
try:
    spark.read.format("gantrymq").options(nameserver="127.0.0.1:1", topic="orders", retrySeconds="0").load().count()
except PySparkException as error:
    print(pyspark_gantrymq.__file__, "Unreachable: no nameserver answers" in str(error))
spark.stop()
"""


@pytest.mark.spark
def test_spark_finds_the_source_of_an_installed_wheel_without_registration(python: Path, tmp_path: Path) -> None:
    from gantrymq.spark import spark_status

    if not (status := spark_status()):
        pytest.skip(f"Spark cannot run here: {status.reason}")
    environ = ["env", f"PYSPARK_PYTHON={python}", f"PYSPARK_DRIVER_PYTHON={python}", "SPARK_LOCAL_IP=127.0.0.1"]
    printed = run([*environ, str(python), "-c", READ_WITH_SPARK], tmp_path).split()
    assert printed[-2].startswith(str(python.parents[1]))
    assert printed[-1] == "True"
