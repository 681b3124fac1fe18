"""Watches the master of one broker name, and promotes a slave when the master is lost; only the lock's holder acts.

A master is lost when it has not answered for ``master_timeout`` seconds, in at least two attempts, and no slave has
received anything from it for as long. :mod:`gantrymq.failover.promotion` promotes a slave, in an epoch that is not
below the lock's revision. The watcher checks the lock before each request that changes something; if the watcher is
paused between the check and the request, the brokers refuse the request, because the next holder's epoch is higher.

The watcher promotes only while a nameserver and the store answer: clients find the new master through the nameserver,
and the store decides which watcher may act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import attrs
import structlog
import trio

from gantrymq.failover.brokers import FENCED, REFUSING, UNREACHABLE
from gantrymq.failover.lock import LockKeeper, LockLost, StoreUnavailable
from gantrymq.failover.members import Members
from gantrymq.failover.promotion import PromotionRefused, Row, promote
from gantrymq.remoting.epoch import FIRST, epoch_in
from gantrymq.remoting.errors import GantryError

log = structlog.get_logger("gantrymq.failover")

ATTEMPTS_MIN: Final = 2
READ_S: Final = 10.0
"""The interval in which the watcher reads the members from the store and polls the former master."""

PATIENCE_MAX: Final = 4
"""The upper limit of a slave's time to answer while the master is lost, in units of ``response_timeout``."""

QueryBrokers = Callable[[Mapping[str, int], Collection[str], float], Awaitable[Sequence[Row]]]
"""The current state of the name's brokers: those of the nameserver, and those of the first argument (ids by address).

The second argument are addresses that are not asked and count as unreachable; the third is the time to answer in
seconds.
"""


@attrs.frozen(kw_only=True)
class WatchRules:
    """Times in seconds. ``interval``: between two polls. ``response_timeout``: of each broker in a poll; it grows with
    each attempt for the slaves of a lost master (:data:`PATIENCE_MAX`).

    ``master_timeout``: how long the master may be silent. ``promoted_timeout``: how long a promoted slave may take to
    answer as the master. ``accept_loss``: promote even if acknowledged messages may be lost.
    """

    interval: float = 0.5
    response_timeout: float = 1.0
    master_timeout: float = 2.0
    promoted_timeout: float = 10.0
    accept_loss: bool = False


