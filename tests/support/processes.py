"""Child processes for tests: their output, their end, and cleanup."""

from __future__ import annotations

import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from support.warm import WarmProcess, warm_start

STOP_SECONDS = 45.0
"""The time limit from the stop request to the end of a child, which is then killed."""
DUMP_SECONDS = 5.0
LOG_TAIL_BYTES = 10_000
GANTRYMQ = (sys.executable, "-m", "gantrymq.cli")
"""The start of our command line."""
LATE_DISK = ("--set", "plugin.flowcontrol.busy_after=1m", "--set", "plugin.flush.timeout=1m")
"""Options of a broker that accepts each message: the disk is late while other tests write."""


class ChildFailed(Exception):
    """A child ended, or kept silent, before it said what was awaited; the text holds the end of its output."""


_given: deque[int] = deque(maxlen=100)
"""The ports of the last calls: whoever got one may not listen on it yet."""
_given_lock = threading.Lock()


PORTS_VARIABLE = "GANTRYMQ_TEST_PORTS"
"""``first-last``, the ports of this run of pytest, where several run at the same time."""


def free_ports(count: int = 1, *, around: Sequence[int] = (0,)) -> list[int]:
    """TCP ports of the loopback on which nothing listens; the ports at the distances ``around`` are free as well.

    They lie below the range that the system takes for outgoing connections, so that none is lost between this call
    and the child's start; each worker of pytest-xdist has a part of the range, as has each of several
    runs of pytest by :data:`PORTS_VARIABLE`, and no thread gets what another one has
    just been given. A RocketMQ broker at ``p`` wants ``around=(0, 1, -2)``.
    """
    chance = random.SystemRandom()
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = max(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), worker + 1)
    lowest, highest = map(int, os.environ.get(PORTS_VARIABLE, "20000-31999").split("-"))
    width = (highest + 1 - lowest) // workers
    first = lowest + width * worker
    ports: list[int] = []
    for _ in range(1000):
        port = chance.randrange(first + 2, first + width - 2)
        with _given_lock:
            if all(abs(port - other) > 4 for other in _given) and all(_is_free(port + distance) for distance in around):
                ports.append(port)
                _given.append(port)
        if len(ports) == count:
            return ports
    raise ChildFailed(f"no {count} free ports found in 1000 tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(done: Callable[[], bool], timeout: float = 30.0) -> None:
    """Returns once ``done`` of something outside this process; ChildFailed after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise ChildFailed(f"not done in {timeout:g} s")
        time.sleep(0.05)


def pause(pid: int) -> None:
    """Send SIGSTOP and return once every thread of the process has stopped: a busy machine takes a while."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(_is_stopped(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")))


def _is_stopped(stat: Path) -> bool:
    """Whether the thread is stopped, by the state after its name (proc(5))."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return True


class Partner(ABC):
    """A program that prints lines and reads lines: a process, or a command of a process that runs many.

    Used as a context manager it is stopped at the end in any case.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.arguments = list(arguments)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._kept: deque[str] = deque()
        """Lines that were read too early, before those of ``_lines``."""
        self._said: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def say(self, line: str) -> None:
        """Writes a line to its stdin."""

    @abstractmethod
    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code, once it has ended by itself."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it whatever it does, and closes what belongs to it."""

    @abstractmethod
    def _code(self) -> int | None:
        """The exit code; None while it runs."""

    def lines(self, timeout: float = 30.0) -> Iterator[str]:
        """The lines as they come, until stdout ends; ``timeout`` seconds in all, then ChildFailed."""
        deadline = time.monotonic() + timeout
        while True:
            if self._kept:
                yield self._kept.popleft()
                continue
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ChildFailed(f"nothing awaited came in {timeout:g} s; {self._story()}") from None
            if line is None:
                self._lines.put(None)
                return
            yield line

    def try_line(self, timeout: float) -> str | None:
        """The next line, or None when none comes in ``timeout`` seconds or stdout has ended."""
        if self._kept:
            return self._kept.popleft()
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
        return line

    def wait_line(self, wanted: Callable[[str], bool], timeout: float = 30.0) -> str:
        """The first line that is ``wanted``; those before it are dropped."""
        for line in self.lines(timeout):
            if wanted(line):
                return line
        raise ChildFailed(f"ended before it said what was awaited; {self._story()}")

    def events(self, timeout: float = 30.0) -> Iterator[dict[str, object]]:
        """The JSON objects among the lines."""
        for line in self.lines(timeout):
            if line.startswith("{"):
                yield msgspec.json.decode(line, type=dict[str, object])

    def wait_started(self) -> None:
        """Wait for the event ``started``. What comes before it is read next: a consumer gets its first messages while
        its start returns."""
        before: list[str] = []
        for line in self.lines():
            if line.startswith("{") and msgspec.json.decode(line, type=dict[str, object]).get("event") == "started":
                self._kept.extend(before)
                return
            before.append(line)
        raise ChildFailed(f"ended before it had started; {self._story()}")

    def wait_event(self, name: str, timeout: float = 30.0) -> dict[str, object]:
        """The first JSON object whose ``event`` is ``name``; those before it are dropped."""
        for event in self.events(timeout):
            if event.get("event") == name:
                return event
        raise ChildFailed(f"ended before its event {name!r}; {self._story()}")

    def _heard(self, line: str) -> None:
        self._said.append(line[:500])
        del self._said[:-20]
        self._lines.put(line)

    def _story(self) -> str:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
        last = "\n".join(self._said)
        return f"exit code {self._code()}, ran {self.arguments}\n-- last lines\n{last}\n-- log\n{tail}"


