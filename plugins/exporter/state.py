"""What the exporter keeps over restarts of the broker: ``config/exporter.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import msgspec
import structlog

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

PATH: Final = "config/exporter.json"

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

    ``deleted`` has topics of ``ends`` that were deleted since the start of the broker. ``recreated`` has topics whose
    queue offsets restarted at 0 after such a deletion, with the ends of their export then.
    """

    to: str = ""
    paused: bool = False
    ends: dict[str, dict[int, int]] = attrs.field(factory=dict)
    deleted: set[str] = attrs.field(factory=set)
    recreated: dict[str, dict[int, int]] = attrs.field(factory=dict)
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
