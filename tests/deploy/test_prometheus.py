"""The alert rules: Prometheus accepts them, each fires, uses metrics that exist, and has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.debian import find_unpacked
from support.foreign import ToolMissing, cache_folder

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"


def rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (gantrymq[acl])")
    (group,) = yaml.safe_load((FOLDER / "gantrymq.rules.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "gantrymq.rules.yml"), ("test", "rules", "gantrymq.test.yml")], ids=" ".join
)
def test_promtool_accepts_the_rules_and_each_one_fires(arguments: tuple[str, ...]) -> None:
    try:
        promtool = find_unpacked(cache_folder(ROOT / "tests" / "interop" / ".cache"), "promtool", "prometheus")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_is_tested_and_has_a_runbook() -> None:
    names = [rule["alert"] for rule in rules()]
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "gantrymq.test.yml").read_text())
    page = (ROOT / "docs" / "howto" / "alerts.md").read_text()
    assert tested == names
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == names


def test_the_rules_use_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    missing = page.partition("## RocketMQ's metrics that are missing")[2].partition("\n## ")[0]
    known = set(re.findall(r"`((?:gantrymq|rocketmq)_\w+)`", page)) - set(re.findall(r"`(rocketmq_\w+)`", missing))
    used = {name for rule in rules() for name in re.findall(r"(?:gantrymq|rocketmq)_\w+", rule["expr"])}
    assert used
    assert used <= known
