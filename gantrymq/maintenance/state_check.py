"""Check the small files of a store against its log: checkpoint, watermark, the kernel's notes, and plugins' files.

Each plugin checks its own files, by the hook ``check_files``. ``docs/format/store.md``, ``docs/format/state-files.md``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.plugin_state import FOLDER, decode_state
from gantrymq.kernel.store.queues.deletions import read_deletion
from gantrymq.kernel.store.recovery.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    SlotState,
    corrected_marks,
    decode_start,
    has_start,
    raw_times,
    slot_states,
)

if TYPE_CHECKING:
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.manager import PluginManager
    from gantrymq.kernel.stopped_store import StoppedStore

CHECKPOINT: Final = "checkpoint"
WATERMARK: Final = "gantrymq.watermark"
QUARANTINE: Final = "gantrymq.quarantine"
DELETED: Final = "gantrymq.deleted"
AS_ROCKETMQ: Final = (
    "the next start reads the log as if RocketMQ's broker had written it, and forgets which topics were deleted"
)
_FIELDS: Final = ("log", "queue", "index")


def check_kernel_files(store: StoppedStore) -> None:
    """Check the files that the kernel owns."""
    _check_marks(store)
    _check_quarantine(store)
    _check_deletions(store)
    _check_plugin_states(store)


def check_plugin_files(store: StoppedStore, config: Config, managers: Sequence[PluginManager]) -> None:
    """Let each plugin check its files; a plugin of several managers does so once."""
    called: set[str] = set()
    for info, call in chain(*(manager.calls("check_files", store=store, config=config) for manager in managers)):
        if info.name in called:
            continue
        called.add(info.name)
        try:
            call()
        except Exception as error:
            store.damaged(
                ".",
                f"the check of plugin {info.name!r} failed: {error!r:.300}",
                "its files were not checked completely",
            )


def _check_marks(store: StoppedStore) -> None:
    data = _head_of(store, WATERMARK)
    times = raw_times(_head_of(store, CHECKPOINT))
    states = slot_states(data, Checkpoint(*(max(time, 0) for time in times or (0, 0, 0))))
    if times is None and store.newest_ms:
        problem = "it is too short" if store.exists(CHECKPOINT) else "it is missing"
        store.damaged(CHECKPOINT, problem, f"{AS_ROCKETMQ}; it then writes a new one")
    elif data.strip(b"\0") and SlotState.VALID not in states:
        if SlotState.OTHER in states:
            store.note(
                WATERMARK, "it belongs to another checkpoint",
                f"RocketMQ's broker has written to this store since, or the checkpoint is damaged: {AS_ROCKETMQ}",
            )  # fmt: skip
        else:
            store.damaged(WATERMARK, "neither of its two slots is valid", f"{AS_ROCKETMQ}; it then writes a new one")
    elif SlotState.TORN in states:
        store.note(WATERMARK, "one of its two slots is torn", "the next start uses the other one")
    if has_start(data) and decode_start(data) is None:
        store.note(
            WATERMARK, "the log's first offset in it is torn", "the next start does not notice missing oldest files"
        )  # fmt: skip
    if times is not None and store.is_clean and store.newest_ms:
        _check_times(store, times, data)


def _head_of(store: StoppedStore, path: str) -> bytes:
    """The part of a file that has a meaning; empty if it is missing."""
    if not store.exists(path):
        return b""
    file = store.open(path)
    try:
        return file.pread(CHECKPOINT_BYTES, 0)
    finally:
        file.close()


def _check_times(store: StoppedStore, times: tuple[int, ...], watermark: bytes) -> None:
    wrong = [
        f"the {name} time is {time}" for name, time in zip(_FIELDS, times, strict=True)
        if time < 0 or time > store.newest_ms
    ]  # fmt: skip
    if not wrong:
        return
    right = Checkpoint(*(min(max(time, 0), store.newest_ms) for time in times))
    before = Checkpoint(*(max(time, 0) for time in times))
    contents = {}
    if (marks := corrected_marks(watermark, before, right)) is not None:
        contents[WATERMARK] = marks  # first: until the checkpoint is written, its other slot is valid
    contents[CHECKPOINT] = right.encode().ljust(CHECKPOINT_BYTES, b"\0")
    store.damaged(
        CHECKPOINT, f"{', '.join(wrong)}, and the log's last message is of {store.newest_ms}",
        "after its next crash, RocketMQ's broker would take unflushed messages for flushed ones",
        f"sets {'them' if len(wrong) > 1 else 'it'} to the time of the last message", contents=contents,
    )  # fmt: skip


def decode_quarantine(data: bytes) -> list[tuple[int, int]]:
    """The ranges in the content of ``gantrymq.quarantine``. :class:`ValueError` if it has something else."""
    try:
        ranges = [(int(start), int(end)) for start, end in json.loads(data)]
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if any(not 0 <= start < end for start, end in ranges):
        raise ValueError("a range ends before it begins")
    return ranges


def _check_quarantine(store: StoppedStore) -> None:
    if not store.exists(QUARANTINE):
        return
    try:
        ranges = decode_quarantine(store.read(QUARANTINE))
    except (OSError, ValueError) as error:
        store.damaged(
            QUARANTINE, f"it cannot be read: {error}", "the broker finds the damaged ranges again when it reads them",
            "moves it to lost+found", moves=[QUARANTINE],
        )  # fmt: skip
        return
    for start, end in ranges:
        if end > store.log_end and store.is_clean:
            store.note(QUARANTINE, f"the range {start} to {end} is behind the log's end", "the next start removes it")


def _check_deletions(store: StoppedStore) -> None:
    if not store.exists(DELETED):
        return
    kept = bytearray()
    wrong: list[int] = []
    try:
        data = store.read(DELETED)
    except (OSError, ValueError) as error:
        store.damaged(
            DELETED, f"it cannot be read: {error}", "messages of deleted topics are back if their queues are rebuilt",
            "moves it to lost+found", moves=[DELETED],
        )  # fmt: skip
        return
    for number, line in enumerate(data.rstrip(b"\0").splitlines(keepends=True), 1):
        deletion = read_deletion(line)
        if deletion is not None:
            topic, end = deletion
            kept += line
            if end > store.log_end and store.is_clean:
                store.note(
                    DELETED, f"line {number}: {topic!r} is deleted up to {end}, and the log ends at {store.log_end}",
                    "the next start limits the deletion to the log's end",
                )  # fmt: skip
        else:
            wrong.append(number)
    if wrong:
        lines = f"line{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong[:20]))}"
        store.damaged(
            DELETED, f"{lines} cannot be read", "messages of that deleted topic are back if its queues are rebuilt",
            f"removes {'them' if len(wrong) > 1 else 'it'}, as the next start does", contents={DELETED: bytes(kept)},
        )  # fmt: skip


def _check_plugin_states(store: StoppedStore) -> None:
    def decode(content: bytes) -> int:
        offset, _ = decode_state(content)
        if offset > store.log_end and store.is_clean:
            raise ValueError(f"it is of offset {offset}, and the log ends at {store.log_end}")
        return offset

    states = {name.removesuffix(".bak") for name in store.names(FOLDER) if name.endswith((".state", ".state.bak"))}
    for name in sorted(states):
        store.read_table(
            f"{FOLDER}/{name}", decode, "the plugin's state, which the next start builds from the whole log"
        )
