"""Generates reference pages from the code: ``python docs/generate.py``. A test checks that the pages are current."""

from __future__ import annotations

import ast
import copy
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import attrs
import rich_click as click

import gantrymq.sync
from gantrymq.cli.group import COMMANDS, cli
from gantrymq.client import errors
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings, show
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS
from gantrymq.remoting.records import PlainFields, Record

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `python docs/generate.py`; a test keeps it equal to the code. -->\n"
INTRODUCTION = """\
`gantrymq COMMAND --help` prints the same. [Conventions](conventions.md) has what all commands share: exit codes,
errors, durations, topics, and JSON.
`GANTRYMQ_TRACEBACK=1` adds the traceback to an error. `GANTRYMQ_NAMESERVER` replaces the default of `--nameserver`; so
does the current context, which replaces the following variables too (`gantrymq context`).
Commands that talk to a cluster sign their requests with `GANTRYMQ_ACCESS_KEY` and `GANTRYMQ_SECRET_KEY` (and
`GANTRYMQ_SECURITY_TOKEN`) where these are set, and use TLS with `GANTRYMQ_TLS=1`, or with `GANTRYMQ_TLS_CA`, a file of
trusted certificates. `GANTRYMQ_TLS=unverified` accepts every certificate, for servers in test mode.
"""
PLUGIN_COMMANDS = ("export",)
"""Commands of shipped plugins; other installed plugins are left out."""


def cell(text: object) -> str:
    """``text`` as one cell of a table."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def paragraphs(text: str) -> str:
    """A help text as Markdown paragraphs, a line each; so are the items of a list."""
    lines = (re.split(r"\n(?=- )", part) for part in text.split("\n\n"))
    return "\n\n".join("\n".join(re.sub(r"\s+", " ", line).strip() for line in part) for part in lines)


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
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    if not option.show_default or option.default is None or option.is_flag:
        return ""
    return f"`{option.default}`"


def variables_of(option: click.Option) -> str:
    """The environment variables that replace the option's default."""
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return f" Or {', '.join(f'`${name}`' for name in names)}." if names else ""


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
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        if options:
            out += ["| option | default | meaning |", "|---|---|---|"]
        for option in options:
            names = ", ".join([*option.opts, *option.secondary_opts])
            metavar = "" if option.is_flag else f" {cell(option.make_metavar(click.Context(command)))}"
            text = cell(f"{'required. ' if option.required else ''}{option.help or ''}{variables_of(option)}")
            out.append(f"| `{names}{metavar}` | {cell(default_of(option))} | {text} |")
        out.append("")
    return "\n".join(out).rstrip() + "\n"


