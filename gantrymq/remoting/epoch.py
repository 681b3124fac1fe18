"""The epoch of a master identifies its promotion. A higher number outranks a lower one, whichever came first.

Its text form is ``3-5f0c19ab``: a number, and a token that distinguishes promotions with the same number. RocketMQ's
nameservers and brokers ignore the fields with it. Nameservers and brokers of 5.x also compare the number, because it is
the ``stateVersion`` in a registration's ``DataVersion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

EPOCH_FIELD: Final = "gantryEpoch"
"""The header field of registrations, role changes and their responses."""
EPOCH_KEY: Final = "haEpoch"
"""The name of the epoch in a broker's runtime information."""
EPOCH_START_KEY: Final = "haEpochStart"
"""The name in a master's runtime information of the offset (bytes) at which its log ended when its epoch began."""
LOG_EPOCH_KEY: Final = "haLogEpoch"
"""The name in a broker's runtime information of the epoch of its log."""
LOG_EPOCH_FIELD: Final = "logEpoch"
"""The field of the response to NOTIFY_BROKER_ROLE_CHANGED with the epoch of the broker's log."""
LOG_END_FIELD: Final = "logEnd"
"""The field of the same response with the end of the log (bytes)."""
LOG_LACKS_KEY: Final = "haLogLacksBefore"
"""The name in a slave's runtime information of the offset (bytes) before which its log lacks records that its master
had; absent if the log is complete."""
LOG_LACKS_FIELD: Final = "logLacksBefore"
"""The field of the response to NOTIFY_BROKER_ROLE_CHANGED with the same offset; absent if the log is complete."""
LOG_KEPT_KEY: Final = "haLogKeptFrom"
"""The name in a slave's runtime information of the offset (bytes) behind which it keeps what its master may have
acknowledged and has lost; absent if there is nothing."""
LOG_KEPT_FIELD: Final = "logKeptFrom"
"""The field of the response to NOTIFY_BROKER_ROLE_CHANGED with the same offset; absent if there is nothing."""
CANNOT_BEGIN: Final = "cannot begin"
"""Part of the remark with which a broker refuses an epoch that is not above the highest known one."""
NUMBER_MAX: Final = 2**62
TOKEN_MAX: Final = 64


@attrs.frozen
class Epoch:
    """``number`` is 0 before any promotion. Each promotion sets a ``token``; epochs with one number and two tokens
    conflict."""

    number: int = 0
    token: str = ""

    def __str__(self) -> str:
        return f"{self.number}-{self.token}"

    def outranks(self, other: Epoch) -> bool:
        """Whether this epoch fences a master of the epoch ``other``."""
        return self.number > other.number

    def contradicts(self, other: Epoch) -> bool:
        """Whether a master of the epoch ``other`` conflicts with this one: it is older, or has this number and another
        token."""
        return self.outranks(other) or (self.number == other.number and self.token != other.token)


FIRST: Final = Epoch()


def read_epoch(text: str) -> Epoch:
    """The inverse of ``str(epoch)``; ValueError if the text is not an epoch."""
    number, dash, token = text.partition("-")
    if not (dash and number.isascii() and number.isdigit() and len(number) < 20 and int(number) <= NUMBER_MAX):
        raise ValueError(f"{text[:100]!r} is not an epoch: NUMBER-TOKEN is expected, the number at most 2**62")
    if len(token) > TOKEN_MAX or not all(each.isalnum() and each.isascii() for each in token):
        raise ValueError(f"{text[:100]!r} is not an epoch: its token has letters and digits, {TOKEN_MAX} at most")
    return Epoch(int(number), token)


def epoch_in(fields: Mapping[str, str] | None, name: str = EPOCH_FIELD) -> Epoch | None:
    """The epoch in the field ``name`` of a command or table; None if it is missing or invalid.

    An invalid epoch counts as missing: the peer is treated like one without epochs.
    """
    text = (fields or {}).get(name)
    try:
        return None if text is None else read_epoch(text)
    except ValueError:
        return None
