"""A server of ``gantrymq dev up`` in its own process: ``python -m gantrymq.cli.dev.child PARENT COMMAND...``.

It gets SIGTERM when its parent ends for any reason, so that no process remains with ports and stores in use.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    from gantrymq.cli.__main__ import run

    end_with(int(sys.argv[1]))
    sys.exit(run(sys.argv[2:]))