CONFIGURATION = """\
# Configuration keys

Every key of the kernel and of the shipped plugins, with its default and the key of RocketMQ's `broker.conf` that
sets it directly.
[Configure](../howto/configure.md) explains where a value comes from, its units, and what each key of a default plugin
means; [cluster](../howto/cluster.md) describes `plugin.ha`, [metrics](../howto/metrics.md) `plugin.metrics`,
[traces](../howto/traces.md) `plugin.otel`, [secure a broker](../howto/secure.md) `plugin.acl`, `plugin.tls`,
`plugin.quota` and `plugin.audit`.
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
package; only the fixtures need `pytest`, and what runs a broker needs Linux. [Test your
code](../howto/test-your-code.md) introduces the fixtures, [simulate a cluster](../howto/simulate-a-cluster.md) the
simulated machines and networks; [write a plugin](../tutorial/write-a-plugin.md) runs the conformance rules of a slot.
Names that are not on this page, and names with a leading underscore, may change without notice.
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
            name = name_of(node)
            if not name.startswith("_"):
                yield name, text_behind(following)


def name_of(node: ast.Assign | ast.AnnAssign) -> str:
    """The name that an assignment sets, of a variable or an attribute."""
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]).removeprefix("self.")


def text_behind(following: ast.stmt | None) -> str:
    """The docstring of an attribute: the text that follows it."""
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return marked_up(paragraphs(str(following.value.value)))
    return ""


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

Hooks with the argument `broker` get the broker. This page lists all names of it that a plugin may use, how a plugin
appends and reads messages, and the objects for topics, groups and offsets. Annotate the argument as
`gantrymq.kernel.api.Broker`; mypy then reports other names. [Hooks](hooks.md) describes the hooks,
[batches](batches.md) their arguments.

## Versions

This is version 1 of the plugin API (`gantrymq.kernel.hookspecs.GANTRYMQ_API`): the hooks, their batches and the names
on this page. A plugin may declare the version that it needs with an attribute `api_version = 1`. If the broker has
another version, it refuses to start, with an error that names both. A plugin without the attribute counts as one of
this version.

- Within a version, releases may add hooks, names, columns and optional arguments. They remove nothing and change no
  meaning; a test compares the names of each build with a list (`tests/contract/plugin_api_1.txt`).
- A part that will be removed is first marked as deprecated, on its page and in the changelog, for at least two minor
  releases. The release that removes it raises the version number, and its changelog names the replacement.
- Modules of `gantrymq.kernel` and `gantrymq.remoting` that no page names, names with a leading underscore, and C
  declarations (`.pxd`) are not part of the plugin API.
"""
APPENDING = """\
## Appending messages

A plugin appends messages of its own with `broker.append`, on a master, from `started` on. The topic must exist, and a
new message has a `born_timestamp`. Messages pass `before_append` of the plugins that take the source `plugin`.
`done` is called when every row has its final status; `remarks` has the reasons of refused rows. To delay a message, see
[`traits`](batches.md#appendbatch). This plugin appends a message to `receipts` for each one of `orders`:

<!-- plugin -->
```python
from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig


class Receipts:
    name = "receipts"

    def __init__(self):
        self.refused = []

    @hookimpl
    def register_tasks(self, broker):
        self._broker = broker
        if broker.broker_id == 0:
            broker.registry.get(TopicTable).ensure(TopicConfig("receipts", 1, 1))
        return []

    @hookimpl
    def dispatch(self, batch):
        if batch.replay or self._broker.broker_id:
            return
        receipts = AppendBatch(done=self._appended)
        for topic, offset in zip(batch.topics, batch.offsets, strict=True):
            if topic == "orders":
                receipts.add("receipts", 0, b"%d" % offset, b"", born_timestamp=self._broker.env.wall_ms())
        if len(receipts):
            self._broker.append(receipts)

    def _appended(self, receipts):
        self.refused += receipts.remarks.values()
```
"""
READING = """\
## Reading messages

A plugin reads the log in `dispatch` as it grows, and later, in a task of its own, with the following names. Reading a
message that is not in memory blocks the broker for the time of the disk; a task that reads many calls
`await pace.checkpoint()` between its steps.

<!-- plugin -->
```python
import trio

from gantrymq.kernel.store.reading import read_messages
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import ConsumerOffsets, TopicTable


class Mirror:
    name = "mirror"
    group = "mirror"

    def __init__(self):
        self.bodies = []

    @hookimpl
    def register_tasks(self, broker):
        self._topics = broker.registry.get(TopicTable)
        self._offsets = broker.registry.get(ConsumerOffsets)
        return [BackgroundTask("mirror", lambda: self._run(broker))]

    async def _run(self, broker):
        pace = broker.pace()
        while True:
            for topic in self._topics.names():
                config = self._topics.get(topic)
                for queue_id in range(0 if config is None else config.read_queue_nums):
                    offset = self._offsets.query(self.group, topic, queue_id) or 0
                    messages = read_messages(broker.store, topic, queue_id, offset)
                    self.bodies += [record.body for record in messages.records]
                    self._offsets.commit(self.group, topic, queue_id, messages.next_offset)
                    await pace.checkpoint()
            await trio.sleep(0.1)
```
"""
OBJECTS = """\
## Topics, groups, offsets and other objects

`broker.registry.get(TopicTable)` returns the object that a shipped plugin offers for that protocol of
`gantrymq.plugins.interfaces`, from `register_processors` on; `find` returns None if no enabled plugin offers one.
`Registry.provide(MyProtocol, object)` in `configure` offers an object of your plugin to others.
"""
COMMANDS_OF_PLUGINS = """\
## Functions for commands

The module `gantrymq.cli.connecting` is for commands that a plugin adds with `add_commands`. With it such a command has
the options, contexts and variables of [all commands](cli.md). It imports click, which a broker does not need: use it in
a module of its own, as [Write a plugin](../tutorial/write-a-plugin.md#commands) shows.
"""
READERS = {"Broker": "broker", "LogReader": "broker.log", "QueuesReader": "broker.queues", "QueueReader": "queue"}
"""The classes of ``kernel/api.py``, and what the page calls their objects."""
KERNEL = Path(__file__).parents[1] / "kernel"


