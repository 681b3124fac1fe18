"""Section ``[plugin.ha]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs

from gantrymq.kernel.config.fields import address, duration, number, plain, size
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, Place, RocketmqKey, write_nothing
from gantrymq.plugins.ha.frames import CHUNK_MAX_BYTES
from gantrymq.remoting.peers import PeerRule


def _check_peers(_instance: object, _attribute: attrs.Attribute[list[str]], value: list[str]) -> None:
    PeerRule(value)


def _read_role(properties: Mapping[str, str]) -> dict[Place, str]:
    """As in RocketMQ a master's number is 0 whatever is written, and a slave's must be another.

    RocketMQ's brokers copy without being told to: whatever the role is, the section is there.
    """
    role = properties["brokerRole"]
    if role in ("ASYNC_MASTER", "SYNC_MASTER"):
        return {("broker", "id"): "0", ("plugin.ha", "role"): role.lower()}
    if role == "SLAVE" and not properties.get("brokerId", "").strip("0"):
        raise ValueError("brokerRole=SLAVE needs a brokerId above 0")
    return {("plugin.ha", ""): ""} if role in ("", "SLAVE") else {("plugin.ha", "role"): role}


def _read_listen(properties: Mapping[str, str]) -> dict[Place, str]:
    """The port beside the address that the broker listens on."""
    everywhere = "0.0.0.0" if "brokerIP1" in properties else "127.0.0.1"  # noqa: S104 - asked for by the file
    return {("plugin.ha", "listen"): f"{properties.get('bindAddress', everywhere)}:{properties['haListenPort']}"}


def _write_listen(section: HaConfig) -> dict[str, str]:
    return {"haListenPort": section.listen.rpartition(":")[2]} if section.listen else {}


@attrs.frozen(kw_only=True)
class HaConfig:
    """How copies are kept. ``broker.id`` says who is who: 0 is the master, any other a slave."""

    broker_conf_groups: ClassVar = (
        KeyGroup(("brokerRole",), _read_role, write_nothing),
        KeyGroup(("haListenPort",), _read_listen, _write_listen),
    )

    role: Literal["async_master", "sync_master"] = plain(
        "async_master", rocketmq=RocketmqKey("brokerRole", write=str.upper)
    )
    """A master's: whether a sender's answer waits for a slave."""
    listen: str = address("", optional=True, any_port=True)
    """Where a master waits for its slaves; empty: the broker's address, its port plus one, as RocketMQ does."""
    master: str = address("", optional=True, rocketmq="haMasterAddress")
    """A slave's: where its master waits for it; empty: where the nameserver says."""
    master_broker: str = address("", optional=True)
    """A slave's: where its master serves clients; empty: where the nameserver says."""
    sync_slaves: int = number(1, 1, 16)
    """How many slaves must have a message before a ``sync_master`` answers."""
    sync_timeout: float = duration("3s", minimum="10ms", maximum="5m", rocketmq="slaveTimeout")
    """After this time the sender gets FLUSH_SLAVE_TIMEOUT."""
    fall_behind_max: int = size("256 MiB", minimum="64 KiB", maximum="1024 GiB", rocketmq="haSlaveFallbehindMax")
    """The master does not wait for a slave that lags by more: SLAVE_NOT_AVAILABLE."""
    transfer_batch: int = size("32 KiB", minimum="1 KiB", maximum=f"{CHUNK_MAX_BYTES}", rocketmq="haTransferBatchSize")
    """The most that is sent behind one header."""
    heartbeat: float = duration("5s", minimum="10ms", maximum="1m", rocketmq="haSendHeartbeatInterval")
    """How long either side is silent at most."""
    housekeeping: float = duration("20s", minimum="20ms", maximum="10m", rocketmq="haHousekeepingInterval")
    """A peer that is silent for longer gets disconnected."""
    lease: float = duration("10s", minimum="1s", maximum="10m")
    """A master that hears from no nameserver and no slave for so long confirms nothing (``sync_master``)."""
    refuse_without_lease: bool = True
    """A master's: without the lease, take no messages at all."""
    full_copy: bool = False
    """A master's: send all of the log to a slave that has nothing; RocketMQ begins with the last file."""
    peers: list[str] = attrs.field(factory=list, validator=_check_peers)
    """A master's: from where slaves may come, addresses or networks; empty: from this machine only."""
    slaves_max: int = number(16, 1, 1024)
    """A master's: so many connections of slaves at a time."""
    sync_tables: float = duration("10s", minimum="100ms", maximum="1h")
    """How often a slave fetches topics, groups and offsets of its master (``SlaveSynchronize``)."""
