"""Logs on stderr or in a file, one line for each event: colored text in a terminal, JSON otherwise.

A line that cannot be written (a full disk, a closed pipe) is lost; the process goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import rich_click as click

from gantrymq.remoting.log_levels import LEVELS, LogLevels, component_of, drop_lower_levels, start_with
from gantrymq.remoting.recent_events import keep_recent

COMMON_FIELDS: dict[str, str] = {}
"""Fields of each line of this process's log."""
F = TypeVar("F", bound=Callable[..., Any])
_MODE: Final = 0o640


class LogLevelsParam(click.ParamType[str]):
    """A text for :meth:`LogLevels.parse`."""

    name = "log levels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; wrong usage for one that cannot be read."""
        try:
            LogLevels.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def log_level_option(default: str = "info") -> Callable[[F], F]:
    """The option ``--log-level``."""
    return click.option(
        "--log-level",
        type=LogLevelsParam(),
        default=default,
        show_default=True,
        metavar="LEVEL[,COMPONENT=LEVEL]",
        help=f"The lowest level that is logged ({', '.join(LEVELS)}), also by component: info,ha=debug.",
    )


def log_options(function: F) -> F:
    """The options of servers: ``--log-level`` and ``--log-file``."""
    file = click.option(
        "--log-file",
        envvar="GANTRYMQ_LOG_FILE",
        show_envvar=True,
        metavar="FILE",
        help="Append the log to this file as JSON lines. SIGUSR1 opens it again, after it was moved.",
    )
    return log_level_option()(file(function))


class LogFile:
    """A file that lines are appended to; several processes may do so. ``path`` is opened again by :meth:`reopen`."""

    def __init__(self, path: str) -> None:
        """:class:`OSError` if the file cannot be opened."""
        self.path = os.path.abspath(path)
        self._descriptor = self._open()
        self._is_torn = False

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def write(self, line: str) -> None:
        """Append a line. Of a line that the disk has no room for, a part may remain; the next one begins a new line."""
        data = f"{line}\n".encode(errors="backslashreplace")
        data = b"\n" + data if self._is_torn else data
        done = 0
        with suppress(OSError):
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        self._is_torn = done < len(data) if done else self._is_torn

    def reopen(self) -> None:
        """Write to the file that has the path now; :class:`OSError` without a change if it cannot be opened."""
        descriptor = self._open()
        try:
            # the number stays, so that no writer meets a closed one
            os.dup2(descriptor, self._descriptor, inheritable=False)
        finally:
            os.close(descriptor)


class _Stderr:
    def write(self, line: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _Logger:
    """What structlog's chain of processors writes to, with the component of the logger."""

    def __init__(self, sink: LogFile | _Stderr, name: str) -> None:
        self._sink = sink
        self.component = name.removeprefix("gantrymq.")

    def msg(self, message: str) -> None:
        self._sink.write(message)

    log = debug = info = warn = warning = error = err = failure = fatal = critical = exception = msg


_file: LogFile | None = None


def configure_logs(level: str, file: str | None = None) -> None:
    """Set structlog up for this process. ``level``: see :meth:`LogLevels.parse`; ``file``: instead of stderr.

    :class:`OSError` if the file cannot be opened.
    """
    import structlog

    global _file
    _file = None if file is None else LogFile(file)
    sink = _Stderr() if _file is None else _file
    levels = LogLevels.parse(level)
    start_with(levels)

    def add_common(logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        component = component_of(logger)
        if component:
            event.setdefault("component", component)
        event.update(COMMON_FIELDS)
        return event

    human = _file is None and sys.stderr.isatty()
    processors: list[Any] = [
        drop_lower_levels,
        structlog.contextvars.merge_contextvars,
        add_common,
        structlog.processors.add_log_level,
        keep_recent,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
        structlog.processors.StackInfoRenderer(),
    ]
    if human:
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(levels.lowest),
        logger_factory=lambda name="", *_: _Logger(sink, name),
        # a cached logger would use the stderr and the level of an earlier call in the same process
        cache_logger_on_first_use=False,
    )


def reopen_log_file() -> None:
    """Open the log file again, and log it; without one, nothing happens."""
    import structlog

    if _file is None:
        return
    log = structlog.get_logger("gantrymq.server")
    try:
        _file.reopen()
    except OSError as error:
        log.warning("log_file_not_reopened", path=_file.path, reason=error.strerror)
    else:
        log.info("log_file_reopened", path=_file.path)
