"""What identities have used of their quotas: a token bucket for requests, one for bytes, and their connections."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

IDENTITIES_MAX: Final = 10_000
"""Identities with a quota of their own; those beyond share one."""
OTHERS: Final = "(others)"
SEARCH_EVERY_S: Final = 1.0
"""The shortest time between two searches for unused identities, each of which takes milliseconds."""


@attrs.frozen
class Quota:
    """Requests and bytes a second, and connections; 0: no limit."""

    requests: int = 0
    bytes: int = 0
    connections: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.bytes or self.connections)


class Exceeded(Exception):
    """``identity`` has used up a quota; ``reason``: ``requests``, ``bytes`` or ``connections``."""

    def __init__(self, identity: str, reason: str, text: str) -> None:
        super().__init__(text)
        self.identity = identity
        self.reason = reason


class Bucket:
    """Refills at ``rate`` a second up to ``burst`` seconds' worth. It may owe as much, after a large request."""

    __slots__ = ("_at", "_size", "_tokens", "rate")

    def __init__(self, rate: int, burst_s: float, now: float) -> None:
        self.rate = rate
        self._size = max(1.0, rate * burst_s)
        self._tokens = self._size
        self._at = now

    def wait(self, now: float) -> float:
        """In how many seconds something may be taken; 0: now."""
        self._tokens = min(self._size, self._tokens + (now - self._at) * self.rate)
        self._at = now
        # a whole token, or a client that asks again all the time would take fractions
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / self.rate

    def take(self, amount: int, *, may_owe: bool) -> None:
        """Take ``amount``, whatever there is. Without ``may_owe`` it takes only what is there."""
        left = self._tokens - amount
        self._tokens = left if may_owe else max(left, min(self._tokens, 0.0))

    @property
    def is_full(self) -> bool:
        """Whether forgetting it changes nothing."""
        return self._tokens >= self._size


@attrs.define(eq=False)
class _Usage:
    identity: str
    quota: Quota
    requests: Bucket | None
    bytes: Bucket | None
    connections: int = 0


class Usages:
    """The use of all identities. ``refused``: requests by identity and reason; ``paused``: requests after which their
    connection was not read for a while, by identity.

    ``pause_s``: a request is refused if the token bucket of its identity takes longer to refill.
    """

    def __init__(self, default: Quota, named: Mapping[str, Quota], burst_s: float, pause_s: float = 0.0) -> None:
        self._default = default
        self._named = named
        self._burst_s = burst_s
        self._pause_s = pause_s
        self._by_identity: dict[str, _Usage] = {}
        self._of: dict[Connection, _Usage] = {}
        self._next_search = -math.inf
        self.refused: Counter[tuple[str, str]] = Counter()
        self.paused: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_identity)

    def take(
        self,
        connection: Connection,
        identity: str,
        size: int,
        now: float,
        *,
        always: bool,
        on_any_connection: bool = False,
    ) -> float:
        """Count a request of ``size`` bytes; :class:`Exceeded` if it must be refused, which counts nothing.

        Returns for how many seconds the connection should not be read. ``always``: no rate refuses the request, and
        it causes no pause. ``on_any_connection``: nor does the quota of connections refuse it.
        """
        usage = self._of.get(connection)
        if usage is None or usage.identity != identity:
            usage = self._join(connection, identity, now, on_any_connection)
        pause = 0.0
        for bucket, reason in ((usage.requests, "requests"), (usage.bytes, "bytes")):
            wait = 0.0 if bucket is None else bucket.wait(now)
            if wait > self._pause_s and not always:
                assert bucket is not None
                raise self._exceeded(usage, reason, f"{bucket.rate} {reason}/s; next in {1000 * wait:.0f} ms")
        for bucket, amount in ((usage.requests, 1), (usage.bytes, size)):
            if bucket is not None:
                bucket.take(amount, may_owe=not always)
                pause = max(pause, bucket.wait(now))
        if always or not self._pause_s or not pause:
            return 0.0
        self.paused[usage.identity] += 1
        return min(pause, self._pause_s)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        usage = self._of.pop(connection, None)
        if usage is not None:
            usage.connections -= 1

    def _join(self, connection: Connection, identity: str, now: float, on_any_connection: bool) -> _Usage:
        usage = self._by_identity.get(identity)
        if usage is None:
            usage = self._begin(identity, now)
        most = usage.quota.connections
        if self._of.get(connection) is usage:  # one of the others
            return usage
        if most and usage.connections >= most:
            if on_any_connection:
                return usage
            raise self._exceeded(usage, "connections", f"{most} connections: close some")
        self.forget(connection)
        self._of[connection] = usage
        usage.connections += 1
        return usage

    def _begin(self, identity: str, now: float) -> _Usage:
        if len(self._by_identity) >= IDENTITIES_MAX and identity not in self._named:
            if now >= self._next_search:
                self._next_search = now + SEARCH_EVERY_S
                self._drop_unused(now)
            if len(self._by_identity) >= IDENTITIES_MAX:
                identity = OTHERS
                if identity in self._by_identity:
                    return self._by_identity[identity]
        quota = self._named.get(identity, self._default)
        usage = self._by_identity[identity] = _Usage(
            identity,
            quota,
            Bucket(quota.requests, self._burst_s, now) if quota.requests else None,
            Bucket(quota.bytes, self._burst_s, now) if quota.bytes else None,
        )
        return usage

    def _drop_unused(self, now: float) -> None:
        for identity, usage in list(self._by_identity.items()):
            buckets = [bucket for bucket in (usage.requests, usage.bytes) if bucket is not None]
            if not usage.connections and not any(bucket.wait(now) or not bucket.is_full for bucket in buckets):
                del self._by_identity[identity]
                if identity == OTHERS:
                    continue
                for key in [key for key in self.refused if key[0] == identity]:
                    self.refused[OTHERS, key[1]] += self.refused.pop(key)
                if identity in self.paused:
                    self.paused[OTHERS] += self.paused.pop(identity)

    def _exceeded(self, usage: _Usage, reason: str, text: str) -> Exceeded:
        self.refused[usage.identity, reason] += 1
        return Exceeded(
            usage.identity, reason,
            f"[OVERLOAD]system busy, start flow control for a while: {usage.identity} has used up its quota of {text}"
            " (plugin.quota)",
        )  # fmt: skip