def table_of(node: ast.ClassDef, owner: str) -> Iterator[str]:
    """A table of the names of a protocol; ``owner``: what the page calls an object of it."""
    yield from ("| name | meaning |", "|---|---|")
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            yield f"| `{owner}.{ast.unparse(each.target)}` | `{cell(ast.unparse(each.annotation))}` |"
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            call = f"for each in {owner}" if each.name == "__iter__" else call_of(each, owner)
            call = f"await {call}" if isinstance(each, ast.AsyncFunctionDef) else call
            text = marked_up(paragraphs(ast.get_docstring(each) or "")).replace("\n\n", " ")
            yield f"| `{cell(call)}` | {cell(text)} |"


def functions_of(path: Path, names: Iterable[str], module: str) -> Iterator[str]:
    """A table of functions and classes of a module, by their calls."""
    yield from ("| name | meaning |", "|---|---|")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            call = call_of(node) if isinstance(node, ast.FunctionDef) else node.name
            text = marked_up(paragraphs(ast.get_docstring(node) or "")).replace("\n\n", " ")
            yield f"| `{module}.{cell(call)}` | {cell(text)} |"


def plugin_api_page() -> str:
    """``plugin-api.md``: every name of the broker that plugins may use, and the protocols of the shipped plugins."""
    out = [NOTE, PLUGIN_API]
    for node in ast.parse((KERNEL / "api.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            owner = READERS[node.name]
            if node.name == "LogReader":
                out += [APPENDING, READING]
            out += (
                ["## Names\n"]
                if owner == "broker"
                else [f"### `{owner}` (`{node.name}`)\n", f"{description_of(node)}\n"]
            )
            out += [*table_of(node, owner), ""]
    wanted = ("read_messages", "QueueMessages", "message_stored_at")
    out += ["### Functions\n", *functions_of(KERNEL / "store" / "reading.py", wanted, "gantrymq.kernel.store.reading")]
    for node in ast.parse((KERNEL / "store" / "log" / "record.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Record":
            out += ["", "### `Record`\n", f"{description_of(node)}\n", *table_of(node, "record")]
    wanted = (
        "nameserver_option", "optional_nameserver_option", "context_option", "with_client", "connect_settings",
        "plain_settings",
    )  # fmt: skip
    connecting = KERNEL.parent / "gantrymq" / "cli" / "connecting.py"
    out += ["", COMMANDS_OF_PLUGINS, *functions_of(connecting, wanted, "gantrymq.cli.connecting"), "", OBJECTS]
    for node in ast.parse((KERNEL.parent / "plugins" / "interfaces.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            out += [f"### `{node.name}`\n", f"{description_of(node)}\n", *table_of(node, snake_case(node.name)), ""]
    return "\n".join(out).rstrip() + "\n"


def snake_case(name: str) -> str:
    """What the pages call an object of the class ``name``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def description_of(node: ast.ClassDef) -> str:
    """The docstring of a class as Markdown."""
    return marked_up(paragraphs(ast.get_docstring(node) or ""))


CLIENT = """\
# Python client

The names that programs use of `gantrymq` and `gantrymq.sync`, in the order in which a program meets them, with the
types and defaults of all parameters. [Send and receive from Python](../howto/client.md) introduces them. Other names,
and names with a leading underscore, may change without notice.

- Headings have the full names. `gantrymq.client` also has `connect`, `Client`, `Producer`, `PendingSend`, `Consumer`
  and `TransactionalProducer`. `gantrymq.__version__` is the version of the package.
- A number that is a time is in seconds, unless its text says milliseconds (ms).
- Where a text says that the beginning of a block raises an error, `start()` raises it as well.
- After the end of its block, and of the client's, each method that needs a broker raises `ClientClosed`.
"""
CLIENT_SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Connect": (
        "[Access control](../howto/client.md#access-control) and [TLS](../howto/client.md#tls) have examples.",
        ("connect", "Client", "client.lifetime.Lifetime"),
    ),
    "Send": (
        "[Send](../howto/client.md#send) has examples, [delays, retries and dead letters](../howto/delay-and-retry.md)"
        " those of messages that arrive later, [send and receive objects](../howto/bodies.md) those of serializers.",
        ("Client.producer", "Producer", "PendingSend", "Message()"),
    ),
    "Consume": (
        "[Receive](../howto/client.md#receive) has examples; see also [consume in order](../howto/ordered.md) and"
        " [filter messages](../howto/filter.md).",
        ("Client.consumer", "Consumer", "ReceivedMessage", "MessageBatch", "Sql()"),
    ),
    "Handle messages in a worker": (
        "[Run a worker](../howto/worker.md) has examples.",
        ("Client.run", "App()", "RetryLater()", "DeadLetter"),
    ),
    "Read": ("[Read from any offset](../howto/reader.md) has examples.", ("Client.reader", "Reader")),
    "Send in a transaction": (
        "[Send in a transaction](../howto/client.md#send-in-a-transaction) has an example;"
        " [transactions](../howto/transactions.md) describes the guarantees.",
        ("Client.transactional_producer", "TransactionalProducer"),
    ),
    "Request and reply": (
        "[Request and reply](../howto/request-reply.md) describes both sides.",
        ("Producer.request", "ReceivedMessage.reply"),
    ),
    "Administer": (
        "[Topics, groups and offsets](../howto/client.md#topics-groups-and-offsets) has examples.",
        ("client.admin.Admin",),
    ),
    "Intercept messages": (
        "[Intercept messages](../howto/interceptors.md) has examples, and describes"
        " `gantrymq.client.otel.OpenTelemetry`.",
        ("Interceptor", "SendContext", "ConsumeContext", "TransactionContext", "RecallContext"),
    ),
    "Results and other data": (
        "",
        (
            "message.DeliveredRecord", "MessageQueue()", "SendResult", "SendStatus", "TransactionResult", "Outcome",
            "ConsumerStatistics", "QueueStatistics", "GroupLag", "QueueLag",
            "OffsetReset", "remoting.bodies.routes.ClusterInfo",
            "remoting.bodies.routes.TopicRouteData", "remoting.bodies.routes.BrokerData",
            "remoting.bodies.routes.QueueData",
        ),
    ),
    "Strategies that share queues": (
        "For the option `allocation` of a consumer.",
        (
            "client.allocation.average", "client.allocation.circle", "client.allocation.FixedQueues()",
            "client.allocation.MachineRooms()", "client.allocation.ConsistentHash()",
            "client.allocation.NearestRoom()",
        ),
    ),
}  # fmt: skip
"""By title: the first sentence and the names, below ``gantrymq``; programs call the classes with parentheses."""
TYPES = """\
## Types of parameters

`R` is the class of a consumer's or reader's messages, `V` the type of their `value`, `F` that of a function.
`Batches[R]` is an async iterator over `MessageBatch[R]`, `BlockingMessage` is `gantrymq.sync.ReceivedMessage`.
`Command` is in `gantrymq.remoting.command`, `TopicQueueMapping` in `gantrymq.remoting.bodies.topics`.

| name | type | meaning |
|---|---|---|"""
TYPE_NAMES = {
    "options": ("Topics", "Start", "QueuesChanged", "Ordered", "BadBodies", "AllocationChoice"),
    "allocation": ("Allocation",),
    "sender": ("QueueChoice",),
    "serializers": (
        "Format", "Serializer", "SerializerChoice", "Deserializer", "TypedDeserializer", "DeserializerChoice",
    ),
    "transactions": ("Local", "Check"),
    "worker": ("Handler",),
}  # fmt: skip
BLOCKING = """\
## Without async

`gantrymq.sync` has the same objects with blocking calls. Parameters, results and errors are those above, without
`await`; `with` and `for` take the place of `async with` and `async for`; functions that you give are plain functions.
What has a block also has `start()` and `close()`. Any thread may call; one thread at a time iterates over a consumer.
[Without async](../howto/client.md#without-async) has examples.
"""
BLOCKING_NAMES = (
    "connect", "Client", "Producer", "PendingSend", "Consumer", "ReceivedMessage", "MessageBatch", "Reader",
    "TransactionalProducer", "Admin",
)  # fmt: skip
FAILURES = """\
## Errors

[Client errors](client-errors.md) lists each error with its cause and what to do:
"""
ITERATIONS = {"__anext__": "async for each in", "__next__": "for each in"}
LINE = 100
"""The longest call, in characters, that is on one line."""


def text_of(thing: object) -> str:
    """The docstring of a class or function as Markdown."""
    return marked_up(paragraphs(inspect.getdoc(thing) or ""))


def statements_of(thing: Any) -> list[ast.stmt]:
    """The statements of a class or a module."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    return tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else tree.body


def attributes_of(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """Name, type (without one: value) and meaning of the properties, and of the attributes with a docstring."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        shown: ast.expr | None = None
        if isinstance(node, ast.FunctionDef):
            if node.name == "__init__":
                yield from attributes_of(node.body)
            if any("property" in ast.unparse(each) for each in node.decorator_list):
                name, shown, text = node.name, node.returns, marked_up(paragraphs(ast.get_docstring(node) or ""))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and text_behind(following):
            name, text = name_of(node), text_behind(following)
            shown = node.annotation if isinstance(node, ast.AnnAssign) else node.value
        if shown is not None and not name.startswith("_"):
            yield name, re.sub(r"\bInt(?:32|64)\b", "int", ast.unparse(shown)), text


def parameters_of(function: Any, *, typed: bool = True) -> list[str]:
    """The parameters of a function or class, with their defaults and, if ``typed``, their types."""
    found: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(one.startswith("*") for one in found):
            found.append("*")
        text = ("*" if each.kind is each.VAR_POSITIONAL else "") + each.name
        default = each.default
        if default is attrs.NOTHING:
            default = attrs.fields_dict(function)[each.name].default.factory()
        shown = default.__name__ if inspect.isfunction(default) else repr(default)
        kind = getattr(each.annotation, "__origin__", each.annotation)  # without the limits of a message's field
        text += f": {getattr(kind, '__name__', kind)}" if typed else ""
        found.append(text if default is each.empty else f"{text} = {shown}" if typed else f"{text}={shown}")
    return [one for one in found if not re.match(r"self\b", one)]


def call_block(call: str, function: Any) -> str:
    """The call of a function in a block of its own, with types, defaults and the result."""
    given = parameters_of(function)
    result = "" if isinstance(function, type) else f" -> {inspect.signature(function).return_annotation}"
    line = f"{call}({', '.join(given)}){result}"
    if len(line) > LINE:
        line = f"{call}(\n" + "".join(f"    {each},\n" for each in given) + f"){result}"
    return f"```\n{'await ' if inspect.iscoroutinefunction(function) else ''}{line}\n```\n"


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods that programs call or, of iterators, use: of those with a blocking twin, what the twin has too."""
    twin = getattr(gantrymq.sync, kind.__name__, getattr(gantrymq.sync, f"Blocking{kind.__name__}", kind))
    for name, value in vars(kind).items():
        if inspect.isfunction(value) and (name in ITERATIONS or (hasattr(twin, name) and not name.startswith("_"))):
            yield name, value


def entry_of(name: str, elsewhere: list[str]) -> Iterator[str]:
    """A class or function under a heading; links stand for the methods that have one ``elsewhere``."""
    path = name.removesuffix("()")
    thing, last = resolve_name(f"gantrymq.{path}"), path.rpartition(".")[2]
    yield f"### `gantrymq.{path}`\n"
    if not isinstance(thing, type) or name != path:
        yield call_block(snake_case(path) if path != last and path[0].isupper() else last, thing)
    yield text_of(thing) + "\n"
    if not isinstance(thing, type):
        return
    kinds = (PlainFields, Record, thing) if last == "DeliveredRecord" else (thing,)
    rows = [row for each in kinds for row in attributes_of(statements_of(each))]
    if rows:
        yield "| attribute | type | meaning |\n|---|---|---|"
        yield from (f"| `{each}` | `{cell(kind)}` | {cell(text)} |" for each, kind, text in rows)
        yield ""
    apart = [each for each in elsewhere if each.rpartition(".")[0] == path]
    if apart:
        links = [f"[`{each}`](#gantrymq{each.replace('.', '').lower()})" for each in apart]
        yield f"Methods with a heading of their own: {', '.join(links)}.\n"
    for method, function in methods_of(thing):
        if f"{path}.{method}" not in apart:
            call = f"{snake_case(last)}.{method}"
            iteration = f"```\n{ITERATIONS.get(method)} {snake_case(last)}\n```\n"
            yield iteration if method in ITERATIONS else call_block(call, function)
            yield text_of(function) + "\n"


def blocking_entry_of(name: str) -> Iterator[str]:
    """A class or function of ``gantrymq.sync`` under a heading, the methods of a class in a table."""
    thing, owner = getattr(gantrymq.sync, name), snake_case(name)
    yield f"### `gantrymq.sync.{name}`\n"
    if not isinstance(thing, type):
        yield call_block(name, thing)
    yield text_of(thing) + "\n"
    if isinstance(thing, type):
        yield "| name | meaning |\n|---|---|"
        for each, _, text in attributes_of(statements_of(thing)):
            yield f"| `{owner}.{each}` | {cell(text)} |"
        for method, function in methods_of(thing):
            call = f"{owner}.{method}({', '.join(parameters_of(function, typed=False))})"
            call = f"{ITERATIONS[method]} {owner}" if method in ITERATIONS else call
            yield f"| `{cell(call)}` | {cell(text_of(function))} |"
        yield ""


def client_page() -> str:
    """``python-client.md``: what programs use of the client, with its signatures and docstrings."""
    elsewhere = [name for _, names in CLIENT_SECTIONS.values() for name in names]
    out = [NOTE, CLIENT]
    for title, (introduction, names) in CLIENT_SECTIONS.items():
        out += [f"## {title}\n", *([f"{introduction}\n"] if introduction else [])]
        out += [line for name in names for line in entry_of(name, elsewhere)]
    out.append(TYPES)
    for module, wanted in TYPE_NAMES.items():
        known = {row[0]: row for row in attributes_of(statements_of(resolve_name(f"gantrymq.client.{module}")))}
        out += [f"| `{name}` | `{cell(known[name][1])}` | {cell(known[name][2])} |" for name in wanted]
    out += ["", BLOCKING, *(line for name in BLOCKING_NAMES for line in blocking_entry_of(name))]
    out += [FAILURES, ", ".join(f"`{name}`" for name in errors.__all__) + "."]
    return "\n".join(out).rstrip() + "\n"


PAGES = {
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "testing.md": testing_page,
    "plugin-api.md": plugin_api_page,
    "python-client.md": client_page,
}


def main() -> None:
    """Write all pages."""
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())


if __name__ == "__main__":
    main()
