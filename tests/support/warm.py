"""``gantrymq`` processes that start in a fifth of the usual time: forks of a process with all imports.

Most of a start is importing: a second of processor time for a broker, and the tests start hundreds. Each process of
tests has one such parent, which imports the command line and the shipped plugins, and forks for each request. A fork
is a process of its own as any other: it has its own id, streams, environment, working directory and end.

A shell gets the same by a command file (:func:`write_command`): it sends its arguments, environment and streams to the
parent, passes its signals on to the fork, and ends as the fork ends.
"""

from __future__ import annotations

import atexit
import gc
import linecache
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Final, NoReturn

import msgspec

MESSAGE_MAX: Final = 1 << 20
"""Bytes of a request: arguments and environment."""
AT_IMPORT: Final = ("PYTHON", "LD_", "ASAN_", "UBSAN_", "GANTRYMQ_PURE", "MALLOC_")
"""The beginnings of environment variables that count when an interpreter starts or a module is imported."""


class Request(msgspec.Struct):
    """The arguments and environment of a process; its stdin, stdout and stderr come with it."""

    arguments: list[str]
    environ: dict[str, str]
    folder: str
    ignored: list[int] = []
    """Signals that the caller ignores: a shell's background job ignores SIGINT."""


ENVIRON: Final = {**os.environ, "PYTHONFAULTHANDLER": "1"}
"""The environment of the process that forks: none that a test has changed, whichever test starts it."""


def counted_at_import(environ: dict[str, str]) -> dict[str, str]:
    """The variables for which a fork would come too late."""
    return {name: value for name, value in environ.items() if name.startswith(AT_IMPORT)}


