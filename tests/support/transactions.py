"""Java's TransactionMQProducer for tests: scripted transactions, and the check-backs of brokers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType

import msgspec

from support.clients import ForeignClient, Received
from support.processes import ChildFailed, Partner


class SentHalf(msgspec.Struct, rename="camel"):
    """The send of message ``index`` in a transaction; the queue offset is the half message's."""

    index: int
    broker: str
    queue_id: int
    queue_offset: int
    msg_id: str
    status: str
    transaction_id: str
    state: str


class Checked(msgspec.Struct, rename="camel"):
    """A broker's question about a half message, as the listener saw it, and its answer."""

    transaction_id: str
    answer: str
    message: Received | None = None


class Transactor:
    """A running transactional producer; use it as a context manager."""

    def __init__(self, child: Partner) -> None:
        self.child = child
        self.checks: list[Checked] = []
        self._sent: list[SentHalf] = []
        child.wait_started()

    @classmethod
    def start(
        cls,
        client: ForeignClient,
        nameserver: str,
        topic: str,
        group: str,
        *,
        seed: int = 1,
        known: Mapping[int, str] = MappingProxyType({}),
        **options: object,
    ) -> Transactor:
        """``known`` has the answers to questions about messages that another producer has sent; else it is unknown."""
        answers = ",".join(f"{index}:{outcome}" for index, outcome in known.items())
        pairs = (f"namesrv={nameserver}", f"topic={topic}", f"group={group}", f"seed={seed}", f"known={answers}")
        child = client.run("transact", *pairs, *(f"{name}={value}" for name, value in options.items()))
        try:
            return cls(child)
        except BaseException:
            child.stop()
            raise

    def __enter__(self) -> Transactor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()

    def send(self, index: int, local: str, checks: str = "unknown", delay: int = 0, immunity: int = 0) -> SentHalf:
        """One transaction: the outcome of its branch, those of its checks joined by commas, a delay level, and
        CHECK_IMMUNITY_TIME_IN_SECONDS."""
        known = len(self._sent)
        words = [str(index), local, checks, str(delay), *([str(immunity)] if immunity else [])]
        self.child.say(" ".join(words))
        deadline = time.monotonic() + 30
        while len(self._sent) == known:
            if time.monotonic() > deadline:
                raise ChildFailed(f"transaction {index} was not sent in 30 s")
            self.poll(0.05)
        return self._sent[-1]

    def poll(self, timeout: float) -> None:
        """Takes what the producer has said; waits up to ``timeout`` seconds for the first of it."""
        line = self.child.try_line(timeout)
        while line is not None:
            if '"event":"sent"' in line:
                self._sent.append(msgspec.json.decode(line, type=SentHalf))
            elif '"event":"check"' in line:
                self.checks.append(msgspec.json.decode(line, type=Checked))
            elif '"event":"message"' in line:
                self.checks[-1].message = msgspec.json.decode(line, type=Received)
            line = self.child.try_line(0)

    def listen(self, seconds: float) -> None:
        """Takes what the producer says in all of that time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.poll(left)

    def wait_checks(self, count: int, timeout: float = 30.0) -> list[Checked]:
        """The questions so far, once they are ``count``."""
        deadline = time.monotonic() + timeout
        while len([check for check in self.checks if check.message is not None]) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(self.checks)} checks in {timeout:g} s, not {count}")
            self.poll(0.05)
        return self.checks
