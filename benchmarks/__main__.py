"""``make bench``: GantryMQ and the Java broker in turns on this machine, the same load on both, medians and ratios."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))  # support: RocketMQ's programs, real processes

from arguments import WrongUsage, read
from bench_run import FAILURES, Run, print_progress
from scenarios import chosen
from special_groups import SPECIAL


def main() -> int:
    """Run the chosen scenarios and groups. Results measured before a failure are printed and written as well."""
    try:
        given = read(sys.argv[1:])
    except WrongUsage as wrong:
        print_progress(str(wrong))
        return 2
    scenarios = chosen(given.only, given.groups)
    special = [] if given.only else [group for group in given.groups if group in SPECIAL]
    if not scenarios and not special:
        print_progress(f"no scenario has {given.only!r} in its name")
        return 2
    run = Run(given, scenarios, special)
    code = 0
    try:
        run.measure()
    except KeyboardInterrupt:
        run.failures.append("interrupted")
        code = 130
    except FAILURES as error:
        run.failures.append(str(error))
    code = code or (1 if run.failures else 0)
    run.publish()
    return code


if __name__ == "__main__":
    sys.exit(main())
