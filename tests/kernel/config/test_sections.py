"""The configuration: precedence, origins, strictness, and the texts of its errors."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.config.declarations import BrokerConfig
from gantrymq.kernel.config.fields import HIDDEN, duration, number, parse_duration, parse_size, plain, secret, size
from gantrymq.kernel.config.rocketmq_keys import RocketmqKey
from gantrymq.kernel.config.sections import Config, build_config
from gantrymq.kernel.config.sources import ConfigError, read_settings, show
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager


def read_mode(value: str) -> str:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}.get(value, value)


@attrs.frozen
class FlushSection:
    mode: Literal["sync", "async"] = plain("sync", rocketmq=RocketmqKey("flushDiskType", read=read_mode))
    interval: float = duration("500ms", minimum="1ms", maximum="1h")
    least: int = size("16 KiB", maximum="1 MiB")
    workers: int = number(1, 1, 8)
    ratio: float = 0.5
    loud: bool = False
    topics: tuple[str, ...] = ()
    labels: dict[str, str] = attrs.field(factory=dict)
    note: str | None = None


class Flush:
    name = "flush"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "flush", FlushSection


class SecondFlush:
    name = "second"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "flush", BrokerConfig


@attrs.frozen
class Needy:
    must: int


class NeedyPlugin:
    name = "needy"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "needy", Needy


def manager(*plugins: Any) -> PluginManager:
    return PluginManager([(f"tests:{type(plugin).__name__}", plugin) for plugin in plugins or (Flush(),)], hookspecs)


def build(text: str = "", path: str = "gantrymq.toml", **more: Any) -> Config:
    return build_config(read_settings(path, text.encode(), **more), manager())


def problems(text: str = "", path: str = "gantrymq.toml", **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as failure:
        build(text, path, **more)
    return list(failure.value.problems)


def origins(config: Config) -> dict[str, tuple[object, str, str]]:
    return {f"{row.section}.{row.key}": (row.value, row.origin, row.source) for row in config.explain()}


def test_defaults_equal_the_documented_ones() -> None:
    config = build_config(read_settings(), manager())
    broker = config.broker
    assert (broker.name, broker.cluster, broker.id) == ("broker-a", "DefaultCluster", 0)
    assert (broker.listen, broker.advertise, broker.data) == ("127.0.0.1:10911", "", "./gantrymq-data")
    assert (broker.nameservers, broker.persist_interval) == (["127.0.0.1:9876"], 5.0)
    assert (config.store.commit_log_file_bytes, config.store.queue_file_units) == (1 << 30, 300_000)
    assert (config.limits.idle, config.limits.frame_bytes) == (120.0, 16 << 20)
    assert config.section(FlushSection) == FlushSection()
    assert {origin for _, origin, _ in origins(config).values()} == {"default"}


def test_flag_beats_environment_beats_file_beats_default_and_each_is_reported() -> None:
    text = '[broker]\nname = "file"\ncluster = "file"\nid = 1\n[plugin.flush]\nmode = "async"\ninterval = "2s"\n'
    environ = {
        "GANTRYMQ_BROKER__NAME": "env",
        "GANTRYMQ_BROKER__CLUSTER": "env",
        "GANTRYMQ_PLUGIN__FLUSH__MODE": "sync",
    }
    config = build(text, environ=environ, sets=["broker.name=flag"])
    shown = origins(config)
    assert shown["broker.name"] == ("flag", "flag", "--set")
    assert shown["broker.cluster"] == ("env", "environment", "GANTRYMQ_BROKER__CLUSTER")
    assert shown["broker.id"] == (1, "file", "gantrymq.toml")
    assert shown["broker.listen"] == ("127.0.0.1:10911", "default", "")
    assert shown["plugin.flush.mode"] == ("sync", "environment", "GANTRYMQ_PLUGIN__FLUSH__MODE")
    assert shown["plugin.flush.interval"] == ("2s", "file", "gantrymq.toml")
    assert (config.broker.name, config.section(FlushSection).interval) == ("flag", 2.0)


def test_flag_values_are_parsed_by_the_type_of_their_key() -> None:
    sets = [
        "workers=3",
        "loud=yes",
        "topics=a,b",
        "labels=x=1,y=2",
        "least=1 MiB",
        "ratio=0.25",
        "note=n",
        "interval=1m",
    ]
    section = build(sets=[f"plugin.flush.{text}" for text in sets]).section(FlushSection)
    assert section == FlushSection("sync", 60.0, 1 << 20, 3, 0.25, True, ("a", "b"), {"x": "1", "y": "2"}, "n")


def test_unrelated_environment_variables_are_ignored() -> None:
    assert build(environ={"GANTRYMQ_TRACEBACK": "1", "PATH": "/bin"}).broker == BrokerConfig()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[brokr]\nid = 1", "[brokr] (file gantrymq.toml): there is no such section; did you mean 'broker'?"),
        ("[brokr]", "[brokr] (file gantrymq.toml): there is no such section; did you mean 'broker'?"),
        (
            "[plugin.flash]\nmode = 'sync'",
            "[plugin.flash] (file gantrymq.toml): there is no such section; did you mean 'plugin.flush'?",
        ),
        ("[flush]", "[flush] (file gantrymq.toml): there is no such section; did you mean 'plugin.flush'?"),
        (
            "[plugin.zzz]\na = 1",
            "[plugin.zzz] (file gantrymq.toml): there is no such section; "
            "is the plugin named in plugins.enable or plugins.load? Loaded plugins have: flush",
        ),
        ("[broker]\nnane = 'x'", "broker.nane (file gantrymq.toml): there is no such key; did you mean 'name'?"),
        (
            "[plugins]\nzzz = 1",
            "plugins.zzz (file gantrymq.toml): there is no such key;"
            " there are: enable, load, disable, skip_errors, disable_on_error",
        ),
        ("[broker]\nid = 'one'", 'broker.id = "one" (file gantrymq.toml): allowed: a whole number'),
        ("[broker]\nid = true", "broker.id = true (file gantrymq.toml): allowed: a whole number"),
        ("[broker]\nid = 1.5", "broker.id = 1.5 (file gantrymq.toml): allowed: a whole number"),
        ("[broker]\nid = -1", "broker.id = -1 (file gantrymq.toml): out of range; allowed: 0 and more"),
        ("[broker]\nname = 5", "broker.name = 5 (file gantrymq.toml): allowed: a text in quotes"),
        (
            "[broker]\nname = ''",
            'broker.name = "" (file gantrymq.toml): allowed: a text that is not empty, without control characters',
        ),
        (
            "[broker]\nlisten = 'somewhere'",
            "broker.listen = \"somewhere\" (file gantrymq.toml): 'somewhere' is not an address: "
            "host:port is expected, as in 127.0.0.1:9876",
        ),
        (
            "[broker]\nnameservers = ['a:0']",
            "broker.nameservers = [\"a:0\"] (file gantrymq.toml): 'a:0' is not an address: "
            "the port must be a number from 1 to 65535",
        ),
        (
            "[broker]\nnameservers = [1]",
            'broker.nameservers = [1] (file gantrymq.toml): allowed: a list of texts, such as ["a", "b"]',
        ),
        ("[limits]\nsweep_rows = 0", "limits.sweep_rows = 0 (file gantrymq.toml): out of range; allowed: 1 to 65536"),
        (
            "[limits]\nidle = '5 weeks'",
            'limits.idle = "5 weeks" (file gantrymq.toml): allowed: a number with a unit (ms, s, m, h, d), '
            'such as "500ms" or "30s", or a number of seconds',
        ),
        (
            "[store]\ncommit_log_file_bytes = '3 GiB'",
            'store.commit_log_file_bytes = "3 GiB" (file gantrymq.toml): out of range; allowed: 4 KiB to 2 GiB',
        ),
        (
            "[store]\nmax_message_bytes = '4 Mib/s'",
            'store.max_message_bytes = "4 Mib/s" (file gantrymq.toml): allowed: whole bytes, or a number with a unit '
            '(KiB, MiB, GiB, KB, MB, GB), such as "64 MiB"',
        ),
        ("[plugin.flush]\nmode = 'asinc'", 'plugin.flush.mode = "asinc" (file gantrymq.toml): allowed: sync, async'),
        ("[plugin.flush]\nloud = 1", "plugin.flush.loud = 1 (file gantrymq.toml): allowed: true or false"),
        (
            "[plugin.flush]\nlabels = { x = 1 }",
            'plugin.flush.labels = {x = 1} (file gantrymq.toml): allowed: a table of texts, such as { name = "value" }',
        ),
        ("name = 'x'", 'gantrymq.toml: name = "x" is outside of a section such as [broker]'),
        ("plugin = 1", "gantrymq.toml: plugin = 1 is outside of a section such as [broker]"),
        (
            "[plugins]\nenable = 'a'",
            'plugins.enable = "a" (file gantrymq.toml): allowed: a list of names, each an entry point, "module:attr", '
            'or "./file.py:attr"',
        ),
    ],
)
def test_a_bad_file_is_reported_by_section_key_value_and_what_is_allowed(text: str, reported: str) -> None:
    assert problems(text) == [reported]


def test_all_problems_are_reported_at_once() -> None:
    found = problems("[broker]\nid = -1\nnane = 1\n[limits]\nsweep_rows = 0\n", sets=["store.queue_file_units=x"])
    assert len(found) == 4
    assert found[2:] == [
        'store.queue_file_units = "x" (flag --set): allowed: a whole number',
        "limits.sweep_rows = 0 (file gantrymq.toml): out of range; allowed: 1 to 65536",
    ]


def test_invalid_toml_is_reported_with_its_line() -> None:
    (text,) = problems("[broker]\nname = \n")
    assert text.startswith("gantrymq.toml: invalid TOML: ")
    assert "line 2" in text
    with pytest.raises(ConfigError, match="invalid TOML"):
        read_settings("gantrymq.toml", b"\xff\xfe")


@pytest.mark.parametrize("text", ["broker", "name=x", ".name=x", "broker.=x"])
def test_a_malformed_set_flag_gets_an_error_with_the_syntax(text: str) -> None:
    assert problems(sets=[text]) == [f"--set {text}: allowed: section.key=value, such as broker.name=broker-b"]


def test_an_overlong_number_is_rejected_without_computing_it() -> None:
    (text,) = problems(sets=["broker.id=" + "9" * 100_000])
    assert text.endswith("allowed: a whole number")


def test_the_section_of_a_disabled_plugin_is_accepted() -> None:
    settings = read_settings("a.toml", b"[plugin.gone]\nx = 1\n[plugins]\ndisable = ['gone']\n")
    assert settings.disable == ("gone",)
    build_config(settings, manager())


def test_flags_add_plugins_to_those_of_the_file() -> None:
    settings = read_settings(
        "a.toml", b"[plugins]\nenable = ['a:b']\n", {"GANTRYMQ_PLUGINS__DISABLE": "x, y"}, (), ("c:d",), ("z",)
    )
    assert (settings.enable, settings.disable) == (("a:b", "c:d"), ("x", "y", "z"))


def test_two_plugins_with_one_section_refuse_the_start() -> None:
    with pytest.raises(StartError, match=r"'flush' and 'second' both have the section \[plugin.flush\]"):
        build_config(read_settings(), manager(Flush(), SecondFlush()))


def test_a_section_without_defaults_is_an_error_that_names_the_plugin() -> None:
    with pytest.raises(StartError, match=r"plugin 'needy': section \[plugin.needy\] needs"):
        build_config(read_settings(), manager(NeedyPlugin()))


@attrs.frozen
class SecretSection:
    token: str = secret()
    port: int = attrs.field(default=1, repr=False)


class SecretPlugin:
    name = "vault"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "vault", SecretSection


def test_a_secret_is_shown_neither_among_the_values_nor_in_an_error() -> None:
    config = build_config(read_settings(sets=["plugin.vault.token=hush"]), manager(SecretPlugin()))
    assert config.section(SecretSection).token == "hush"
    shown = origins(config)
    assert (shown["plugin.vault.token"][0], shown["plugin.vault.port"][0]) == (HIDDEN, 1)
    assert "hush" not in repr(config)
    with pytest.raises(ConfigError) as failure:
        build_config(read_settings(sets=["plugin.vault.port=hush"]), manager(SecretPlugin()))
    assert failure.value.problems == ("plugin.vault.port = (hidden) (flag --set): allowed: a whole number",)


def test_an_undeclared_section_cannot_be_read() -> None:
    with pytest.raises(StartError, match="no loaded plugin has a configuration section of the class Needy"):
        build().section(Needy)


def test_a_replaced_section_is_returned_for_its_class() -> None:
    config = build()
    changed = config.with_section(attrs.evolve(config.broker, name="other"))
    assert (changed.broker.name, changed.section(BrokerConfig).name, config.broker.name) == (
        "other",
        "other",
        "broker-a",
    )


BROKER_CONF = rb"""
# a comment
! another
brokerName = broker-\
   conf
