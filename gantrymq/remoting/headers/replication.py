"""The headers of requests about the roles and the logs of a master and its slaves.

Source: RocketMQ 5.3.3 ``NotifyMinBrokerIdChangeRequestHeader``, ``NotifyBrokerRoleChangedRequestHeader``.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32, Int64


class MinimumChangedHeader(Header, kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), from a nameserver to 5.x brokers."""

    min_broker_id: Int64
    min_broker_addr: str
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class RoleChangedHeader(Header, kw_only=True):
    """NOTIFY_BROKER_ROLE_CHANGED (1008), with which RocketMQ 5's controller notifies brokers of the master.

    Between GantryMQ's brokers the field ``gantryEpoch`` has the epoch: see :mod:`gantrymq.remoting.epoch`.
    """

    master_address: str | None = None


class CompareLogHeader(Header, kw_only=True):
    """COMPARE_LOG (47001): the number and the SHA-256 (hex) of the bytes of a slave's log at this offset."""

    offset: Int64
    size: Int32
    digest: str


class SlaveTicketResponse(Header, kw_only=True):
    """Response to GET_SLAVE_TICKET (47004): the ticket in hex, none if the port of replication needs none."""

    ticket: str | None = None


class CompareLogResponse(Header, kw_only=True):
    """Response to 47001: the result of the comparison (``LogMatch``), and the end of the master's log."""

    match: str
    log_end: Int64
