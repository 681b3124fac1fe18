"""``python -m gantrymq.client worker module:app``: run an app with the client alone."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from gantrymq.client.app_loading import load_app
from gantrymq.client.app_process import INTERRUPTED, run_as_process
from gantrymq.client.errors import GantryError

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 130 interrupted. Wrong usage exits with 2."""
    parser = argparse.ArgumentParser(prog="python -m gantrymq.client", description="GantryMQ's client.")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="run the handlers of an app until SIGTERM or Ctrl-C")
    worker.add_argument("app", metavar="MODULE:APP", help="the module and the name of the gantrymq.App in it")
    worker.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio", help="the event loop")
    worker.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    given = parser.parse_args(arguments)
    logging.basicConfig(
        level=given.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        run_as_process(load_app(given.app), given.backend, _report)
    except (GantryError, ValueError) as error:
        return _report(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _report(error: BaseException) -> int:
    sys.stderr.write(f"gantrymq: {error}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