COLD: Final = b"cold"
"""The parent's response to a command file that needs a new interpreter."""
COMMAND: Final = """\
import _signal, _socket, array, marshal, os, sys

def start_cold():
    own = ["-W", "error"] if sys.argv[1:2] == ["-c"] else ["-m", "gantrymq.cli"]
    os.execv({python!r}, [{python!r}, *own, *sys.argv[1:]])

fork = None
early = []

def pass_on(number, frame):
    if fork is None:
        early.append(number)
    else:
        try:
            _signal.pidfd_send_signal(fork, number)
        except ProcessLookupError:
            pass

numbers = [_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2]
ignored = [number for number in numbers if _signal.getsignal(number) == _signal.SIG_IGN]
before = {{number: _signal.signal(number, pass_on) for number in numbers if number not in ignored}}
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
try:
    link.connect({address!r})
    request = marshal.dumps((sys.argv[1:], dict(os.environ), os.getcwd(), ignored))
    link.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    answer = link.recv(100)
except OSError:  # the parent has ended, or the request is too large
    answer = {cold!r}
if answer == {cold!r}:
    for number, handler in before.items():
        _signal.signal(number, handler)
    for number in early:
        os.kill(os.getpid(), number)
    start_cold()
try:
    fork = os.pidfd_open(int(answer))
except ProcessLookupError:
    pass
else:
    for number in early:
        pass_on(number, None)
for number in (0, 1, 2):
    os.close(number)
code = int(link.recv(100) or b"-9")
if code < 0:
    if code != -_signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
"""A command file. It imports nothing that is written in Python: its start takes a fiftieth of a second."""


COLD_COMMAND: Final = """\
#!/bin/sh
case $1 in
-c) exec "{python}" -W error "$@" ;;
*) exec "{python}" -m gantrymq.cli "$@" ;;
esac
"""
"""A command file where there are no pidfds."""


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
        """Send the signal, unless the process has ended."""
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
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.TemporaryDirectory(prefix="gantrymq-warm-", ignore_cleanup_errors=True)
        self._address = f"{self._folder.name}/link"
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen(64)
            numbers = theirs.fileno(), listener.fileno()
            call = f"serve({numbers[0]}, {numbers[1]}, {counted_at_import(ENVIRON)!r})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from support.warm import serve; {call}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=numbers,
                env={**ENVIRON, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip

    def write_command(self, path: Path) -> None:
        """A file that a shell runs as ``gantrymq``, or with ``-c TEXT`` as ``python -W error``."""
        program = path.with_name(f"{path.name}-warm.py")
        program.write_text(COMMAND.format(python=sys.executable, address=self._address, cold=COLD))
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -ISB "{program}" "$@"\n')
        path.chmod(0o755)

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
        self._folder.cleanup()


_parents: list[Parent] = []


def _parent() -> Parent:
    if not _parents:
        _parents.append(Parent())
        atexit.register(_parents[0].end)
    return _parents[0]


def warm_start(arguments: Sequence[str], environ: dict[str, str], errors: int) -> WarmProcess | None:
    """``gantrymq`` with these arguments; None where only a new interpreter does: without pidfds (they need Linux), or
    with variables of which an interpreter takes notice at its start."""
    if not hasattr(os, "pidfd_open"):
        return None
    if counted_at_import(environ) != counted_at_import(ENVIRON):
        return None
    return _parent().start(Request(list(arguments), environ, os.getcwd()), errors)


def write_command(path: Path) -> None:
    """Write a file that a shell runs as ``gantrymq``, or with ``-c TEXT`` as ``python -W error``: a warm start where it
    is the same as a new interpreter.

    It differs in two things: the fork is in another process group, so that a signal reaches it by the command's process
    only, and its parent is another process.
    """
    if hasattr(os, "pidfd_open"):
        _parent().write_command(path)
    else:
        path.write_text(COLD_COMMAND.format(python=sys.executable))
        path.chmod(0o755)


class _Forks:
    """The forks that run, and what asks for them: each has its exit code written to a descriptor of its own."""

    def __init__(
        self, link: socket.socket, listener: socket.socket, environ: dict[str, str], modules: Mapping[str, str]
    ) -> None:
        """``environ`` are the variables that counted at the imports, ``modules`` those of the commands: a command's is
        imported before its first fork."""
        self._link = link
        self._listener = listener
        self._modules = modules
        self._poll = select.poll()
        self._running: dict[int, tuple[int, int]] = {}  # by pidfd: process id and where its exit code goes
        self._commands: dict[
            int, tuple[socket.socket, int | None]
        ] = {}  # by descriptor: its link, its fork's process id
        self._environs = environ, {name: value for name, value in environ.items() if name != "PYTHONFAULTHANDLER"}
        for each in (link, listener):
            self._poll.register(each, select.POLLIN)

    def serve(self) -> None:
        """Fork for each request, until the link of the tests is closed."""
        while True:
            for ready, _ in self._poll.poll():
                if ready == self._link.fileno():
                    text, numbers, _, _ = socket.recv_fds(self._link, MESSAGE_MAX, 4)
                    if not text:
                        return
                    *streams, status = numbers
                    self._link.send(b"%d" % self._fork(msgspec.json.decode(text, type=Request), streams, status))
                elif ready == self._listener.fileno():
                    command, _ = self._listener.accept()
                    self._commands[command.fileno()] = command, None
                    self._poll.register(command, select.POLLIN)
                elif ready in self._commands:
                    self._read_command(*self._commands[ready])
                elif ready in self._running:
                    self._end(ready)

    def _read_command(self, command: socket.socket, fork: int | None) -> None:
        if fork is None:
            text, streams, _, _ = socket.recv_fds(command, MESSAGE_MAX, 3)
            request = Request(*marshal.loads(text)) if text else None
            if request and counted_at_import(request.environ) in self._environs:
                number = command.fileno()
                pid = self._fork(request, streams, os.dup(number))
                self._commands[number] = command, pid
                with suppress(BrokenPipeError):
                    command.send(b"%d" % pid)
                return
            for each in streams:
                os.close(each)
            with suppress(BrokenPipeError):
                command.send(COLD)
        for pidfd, (pid, _) in self._running.items():
            if pid == fork:  # the command's process was killed
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._poll.unregister(command)
        del self._commands[command.fileno()]
        command.close()

    def _fork(self, request: Request, streams: Sequence[int], status: int) -> int:
        if request.arguments and (module := self._modules.get(request.arguments[0])):
            with suppress(ImportError):  # of an extra; the fork reports it
                import_module(module)
        pid = os.fork()
        if pid == 0:
            for link in (self._link, self._listener, *(link for link, _ in self._commands.values())):
                link.close()
            for own, (_, other) in self._running.items():
                os.close(own)
                os.close(other)
            os.close(status)
            _run(request, streams)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, status
        self._poll.register(pidfd, select.POLLIN)
        for each in streams:
            os.close(each)
        return pid

    def _end(self, pidfd: int) -> None:
        pid, status = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):
            os.write(status, b"%d" % code)
        os.close(status)


def serve(number: int, listening: int, environ: dict[str, str]) -> None:
    """Fork for each request from the socket ``number``, and for each command file that connects to the socket
    ``listening`` with ``environ``, until the first is closed."""
    from gantrymq.cli.group import COMMANDS
    from gantrymq.kernel.loading import load_plugins
    from gantrymq.plugins import DEFAULT_PLUGINS

    load_plugins(DEFAULT_PLUGINS)
    for module in ("group", "serve", "servers", "watch"):
        with suppress(ImportError):  # of an extra
            import_module(f"gantrymq.cli.{module}")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked
    modules = {name: place.partition(":")[0] for name, place in COMMANDS.items()}
    listener = socket.socket(fileno=listening)
    _Forks(socket.socket(fileno=number), listener, environ, modules).serve()
    shutil.rmtree(os.path.dirname(listener.getsockname()), ignore_errors=True)  # its owner may have been killed


def _run(request: Request, streams: Sequence[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(request.environ)
    os.chdir(request.folder)
    if request.arguments[:1] == ["-c"]:
        _run_text(request.arguments[1])
        raise SystemExit
    sys.argv = ["gantrymq", *request.arguments]
    from gantrymq.cli.__main__ import main

    main()
    raise SystemExit  # as main does


def _run_text(text: str) -> None:
    """``python -W error -c TEXT``, but that modules imported before have given their warnings already."""
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    linecache.cache["<string>"] = (len(text), None, text.splitlines(keepends=True), "<string>")  # for tracebacks
    warnings.simplefilter("error")
    exec(compile(text, "<string>", "exec", dont_inherit=True), vars(main))
