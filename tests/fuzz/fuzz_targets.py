"""The parsers of external bytes, as ``test_parsers`` fuzzes them at random and ``guided`` by coverage.

Each target has a corpus of bytes that RocketMQ's own jars made (``tests/golden``) and the errors that it may raise.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import attrs

from gantrymq.kernel import fast
from gantrymq.kernel.config.sources import ConfigError, read_settings
from gantrymq.kernel.fast import plain, plain_requests
from gantrymq.kernel.store.log.record import BadRecord, decode, is_intact, properties_in
from gantrymq.kernel.store.recovery.checkpoint import Checkpoint, decode_checkpoint, decode_marks
from gantrymq.plugins.consume import fast as consume_fast
from gantrymq.plugins.consume import plain as consume_plain
from gantrymq.plugins.filter.sql92 import compile_sql92
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.plugins.index.layout import decode_header
from gantrymq.plugins.produce import fast as produce_fast
from gantrymq.plugins.produce import plain as produce_plain
from gantrymq.plugins.produce.validate import split_batch, traits_of
from gantrymq.remoting import fastjson
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import HeartbeatData
from gantrymq.remoting.bodies.groups import SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper
from gantrymq.remoting.command import decode as decode_command
from gantrymq.remoting.errors import FatalRemoteFault, RemoteFault
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.remoting.properties import decode_properties, find_property
from gantrymq.remoting.records import BodyError, decode_records, decompress
from support.loops import Loops

GOLDEN = Path(__file__).parents[1] / "golden"


class Peer:
    """The part of a connection that a request reader needs."""

    host = b"\x7f\0\0\x01\0\0\0\0"
    closed = False

    def take_response(self, command: object) -> None:
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


def body_of(kind: type[Body]) -> Target:
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

PLAIN = Loops(plain_requests, produce_plain, consume_plain)
BUILT = Loops(fast, produce_fast, consume_fast)
TARGETS = {
    "frames and headers": Target(frame, FRAMES, (FatalRemoteFault,)),
    "requests, plain": Target(requests(PLAIN.read_requests), FRAMES, (FatalRemoteFault,)),
    "requests, as built": Target(requests(BUILT.read_requests), FRAMES, (FatalRemoteFault,)),
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
    "a heartbeat": body_of(HeartbeatData),
    "topics": body_of(TopicConfigSerializeWrapper),
    "groups": body_of(SubscriptionGroupWrapper),
    "offsets": body_of(ConsumerOffsetSerializeWrapper),
    "delay offsets": body_of(DelayOffsetSerializeWrapper),
    "a route": body_of(TopicRouteData),
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
