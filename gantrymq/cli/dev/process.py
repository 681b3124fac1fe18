"""One server of a local cluster as a process: starts, awaits, watches and stops it by its process id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import trio

from gantrymq.cli.dev.plan import Member
from gantrymq.cli.failures import CommandFailed

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 12.0
"""The time for a clean stop, in seconds, before the process is killed; a broker drains for at most 8 seconds."""
POLL_SECONDS: Final = 0.05
LAST_LINES: Final = 5


class ServerProcess:
    """A member of the cluster. ``state`` is starting, ready or ended."""

    def __init__(self, member: Member, folder: Path) -> None:
        self.member = member
        self.log = folder / f"{member.label}.log"
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

    async def start(self) -> None:
        """Start it and wait until it prints ``ready``; :class:`CommandFailed` with its last lines if it does not."""
        with self.log.open("ab") as errors:
            # This thread starts it, because the child notices the end of the thread. It gets its own session, so that
            # a Ctrl-C in the terminal reaches only the parent.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own command line; spawning takes milliseconds
                [sys.executable, "-m", "gantrymq.cli.dev.child", str(os.getpid()), *self.member.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        with trio.move_on_after(READY_SECONDS):
            if await self._says_ready():
                self.state = "ready"
                return
        await self.stop()
        raise CommandFailed(f"{self.member.label} did not start; its log: {self.log}\n{self._last_lines()}")

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        while (code := self.code) is None:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(POLL_SECONDS)
        return code

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if it has not ended in time; returns when it has ended."""
        if self._process is None:
            return
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_SECONDS):
                await self.wait()
            if self.code is None:
                self._process.kill()
                await self.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    async def _says_ready(self) -> bool:
        stdout = None if self._process is None else self._process.stdout
        if stdout is None:
            return False
        said = b""
        async with trio.lowlevel.FdStream(os.dup(stdout.fileno())) as stream:
            async for part in stream:
                said += part
                if any(line.startswith(b"ready") for line in said.splitlines(keepends=True) if line.endswith(b"\n")):
                    return True
        return False

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:])
