"""The commands on the pages run as written, against a real `gantrymq serve`.

:mod:`support.pages` describes the marks of the blocks. Pages that use Spark are run by ``tests/spark/test_pages.py``.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from gantrymq.cli.group import COMMANDS
from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings, show
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS
from support.pages import (
    LANGUAGES,
    MARK,
    PAGES,
    PART,
    ROOT,
    Block,
    PageServer,
    blocks,
    check_output,
    marked,
    name,
    run_page,
    run_page_server,
    steps,
    uses_spark,
)

COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:gantrymq|make|pip|python3?|pytest|cd|git) [a-z-]", re.MULTILINE)
"""First words of commands, which a block without a language must not have."""
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    """A page server without running processes."""
    with run_page_server(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", [page for page in PAGES if steps(page) and not uses_spark(page)], ids=name)
def test_commands_on_a_page_run(page: Path, tmp_path: Path, server: PageServer) -> None:
    run_page(page, tmp_path, server)


def test_the_parts_in_the_tutorial_are_the_example_plugin() -> None:
    parts = [
        block.text
        for block in steps(ROOT / "docs" / "tutorial" / "write-a-plugin.md")
        if block.mark == f"{PART}gantrymq_stamp.py"
    ]
    joined = [line for line in "".join(parts).splitlines() if line]
    example = ROOT / "examples" / "plugins" / "stamp" / "gantrymq_stamp.py"
    assert joined == [line for line in example.read_text().splitlines() if line]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_shell_or_python_is_run_or_gives_a_reason(page: Path) -> None:
    for block in blocks(page):
        if block.language in LANGUAGES:
            assert MARK.fullmatch(block.mark), f"{name(page)}: a block without a mark:\n{block.text}"
        elif not block.language:
            assert not COMMAND.search(block.text), (
                f"{name(page)}: commands in a block without a language:\n{block.text}"
            )


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=name(page)) for page in PAGES for block in marked(page, "plugin")]
)
def test_hooks_on_a_page_have_the_specified_arguments(block: Block) -> None:
    place: dict[str, object] = {"attrs": attrs, "hookimpl": hookimpl}
    exec(compile(textwrap.dedent(block.text), "<page>", "exec", dont_inherit=True), place)
    owners = [
        place,
        *(vars(value) for value in place.values() if inspect.isclass(value) and value.__module__ == "builtins"),
    ]
    found = {
        hook: value for owner in owners for hook, value in owner.items() if hasattr(value, f"{hookspecs.PROJECT}_impl")
    }
    assert found, "a block that is marked as a plugin's has hooks"
    for hook, function in found.items():
        known = inspect.signature(getattr(hookspecs, hook)).parameters
        assert {*inspect.signature(function).parameters} - {"self"} <= {*known}, hook


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if marked(page, "test")], ids=name)
def test_tests_on_a_page_pass(page: Path, tmp_path: Path, server: PageServer) -> None:
    environ = {**server.environ, "GANTRYMQ_SIMULATION_SEEDS": "1"}
    for number, block in enumerate(marked(page, "test")):
        (tmp_path / f"test_of_page_{number}.py").write_text(block.text)
        command = ["pytest", "-q", "-p", "no:cacheprovider", f"test_of_page_{number}.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_readme_is_run_from_start_to_end() -> None:
    marks = [(block.mark, block.language) for block in marked(ROOT / "README.md", "run", "serve")]
    assert marks == [("serve", "sh"), ("run", "sh"), ("run", "python"), ("run", "sh")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_have_targets(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{name(page)}: {target}"


def test_the_configuration_page_has_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "howto" / "configure.md").read_text()
    rows = build_config(read_settings(), load_plugins(DEFAULT_PLUGINS)).explain()
    missing = [
        f"{row.section}.{row.key} = {show(row.value)}"
        for row in rows
        if f"| `{row.section}.{row.key}` | `{show(row.value)}` |" not in text
    ]
    assert not missing


def test_keys_on_the_configuration_page_exist() -> None:
    text = (ROOT / "docs" / "howto" / "configure.md").read_text()
    known = {
        f"{row.section}.{row.key}" for row in build_config(read_settings(), load_plugins(DEFAULT_PLUGINS)).explain()
    }
    assert set(re.findall(r"^\| `([a-z.]+\.[a-z0-9_]+)` \| `", text, re.MULTILINE)) == known


def test_commands_on_the_pages_exist() -> None:
    """Every ``gantrymq word`` in a fenced block is a command."""
    commands = {*COMMANDS, "export"}
    for page in PAGES:
        for fence in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for word in re.findall(r"^(?:\w+=\S+ )*gantrymq ([a-z-]+)", fence, re.MULTILINE):
                assert word in commands, f"{name(page)}: gantrymq {word}"


def test_an_output_on_a_page_must_be_what_the_block_prints() -> None:
    table = "+---+\n| id|\n+---+\n"
    check_output(table, f"\n{table}\n")
    check_output("run 1 of ...: +---+", f"run 1 of 2.5 s: {table[:5]}")
    with pytest.raises(AssertionError, match="it printed"):
        check_output(table, table.replace("id", "no"))
