"""Reports errors to the user: one line on stderr with the remedy, and an exit code, without a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress

import click

from gantrymq.remoting.errors import leaves

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
TRACEBACK_VARIABLE = "GANTRYMQ_TRACEBACK"
NO_MEMORY = "no memory is left, so the process has ended; give it more, or lower the limits of [limits]"
NO_THREAD = (
    "no thread can be started, so the process has ended: memory is used up, or the number of threads that this user or"
    " container may have (ulimit -u, pids.max)"
)

_ADVICE = {
    errno.EADDRINUSE: "another process listens there; stop it, or choose another address",
    errno.EADDRNOTAVAIL: "this machine does not have that address; choose one of its own, such as 127.0.0.1",
    errno.EACCES: "this user has no permission; choose another place, or grant the permission",
    errno.EPERM: "this user has no permission; choose another place, or grant the permission",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free disk space, or choose another folder",
    errno.EDQUOT: "the user's disk quota is used up; free disk space, or choose another folder",
    errno.EMFILE: "the process has too many open files; raise the limit (ulimit -n)",
    errno.ECONNREFUSED: "nothing listens there; is the broker or nameserver running?",
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "check the path",
}


class CommandFailed(Exception):
    """A command failed; the text has the reason and the remedy."""


def guarded(command: Callable[[], object]) -> int:
    """Run ``command``; returns its exit code. Errors are printed to stderr."""
    try:
        result = command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return FAILED
    except click.exceptions.Exit as stopped:
        return stopped.exit_code
    except click.Abort:
        return INTERRUPTED
    except SystemExit as stopped:
        # rich-click raises this if a group is called without a command
        return stopped.code if isinstance(stopped.code, int) else FAILED
    except click.ClickException as error:
        show_usage(error)
        return error.exit_code
    except BaseException as error:
        return report(error)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def show_usage(error: click.ClickException) -> None:
    """Report wrong usage on stderr; a group without a command prints its help instead."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:] if message[1:2].islower() else message
    context = getattr(error, "ctx", None)
    more = f"; see {context.command_path} --help" if context is not None else ""
    click.echo(f"gantrymq: {message}{more}", err=True)


def report(error: BaseException) -> int:
    """Report the errors on stderr; returns the exit code."""
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        traceback.print_exception(error)
    code = FAILED
    seen: list[str] = []
    for leaf in leaves(error):
        if isinstance(leaf, KeyboardInterrupt):
            return INTERRUPTED
        text, leaf_code = explain(leaf)
        code = max(code, leaf_code)
        seen += [line for line in text.splitlines() if line not in seen]
    for line in seen:
        click.echo(f"gantrymq: {line}", err=True)
    return code


def explain(error: BaseException) -> tuple[str, int]:
    """Text and exit code of one error."""
    from gantrymq.kernel.config.sources import ConfigError
    from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError, TaskFailed
    from gantrymq.remoting.errors import GantryError

    if isinstance(error, ConfigError):
        return str(error), WRONG_USAGE
    if isinstance(error, StartError | CommandFailed | GantryError):
        return str(error) or type(error).__name__, FAILED
    if isinstance(error, PluginError | TaskFailed):
        return f"a plugin failed, so the broker has ended: {error}", FAILED
    if isinstance(error, LogPoisoned):
        return f"{error}; the broker has ended so that nothing is acknowledged that is not stored", FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{advice_for(error)}", FAILED
    if isinstance(error, MemoryError):
        return NO_MEMORY, FAILED
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return NO_THREAD, FAILED
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name!r} is not installed in this environment", FAILED
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"a bug in GantryMQ, please report it ({text}); {TRACEBACK_VARIABLE}=1 shows where", FAILED


def advice_for(error: OSError) -> str:
    """The system's error and its remedy."""
    reason = error.strerror or str(error)
    if error.errno in _ADVICE:
        # trio and asyncio put their own text before the system's
        return f"{os.strerror(error.errno)}; {_ADVICE[error.errno]}"
    return reason


def warn(text: str) -> None:
    """Print a warning for the user."""
    click.echo(f"gantrymq: {text}", err=True)


def discard_stdout() -> None:
    """Send to nowhere what is written to stdout, and what is in its buffer: a write has failed, as others would."""
    with suppress(OSError, ValueError):  # stdout is closed, or no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
