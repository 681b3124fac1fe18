"""The table of hosts whose TLS handshakes were logged stays small."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from gantrymq.remoting.bad_bytes import HOSTS_MAX, QUIET_SECONDS, BadBytesLog
from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake


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


@pytest.mark.parametrize("fault", [TlsHandshake(), FatalRemoteFault("no frame")])
def test_addresses_of_one_ipv6_network_are_one_host(fault: FatalRemoteFault) -> None:
    table = BadBytesLog(structlog.get_logger(), lambda: 0.0)
    with capture_logs() as logs:
        for number in range(2 * HOSTS_MAX):
            table.report(f"[2001:db8::{number:x}]:1", fault)
            table.report(f"2001:db8:0:1::{number:x}:1", fault)
    assert [one["peer"] for one in logs] == ["[2001:db8::0]:1", "2001:db8:0:1::0:1"]
