"""Read a state file or, if it is damaged, the ``.bak`` beside it.

``env.replace`` writes such files and keeps the previous one as ``.bak``. Source: RocketMQ 4.9.7 ``ConfigManager``. If
both files are damaged, RocketMQ starts with an empty table; GantryMQ refuses to start, because groups would silently
consume everything again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

T = TypeVar("T")

log = structlog.get_logger("gantrymq.statefile")


def load_state(env: Env, path: str, read: Callable[[bytes], T]) -> T | None:
    """Return the result of ``read`` for the file or its ``.bak``; None if neither exists.

    A damaged file whose ``.bak`` is good is kept as ``.bad``. ``read`` raises ``RemoteFault`` or ``ValueError`` for
    invalid content. :class:`StartError` if files exist and none can be read; the text says what to do.
    """
    problems: list[str] = []
    for name in (path, path + ".bak"):
        if not env.exists(name):
            continue
        try:
            state = read(env.read_bytes(name))
        except RemoteFault as error:
            problems.append(f"{name}: {error.remark}")
        except (ValueError, OSError) as error:
            problems.append(f"{name}: {error}")
        else:
            if name != path:
                log.warning(
                    "state_restored_from_backup", path=path, reason="; ".join(problems) or "the file is missing"
                )
                if problems:
                    # rename it: the next write would otherwise keep it as .bak in place of the good one
                    env.rename(path, path + ".bad")
            return state
    if problems:
        raise StartError(
            f"{'; '.join(problems)}. Repair {path}, or move it and its .bak away to start with an empty table"
        )
    return None
