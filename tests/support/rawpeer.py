"""A peer that sends raw bytes, and distinguishes a response from a closed connection."""

from __future__ import annotations

import itertools
import socket
from types import TracebackType

from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames

PROBE_CODE = 9999
"""An unused request code, which is answered at once and in order with code 3."""
RECEIVE_BYTES = 1024 * 1024

_opaques = itertools.count(1_000_000)


class RawPeer:
    """One blocking connection to ``address`` (``host:port``). Nothing takes longer than ``timeout`` seconds."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=timeout)
        self._buffer = bytearray()
        self._answers: dict[int, list[Command]] = {}
        self.closed = False
        """The other side has ended the connection."""
        self._probed: Command | None = None

    def __repr__(self) -> str:
        probed = self._probed and (self._probed.code, self._probed.remark)
        return f"<RawPeer closed={self.closed} unclaimed={self.unclaimed} last probe answered {probed}>"

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send_bytes(self, data: bytes) -> None:
        """Send ``data``; that the other side is gone shows when something is to be received."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def send(self, *commands: Command) -> None:
        """Send requests without waiting."""
        self.send_bytes(b"".join(map(encode, commands)))

    def receive(self) -> list[Command]:
        """The commands that come next, one at least; none when the connection is closed. TimeoutError is raised."""
        found: list[Command] = []
        while not found and not self.closed:
            try:
                data = self.sock.recv(RECEIVE_BYTES)
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self._buffer += data
            frames, taken = cut_frames(self._buffer)
            del self._buffer[:taken]
            found = [decode(frame) for frame in frames]
        return found

    def answer_to(self, opaque: int) -> Command | None:
        """The response with this opaque, None when the connection is closed without one. Others are kept."""
        while not self._answers.get(opaque):
            commands = self.receive()
            if not commands:
                return None
            for command in commands:
                if command.flag & RESPONSE_FLAG:
                    self._answers.setdefault(command.opaque, []).append(command)
        return self._answers[opaque].pop(0)

    @property
    def unclaimed(self) -> list[int]:
        """The opaques of the responses that came and that nobody asked for yet, in their order."""
        return [opaque for opaque, answers in self._answers.items() for _ in answers]

    def ask(self, command: Command) -> Command | None:
        """Send one request and wait for its response; None when the connection was closed instead."""
        command.opaque = next(_opaques)
        self.send(command)
        return self.answer_to(command.opaque)

    def is_served(self) -> bool:
        """Whether a request on this connection gets a response, so everything sent before was read without harm."""
        self._probed = self.ask(Command(PROBE_CODE))
        return self._probed is not None and self._probed.code == 3
