"""What every test shares: a missing foreign tool skips with its reason, and in CI such a skip is a failure."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
"""A busy machine may take a second for what needs a millisecond: speed is measured in benchmarks, not here."""

TESTS = Path(__file__).parent
FOREIGN_MARKERS = ("interop", "spark", "crash")
TWIN_FOLDERS = ("broker", "client", "crash", "fuzz", "hostile", "kernel", "plugins")
"""What runs the broker's inner loops: all of it but what has the marker ``once`` runs a second time with their plain
twins. Of the other folders only what has the marker ``twins`` does."""


DISK_GIB = 20
"""What the stores of a whole run take together until it ends, and some room."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background job ignores SIGINT, and so would the processes that the tests interrupt; a whole run on a
    disk that is too full for it would fail a thousand times for one reason."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    free = shutil.disk_usage(tempfile.gettempdir()).free >> 30
    if os.environ.get("CI") == "true" and free < DISK_GIB and not hasattr(config, "workerinput"):
        pytest.exit(f"the tests write about {DISK_GIB} GiB to {tempfile.gettempdir()}, where {free} are free", 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what runs once and what is tried again; lets several workers begin with the files that take minutes."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder not in TWIN_FOLDERS and not item.get_closest_marker("twins"):
            item.add_marker("once")
        if item.get_closest_marker("interop") and not item.get_closest_marker("flaky"):
            # Foreign clients have races of their own. Who fails once is named in the summary; three times is a failure.
            # Not where all share one long preparation (`flaky(reruns=0)`): that would be made again for each.
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=5))
    if hasattr(config, "workerinput"):
        # one that began last would keep the other workers waiting
        long = {item.path for item in items if any(item.get_closest_marker(name) for name in FOREIGN_MARKERS)}
        items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def _fresh_logs() -> Generator[None]:
    """What a command line inside a test set up for its logs ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    foreign = any(item.get_closest_marker(name) for name in FOREIGN_MARKERS)
    if report.skipped and foreign and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"in CI nothing foreign may be skipped: {report.longrepr}"
    return report
