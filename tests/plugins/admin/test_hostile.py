"""Any request of an administrator gets a response with an error code, never an internal failure or silence."""

from __future__ import annotations

import random
from typing import Any

import pytest
import structlog.testing

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.table import REQUESTS

pytestmark = pytest.mark.trio

NUMBERS = ("-1", "0", "1", "2147483647", "2147483648", "-9223372036854775808", "9223372036854775808", "1e9")
NAMES = ("orders", "readers", "nobody", "c1", "../../etc/passwd", "%RETRY%readers", "TOPIC_PUT_NUMS")
ODD = (*NUMBERS, *NAMES, "", " ", "true", "maybe", "a\x00b", "\u00fc" * 50, "x" * 5000, "{}", "@", ",")
BODIES = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b"null",
    b'{"offsetTable":{{}:1}}',
    b"a=b\nc",
    b"=" * 1000,
    b"\\u",
    b"\n" * 70_000,
)
CODES = sorted(code for code, spec in REQUESTS.items() if spec.server == "broker")
ROUNDS = 12


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_odd_fields_and_bodies_are_refused_or_answered(bench: Any, code: RequestCode) -> None:
    chance = random.Random(int(code))
    header = REQUESTS[code].header
    names = [] if header is None else list(header.__struct_encode_fields__)
    await bench.commit(1)
    with structlog.testing.capture_logs() as logs:
        for _ in range(ROUNDS):
            fields = {name: chance.choice(ODD) for name in names if chance.random() < 0.9}
            answer = await bench.ask(code, fields or None, chance.choice(BODIES))
            assert answer.is_response
            assert len(answer.remark or "") < 12_000
        # the broker is as well as before
        assert (await bench.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})).code in (0, 17)
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []
