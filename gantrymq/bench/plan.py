"""The plan of a worker process and its result; each is sent as one line of JSON."""

from __future__ import annotations

import msgspec

from gantrymq.remoting.errors import GantryError

RUN_BYTES = 8
"""Length of the run's mark in bytes. A stamped body begins with it, then the time of sending (i64, ns, monotonic)."""
STAMP_BYTES = RUN_BYTES + 8


class BenchFailed(GantryError):
    """A benchmark could not start; the text has the reason."""


class Target(msgspec.Struct, frozen=True):
    """A broker, its queues of the topic, and the offset of each at which pulls begin."""

    host: str
    port: int
    queues: list[int]
    offsets: list[int] = []


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Connections with a number of requests in flight each.

    ``kind`` is send, transact (a half message and its commit), pull (from the oldest message on, and over again at the
    end) or follow (wait at the end for what comes). ``batch``: messages per request. ``requests``: the limit of
    requests (of a pull: of messages); 0: until the time is over. ``run``: the mark of stamped bodies, whose time from
    the send to the receipt is measured; empty: bodies are constant, and the time of the request is measured.
    ``success``: the response code that counts as success. ``topics``: each request of a send goes to the next queue of
    all of these, which have the same queues; empty: a request in flight keeps its queue of ``topic``.
    ``properties``: of each message of a send, encoded as in its header.
    ``rate``: requests a second of a send, whose times begin when they are due; 0: as fast as they are answered.
    ``access_key``, ``secret_key``, ``security_token``: requests are signed with them.
    ``tls``: ``verified`` or ``unverified``, empty: without TLS. ``authority``: a file with the certificate of the
    authority whose servers are reached with TLS, also without ``tls``; empty: the system's authorities.
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
    rate: float = 0.0
    run: str = ""
    success: int = 0
    topics: list[str] = []
    properties: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tls: str = ""
    authority: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one worker. After ``warm_up`` seconds it measures, for ``seconds``, or until its requests are done.

    A broker that sends no response for ``timeout`` seconds has died. While sends are left or not answered, only
    responses to sends count. Pulls without sends also end after this time without a message.
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
    """The measurement of one load. ``latencies`` are in microseconds; ``failures`` are by response code or error."""

    kind: str
    messages: int = 0
    requests: int = 0
    bytes: int = 0
    failures: dict[str, Failure] = {}
    latencies: dict[int, int] = {}

    def failed(self, what: str, remark: str, count: int = 1) -> None:
        """Count ``count`` requests that failed in this way."""
        failure = self.failures.setdefault(what, Failure(0, remark))
        failure.count += count


class Done(msgspec.Struct, kw_only=True):
    """A worker's result: tallies over ``seconds``, its CPU seconds in them, and why it ended early, if it did."""

    tallies: list[Tally]
    seconds: float
    cpu_seconds: float
    ended: str = ""
