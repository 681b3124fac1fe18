"""What the exporter keeps over restarts of the broker: ``config/exporter.json`` and ``config/exporterStarts.json``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import msgspec
import structlog

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

PATH: Final = "config/exporter.json"
STARTS_PATH: Final = "config/exporterStarts.json"

log = structlog.get_logger("gantrymq.exporter")


@attrs.define
class LastRun:
    """The last run that ended. Times are seconds since 1970; ``error`` is empty if it exported everything."""

    started: float = 0.0
    ended: float = 0.0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0
    error: str = ""


@attrs.define
class ExporterState:
    """``ends`` is a copy of the offsets in the export's manifests, so that retention does not read them.

    ``to`` is the folder or table that they describe: another one has other offsets. ``failures`` counts
    failed runs in a row.

    ``ahead`` has topics whose export was found to have offsets that their queues did not have when the broker started,
    with the ends of their export then: new messages got these offsets.
    """

    to: str = ""
    paused: bool = False
    ends: dict[str, dict[int, int]] = attrs.field(factory=dict)
    ahead: dict[str, dict[int, int]] = attrs.field(factory=dict)
    failures: int = 0
    last: LastRun = attrs.field(factory=LastRun)
    last_success: float = 0.0


def load_state(env: Env, root: str, to: str) -> ExporterState:
    """Return the stored state; a new one if there is none, if it is damaged, or if it describes another folder."""
    path = f"{root}/{PATH}"
    for candidate in (path, f"{path}.bak"):
        if not env.exists(candidate):
            continue
        try:
            state = decode_state(env.read_bytes(candidate))
        except (msgspec.MsgspecError, OSError, ValueError) as error:
            log.warning("exporter_state_unreadable", path=candidate, reason=str(error))
            continue
        return state if state.to == to else ExporterState(to, paused=state.paused)
    return ExporterState(to)


def decode_state(data: bytes) -> ExporterState:
    """Return the state in the file. ``ValueError`` if it is damaged."""
    return msgspec.json.decode(data, type=ExporterState)


def encode_state(state: ExporterState) -> bytes:
    """Return the content of the file."""
    return msgspec.json.encode(state)


@attrs.frozen
class Starts:
    """Where the queues of the topics that match ``patterns`` ended at a start of the broker, until a run has compared
    the export at ``to`` with that. After several starts without such a run these are the lowest ends.

    ``checked`` has the topics that were compared since the start. One that is in neither had no queues at the start.
    """

    to: str
    patterns: list[str]
    ends: dict[str, dict[int, int]]
    checked: list[str]


def load_starts(env: Env, root: str, to: str) -> Starts | None:
    """Return the ends of earlier starts; None if the file is missing or damaged, or about another folder."""
    with suppress(msgspec.MsgspecError, OSError, ValueError):
        starts = msgspec.json.decode(env.read_bytes(f"{root}/{STARTS_PATH}"), type=Starts)
        if starts.to == to:
            return starts
    return None


def save_starts(env: Env, root: str, starts: Starts) -> None:
    """Make the ends for the next start durable. ``OSError`` if that fails."""
    env.replace(f"{root}/{STARTS_PATH}", msgspec.json.encode(starts))


def remove_starts(env: Env, root: str) -> None:
    """Remove the file if there is one."""
    with suppress(OSError):
        env.unlink(f"{root}/{STARTS_PATH}")
