"""The snippets of the client's how-to pages run as they stand, against a broker of our own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.testing.harness import cluster_in_thread

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = ("client.md", "ordered.md", "reader.md", "bodies.md", "interceptors.md")
SNIPPET = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
SNIPPETS = [code for page in PAGES for code in SNIPPET.findall((HOWTO / page).read_text())]


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster_in_thread(tmp_path_factory.mktemp("howto")) as cluster:
        yield cluster.nameserver


def test_the_how_to_pages_have_snippets() -> None:
    assert len(SNIPPETS) >= 8


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
@pytest.mark.slow
def test_a_snippet_runs_unchanged(nameserver: str, number: int) -> None:
    # in their order: the first one sends what the later ones receive
    code = SNIPPETS[number].replace("127.0.0.1:9876", nameserver)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
