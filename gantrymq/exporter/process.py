"""The broker's side: starts the process of a run, reads its reports, and ends it.

The process is a program of its own because pyarrow and Spark need memory, threads and a JVM, which must not be part of
a broker. It ends when its stdin ends, so that it does not outlive a killed broker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
import trio

from gantrymq.exporter.job import Job, Report

PROGRAM: Final = (sys.executable, "-P", "-m", "gantrymq.exporter.worker")
LINE_MAX_BYTES: Final = 1024 * 1024
"""The most bytes of one report."""
TAIL_BYTES: Final = 4096
"""The number of the last bytes of stderr that are kept: they have the reason of a failure."""
_PIECE_BYTES: Final = 65536


class RunFailed(Exception):
    """The process of a run ended before it was done; the text has the reason."""


async def run_worker(
    job: Job, timeout: float, on_report: Callable[[Report], Awaitable[None]], on_start: Callable[[int], None]
) -> None:
    """Run a process for ``job`` to its end; cancellation kills it.

    ``on_start`` gets its process id, ``on_report`` each report; the process of a report that ``waits`` goes on after
    it. Raises :class:`RunFailed` if the process cannot be started, reports nothing for ``timeout`` seconds, or fails,
    and what ``on_report`` raises of this class.
    """
    try:
        process = await trio.lowlevel.open_process(
            PROGRAM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the broker's terminal is for the broker
        )
    except OSError as error:
        raise RunFailed(f"cannot start {PROGRAM[0]}: {error.strerror or error}") from None
    tail = bytearray()
    try:
        on_start(process.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_tail, process, tail)
            with suppress(trio.BrokenResourceError):  # it has ended already; its exit code says why
                assert process.stdin is not None
                await process.stdin.send_all(msgspec.json.encode(job) + b"\n")
            reason = await _follow(process, timeout, on_report)
            if reason:
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            with suppress(ProcessLookupError):  # with what it has started: a JVM would end only some time later
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()
    if reason:
        raise RunFailed(reason)
    if process.returncode:
        raise RunFailed(_reason_of(process.returncode, bytes(tail)))


async def _follow(process: trio.Process, timeout: float, on_report: Callable[[Report], Awaitable[None]]) -> str:
    """Read reports until stdout ends, and wait for the exit. Returns why the process must be killed, if it must."""
    assert process.stdout is not None
    assert process.stdin is not None
    buffer = bytearray()
    while True:
        piece = None
        with trio.move_on_after(timeout):
            piece = await process.stdout.receive_some(_PIECE_BYTES)
        if piece is None:
            return f"the process reported nothing for {timeout:g} s (plugin.exporter.timeout)"
        if not piece:
            break
        buffer += piece
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        try:
            for report in [msgspec.json.decode(line, type=Report) for line in lines]:
                await on_report(report)
                if report.waits:
                    with suppress(trio.BrokenResourceError):  # it has ended; its exit code says why
                        await process.stdin.send_all(b"\n")
        except RunFailed as failure:
            return str(failure)
        except (msgspec.MsgspecError, ValueError) as error:
            return f"the process reported what cannot be read: {error}"
        if len(buffer) > LINE_MAX_BYTES:
            return f"the process reported a line of more than {LINE_MAX_BYTES} bytes"
    with trio.move_on_after(timeout):
        await process.wait()
    return "" if process.returncode is not None else f"the process did not end within {timeout:g} s"


async def _keep_tail(process: trio.Process, tail: bytearray) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.receive_some(_PIECE_BYTES):
        tail += piece
        del tail[:-TAIL_BYTES]


def _reason_of(code: int, tail: bytes) -> str:
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    lines = tail.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"the process ended with code {code}"
