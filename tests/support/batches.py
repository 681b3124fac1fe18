"""Batches of messages as send requests carry them."""

from __future__ import annotations

import struct

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command


def rows_of(request: Command) -> list[tuple[bytes, str]]:
    """The bodies and properties of the messages in a request to send one or a batch."""
    if request.code == RequestCode.SEND_MESSAGE_V2:
        return [(request.body, request.ext["i"])]  # type: ignore[index]
    found, position = [], 0
    while position < len(request.body):
        size, _, _, _, length = struct.unpack_from(">iiiii", request.body, position)
        body = request.body[position + 20 : position + 20 + length]
        found.append((body, request.body[position + 22 + length : position + size].decode()))
        position += size
    return found
