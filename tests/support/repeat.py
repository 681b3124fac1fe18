"""Find flaky tests: run pytest several times beside a process that keeps a processor busy, with one line for each run.

``python tests/support/repeat.py --runs 10 --log build/repeat -- PYTEST-ARGUMENT...``; ``make repeat`` calls it. Each
run has the next slice of the repetitive tests, no second attempts, and a log of its own. The exit code is 1 if any test
failed, and a run that ended early (no tests, wrong usage) ends the series with pytest's exit code.

``--stall`` and ``--late-threads`` cause all the time what a busy machine causes now and then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from support.stalls import stalling

SLICE = "GANTRYMQ_SLICE"
"""As in ``support.slices``, which this program does not import: it also runs outside of the project's environment."""
LATE_THREADS = "GANTRYMQ_LATE_THREADS"
"""The longest delay in seconds, for ``support.late_threads``."""
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with its parent, also when that is killed."""
COUNTS = re.compile(r"\b(?:\d+ (?:passed|failed|errors?|skipped)(?:, )?)+")


def main(argv: list[str] | None = None) -> int:
    """Run the series, and return the exit code."""
    parser = argparse.ArgumentParser(description="Run pytest several times beside a busy processor.")
    parser.add_argument("--runs", type=int, default=10, help="how often (default: 10)")
    parser.add_argument("--busy", type=int, default=1, help="processes that only use processor time (default: 1)")
    parser.add_argument("--stall", type=float, default=0.0, metavar="S", help="pause processes for up to S seconds")
    parser.add_argument(
        "--late-threads", type=float, default=0.0, metavar="S", help="let threads begin up to S seconds late"
    )
    parser.add_argument("--log", type=Path, default=Path("build/repeat"), help="folder of the logs, one for each run")
    parser.add_argument("arguments", nargs="*", metavar="PYTEST-ARGUMENT", help="after --: folders, tests, options")
    given = parser.parse_args(argv)
    given.log.mkdir(parents=True, exist_ok=True)
    if given.late_threads:
        os.environ[LATE_THREADS] = str(given.late_threads)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(given.busy)]
    try:
        return _series(given.runs, given.log, given.arguments, given.stall)
    except KeyboardInterrupt:
        return 130
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _series(runs: int, folder: Path, arguments: list[str], stall_s: float) -> int:
    first = int(os.environ.get(SLICE) or time.time() // (24 * 3600))
    failures: Counter[str] = Counter()
    for run in range(1, runs + 1):
        log = folder / f"run-{run}.log"
        began = time.monotonic()
        code, failed = _run(log, first + run - 1, arguments, stall_s)
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        lines = log.read_text(errors="replace").splitlines()
        counts = next((match[0] for line in reversed(lines) if (match := COUNTS.search(line))), "no test ran")
        print(f"run {run} of {runs}: {counts} in {minutes}:{seconds:02} (slice {first + run - 1})", *failed, flush=True)
        failures.update(failed)
        if code not in (0, 1):
            print(f"pytest ended with exit code {code}: see {log}", file=sys.stderr)
            return code
    for test, count in failures.most_common():
        print(f"failed in {count} of {runs} runs: {test}")
    return 1 if failures else 0


def _run(log: Path, number: int, arguments: list[str], stall_s: float) -> tuple[int, list[str]]:
    """Run pytest once; its exit code, and the ids of the tests that failed."""
    cache = log.parent / "cache"
    failed = cache / "v/cache/lastfailed"
    failed.unlink(missing_ok=True)
    environment = os.environ | {SLICE: str(number), "GANTRYMQ_STRICT": "true"}
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache.absolute()}", *arguments]
    with ExitStack() as stack:
        file = stack.enter_context(log.open("wb"))
        pytest = stack.enter_context(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment))
        if stall_s:
            stack.enter_context(stalling(pytest.pid, stall_s))
        code = pytest.wait()
    return code, sorted(json.loads(failed.read_text())) if failed.exists() else []


if __name__ == "__main__":
    sys.exit(main())