class Watcher:
    """Watches while :meth:`run` runs; ``keeper`` runs beside it, with the same ``clock``."""

    def __init__(
        self,
        name: str,
        query_brokers: QueryBrokers,
        keeper: LockKeeper,
        clock: Callable[[], float],
        rules: WatchRules | None = None,
    ) -> None:
        self._name = name
        self._query_brokers = query_brokers
        self._keeper = keeper
        self._clock = clock
        self._rules = rules or WatchRules()
        self._members = Members()
        self._written: Members | None = None
        """The content of the store; None while it is unknown."""
        self._read_at: int | None = None
        """The lock's revision when the members were read."""
        self._read_next = 0.0
        self._epoch = 0
        """The epoch of the last master that was seen or promoted."""
        self._former_master = ""
        self._ask_former_master_at = 0.0
        self._master = ""
        self._silent_since: float | None = None
        self._attempts = 0
        self._patience = 1
        """The slaves' time to answer in units of ``response_timeout``: slaves of an overloaded machine need more."""
        self._grace_until = 0.0
        self._missing_since: dict[str, float] = {}
        self._last_reported: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            began = self._clock()
            await self._turn()
            rest = self._rules.interval
            if self._silent_since is not None:  # waiting for a silent master counts as part of the interval
                rest = max(rest - (self._clock() - began), 0)
            await trio.sleep(rest)

    async def _turn(self) -> None:
        try:
            await self._read_members()
        except StoreUnavailable as error:
            self._report_store_error(error)
        asked_at = self._clock()
        try:
            rows = await self._query_brokers(self._asked_besides(), (), self._rules.response_timeout)
        except (GantryError, trio.TooSlowError, OSError) as error:
            reason = str(error) or "no answer in time"
            if self._has_changed("nameserver", reason):
                log.error(
                    "nameserver_unavailable", broker=self._name, reason=reason,
                    action="no slave is promoted until a nameserver answers; check it",
                )  # fmt: skip
            return
        if self._last_reported.pop("nameserver", ""):
            log.info("nameserver_answers", broker=self._name)
        try:
            await self._judge(rows, asked_at)
        except (StoreUnavailable, LockLost) as error:
            self._report_store_error(error)

    def _report_store_error(self, error: Exception) -> None:
        if self._has_changed("store", str(error)):
            log.warning("slave_list_unavailable", broker=self._name, reason=str(error))

    def _asked_besides(self) -> Mapping[str, int]:
        known = dict(self._members.slaves)
        master = self._master or self._members.master
        if master:
            known[master] = 0
        if self._former_master and self._clock() >= self._ask_former_master_at:  # the nameserver no longer has it
            self._ask_former_master_at = self._clock() + READ_S
            known.setdefault(self._former_master, 0)
        return known

    async def _read_members(self) -> None:
        """A new holder of the lock continues with the members that the last holder stored."""
        revision = self._keeper.revision
        if revision is None or self._read_at == revision:
            return
        await self._read_again(revision)
        stored = self._members.master
        if stored and stored != self._master:
            # The last holder may have promoted it just now, so it may still be on its way back.
            self._former_master, self._master = self._master, stored
            self._silent_since, self._attempts = None, 0
            self._grace_until = self._clock() + self._rules.promoted_timeout

    async def _read_again(self, revision: int) -> None:
        """Read the members again: an administrator may have removed a slave."""
        self._read_next = self._clock() + READ_S
        try:
            self._members = self._written = Members.from_bytes(await self._keeper.read())
        except ValueError as error:
            raise StoreUnavailable(str(error)) from None
        self._read_at = revision

    async def _judge(self, rows: Sequence[Row], asked_at: float) -> None:
        for row in rows:
            if row["address"] == self._former_master and row["role"] not in (UNREACHABLE, REFUSING, FENCED):
                self._former_master = ""
            if row["role"] == FENCED and self._has_changed(f"fenced {row['address']}", str(row["epoch"])):
                log.warning(
                    "fenced_master_found", broker=self._name, address=row["address"], epoch=row["epoch"],
                    action="start it as a slave, with a broker.id above 0",
                )  # fmt: skip
        masters = [row for row in rows if row["id"] == 0 and row["role"] not in (UNREACHABLE, FENCED)]
        masters = [row for row in masters if row["role"] != REFUSING or row["address"] != self._former_master]
        # A former master may not have learned of it yet while the promoted one is still starting.
        masters = [row for row in masters if row["epoch"] is None or _number_of(row) >= self._epoch]
        if masters:
            await self._has_master(max(masters, key=_number_of), rows)
            return
        self._attempts += 1
        if self._silent_since is None:
            self._silent_since = asked_at
            log.info("master_silent", broker=self._name, address=self._master)
        silent = self._clock() - self._silent_since
        is_over = self._attempts >= ATTEMPTS_MIN and silent >= self._rules.master_timeout
        if is_over and self._clock() >= self._grace_until:
            if self._clock() - asked_at >= self._rules.interval:
                rows = await self._slaves_now(rows)
            if not self._is_heard(rows, silent):
                await self._replace(rows, silent)

    async def _slaves_now(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Ask the slaves again: their answers became old while this watcher waited for the master."""
        master = self._master or self._members.master
        try:
            return await self._query_brokers(
                self._asked_besides(), {master}, self._patience * self._rules.response_timeout
            )
        except (GantryError, trio.TooSlowError, OSError):
            return rows  # the next poll reports the reason

    def _is_heard(self, rows: Sequence[Row], silent: float) -> bool:
        """Whether a slave has recently received from the master, which then is lost later, or only to this watcher."""
        for row in rows:
            heard = row["master_silent_s"]
            if heard is not None and 0 <= heard < self._rules.master_timeout:
                if silent >= 2 * self._rules.master_timeout and self._has_changed("heard", row["address"]):
                    log.warning(
                        "master_heard_by_slave", broker=self._name, address=self._master, slave=row["address"],
                        action="check the network between this watcher and the master",
                    )  # fmt: skip
                return True
        return False

    async def _has_master(self, master: Row, rows: Sequence[Row]) -> None:
        address = str(master["address"])
        if master["role"] == REFUSING:  # it is alive, and its state is unknown
            self._silent_since, self._attempts, self._patience = None, 0, 1
            if self._has_changed("refusing", f"{address} {master['refusal']}"):
                log.warning(
                    "master_refuses", broker=self._name, address=address, reason=master["refusal"],
                    action="no slave is promoted while it answers; check the master, and this watcher's credentials",
                )  # fmt: skip
            return
        self._last_reported.pop("refusing", "")
        self._epoch = _number_of(master)
        if self._silent_since is not None and address == self._master:
            log.info("master_answers", broker=self._name, address=address)
        elif address != self._master:
            log.info("master_found", broker=self._name, address=address, epoch=master["epoch"])
        self._silent_since, self._attempts, self._grace_until, self._master = None, 0, 0.0, address
        self._patience = 1
        for key in ("lost", "refused", "heard", "lock"):
            self._last_reported.pop(key, "")
        self._note_missing(rows)
        self._note_not_promotable(rows)
        if self._read_at is not None and self._read_at == self._keeper.revision:
            if self._clock() >= self._read_next and self._members == self._written:
                await self._read_again(self._read_at)
            self._members = self._members_with(master, rows)
            await self._write_members()

    def _members_with(self, master: Row, rows: Sequence[Row]) -> Members:
        """The current members. An absent slave stays a member unless another one has taken its id."""
        address, end = str(master["address"]), int(master["offset"] or 0)
        found = {
            str(row["address"]): int(row["id"])
            for row in rows
            if row["id"] and (row["is_registered"] or row["role"] != UNREACHABLE)
        }
        slaves = {other: number for other, number in {**self._members.slaves, **found}.items() if other != address}
        # From now on, the log of the new master is the reference.
        floor = self._members.floor if address == self._members.master else end
        there = {int(row["id"]): str(row["address"]) for row in rows if row["id"] and row["role"] != UNREACHABLE}
        for other, number in list(slaves.items()):
            if there.get(number, other) != other and other not in there.values():
                log.info("slave_replaced", broker=self._name, address=other, by=there[number])
                del slaves[other]
                floor = max(floor, end)  # the next master must have what only that slave had confirmed
        return Members(address, slaves, floor)

    def _note_missing(self, rows: Sequence[Row]) -> None:
        """An absent slave prevents a promotion: operators should know before the master is lost."""
        now = self._clock()
        missing = {str(row["address"]) for row in rows if row["id"] and row["role"] == UNREACHABLE}
        self._missing_since = {address: self._missing_since.get(address, now) for address in missing}
        for address in self._members.slaves:
            if now - self._missing_since.get(address, now) < self._rules.promoted_timeout:
                continue
            if self._has_changed(f"missing {address}", str(self._missing_since[address])):
                log.warning(
                    "slave_missing", broker=self._name, address=address,
                    action="start it: no other slave can be promoted without it, because it may have more messages",
                )  # fmt: skip

    def _note_not_promotable(self, rows: Sequence[Row]) -> None:
        """A slave that refuses a promotion cannot replace its master: operators should know before it is lost."""
        for row in rows:
            reason = str(row["not_promotable"])
            is_known = row["role"] not in (UNREACHABLE, REFUSING)
            if is_known and self._has_changed(f"not promotable {row['address']}", reason) and reason:
                log.warning(
                    "slave_not_promotable", broker=self._name, address=row["address"], reason=reason,
                    action="set broker.id in its configuration file instead",
                )  # fmt: skip

    async def _write_members(self) -> None:
        if self._members != self._written:
            await self._keeper.write(self._members.to_bytes())
            self._written = self._members
            self._last_reported.pop("store", "")
            log.info("members_stored", broker=self._name, master=self._members.master, slaves=len(self._members.slaves))

    async def _replace(self, rows: Sequence[Row], silent: float) -> None:
        """Replace the lost master; ``rows`` are the others. The next poll retries after a failure."""
        lost = self._master or self._members.master
        if self._has_changed("lost", lost):
            log.error("master_lost", broker=self._name, address=lost, silent_seconds=round(silent, 1))
        revision = self._keeper.revision
        if revision is None or self._read_at != revision:
            if self._has_changed("lock", "not held"):
                log.info("promotion_left_to_others", broker=self._name, reason="this watcher does not hold the lock")
            return
        members = self._members

        async def as_they_are() -> Sequence[Row]:
            return rows  # asking again would wait for the hanging master once more

        try:
            if not members.master and not self._rules.accept_loss:
                raise PromotionRefused(
                    "no watcher has seen a master of this name yet, so absent slaves are unknown; "
                    "promote by hand: gantrymq cluster promote"
                )
            promoted = await promote(
                self._name,
                as_they_are,
                accept_loss=self._rules.accept_loss,
                epoch_at_least=revision,
                end_at_least=members.floor,
                response_timeout=self._patience * self._rules.response_timeout,
                report=lambda step: log.info("promotion_step", broker=self._name, step=step),
                check=lambda: self._keeper.check(revision),
            )
        except LockLost as error:
            log.warning("promotion_abandoned", broker=self._name, reason=str(error))
            return
        except (PromotionRefused, GantryError, trio.TooSlowError, OSError) as error:
            self._patience = min(self._patience + 1, PATIENCE_MAX)
            if self._has_changed("refused", str(error)):
                log.error("promotion_refused", broker=self._name, reason=str(error) or "no answer in time")
            return
        log.warning(
            "slave_promoted", broker=self._name, address=promoted.address, epoch=str(promoted.epoch), lost=lost,
            silent_seconds=round(self._clock() - (self._silent_since or 0.0), 1),
        )  # fmt: skip
        self._grace_until = self._clock() + self._rules.promoted_timeout
        slaves = {address: number for address, number in members.slaves.items() if address != promoted.address}
        self._former_master = lost
        self._epoch = 0 if promoted.epoch is None else promoted.epoch.number
        self._members, self._master = Members(promoted.address, slaves, promoted.end), promoted.address
        self._last_reported.pop("lost", "")
        await self._write_members()

    def _has_changed(self, key: str, text: str) -> bool:
        """Whether this differs from the last text of ``key``: a state is logged once, not with each poll."""
        if self._last_reported.get(key) == text:
            return False
        self._last_reported[key] = text
        return True


def _number_of(row: Row) -> int:
    return (epoch_in(row, "epoch") or FIRST).number
