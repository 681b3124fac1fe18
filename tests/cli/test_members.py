"""Commands query all members of a group concurrently, so hanging ones delay them by one timeout only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gantrymq.client.errors import CallTimeout
from gantrymq.operations import groups
from gantrymq.operations.groups import group_members, member_reports
from gantrymq.remoting.bodies.clients import ClientConnection, ConsumerConnections
from gantrymq.remoting.bodies.running import MemberReport
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command

pytestmark = pytest.mark.trio

TIMEOUT_S = 3.0
MASTERS = {"broker-a": "a:1"}


def group_of(members: int, hanging: set[str], timeout: float = TIMEOUT_S) -> Any:
    names = [f"m{number}" for number in range(members)]

    async def request(address: str, command: Command) -> Command:
        if command.code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
            connections = [ClientConnection(client_id=name, client_addr="h:1") for name in names]
            return Command(0, None, ConsumerConnections(connection_set=connections).to_bytes())
        if (command.ext or {})["clientId"] in hanging:
            await trio.sleep(timeout)
            raise CallTimeout(address, "no answer")
        await trio.sleep(0.01)
        return Command(0, None, MemberReport().to_bytes())

    return SimpleNamespace(admin=SimpleNamespace(request=request))


async def test_members_that_hang_take_one_timeout_together(autojump_clock: trio.testing.MockClock) -> None:
    client = group_of(40, {"m3", "m5", "m7"})
    begun = trio.current_time()
    members = await group_members(client, "g", ask=True, masters=MASTERS)
    assert trio.current_time() - begun == pytest.approx(TIMEOUT_S)
    assert {member.client_id for member in members if member.subscriptions is None} == {"m3", "m5", "m7"}
    assert len(members) == 40


async def test_all_members_have_one_deadline(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def masters(_: Any) -> dict[str, str]:
        return MASTERS

    monkeypatch.setattr(groups, "master_addresses", masters)
    begun = trio.current_time()
    reports = await member_reports(group_of(3, {"m1"}, timeout=60.0), "g")
    assert trio.current_time() - begun == pytest.approx(groups.MEMBERS_SECONDS)
    assert {name for name, report in reports.items() if report is None} == {"m1"}
