"""The way in: from the first line on, a Ctrl-C ends without a traceback."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run ``gantrymq`` with the process's arguments and exit with its code."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader (`| head`) has gone; point stdout elsewhere so that the exit does not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code (0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted)."""
    try:
        from gantrymq.cli.failures import guarded
        from gantrymq.cli.group import cli

        return guarded(lambda: cli.main(arguments, prog_name="gantrymq", standalone_mode=False))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    main()
