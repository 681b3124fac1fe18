"""A wheel of GantryMQ, built from a copy of the source without the minutes that a compiler takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "build" / "cython"
SDIST_DATE = 1_700_000_000
"""The date of the files of the tests' source distribution, in seconds since 1970."""
COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" = -o ] && : >"$2"
    shift
done
"""


def copy_source(source: Path) -> None:
    """Copy what a distribution is built from, with the C that was generated here."""
    for name in ("kernel", "plugins", "gantrymq", "pyspark_gantrymq"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    _copy_generated(source)


def _copy_generated(source: Path) -> None:
    # C is not made again if it is newer than its source and than Cython's own files, which `make` installs after it.
    if GENERATED.is_dir():
        shutil.copytree(GENERATED, source / GENERATED.relative_to(ROOT), copy_function=shutil.copy)


def build_sdist(source: Path, out: Path, date: int) -> Path:
    """The source distribution of a copy; ``date``: of the files in it, in seconds since 1970."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "SOURCE_DATE_EPOCH": str(date)}
    )
    if done.returncode != 0:
        raise RuntimeError(f"the source distribution was not built: {done.stdout}{done.stderr}")
    (built,) = out.glob("*.tar.gz")
    return built


def build_wheel(sdist: Path, work: Path) -> Path:
    """The wheel of a source distribution, in the empty folder ``work``. Its compiled modules are empty files, one for
    each source."""
    shutil.unpack_archive(sdist, work / "source", filter="data")
    (source,) = (work / "source").iterdir()
    _copy_generated(source)
    out = work / "wheel"
    out.mkdir()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    compiler = work / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    tools = dict.fromkeys(("CC", "CXX", "LDSHARED"), str(compiler))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **tools})
    if done.returncode != 0:
        raise RuntimeError(f"the wheel was not built: {done.stdout}{done.stderr}")
    (built,) = out.glob("*.whl")
    return built
