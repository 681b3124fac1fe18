"""Promote a slave so that nothing is lost that any slave has confirmed: fence all of them first, then choose.

A slave that learns of the new epoch confirms nothing more to the old master, and answers with the end of its log.
So the slave with the longest log has everything that was acknowledged, whatever the old master does meanwhile.
Two that promote at the same time choose different tokens: of one number each slave takes the first only.

``epoch_at_least`` is for who chooses by a lock: its revision is an epoch that grows by itself.
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
ACCEPT_LOSS: Final = "--accept-loss promotes all the same"

Row = dict[str, Any]
"""A broker as ``gantrymq cluster status`` has it, with ``epoch`` (a text, None for brokers that know none) and
``not_promotable`` (why its number cannot change, or empty)."""


Report = Callable[[str], None]
"""Hears of each step, in a sentence."""


class PromotionRefused(Exception):
    """No slave was promoted, or it is not known whether one was; the text has the reason and the remedy."""


@attrs.frozen
class Promoted:
    """Who is the master now, and of which epoch; None for a broker that knows no epochs. ``end``: of its log."""

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
    answer_timeout: float = 5.0,
    report: Report = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Promoted:
    """Order a slave of the broker ``name`` to be its master; ``brokers`` returns those of all names, as they are.

    ``number``: which slave; else the one that has most. :class:`PromotionRefused` while a master answers, and where
    something acknowledged could be lost, unless ``accept_loss``. It returns when the slave has taken the order.
    ``answer_timeout``: how many seconds a slave may take to keep the epoch on its disk.
    ``end_at_least``: whose log ends before that may lack something that was acknowledged.
    ``check`` is called before the slaves are told of the epoch, and before one is promoted; what it raises ends the
    promotion.
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
            raise PromotionRefused(f"{chosen['address']} knows no epochs: the old master could go on; {ACCEPT_LOSS}")
        check()
        return await _promote_by_number(chosen["address"], answer_timeout, report)
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
    report(f"epoch {epoch} begins: telling {', '.join(row['address'] for row in slaves)}")
    ends = await _tell_all([str(row["address"]) for row in slaves], epoch, answer_timeout, check)
    wanted = [row for row in slaves if number in (None, row["id"]) and not row["not_promotable"]]
    address = max((str(row["address"]) for row in wanted), key=lambda each: ends[each])
    if ends[address] < max(ends.values()) and not accept_loss:
        best = max(ends, key=lambda each: ends[each])
        raise PromotionRefused(
            f"{address} has the log up to {ends[address]}, and {best} up to {ends[best]}: what lies between would be "
            f"lost. Promote that one; {ACCEPT_LOSS}"
        )
    if ends[address] < end_at_least and not accept_loss:
        raise PromotionRefused(
            f"{address} has the log up to {ends[address]} only, and messages up to {end_at_least} may have been "
            f"acknowledged: start the broker that has them; {ACCEPT_LOSS}"
        )
    report(f"promoting {address}, whose log ends at {ends[address]}")
    check()
    await _tell(address, epoch, answer_timeout, master=True)
    return Promoted(address, epoch, ends[address])


async def _promote_by_number(address: str, answer_timeout: float, report: Report) -> Promoted:
    """Nothing fences the old master."""
    report(f"promoting {address}, which knows no epochs")
    await _call(address, Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0\n"), answer_timeout)
    return Promoted(address, None)


def _check_promotable(wanted: Sequence[Row]) -> None:
    """Before anybody is fenced: somebody can be promoted."""
    if all(row["not_promotable"] for row in wanted):
        raise PromotionRefused(f"{wanted[0]['address']} refuses: {wanted[0]['not_promotable']}")


async def _tell_all(
    addresses: Sequence[str], epoch: Epoch, timeout: float, check: Callable[[], None]
) -> dict[str, int]:
    """Tell all of them of the epoch at the same time; where their logs end."""
    ends: dict[str, int] = {}
    refusals: dict[str, PromotionRefused] = {}

    async def tell(address: str) -> None:
        try:
            ends[address] = await _tell(address, epoch, timeout)
        except PromotionRefused as error:
            refusals[address] = error

    check()
    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(tell, address)
    for address in addresses:
        if address in refusals:
            raise refusals[address]
    return ends


async def _tell(address: str, epoch: Epoch, timeout: float, *, master: bool = False) -> int:
    """Tell the broker of the epoch, or that it is its master; where its log ends."""
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
