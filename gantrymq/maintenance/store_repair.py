"""Repair what the check of a store found, as far as it can be rebuilt from the log; nothing of the log changes.

Wrong queue entries are corrected in place. Index files are deleted from the first damaged one on, and the broker builds
them again when it starts. Quarantining and cutting damaged ranges of the log are separate, because they decide about
messages.
"""

from __future__ import annotations

import json

import attrs

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.queues.consume_queue import FILLER
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance.store_check import StoreReport
from gantrymq.maintenance.store_files import UNIT, OpenedFiles, find_files, find_queues, read_state
from gantrymq.plugins.index.layout import NAME


@attrs.define
class RepairReport:
    """What was changed: entries corrected in place, queues and index files that the next start builds again."""

    corrected_entries: int = 0
    queues_to_rebuild: list[str] = attrs.field(factory=list)
    index_files_removed: list[str] = attrs.field(factory=list)


def repair(env: Env, root: str, found: StoreReport) -> RepairReport:
    """Rebuild queue entries and remove damaged index files; the caller holds the store's lock. :class:`OSError`."""
    done = RepairReport()
    files = OpenedFiles(env)
    rebuild: dict[str, None] = {}
    try:
        queues, _ = find_queues(env, root, files)
        for wrong in found.wrong_entries:
            queue = queues.get((wrong.topic, wrong.queue))
            entry = FILLER if wrong.expected is None else wrong.expected
            if queue is not None and queue.correct(wrong.queue_offset, entry):
                done.corrected_entries += 1
            else:
                rebuild[f"{root}/consumequeue/{wrong.topic}/{wrong.queue}"] = None
    finally:
        files.close()
    for problem in found.files:
        folder = problem.path.rpartition("/")[0]
        if folder.startswith(f"{root}/consumequeue/"):
            rebuild[folder] = None
    if read_state(env, root).marks is None:
        rebuild.clear()  # RocketMQ's store: the broker replaces queues with wrong files when it starts
    for folder in rebuild:
        # A missing queue makes the count of entries in the watermark wrong, so the next start reads the whole log.
        env.rmtree(folder)
        env.mkdirs(folder)
    done.queues_to_rebuild = list(rebuild)
    _remove_index(env, root, found, done)
    return done


def _remove_index(env: Env, root: str, found: StoreReport, done: RepairReport) -> None:
    damaged = [problem.path for problem in found.index]
    if damaged:
        for name in env.listdir(f"{root}/index"):
            path = f"{root}/index/{name}"
            if NAME.fullmatch(name) and path >= min(damaged):
                env.unlink(path)
                done.index_files_removed.append(path)
        env.sync_dir(f"{root}/index")


def quarantine(env: Env, root: str, found: StoreReport) -> list[tuple[int, int]]:
    """Add the damaged ranges to ``gantrymq.quarantine``: the broker then refuses to read them and continues behind
    them. Returns all ranges that the file has now."""
    path = f"{root}/gantrymq.quarantine"
    known: list[tuple[int, int]] = []
    if env.exists(path):
        try:
            known = [(int(start), int(end)) for start, end in json.loads(env.read_bytes(path))]
        except (ValueError, TypeError):
            known = []  # the broker ignores it as well
    ranges: list[tuple[int, int]] = []
    for start, end in sorted({*known, *((each.start, each.end) for each in found.damage)}):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    env.replace(path, json.dumps(ranges).encode())
    return ranges


def cut(env: Env, root: str, found: StoreReport, offset: int) -> tuple[str, ...]:
    """Cut the log off at ``offset``, which must be the start of a damaged range. Takes the store's lock itself.

    Returns the files in ``lost+found`` that hold what was cut off. The next start rebuilds the queues.
    :class:`StartError` for another offset.
    """
    starts = [each.start for each in found.damage]
    if offset not in starts:
        known = ", ".join(map(str, starts[:20])) or "there is none"
        raise StartError(f"no damaged range begins at {offset}; nothing was changed. Damaged ranges begin at: {known}")
    if read_state(env, root).marks is None:
        raise StartError(f"{root} was last written by RocketMQ's broker: start GantryMQ's broker on it once, then cut")
    file_bytes, _, _ = find_files(env, f"{root}/commitlog")
    store = Store(env, root, StoreConfig(commit_log_file_bytes=file_bytes, queue_file_units=queue_units(env, root)))
    store.open()
    try:
        return store.cut(offset)
    finally:
        store.abandon()


def queue_units(env: Env, root: str) -> int:
    """How many entries a file of the store's queues has; RocketMQ's default if there is no file."""
    for topic in env.listdir(f"{root}/consumequeue"):
        for name in env.listdir(f"{root}/consumequeue/{topic}"):
            size, _, _ = find_files(env, f"{root}/consumequeue/{topic}/{name}", unit=UNIT)
            if size:
                return size // UNIT
    return StoreConfig().queue_file_units
