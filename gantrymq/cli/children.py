"""Runs a GantryMQ server as a child process: starts it, waits until it is ready, and stops it by its process id."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gantrymq.cli.failures import CommandFailed

READY_SECONDS = 60.0
STOP_SECONDS = 15.0


class ServerChild:
    """``gantrymq serve`` with ``arguments``; its logs go to the end of ``log``. Stopped when the block ends.

    ``broker`` and ``nameserver`` are the addresses in its ``ready`` line; ``seconds`` is the duration of the start.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        self._arguments = arguments
        self.broker = ""
        self.nameserver = ""
        self.seconds = 0.0

    def __enter__(self) -> Self:
        started = time.monotonic()
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [sys.executable, "-m", "gantrymq.cli", "serve", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        timer = threading.Timer(READY_SECONDS, self._process.kill)
        timer.start()
        try:
            self._await_ready()
        except BaseException:
            self._process.kill()
            self._end()
            raise
        finally:
            timer.cancel()
        self.seconds = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._end()
        if code and error is None:
            raise CommandFailed(f"the broker ended with exit code {code}; its log: {self.log}\n{self._last_lines()}")

    def _await_ready(self) -> None:
        assert self._process.stdout is not None  # the stop was requested
        for line in self._process.stdout:
            if line.startswith("ready"):
                addresses = dict(word.partition("=")[::2] for word in line.split()[1:])
                self.broker, self.nameserver = addresses["broker"], addresses["nameserver"]
                return
        raise CommandFailed(f"the broker did not start; its log: {self.log}\n{self._last_lines()}")

    def _end(self) -> int:
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-5:])
