"""Names of RocketMQ's releases, by the ordinal that frames and heartbeats carry.

Source: RocketMQ 5.3.3 ``MQVersion.Version``: from V4_0_0_SNAPSHOT on, two ordinals for each release without a gap.
"""

from __future__ import annotations

from typing import Final

FIRST_WITH_TIMES: Final = 413
"""V5_0_0: the first version with timed messages."""
_FIRST: Final = 212
"""V4_0_0_SNAPSHOT; the names of older versions follow no rule."""
_HIGHER: Final = 612
_OF_A_MAJOR: Final = 200


def version_name(ordinal: int) -> str:
    """``V4_9_7`` for 407. ``V3`` for versions before 4.0.0, ``HIGHER_VERSION`` for unknown newer ones."""
    if ordinal >= _HIGHER:
        return "HIGHER_VERSION"
    if ordinal < _FIRST:
        return "V3"
    major, rest = divmod(ordinal - _FIRST, _OF_A_MAJOR)
    return f"V{4 + major}_{rest // 20}_{rest // 2 % 10}{'' if rest % 2 else '_SNAPSHOT'}"
