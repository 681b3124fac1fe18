"""Generates reference pages from the code: ``python docs/generate.py``. A test checks that the pages are current."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import rich_click as click

from gantrymq.cli.group import COMMANDS, cli
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings, show
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `python docs/generate.py`; a test keeps it equal to the code. -->\n"
INTRODUCTION = """\
`gantrymq COMMAND --help` prints the same. [Conventions](conventions.md) has what all commands share: exit codes,
errors, durations, topics, and JSON.
`GANTRYMQ_TRACEBACK=1` adds the traceback to an error. `GANTRYMQ_NAMESERVER` replaces the default of `--nameserver`; so
does the current context, which replaces the following variables too (`gantrymq context`).
Commands that talk to a cluster sign their requests with `GANTRYMQ_ACCESS_KEY` and `GANTRYMQ_SECRET_KEY` (and
`GANTRYMQ_SECURITY_TOKEN`) where these are set, and use TLS with `GANTRYMQ_TLS=1`, or with `GANTRYMQ_TLS_CA`, a file of
trusted certificates.
"""
PLUGIN_COMMANDS = ("export",)
"""Commands of shipped plugins; other installed plugins are left out."""


def cell(text: object) -> str:
    """``text`` as one cell of a table."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def paragraphs(text: str) -> str:
    """A help text as Markdown paragraphs, a line each."""
    return "\n\n".join(re.sub(r"\s+", " ", part).strip() for part in text.split("\n\n"))


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """``command`` and its subcommands, depth first."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and (path != "gantrymq" or name in COMMANDS or name in PLUGIN_COMMANDS):
                yield from commands(below, f"{path} {name}")


def default_of(option: click.Option) -> str:
    """The default as the help text shows it."""
    if not option.show_default or option.default is None or option.is_flag:
        return ""
    return f"`{option.default}`"


def cli_page() -> str:
    """``cli.md``: every command with its arguments and options."""
    out = [
        NOTE,
        "# Command line\n",
        INTRODUCTION,
    ]
    for path, command in commands(cli, "gantrymq"):
        arguments = "".join(
            f" {each.make_metavar(click.Context(command))}"
            for each in command.params
            if isinstance(each, click.Argument)
        )
        out += [f"## `{path}{arguments}`\n", paragraphs(command.help or "") + "\n"]
        options = [each for each in command.params if isinstance(each, click.Option)]
        if options:
            out += ["| option | default | meaning |", "|---|---|---|"]
        for option in options:
            names = ", ".join([*option.opts, *option.secondary_opts])
            metavar = "" if option.is_flag else f" {cell(option.make_metavar(click.Context(command)))}"
            required = "required. " if option.required else ""
            out.append(f"| `{names}{metavar}` | {cell(default_of(option))} | {required}{cell(option.help or '')} |")
        out.append("")
    return "\n".join(out).rstrip() + "\n"


CONFIGURATION = """\
# Configuration keys

Every key of the kernel and of the shipped plugins, with its default and the key of RocketMQ's `broker.conf` that
sets it directly.
[Configure](../howto/configure.md) explains where a value comes from, its units, and what each key of a default plugin
means; [cluster](../howto/cluster.md) describes `plugin.ha`, [metrics](../howto/metrics.md) `plugin.metrics`,
[secure a broker](../howto/secure.md) `plugin.acl`, `plugin.tls`, `plugin.quota` and
`plugin.audit`.
`gantrymq print-config` prints the values that are in force.
"""


def configuration_page() -> str:
    """``configuration.md``: every key with its default and RocketMQ's name."""
    config = build_config(read_settings(environ={}), load_plugins([*DEFAULT_PLUGINS, *OPTIONAL_PLUGINS]))
    out, section = [NOTE, CONFIGURATION], ""
    for row in config.explain():
        if row.section != section:
            section = row.section
            out += ["", f"## `[{section}]`\n", "| key | default | RocketMQ |", "|---|---|---|"]
        key = config.rocketmq_keys.get((section, row.key))
        theirs = ", ".join(f"`{name}`" for name in (() if key is None else sorted((key.name, *key.older))))
        out.append(f"| `{section}.{row.key}` | `{cell(show(row.value))}` | {theirs} |")
    return "\n".join(out).rstrip() + "\n"


