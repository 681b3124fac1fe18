"""A server as the child of a command: ``python -m gantrymq.cli.server_child [OPTIONS] PARENT COMMAND...``.

It gets SIGTERM when its parent ends for any reason, so that no process remains with ports and stores in use.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Linux, ``prctl(2)``."""


def end_with(parent: int) -> None:
    """Get SIGTERM when the thread that started this process ends, or at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int, help="the parent's process id")
    parser.add_argument("--cpu", type=int, help="run on this processor only")
    parser.add_argument("--label", help="the value of `process` in each line of the log")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    end_with(options.parent)
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})

    from gantrymq.cli import logs
    from gantrymq.cli.__main__ import run

    if options.label is not None:
        logs.COMMON_FIELDS["process"] = options.label
    return run(options.command)


if __name__ == "__main__":
    sys.exit(_main())