class Child(Partner):
    """One child process. Its stdout is read line by line, its stderr goes to ``log``.

    It is stopped politely first, by SIGKILL after :data:`STOP_SECONDS`, always by its own process id.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        warm: bool = False,
    ) -> None:
        """``warm``: a fork is started (``support.warm``) where it is the same as a new interpreter with these
        arguments, which begin with :data:`GANTRYMQ`."""
        super().__init__(arguments, log)
        self._errors = log.open("ab")
        environ = {**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})}
        fork = warm_start(self.arguments[len(GANTRYMQ) :], environ, self._errors.fileno()) if warm else None
        self.process: subprocess.Popen[bytes] | WarmProcess = fork or subprocess.Popen(
            self.arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environ, cwd=cwd
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def say(self, line: str) -> None:
        """Writes a line to the child's stdin."""
        if self.process.stdin is None:
            raise ChildFailed("the child's stdin is closed")
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code, once the child has ended by itself."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"still runs after {timeout:g} s; {self._story()}") from None

    def _dump_stacks(self) -> None:
        """Let a Python child that hangs write into its log where each of its threads is; that ends it."""
        if self.arguments[0] == sys.executable:
            self.process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(DUMP_SECONDS)

    def terminate(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, then the exit code; ChildFailed when the child does not heed it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._dump_stacks()
            story = self._story()
            raise ChildFailed(
                f"still runs {timeout:g} s after SIGTERM; {story}\n-- threads\n{_threads(story)}"
            ) from None

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends the child whatever it does, and closes what belongs to it."""
        if self.process.poll() is None:
            try:
                self.terminate()
            except ChildFailed:
                self.kill()
        self._reader.join(STOP_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # a line that the child no longer read
                    continue

    def _code(self) -> int | None:
        return self.process.poll()

    def _read(self) -> None:
        if self.process.stdout is not None:
            for raw in self.process.stdout:
                self._heard(raw.decode("utf-8", "replace").rstrip("\r\n"))
        self._lines.put(None)


def _threads(story: str) -> str:
    """Each thread of a stack dump in one line, innermost call first: long reports are cut in the middle."""
    threads = re.split(r"^(?:Current thread|Thread) 0x\w+.*$", story, flags=re.MULTILINE)[1:]
    calls = [re.findall(r'File "(?:[^"]*/)?([^"]+)", line (\d+) in (\S+)', thread)[:6] for thread in threads]
    return "\n".join(" < ".join(f"{name}:{line} {function}" for name, line, function in each) for each in calls)


def gantrymq_child(
    arguments: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, warm: bool = True
) -> Child:
    """Our own command line in this interpreter, as a child.

    With ``warm`` it is started without its imports, which take most of a start's processor time (``support.warm``).
    Measurements need ``warm=False``: a fork shares memory with others.
    """
    return Child([*GANTRYMQ, *arguments], log, env=env, warm=warm)