TESTING = """\
# Test library

`gantrymq.testing` is for tests of programs that use GantryMQ and for tests of plugins. It is installed with the
package; only the fixtures need `pytest`. [Test your code](../howto/test-your-code.md) introduces the fixtures,
[simulate a cluster](../howto/simulate-a-cluster.md) the simulated machines and networks; [write a
plugin](../tutorial/write-a-plugin.md) runs the conformance rules of a slot. Names that are not on this page, and names
with a leading underscore, may change without notice.
"""
TESTING_MODULES = (
    "fixtures", "plugin_broker", "harness", "requests", "memory_env", "fault_env", "flushkit", "gatekit", "filterkit",
    "transactionkit", "transformkit", "transacted", "tinystore", "ledger", "history", "simulated.run",
    "simulated.cluster", "simulated.machine", "simulated.env", "simulated.network", "simulated.link",
    "simulated.faults", "simulated.load", "simulated.seeds",
)  # fmt: skip
TESTING_FOLDER = Path(__file__).parents[1] / "gantrymq" / "testing"


def marked_up(text: str) -> str:
    """A docstring as Markdown: its roles and double backquotes become single ones."""
    return re.sub(r"``(.+?)``", r"`\1`", re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text))


def first_paragraph(node: ast.AST) -> str:
    """The first paragraph of the docstring."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    return marked_up(paragraphs((ast.get_docstring(node) or "").split("\n\n")[0]))


def call_of(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str = "") -> str:
    """The call of ``node``: ``name(arguments)``, or the name alone of a fixture or a property."""
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    name = f"{owner}.{node.name}" if owner else node.name
    if decorators & {"property", "pytest.fixture"}:
        return name
    given = copy.deepcopy(node.args)
    for each in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
        if each is not None:
            each.annotation = None
    if owner and "staticmethod" not in decorators:
        given.args = given.args[1:]
    arguments = ast.unparse(given)
    return f"{name}({arguments})"


def documented_names(module: str) -> Iterator[tuple[str, str]]:
    """The calls of the public names in a module of ``gantrymq.testing``, with the first paragraphs of their
    docstrings."""
    body = ast.parse((TESTING_FOLDER / f"{module.replace('.', '/')}.py").read_text()).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith(("_", "pytest_")):
                yield call_of(node), first_paragraph(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            starts = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            yield (
                (call_of(starts[0], node.name).replace(".__init__", "") if starts else node.name),
                first_paragraph(node),
            )
            for each in node.body:
                public = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_")
                if public and ast.get_docstring(each):
                    yield call_of(each, node.name), first_paragraph(each)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name, text = ast.unparse(target), ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = marked_up(paragraphs(str(following.value.value)))
            if not name.startswith("_"):
                yield name, text


def testing_page() -> str:
    """``testing.md``: every public name of ``gantrymq.testing``."""
    out = [NOTE, TESTING]
    for module in TESTING_MODULES:
        tree = ast.parse((TESTING_FOLDER / f"{module.replace('.', '/')}.py").read_text())
        out += [f"## `gantrymq.testing.{module}`\n", first_paragraph(tree) + "\n", "| name | meaning |", "|---|---|"]
        out += [f"| `{cell(name)}` | {cell(text)} |" for name, text in documented_names(module)]
        out.append("")
    return "\n".join(out).rstrip() + "\n"


PLUGIN_API = """\
# The broker in the plugin API

Hooks with the argument `broker` get the broker. This page lists all names of it that a plugin may use. Annotate it as
`gantrymq.kernel.api.Broker`; mypy then reports other names. [Hooks](hooks.md) describes the batches.
`gantrymq.plugins.interfaces` has the protocols of the objects that the shipped plugins offer with `broker.registry`:
topics, groups, offsets, statistics and others.

## Versions

This is version 1 of the plugin API (`gantrymq.kernel.hookspecs.GANTRYMQ_API`): the hooks, their batches and the names
on this page. A plugin may declare the version that it needs with an attribute `api_version = 1`. If the broker has
another version, it refuses to start, with an error that names both. A plugin without the attribute counts as one of
this version.

- Within a version, releases may add hooks, names, columns and optional arguments. They remove nothing and change no
  meaning.
- A part that will be removed is first marked as deprecated, on its page and in the changelog, for at least two minor
  releases. The release that removes it raises the version number, and its changelog names the replacement.
- Modules of `gantrymq.kernel` and `gantrymq.remoting` that no page names, names with a leading underscore, and C
  declarations (`.pxd`) are not part of the plugin API.
"""


def plugin_api_page() -> str:
    """``plugin-api.md``: every name of the broker that plugins may use."""
    tree = ast.parse((Path(__file__).parents[1] / "kernel" / "api.py").read_text())
    out = [NOTE, PLUGIN_API, "## Names\n", "| name | meaning |", "|---|---|"]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    text = marked_up(paragraphs(ast.get_docstring(each) or "")).replace("\n\n", " ")
                    out.append(f"| `{cell(call_of(each, 'broker'))}` | {cell(text)} |")
    return "\n".join(out) + "\n"


PAGES = {
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "testing.md": testing_page,
    "plugin-api.md": plugin_api_page,
}


def main() -> None:
    """Write all pages."""
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())


if __name__ == "__main__":
    main()
