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
    """NOTIFY_BROKER_ROLE_CHANGED (1008); RocketMQ 5's controller tells brokers so who is the master.

    Between brokers of ours the field ``gantryEpoch`` has the epoch: see :mod:`gantrymq.remoting.epoch`.
    """

    master_address: str | None = None


class CompareLogHeader(Header, kw_only=True):
    """COMPARE_LOG (47001): the bytes that a slave's log has at this offset, by their number and their SHA-256 (hex)."""

    offset: Int64
    size: Int32
    digest: str


class CompareLogResponse(Header, kw_only=True):
    """Answer to 47001: what the master's log has there (``LogMatch``), and where it ends."""

    match: str
    log_end: Int64
