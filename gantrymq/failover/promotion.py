"""Promotes a slave without losing anything that a slave has confirmed: fence all slaves first, then choose.

A slave that has received the new epoch confirms nothing more to the old master, and returns the epoch and the end of
its log. As in Raft, the slave whose log has the highest epoch and, among several of them, the longest log has
everything that was acknowledged, whatever the old master does meanwhile, if the log is complete: a new slave may have
begun with the last file of its master's log. The length alone does not decide: a log of a
lower epoch may end with records of a former master that no slave has confirmed. Slaves of older versions do not report
the epoch of their log, see :class:`SlaveLog`.

Concurrent promotions have different tokens: each slave accepts only the first token of an epoch number.

Watchers pass their lock's revision as ``epoch_at_least``, because it grows with each holder.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from gantrymq.failover.brokers import FENCED, REFUSING, UNREACHABLE
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import (
    CANNOT_BEGIN,
    EPOCH_FIELD,
    FIRST,
    LOG_END_FIELD,
    LOG_EPOCH_FIELD,
    LOG_KEPT_FIELD,
    LOG_LACKS_FIELD,
    Epoch,
    epoch_in,
)
from gantrymq.remoting.errors import ConnectError, RemoteFault

TOKEN_BYTES: Final = 4
ACCEPT_LOSS: Final = "--accept-loss promotes anyway"

Row = dict[str, Any]
"""A broker as in ``gantrymq cluster status``, with ``epoch`` (a text, None for brokers that do not support epochs) and
``not_promotable`` (why its id cannot change, or empty)."""


Report = Callable[[str], None]
"""Receives a sentence about each step."""


class PromotionRefused(Exception):
    """No slave was promoted, or the outcome is unknown; the text has the reason and the remedy."""


@attrs.frozen
class Promoted:
    """The new master and its epoch, None if the broker does not support epochs. ``end``: the end of its log."""

    address: str
    epoch: Epoch | None
    end: int = 0


@attrs.frozen
class SlaveLog:
    """A slave's log: its ``end`` in bytes, and its ``epoch``, None if the slave does not report it.

    ``known``: the number of the highest epoch that the slave knew before the promotion. An epoch that is not reported
    is at most that.
    ``lacks_before``: the offset before which the log lacks records that its master had, 0 if it is complete. A new
    slave gets only the last file of a master without ``full_copy``. Slaves of older versions do not report it.
    ``kept_from``: the offset behind which the log has what its master may have acknowledged and has lost, 0 if there
    is nothing. The master has other messages there since. Slaves of older versions do not report it.
    """

    end: int
    epoch: Epoch | None
    known: int = 0
    lacks_before: int = 0
    kept_from: int = 0

    @property
    def least(self) -> tuple[int, int]:
        """The lowest possible epoch number and the end; the log with the highest pair is the most complete one."""
        return (0 if self.epoch is None else self.epoch.number), self.end

    @property
    def most(self) -> tuple[int, int]:
        """The highest possible epoch number and the end."""
        return (self.known if self.epoch is None else self.epoch.number), self.end

    @property
    def size(self) -> tuple[int, int]:
        """The lowest possible epoch number, and the bytes that the log has of its master's."""
        return self.least[0], self.end - self.lacks_before

    def keeps_beside(self, other: SlaveLog) -> bool:
        """Whether this log has messages that its master has lost and ``other``, of the same epoch, may not have."""
        return bool(self.kept_from) and self.kept_from != other.kept_from

    def __str__(self) -> str:
        of_epoch = "" if self.epoch is None else f" of epoch {self.epoch}"
        lacking = f" without what its master had before {self.lacks_before}" if self.lacks_before else ""
        kept = f", of which its master has lost the part behind {self.kept_from}" if self.kept_from else ""
        return f"up to {self.end}{of_epoch}{lacking}{kept}"


