"""Accepting connections at a TCP address, also while the process has no descriptor left."""

from __future__ import annotations

import errno
import socket
from typing import Final

import structlog
import trio

from gantrymq.kernel.env import Listener

log = structlog.get_logger("gantrymq.listening")

OUT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""What no connection can be accepted for until others have ended."""
ACCEPT_PAUSE_S: Final = 0.1


async def accept_from(listener: Listener, whom: str) -> tuple[socket.socket, tuple[str, int]]:
    """The next connection, and who that is, however long it takes; a peer that left before is passed over.

    While this process has no descriptor left the log has ``accept_failed`` with ``whom`` ("a slave") that must wait.
    """
    said = False
    while True:
        await trio.lowlevel.wait_readable(listener.fileno())
        try:
            return listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                if not said:  # once a shortage, not with each attempt
                    log.warning("accept_failed", peer=whom, error=str(error))
                said = True
                await trio.sleep(ACCEPT_PAUSE_S)
