"""A server as a child process of a command: starts it, waits for its end and stops it by its process id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Final

import structlog
import trio

STOP_SECONDS: Final = 25.0
"""The time for a clean stop, in seconds, before the process is killed: a broker ends itself within 8 + 15 seconds
(``DRAIN_SECONDS``, ``END_SECONDS``)."""
POLL_SECONDS: Final = 0.05

log = structlog.get_logger("gantrymq.processes")


class ServerProcess:
    """A command of ours that is a server. ``state`` is starting, ready or ended; the owner sets ready."""

    def __init__(self, label: str) -> None:
        """``label`` names it for people."""
        self.label = label
        self.state = "starting"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code once it has ended, negative for a signal."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self.state = "ended"
        return code

    @property
    def stdout(self) -> IO[bytes] | None:
        """Its stdout if it is a pipe."""
        return None if self._process is None else self._process.stdout

    def spawn(
        self,
        arguments: Sequence[str],
        *,
        options: Sequence[str] = (),
        stdout: int | None = None,
        stderr: IO[bytes] | None = None,
        environ: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start ``gantrymq`` with ``arguments``; ``options`` are those of :mod:`gantrymq.cli.server_child`.

        ``stdout`` and ``stderr`` are the parent's unless they are given. Call it from the main thread, because the
        child notices the end of the thread that started it. It gets its own session, so that a Ctrl-C in the terminal
        reaches only the parent.

        OSError if the process cannot be started; ``state`` and the rest then are as before.
        """
        self._process = subprocess.Popen(  # noqa: S603 - our own command line; spawning takes milliseconds
            [sys.executable, "-m", "gantrymq.cli.server_child", *options, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environ,
            pass_fds=descriptors,
            start_new_session=True,
        )
        self.state = "starting"

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        while (code := self.code) is None:
            try:
                descriptor = os.pidfd_open(self.pid)
            except (AttributeError, OSError):  # not Linux, or no descriptor is left
                await trio.sleep(POLL_SECONDS)
                continue
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        return code

    def send_signal(self, number: int) -> None:
        """Send the signal unless the process has ended."""
        if self._process is not None and self.code is None:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if it has not ended in time; returns when it has ended."""
        if self._process is None:
            return
        if self.code is None:
            self.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_SECONDS):
                await self.wait()
            if self.code is None:
                log.warning("process_not_stopped", process=self.label, seconds=STOP_SECONDS)
                self._process.kill()
                await self.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
