"""A wheel of GantryMQ, built from a copy of the source without the minutes that a compiler takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "build" / "cython"
COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" = -o ] && : >"$2"
    shift
done
"""


def build_wheel(work: Path) -> Path:
    """The wheel, in the empty folder ``work``. Its compiled modules are empty files, one for each source."""
    source = work / "source"
    for name in ("kernel", "plugins", "gantrymq", "pyspark_gantrymq"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    if GENERATED.is_dir():  # C that is newer than its source is not made again
        shutil.copytree(GENERATED, source / GENERATED.relative_to(ROOT))
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
