"""Section ``[plugin.ha]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs

from gantrymq.kernel.config.fields import address, duration, number, plain, size
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, RocketmqKey, SettingKey, write_nothing
from gantrymq.plugins.ha.frames import CHUNK_MAX_BYTES
from gantrymq.remoting.peers import PeerRule


def _check_peers(_instance: object, _attribute: attrs.Attribute[list[str]], value: list[str]) -> None:
    PeerRule(value)


def _read_role(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ's brokers always replicate: the section exists for every role. Only a slave keeps its
    ``brokerId``, which the kernel ignores."""
    role = properties["brokerRole"]
    if role in ("ASYNC_MASTER", "SYNC_MASTER"):
        return {("plugin.ha", "role"): role.lower()}
    if role != "SLAVE":
        return {("plugin.ha", "role"): role} if role else {("plugin.ha", ""): ""}
    broker_id = properties.get("brokerId", "")
    if not broker_id.strip("+-0"):
        raise ValueError("brokerRole=SLAVE needs a brokerId above 0")
    return {("plugin.ha", ""): "", ("broker", "id"): broker_id}


def _read_listen(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """Return the address for slaves: the port of the file, with the host at which the broker listens."""
    everywhere = "0.0.0.0" if "brokerIP1" in properties else "127.0.0.1"  # noqa: S104 - asked for by the file
    return {("plugin.ha", "listen"): f"{properties.get('bindAddress', everywhere)}:{properties['haListenPort']}"}


def _write_listen(section: HaConfig) -> dict[str, str]:
    return {"haListenPort": section.listen.rpartition(":")[2]} if section.listen else {}


@attrs.frozen(kw_only=True)
class HaConfig:
    """Replication settings. The broker with ``broker.id`` 0 is the master, any other a slave."""

    broker_conf_groups: ClassVar = (
        KeyGroup(("brokerRole",), _read_role, write_nothing),
        KeyGroup(("haListenPort",), _read_listen, _write_listen),
    )

    role: Literal["async_master", "sync_master"] = plain(
        "async_master", rocketmq=RocketmqKey("brokerRole", write=str.upper)
    )
    """Master: whether acknowledgments wait for slaves."""
    listen: str = address("", optional=True, any_port=True)
    """Master: the address for slaves; empty: the broker's address with its port plus one, as in RocketMQ, or with any
    free port if ``broker.listen`` has the port 0."""
    master: str = address("", optional=True, rocketmq="haMasterAddress")
    """Slave: the master's address for slaves. Without ``master_broker`` until a nameserver reports a master."""
    master_broker: str = address("", optional=True)
    """Slave: the master's address for clients. Without ``master`` until a nameserver reports a master."""
    sync_slaves: int = number(1, 1, 16)
    """How many slaves must have a message before a ``sync_master`` acknowledges it."""
    sync_timeout: float = duration("3s", minimum="10ms", maximum="5m", rocketmq="slaveTimeout")
    """After this time the sender gets FLUSH_SLAVE_TIMEOUT."""
    fall_behind_max: int = size("256 MiB", minimum="64 KiB", maximum="1024 GiB", rocketmq="haSlaveFallbehindMax")
    """The master does not wait for a slave that lags by more: SLAVE_NOT_AVAILABLE."""
    transfer_batch: int = size("32 KiB", minimum="1 KiB", maximum=f"{CHUNK_MAX_BYTES}", rocketmq="haTransferBatchSize")
    """The most bytes behind one header."""
    heartbeat: float = duration("5s", minimum="10ms", maximum="1m", rocketmq="haSendHeartbeatInterval")
    """The longest silence of either side."""
    housekeeping: float = duration("20s", minimum="20ms", maximum="10m", rocketmq="haHousekeepingInterval")
    """A peer that is silent for longer is disconnected."""
    lease: float = duration("10s", minimum="1s", maximum="10m")
    """A master without contact to a nameserver or slave for this time acknowledges nothing (``sync_master``)."""
    refuse_without_lease: bool = True
    """Master: without the lease, refuse all messages."""
    full_copy: bool = False
    """Master: send the whole log to an empty slave; RocketMQ begins with the last file."""
    peers: list[str] = attrs.field(factory=list, validator=_check_peers)
    """Master: addresses or networks of allowed slaves; empty: only this machine."""
    authentication: Literal["auto", "none", "required"] = "auto"
    """Master: whether slaves must authenticate by an administrator's key or certificate, besides their address;
    ``auto``: if a plugin controls access. RocketMQ's slaves cannot."""
    tls: Literal["auto", "plain"] = "auto"
    """Slave: connect to the master's port of replication with TLS if ``plugin.tls.outgoing`` says so; a RocketMQ
    master has plain text there."""
    slaves_max: int = number(16, 1, 1024)
    """Master: the most connections of slaves at the same time."""
    ready_lag: float = duration("60s", minimum="1s", maximum="365d")
    """Slave: a slave that lags by more behind a connected master is not ready (``/readyz``)."""
    sync_tables: float = duration("10s", minimum="100ms", maximum="1h")
    """How often a slave fetches topics, groups and offsets from its master (``SlaveSynchronize``)."""
