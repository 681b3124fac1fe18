"""Send rates of our broker, and of the Java broker beside it where there is a JDK with Maven: `make bench`.

Each case runs on a fresh store, the systems taking turns (ours, Java, ours, Java, ...), and the median is told: rates
on a shared machine drift, and only turns next to each other compare. The generator is `load.py`, in a process of its
own on the same cores, for both alike. The Java broker has the interop tests' heap (384 MB, serial collector).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gantrymq.cli.tables import print_table
from gantrymq.kernel.fast import KIND
from gantrymq.testing.foreign import ToolMissing, cache_folder, find_java, start_broker, start_nameserver
from gantrymq.testing.processes import gantrymq_child

ROOT = Path(__file__).resolve().parents[1]
INTEROP = ROOT / "tests" / "interop"
CASES = [(64, 16), (8, 16), (64, 1), (1, 1)]
JAVA = "4.9.7"


@contextmanager
def ours(home: Path, flush: str) -> Iterator[str]:
    """Our broker with the default plugins; its address."""
    addresses = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    arguments = ["serve", "--data", str(home / "store"), *addresses, "--set", f"plugin.flush.mode={flush}"]
    with gantrymq_child([*arguments, "--log-level", "warning"], home / "log") as child:
        line = child.wait_line(lambda text: text.startswith("ready"))
        yield line.partition("broker=")[2].split()[0]


def java(home: Path, flush: str) -> Iterator[str]:
    """The Java broker at its defaults, the flush mode apart; its address."""
    found = find_java(JAVA, INTEROP / "java", cache_folder(INTEROP / ".cache"))
    nameserver = start_nameserver(found, home / "nameserver")
    try:
        broker = start_broker(found, home / "broker", nameserver.address, flushDiskType=f"{flush.upper()}_FLUSH")
        try:
            yield broker.address
        finally:
            broker.discard()
    finally:
        nameserver.discard()


SYSTEMS = {"gantrymq": ours, "java": contextmanager(java)}


def measure(system: str, flush: str, case: tuple[int, int], seconds: float, folder: Path) -> dict[str, float]:
    """One run on a fresh store."""
    home = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=folder))
    try:
        with SYSTEMS[system](home, flush) as address:
            command = [sys.executable, str(Path(__file__).with_name("load.py")), address, "--seconds", str(seconds)]
            command += ["--connections", str(case[0]), "--in-flight", str(case[1])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr)
            result: dict[str, float] = json.loads(done.stdout)
            return result
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """All cases, the table, and with --json the numbers of every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--flush", choices=["sync", "async", "both"], default="both")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where the stores are made; a real disk, please")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    systems = ["gantrymq"]
    if not given.no_java:
        try:
            find_java(JAVA, INTEROP / "java", cache_folder(INTEROP / ".cache"))
            systems.append("java")
        except ToolMissing as missing:
            print(f"without the Java broker: {missing}")
    folder = given.folder or Path(tempfile.gettempdir())
    print(
        f"GantryMQ ({KIND}), Python {platform.python_version()}, {os.cpu_count()} cores, bodies of 100 bytes, {folder}"
    )
    rows, runs = [], []
    for flush in ["sync", "async"] if given.flush == "both" else [given.flush]:
        for case in CASES:
            results: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
            for _ in range(given.rounds):
                for system in systems:
                    result = measure(system, flush, case, given.seconds, folder)
                    results[system].append(result)
                    runs.append({"system": system, "flush": flush, "case": case, **result})
            rates = {system: statistics.median(run["rate"] for run in found) for system, found in results.items()}
            ratio = f"{rates['gantrymq'] / rates['java']:.2f}" if "java" in rates else "-"
            p99 = [
                statistics.median(run["p99_us"] for run in found) for found in results.values() if "p99_us" in found[0]
            ]
            row = (flush, f"{case[0]} x {case[1]}", *(f"{rates.get(name, 0):,.0f}" for name in SYSTEMS), ratio)
            rows.append((*row, " / ".join(f"{value:,.0f}" for value in p99) or "-"))
            print(*rows[-1], flush=True)
    print_table(("flush", "connections x in flight", "gantrymq/s", "java/s", "ratio", "p99 us"), rows)
    if given.json:
        given.json.write_text(json.dumps(runs, indent=2))


if __name__ == "__main__":
    main()
