"""The wheel owns one name in site-packages and holds real files where the source tree has links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "build" / "cython"
COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" = -o ] && : >"$2"
    shift
done
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    source = tmp_path_factory.mktemp("source")
    for name in ("kernel", "plugins", "gantrymq"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    if GENERATED.is_dir():  # C that is newer than its source is not made again
        shutil.copytree(GENERATED, source / GENERATED.relative_to(ROOT))
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    # What is in the wheel is looked at, and nothing runs it: the compiler makes an empty file of each source.
    compiler = out / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    tools = dict.fromkeys(("CC", "CXX", "LDSHARED"), str(compiler))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **tools})
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


@pytest.mark.once
@pytest.mark.slow
def test_the_wheel_owns_one_name(wheel: list[str]) -> None:
    assert {name.partition("/")[0] for name in wheel if ".dist-info/" not in name} == {"gantrymq"}


@pytest.mark.once
@pytest.mark.slow
def test_the_wheel_has_every_module_as_a_real_file(wheel: list[str]) -> None:
    for folder in ("kernel", "plugins", "gantrymq"):
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT).as_posix()
            expected = inside if inside.startswith("gantrymq/") else f"gantrymq/{inside}"
            assert expected in wheel
    assert "gantrymq/py.typed" in wheel
    templates = [path.relative_to(ROOT).as_posix() for path in (ROOT / "gantrymq").rglob("*.tmpl")]
    assert templates
    assert set(templates) <= set(wheel)


@pytest.mark.once
@pytest.mark.slow
def test_the_wheel_has_the_compiled_twins(wheel: list[str]) -> None:
    pytest.importorskip("Cython", reason="without Cython the wheel holds the plain twins only")
    twins = [
        path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("gantrymq/")
        for folder in ("gantrymq", "kernel", "plugins")
        for path in (ROOT / folder).rglob("*.pyx")
    ]
    assert len(twins) >= 5
    for module in twins:
        assert any(one.startswith(f"gantrymq/{module}.") and one.endswith(".so") for one in wheel)
    assert not [one for one in wheel if one.endswith((".c", ".pyx", ".pxi", ".pxd"))]
