"""A filter of a third-party plugin that fails affects only the pulls that use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.filters import RecordFilter
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio
REMARK = "the filter 'MINE' of the plugin 'mine' failed; the broker's log has the reason"


class Entries:
    """Fails at each entry."""

    matches_all = False

    def matches(self, tag_code: int) -> bool:
        raise ValueError("a bug")


class Records(RecordFilter):
    """Fails at each batch of messages. Its objects cannot be weakly referenced."""

    __slots__ = ()

    def matches(self, tag_code: int) -> bool:
        return True

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        raise ValueError("a bug")


class EuropeanRecords(Records):
    """Works."""

    __slots__ = ()

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        return [b"region\x01eu" in each for each in properties]


def compile_mine(expression: str) -> Any:
    return {"entries": Entries, "records": Records, "europe": EuropeanRecords}[expression]()


class Mine:
    """A plugin with the filters above; an unknown expression makes its compiler raise ``KeyError``."""

    name = "mine"

    @hookimpl
    def register_filters(self) -> dict[str, Any]:
        return {"MINE": compile_mine}


def mine(expression: str, **others: Any) -> Command:
    command = pull("T", expression=expression, **others)
    assert command.ext is not None
    command.ext["expressionType"] = "MINE"
    return command


@pytest.mark.parametrize("expression", ["entries", "records", "unknown"])
async def test_a_filter_that_fails_is_the_response_to_its_pull_and_others_are_served(
    tmp_path: Path, expression: str
) -> None:
    broker = make_broker(tmp_path, enable=[Mine])
    async with run_broker(broker), open_channel(broker.address) as channel:
        assert (await channel.call(send("T", b"x", properties="region\x01eu"))).code == ResponseCode.SUCCESS
        answers: dict[int, Command] = {}

        async def ask(number: int, command: Command) -> None:
            answers[number] = await channel.call(command)

        async with trio.open_nursery() as nursery:  # mostly in one turn
            for number, command in enumerate([pull("T"), mine(expression), pull("T"), mine("europe")]):
                nursery.start_soon(ask, number, command)
        assert [answers[number].code for number in range(4)] == [0, ResponseCode.SYSTEM_ERROR, 0, 0]
        assert answers[1].remark == REMARK
        assert broker.manager.activity.errors.keys() == {"mine"}


@pytest.mark.parametrize("expression", ["entries", "records"])
async def test_a_filter_that_fails_when_a_message_arrives_ends_the_wait_of_its_pull(
    tmp_path: Path, expression: str
) -> None:
    broker = make_broker(tmp_path, enable=[Mine])
    async with run_broker(broker), open_channel(broker.address) as channel, open_channel(broker.address) as waiting:
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await waiting.call(mine(expression, offset=1, suspend_ms=60_000), 60.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.fail_after(60):
                while not answers:
                    assert (await channel.call(send("T", b"y"))).code == ResponseCode.SUCCESS
                    await trio.lowlevel.checkpoint()
        assert [(answer.code, answer.remark) for answer in answers] == [(ResponseCode.SYSTEM_ERROR, REMARK)]


async def test_a_filter_that_cannot_be_weakly_referenced_is_cached_and_works(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, enable=[Mine])
    async with run_broker(broker), open_channel(broker.address) as channel:
        for region in ("eu", "us"):
            await channel.call(send("T", region.encode(), properties=f"region\x01{region}"))
        for _ in range(3):
            answer = await channel.call(mine("europe"))
            assert (answer.code, b"region\x01eu" in answer.body, b"region\x01us" in answer.body) == (0, True, False)
