"""Plans the batches of a stream on the driver: where it starts, how far each batch goes, which ranges are its tasks.

Spark keeps the offsets between batches, as JSON in its checkpoint: ``{"orders": {"broker-a": {"0": 23}}}``, the form of
``startingOffsets``. Spark compares them as text, so their keys are always in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import msgspec

from gantrymq.spark.errors import DataLoss, Refused, SparkError, UnknownTopic, Unreachable, WrongOption
from gantrymq.spark.events import log
from gantrymq.spark.options import EARLIEST, LATEST, Offsets, StreamOptions
from gantrymq.spark.ranges import (
    QueueKey,
    QueueRange,
    find_offset,
    find_present_queues,
    find_queues,
    find_start_by_time,
    measure_messages,
    refuse_shortened_slave,
    report_loss,
    split_for_tasks,
)
from gantrymq.spark.sharing import share
from gantrymq.spark.wire import Queue, Wire

T = TypeVar("T")
RETRY_PAUSE_SECONDS = 0.5
"""The pause before nameservers or brokers that do not answer are asked again."""
SLAVE_CHECK_SECONDS = 30.0
"""How long it is remembered whether a slave serves pulls."""


@attrs.define
class StreamPlanner:
    """The driver's side of one query. Not for several threads; Spark calls it one by one.

    ``clock`` counts seconds; ``sleep`` waits for some.
    """

    options: StreamOptions
    wire: Wire
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _queues: dict[QueueKey, Queue] = attrs.field(factory=dict)
    """Every queue that was found, for batches that were begun, where it was found last: at a slave, if its master is
    silent."""
    _present: dict[QueueKey, Queue] = attrs.field(factory=dict)
    """The queues that the route listed last. Where another one was, its broker answers that it is empty, or a broker
    with another name answers for a queue of its own."""
    _ends: dict[QueueKey, int] = attrs.field(factory=dict)
    """The last known end of each queue, for reports of lag."""
    _target: dict[QueueKey, int] | None = None
    """Where a run with Trigger.AvailableNow ends."""
    _unrecorded: dict[QueueKey, int] | None = None
    """A start that Spark's checkpoint does not have yet, and that would be another one if it were asked for again."""
    _first_start: dict[QueueKey, int] | None = None
    """A start whose batch may have messages of queues that it lacks, because their masters are away."""
    _committed: dict[QueueKey, int] = attrs.field(factory=dict)
    _last_batch: float | None = None
    _silent_since: float | None = None
    _failed: dict[str, SparkError] = attrs.field(factory=dict)
    """The brokers that could not be asked about all of their queues last, by address."""
    _unreachable: set[str] = attrs.field(factory=set)
    _without_master: set[str] = attrs.field(factory=set)
    """The brokers whose new queues wait for their master."""
    _slaves: dict[str, tuple[float, str]] = attrs.field(factory=dict)
    """By the address of a slave when it was asked for a message last, and why it served none; empty if it did."""

    def initial(self) -> dict[str, Any]:
        """Where a new query starts. Raises as :meth:`prepare_available_now`, and :class:`WrongOption`."""
        return pack(self._patiently(self._find_start))

    def prepare_available_now(self) -> None:
        """Let the run end at what the queues have now.

        A queue whose broker does not answer for ``retry_seconds``, or refuses to, is not read in this run. Raises
        :class:`Unreachable`, :class:`UnknownTopic` or :class:`Refused` if no nameserver or no broker answers.
        """
        target: dict[QueueKey, int] = {}
        try:
            self._patiently(lambda: self._find_all_ends(target), UnknownTopic)
        except (Unreachable, Refused):
            if not target:
                raise
        self._target = target

    def latest(self, start: Mapping[str, Any], read_all: bool = False) -> dict[str, Any]:
        """The end of the batch that starts at ``start``; ``start`` if there is to be no batch now.

        The options limit a batch, unless ``read_all``. A queue that has become known is in the end of this batch with
        the offset of its first message, and its messages are in the next batch: so the checkpoint has its start before
        it is read. While only a slave answers for it, it waits, because the slave may begin later than the master. A
        queue that the route does not list, or whose broker does not answer or refuses to, keeps its offset until it is
        back. While no nameserver gives a route, the queues of the last one are asked, and those that end before
        ``start`` keep their offsets.

        Raises :class:`DataLoss` if a queue ends before ``start``, and ``fail_on_data_loss`` is set;
        :class:`Unreachable`, :class:`UnknownTopic` or :class:`Refused` if no queue could be read for ``retry_seconds``.
        """
        known = unpack(start)
        unrecorded, self._unrecorded = self._unrecorded, None
        self._first_start = None  # the batches from here on begin at what the checkpoint has
        if unrecorded == known:
            # Batch 0 is empty, so that the checkpoint has its start before any message is read. Otherwise a first batch
            # that fails would begin at the end of the queues once more, behind the messages that it had to read.
            return pack(known)
        ends = self._find_ends(known)
        self.commit(start)  # Spark's own call comes with the next batch, for the last batch of a run never
        added = self._find_added([key for key in ends if key not in known])
        moved_back = {key: end for key, end in ends.items() if key in known and end < known[key]}
        for key, end in moved_back.items():
            self._report_shorter(key, known[key], end)
        backlogs = {key: end - known[key] for key, end in ends.items() if key in known and end > known[key]}
        if not read_all:
            if self._should_wait(sum(backlogs.values())):
                return pack(known | added | moved_back)
            backlogs = self._limit(known, backlogs)
        if backlogs:
            self._last_batch = self.clock()
        return pack(known | added | moved_back | {key: known[key] + rows for key, rows in backlogs.items()})

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[QueueRange]:
        """The ranges of a batch, one for each task, at least ``min_partitions`` where there are as many messages.

        A queue with messages in the batch that is not in the route for ``retry_seconds`` counts as deleted: its
        messages are logged as lost. Raises :class:`Unreachable` instead if ``fail_on_data_loss`` is set, or if no route
        has a queue of the stream; :class:`UnknownTopic` if no topic is left.

        A first batch that is planned again from the first messages has all queues of its recorded ``end``, though those
        that are away now are not in ``start``. Raises :class:`Unreachable` if their masters do not answer for
        ``retry_seconds``.
        """
        self._unrecorded = None
        begins, ends = unpack(start), unpack(end)
        away = ends.keys() - begins.keys() if begins == self._first_start else set()
        begins |= dict.fromkeys(away, 0)  # replaced below by the offsets that the masters return
        wanted = {key: (begins[key], until) for key, until in ends.items() if until > begins.get(key, until)}
        if wanted.keys() - self._queues.keys():
            try:
                self._patiently(lambda: self._find_wanted(wanted), UnknownTopic)
            except Unreachable:
                if self.options.source.fail_on_data_loss or not self._present:
                    raise
                for key in wanted.keys() - self._queues.keys():
                    first, until = wanted.pop(key)
                    report_loss(Queue(*key, address=""), first, until, until - first, fail=False)
        if away := away & wanted.keys():
            firsts = self._patiently(lambda: self._find_firsts(away), UnknownTopic)
            wanted |= {key: (first, ends[key]) for key, first in firsts.items()}
        found = [QueueRange(self._queues[key], first, until) for key, (first, until) in wanted.items() if first < until]
        source = self.options.source
        return self._patiently(lambda: split_for_tasks(found, source, self.wire))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit ``end`` for the group of the options, if there is one, so that tools show the lag of the stream.

        Commits that fail are logged, once for each broker; the checkpoint alone decides what the stream reads.
        """
        group = self.options.source.group
        if group is None:
            return
        failed: dict[str, SparkError] = {}
        silent = set(self._unreachable)
        for key, offset in unpack(end).items():
            queue = self._present.get(key)
            if queue is None or queue.is_slave or queue.address in silent or self._committed.get(key) == offset:
                continue
            try:
                self.wire.commit(queue, group, offset)
            except (Unreachable, Refused) as error:
                failed.setdefault(queue.address, error)
                if isinstance(error, Unreachable):
                    silent.add(queue.address)
                continue
            self._committed[key] = offset
        for address, reason in failed.items():
            log.warning("stream_offsets_not_committed", group=group, broker=address, reason=str(reason))

    def report(self) -> dict[str, Any] | None:
        """The last known ends of all queues; None before any is known."""
        return pack(self._ends) if self._ends else None

    def _find_start(self) -> dict[QueueKey, int]:
        source = self.options.source
        self._remember(find_queues(source, self.wire))
        start: dict[QueueKey, int] = {}
        moves = source.starting == LATEST or source.starting_millis is not None
        for key, queue in self._present.items():
            lowest, highest = self.wire.find_bounds(queue)
            by_time = find_start_by_time(source, self.wire, queue, lowest, highest)
            if by_time == lowest and lowest > 0 and queue.is_slave:
                refuse_shortened_slave(queue, lowest)
            wanted = find_offset(source.starting, queue, EARLIEST) if by_time is None else by_time
            if wanted > highest:
                raise WrongOption(
                    f"startingOffsets: {queue} ends at offset {highest}, {wanted} lies behind its last message"
                )
            self._ends[key] = highest
            if wanted == EARLIEST and queue.is_slave:
                self._note_missing_master(queue)
                continue
            moves |= wanted == LATEST or by_time is not None
            start[key] = {EARLIEST: lowest, LATEST: highest}.get(wanted, wanted)
        if moves and start:
            self._unrecorded = start
        self._first_start = None if moves else start
        self._committed = dict(start)  # brokers make the group when the first pull comes; before, they refuse commits
        return start

    def _find_firsts(self, keys: Collection[QueueKey]) -> dict[QueueKey, int]:
        """The first offsets of queues, as their masters have them. Raises :class:`Unreachable` without a master."""
        self._remember(find_present_queues(self.options.source, self.wire, keys))
        for queue in (self._queues[key] for key in keys):
            if queue.is_slave:
                raise Unreachable(f"only a slave answers for {queue}, and the stream starts where its master begins")
        return {key: self.wire.find_bounds(self._queues[key])[0] for key in keys}

    def _find_added(self, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """The first offsets of new queues, as their masters have them."""
        added: dict[QueueKey, int] = {}
        for key in keys:
            queue = self._queues[key]
            if queue.is_slave:
                self._note_missing_master(queue)
                continue
            with suppress(Unreachable, Refused):  # the next batch asks again
                added[key] = self.wire.find_bounds(queue)[0]
        return added

    def _note_missing_master(self, queue: Queue) -> None:
        if queue.broker not in self._without_master:
            self._without_master.add(queue.broker)
            log.warning("stream_queues_wait_for_master", broker=queue.broker, topic=queue.topic)

    def _find_all_ends(self, ends: dict[QueueKey, int]) -> None:
        """Put the ends of the queues into ``ends`` that it does not have yet. Raises if a broker does not tell one."""
        self._remember(find_present_queues(self.options.source, self.wire))
        self._ask_ends([key for key in self._present if key not in ends], ends)
        failed = [self._failed[queue.address] for key, queue in self._present.items() if key not in ends]
        for error in sorted(failed, key=lambda error: isinstance(error, Unreachable), reverse=True):
            raise error

    def _ask_ends(self, keys: Iterable[QueueKey], ends: dict[QueueKey, int]) -> None:
        """Put the ends of ``keys`` into ``ends``, as far as the brokers tell them, and log which ones do not.

        While a master is silent, which the route may list for two minutes more, its slaves are asked, if they serve
        pulls: those of RocketMQ 5 without slaveReadEnable tell offsets only.
        """
        failed: dict[str, SparkError] = {}
        silent: set[str] = set()
        for key in keys:
            for queue in self._present[key].everywhere():
                if queue.address in silent:
                    continue
                try:
                    end = self.wire.find_end(queue)
                    if queue.is_slave and end:
                        self._check_slave(queue, end)
                except (Unreachable, Refused) as error:
                    failed.setdefault(queue.address, error)
                    if not isinstance(error, Unreachable):
                        break
                    silent.add(queue.address)
                else:
                    self._queues[key], ends[key] = queue, end
                    break
        for address in failed.keys() - self._failed.keys():
            log.warning("stream_broker_unreachable", broker=address, reason=str(failed[address]))
        self._failed, self._unreachable = failed, silent

    def _check_slave(self, queue: Queue, end: int) -> None:
        """Raise :class:`Unreachable` if the slave serves no pulls now, or did not a short time ago: batches must not
        wait for it each time."""
        known = self._slaves.get(queue.address)
        if known is None or self.clock() - known[0] >= SLAVE_CHECK_SECONDS:
            reason = ""
            try:
                self.wire.pull(queue, end - 1, 1, patient=False)
            except Unreachable as error:
                reason = str(error)
            known = self._slaves[queue.address] = self.clock(), reason
        if known[1]:
            raise Unreachable(known[1])

    def _find_wanted(self, wanted: Mapping[QueueKey, object]) -> None:
        self._present = {}  # if no nameserver answers, no queue counts as deleted
        source = self.options.source
        self._remember(find_present_queues(source, self.wire))
        # The options may have other topics or queues since the batch was begun. Later batches do not read these.
        for topic in {topic for topic, _, _ in wanted.keys() - self._queues.keys()}:
            with suppress(UnknownTopic):
                self._queues |= _by_key(self.wire.find_queues(source.nameservers, topic))
        for topic, broker, queue_id in wanted.keys() - self._queues.keys():
            raise Unreachable(
                f"{topic} {broker} queue {queue_id} has messages of a batch that was begun, and is not in the route: "
                "bring the queue back, or set failOnDataLoss to false to go on without them"
            )

    def _find_ends(self, known: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """The ends of the queues that can be read now."""
        failure: SparkError | None = None
        try:
            present = find_present_queues(self.options.source, self.wire, known)
            if known and not present:
                raise UnknownTopic("no nameserver lists a topic of the stream any more")
            self._remember(present)
        except (Unreachable, UnknownTopic, Refused) as error:
            failure = error  # the brokers may well answer while the nameservers do not
        answers: dict[QueueKey, int] = {}
        # A queue that is in neither came after the run began.
        asked = [key for key in self._present if self._target is None or key in self._target or key in known]
        self._ask_ends(asked, answers)
        ends: dict[QueueKey, int] = {}
        for key, answer in answers.items():
            end = answer
            if self._queues[key].is_slave:
                end = max(end, known.get(key, 0))  # a slave may not have copied everything yet
            if failure is not None and end < known.get(key, 0):
                continue  # perhaps its topic was deleted or it has moved: the next route tells
            if answer == 0 and isinstance(failure, UnknownTopic):
                continue  # so brokers answer for a queue of a deleted topic
            self._ends[key] = end
            ends[key] = end if self._target is None else min(end, max(self._target.get(key, 0), known.get(key, 0)))
        failure = next(iter(self._failed.values()), failure)
        if ends or failure is None:
            self._silent_since = None
        else:
            self._note_silence(failure)
        return ends

    def _note_silence(self, error: SparkError) -> None:
        """Nothing answers: raise ``error`` once that has lasted for ``retry_seconds``."""
        now = self.clock()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= self.options.source.retry_seconds:
            raise error

    def _remember(self, queues: Iterable[Queue]) -> None:
        self._present = _by_key(queues)
        self._queues |= self._present

    def _report_shorter(self, key: QueueKey, start: int, end: int) -> None:
        queue = self._queues[key]
        if self.options.source.fail_on_data_loss:
            raise DataLoss(
                f"{queue} was read up to offset {start}, but ends at {end}: the topic was deleted and created again, "
                "or its broker lost messages. Begin with a new checkpoint, or set failOnDataLoss to false to continue "
                "from its end"
            )
        log.warning(
            "messages_lost", topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id, wanted=start,
            min_offset=end, lost=start - end,
        )  # fmt: skip

    def _should_wait(self, rows: int) -> bool:
        if self.options.min_rows is None or self._target is not None or self._last_batch is None:
            return False
        return rows < self.options.min_rows and self.clock() - self._last_batch < self.options.max_delay_seconds

    def _limit(self, begins: Mapping[QueueKey, int], backlogs: dict[QueueKey, int]) -> dict[QueueKey, int]:
        """The messages of each queue that fit into one batch."""
        if self.options.max_bytes is not None and backlogs:
            sizes, gone = self._sample_sizes(begins, backlogs)
            left = {key: (rows - gone[key]) * sizes[key] for key, rows in backlogs.items()}
            shares = share(left, self.options.max_bytes)
            # A message that is larger than the whole limit is read alone, or the stream would stand still.
            fitting = {key: gone[key] + -(-count // sizes[key]) for key, count in shares.items()}
            backlogs = {key: min(rows, backlogs[key]) for key, rows in fitting.items()}
        if self.options.max_rows is not None:
            backlogs = share(backlogs, self.options.max_rows)
        return backlogs

    def _sample_sizes(
        self, begins: Mapping[QueueKey, int], backlogs: Mapping[QueueKey, int]
    ) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
        """The mean stored bytes of each queue's next messages, and how many messages before these are gone."""
        sizes: dict[QueueKey, int] = {}
        gone = dict.fromkeys(backlogs, 0)
        for key, rows in backlogs.items():
            queue, begin = self._queues[key], begins[key]
            with suppress(Unreachable, Refused):
                size = measure_messages(self.wire, queue, begin)
                if size is None:
                    lowest, _ = self.wire.find_bounds(queue)
                    if lowest > begin and not queue.is_slave:  # its master may have what a slave lacks
                        gone[key] = min(lowest - begin, rows)
                    size = measure_messages(self.wire, queue, lowest)
                if size is not None:
                    sizes[key] = size
        other = max(sizes.values(), default=1)  # of queues without an answer, or with nothing left to read
        return {key: sizes.get(key, other) for key in backlogs}, gone

    def _patiently(self, ask: Callable[[], T], *also: type[SparkError]) -> T:
        """The answer of ``ask``, which is repeated for ``retry_seconds`` while servers do not answer, or after an error
        of the types ``also``: a restarted nameserver knows no topic until brokers register."""
        deadline = self.clock() + self.options.source.retry_seconds
        while True:
            try:
                return ask()
            except SparkError as error:
                if self.clock() >= deadline or not isinstance(error, (Unreachable, *also)):
                    raise
            self.sleep(RETRY_PAUSE_SECONDS)


def _by_key(queues: Iterable[Queue]) -> dict[QueueKey, Queue]:
    return {(queue.topic, queue.broker, queue.queue_id): queue for queue in queues}


def pack(offsets: Mapping[QueueKey, int]) -> dict[str, Any]:
    """Offsets in the nested form of Spark's checkpoint, with their keys in order."""
    packed: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(offsets.items()):
        packed.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[QueueKey, int]:
    """The opposite of :func:`pack`. Raises :class:`WrongOption` if they are not offsets of this format."""
    try:
        offsets = msgspec.convert(packed, Offsets, strict=False)
    except msgspec.ValidationError as error:
        raise WrongOption(f"the checkpoint is of another source: its offsets cannot be read ({error})") from None
    return {
        (topic, broker, queue_id): offset
        for topic, brokers in offsets.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
