"""Shared by all tests: a missing foreign tool skips its tests with a reason, and fails them in CI."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

import gantrymq.sync
from gantrymq.client.connections import call as call_of_a_client
from gantrymq.remoting.channel import Channel

pytest.register_assert_rewrite("support")

from support.etcd import find_etcd  # noqa: E402
from support.foreign import ToolMissing, cache_folder  # noqa: E402
from support.late_threads import delay_threads  # noqa: E402
from support.slices import NUMBER_VARIABLE, is_whole, slice_number, split  # noqa: E402
from support.spark_classes import environment_of  # noqa: E402
from support.wheels import SDIST_DATE, build_sdist, build_wheel, copy_source  # noqa: E402

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
"""A busy machine may take a second for what needs a millisecond: speed is measured in benchmarks, not here."""

if late_s := float(os.environ.get("GANTRYMQ_LATE_THREADS") or 0):
    delay_threads(late_s)

TESTS = Path(__file__).parent
FOREIGN_MARKERS = ("interop", "spark", "crash")
SECOND_ATTEMPT = os.environ.get("CI") == "true" and os.environ.get("GANTRYMQ_STRICT") != "true"
"""In CI, a test that fails gets a second attempt: the machine is busy and the tests are many. The summary names each
one that needed it: it is a fault to look into. Elsewhere, and with GANTRYMQ_STRICT=true, the first failure counts."""
MAX_SECOND_ATTEMPTS = 8
"""A run in which more tests than this needed a second attempt fails: something is wrong that is not chance."""
TWIN_FOLDERS = ("broker", "crash", "fuzz", "hostile", "kernel", "plugins")
"""Folders whose tests run the broker's inner loops: all but those with the marker ``once`` run a second time with the
plain twins. In other folders, only tests with the marker ``twins`` do."""
SAME_WITH_TWINS = frozenset(TESTS / "plugins" / name for name in ("admin", "clients", "http", "locks", "register"))
"""Folders that need no second run: their plugins get requests as commands from either twin and handle no messages."""


PATIENT = (
    "broker/",
    "cli/test_definitions.py",
    "cli/test_group",
    "cli/test_state_files.py",
    "cli/test_store.py",
    "cli/test_topic",
    "client/test_against_a_broker.py",
    "examples/",
    "hostile/",
    "plugins/",
)
"""Files and folders in which peers are brokers that work: calls and sends have :data:`PATIENT_CALL_S` by default."""
IMPATIENT = ("plugins/ha/", "plugins/register/")
"""Those of them whose plugins call peers, which the tests stop: the time of a call is a part of what they do."""
PATIENT_CALL_S = 30.0

LONGEST = (
    "interop/test_java_retry.py",
    "spark/test_broker.py",
    "crash/test_watch.py",
    "benchmarks/test_make_bench.py",
    "interop/test_mqadmin.py",
    "interop/test_transactions_crossing.py",
    "interop/test_java_clients.py",
    "crash/test_kill.py",
    "client/test_against_a_broker.py",
    "client/test_administration.py",
    "interop/test_same_answers.py",
    "interop/test_topic_attributes.py",
    "interop/test_store_crossing.py",
    "cli/test_demo.py",
    "ha/test_rounds.py",
    "cluster/test_simulated.py",
    "cluster/test_fencing.py",
    "docs/test_commands_in_docs.py",
    "plugins/exporter/test_table_formats.py",
)
"""The files that take longest, in the order in which several workers begin with them; other foreign ones follow."""
ONE_BY_ONE = {
    "cluster/test_fencing.py",
    "cluster/test_simulated.py",
    "crash/test_kill.py",
    "docs/test_commands_in_docs.py",
    "interop/test_index_files.py",
    "interop/test_store_crossing.py",
}
"""Files whose tests share nothing that takes long to start: any worker may take any of their tests."""
BY_SYSTEM = {"interop/test_java_retry.py": ("java",), "client/test_against_a_broker.py": ("4.9.7", "5.3.3")}
"""Files whose tests run on our broker, which starts at once, or on RocketMQ's, which have these parameters: one worker
takes all tests of such a one."""
TOGETHER = {"spark/": "spark"}
"""Files and folders by what they share, which takes longer to start than they take."""

DISK_GIB = 18
"""The disk space of the stores of all workers at one time (a default store takes a GiB), with some reserve."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background job ignores SIGINT, and so would the processes that the tests interrupt; a whole run on a
    disk that is too full for it would fail a thousand times for one reason."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[NUMBER_VARIABLE] = str(slice_number())  # for all workers, also at midnight
    free = shutil.disk_usage(tempfile.gettempdir()).free >> 30
    if os.environ.get("CI") == "true" and free < DISK_GIB and not hasattr(config, "workerinput"):
        pytest.exit(f"the tests write about {DISK_GIB} GiB to {tempfile.gettempdir()}, where {free} are free", 4)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A worker tells pytest-rerunfailures of each test by two small writes before it waits for an answer: without
    TCP_NODELAY the system holds the second one back for 40 ms."""
    if hasattr(session.config, "workerinput") and (link := getattr(session.config, "failures_db", None)):
        link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """The tests stay until the end: a garbage collection that looks at all of them takes 0.1 s, and finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    """How to repeat this run."""
    return "every variant" if is_whole() else f"slice: {NUMBER_VARIABLE}={slice_number()}"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Marks what runs once; leaves out what lacks its environment variable; takes a slice of what ``-m`` left; lets
    several workers begin with the files that take minutes."""
    for item in items:
        runs_twice = folder_of(item.path) in TWIN_FOLDERS and item.path.parent not in SAME_WITH_TWINS
        if not runs_twice and not item.get_closest_marker("twins"):
            item.add_marker("once")
        if SECOND_ATTEMPT:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=5))
    yield
    # not skipped: a foreign test that is skipped fails in CI
    without = [item for item in items if any(not os.environ.get(name) for name in needed_variables(item))]
    if without:
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=without)
    if not is_whole() and not any("::" in argument for argument in config.args):  # what was named is run
        items[:], left_out = split(items, slice_number())
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        # one that began last would keep the other workers waiting
        foreign = {item.path for item in items if any(item.get_closest_marker(name) for name in FOREIGN_MARKERS)}
        ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path, len(ranks) + (item.path not in foreign)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run in which many tests needed a second attempt."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = {report.nodeid for report in reporter.stats.get("rerun", ())} if reporter else set()
    if len(again) > MAX_SECOND_ATTEMPTS and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{len(again)} tests needed a second attempt, more than {MAX_SECOND_ATTEMPTS}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints why the first attempts failed: pytest-rerunfailures only counts them."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"first attempt of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def needed_variables(item: pytest.Item) -> list[str]:
    """The environment variables without which a test cannot run."""
    return [marker.args[0] for marker in item.iter_markers("needs_variable")]


@cache
def folder_of(path: Path) -> str:
    """The folder of ``tests/`` in which a file lies; empty for files elsewhere."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile`` gives a worker whole files, except those that several workers share better."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduling(config, log)


