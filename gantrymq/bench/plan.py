"""A worker's plan and its result; each is sent as one JSON line."""

from __future__ import annotations

import msgspec

from gantrymq.remoting.errors import GantryError

RUN_BYTES = 8
"""A stamped body begins with the run's mark of so many bytes, then the time of sending (i64, ns, monotonic)."""
STAMP_BYTES = RUN_BYTES + 8


class BenchFailed(GantryError):
    """A benchmark could not start; the text says why."""


class Target(msgspec.Struct, frozen=True):
    """A broker, its queues of the topic, and for each where a pull begins: the oldest message, or the end to follow."""

    host: str
    port: int
    queues: list[int]
    offsets: list[int] = []


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Connections with a number of requests in flight each.

    ``kind`` is send, transact (a half message and its commit), pull (from the oldest message on, and over again at the
    end) or follow (wait at the end for what comes). ``batch``: messages a request. ``requests``: so many and no more
    (of a pull: messages); 0: until the time is over. ``run``: mark of stamped bodies, whose time from the send to here
    is measured; empty: bodies are constant, and the time is the request's. ``success``: the answer's code that counts
    as one. ``topics``: each request of a send goes to the next queue of all of these, which have the same queues;
    empty: a request in flight keeps its queue of ``topic``. ``access_key``, ``secret_key``: sends are signed with them.
    ``authority``: a file with the certificate of the authority whose servers are reached with TLS; empty: without TLS.
    """

    kind: str
    topic: str
    targets: list[Target]
    connections: int = 1
    in_flight: int = 1
    first: int = 0
    body_bytes: int = 100
    batch: int = 1
    requests: int = 0
    run: str = ""
    success: int = 0
    topics: list[str] = []
    access_key: str = ""
    secret_key: str = ""
    authority: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker does. After ``warm_up`` seconds it measures, for ``seconds``, or until its requests are done.

    A broker that is silent for ``timeout`` seconds has died.
    """

    loads: list[Load]
    warm_up: float = 0.0
    seconds: float = 5.0
    timeout: float = 10.0


class Failure(msgspec.Struct):
    """Requests that failed in the same way, and the first one's error."""

    count: int = 0
    remark: str = ""


class Tally(msgspec.Struct, kw_only=True):
    """What one load measured. ``latencies`` counts microseconds; ``failures`` are by code, or by what happened."""

    kind: str
    messages: int = 0
    requests: int = 0
    bytes: int = 0
    failures: dict[str, Failure] = {}
    latencies: dict[int, int] = {}

    def failed(self, what: str, remark: str, count: int = 1) -> None:
        """``count`` more requests failed so."""
        failure = self.failures.setdefault(what, Failure(0, remark))
        failure.count += count


class Done(msgspec.Struct, kw_only=True):
    """A worker's last word: tallies over ``seconds``, its own CPU seconds in them, and why it ended early."""

    tallies: list[Tally]
    seconds: float
    cpu_seconds: float
    ended: str = ""