def choose(logs: Mapping[str, SlaveLog], wanted: Collection[str], *, accept_loss: bool = False) -> str:
    """Return the address among ``wanted`` that has the most complete one of ``logs``: with ``accept_loss``, the one
    that has the most of the highest epoch.

    Raises :class:`PromotionRefused` if another log may have acknowledged messages that this one lacks, unless
    ``accept_loss``.
    """
    if accept_loss:
        return max(wanted, key=lambda each: logs[each].size)
    address = max(wanted, key=lambda each: (not logs[each].lacks_before, *logs[each].least))
    chosen = logs[address]
    best = max(logs, key=lambda each: (logs[each].least, not logs[each].lacks_before))
    if chosen.lacks_before:
        raise PromotionRefused(
            f"{address} has the log {chosen}: these messages would be lost. Start the master or promote a slave with a "
            f"complete log; {ACCEPT_LOSS}"
        )
    _check_kept(logs, address)
    if chosen.least < logs[best].least and logs[best].lacks_before:
        raise PromotionRefused(
            f"{address} has the log {chosen}, and {best} {logs[best]}: each of them has messages that the other one "
            f"lacks; {ACCEPT_LOSS}"
        )
    if chosen.least < logs[best].least:
        raise PromotionRefused(
            f"{address} has the log {chosen}, and {best} {logs[best]}: messages that only the latter has would be "
            f"lost. Promote that one; {ACCEPT_LOSS}"
        )
    if all(each.epoch is None for each in logs.values()):
        return address  # older versions: the length is all that is known
    for other, each in logs.items():
        if other == address:
            continue
        if each.epoch is None and each.most > chosen.least:
            raise PromotionRefused(
                f"{address} has the log {chosen}, and {other} {each}, of which epoch it does not report: it may have "
                f"acknowledged messages that the former lacks; {ACCEPT_LOSS}"
            )
        if None not in (chosen.epoch, each.epoch) and each.epoch != chosen.epoch and each.most[0] == chosen.most[0]:
            raise PromotionRefused(
                f"{address} has the log {chosen}, and {other} {each}: two masters had one epoch number, and each of "
                f"them may have acknowledged messages that the other one lacks; {ACCEPT_LOSS}"
            )
    return address


def _check_kept(logs: Mapping[str, SlaveLog], address: str) -> None:
    """Raise :class:`PromotionRefused` if ``address`` or another slave has what their master has lost, and the other one
    has, or may have, what this master has accepted since.

    The messages that a slave with a lower epoch keeps were given up at the promotion that began the higher one.
    """
    chosen = logs[address]
    for other, each in logs.items():
        if each.least[0] != chosen.least[0]:
            continue
        if each.keeps_beside(chosen) or (chosen.keeps_beside(each) and each.end > chosen.kept_from):
            raise PromotionRefused(
                f"{address} has the log {chosen}, and {other} {each}: each of them may have acknowledged messages that "
                f"the other one lacks. Empty the folder of the one to give up; {ACCEPT_LOSS}, the one with --id"
            )


