"""The epoch of a master: which promotion made it one. A higher number outranks a lower one, whoever came first.

It travels as the text ``3-5f0c19ab``: a number, and what makes two promotions different that took the same number.
RocketMQ's nameservers and brokers ignore the fields that carry it; those of 5.x compare the number as well, which is
also the ``stateVersion`` of a registration's ``DataVersion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

EPOCH_FIELD: Final = "gantryEpoch"
"""The header field of registrations and role changes, and of their answers."""
EPOCH_KEY: Final = "haEpoch"
"""Under this name a broker's runtime information has its epoch."""
NUMBER_MAX: Final = 2**62
TOKEN_MAX: Final = 64


@attrs.frozen
class Epoch:
    """``number`` 0: nobody was promoted yet. ``token``: set by whoever promotes; two of one number are rivals."""

    number: int = 0
    token: str = ""

    def __str__(self) -> str:
        return f"{self.number}-{self.token}"

    def outranks(self, other: Epoch) -> bool:
        """Whether a master of the epoch ``other`` is deposed by this one."""
        return self.number > other.number

    def contradicts(self, other: Epoch) -> bool:
        """Whether a master of the epoch ``other`` cannot be one beside this: it is older, or the number's other one."""
        return self.outranks(other) or (self.number == other.number and self.token != other.token)


FIRST: Final = Epoch()


def read_epoch(text: str) -> Epoch:
    """The inverse of ``str(epoch)``; ValueError for what is none."""
    number, dash, token = text.partition("-")
    if not (dash and number.isascii() and number.isdigit() and len(number) < 20 and int(number) <= NUMBER_MAX):
        raise ValueError(f"{text[:100]!r} is no epoch: NUMBER-TOKEN is expected, the number at most 2**62")
    if len(token) > TOKEN_MAX or not all(each.isalnum() and each.isascii() for each in token):
        raise ValueError(f"{text[:100]!r} is no epoch: its token has letters and digits, {TOKEN_MAX} at most")
    return Epoch(int(number), token)


def epoch_in(fields: Mapping[str, str] | None, name: str = EPOCH_FIELD) -> Epoch | None:
    """The epoch among a command's fields, or under ``name`` in a table; None when nobody says one, or one that is none.

    What cannot be read is treated as absent: the peer is then one that knows no epochs.
    """
    text = (fields or {}).get(name)
    try:
        return None if text is None else read_epoch(text)
    except ValueError:
        return None
