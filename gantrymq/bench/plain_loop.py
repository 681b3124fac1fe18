"""The plain twin of the load generator's inner loop: it leaves every event to the worker's Python code."""

from __future__ import annotations

import select
from array import array
from typing import Protocol, TypeAlias

from gantrymq.bench.latencies import Latencies
from gantrymq.bench.plan import Load

KIND = "plain"

Left: TypeAlias = tuple[int, int, bytes | OSError, bytes]
"""An event that the loop leaves to the caller: descriptor, events, received bytes (whole frames and the beginning of
one) or the error of the connection, and bytes to send that the socket did not take. Without received and unsent bytes
the caller receives by itself."""


class CountingLoad(Protocol):
    """What the loop needs of a load."""

    load: Load
    latencies: Latencies
    measuring: bool

    @property
    def allowed(self) -> int:
        """The number of requests that may still be sent."""

    def count(self, requests: int, messages: int, size: int) -> None:
        """Count responses that the loop handled: all are successes, and the next request was sent after each."""


class Loop:
    """Waits for the events of an epoll and handles the usual responses of the connections that were added.

    An added connection belongs to the caller until :meth:`resume`, and again once :meth:`poll` has returned it.
    """

    last_response = 0
    """The time in nanoseconds of the last response that the loop received by itself."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll

    def add_sender(self, fd: int, load: CountingLoad, frames: list[bytes], sent: array[int], place: array[int]) -> None:
        """Add a connection whose request in slot N is ``frames[N]``, sent at ``sent[N]``. With a ``place``, which is
        else empty, requests use the slots in turn, from there on."""

    def add_puller(
        self, fd: int, load: CountingLoad, frames: list[tuple[bytes, bytes]], offsets: array[int], begins: array[int],
        sent: array[int],
    ) -> None:  # fmt: skip
        """Add a connection whose request in slot N has a header of ``frames[N]`` with ``offsets[N]`` between its two
        parts. At the end of its queue it returns to ``begins[N]``."""

    def resume(self, fd: int) -> None:
        """Let the loop handle a connection, if it was added: nothing received or unsent waits for the caller."""

    def remove(self, fd: int) -> None:
        """Forget a connection, if it was added."""

    def poll(self, wait: float, until: int) -> list[Left]:
        """Wait at most ``wait`` seconds for events, handle those of usual responses, and return the others.

        It repeats this while all events are usual, until the clock (``perf_counter_ns``) shows ``until`` or no event
        comes. What it handled is then counted in the loads.
        """
        return [(fd, events, b"", b"") for fd, events in self._epoll.poll(wait)]
