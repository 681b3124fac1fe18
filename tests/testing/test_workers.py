"""The distribution of tests over several workers (tests/conftest.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def rules(request: pytest.FixtureRequest) -> Any:
    """The module tests/conftest.py."""
    return next(plugin for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "scope_of"))


def test_every_file_named_in_a_rule_exists(rules: Any) -> None:
    for name in (*rules.LONGEST, *rules.ONE_BY_ONE, *rules.BY_SYSTEM, *rules.TOGETHER):
        assert (TESTS / name).exists(), f"{name} moved: change tests/conftest.py"


def test_a_file_stays_on_one_worker_unless_a_rule_splits_it(rules: Any) -> None:
    retry = "tests/interop/test_java_retry.py"
    assert rules.scope_of("tests/kernel/store/test_store.py::test_a[1]") == "tests/kernel/store/test_store.py"
    assert rules.scope_of("tests/spark/test_wire.py::test_a") == rules.scope_of("tests/spark/test_source.py::test_b")
    assert rules.scope_of(f"{retry}::test_a[4.9.7-java]") == rules.scope_of(f"{retry}::test_b[java-2]")
    assert rules.scope_of(f"{retry}::test_a[4.9.7-java]") != rules.scope_of(f"{retry}::test_a[4.9.7-gantrymq]")
    assert rules.scope_of(f"{retry}::test_a[gantrymq]") != rules.scope_of(f"{retry}::test_b[gantrymq]")
    real = "tests/client/test_against_a_broker.py"
    assert len({rules.scope_of(f"{real}::test_a[{system}]") for system in ("gantrymq", "4.9.7", "5.3.3")}) == 3
    assert rules.scope_of(f"{real}::test_a[4.9.7]") == rules.scope_of(f"{real}::test_b[4.9.7-1]")
    assert rules.scope_of("tests/docs/test_commands_in_docs.py::test_a[1]").endswith("::test_a[1]")
