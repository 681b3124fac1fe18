"""``make bench`` runs its groups and keeps partial results after a failure. No number of a run is asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import Child

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = ("--seconds", "0.1", "--settle", "0.05", "--warm", "0.1", "--no-java", "--no-redis")

MakeBench = Callable[..., subprocess.CompletedProcess[str]]


def test_scenarios_are_chosen_by_groups_and_parts_of_their_names(load: Any) -> None:
    scenarios = load("scenarios")
    assert [each.name for each in scenarios.chosen("1x1, pull")] == [
        "pull 8 queues, 32 a pull", "pull 8x1, 32 a pull", "send 1x1 async", "send 1x1 sync"
    ]  # fmt: skip
    assert len(scenarios.chosen("", ["budget"])) == 14
    assert {each.connections for each in scenarios.chosen("", ["connections"])} == {1, 8, 64, 1000}
    sizes = {each.size for each in scenarios.chosen("", ["payloads"]) if each.batch == 1}
    assert sizes == {16, 100, 1024, 65_536}
    assert {each.queues for each in scenarios.chosen("", ["queues"])} == {8, 10_000}
    assert scenarios.chosen("nothing") == []


def test_more_queues_than_a_topic_has_are_several_topics(load: Any) -> None:
    (many,) = [each for each in load("scenarios").SCENARIOS if each.queues == 10_000]
    assert len(set(many.topics)) == 10
    assert not many.is_plain_send


def test_quick_runs_are_shorter_and_all_includes_more_growth_steps(load: Any) -> None:
    read = load("arguments").read
    usual, quick, everything = read([]), read(["--quick"]), read(["--groups", "all"])
    assert quick.timing.seconds < usual.timing.seconds
    assert quick.rounds == usual.rounds == 3
    assert list(everything.sizes.growth) == [1, 10, 20]
    assert list(read(["--growth", "3,2,2"]).sizes.growth) == [2, 3]
    assert not usual.kafka
    assert usual.is_whole
    assert quick.is_whole
    assert not any(read(given).is_whole for given in (["--groups", "idle"], ["--only", "send"], ["--no-java"]))
    assert read(["--kafka", "--groups", "idle, growth"]).groups == ["idle", "growth"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nonsense"], "no scenario has 'nonsense' in its name"),
        (["--groups", "nonsense"], "no group is called nonsense"),
    ],
)
@pytest.mark.slow
def test_wrong_usage_is_one_line(make_bench: MakeBench, arguments: list[str], message: str) -> None:
    done = make_bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_arguments_out_of_range_are_rejected(load: Any) -> None:
    module = load("arguments")
    for arguments, message in [
        (["--growth", "some"], "--growth is GiB"),
        (["--rounds", "0"], "more than nothing"),
        (["--seconds", "-1"], "more than nothing"),
    ]:
        with pytest.raises(module.WrongUsage, match=message):
            module.read(arguments)


def test_the_java_brokers_heap_is_limited_by_the_machines_memory(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = load("systems")
    for memory, heap, direct in [(2, 1, 1), (24, 6, 11), (256, 8, 15)]:
        monkeypatch.setattr(systems, "memory_bytes", lambda memory=memory: memory * 2**30)
        assert f"-Xmx{heap}g" in systems.java_memory()
        assert f"-XX:MaxDirectMemorySize={direct}g" in systems.java_memory()


@pytest.mark.slow
def test_a_short_run_of_our_broker_writes_page_plots_and_values(make_bench: MakeBench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    only = "send 8x16 async,64 KiB,batch 32 of,pull 8 queues,1x1 sync,queues,with consumers"
    done = make_bench("--rounds", "2", "--only", only, "--json", str(tmp_path / "values.json"), *TINY)
    assert done.returncode == 0, done.stderr
    assert "start to first acknowledged message" in done.stdout
    page = (tmp_path / "RESULTS.md").read_text()
    for name in ("pull 8 queues", "send 8x16 async", "batch 32", "send 8x16 64 KiB",
                 "send 8x16 to 10,000 queues", "first message to each of 10,000 queues", "received meanwhile",
                 "bare fdatasync of the same bytes, p50"):  # fmt: skip
        assert f"| {name}" in page
    for name in ("throughput", "latency"):
        assert f"(plots/{name}.svg)" in page
        assert (tmp_path / "plots" / f"{name}.svg").read_text().startswith("<?xml")
    values = json.loads((tmp_path / "values.json").read_text())
    assert values["ended_early"] is None
    rounds = {each["name"]: len(each["rounds"]) for each in values["scenarios"]}
    assert rounds["send 8x16 async"] == 2
    assert rounds["send 8x16 64 KiB"] == 1


@pytest.mark.slow
def test_a_benchmark_whose_broker_dies_reports_partial_results(tmp_path: Path) -> None:
    arguments = [
        "--results",
        str(tmp_path / "RESULTS.md"),
        "--json",
        str(tmp_path / "values.json"),
        "--groups",
        "budget",
    ]
    arguments += [*TINY, "--only", "pull,send 8x16 async,send 64x16 async"]
    command = [sys.executable, str(BENCHMARKS), *arguments]
    # its words for people go to stdout here, so that they can be waited for
    with Child(["sh", "-c", 'exec "$@" 2>&1', "sh", *command], tmp_path / "log") as bench:
        bench.wait_line(lambda line: line.startswith("gantrymq  pull"), 60)
        os.kill(_broker_of(bench.pid), signal.SIGKILL)
        lines = list(bench.lines(60))
        assert bench.wait() == 1
    (message,) = [line for line in lines if line.startswith("ended early")]
    assert "gantrymq" in message
    page = (tmp_path / "RESULTS-partial.md").read_text()
    assert "This is a part: it ended early" in page
    assert "| pull 8 queues, 32 a pull |" in page
    assert not (tmp_path / "RESULTS.md").exists()
    assert json.loads((tmp_path / "values.json").read_text())["ended_early"]


def _broker_of(pid: int) -> int:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError("the benchmark has no broker")
