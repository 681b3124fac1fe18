"""The documentation builds as HTML without a warning (`make docs`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.once
@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra: pip install 'gantrymq[docs]'")
    pytest.importorskip("myst_parser", reason="needs the extra: pip install 'gantrymq[docs]'")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(ROOT / "docs"), str(tmp_path / "html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "index.html").exists()
