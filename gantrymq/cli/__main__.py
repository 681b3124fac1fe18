"""The entry point. From its first line on, Ctrl-C ends the process without a traceback."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run ``gantrymq`` with the process's arguments and exit with its code."""
    code = run(sys.argv[1:])
    try:
        if sys.stdout is not None:  # it was closed at the start (`>&-`)
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        from gantrymq.cli.failures import discard_stdout, report

        # The reader (`| head`) has closed the pipe, or the disk is full: the exit must not write to stdout again.
        discard_stdout()
        if not isinstance(error, BrokenPipeError):
            code = code or report(error)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code (0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted)."""
    try:
        from gantrymq.cli.failures import guarded
        from gantrymq.cli.group import cli
        from gantrymq.remoting.advice import COMMAND, use_advice

        with use_advice(COMMAND):
            return guarded(lambda: cli.main(arguments, prog_name="gantrymq", standalone_mode=False))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    main()