async def promote(
    name: str,
    brokers: Callable[[], Awaitable[Sequence[Row]]],
    *,
    number: int | None = None,
    accept_loss: bool = False,
    epoch_at_least: int = 0,
    end_at_least: int = 0,
    response_timeout: float = 5.0,
    report: Report = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Promoted:
    """Make a slave of the broker ``name`` its master; ``brokers`` returns the current state of all brokers.

    ``number`` is the id of the slave, by default the one with the most complete log. Returns when the slave has
    accepted.
    Raises :class:`PromotionRefused` while a master answers, and if acknowledged messages could be lost, unless
    ``accept_loss``.
    ``response_timeout``: seconds in which a slave must store the epoch on its disk.
    ``end_at_least``: a log that ends before this offset may lack acknowledged messages.
    ``check`` is called before the slaves receive the epoch and before the promotion; an exception ends the promotion.
    """
    report(f"asking the brokers of {name} for their state")
    rows = [row for row in await brokers() if row["broker"] == name]
    for row in rows:
        if row["role"] == UNREACHABLE:
            report(f"{row['address']} (id {row['id']}) does not answer")
    for row in rows:
        if row["id"] == 0 and row["role"] not in (UNREACHABLE, FENCED):
            raise PromotionRefused(f"{name} has a master at {_with_refusal(row)} that answers: stop it first")
    slaves = [row for row in rows if row["id"] and row["role"] not in (UNREACHABLE, REFUSING)]
    if not any(number in (None, row["id"]) for row in slaves):
        which = "slave" if number is None else f"slave with the id {number}"
        reasons = "".join(f"; {_with_refusal(row)}" for row in rows if row["role"] == REFUSING)
        raise PromotionRefused(f"{name} has no {which} that answers{reasons}")
    if all(row["epoch"] is None for row in slaves):  # brokers that cannot be fenced
        chosen = max((row for row in slaves if number in (None, row["id"])), key=lambda row: row["offset"] or 0)
        if epoch_at_least and not accept_loss:
            raise PromotionRefused(
                f"{chosen['address']} does not support epochs: the old master could continue; {ACCEPT_LOSS}"
            )
        check()
        return await _promote_by_number(chosen["address"], response_timeout, report)
    lost = [_with_refusal(row) for row in rows if row["id"] and row["epoch"] is None]
    if lost and not accept_loss:
        raise PromotionRefused(
            f"{name} has slaves that cannot be asked, {', '.join(lost)}: they may have acknowledged messages that the "
            f"others lack. Start or stop them (a nameserver removes a silent broker after 120 s); {ACCEPT_LOSS}"
        )
    slaves = [row for row in slaves if row["epoch"] is not None]
    _check_promotable(slaves, number)
    wanted = [str(row["address"]) for row in slaves if number in (None, row["id"]) and not row["not_promotable"]]
    known = {str(row["address"]): _known(row) for row in slaves}
    # First by what they have reported: a refusal after the slaves have the epoch would leave the old master fenced.
    _choose(_reported_logs(slaves), wanted, end_at_least, accept_loss=accept_loss)
    epoch = Epoch(max(max(map(_known, rows)) + 1, epoch_at_least), secrets.token_hex(TOKEN_BYTES))
    report(f"epoch {epoch} begins: sending it to {', '.join(known)}")
    logs, refusals = await _send_epoch_to_all(known, epoch, response_timeout, check)
    wanted = _without_refusing(wanted, refusals, report, accept_loss=accept_loss)
    address = _choose(logs, wanted, end_at_least, accept_loss=accept_loss)
    end = logs[address].end
    report(f"promoting {address}, whose log ends at {end}")
    check()
    await _send_epoch(address, epoch, response_timeout, master=True)
    return Promoted(address, epoch, end)


def _choose(logs: Mapping[str, SlaveLog], wanted: Collection[str], end_at_least: int, *, accept_loss: bool) -> str:
    """As :func:`choose`; :class:`PromotionRefused` also for a log that ends before ``end_at_least``."""
    address = choose(logs, wanted, accept_loss=accept_loss)
    if logs[address].end < end_at_least and not accept_loss:
        raise PromotionRefused(
            f"{address} has the log up to {logs[address].end} only, and messages up to {end_at_least} may have been "
            f"acknowledged: start the broker that has them; {ACCEPT_LOSS}"
        )
    return address


def _reported_logs(slaves: Sequence[Row]) -> dict[str, SlaveLog]:
    """Return the logs of slaves that support epochs, by address, as their rows have them."""
    return {
        str(row["address"]): SlaveLog(
            int(row["offset"] or 0),
            epoch_in(row, "log_epoch"),
            _known(row),
            row.get("log_lacks_before", 0),
            row.get("log_kept_from", 0),
        )
        for row in slaves
    }


def _with_refusal(row: Row) -> str:
    """Return the address of a broker whose state is unknown, with the reason if it has given one."""
    return f"{row['address']} ({row['refusal']})" if row["role"] == REFUSING else str(row["address"])


def _known(row: Row) -> int:
    return (epoch_in(row, "epoch") or FIRST).number


async def _promote_by_number(address: str, response_timeout: float, report: Report) -> Promoted:
    """Promote by setting the id; the old master is not fenced."""
    report(f"promoting {address}, which does not support epochs")
    await _call(address, Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0\n"), response_timeout)
    return Promoted(address, None)


def _check_promotable(slaves: Sequence[Row], number: int | None) -> None:
    """Check, before any broker is fenced, that one of ``slaves``, which support epochs, can be promoted."""
    wanted = [row for row in slaves if number in (None, row["id"])]
    if not wanted:
        others = ", ".join(f"{row['address']} (--id {row['id']})" for row in slaves)
        raise PromotionRefused(
            f"the slave with the id {number} does not support epochs, so it cannot replace the others' master: "
            f"promote {others}"
        )
    if all(row["not_promotable"] for row in wanted):
        raise PromotionRefused(f"{wanted[0]['address']} refuses: {wanted[0]['not_promotable']}")


async def _send_epoch_to_all(
    known: Mapping[str, int], epoch: Epoch, timeout: float, check: Callable[[], None]
) -> tuple[dict[str, SlaveLog], dict[str, PromotionRefused]]:
    """Send the epoch to all brokers concurrently; returns the logs of those that have stored it, and why the others
    have not. ``known``: the highest epoch number that each address knew before."""
    logs: dict[str, SlaveLog] = {}
    refusals: dict[str, PromotionRefused] = {}

    async def send(address: str) -> None:
        try:
            logs[address] = attrs.evolve(await _send_epoch(address, epoch, timeout), known=known[address])
        except PromotionRefused as error:
            refusals[address] = error

    check()
    async with trio.open_nursery() as nursery:
        for address in known:
            nursery.start_soon(send, address)
    return logs, refusals


def _without_refusing(
    wanted: Sequence[str], refusals: Mapping[str, PromotionRefused], report: Report, *, accept_loss: bool
) -> list[str]:
    """Return the addresses of ``wanted`` that have stored the epoch.

    Raises one of ``refusals`` unless ``accept_loss``, and also with it if no address of ``wanted`` remains, or if
    another promotion is running.
    """
    for address, refusal in refusals.items():
        if CANNOT_BEGIN in str(refusal):
            raise refusal
        if not accept_loss:
            raise PromotionRefused(f"{refusal}; {ACCEPT_LOSS}")
        report(f"{refusal}: continuing without {address}")
    remaining = [address for address in wanted if address not in refusals]
    if not remaining:
        raise refusals[wanted[0]]
    return remaining


async def _send_epoch(address: str, epoch: Epoch, timeout: float, *, master: bool = False) -> SlaveLog:
    """Send the broker the epoch, or make it that epoch's master; returns its log."""
    ext = {EPOCH_FIELD: str(epoch)} | ({"masterAddress": address} if master else {})
    answer = await _call(address, Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext), timeout)
    said = answer.ext or {}
    try:
        lacks_before, kept_from = int(said.get(LOG_LACKS_FIELD, 0)), int(said.get(LOG_KEPT_FIELD, 0))
        epoch_of_log = epoch_in(said, LOG_EPOCH_FIELD)
        return SlaveLog(int(said[LOG_END_FIELD]), epoch_of_log, lacks_before=lacks_before, kept_from=kept_from)
    except (KeyError, ValueError):
        raise PromotionRefused(f"{address} does not say where its log ends") from None


async def _call(address: str, command: Command, timeout: float) -> Command:
    try:
        with trio.fail_after(timeout):
            async with open_channel(address) as channel:
                answer = await channel.call(command)
    except (ConnectError, RemoteFault, trio.TooSlowError) as error:
        raise PromotionRefused(f"{address}: {error or f'no answer in {timeout:g} s'}; promote again") from None
    if answer.code:
        raise PromotionRefused(f"{address} refuses: {answer.remark}")
    return answer
