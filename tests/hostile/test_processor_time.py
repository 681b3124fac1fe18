"""Requests that are cheap to send and dear to answer: what they may cost the clients that share the broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gantrymq.plugins.filter.sql92 import compile_sql92
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import pull, send

DIGITS = 32_000
PROCESSOR_S = 5.0
"""Far more than any of these may take on a slow machine, and far less than it took when time grew with the square."""


def sql_pull(expression: str, offset: int = 0) -> Command:
    command = pull("T", 0, offset, expression=expression)
    assert command.ext is not None
    command.ext["expressionType"] = "SQL92"
    return command


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a > 0.5", "1" * DIGITS + "x"), ("a > 0.5", "0x" + "1" * DIGITS + "x"), ("a > 5", "1" * DIGITS + "x"),
        ("a > 5", "0" * DIGITS + "x"), ("a > b", "1" * DIGITS + "." + "1" * DIGITS + "x"), ("a > 5", "9" * DIGITS),
    ],
)  # fmt: skip
def test_a_property_of_many_digits_is_read_in_linear_time(expression: str, value: str) -> None:
    wanted = compile_sql92(expression)
    before = time.thread_time()
    assert wanted.select([f"a\1{value}\2b\1{value}".encode()]) == [False]
    assert time.thread_time() - before < PROCESSOR_S


def test_a_long_property_is_read_once_however_often_an_expression_asks() -> None:
    wanted = compile_sql92(" OR ".join(["a > 0.5", "a > 7"] * 600))
    properties = f"a\1{'0' * (DIGITS - 1)}".encode()
    before = time.thread_time()
    assert wanted.select([properties] * 20) == [False] * 20
    assert time.thread_time() - before < PROCESSOR_S


@pytest.mark.trio
@pytest.mark.parametrize("value", ["0" * 20_000, "9" * 20_000, "-" + "0" * 4301 + "7", "0" * 20_000 + "x"])
async def test_a_number_of_any_length_does_not_block_a_queue(tmp_path: Path, value: str) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        for body, properties in ((b"bad", f"a\1{value}\2"), (b"good", "a\x017\2")):
            assert (await channel.call(send("T", body, properties=properties))).code == ResponseCode.SUCCESS
        answer = await channel.call(sql_pull("a > 5"))
        assert answer.code == ResponseCode.SUCCESS
        assert answer.body.endswith(b"a\x017\2") or b"good" in answer.body
        assert b"bad" not in answer.body
        assert answer.ext is not None
        assert answer.ext["nextBeginOffset"] == "2"


ALMOST_JSON = {
    "a comma too many": b'{"clientID":"c","x":[' + b"0," * 500_000 + b",]}",
    "keys without quotes": b'{clientID:"c","x":[' + b"{a:1}," * 100_000 + b"]}",
    "escapes": b"{clientID:'" + b"\\v" * 500_000 + b"'}",
    "JSON of another form": b"[" + b"[]," * 300_000 + b"[]]",
}


@pytest.mark.trio
@pytest.mark.parametrize("text", ALMOST_JSON)
@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    ],
)  # fmt: skip
async def test_a_large_body_that_is_almost_json_is_refused_before_python_reads_it(
    tmp_path: Path, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Any) -> Any:
        pytest.fail("the tolerant reader was asked")

    monkeypatch.setattr("gantrymq.remoting.fastjson.Reader.read", read)
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(Command(code, body=ALMOST_JSON[text]))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "values" in (answer.remark or "")
        assert len(answer.remark or "") < 1000


@pytest.mark.trio
async def test_a_heartbeat_in_the_dialect_with_a_thousand_subscriptions_is_taken(tmp_path: Path) -> None:
    subscriptions = [{"Topic": f"T{number}", "SubString": "*", "SubVersion": number} for number in range(1000)]
    data = {"ClientID": "c", "ConsumerDataSet": [{"GroupName": "g", "SubscriptionDataSet": subscriptions}]}
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(Command(RequestCode.HEART_BEAT, body=json.dumps(data).encode()))
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
