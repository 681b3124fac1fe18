"""Any plugin can declare the names of its fields in RocketMQ's ``broker.conf``, by which they are read and refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pytest

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.config.broker_conf import declared_keys, translate, write_keys
from gantrymq.kernel.config.declarations import KERNEL_SECTIONS
from gantrymq.kernel.config.fields import address, duration, filled, number, plain, size
from gantrymq.kernel.config.rocketmq_keys import (
    KeyGroup,
    NoCounterpart,
    RocketmqKey,
    SettingKey,
    in_hours,
    in_seconds,
    named,
    write_nothing,
)
from gantrymq.kernel.config.sections import Config, build_config
from gantrymq.kernel.config.sources import ConfigError, read_settings
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager


def read_server(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    kind = properties.get("auditKind", "tcp")
    if kind == "pigeon":
        raise NoCounterpart("auditKind")
    if kind == "tcp" and "auditHost" not in properties:
        raise ValueError("auditPort needs an auditHost")
    return {("plugin.audit", "server"): f"{properties['auditHost']}:{properties.get('auditPort', '1')}"}


def write_server(section: AuditConfig) -> dict[str, str]:
    host, _, port = section.server.partition(":")
    return {"auditHost": host, "auditPort": port}


def read_level(text: str) -> str:
    return {"LOUD": "3"}.get(text) or str(int(text))


@attrs.frozen(kw_only=True)
class AuditConfig:
    broker_conf_groups: ClassVar = (KeyGroup(("auditKind", "auditHost", "auditPort"), read_server, write_server),)

    interval: float = duration("5s", minimum="1ms", rocketmq="auditInterval")
    keep: float = duration("72h", rocketmq=in_hours("auditKeepHours"))
    patience: float = duration("1s", rocketmq=in_seconds("auditPatience"))
    bytes_max: int = size("1 MiB", minimum=1, rocketmq=RocketmqKey("auditBytes", ("auditBytez", "auditOctets")))
    level: int = number(1, 0, 5, rocketmq=RocketmqKey("auditLevel", read=read_level))
    is_loud: bool = plain(False, rocketmq="auditLoud")
    label: str = filled("audit", rocketmq="auditLabel")
    server: str = address("127.0.0.1:9000")
    mirror: str = address("", optional=True, rocketmq="auditMirror")
    topics: list[str] = attrs.field(factory=list, metadata=named("auditTopics"))
    unnamed: int = number(1)


class Audit:
    name = "audit"

    def __init__(self, kind: Any = AuditConfig) -> None:
        self.kind = kind

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return self.name, self.kind


class SecondAudit(Audit):
    name = "second"


def manager(*plugins: Any, disabled: tuple[Any, ...] = ()) -> PluginManager:
    return PluginManager([(f"tests:{plugin.name}", plugin) for plugin in plugins], hookspecs, disabled)


def build(text: str, *plugins: Any, disabled: tuple[Any, ...] = (), optional: Any = None, **more: Any) -> Config:
    settings = read_settings(
        "broker.conf", text.encode(), optional=None if optional is None else lambda: manager(optional), **more
    )
    return build_config(settings, manager(*plugins, disabled=disabled))


EVERY = {
    "auditInterval": "250", "auditKeepHours": "2", "auditPatience": "90", "auditBytes": "4096", "auditLevel": "LOUD",
    "auditLoud": "true", "auditLabel": "a b", "auditMirror": "10.0.0.1:80", "auditTopics": "a;b",
    "auditHost": "10.0.0.2", "auditPort": "81",
}  # fmt: skip


def test_a_plugins_settings_are_read_by_their_declared_rocketmq_keys() -> None:
    config = build("".join(f"{key}={value}\n" for key, value in EVERY.items()), Audit())
    assert config.section(AuditConfig) == AuditConfig(
        interval=0.25, keep=7200.0, patience=90.0, bytes_max=4096, level=3, is_loud=True, label="a b",
        server="10.0.0.2:81", mirror="10.0.0.1:80", topics=["a", "b"],
    )  # fmt: skip
    assert config.notes == ()
    rows = {row.key: (row.origin, row.source) for row in config.explain() if row.section == "plugin.audit"}
    assert rows["level"] == rows["server"] == ("file", "broker.conf")
    assert rows["unnamed"] == ("default", "")


def test_declared_settings_are_written_in_rocketmqs_form_and_read_back_unchanged() -> None:
    section = build("".join(f"{key}={value}\n" for key, value in EVERY.items()), Audit()).section(AuditConfig)
    written = write_keys({"plugin.audit": section})
    assert written == EVERY | {"auditLevel": "3"}
    again = build("".join(f"{key}={value}\n" for key, value in written.items()), Audit())
    assert again.section(AuditConfig) == section


@pytest.mark.parametrize("name", ["auditBytes", "auditBytez", "auditOctets"])
def test_deprecated_spellings_are_read(name: str) -> None:
    assert build(f"{name}=77", Audit()).section(AuditConfig).bytes_max == 77


def test_deprecated_spellings_are_not_shown() -> None:
    assert declared_keys({"plugin.audit": AuditConfig})["plugin.audit", "bytes_max"].name == "auditBytes"


def test_keys_of_a_plugin_that_is_not_loaded_are_reported() -> None:
    config = build("auditInterval=250\nauditHost=h\n")
    assert [note.partition(" has")[0] for note in config.notes] == [
        "broker.conf: auditInterval",
        "broker.conf: auditHost",
    ]


def test_the_keys_of_a_disabled_plugin_are_accepted() -> None:
    config = build("auditInterval=250\nauditHost=h\n", disabled=(Audit(),), disable=["audit"])
    assert config.notes == ()
    assert "plugin.audit" not in {row.section for row in config.explain()}


class Broken:
    """Disabled because of this, perhaps."""

    name = "broken"

    def config_section(self) -> tuple[str, type[Any]]:
        raise RuntimeError("no")


def test_a_broken_disabled_plugin_does_not_affect_the_start() -> None:
    assert build("brokerName=b", disabled=(Broken(), object()), disable=["broken"]).broker.name == "b"


def test_a_plugin_that_replaces_a_disabled_one_takes_over_its_keys() -> None:
    config = build("auditInterval=250", SecondAudit(), disabled=(Audit(),), disable=["audit"])
    assert config.section(AuditConfig).interval == 0.25
    assert {row.section for row in config.explain() if row.origin == "file"} == {"plugin.second"}


def test_an_optional_plugin_is_enabled_by_any_of_its_keys() -> None:
    for text in ("auditInterval=1", "auditOctets=5", "auditHost=h"):
        settings = read_settings("broker.conf", text.encode(), optional=lambda: manager(Audit()))
        assert settings.enable == ("audit",)
        assert settings.values["plugins", "enable"].source == "broker.conf"
    assert read_settings("broker.conf", b"brokerName=b", optional=lambda: manager(Audit())).enable == ()
    assert build("auditInterval=250", Audit(), optional=Audit()).section(AuditConfig).interval == 0.25


def test_an_optional_plugin_excluded_by_the_environment_refuses_the_start() -> None:
    with pytest.raises(ConfigError) as failed:
        build("auditInterval=1", optional=Audit(), environ={"GANTRYMQ_PLUGINS__ENABLE": "other"})
    (problem,) = failed.value.problems
    assert problem.startswith("[plugin.audit] (file broker.conf): there is no such section; is the plugin named in")


def test_flags_and_environment_take_precedence_over_the_file() -> None:
    config = build(
        "auditInterval=1\nauditLabel=file\nauditPatience=3\n",
        Audit(),
        environ={"GANTRYMQ_PLUGIN__AUDIT__LABEL": "environment"},
        sets=["plugin.audit.interval=2s"],
        overrides=("o.toml", b"[plugin.audit]\npatience = '4s'"),
    )
    section = config.section(AuditConfig)
    assert (section.interval, section.label, section.patience) == (2.0, "environment", 4.0)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("auditInterval=soon", 'plugin.audit.interval = "soonms" (file broker.conf): allowed: a number with a unit'),
        ("auditLevel=9", 'plugin.audit.level = "9" (file broker.conf): out of range; allowed: 0 to 5'),
        ("auditLoud=perhaps", 'plugin.audit.is_loud = "perhaps" (file broker.conf): allowed: true or false'),
        ("auditLevel=QUIET", "broker.conf: auditLevel = 'QUIET': invalid literal"),
        ("auditPort=80", "broker.conf: auditPort needs an auditHost"),
        ("auditHost=h\nauditPort=x", "plugin.audit.server = \"h:x\" (file broker.conf): 'h:x' is not an address"),
    ],
)
def test_an_invalid_value_is_rejected_with_the_name_used_in_its_source(text: str, reported: str) -> None:
    with pytest.raises(ConfigError) as failed:
        build(text, Audit())
    (problem,) = failed.value.problems
    assert problem.startswith(reported)


def test_a_value_without_a_counterpart_is_reported_and_its_key_group_ignored() -> None:
    config = build("auditKind=pigeon\nauditHost=h\nauditInterval=250", Audit())
    assert config.notes == ("broker.conf: auditKind has no counterpart here and is ignored",)
    assert config.section(AuditConfig) == AuditConfig(interval=0.25)


@attrs.frozen
class Greedy:
    most: int = number(1, rocketmq="maxMessageSize")


@attrs.frozen
class GreedyOfAPort:
    broker_conf_groups: ClassVar = (KeyGroup(("listenPort",), lambda properties: {}, write_nothing),)


@attrs.frozen
class Twice:
    one: int = number(1, rocketmq="same")
    two: int = number(1, rocketmq=RocketmqKey("other", ("same",)))


@pytest.mark.parametrize(
    ("kind", "key", "owners"),
    [
        (Greedy, "maxMessageSize", "store.max_message_bytes and for plugin.audit.most"),
        (GreedyOfAPort, "listenPort", "broker and for plugin.audit"),
        (Twice, "same", "plugin.audit.one and for plugin.audit.two"),
    ],
)
def test_a_key_declared_by_two_settings_refuses_the_start(kind: Any, key: str, owners: str) -> None:
    with pytest.raises(StartError) as failed:
        build_config(read_settings(), manager(Audit(kind)))
    assert str(failed.value).startswith(f"RocketMQ's key '{key}' is declared for {owners}: ")


def test_the_kernels_own_keys_need_no_plugin() -> None:
    found = translate({"brokerName": " b ", "mapedFileSizeConsumeQueue": "41", "listenPort": "1"}, KERNEL_SECTIONS)
    assert found.settings == {
        ("broker", "name"): "b", ("store", "queue_file_units"): "3", ("broker", "listen"): "127.0.0.1:1",
    }  # fmt: skip
