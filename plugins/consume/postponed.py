"""Pulls that are not answered in the turn in which they arrive, so that large reads and reads from the disk do not
delay senders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.kernel.batch import Pull
    from gantrymq.kernel.network.connection import Connection

log = structlog.get_logger("gantrymq.consume")

TURN_BYTES: Final = 512 * 1024
"""Bytes of messages that are returned before other connections are served: a fraction of a millisecond."""
POSTPONED_MAX: Final = 10_000
"""The most waiting pulls, because a peer can send faster than it is answered; beyond it each pull is answered at
once."""


class _Ready:
    """Runnable pulls, per connection, so that a connection with many delays only its own."""

    def __init__(self) -> None:
        self._turns: deque[Connection] = deque()
        self._pulls: dict[Connection, deque[tuple[Pull, float]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, pull: Pull, since: float) -> None:
        """Queue the pull behind all others of its connection."""
        connection = pull.request.connection
        queue = self._pulls.get(connection)
        if queue is None:
            queue = self._pulls[connection] = deque()
            self._turns.append(connection)
        queue.append((pull, since))
        self._count += 1

    def take(self) -> tuple[Pull, float]:
        """Return the first pull of the connection whose turn it is."""
        connection = self._turns.popleft()
        queue = self._pulls[connection]
        taken = queue.popleft()
        if queue:
            self._turns.append(connection)
        else:
            del self._pulls[connection]
        self._count -= 1
        return taken

    def take_all(self) -> list[Pull]:
        """Remove and return all pulls."""
        pulls = [pull for queue in self._pulls.values() for pull, _ in queue]
        self._turns.clear()
        self._pulls.clear()
        self._count = 0
        return pulls


class Postponed:
    """Pulls that run again after their messages were read from the disk, or after others had their turn. Connections
    take turns.

    ``again(pull, wait)`` answers a pull and returns its bytes; with ``wait`` it waits for the disk. ``give_up(pull)``
    answers a pull without reading: its client pulls again, here or elsewhere. ``waited(pull, seconds)`` gets the time
    of the read, if statistics need it.
    """

    def __init__(
        self,
        again: Callable[[Pull, bool], int],
        give_up: Callable[[Pull], None],
        waited: Callable[[Pull, float], None] | None = None,
    ) -> None:
        self._again = again
        self._give_up = give_up
        self._waited = waited
        self._ready = _Ready()
        self._absent: deque[tuple[Pull, float, Callable[[], object]]] = deque()
        self._fetching: Pull | None = None
        self._stopped = False
        self._outages = Outages(log, trio.current_time)
        self._some_ready = trio.Event()
        self._some_absent = trio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._absent)

    @property
    def is_full(self) -> bool:
        """Whether no more should be postponed."""
        return self._stopped or len(self) >= POSTPONED_MAX

    def until_next_turn(self, pull: Pull) -> None:
        """Run ``pull`` again soon."""
        self._put_ready(pull, trio.current_time())

    def until_fetched(self, pull: Pull, fetch: Callable[[], object]) -> None:
        """Run ``pull`` again when ``fetch`` has returned, which is called in a worker thread."""
        self._absent.append((pull, trio.current_time(), fetch))
        self._some_absent.set()

    def stop(self) -> None:
        """Give up all waiting pulls and accept no more, so that the stop does not wait for the disk."""
        self._stopped = True
        fetching, self._fetching = self._fetching, None
        left = [*self._ready.take_all(), *(one[0] for one in self._absent)]
        self._absent.clear()
        for pull in [fetching, *left] if fetching is not None else left:
            if not pull.request.connection.closed:
                self._give_up(pull)

    async def run(self) -> None:
        """Run pulls until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_ready)
            nursery.start_soon(self._run_absent)

    async def _run_ready(self) -> None:
        while True:
            await self._some_ready.wait()
            self._some_ready = trio.Event()
            while self._ready:
                room = TURN_BYTES
                while self._ready and room > 0:
                    room -= self._answer(*self._ready.take(), wait=False)
                await trio.lowlevel.checkpoint()

    async def _run_absent(self) -> None:
        while True:
            await self._some_absent.wait()
            self._some_absent = trio.Event()
            while self._absent:
                pull, since, fetch = self._absent.popleft()
                self._fetching = pull
                try:
                    await trio.to_thread.run_sync(fetch)
                except (CorruptRange, OutOfLog):
                    pass  # retention deleted the file meanwhile, or its range is unreadable: the answer says so
                except OSError as error:
                    # Answering it now determines the effect on this pull.
                    queue = {"topic": pull.topic, "queue_id": pull.queue_id}
                    self._outages.error("read_ahead_failed", *map(str, queue.values()), **queue, reason=str(error))
                else:
                    self._outages.over("read_ahead_failed", pull.topic, str(pull.queue_id))
                if pull is not self._fetching:
                    continue  # it was given up meanwhile
                self._fetching = None
                self._answer(pull, since, wait=True)
                # The next pulls mostly need the same part, which is in memory now.
                for _ in range(len(self._absent)):
                    self._put_ready(*self._absent.popleft()[:2])

    def _put_ready(self, pull: Pull, since: float) -> None:
        self._ready.put(pull, since)
        self._some_ready.set()

    def _answer(self, pull: Pull, since: float, *, wait: bool) -> int:
        if pull.request.connection.closed:
            return 0
        if self._waited is not None:
            self._waited(pull, trio.current_time() - since)
        return self._again(pull, wait)
