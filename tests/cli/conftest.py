"""Fixtures: the command line in this process, with its output and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from gantrymq.cli.__main__ import run
from support.attempts import shared_or_new
from support.processes import gantrymq_child


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli() -> Iterator[Callable[..., Outcome]]:
    """Run ``gantrymq`` with arguments."""

    def call(*arguments: str) -> Outcome:
        # not by capsys, which also gets an event that a broker's thread began to log before the test
        out, err = _output(), _output()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(arguments))
        return Outcome(code, _text(out), _text(err))

    before = structlog.get_config() if structlog.is_configured() else None
    # a broker in a thread of this process would write its log to stdout, among what the command prints
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield call
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def _output() -> TextIOWrapper:
    return TextIOWrapper(BytesIO(), encoding="utf-8", newline="", write_through=True)


def _text(output: TextIOWrapper) -> str:
    output.flush()
    written = output.buffer
    assert isinstance(written, BytesIO)
    return written.getvalue().decode()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run ``gantrymq serve`` in a process of its own, so that its logs are not this process's; yield the nameserver's
    address."""
    arguments = [
        "serve", "--data", str(folder / "store"), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0",
        "--set", "store.commit_log_file_bytes=16 MiB",
    ]  # fmt: skip
    with gantrymq_child(arguments, folder / "log") as child:
        yield child.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2]


@pytest.fixture(scope="module")
def shared_nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture
def nameserver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The nameserver's address of the module's cluster; of a new one for the second attempt of a test, which would find
    the topics and groups of its first attempt."""
    yield from shared_or_new(request, "shared_nameserver", lambda: served(tmp_path_factory.mktemp("cluster")))
