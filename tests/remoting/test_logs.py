"""A library's log lines stay off standard output and go where the application sends them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from gantrymq.remoting.logs import LibraryLog


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_without_any_setup_nothing_goes_to_standard_output(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, "gantrymq"):
        LibraryLog().warning("pull_failed", topic="T", queue=3)
        LibraryLog().info("queues_rebalanced", queues=8)
    assert [record.getMessage() for record in caplog.records] == ["event='pull_failed' topic='T' queue=3"]
    assert capsys.readouterr().out == ""


def test_an_application_that_configured_structlog_gets_the_fields() -> None:
    log = LibraryLog()
    with structlog.testing.capture_logs() as lines:
        structlog.configure(processors=structlog.get_config()["processors"])
        log.info("queues_rebalanced", queues=8)
    assert lines == [{"event": "queues_rebalanced", "queues": 8, "log_level": "info"}]


def test_an_exception_is_reported_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gantrymq"):
        try:
            raise KeyError("missing")
        except KeyError:
            LibraryLog().exception("channel_handler_failed", code=40)
    assert "KeyError: 'missing'" in caplog.text
    assert "event='channel_handler_failed' code=40" in caplog.text
    LibraryLog().error("client_failed", client="one", exc_info=ValueError("wrong"))
    assert "event='client_failed' client='one'\nValueError: wrong" in caplog.text


def test_a_line_has_the_place_in_the_library_where_it_was_written(caplog: pytest.LogCaptureFixture) -> None:
    LibraryLog().warning("pull_failed")
    assert [record.filename for record in caplog.records] == ["test_logs.py"]