brokerClusterName:Cluster\u0031
brokerId 0
listenPort=11911
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
storePathRootDir=/data/store
mapedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=6000010
flushDiskType=ASYNC_FLUSH
flushConsumerOffsetInterval=2500
useEpollNativeSelector=false
"""


def test_rocketmqs_properties_are_mapped_and_the_others_reported() -> None:
    config = build_config(read_settings("conf/broker.conf", BROKER_CONF), manager())
    assert config.broker == BrokerConfig(
        name="broker-conf",
        cluster="Cluster1",
        listen="127.0.0.1:11911",
        data="/data/store",
        nameservers=["10.0.0.1:9876", "10.0.0.2:9876"],
        persist_interval=2.5,
    )
    assert (config.store.commit_log_file_bytes, config.store.queue_file_units) == (1 << 20, 300_001)
    assert config.section(FlushSection).mode == "async"
    assert config.notes == ("conf/broker.conf: useEpollNativeSelector has no counterpart here and is ignored",)


def test_overrides_rank_between_the_file_and_the_environment() -> None:
    written = b"[broker]\nname = 'file'\ncluster = 'file'\n[limits]\nidle = '1s'"
    overrides = ("/data/overrides.toml", b"[broker]\nname = 'override'\ncluster = 'override'")
    settings = read_settings("f.toml", written, {"GANTRYMQ_BROKER__NAME": "environment"}, overrides=overrides)
    rows = {row.key: row for row in build_config(settings, manager()).explain() if row.origin != "default"}
    assert {key: (row.value, row.origin) for key, row in rows.items()} == {
        "name": ("environment", "environment"), "cluster": ("override", "override"), "idle": ("1s", "file"),
    }  # fmt: skip
    assert rows["cluster"].source == "/data/overrides.toml"
    (note,) = settings.notes
    assert note.startswith('/data/overrides.toml: broker.name = "override" has no effect: environment')


def test_overrides_of_a_removed_plugin_are_ignored_with_a_note() -> None:
    text = b"[broker]\nname = 'override'\n[plugin.gone]\nkeep = 'secret'\n[plugin.off]\nkeep = 1\n[plugin.empty]"
    settings = read_settings(overrides=("/data/overrides.toml", text), disable=["off"])
    config = build_config(settings, manager())
    assert config.broker.name == "override"
    (note,) = config.notes
    assert note.startswith("/data/overrides.toml: plugin.gone.keep has no effect, because no loaded plugin has the ")
    assert note.endswith("add the plugin to the configuration again, or delete the line")
    assert "secret" not in note


@pytest.mark.parametrize("text", [b"[brokre]\nname = 'a'", b"[broker]\nnmae = 'a'", b"[plugin.flush]\nmdoe = 'sync'"])
def test_other_unknown_overrides_stop_the_start(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"\(override /data/overrides\.toml\): there is no such"):
        build_config(read_settings(overrides=("/data/overrides.toml", text)), manager())


def test_brokerip1_is_advertised_and_opens_the_bind() -> None:
    config = build("brokerIP1=10.0.0.7\n", "broker.conf")
    assert (config.broker.listen, config.broker.advertise) == ("0.0.0.0:10911", "10.0.0.7:10911")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("listenPort=abc", "broker.listen = \"127.0.0.1:abc\" (file broker.conf): '127.0.0.1:abc' is not an address"),
        ("flushDiskType=SOMETIMES", 'plugin.flush.mode = "SOMETIMES" (file broker.conf): allowed: sync, async'),
        ("brokerId=x", 'broker.id = "x" (file broker.conf): allowed: a whole number'),
        (r"brokerName=\u12", "broker.conf: a \\u needs four hexadecimal digits"),
    ],
)
def test_a_bad_value_of_the_properties_is_reported(line: str, reported: str) -> None:
    (text,) = problems(line, "broker.conf")
    assert text.startswith(reported)


@given(st.floats(0.001, 1e6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_is_its_number_times_its_unit(amount: float, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert parse_duration(f"{amount:.3f}{unit}") == pytest.approx(float(f"{amount:.3f}") * factor)


def test_a_number_without_a_unit_is_a_duration_in_seconds_in_every_source() -> None:
    written = b"[limits]\nidle = 90"
    settings = read_settings("f.toml", written, {"GANTRYMQ_BROKER__PERSIST_INTERVAL": "2.5"}, ["broker.watchdog=3"])
    config = build_config(settings, manager())
    assert (config.limits.idle, config.broker.persist_interval, config.broker.watchdog) == (90.0, 2.5, 3.0)


@given(st.text(max_size=12) | st.sampled_from(["9" * 5000, f"{'9' * 400}.5 KiB", f"{'9' * 400} KiB", "9" * 400 + ".5"]))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for parse in (parse_duration, parse_size):
        outcome: object
        try:
            outcome = parse(text) >= 0
        except ValueError as error:
            outcome = str(error).startswith("allowed: ")
        assert outcome is True


@given(st.binary(max_size=200))
def test_any_bytes_are_settings_or_a_config_error(data: bytes) -> None:
    for path in ("a.toml", "a.conf"):
        try:
            outcome = bool(build_config(read_settings(path, data), manager()).explain())
        except ConfigError as error:
            outcome = bool(error.problems)
        assert outcome


def test_values_are_shown_as_toml_has_them() -> None:
    assert show(["a", True, 5, {"k": 'q"'}]) == '["a", true, 5, {k = "q\\""}]'
    assert not re.search(r"[\n\0]", show("a\nb\0"))
    for code in range(0x100):
        assert tomllib.loads(f"a = {show('x' + chr(code))}")["a"] == "x" + chr(code)
        table = {"x" + chr(code): "1", chr(code): {"": "2"}}
        assert tomllib.loads(f"a = {show(table)}")["a"] == table
