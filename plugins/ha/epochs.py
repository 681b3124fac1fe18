"""The epoch of which this broker is the master, and the highest known epoch, in ``config/ha-epoch.json``.

The file also has the role of the last master that this broker followed, because a promoted broker keeps that role.

A promotion begins an epoch. A master that learns of a higher epoch is fenced: it refuses messages and acknowledges
none until it stops, because another broker is the master and only that broker's log counts. A slave does not follow a
master whose epoch is lower than the highest known one. The broker writes an epoch to the disk before it acts on it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal

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


def decode_epochs(data: bytes) -> tuple[Epoch, Epoch | None, Role | None, int | None]:
    """Return the highest known epoch, the own one, the master's role and the slave's number in the file ``data``.

    Raises ``ValueError``, ``KeyError``, ``TypeError`` or ``AttributeError`` if it is invalid.
    """
    said = json.loads(data)
    return (
        read_epoch(said["known"]),
        None if said["own"] is None else read_epoch(said["own"]),
        _ROLES.get(str(said.get("masterRole"))),
        None if said.get("slaveNumber") is None else int(said["slaveNumber"]),
    )


class Epochs:
    """The epochs of this broker: ``known`` is the highest known, ``own`` the one of which it is or was the master."""

    def __init__(self, env: Env, root: str) -> None:
        """Read the file; :class:`StartError` if it is not valid."""
        self._env = env
        self._path = f"{root}/{FILE}"
        self.known = FIRST
        self.own: Epoch | None = None
        self.master_role: Role | None = None
        """The role of the last master that this broker followed, as reported by it; None if there was none."""
        self.slave_number: int | None = None
        """The ``broker.id`` before the last promotion at run time; None without one."""
        self.returns = False
        """Whether the broker becomes a slave again automatically when it is fenced."""
        self._is_new = not env.exists(self._path)
        self._raised = trio.lowlevel.ParkingLot()
        self.fenced = ""
        """Why this master is fenced; empty if it is not."""
        if not self._is_new:
            self._read()

    def begin_as_master(self, number_from: str = "") -> None:
        """Start as a master. If the broker was a slave before, this is a promotion and begins an epoch.

        If another broker was promoted since this one was the master, it is fenced if it :attr:`returns`, otherwise
        :class:`StartError`. ``number_from`` is the file in which a promotion stored the id, if one did.
        """
        self.returns = bool(number_from) and self.slave_number is not None
        if self._is_new:
            self._write(FIRST, FIRST)
        elif self.own is None:
            self.begin(self.next())
        elif self.known.contradicts(self.own):
            reason = f"this broker was the master of epoch {self.own}, and epoch {self.known} has begun since"
            if self.returns:
                self.fenced = reason
                return
            where = f"; a promotion stored id = 0 in {number_from}: write a free number there" if number_from else ""
            raise StartError(
                f"{reason}: another broker is the master. Start this one as a slave (broker.id above 0{where}); to make"
                " it the master again, run `gantrymq cluster promote` afterwards"
            )

    def begin_as_slave(self) -> None:
        """Start as a slave."""
        if self._is_new or self.own is not None:
            self._write(self.known, None)

    def next(self, at_least: int = 0) -> Epoch:
        """Return an epoch for a promotion, higher than all known ones."""
        return Epoch(max(self.known.number + 1, at_least), f"{self._env.random_int(1 << _TOKEN_BITS):08x}")

    def begin(self, epoch: Epoch, slave_number: int | None = None) -> None:
        """Record that this broker is the master of ``epoch``, from now or from its next start on.

        ``slave_number`` is the current id, if the id changes with the next start.
        """
        self.slave_number = slave_number or self.slave_number
        log.warning("epoch_began", epoch=str(epoch), before=str(self.known))
        self._write(epoch, epoch)

    def learn(self, epoch: Epoch, source: str, *, is_master: bool) -> bool:
        """Record that ``source`` reported ``epoch``. Returns whether it is new. Fences a master of a lower epoch."""
        mine = self.own if is_master and self.own is not None else None
        if mine is not None and epoch.contradicts(mine) and not mine.outranks(epoch):
            self._fence(mine, epoch, source)
        if not epoch.outranks(self.known):
            return False
        self._write(epoch, self.own)
        log.info("epoch_learned", epoch=str(epoch), source=source)
        self._raised.unpark_all()
        return True

    def note_master_role(self, role: str) -> None:
        """Record the role (``brokerRole``) of the master that this slave follows; ignores the role of a slave."""
        found = _ROLES.get(role.lower())
        if found is not None and found != self.master_role:
            self.master_role = found
            self._write(self.known, self.own)

    def _fence(self, mine: Epoch, epoch: Epoch, source: str) -> None:
        if not self.fenced:
            self.fenced = f"epoch {epoch} has begun, reported by {source}; this broker was the master of epoch {mine}"
            log.error(
                "master_fenced", reason=self.fenced, epoch=str(mine), known=str(epoch), source=source,
                action="none: it starts again as a slave" if self.returns
                else "start this broker as a slave, with a broker.id above 0",
            )  # fmt: skip
            self._raised.unpark_all()

    async def wait_fenced(self) -> None:
        """Return when this master is fenced."""
        while not self.fenced:
            await self._raised.park()

    async def wait_raised(self, epoch: Epoch) -> None:
        """Return when an epoch above ``epoch`` is known."""
        while not self.known.outranks(epoch):
            await self._raised.park()

    def _read(self) -> None:
        try:
            found = decode_epochs(self._env.read_bytes(self._path))
            self.known, self.own, self.master_role, self.slave_number = found
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StartError(
                f"{self._path} cannot be read: {error!r:.200}. It has the epoch of which this broker is the master. "
                "Restore it, or start with an empty folder as a slave of the current master"
            ) from None

    def _write(self, known: Epoch, own: Epoch | None) -> None:
        said: dict[str, object] = {"known": str(known), "own": None if own is None else str(own)}
        if self.master_role:
            said["masterRole"] = self.master_role
        if self.slave_number is not None:
            said["slaveNumber"] = self.slave_number
        self._env.replace(self._path, json.dumps(said).encode())
        self.known, self.own, self._is_new = known, own, False
