"""A number that is changed while the broker runs; ``tests/cli/test_promote.py`` changes roles of real processes."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command

pytestmark = pytest.mark.trio


async def test_a_number_that_a_flag_has_set_is_not_changed_over_it(pair: Any) -> None:
    async with pair.slave("127.0.0.1:1") as slave, open_channel(slave.address) as channel:
        answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0"))
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith("broker.id is set by flag --set, which stands over what is changed here")
        answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=1"))
        assert answer.code == 0, "it is so already"
        assert not slave.restarting
