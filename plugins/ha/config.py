"""Section ``[plugin.ha]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import address, duration, number, size
from gantrymq.plugins.ha.frames import CHUNK_MAX_BYTES
from gantrymq.remoting.peers import PeerRule


def _check_peers(_instance: object, _attribute: attrs.Attribute[list[str]], value: list[str]) -> None:
    PeerRule(value)


@attrs.frozen(kw_only=True)
class HaConfig:
    """How copies are kept. ``broker.id`` says who is who: 0 is the master, any other a slave."""

    role: Literal["async_master", "sync_master"] = "async_master"
    """A master's: whether a sender's answer waits for a slave (``brokerRole``)."""
    listen: str = address("", optional=True, any_port=True)
    """Where a master waits for its slaves; empty: the broker's address, its port plus one, as RocketMQ does."""
    master: str = address("", optional=True)
    """A slave's: where its master waits for it; empty: where the nameserver says (``haMasterAddress``)."""
    master_broker: str = address("", optional=True)
    """A slave's: where its master serves clients; empty: where the nameserver says."""
    sync_slaves: int = number(1, 1, 16)
    """How many slaves must have a message before a ``sync_master`` answers."""
    sync_timeout: float = duration("3s", minimum="10ms", maximum="5m")
    """After it the sender gets FLUSH_SLAVE_TIMEOUT (``slaveTimeout``)."""
    fall_behind_max: int = size("256 MiB", minimum="64 KiB", maximum="1024 GiB")
    """Who is further behind is not waited for: SLAVE_NOT_AVAILABLE (``haSlaveFallbehindMax``)."""
    transfer_batch: int = size("32 KiB", minimum="1 KiB", maximum=f"{CHUNK_MAX_BYTES}")
    """The most that is sent behind one header (``haTransferBatchSize``)."""
    heartbeat: float = duration("5s", minimum="10ms", maximum="1m")
    """How long either side is silent at most (``haSendHeartbeatInterval``)."""
    housekeeping: float = duration("20s", minimum="20ms", maximum="10m")
    """Who is silent for longer is cut off (``haHousekeepingInterval``)."""
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
