"""One server of a local cluster: its process, and the file of its logs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import trio

from gantrymq.cli.dev.plan import Member
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.server_process import ServerProcess

READY_SECONDS: Final = 60.0
LAST_LINES: Final = 5


class MemberProcess(ServerProcess):
    """A member of the cluster."""

    def __init__(self, member: Member, folder: Path) -> None:
        super().__init__(member.label)
        self.member = member
        self.log = folder / f"{member.label}.log"

    async def start(self) -> None:
        """Start it and wait until it prints ``ready``; :class:`CommandFailed` with its last lines if it does not."""
        with self.log.open("ab") as errors:
            self.spawn(self.member.arguments, stdout=subprocess.PIPE, stderr=errors)
        with trio.move_on_after(READY_SECONDS):
            if await self._is_ready():
                self.state = "ready"
                return
        await self.stop()
        raise CommandFailed(f"{self.label} did not start; its log: {self.log}\n{self._last_lines()}")

    async def _is_ready(self) -> bool:
        if self.stdout is None:
            return False
        said = b""
        async with trio.lowlevel.FdStream(os.dup(self.stdout.fileno())) as stream:
            async for part in stream:
                said += part
                if any(line.startswith(b"ready") for line in said.splitlines(keepends=True) if line.endswith(b"\n")):
                    return True
        return False

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:])
