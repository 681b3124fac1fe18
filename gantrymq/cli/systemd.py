"""Report the state of a server to systemd (``Type=notify``, ``WatchdogSec=``) by the protocol of ``sd_notify(3)``.

Without ``NOTIFY_SOCKET`` in the environment, which systemd sets, nothing is reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

log = structlog.get_logger("gantrymq.systemd")

STATUS_S: Final = 5.0
"""How often the state is reported without a watchdog."""
STATUS_MAX_CHARS: Final = 500

Reasons = Callable[[], Mapping[str, str]]


class Notifier:
    """Sends messages to the socket of ``environ``; a message that cannot be sent is dropped."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._path = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_s = 0.0
        """After this time without a message systemd ends the process; 0: never."""
        own = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if own and environ.get("WATCHDOG_USEC", "").isdecimal():
            self.watchdog_s = int(environ["WATCHDOG_USEC"]) / 1e6

    @property
    def is_on(self) -> bool:
        """Whether systemd listens."""
        return bool(self._path)

    def send(self, **fields: str) -> None:
        """Send ``READY="1"`` and the like."""
        if not self._path:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(text.encode(), self._path)
        except OSError as error:
            log.debug("systemd_not_notified", error=str(error))

    async def report(self, not_alive: Reasons, not_ready: Reasons) -> None:
        """Until cancelled, feed the watchdog while ``not_alive`` has no reason, and report the reasons of
        ``not_ready`` as the status of the unit."""
        if not self.is_on:
            return
        last = None
        while True:
            if self.watchdog_s and not not_alive():
                self.send(WATCHDOG="1")
            status = "; ".join(not_ready().values()).replace("\n", " ")[:STATUS_MAX_CHARS] or "serving"
            if status != last:
                self.send(STATUS=status)
                last = status
            await trio.sleep(min(self.watchdog_s / 3 or STATUS_S, STATUS_S))
