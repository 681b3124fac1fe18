"""The inner loops of one kind as one object: the kernel's, and those of the plugins whose requests the kernel reads.

With what the tests of the twins share: a peer, the fields and properties of requests, and the slow path that says what
the loops mean.
"""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any, Final

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.fast import plain_requests
from gantrymq.kernel.processors import Request
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.send import SEND_LETTERS

HOSTS: Final = [b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(range(20))]
SEND: Final = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "3"}
LONG_NAMES: Final = {letter: name for name, letter in SEND_LETTERS.items()}
PROPERTIES: Final = [
    "", "\x02", "UNIQ_KEY\x01A0\x02WAIT\x01true", "WAIT\x01false\x02KEYS\x01k\x02", "AWAIT\x01false",
    "WAIT\x01x\x02\x02",
    "TIMER_DELAY_MS\x015\x02K\x01v", "K\x01v\x02TIMER_DEL_UNIQKEY\x01a", "XTIMER_DELIVER_MS\x011",
    "DELAY\x013", "TRAN_MSG\x01true\x02K\x01v", "CLUSTER\x01other\x02K\x01v", "XCLUSTER\x01other", "TAGS\x01é€😀",
    'quoted\x01"\\/\b\f\n\r\t', "K\x01v\x00", "\x02\x02K\x01v\x02\x02WAIT\x01true\x02\x02", "K\x01\x7f\x80",
    "x" * 32760,
    "TRAN_MSG\x01true\x02PGROUP\x01g\x02WAIT\x01true\x02TAGS\x01a", "PGROUP\x01g\x02TRAN_MSG\x01true\x02WAIT\x01false",
    "TRAN_MSG\x01TRUE", "TRAN_MSG\x01true\x02TRAN_MSG\x01false", "TRAN_MSG\x01false\x02TRAN_MSG\x01true",
    "TRAN_MSG\x01true\x02DELAY\x013", "XTRAN_MSG\x01true", "TRAN_MSG\x01", "TRAN_MSG\x01true\x02K\x02\x02K\x01\x02",
]  # fmt: skip


def select_twin(patch: pytest.MonkeyPatch, loops: ModuleType, twin: ModuleType) -> None:
    """Let all that use the inner loops of the module ``loops`` use those of this twin, as far as it has them."""
    for name in loops.__all__:
        if hasattr(twin, name):
            patch.setattr(loops, name, getattr(twin, name))


class Loops:
    """All functions of the twin modules ``kernel`` and ``plugins``; requests are read with the plugins' readers."""

    def __init__(self, kernel: Any, *plugins: Any) -> None:
        self.kernel = kernel
        self.plugins = plugins
        self.readers_by_code = {code: reader for one in plugins for code, reader in one.READERS.items()}
        self.readers = kernel.Readers(self.readers_by_code)

    def read_requests(self, connection: Any, buffer: bytes | bytearray, limit: int) -> Any:
        """See :func:`gantrymq.kernel.fast.plain_requests.read_requests`."""
        return self.kernel.read_requests(connection, buffer, limit, self.readers)

    def __getattr__(self, name: str) -> Any:
        for module in (self.kernel, *self.plugins):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)


class Peer:
    """A connection that keeps what is sent to it."""

    def __init__(self, host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f") -> None:
        self.host = host
        self.frames: list[bytes] = []
        self.answers: list[Command] = []

    def take_response(self, command: Command) -> None:
        """An answer to a request of ours."""
        self.answers.append(command)

    def send(self, command: Command) -> None:
        """The frame that is sent to it."""
        self.send_bytes(encode(command))

    def send_bytes(self, data: bytes) -> None:
        """Whole frames that it is sent."""
        frames, taken = cut_frames(data)
        assert taken == len(data)
        start = 0
        for frame in frames:
            end = start + 8 + len(frame.header) + len(frame.body)
            self.frames.append(data[start:end])
            start = end


def outcome(call: Any) -> Any:
    """The result of a call, or the type and text of its exception."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def frame(header: bytes, body: bytes = b"body", kind: int = 0) -> bytes:
    """The frame of this header, whatever it says."""
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


class SlowPath:
    """The slow path as reference: each frame a command, each request and each row for the fallback."""

    new_batch = staticmethod(plain_requests.new_batch)
    encode_rows = staticmethod(plain_requests.encode_rows)
    dispatch_batch = staticmethod(plain_requests.dispatch_batch)
    queue_entries = staticmethod(plain_requests.queue_entries)

    @staticmethod
    def read_requests(peer: Any, data: bytes, limit: int) -> Any:
        """Decode each frame alone."""
        requests: list[Request] = []
        position = 0
        while True:
            length = int.from_bytes(data[position : position + 4], "big", signed=True)
            frames, taken = cut_frames(data[position : position + 4 + max(0, length)], limit)
            if not taken:
                return requests, position
            position += taken
            command = decode(frames[0])
            if command.is_response:
                peer.take_response(command)
            else:
                requests.append(Request(peer, command))

    @staticmethod
    def add_sends(batch: AppendBatch, requests: list[Request], *given: Any) -> None:
        """Pass each request to the fallback."""
        for request in requests:
            given[-1](batch, request)

    @staticmethod
    def answer_sends(batch: AppendBatch, form: Any, fallback: Any) -> None:
        """Pass each row to the fallback."""
        row = 0
        while row < len(batch):
            row = fallback(batch, row)
