"""Plugins load in configuration order and claim slots once, and every mistake refuses the start with a hint."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.manager import PluginManager


class Base:
    def __init__(self, name: str, calls: list[str] | None = None) -> None:
        self.name = name
        self.calls = calls if calls is not None else []


class Dispatching(Base):
    @hookimpl
    def dispatch(self) -> None:
        self.calls.append(self.name)


class First(Base):
    @hookimpl(tryfirst=True)
    def dispatch(self) -> None:
        self.calls.append(self.name)


class Last(Base):
    @hookimpl(trylast=True)
    def dispatch(self) -> None:
        self.calls.append(self.name)


class Misspelled(Base):
    @hookimpl
    def before_apend(self) -> None: ...


class WrongArgument(Base):
    @hookimpl
    def dispatch(self, rows: object) -> None: ...


class Slotted(Base):
    slot = "flush"


def manager(*plugins: Any) -> PluginManager:
    return PluginManager([(f"test:{plugin.name}", plugin) for plugin in plugins], hookspecs)


def test_plugins_are_called_in_the_order_given_with_bands_around() -> None:
    calls: list[str] = []
    built = manager(Last("end", calls), Dispatching("one", calls), Dispatching("two", calls), First("start", calls))
    built.hook.dispatch(batch=None)
    assert calls == ["start", "one", "two", "end"]


class Taking(Base):
    @hookimpl
    def dispatch(self, batch: Any) -> str:
        self.calls.append(f"{self.name} {batch}")
        return "no answer is asked for"


class Around(Base):
    @hookimpl(wrapper=True)
    def dispatch(self, batch: Any) -> Any:
        self.calls.append(f"before {batch}")
        answers = yield
        self.calls.append(f"after {batch}")
        return answers


def test_a_hook_of_batches_without_implementation_is_known_to_be_empty() -> None:
    assert manager(Dispatching("one")).on_batches("before_append") is None


@pytest.mark.parametrize("odd", [[], [Dispatching], [Around], [First, Around]])
def test_a_hook_of_batches_is_called_as_pluggy_calls_it(odd: list[type[Base]]) -> None:
    ours: list[str] = []
    theirs: list[str] = []
    for calls, through_pluggy in ((ours, False), (theirs, True)):
        built = manager(Taking("one", calls), Taking("two", calls), *[kind(f"odd{kind}", calls) for kind in odd])
        if through_pluggy:
            built.hook.dispatch(batch="b")
        else:
            call = built.on_batches("dispatch")
            assert call is not None
            call("b")
    assert ours == theirs
    assert {"one b", "two b"} <= set(ours)


def test_a_hook_that_does_not_exist_refuses_the_start_with_a_hint() -> None:
    with pytest.raises(StartError, match=r"plugin 'bad' .*no hook 'before_apend'; did you mean 'before_append'\?"):
        manager(Misspelled("bad"))


def test_an_argument_that_the_hook_does_not_have_refuses_the_start() -> None:
    with pytest.raises(StartError, match=r"plugin 'bad'[\s\S]*rows"):
        manager(WrongArgument("bad"))


def test_two_plugins_in_one_slot_are_both_named() -> None:
    with pytest.raises(StartError, match="plugins 'a' and 'b' both hold the slot 'flush'"):
        manager(Slotted("a"), Slotted("b"))


def test_two_plugins_of_one_name_are_refused() -> None:
    with pytest.raises(StartError, match="two plugins are called 'a': test:a and test:a"):
        manager(Base("a"), Base("a"))


def test_the_metadata_of_a_distribution_is_read_once_for_all_its_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def version(name: str) -> str:
        read.append(name)
        return "1.2"

    class OfAnother(Base):
        __module__ = "another_distribution.one"

    class Beside(Base):
        __module__ = "another_distribution.two"

    class WithItsOwn(Base):
        __module__ = "third_distribution"
        version = "7"

    monkeypatch.setattr("importlib.metadata.version", version)
    made = [manager(OfAnother("a"), Beside("b"), WithItsOwn("c")) for _ in range(2)]
    assert [[info.version for info in each.plugins] for each in made] == [["1.2", "1.2", "7"]] * 2
    assert read == ["another_distribution"]


def test_a_plugin_without_a_name_is_refused() -> None:
    with pytest.raises(StartError, match="needs a `name`"):
        PluginManager([("test:x", object())], hookspecs)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("gantrymq_test_plugins")

    class Optional:
        name = "optional"

    class Essential:
        name = "essential"
        essential = True

    made.Optional, made.Essential = Optional, Essential  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_plugins_are_found_by_module_and_attribute(module: types.ModuleType) -> None:
    loaded = load_plugins(["gantrymq_test_plugins:Essential"], ["gantrymq_test_plugins:Optional"])
    assert [(info.name, info.origin) for info in loaded.plugins] == [
        ("essential", "gantrymq_test_plugins:Essential"),
        ("optional", "gantrymq_test_plugins:Optional"),
    ]
    assert [info.name for info in load_plugins(["gantrymq_test_plugins:Optional"], disable=["optional"]).plugins] == []


@pytest.mark.parametrize(
    ("enable", "disable", "text"),
    [
        (["no_such_module:X"], [], "No module named 'no_such_module'.*installed"),
        (["gantrymq_test_plugins:Missing"], [], "has no 'Missing'"),
        (["not_an_entry_point"], [], "no plugin 'not_an_entry_point' is installed"),
        ([], ["optinal"], "cannot disable 'optinal': no such plugin; did you mean 'optional'?"),
        ([], ["essential"], "cannot disable 'essential': the broker does not work without it"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_gets_an_error_with_the_reason(
    module: types.ModuleType, enable: list[str], disable: list[str], text: str
) -> None:
    with pytest.raises(StartError) as caught:
        load_plugins(["gantrymq_test_plugins:Essential", "gantrymq_test_plugins:Optional"], enable, disable)

    assert re.search(text.replace("?", r"\?"), str(caught.value)), str(caught.value)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("disable", [[], ["optional"]])
def test_a_plugin_with_the_name_of_a_default_one_is_refused_also_if_that_one_is_disabled(disable: list[str]) -> None:
    defaults = ["gantrymq_test_plugins:Optional"]
    with pytest.raises(
        StartError, match=r"called 'optional': gantrymq_test_plugins:Optional and .*; give yours a name"
    ):
        load_plugins(defaults, [Base("optional")], disable)
    with pytest.raises(StartError, match="it is a default plugin, remove it from those to enable"):
        load_plugins(defaults, defaults, disable)


FILE_PLUGIN = """from __future__ import annotations

