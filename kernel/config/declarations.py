"""The configuration sections and their classes: the kernel's, and one per plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from gantrymq.kernel.config.fields import address, check_address, duration, filled, number, plain, size
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, NoCounterpart, RocketmqKey, SettingKey, named, write_nothing
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager

CONSUME_QUEUE_UNIT_BYTES = 20


def _check_nameservers(_instance: object, _attribute: attrs.Attribute[list[str]], value: list[str]) -> None:
    for item in value:
        check_address(item)


def _read_addresses(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ keeps host and port apart, and binds to every interface.

    GantryMQ binds to loopback unless the file names an address for other machines.
    """
    advertised = properties.get("brokerIP1")
    port = properties.get("listenPort", "10911")
    everywhere = "0.0.0.0" if advertised is not None else "127.0.0.1"  # noqa: S104 - asked for by the file
    ours = {("broker", "listen"): f"{properties.get('bindAddress', everywhere)}:{port}"}
    if advertised is not None:
        ours["broker", "advertise"] = f"{advertised}:{port}"
    return ours


def _write_addresses(section: BrokerConfig) -> dict[str, str]:
    host, _, port = section.listen.rpartition(":")
    advertised = section.advertise.rpartition(":")[0]
    return {"bindAddress": host, "listenPort": port} | ({"brokerIP1": advertised} if advertised else {})


