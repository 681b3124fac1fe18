"""The statistics of a broker, per minute, hour and day. Source: RocketMQ 4.9.7 ``BrokerStatsData``."""

from __future__ import annotations

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.headers.header import Int64


class StatsItem(Body, frozen=True):  # type: ignore[misc]  # a struct is no dataclass here
    """A sum over a period, the rate per second, and the average per event (``BrokerStatsItem``)."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class StatsData(Body):
    """Response to 315 (``BrokerStatsData``)."""

    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()
