"""A client works in one event loop: in another one its calls would hang, or fail with errors about something else."""

from __future__ import annotations

from gantrymq.client.errors import ClientClosed
from gantrymq.remoting.waiting import running_loop


class LoopGuard:
    """Knows the event loop in which it was made."""

    def __init__(self) -> None:
        self._loop = running_loop()

    def ensure(self) -> None:
        """Raise :class:`ClientClosed` in any other event loop."""
        if running_loop() is not self._loop:
            raise ClientClosed(
                "the client was started in another event loop: connect in the loop that uses it, or use gantrymq.sync"
            )
