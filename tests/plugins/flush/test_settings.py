"""RocketMQ's keys for the flush in a ``broker.conf``."""

from __future__ import annotations

import pytest

from gantrymq.kernel.config.broker_conf import translate
from gantrymq.plugins.flush import FlushConfig
from gantrymq.remoting.javaproperties import read_properties


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("transientStorePoolEnable=true", "buffered"),
        ("transientStorePoolEnable=true\nflushDiskType=ASYNC_FLUSH", "buffered"),
        ("transientStorePoolEnable=true\nflushDiskType=SYNC_FLUSH", "sync"),
        ("transientStorePoolEnable=false\nflushDiskType=ASYNC_FLUSH", "async"),
    ],
)
def test_the_transient_pool_is_the_flush_mode_buffered_where_the_disk_may_be_late(lines: str, mode: str) -> None:
    found = translate(read_properties(lines.encode()), {"plugin.flush": FlushConfig})
    assert found.settings["plugin.flush", "mode"] == mode
    assert found.unmapped == ()
