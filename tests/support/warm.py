"""``gantrymq`` processes that start in a fifth of the time: forks of a process that has imported everything.

Most of a start is importing: a second of processor time for a broker, and the tests start hundreds. Each process of
tests has one such parent, which imports the command line and the shipped plugins, and forks for each request. A fork
is a process of its own as any other: it has its own id, streams, environment, working directory and end.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Final, NoReturn

import msgspec

MESSAGE_MAX: Final = 1 << 20
"""Bytes of a request: arguments and environment."""
AT_IMPORT: Final = ("PYTHON", "LD_", "ASAN_", "UBSAN_", "GANTRYMQ_PURE", "MALLOC_")
"""The beginnings of environment variables that count when an interpreter starts or a module is imported."""


class Request(msgspec.Struct):
    """What a process starts with; its stdin, stdout and stderr come with it."""

    arguments: list[str]
    environ: dict[str, str]
    folder: str


def counted_at_import(environ: dict[str, str]) -> dict[str, str]:
    """The variables for which a fork would come too late."""
    return {name: value for name, value in environ.items() if name.startswith(AT_IMPORT)}


class WarmProcess:
    """A running fork: the part of :class:`subprocess.Popen` that tests use."""

    def __init__(self, pid: int, status: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        self._pidfd: int | None = None
        with suppress(ProcessLookupError):  # it has ended
            self._pidfd = os.pidfd_open(pid)  # a signal to the id alone could reach another process after its end

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once it has ended; subprocess.TimeoutExpired after ``timeout`` seconds."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("gantrymq", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None and self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                return None
        with self._lock:  # several threads may wait
            if self.returncode is None:
                text = os.read(self._status, 100)
                self.returncode = int(text) if text else -signal.SIGKILL  # lost with the process that forks
                os.close(self._status)
                if self._pidfd is not None:
                    os.close(self._pidfd)
                    self._pidfd = None
        return self.returncode


class Parent:
    """The process that forks, as its user sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.environ = counted_at_import({**os.environ, "PYTHONFAULTHANDLER": "1"})
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from support.warm import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip

    def start(self, request: Request, errors: int) -> WarmProcess:
        """A fork that runs the command line; its stderr is ``errors``."""
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        status, their_status = os.pipe()
        theirs = [their_stdin, their_stdout, errors, their_status]
        try:
            with self._lock:
                socket.send_fds(self._link, [msgspec.json.encode(request)], theirs)
                pid = int(self._link.recv(100) or b"0")
        finally:
            for number in (their_stdin, their_stdout, their_status):
                os.close(number)
        if not pid:
            raise RuntimeError(f"the parent of warm starts has ended with {self._process.wait()}")
        return WarmProcess(pid, status, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def end(self) -> None:
        """Ends the process that forks; what it started runs on."""
        self._link.close()
        self._process.wait()


_parents: list[Parent] = []


def warm_start(arguments: Sequence[str], environ: dict[str, str], errors: int) -> WarmProcess | None:
    """``gantrymq`` with these arguments; None where only a new interpreter does: without pidfds (they need Linux), or
    with variables of which an interpreter takes notice at its start."""
    if not hasattr(os, "pidfd_open"):
        return None
    if not _parents:
        _parents.append(Parent())
        atexit.register(_parents[0].end)
    if counted_at_import(environ) != _parents[0].environ:
        return None
    return _parents[0].start(Request(list(arguments), environ, os.getcwd()), errors)


def serve(number: int) -> None:
    """Fork for each request from the socket ``number``, until it is closed."""
    from gantrymq.kernel.loading import load_plugins
    from gantrymq.plugins import DEFAULT_PLUGINS

    load_plugins(DEFAULT_PLUGINS)
    for module in ("group", "serve", "servers", "watch"):
        with suppress(ImportError):  # of an extra
            import_module(f"gantrymq.cli.{module}")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked
    link = socket.socket(fileno=number)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}  # by pidfd: process id and where its exit code goes
    while True:
        for ready, _ in poll.poll():
            if ready == link.fileno():
                text, numbers, _, _ = socket.recv_fds(link, MESSAGE_MAX, 4)
                if not text:
                    return
                stdin, stdout, errors, status = numbers
                pid = os.fork()
                if pid == 0:
                    link.close()
                    for own, (_, other) in running.items():
                        os.close(own)
                        os.close(other)
                    os.close(status)
                    _run(msgspec.json.decode(text, type=Request), (stdin, stdout, errors))
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, status
                poll.register(pidfd, select.POLLIN)
                for each in (stdin, stdout, errors):
                    os.close(each)
                link.send(b"%d" % pid)
            else:
                pid, status = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):
                    os.write(status, b"%d" % code)
                os.close(status)


def _run(request: Request, streams: Sequence[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request.environ)
    os.chdir(request.folder)
    sys.argv = ["gantrymq", *request.arguments]
    from gantrymq.cli.__main__ import main

    main()
    raise SystemExit  # as main does
