"""The reference pages list everything that the code has, and nothing else."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import attrs
import msgspec
import pytest
import trio

import gantrymq.sync
from gantrymq import testing
from gantrymq.client import errors
from gantrymq.kernel.manager import PluginManager
from gantrymq.nameserver.requests import CHANGES, Requests
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins import OPTIONAL_PLUGINS
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.rights import BROKER_RIGHTS
from gantrymq.testing.harness import make_broker, run_broker

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
METRIC = re.compile(r"\b(?:rocketmq|gantrymq)_[a-z_]+\b")


def section(page: str, title: str) -> str:
    """A page's text below the heading ``title``."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", (REFERENCE / page).read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def table(text: str) -> Iterator[list[str]]:
    """The cells of each row but the head's."""
    for line in re.findall(r"^\|[^\n]*\|$", text, re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not set(line) <= set("|-"):
            yield cells


def rows(text: str) -> list[list[str]]:
    return list(table(text))[1:]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_equal_the_output_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANTRYMQ_NAMESERVER", raising=False)
    for name, make in generator().PAGES.items():
        assert (REFERENCE / name).read_text() == make(), f"{name} is old: run `python docs/generate.py`"


def defined_in(module: ModuleType) -> set[str]:
    """The public functions, classes and constants of a module, without what it imports."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return {name for name in vars(module) if not name.startswith(("_", "@", "pytest_")) and name not in imported}


def test_the_test_library_is_documented_name_by_name() -> None:
    folder = Path(testing.__file__).parent
    modules = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if not path.name.startswith("_")
    }
    page = (REFERENCE / "testing.md").read_text()
    documented = set(re.findall(r"^## `gantrymq\.testing\.([\w.]+)`$", page, re.MULTILINE))
    assert documented == modules
    for name in modules:
        module = importlib.import_module(f"gantrymq.testing.{name}")
        described = {
            cells[0].strip("`"): cells[1] for cells in rows(section("testing.md", f"`gantrymq.testing.{name}`"))
        }
        names = {re.split(r"[(.]", each)[0] for each in described}
        assert names == defined_in(module), name
        assert all(described.values()), f"{name}: a name without a docstring"
        for each in described:
            owner, _, attribute = each.partition("(")[0].partition(".")
            assert not attribute or hasattr(getattr(module, owner), attribute), each


STANDARD = {"Any", "Awaitable", "Callable", "Iterable", "Literal", "Mapping", "PathLike", "Self", "Sequence"}
"""Names that signatures may use without an explanation."""


def client_entries() -> dict[str, list[str]]:
    """The entries of the client's page by name: their text, then calls and the texts after them in turn."""
    page = (REFERENCE / "python-client.md").read_text()
    entries = re.findall(r"^### `(gantrymq\.[\w.]+)`\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    return {name: re.split(r"^```\n(.*?)^```\n", text, flags=re.MULTILINE | re.DOTALL) for name, text in entries}


def client_calls() -> Iterator[tuple[str, str, str]]:
    """The name, the call and the text of each function, method and constructor on the client's page."""
    for entry, (before, *parts) in client_entries().items():
        for call, text in zip(parts[::2], parts[1::2], strict=True):
            found = re.search(r"([\w.]+)(\(|$)", call.splitlines()[0])
            assert found is not None, call
            name = f"sync.{found[1]}" if entry.startswith("gantrymq.sync.") else found[1]
            yield name, call, f"{before}{text}" if entry.endswith(name) else text


def test_the_client_is_documented_name_by_name() -> None:
    entries = client_entries()
    exported = {f"gantrymq.{name}" for name in {*gantrymq.__all__, *gantrymq.client.__all__} - set(errors.__all__)}
    exported |= {f"gantrymq.sync.{name}" for name in gantrymq.sync.__all__}
    assert exported - entries.keys() == {"gantrymq.__version__"}
    assert set(re.findall(r"`(\w+)`", section("python-client.md", "Errors"))) == set(errors.__all__)
    assert [name for name, text in entries.items() if not "".join(text[::2]).strip()] == []


def test_each_attribute_of_the_clients_data_classes_is_described() -> None:
    for name, text in client_entries().items():
        kind = resolve_name(name)
        if attrs.has(kind) or (inspect.isclass(kind) and issubclass(kind, msgspec.Struct)):
            fields = {each.name for each in attrs.fields(kind)} if attrs.has(kind) else set(kind.__struct_fields__)
            described = {row[0].strip("`"): row[2] for row in rows(text[-1] if len(text) == 3 else text[0])}
            public = {each for each in fields if not each.startswith("_")}
            assert public - described.keys() <= {"topic_syn_flag"}, name  # an older name of another field
            assert all(described.values()), name


def test_each_parameter_of_the_client_is_described() -> None:
    texts = {name: text for name, _, text in client_calls()}
    assert len(texts) > 60
    snake_case = generator().snake_case

    def described(name: str, seen: set[str]) -> str:
        """The text of a function with those of the functions that it refers to."""
        owner, text = name.rpartition(".")[0], texts[name]
        cited: set[str] = set()
        for other, last in re.findall(r"`(?:\w+\.)*?(?:(\w+)\.)?(\w+)`", text):
            cited |= {last, f"{owner}.{last}", f"{snake_case(other)}.{last}"} & texts.keys() - seen
        seen |= cited
        return text + "".join(described(each, seen) for each in cited)

    for name, call, _ in client_calls():
        full = described(name, {name})
        parameters = re.findall(r"(?:\(|, |^    )\*{0,2}(\w+): ", call, re.MULTILINE)
        assert [each for each in parameters if not re.search(rf"`{each}\b", full)] == [], name


def test_each_type_in_the_clients_signatures_is_described() -> None:
    known = {name.rpartition(".")[2] for name in client_entries()} | STANDARD | {"None", "True", "False"}
    known |= set(re.findall(r"`(\w+)(?:\[R\])?`", section("python-client.md", "Types of parameters")))
    for _, call, _ in client_calls():
        types = re.sub(r"'[^']*'|\w+\.\w+\(", "", call)
        assert set(re.findall(r"(?<![.\w])[A-Z]\w*", types)) <= known, call


def test_each_key_of_an_optional_plugin_is_described_on_its_page() -> None:
    pages = (("plugin.ha", "cluster.md"), ("plugin.metrics", "metrics.md"), ("plugin.acl", "secure.md"))
    pages = (*pages, ("plugin.tls", "secure.md"), ("plugin.dashboard", "dashboard.md"), ("plugin.otel", "traces.md"))
    for section, page in pages:
        keys = re.findall(rf"^\| `{section}\.(\w+)` \|", (REFERENCE / "configuration.md").read_text(), re.MULTILINE)
        text = (ROOT / "docs" / "howto" / page).read_text()
        assert keys
        assert [
            key for key in keys if not re.search(rf"`(?:{section}\.|\.)?{key}`|^{key} = ", text, re.MULTILINE)
        ] == []


def test_every_code_that_a_broker_serves_is_listed_with_its_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: dict[int, str] = {}
    call_each = PluginManager.call_each

    def spy(self: PluginManager, hook: str, *given: Any, **arguments: Any) -> Any:
        answers = list(call_each(self, hook, *given, **arguments))
        if hook == "register_processors":
            served.update({int(code): info.name for info, answer in answers for code in answer})
        return answers

    monkeypatch.setattr(PluginManager, "call_each", spy)

    (tmp_path / "plain_acl.yml").touch()
    (tmp_path / "tools.yml").write_text("accessKey: the-root\nsecretKey: root-secret\n")

    async def start() -> None:
        settings = {
            "plugin.ha.listen": "127.0.0.1:0",
            "plugin.metrics.listen": "127.0.0.1:0",
            "plugin.acl.file": f"{tmp_path}/plain_acl.yml",
            "plugin.acl.users": f"{tmp_path}/users.json",
            "plugin.acl.keys": f"{tmp_path}/tools.yml",
            "plugin.tls.mode": "disabled",
            "plugin.audit.file": f"{tmp_path}/audit.log",
            "plugin.quota.connections": "10",
            "plugin.exporter.topics": "none",
            "plugin.exporter.to": f"{tmp_path}/export",
        }
        plugins = [each for each in OPTIONAL_PLUGINS if "dashboard" not in each]  # it serves no requests of brokers
        async with run_broker(make_broker(tmp_path / "store", enable=plugins, settings=settings)):
            pass

    trio.run(start)
    listed = [(int(row[0]), *row[1:3], row[4]) for row in rows(section("request-codes.md", "Served by the broker"))]
    assert listed == [
        (code, RequestCode(code).name, served[code], BROKER_RIGHTS[code].value) for code in sorted(served)
    ]


def test_every_code_that_a_nameserver_serves_is_listed() -> None:
    requests: Requests = NameServer(NameServerConfig()).requests
    listed = [(int(row[0]), row[1], row[2]) for row in rows(section("request-codes.md", "Served by the nameserver"))]
    assert listed == [
        (code, RequestCode(code).name, "peers only" if code in CHANGES else "") for code in sorted(requests.handlers)
    ]


def test_every_request_code_of_the_code_is_on_the_page() -> None:
    text = (REFERENCE / "request-codes.md").read_text()
    assert [code.name for code in RequestCode if f"| {int(code)} | {code.name} |" not in text] == []


def test_every_response_code_is_listed_with_a_meaning() -> None:
    listed = rows(section("request-codes.md", "Response codes"))
    assert [(int(row[0]), row[1]) for row in listed] == [(int(code), code.name) for code in ResponseCode]
    assert all(row[2] for row in listed)


def test_every_client_error_is_listed_with_its_base() -> None:
    listed = {row[0].strip("`"): row[1:] for row in rows((REFERENCE / "client-errors.md").read_text())}
    assert set(listed) == set(errors.__all__)
    for name, cells in listed.items():
        kind = getattr(errors, name)
        bases = [base.__name__ for base in kind.__bases__]
        assert re.findall(r"`(\w+)`", cells[0]) == bases, name
        assert cells[1], f"{name}: when"
        assert cells[2] or name == "GantryError", f"{name}: what to do"
    defined = {
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.GantryError)
    }
    assert defined == set(errors.__all__)


def metrics_of_the_code() -> set[str]:
    found: set[str] = set()
    for folder in ("kernel", "plugins", "gantrymq/cli/processes", "gantrymq/nameserver"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            found |= {name for literal in re.findall(r"\"([a-z_]+)\"", text) for name in METRIC.findall(literal)}
    return found


def test_every_metric_is_listed_and_no_other() -> None:
    own, theirs = section("metrics.md", "GantryMQ's own names"), section("metrics.md", "RocketMQ's names")
    listed = {name for text in (own, theirs) for row in rows(text) for name in METRIC.findall(row[0])}
    assert listed == metrics_of_the_code()
    missing = {name for row in rows(section("metrics.md", "RocketMQ's metrics that are missing")) for name in row[:1]}
    assert not {name for cell in missing for name in METRIC.findall(cell)} & listed


LOGGED = (
    "kernel",
    "plugins",
    "gantrymq/cli",
    "gantrymq/client",
    "gantrymq/dashboard",
    "gantrymq/failover",
    "gantrymq/maintenance",
    "gantrymq/nameserver",
    "gantrymq/remoting",
    "gantrymq/spark",
)
RARE = ("self.rare", "self._rare", "self._cluster.rare", "self._outages")
"""Calls that log each warning twice a minute at most: gantrymq/remoting/outages.py."""
LEVELS = {"warning": "warning", "error": "error", "exception": "error"}
ALL_LEVELS = {**LEVELS, "debug": "debug", "info": "info"}


def logged(levels: Mapping[str, str] = LEVELS) -> Iterator[tuple[str, str, str]]:
    """Name, level and file of each event that is logged; by default at warning or above."""
    for path in [ROOT / "gantrymq" / "sync.py", *(one for folder in LOGGED for one in (ROOT / folder).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in levels):
                continue
            if ast.unparse(node.func.value) in {"log", "self._log", *RARE}:
                event = node.args[0]
                is_passed_on = (
                    isinstance(event, ast.Name) and event.id == "failed"
                )  # client/transactions.py: two literals
                if not is_passed_on:
                    assert isinstance(event, ast.Constant), f"{path}:{node.lineno}: an event's name is a literal"
                    yield event.value, levels[node.func.attr], str(path.relative_to(ROOT))


def test_every_event_at_warning_or_above_is_listed_with_meaning_and_action() -> None:
    levels: dict[str, set[str]] = {}
    for name, level, _ in logged():
        levels.setdefault(name, set()).add(level)
    listed = {row[0].strip("`"): row[1:] for row in rows((REFERENCE / "log-events.md").read_text())}
    assert list(listed) == sorted(levels)
    assert [name for name, row in listed.items() if not all(row)] == []
    assert {name: set(row[0].split(", ")) for name, row in listed.items()} == levels


def test_events_have_names_in_snake_case() -> None:
    assert [
        f"{path}: {name}"
        for name, _, path in logged(ALL_LEVELS)
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name)
    ] == []


def test_the_reasons_of_message_why_are_all_explained() -> None:
    source = (ROOT / "gantrymq" / "operations" / "why.py").read_text()
    page = (ROOT / "docs" / "howto" / "operate.md").read_text()
    codes = set(re.findall(r'Reason\(\s*"([a-z_]+)"', source))
    assert len(codes) > 15
    assert codes == set(re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`[a-z_`, ]+) \|", page, re.MULTILINE))))
