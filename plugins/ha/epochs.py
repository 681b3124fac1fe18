"""The epoch of which this broker is the master, the highest known epoch, and the epoch of the log, in
``config/ha-epoch.json``.

The file also has the role of the last master that this broker followed, because a promoted broker keeps that role.

A promotion begins an epoch. A master that learns of a higher epoch is fenced: it refuses messages and acknowledges
none until it stops, because another broker is the master and only that broker's log counts. A slave does not follow a
master whose epoch is lower than the highest known one. The broker writes an epoch to the disk before it acts on it.

The epoch of the log is that of the last master whose log this one has, up to the offset at which the epoch began or
further. It corresponds to the term of the last entry in Raft, which records of RocketMQ do not have: of two slaves, the
one whose log has the higher epoch has everything that was acknowledged, even if the other one's log is longer. A slave
stores it before it acknowledges the first record of the epoch. It also stores if that master has reported asynchronous
flush meanwhile: such a master can lose what it has acknowledged, whatever it reports later.

A new slave gets only the last file of its master's log, unless the master has ``full_copy``. It stores the offset at
which its log begins before it appends the first record: a promotion prefers a complete log. A slave that keeps what its
master may have acknowledged and has lost stores from where: a promotion of another slave would lose it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import structlog
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.epoch import FIRST, Epoch, read_epoch

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.ha")

FILE: Final = "config/ha-epoch.json"
Role = Literal["async_master", "sync_master"]
_ROLES: Final[dict[str, Role]] = {"async_master": "async_master", "sync_master": "sync_master"}
_TOKEN_BITS: Final = 32


@attrs.frozen
class LogEpoch:
    """The log is equal to that of the master of ``epoch`` up to its own end, which is not before ``start``: the offset
    in bytes at which that master's log ended when it began to accept messages in the epoch.

    ``async_flush``: that master has not reported synchronous flush while this slave followed it."""

    epoch: Epoch
    start: int
    async_flush: bool = False


BEFORE_PROMOTIONS: Final = LogEpoch(FIRST, 0)
"""True of each log: before any promotion there is one master, whose log begins empty."""


def decode_epochs(data: bytes) -> tuple[Epoch, Epoch | None, LogEpoch | None, Role | None, int | None, int, int]:
    """Return the highest known epoch, the own one, the log's, the master's role, the slave's number, the offset before
    which the log is incomplete, and the one behind which it has what its master has lost, in the file ``data``.

    Raises ``ValueError``, ``KeyError``, ``TypeError`` or ``AttributeError`` if it is invalid.
    """
    said = json.loads(data)
    known = read_epoch(said["known"])
    of_log = None if known.number else BEFORE_PROMOTIONS
    if said.get("log") is not None:
        of_log = LogEpoch(
            read_epoch(said["log"]["epoch"]), int(said["log"]["start"]), said["log"].get("asyncFlush") is True
        )
    return (
        known,
        None if said["own"] is None else read_epoch(said["own"]),
        of_log,
        _ROLES.get(str(said.get("masterRole"))),
        None if said.get("slaveNumber") is None else int(said["slaveNumber"]),
        int(said.get("lacksBefore", 0)),
        int(said.get("keptFrom", 0)),
    )


def start_as_slave(number_from: str) -> str:
    """Return the advice to start a broker as a slave. ``number_from`` is the file in which a promotion stored its id,
    empty if none did."""
    where = f"; a promotion stored id = 0 in {number_from}: write an unused broker id there" if number_from else ""
    return f"Start this one as a slave (broker.id above 0{where})"


class Epochs:
    """The epochs of this broker: ``known`` is the highest known, ``own`` the one of which it is or was the master."""

    def __init__(self, env: Env, root: str) -> None:
        """Read the file; :class:`StartError` if it is not valid."""
        self._env = env
        self._path = f"{root}/{FILE}"
        self.known = FIRST
        self.own: Epoch | None = None
        self.of_log: LogEpoch | None = BEFORE_PROMOTIONS
        """The epoch of the log. None if it is unknown: an older version wrote the file, or this slave has followed a
        master that does not report where its epoch began."""
        self.master_role: Role | None = None
        """The role of the last master that this broker followed, as reported by it; None if there was none."""
        self.slave_number: int | None = None
        """The ``broker.id`` before the last promotion at run time; None without one."""
        self.lacks_before = 0
        """The offset before which the log lacks records that the master had when the log began; 0 if it is
        complete."""
        self.kept_from = 0
        """The offset behind which this slave's log has what its master may have acknowledged and has lost; 0 if there
        is nothing."""
        self.returns_as_slave = False
        """Whether the broker becomes a slave again automatically when it is fenced."""
        self.is_undecided = False
        """Whether this broker, a slave before, starts as a master and its epoch has not begun: it accepts nothing."""
        self._is_new = not env.exists(self._path)
        self._raised = trio.lowlevel.ParkingLot()
        self._decided = trio.lowlevel.ParkingLot()
        self.fenced = ""
        """Why this master is fenced; empty if it is not."""
        if not self._is_new:
            self._read()

    def begin_as_master(self, number_from: str = "") -> None:
        """Start as a master. If the broker was a slave before, this is a promotion: :attr:`is_undecided` is set until
        :meth:`begin` is called.

        If another broker was promoted since this one was the master, it is fenced if it
        :attr:`returns_as_slave`, otherwise :class:`StartError`. ``number_from`` is the file in which a promotion stored
        the id, if one did.
        """
        self.returns_as_slave = bool(number_from) and self.slave_number is not None
        if self._is_new:
            self._write(FIRST, FIRST, self.of_log)
        elif self.own is None:
            self.is_undecided = True
        elif self.known.contradicts(self.own):
            reason = f"this broker was the master of epoch {self.own}, and epoch {self.known} has begun since"
            if self.returns_as_slave:
                self.fenced = reason
                return
            raise StartError(
                f"{reason}: another broker is the master. {start_as_slave(number_from)}; to make it the master again, "
                "run `gantrymq cluster promote` afterwards"
            )

    def begin_as_slave(self) -> None:
        """Start as a slave."""
        if self._is_new or self.own is not None:
            self._write(self.known, None, self.of_log)

    def next(self, at_least: int = 0) -> Epoch:
        """Return an epoch for a promotion, higher than all known ones."""
        return Epoch(max(self.known.number + 1, at_least), f"{self._env.random_int(1 << _TOKEN_BITS):08x}")

    def begin(self, epoch: Epoch, slave_number: int | None = None) -> None:
        """Record that this broker is the master of ``epoch``, from now or from its next start on.

        ``slave_number`` is the current id, if the id changes with the next start.
        """
        self.slave_number = slave_number or self.slave_number
        log.warning("epoch_began", epoch=str(epoch), before=str(self.known))
        self._write(epoch, epoch, self.of_log, kept_from=0)
        self.is_undecided = False
        self._decided.unpark_all()

    def learn(self, epoch: Epoch, source: str, *, is_master: bool) -> bool:
        """Record that ``source`` reported ``epoch``. Returns whether it is new. Fences a master of a lower epoch."""
        mine = self.own if is_master and self.own is not None else None
        if mine is not None and epoch.contradicts(mine) and not mine.outranks(epoch):
            self._fence(mine, epoch, source)
        if not epoch.outranks(self.known):
            return False
        self._write(epoch, self.own, self.of_log)
        log.info("epoch_learned", epoch=str(epoch), source=source)
        self._raised.unpark_all()
        return True

    def note_master_role(self, role: str) -> None:
        """Record the role (``brokerRole``) of the master that this slave follows; ignores the role of a slave."""
        found = _ROLES.get(role.lower())
        if found is not None and found != self.master_role:
            self.master_role = found
            self._write(self.known, self.own, self.of_log)

    @property
    def start(self) -> int | None:
        """The offset at which the log ended when this master's epoch began; None on a slave."""
        if self.own is None or self.of_log is None or self.of_log.epoch != self.own:
            return None
        return self.of_log.start

    def log_recovered(self, end: int, *, is_master: bool) -> None:
        """Correct the epoch of the log, which ends at ``end`` after the recovery: call this before the broker serves.

        The log of a master has the master's epoch. A slave's log that no longer reaches the start of its epoch, because
        a crash or a truncation has shortened it, may lack what that epoch's master had.
        """
        found = self.of_log
        if is_master and self.own is not None and not self.fenced:
            start = self.start
            found = LogEpoch(self.own, end if start is None else min(start, end))
        elif found is not None and end < found.start:
            found = BEFORE_PROMOTIONS
        if found != self.of_log:
            self._write(self.known, self.own, found)
        if end <= self.kept_from:
            self.note_kept(0)

    def log_follows(self, epoch: Epoch, start: int | None, end: int, *, async_flush: bool = False) -> None:
        """Record that this slave's log, up to ``end``, is that of the master of ``epoch``. Call this before ``end`` is
        acknowledged.

        ``start`` is the offset at which the master's log ended when the epoch began, None if it does not report it.
        Before the log reaches ``start``, it may lack acknowledged messages of earlier epochs, and keeps its epoch.
        ``async_flush``: the master does not report synchronous flush. This is kept until the epoch of the log changes.
        """
        found = self.of_log
        if start is None:
            if epoch.number and (found is None or found.epoch != epoch):
                found = None
        elif end >= start:
            found = LogEpoch(epoch, start, found is not None and found.epoch == epoch and found.async_flush)
        if async_flush and found is not None and found.epoch == epoch:
            found = attrs.evolve(found, async_flush=True)
        if found != self.of_log:
            self._write(self.known, self.own, found)

    def log_begins(self, offset: int, master_start: int | None) -> None:
        """Record that this slave's log begins at ``offset``. Call this before the first record is appended.

        ``master_start`` is the offset at which the master's log begins, None if it is unknown. A log that begins
        behind it lacks records of the master. OSError if the file cannot be written.
        """
        lacks_before = 0 if master_start is not None and master_start >= offset else offset
        if lacks_before != self.lacks_before:
            self._write(self.known, self.own, self.of_log, lacks_before)
            if lacks_before:
                log.warning(
                    "log_incomplete", offset=offset, master_start=master_start,
                    action="for a slave that can replace the master, set plugin.ha.full_copy there, and empty this "
                    "broker's folder",
                )  # fmt: skip

    def master_begins(self, offset: int) -> None:
        """Record that the master's log begins at ``offset`` now: it may have deleted what this log lacks.

        OSError if the file cannot be written.
        """
        if 0 < self.lacks_before <= offset:
            log.info("log_complete", offset=self.lacks_before)
            self._write(self.known, self.own, self.of_log, 0)

    def note_kept(self, offset: int) -> None:
        """Record that this slave's log has behind ``offset`` what its master may have acknowledged and has lost; 0 if
        there is nothing. OSError if the file cannot be written."""
        if offset != self.kept_from:
            self._write(self.known, self.own, self.of_log, kept_from=offset)

    def _fence(self, mine: Epoch, epoch: Epoch, source: str) -> None:
        if not self.fenced:
            self.fenced = f"epoch {epoch} has begun, reported by {source}; this broker was the master of epoch {mine}"
            log.error(
                "master_fenced", reason=self.fenced, epoch=str(mine), known=str(epoch), source=source,
                action="none: it starts again as a slave" if self.returns_as_slave
                else "start this broker as a slave, with a broker.id above 0",
            )  # fmt: skip
            self._raised.unpark_all()

    async def wait_fenced(self) -> None:
        """Return when this master is fenced."""
        while not self.fenced:
            await self._raised.park()

    async def wait_decided(self) -> None:
        """Return when this master's epoch has begun; at once unless it :attr:`is_undecided`."""
        while self.is_undecided:
            await self._decided.park()

    async def wait_raised(self, epoch: Epoch) -> None:
        """Return when an epoch above ``epoch`` is known."""
        while not self.known.outranks(epoch):
            await self._raised.park()

    def _read(self) -> None:
        try:
            found = decode_epochs(self._env.read_bytes(self._path))
            (
                self.known, self.own, self.of_log, self.master_role, self.slave_number, self.lacks_before,
                self.kept_from,
            ) = found  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StartError(
                f"{self._path} cannot be read: {error!r:.200}. It has the epoch of which this broker is the master. "
                "Restore it, or start with an empty folder as a slave of the current master"
            ) from None

    def _write(
        self, known: Epoch, own: Epoch | None, of_log: LogEpoch | None, lacks_before: int | None = None,
        kept_from: int | None = None,
    ) -> None:  # fmt: skip
        said: dict[str, Any] = {"known": str(known), "own": None if own is None else str(own)}
        if of_log is not None:
            said["log"] = {"epoch": str(of_log.epoch), "start": of_log.start}
            if of_log.async_flush:
                said["log"]["asyncFlush"] = True
        if self.master_role:
            said["masterRole"] = self.master_role
        if self.slave_number is not None:
            said["slaveNumber"] = self.slave_number
        lacks_before = self.lacks_before if lacks_before is None else lacks_before
        if lacks_before:
            said["lacksBefore"] = lacks_before
        kept_from = self.kept_from if kept_from is None else kept_from
        if kept_from:
            said["keptFrom"] = kept_from
        self._env.replace(self._path, json.dumps(said).encode())
        self.known, self.own, self.of_log, self._is_new = known, own, of_log, False
        self.lacks_before, self.kept_from = lacks_before, kept_from
