"""The command line in this process, with its output and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import structlog

from gantrymq.cli.__main__ import run


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """Run ``gantrymq`` with arguments."""

    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    before = structlog.get_config() if structlog.is_configured() else None
    # a broker in a thread of this process would write its log to stdout, among what the command prints
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield call
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)
