"""The broker gets a reason from an export process that hangs, fails, is killed or reports nonsense."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gantrymq.exporter import process
from gantrymq.exporter.job import Job, Report

pytestmark = pytest.mark.trio

JOB = Job("b", "127.0.0.1:1", {}, "x", "parquet", "local", 1, 1, True, {}, 0, 1, "1g")
ONE_REPORT = """echo '{"topic": "orders", "rows": 3}'; """


async def run(monkeypatch: pytest.MonkeyPatch, script: str, timeout: float = 20.0) -> tuple[list[Report], list[int]]:
    monkeypatch.setattr(process, "PROGRAM", ("sh", "-c", script))
    reports: list[Report] = []
    started: list[int] = []

    async def take(report: Report) -> None:
        reports.append(report)
        if report.error:
            raise process.RunFailed(report.error)

    try:
        await process.run_worker(JOB, timeout, take, started.append)
    finally:
        with pytest.raises(ProcessLookupError):
            os.kill(started[0], 0)
    return reports, started


@pytest.mark.parametrize(
    ("script", "timeout", "reason"),
    [
        (f"{ONE_REPORT} sleep 60", 0.2, r"^the process reported nothing for 0\.2 s \(plugin\.exporter\.timeout\)$"),
        ("exec >&-; sleep 60", 0.2, r"^the process did not end within 0\.2 s$"),
        ("echo something first >&2; echo 'the reason' >&2; exit 3", 20.0, "^the reason$"),
        ("exit 3", 20.0, "^the process ended with code 3$"),
        ("kill -9 $$", 20.0, "^the process was killed by SIGKILL$"),
        ("echo '{'; sleep 60", 20.0, "^the process reported what cannot be read: "),
        ("""echo '{"topic": "orders", "error": "refused"}'; sleep 60""", 20.0, "^refused$"),
    ],
)
async def test_a_failed_process_is_ended_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, script: str, timeout: float, reason: str
) -> None:
    with pytest.raises(process.RunFailed, match=reason):
        await run(monkeypatch, script, timeout)


async def test_the_reports_of_a_process_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reports, _ = await run(monkeypatch, f"read job; {ONE_REPORT}{ONE_REPORT}")
    assert [(report.topic, report.rows, report.ended) for report in reports] == [("orders", 3, False)] * 2


async def test_a_process_that_waits_after_a_report_goes_on_when_the_report_was_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    went_on = tmp_path / "went-on"
    waits = """echo '{"topic": "orders", "waits": true}'; read go; """
    monkeypatch.setattr(process, "PROGRAM", ("sh", "-c", f"read job; {waits} touch {went_on}; {ONE_REPORT}"))
    found: list[bool] = []

    async def take(_report: Report) -> None:
        await trio.sleep(0.1)
        found.append(went_on.exists())

    await process.run_worker(JOB, 20.0, take, lambda _pid: None)
    assert found == [False, True]


async def test_cancellation_kills_the_process_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRAM", ("sh", "-c", f"sleep 60 & {ONE_REPORT} wait"))
    started: list[int] = []

    async def cancel(_report: Report) -> None:
        scope.cancel()

    with trio.CancelScope() as scope:
        await process.run_worker(JOB, 20.0, cancel, started.append)
    assert scope.cancelled_caught
    with trio.fail_after(20):
        while living_in_group(started[0]):  # noqa: ASYNC110 - the end of a process that is not our child has no event
            await trio.sleep(0.01)


def living_in_group(group: int) -> list[str]:
    """The processes of a group, without ended ones that nobody has waited for."""
    found: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(stat.parent.name)
    return found