def _read_id(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ's role decides: without one the broker is a master, whose id is 0 whatever the file says. A plugin may
    read that of a slave."""
    given = properties["brokerId"]
    with contextlib.suppress(ValueError):  # the field refuses what is not a number
        if int(given) != 0:
            raise NoCounterpart("brokerId")
    return {("broker", "id"): given}


def _read_units(value: str) -> str:
    # RocketMQ's file size is in bytes and rounded up to whole units
    return str(-(-int(value) // CONSUME_QUEUE_UNIT_BYTES)) if value.isascii() and value.isdigit() else value


def _write_units(units: int) -> str:
    return str(units * CONSUME_QUEUE_UNIT_BYTES)


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """Section ``[broker]``: name, addresses, folder."""

    broker_conf_groups: ClassVar = (
        KeyGroup(("listenPort", "bindAddress", "brokerIP1"), _read_addresses, _write_addresses),
        KeyGroup(("brokerId",), _read_id, write_nothing),
    )

    name: str = filled("broker-a", rocketmq="brokerName")
    cluster: str = filled("DefaultCluster", rocketmq="brokerClusterName")
    id: int = number(0, 0, rocketmq="brokerId")
    listen: str = address("127.0.0.1:10911", any_port=True)
    advertise: str = address("", optional=True)
    """The address that clients get; empty: the listen address."""
    data: str = filled("./gantrymq-data", rocketmq="storePathRootDir")
    nameservers: list[str] = attrs.field(
        factory=lambda: ["127.0.0.1:9876"], validator=_check_nameservers, metadata=named("namesrvAddr")
    )
    persist_interval: float = duration("5s", minimum="10ms", maximum="1h", rocketmq="flushConsumerOffsetInterval")
    insecure: bool = False
    """Whether it may listen beyond the loopback address without access control (``--insecure``)."""
    watchdog: float = duration("2s", minimum="0s", maximum="1h")
    """How long the loop may be blocked before the log names the plugin that blocks it; 0: never."""


@attrs.frozen(kw_only=True)
class StoreSection:
    """Section ``[store]``: the shape of the files. The file sizes of an existing store must not change."""

    commit_log_file_bytes: int = size(
        "1 GiB",
        minimum="4 KiB",
        maximum="2 GiB",
        rocketmq=RocketmqKey("mappedFileSizeCommitLog", ("mapedFileSizeCommitLog",)),
    )
    queue_file_units: int = number(
        300_000,
        1,
        100_000_000,
        RocketmqKey("mappedFileSizeConsumeQueue", ("mapedFileSizeConsumeQueue",), _read_units, _write_units),
    )
    queue_extension: bool = plain(False, rocketmq="enableConsumeQueueExt")
    """Whether tag codes and store times go to consumequeue_ext."""
    queue_extension_file_bytes: int = size(
        "48 MiB", minimum="64 B", maximum="1 GiB", rocketmq="mappedFileSizeConsumeQueueExt"
    )
    max_message_bytes: int = size("4 MiB", minimum=1, maximum="16 MiB", rocketmq="maxMessageSize")
    clock_ahead_max: float = duration("1h", maximum="36500d")
    """How far the last message's time may be ahead of the machine's clock; beyond it a master does not start."""


@attrs.frozen(kw_only=True)
class LimitsSection:
    """Section ``[limits]``: limits on everything that arrives from outside."""

    connections: int = number(10_000, 1, 1_000_000)
    connections_per_address: int = number(0, 0, 1_000_000)
    """Connections of one address; 0: no limit. When all connections are in use, the newest connection of the address
    with the most is closed for an address with at least two fewer."""
    frame_bytes: int = size("16 MiB", minimum="1 KiB", maximum="1 GiB")
    write_buffer_bytes: int = size("8 MiB", minimum="64 KiB", maximum="1 GiB")
    buffered_bytes: int = size("256 MiB", minimum="256 KiB", maximum="64 GiB")
    """Bytes of unfinished frames of all connections, and the same amount of unread responses; beyond it the connection
    with the most is closed."""
    unacknowledged_bytes: int = size("64 MiB", minimum="64 KiB", maximum="16 GiB")
    sweep_bytes: int = size("8 MiB", minimum="4 KiB", maximum="256 MiB")
    sweep_rows: int = number(4096, 1, 65_536)
    turn_budget: float = duration("5ms", minimum="1ms", maximum="1s")
    """How long one turn answers requests that carry no message; the others wait for the next turn."""
    requests_in_flight: int = number(64, 1, 65_536)
    """Requests of one connection that tasks process at the same time; further ones wait."""
    heavy_requests: int = number(2, 1, 256)
    """Requests with large responses that are processed at the same time, of all connections together."""
    request_body_bytes: int = size("8 MiB", minimum="64 KiB", maximum="1 GiB")
    """The body of a request that carries no message."""
    waiting_bytes: int = size("64 MiB", minimum="1 MiB", maximum="64 GiB")
    """Memory for requests that wait or are processed; beyond it requests get SYSTEM_BUSY."""
    idle: float = duration("120s", minimum="100ms", maximum="1d")
    first_frame: float = duration("10s", minimum="100ms", maximum="1d")
    frame_deadline: float = duration("15s", minimum="100ms", maximum="1h")


@attrs.frozen(kw_only=True)
class PluginsSection:
    """Section ``[plugins]``: plugins to load after the default plugins, and plugins to disable."""

    enable: list[str] = attrs.field(factory=list)
    load: list[str] = attrs.field(factory=list)
    """Plugins without a package, as ``./file.py:attr`` or ``module:attr``, after those of ``enable``."""
    disable: list[str] = attrs.field(factory=list)
    skip_errors: list[str] = attrs.field(factory=list)
    """Plugins whose errors in ``before_append``, ``dispatch`` and background tasks are logged without stopping the
    broker.

    Changes that such a plugin made to a batch before the error remain.
    """
    disable_on_error: list[str] = attrs.field(factory=list)
    """Plugins that are not called again in these hooks after an error there or in a background task."""


KERNEL_SECTIONS: Mapping[str, type[Any]] = {
    "broker": BrokerConfig,
    "store": StoreSection,
    "limits": LimitsSection,
    "plugins": PluginsSection,
}


def plugin_sections(manager: PluginManager) -> dict[str, type[Any]]:
    """Return the classes of the loaded plugins by section (``plugin.NAME``).

    :class:`StartError` for two sections of one name, and for a class that is not a section.
    """
    sections: dict[str, type[Any]] = {}
    owners: dict[str, str] = {}
    for info, answer in manager.call_each("config_section", tuple):
        pair: tuple[Any, Any] = answer if len(answer) == 2 else ("?", None)
        name, section = pair
        if name in owners:
            raise StartError(
                f"plugins {owners[name]!r} and {info.name!r} both have the section [plugin.{name}]: disable one of them"
            )
        fields = attrs.fields(section) if isinstance(section, type) and attrs.has(section) else None
        if fields is None or any(field.init and field.default is attrs.NOTHING for field in fields):
            raise StartError(
                f"plugin {info.name!r}: section [plugin.{name}] needs an attrs class with a default for every field"
            )
        owners[name] = info.name
        sections[f"plugin.{name}"] = section
    return sections


def disabled_sections(manager: PluginManager) -> dict[str, type[Any]]:
    """As :func:`plugin_sections`, for disabled plugins. Errors in these do not stop the start."""
    sections = {}
    for plugin in manager.disabled:
        with contextlib.suppress(Exception):
            name, section = plugin.config_section()
            attrs.fields(section)
            sections[f"plugin.{name}"] = section
    return sections
