"""Build or fetch the foreign software of the tests once, before any of them needs it.

Run it as ``python tests/interop/prepare.py``.
What is missing on this machine is named; the tests that need it are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # pytest has it there

from support.debian import find_browser, find_unpacked  # noqa: E402
from support.etcd import find_etcd  # noqa: E402
from support.foreign import (  # noqa: E402
    AXE,
    JAVA_VERSIONS,
    ToolMissing,
    cache_folder,
    find_go,
    find_integration_tests,
    find_java,
    find_node,
    find_npm_program,
)
from support.object_storage import S3RVER  # noqa: E402
from support.spark_classes import make_archive  # noqa: E402

CACHE = cache_folder(HERE / ".cache")


def prepare(find: Callable[[], object]) -> str:
    """Call ``find`` and return its error about a missing tool, if any."""
    try:
        find()
    except ToolMissing as missing:
        return str(missing)
    return ""


def main() -> None:
    """All of it at the same time."""
    steps: list[Callable[[], object]] = [
        *(
            lambda version=version: find_integration_tests(find_java(version, HERE / "java", CACHE), HERE / "apache")
            for version in JAVA_VERSIONS
        ),
        lambda: find_go(HERE / "go", CACHE),
        lambda: find_node(HERE / "node", CACHE),
        lambda: make_archive(CACHE),
        lambda: find_npm_program(*S3RVER, CACHE),
        lambda: find_npm_program(*AXE, CACHE),
        lambda: find_etcd(CACHE),
        lambda: find_unpacked(CACHE, "promtool", "prometheus"),
        lambda: find_unpacked(CACHE, "amtool", "prometheus-alertmanager"),
        lambda: find_unpacked(CACHE, "logrotate", "logrotate"),
        lambda: find_browser(CACHE),
    ]
    with ThreadPoolExecutor(len(steps)) as pool:
        for missing in filter(None, pool.map(prepare, steps)):
            print(missing, file=sys.stderr)


if __name__ == "__main__":
    main()
