"""The nameserver's record of one broker, and the notices of its changes."""

from __future__ import annotations

from typing import Final, Protocol

import attrs

from gantrymq.remoting.bodies.tables import DataVersion

MASTER_ID: Final = 0


@attrs.frozen
class BrokerIdentity:
    """Who a broker says it is: ``address`` is "host:port", ``broker_id`` 0 the master of its name."""

    cluster: str
    name: str
    broker_id: int
    address: str


@attrs.define
class LiveBroker:
    """One registered broker: until when it lives (the clock's seconds), its topics' version, and who speaks for it."""

    identity: BrokerIdentity
    deadline: float
    lifetime: float
    data_version: DataVersion
    ha_address: str
    connection: object


@attrs.frozen
class Registration:
    """The master's addresses that a slave receives; both None for a master, or while there is none.

    ``replaced``: the address that had the same name and id until now, if that was another one and still lived.
    """

    master_address: str | None = None
    ha_address: str | None = None
    replaced: str | None = None


@attrs.frozen
class MinimumChange:
    """The lowest id among the brokers of one name is another than before, and who of them is to hear of it.

    ``left`` is the address that went, ``ha_address`` that of the broker that came; one of the two is there.
    ``acting``: whether the brokers of this name let a slave act as master (``enableActingMaster``).
    """

    name: str
    broker_id: int
    address: str
    listeners: tuple[str, ...]
    left: str | None = None
    ha_address: str | None = None
    acting: bool = False


class Changes(Protocol):
    """Receives changes of the tables, at once and synchronously."""

    def topic_changed(self, topic: str) -> None:
        """The queues of ``topic`` are others."""

    def brokers_changed(self) -> None:
        """Some broker's addresses, zone or filter servers are others; any route may have it."""

    def minimum_changed(self, change: MinimumChange) -> None:
        """The lowest id of a broker name is another."""


class Nobody:
    """Takes no notice of any change."""

    def topic_changed(self, topic: str) -> None:
        """Nothing."""

    def brokers_changed(self) -> None:
        """Nothing."""

    def minimum_changed(self, change: MinimumChange) -> None:
        """Nothing."""
