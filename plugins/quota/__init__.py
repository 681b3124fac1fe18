"""Quotas by identity: requests and bytes per second, and connections.

A connection whose identity is at a rate is read more slowly; requests far beyond it are refused with SYSTEM_BUSY.

Slot: none; not in the default set: ``--enable quota``.
Hooks: authorize, collect_metrics, config_section, configure, connections_changed, register_tasks.
Config ``[plugin.quota]``: ``requests_per_second``, ``bytes_per_second``, ``connections``, ``burst``, ``pause``,
``identities``.
Files: none.
RocketMQ has no counterpart. No response makes its producers wait: after SYSTEM_BUSY, the code of RocketMQ's own flow
control, 5.x producers send again at once and 4.x producers report it; both report FLOW_CONTROL (215). A connection that
is read more slowly makes both wait. Consumers pull again 3 s after SYSTEM_BUSY, 20 ms after FLOW_CONTROL.

``usage`` has the quotas and what is left of them, ``pauses`` the connections that wait. ``docs/howto/secure.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.quota.config import QuotaConfig, read_quota
from gantrymq.plugins.quota.pauses import PausedConnections
from gantrymq.plugins.quota.usage import Exceeded, Quota, Usages
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.rare_warnings import RareWarnings

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import Connection, ConnectionsBatch
    from gantrymq.kernel.processors import RequestBatch

log = structlog.get_logger("gantrymq.quota")

ALWAYS_SERVED: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)
"""Requests that count and are not refused for their rate: without them a client would lose its place in its group, get
messages again, or leave transactions open, which costs everybody more."""
SERVED_ON_ANY_CONNECTION: Final = ALWAYS_SERVED - {
    RequestCode.HEART_BEAT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.LOCK_BATCH_MQ,
}
"""Requests that are served beyond the quota of connections too: a 4.9.7 client takes every error of
QUERY_CONSUMER_OFFSET for "never committed" and skips or repeats messages; the others finish what a client has begun on
another connection. The exceptions would give queues to a consumer that cannot pull."""


class QuotaPlugin:
    """One object a broker."""

    name = "quota"
    _usages: Usages  # these are set by configure
    _warnings: RareWarnings

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.quota]``."""
        return "quota", QuotaConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the quotas."""
        section = config.section(QuotaConfig)
        default = Quota(section.requests_per_second, section.bytes_per_second, section.connections)
        named = {name: read_quota(name, text) for name, text in section.identities.items()}
        if not default and not any(named.values()):
            raise StartError(
                "plugin 'quota': no quota is set; set plugin.quota.requests_per_second, .bytes_per_second or"
                ' .connections, or plugin.quota.identities = { NAME = "requests=1000 bytes=10MiB connections=20" }'
            )
        self._usages = Usages(default, named, section.burst, section.pause)
        self._clock = broker.env.monotonic
        self._paused = PausedConnections(broker.env.monotonic)
        self._warnings = RareWarnings(broker.env.monotonic)

    @hookimpl
    def authorize(self, batch: RequestBatch) -> None:
        """Count the requests that access control allows, and refuse those beyond a quota."""
        usages, now = self._usages, self._clock()
        for row in batch.live:
            request = batch.requests[row]
            connection = request.connection
            always = request.code in ALWAYS_SERVED
            try:
                pause = usages.take(
                    connection,
                    _identity_of(connection),
                    request.size,
                    now,
                    always=always,
                    on_any_connection=always and request.code in SERVED_ON_ANY_CONNECTION,
                )
            except Exceeded as exceeded:
                batch.refuse(row, ResponseCode.SYSTEM_BUSY, str(exceeded))
                if self._warnings.is_due(f"{exceeded.identity} {exceeded.reason}"):
                    log.warning("quota_exceeded", identity=exceeded.identity, reason=str(exceeded))
            else:
                if pause:
                    self._paused.add(connection, now + pause)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """What has paused connections read again."""
        return [BackgroundTask("quota", self._paused.run)]

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        """Forget closed connections."""
        for connection in batch.closed:
            self._usages.forget(connection)
            self._paused.forget(connection)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Refused requests by identity and reason."""
        text = "Requests that were refused because their identity exceeded a quota"
        for (identity, reason), count in self._usages.refused.items():
            metrics.counter("gantrymq_quota_refused_requests_total", text, count, identity=identity, reason=reason)
        text = "Requests after which their connection was not read for a while, because its identity was at a rate"
        for identity, count in self._usages.paused.items():
            metrics.counter("gantrymq_quota_pauses_total", text, count, identity=identity)
        metrics.gauge("gantrymq_quota_identities", "Identities whose use is counted", len(self._usages))


def _identity_of(connection: Connection) -> str:
    """The identity of the peer, or its address: an access key never looks like one with its brackets."""
    return f"[{connection.site}]" if connection.identity is None else str(connection.identity)
