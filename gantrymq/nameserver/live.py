"""The nameserver's record of one broker, and the notices of its changes."""

from __future__ import annotations

from typing import Final, Protocol

import attrs

from gantrymq.remoting.bodies.tables import DataVersion

MASTER_ID: Final = 0


@attrs.frozen
class BrokerIdentity:
    """The identity that a broker reports: ``address`` is "host:port", ``broker_id`` 0 the master of its name."""

    cluster: str
    name: str
    broker_id: int
    address: str


@attrs.define
class LiveBroker:
    """One registered broker: the time of its expiry (seconds of the clock), the version of its topics, its
    connection."""

    identity: BrokerIdentity
    deadline: float
    lifetime: float
    data_version: DataVersion
    ha_address: str
    connection: object


@attrs.frozen
class Registration:
    """The result of a registration: for a slave the master's addresses; both are None for a master or without one.

    ``replaced`` is the address of another live broker that had the same name and id until now.
    """

    master_address: str | None = None
    ha_address: str | None = None
    replaced: str | None = None


@attrs.frozen
class MinimumChange:
    """The lowest id among the brokers of one name has changed; has the brokers to notify.

    Either ``left``, the address of the broker that left, or ``ha_address``, that of the new one, is set. ``acting``
    says whether the brokers of this name let a slave act as master (``enableActingMaster``).
    """

    name: str
    broker_id: int
    address: str
    listeners: tuple[str, ...]
    left: str | None = None
    ha_address: str | None = None
    acting: bool = False


class Changes(Protocol):
    """Receives changes of the tables by synchronous calls."""

    def topic_changed(self, topic: str) -> None:
        """The queues of ``topic`` have changed."""

    def brokers_changed(self) -> None:
        """The addresses, zone or filter servers of a broker have changed, which any route may contain."""

    def minimum_changed(self, change: MinimumChange) -> None:
        """The lowest id of a broker name has changed."""


class Nobody:
    """Ignores all changes."""

    def topic_changed(self, topic: str) -> None:
        """Ignore the change."""

    def brokers_changed(self) -> None:
        """Ignore the change."""

    def minimum_changed(self, change: MinimumChange) -> None:
        """Ignore the change."""
