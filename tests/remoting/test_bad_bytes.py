"""The table of hosts whose TLS handshakes were logged stays small."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from gantrymq.remoting.bad_bytes import HOSTS_MAX, QUIET_SECONDS, BadBytesLog
from gantrymq.remoting.errors import TlsHandshake


def test_the_oldest_host_is_forgotten_when_the_table_is_full() -> None:
    now = 0.0
    table = BadBytesLog(structlog.get_logger(), lambda: now)
    with capture_logs() as logs:
        for number in range(HOSTS_MAX + 1):
            now = number / HOSTS_MAX
            table.report(f"host-{number}:1", TlsHandshake())
        assert len(logs) == HOSTS_MAX + 1
        assert len(table._handshakes) == HOSTS_MAX
        now = 2.0
        table.report("host-1:2", TlsHandshake())
        assert len(logs) == HOSTS_MAX + 1
        table.report("host-0:2", TlsHandshake())
        now = 2.0 + QUIET_SECONDS
        table.report("host-2:2", TlsHandshake())
    assert [one["peer"] for one in logs[-2:]] == ["host-0:2", "host-2:2"]
