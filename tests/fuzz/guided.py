"""Coverage-guided fuzzing: libFuzzer, through atheris, runs one target and keeps the inputs that reach new code.

    python tests/fuzz/guided.py                                     the names of the targets
    python tests/fuzz/guided.py NAME CORPUS [-max_total_time=60 …]  one target; further options are libFuzzer's
    python tests/fuzz/guided.py --all FOLDER SECONDS                each in turn, so many seconds in all

Targets are the parsers of ``fuzz_targets`` and the property-based tests that compare the compiled loops with their
plain twins (Hypothesis builds their examples from libFuzzer's bytes). ``CORPUS`` is a folder that keeps what was found;
it is made, with the target's own corpus, when it is not there. An input that breaks a promise ends the process with an
error, and lies in the working directory as ``crash-…``; ``guided.py NAME crash-…`` runs it again.

Coverage is that of the Python code, and of the compiled loops when they were built for it (``make fuzz``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

# The code whose coverage guides; to instrument all of the broker takes longer than a short run.
INSTRUMENTED = [
    "fuzz_targets",
    "gantrymq.kernel.store.recovery.checkpoint",
    "gantrymq.kernel.fast",
    "gantrymq.kernel.store.log.record",
    "gantrymq.plugins.consume.fast",
    "gantrymq.plugins.consume.plain",
    "gantrymq.plugins.filter",
    "gantrymq.plugins.produce.fast",
    "gantrymq.plugins.produce.plain",
    "gantrymq.plugins.produce.validate",
    "gantrymq.remoting",
]
with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
    from fuzz_targets import TARGETS

TESTS = Path(__file__).parents[1]
PROPERTIES = {
    "twins: damaged requests": ("kernel/fast/test_twins_requests", "test_both_twins_reject_the_same_damaged_requests"),
    "twins: sends": ("plugins/produce/test_twins", "test_sends_become_the_same_records_entries_and_answers"),
    "twins: records": ("kernel/fast/test_twins_requests", "test_both_twins_decode_a_record_the_same"),
    "twins: pulls": ("plugins/consume/test_twins", "test_gather"),
    "twins: rows": ("kernel/fast/test_twins_records", "test_both_twins_encode_the_same_rows"),
}
"""Names of property-based tests: the module below ``tests`` and the test."""


def property_test(module: str, test: str) -> Callable[[bytes], object]:
    """The test as a function of the bytes that its examples are built from."""
    spec = importlib.util.spec_from_file_location(module.replace("/", "_"), TESTS / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[loaded.__name__] = loaded
    spec.loader.exec_module(loaded)
    run: Callable[[bytes], object] = getattr(loaded, test).hypothesis.fuzz_one_input
    return run


def parser(name: str) -> Callable[[bytes], None]:
    """The parser, with the errors that it may raise taken for a success."""
    target = TARGETS[name]

    def run(data: bytes) -> None:
        with contextlib.suppress(target.errors):
            target.parse(data)

    return run


def random_examples(name: str) -> list[bytes]:
    """Bytes enough for whole examples: from the single bytes that libFuzzer begins with, Hypothesis builds nothing."""
    chance = random.Random(name)
    return [chance.randbytes(4096) for _ in range(64)]


def run_all(folder: Path, seconds: int) -> None:
    """Each target in a process of its own; ends with status 1 when one found a fault."""
    names = [*TARGETS, *PROPERTIES]
    share = max(1, seconds // len(names))
    failed = []
    for name in names:
        print(f"== {name}, {share} s", flush=True)
        corpus = folder.resolve() / re.sub("[^a-z0-9]+", "-", name.lower())
        command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), __file__, name, str(corpus)]
        log = corpus.with_suffix(".log")
        corpus.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            ended = subprocess.run(
                [*command, f"-max_total_time={share}", f"-artifact_prefix={corpus}-"], stdout=output, stderr=output
            )
        print(log.read_text(errors="replace").rstrip().rpartition("\n")[2], flush=True)
        if ended.returncode:
            failed.append(f"{name}: {log}")
    if failed:
        raise SystemExit("faults were found:\n" + "\n".join(failed))


def main(arguments: list[str]) -> None:
    if len(arguments) < 2:
        print("\n".join([*TARGETS, *PROPERTIES]))
        return
    name, corpus, *options = arguments
    if name == "--all":
        run_all(Path(corpus), int(options[0]))
        return
    folder = Path(corpus)
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, data in enumerate(TARGETS[name].corpus if name in TARGETS else random_examples(name)):
            (folder / f"given-{number}").write_bytes(data)
    run = property_test(*PROPERTIES[name]) if name in PROPERTIES else parser(name)
    # The first example of a property-based test builds tables of Unicode, which takes long under sanitizers.
    limits = f"-timeout={120 if name in PROPERTIES else 10}", "-rss_limit_mb=4096"
    atheris.Setup([sys.argv[0], corpus, *limits, *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.devnull)
    main(sys.argv[1:])