def scope_of(nodeid: str) -> str:
    """The group of tests that one worker runs: those of a file, of files that share something, or one test."""
    path, _, test = nodeid.partition("::")
    file = path.removeprefix("tests/")
    for name, scope in TOGETHER.items():
        if file.startswith(name):
            return scope
    if file in BY_SYSTEM:
        systems = (system for system in BY_SYSTEM[file] if system in test.partition("[")[2])
        return f"{path}::{next(systems, test)}"
    return nodeid if file in ONE_BY_ONE else path


@cache
def _spark_environment() -> dict[str, str]:
    return environment_of(cache_folder(TESTS / "interop" / ".cache"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set up what fixtures of a test cannot: fixtures of the session, which start Spark, run before them."""
    if item.get_closest_marker("spark"):
        os.environ.update(_spark_environment())
    elif _spark_environment.cache_info().currsize:
        for name, value in _spark_environment().items():
            if os.environ.get(name) == value:
                del os.environ[name]


@pytest.fixture(scope="session")
def etcd_program() -> Path:
    """The program ``etcd``, with the client library that the watcher needs."""
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed (gantrymq[etcd])")
    try:
        return find_etcd(cache_folder(TESTS / "interop" / ".cache"))
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def gantrymq_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution of this tree; its files are of :data:`SDIST_DATE`."""
    folder = tmp_path_factory.mktemp("gantrymq_sdist")
    copy_source(folder / "source")
    return build_sdist(folder / "source", folder / "out", SDIST_DATE)


@pytest.fixture(scope="session")
def gantrymq_wheel(gantrymq_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of that distribution; its compiled modules are empty files."""
    return build_wheel(gantrymq_sdist, tmp_path_factory.mktemp("gantrymq_wheel"))


@pytest.fixture(autouse=True)
def _fresh_logs() -> Generator[None]:
    """Undo the logging setup of commands that ran in the test's process."""
    yield
    structlog.reset_defaults()


def is_patient(path: Path) -> bool:
    """Whether the calls of a file's tests have more than the 3 s of clients."""
    file = str(path.relative_to(TESTS)) if path.is_relative_to(TESTS) else ""
    return file.startswith(PATIENT) and not file.startswith(IMPATIENT)


@pytest.fixture(autouse=True)
def _patient_calls(request: pytest.FixtureRequest) -> Generator[None]:
    """A new topic, its first message and another's take several flushes, each of which a busy disk may need a second
    for: more than the 3 s of a call or a send."""
    with pytest.MonkeyPatch.context() as patch:
        if is_patient(request.path):
            for function in (Channel.call, call_of_a_client):
                patch.setattr(function, "__defaults__", (PATIENT_CALL_S,))
            for kind in (gantrymq.Client, gantrymq.sync.Client):
                patch.setitem(kind.producer.__kwdefaults__, "timeout", PATIENT_CALL_S)
        yield


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
