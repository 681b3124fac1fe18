"""Promotes a slave without losing anything that a slave has confirmed: fence all slaves first, then choose.

A slave that has received the new epoch confirms nothing more to the old master, and returns the end of its log. The
slave with the longest log therefore has everything that was acknowledged, whatever the old master does meanwhile.
Concurrent promotions have different tokens: each slave accepts only the first token of an epoch number.

Watchers pass their lock's revision as ``epoch_at_least``, because it grows with each holder.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import trio

from gantrymq.failover.brokers import FENCED, UNREACHABLE
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, FIRST, Epoch, epoch_in
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

    ``number`` is the id of the slave, by default the one with the longest log. Returns when the slave has accepted.
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
            raise PromotionRefused(f"{name} has a master at {row['address']} that answers: stop it first")
    slaves = [row for row in rows if row["id"] and row["role"] != UNREACHABLE]
    if not any(number in (None, row["id"]) for row in slaves):
        which = "slave" if number is None else f"slave with the id {number}"
        raise PromotionRefused(f"{name} has no {which} that answers")
    if all(row["epoch"] is None for row in slaves):  # brokers that cannot be fenced
        chosen = max((row for row in slaves if number in (None, row["id"])), key=lambda row: row["offset"] or 0)
        if epoch_at_least and not accept_loss:
            raise PromotionRefused(
                f"{chosen['address']} does not support epochs: the old master could continue; {ACCEPT_LOSS}"
            )
        check()
        return await _promote_by_number(chosen["address"], response_timeout, report)
    lost = [row["address"] for row in rows if row["id"] and (row["role"] == UNREACHABLE or row["epoch"] is None)]
    if lost and not accept_loss:
        raise PromotionRefused(
            f"{name} has slaves that cannot be asked, {', '.join(lost)}: they may have confirmed messages that the "
            f"others lack. Start or stop them (a nameserver forgets a broker that is gone after 120 s); {ACCEPT_LOSS}"
        )
    slaves = [row for row in slaves if row["epoch"] is not None]
    _check_promotable([row for row in slaves if number in (None, row["id"])])
    known = [epoch_in(row, "epoch") or FIRST for row in rows]
    epoch = Epoch(max(max(each.number for each in known) + 1, epoch_at_least), secrets.token_hex(TOKEN_BYTES))
    report(f"epoch {epoch} begins: sending it to {', '.join(row['address'] for row in slaves)}")
    ends = await _send_epoch_to_all([str(row["address"]) for row in slaves], epoch, response_timeout, check)
    wanted = [row for row in slaves if number in (None, row["id"]) and not row["not_promotable"]]
    address = max((str(row["address"]) for row in wanted), key=lambda each: ends[each])
    if ends[address] < max(ends.values()) and not accept_loss:
        best = max(ends, key=lambda each: ends[each])
        raise PromotionRefused(
            f"{address} has the log up to {ends[address]}, and {best} up to {ends[best]}: the messages between would "
            f"be lost. Promote that one; {ACCEPT_LOSS}"
        )
    if ends[address] < end_at_least and not accept_loss:
        raise PromotionRefused(
            f"{address} has the log up to {ends[address]} only, and messages up to {end_at_least} may have been "
            f"acknowledged: start the broker that has them; {ACCEPT_LOSS}"
        )
    report(f"promoting {address}, whose log ends at {ends[address]}")
    check()
    await _send_epoch(address, epoch, response_timeout, master=True)
    return Promoted(address, epoch, ends[address])


async def _promote_by_number(address: str, response_timeout: float, report: Report) -> Promoted:
    """Promote by setting the id; the old master is not fenced."""
    report(f"promoting {address}, which does not support epochs")
    await _call(address, Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0\n"), response_timeout)
    return Promoted(address, None)


def _check_promotable(wanted: Sequence[Row]) -> None:
    """Check, before any broker is fenced, that a slave can be promoted."""
    if all(row["not_promotable"] for row in wanted):
        raise PromotionRefused(f"{wanted[0]['address']} refuses: {wanted[0]['not_promotable']}")


async def _send_epoch_to_all(
    addresses: Sequence[str], epoch: Epoch, timeout: float, check: Callable[[], None]
) -> dict[str, int]:
    """Send the epoch to all brokers concurrently; returns the ends of their logs."""
    ends: dict[str, int] = {}
    refusals: dict[str, PromotionRefused] = {}

    async def send(address: str) -> None:
        try:
            ends[address] = await _send_epoch(address, epoch, timeout)
        except PromotionRefused as error:
            refusals[address] = error

    check()
    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(send, address)
    for address in addresses:
        if address in refusals:
            raise refusals[address]
    return ends


async def _send_epoch(address: str, epoch: Epoch, timeout: float, *, master: bool = False) -> int:
    """Send the broker the epoch, or make it that epoch's master; returns the end of its log."""
    ext = {EPOCH_FIELD: str(epoch)} | ({"masterAddress": address} if master else {})
    answer = await _call(address, Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext), timeout)
    try:
        return int((answer.ext or {})["logEnd"])
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