import attrs

@attrs.define
class Mine:
    calls: int = 0
    name = "mine"
"""


def test_a_plugin_is_loaded_from_a_file_outside_any_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plugin.py").write_text(FILE_PLUGIN)
    monkeypatch.chdir(tmp_path)
    for origin in ("./my_plugin.py:Mine", "my_plugin.py:Mine", f"{tmp_path}/my_plugin.py:Mine"):
        assert [(info.name, info.origin) for info in load_plugins([origin]).plugins] == [("mine", origin)]


@pytest.mark.parametrize(
    ("text", "origin", "reported"),
    [
        (None, "./gone.py:Mine", "there is no file .*/gone.py"),
        (FILE_PLUGIN, "./my_plugin.py:Yours", "has no 'Yours'"),
        ("1 / 0", "./my_plugin.py:Mine", "my_plugin.py failed: ZeroDivisionError"),
        ("def f(:", "./my_plugin.py:Mine", "my_plugin.py failed: SyntaxError"),
        (
            "class Mine:\n    def __init__(self):\n        1 / 0",
            "./my_plugin.py:Mine",
            "class failed: ZeroDivisionError",
        ),
        ("1 / 0", "module_that_fails:Mine", "module module_that_fails failed: ZeroDivisionError"),
        ("def f(:", "module_that_fails:Mine", "module module_that_fails failed: SyntaxError"),
    ],
)
def test_a_file_without_a_plugin_gets_an_error_with_the_reason(
    text: str | None, origin: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if text is not None:
        for name in ("my_plugin.py", "module_that_fails.py"):
            (tmp_path / name).write_text(text)
    with pytest.raises(StartError, match=reported):
        load_plugins([origin])


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (2, "is for version 2 of the plugin API, and this broker has version 1: install a newer GantryMQ or an older"),
        (0, "api_version = 0 must be a number like 1"),
        ("1", "api_version = '1' must be a number like 1"),
        (True, "api_version = True must be a number like 1"),
    ],
)
def test_a_plugin_for_another_api_version_is_refused_with_an_error(version: object, text: str) -> None:
    plugin = Dispatching("other")
    plugin.api_version = version  # type: ignore[attr-defined]
    with pytest.raises(StartError, match=re.escape("plugin 'other' (there:Other)") + ".*" + re.escape(text)):
        PluginManager([("there:Other", plugin)], hookspecs)


def test_a_plugin_for_an_older_api_version_gets_an_error_that_asks_for_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hookspecs, "GANTRYMQ_API", 2)
    plugin = Dispatching("old")
    plugin.api_version = 1  # type: ignore[attr-defined]
    with pytest.raises(StartError, match="install a newer release of the plugin, or --disable old"):
        PluginManager([("there:Old", plugin)], hookspecs)
    plugin.api_version = 2  # type: ignore[attr-defined]
    assert PluginManager([("there:Old", plugin)], hookspecs).plugins[0].name == "old"


class Awaiting(Base):
    @hookimpl
    async def authorize(self, batch: Any) -> None: ...


class Yielding(Base):
    @hookimpl
    def before_append(self, batch: Any) -> Iterator[None]:
        yield


class AwaitingAndYielding(Base):
    @hookimpl
    async def dispatch(self, batch: Any) -> Any:
        yield


class Unmarked(Dispatching):
    appended = 7

    def before_append(self, batch: Any) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        (Awaiting, "the hook authorize must be a plain function, not an async one: await in"),
        (
            AwaitingAndYielding,
            "the hook dispatch must be a plain function, not an async one: await in",
        ),
        (Yielding, "the hook before_append must be a plain function, not a generator: remove 'yield'"),
    ],
)
def test_a_hook_whose_body_would_never_run_refuses_the_start(plugin: type[Base], reason: str) -> None:
    with pytest.raises(StartError, match=f"plugin 'bad' .*{reason}"):
        manager(plugin("bad"))


def test_a_method_with_the_name_of_a_hook_and_no_mark_is_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        built = manager(Unmarked("careless"))
    assert [(each["event"], each["plugin"], each["hook"]) for each in logs] == [
        ("hook_not_marked", "careless", "before_append")
    ]
    assert built.plugins[0].hooks == ("dispatch",)
