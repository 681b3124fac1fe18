"""Ids that the client makes up: its own, and one for each message.

Source: RocketMQ 4.9.7 ``MessageClientIDSetter``, ``ClientConfig.buildMQClientId``.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from ipaddress import ip_address


class UniqueKeys:
    """Makes UNIQ_KEYs: hex of address, process id, four bytes of this generator's own, ms since the month, counter."""

    def __init__(self, host: str) -> None:
        address = ip_address(host.partition("%")[0]).packed
        self._head = (address + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)).hex().upper()
        self._counter = itertools.count()
        self._month_start = 0.0
        self._month_end = 0.0
        self._begin = self._end = 0.0
        """The begin and the end of the millisecond of ``_prefix``."""
        self._prefix = ""

    def next(self) -> str:
        """A key that no other message has."""
        now = time.time()
        if not self._begin <= now < self._end:
            self._enter_millisecond(now)
        return f"{self._prefix}{next(self._counter) & 0xFFFF:04X}"

    def next_many(self, count: int) -> list[str]:
        """``count`` keys at less cost than one by one; at most 8,192, since a millisecond has 65,536."""
        now = time.time()
        if not self._begin <= now < self._end:
            self._enter_millisecond(now)
        prefix = self._prefix
        return [f"{prefix}{number & 0xFFFF:04X}" for number in itertools.islice(self._counter, count)]

    def _enter_millisecond(self, now: float) -> None:
        if not self._month_start <= now < self._month_end:
            self._enter_month(now)
        milliseconds = int((now - self._month_start) * 1000)
        self._begin, self._end = now, self._month_start + (milliseconds + 1) / 1000
        self._prefix = f"{self._head}{milliseconds:08X}"

    def _enter_month(self, now: float) -> None:
        today = time.localtime(now)
        self._month_start = time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        self._month_end = time.mktime((today.tm_year, today.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))


def make_client_id(host: str, unit_name: str | None = None) -> str:
    """The name under which brokers know one client: ``address@process#time``, and ``@unit`` for one of a unit."""
    unit = "" if unit_name is None else f"@{unit_name}"
    return f"{host}@{os.getpid()}#{time.time_ns()}{unit}"
