"""The table of hosts whose bytes were logged stays small."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from gantrymq.remoting.bad_bytes import HANDSHAKE_QUIET_SECONDS, HOSTS_MAX, BadBytesLog
from gantrymq.remoting.errors import TlsHandshake


def test_the_oldest_host_is_forgotten_when_the_table_is_full() -> None:
    table = BadBytesLog(structlog.get_logger())
    with capture_logs() as logs:
        for number in range(HOSTS_MAX + 1):
            table.report(f"host-{number}:1", TlsHandshake(), float(number) / HOSTS_MAX)
        assert len(logs) == HOSTS_MAX + 1
        assert len(table._quiet_until) == HOSTS_MAX
        table.report("host-1:2", TlsHandshake(), 2.0)
        assert len(logs) == HOSTS_MAX + 1
        table.report("host-0:2", TlsHandshake(), 2.0)
        table.report("host-2:2", TlsHandshake(), 2.0 + HANDSHAKE_QUIET_SECONDS)
    assert [one["peer"] for one in logs[-2:]] == ["host-0:2", "host-2:2"]
