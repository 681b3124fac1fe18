"""Type checkers know every type of the client: pyright's measure of completeness is 100 %."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("anyio", "attr", "attrs", "msgspec", "structlog")


def test_the_client_has_complete_types(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("needs pyright: pip install 'gantrymq[test]'")
    # as it is installed: in one folder with what it needs, and without the broker
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "gantrymq" / "client", tmp_path / "gantrymq" / "client", ignore=ignored)
    shutil.copytree(ROOT / "gantrymq" / "remoting", tmp_path / "gantrymq" / "remoting", ignore=ignored)
    for file in (*(ROOT / "gantrymq").glob("*.py"), ROOT / "gantrymq" / "py.typed"):
        shutil.copy(file, tmp_path / "gantrymq")
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations
        shutil.copytree(spec.submodule_search_locations[0], tmp_path / name, ignore=ignored)
    command = [sys.executable, "-m", "pyright", "--verifytypes", "gantrymq", "--ignoreexternal", "--outputjson"]
    command += ["--pythonpath", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout)[-300:]}")
    found = json.loads(done.stdout)["typeCompleteness"]
    unknown = [
        f"{symbol['name']}: {each['message']}"
        for symbol in found["symbols"]
        for each in symbol["diagnostics"]
        if not symbol["isTypeKnown"]
    ]
    assert found["completenessScore"] == 1.0, "\n".join(unknown[:40])
