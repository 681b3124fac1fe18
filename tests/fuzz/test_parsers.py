"""Every parser of bytes from outside: mutated recorded traffic is read, or refused with the error that it says.

Each target has a corpus of bytes that RocketMQ's own jars made (``tests/golden``) and the errors that it may raise. Ten
thousand inputs each by default; ``GANTRYMQ_FUZZ_INPUTS=1000000 make fuzz`` is the long run, and ``GANTRYMQ_FUZZ_SEED``
another one. A failure prints the input.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from gantrymq.kernel import fast
from gantrymq.kernel.checkpoint import Checkpoint, decode_checkpoint, decode_marks
from gantrymq.kernel.fast import plain, plain_requests
from gantrymq.kernel.record import BadRecord, decode, is_intact, properties_in
from gantrymq.kernel.settings import ConfigError, read_settings
from gantrymq.plugins.filter.sql92 import compile_sql92
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.plugins.index.layout import decode_header
from gantrymq.plugins.produce.validate import split_batch, traits_of
from gantrymq.remoting import bodies, fastjson
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.command import decode as decode_command
from gantrymq.remoting.errors import FatalRemoteFault, RemoteFault
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers import REQUESTS, read_header
from gantrymq.remoting.properties import decode_properties, find_property
from gantrymq.remoting.records import BodyError, decode_records, decompress
from gantrymq.remoting.register_body import RegisterBrokerBody

GOLDEN = Path(__file__).parents[1] / "golden"
INPUTS = int(os.environ.get("GANTRYMQ_FUZZ_INPUTS", "10000"))
SEED = int(os.environ.get("GANTRYMQ_FUZZ_SEED", "1"))
SLOWEST_S = 2.0
"""No single input may take longer; a hundred times what any needs here."""

INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TOKENS = (
    b"", b"\0", b"\x01", b"\x02", b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"-1", b"1e999",
    b"\\u0000", b"\\ud800", b"9" * 40, b"\xff\xfe", b"\xef\xbb\xbf", b"..", b"/", b"'", b"||", b" AND ", b"NOT ",
    b"(" * 9, b"{" * 99,
)  # fmt: skip


class Peer:
    """What a request reader wants of a connection."""

    host = b"\x7f\0\0\x01\0\0\0\0"
    closed = False

    def take_answer(self, command: object) -> None:
        """An answer to a request of ours."""


@attrs.frozen
class Target:
    """A parser, the bytes it begins with, and what it may raise."""

    parse: Callable[[bytes], object]
    corpus: tuple[bytes, ...]
    errors: tuple[type[Exception], ...]


def golden(file: str, *kinds: str) -> tuple[bytes, ...]:
    entries = json.loads((GOLDEN / f"{file}.json").read_text())
    return tuple(
        bytes.fromhex(text) for entry in entries if entry["order"]["what"] in kinds for text in entry["hex"].values()
    )


def body_of(kind: type[bodies.Body]) -> Target:
    return Target(kind.from_bytes, golden("bodies", "body"), (RemoteFault,))


def frame(data: bytes) -> None:
    frames, _ = cut_frames(data)
    for each in frames:
        command = decode_command(each)
        for spec in REQUESTS.values():
            if spec.header is not None:
                with contextlib.suppress(RemoteFault):
                    read_header(spec.header, command.ext)


def requests(read: Callable[..., object]) -> Callable[[bytes], object]:
    return lambda data: read(Peer(), data, 1 << 20)


def properties(data: bytes) -> None:
    decode_properties(data.decode("utf-8", "replace"))
    find_property(data, b"TAGS")
    traits_of(data)


def record(data: bytes) -> None:
    if is_intact(data, 0):
        properties_in(data)
    decode(data)


FRAMES = golden("frames", "frame")
RECORDS = golden("records", "record")
TEXTS = (b"a > 5 AND b IN ('x', 'y''z') OR NOT (c IS NULL) -- end\n", b"x BETWEEN -1 AND 2.5e3 /* */", b"TagA || TagB")
CONFIG = (
    b'[broker]\nname = "b"\nid = 0\n[plugin.flush]\nmode = "sync"\n',
    b"brokerName=b\nlistenPort=1\n# x\nk\\\n =v\n",
)

TARGETS = {
    "frames and headers": Target(frame, FRAMES, (FatalRemoteFault,)),
    "requests, plain": Target(requests(plain_requests.read_requests), FRAMES, (FatalRemoteFault,)),
    "requests, as built": Target(requests(fast.read_requests), FRAMES, (FatalRemoteFault,)),
    "a batch": Target(lambda data: list(split_batch(data)), golden("records", "batch"), (RemoteFault,)),
    "properties": Target(properties, (b"TAGS\x01a\x02KEYS\x01b c\x02WAIT\x01true\x02", b"DELAY\x013"), ()),
    "a record": Target(record, RECORDS, (BadRecord,)),
    "a log, plain": Target(lambda data: plain.scan(data, 0, 100, check_body=True), RECORDS, ()),
    "a log, as built": Target(lambda data: fast.scan(data, 0, 100, check_body=True), RECORDS, ()),
    "pulled records": Target(decode_records, RECORDS, (BodyError, FatalRemoteFault)),
    "a compressed body": Target(
        lambda data: decompress(data, 1, 1 << 16), golden("bodies", "register-body"), (BodyError,)
    ),
    "JSON as fastjson": Target(fastjson.loads, golden("bodies", "body"), (ValueError,)),
    "a registration": Target(
        lambda data: RegisterBrokerBody.decode(data, compressed=True), golden("bodies", "register-body"), (RemoteFault,)
    ),
    "a heartbeat": body_of(bodies.HeartbeatData),
    "topics": body_of(bodies.TopicConfigSerializeWrapper),
    "groups": body_of(bodies.SubscriptionGroupWrapper),
    "offsets": body_of(bodies.ConsumerOffsetSerializeWrapper),
    "delay offsets": body_of(bodies.DelayOffsetSerializeWrapper),
    "a route": body_of(bodies.TopicRouteData),
    "SQL92": Target(lambda data: compile_sql92(data.decode("utf-8", "replace")), TEXTS, (RemoteFault,)),
    "tags": Target(lambda data: compile_tags(data.decode("utf-8", "replace")), TEXTS, (RemoteFault,)),
    "a checkpoint": Target(decode_checkpoint, (bytes(range(24)) + bytes(64),), ()),
    "watermarks": Target(lambda data: decode_marks(data, Checkpoint(0, 0, 0)), (bytes(range(128)),), ()),
    "an index's header": Target(lambda data: decode_header(data[:40].ljust(40)), (bytes(range(40)),), ()),
    "a configuration": Target(lambda data: read_settings("x.toml", data), CONFIG, (ConfigError,)),
    "a broker.conf": Target(lambda data: read_settings("x.conf", data), CONFIG, (ConfigError,)),
    "an address": Target(
        lambda data: parse_address(data.decode("latin-1")), (b"127.0.0.1:10911", b"[::1]:1"), (ValueError,)
    ),
}


def mutations(corpus: tuple[bytes, ...], seed: str) -> Iterator[bytes]:
    """Endlessly: pieces cut, doubled, joined, swapped; bits, bytes and numbers changed; tokens put in."""
    chance = random.Random(seed)
    while True:
        data = bytearray(chance.choice(corpus))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
            at = chance.randrange(len(data) + 1)
            kind = chance.randrange(8)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 1 and at < len(data):
                data[at] = chance.randrange(256)
            elif kind == 2:
                number = (chance.choice(INTERESTING) + chance.randint(-1, 1)) & 0xFFFFFFFF
                data[at : at + 4] = number.to_bytes(4, "big")
            elif kind == 3:
                data[at : at + chance.randrange(9)] = chance.choice(TOKENS)
            elif kind == 4:
                del data[at : at + chance.randrange(1, 40)]
            elif kind == 5:
                data[at:at] = data[at : at + chance.randrange(1, 40)]
            elif kind == 6:
                data[at:] = chance.choice(corpus)[at:]
            else:
                del data[at:]
        yield bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read_or_refused_with_the_error_that_is_promised(name: str) -> None:
    target = TARGETS[name]
    read = 0
    inputs = mutations(target.corpus, f"{SEED} {name}")
    for whole in target.corpus:
        try:
            target.parse(whole)
        except target.errors:
            continue
        read += 1
    assert read, "the corpus has something that can be read"
    for _ in range(INPUTS):
        data = next(inputs)
        began = time.perf_counter()
        try:
            target.parse(data)
        except target.errors:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} for {data!r}") from error
        if time.perf_counter() - began > SLOWEST_S:
            raise AssertionError(f"{name}: more than {SLOWEST_S} s for {data!r}")
