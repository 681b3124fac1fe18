"""Repair what the check of a store found, as far as it can be rebuilt from the log; nothing of the log changes.

Wrong queue entries are corrected in place. Queues with wrong files, and files that do not belong there, move to
``lost+found``, and the queues are built again: here if the log has no damage that is not quarantined and no tail,
otherwise by the next start of a broker, which truncates the log first. Index files are deleted from the first damaged
one on; the broker builds them again when it starts. An interrupted repair can be repeated. Quarantining and cutting
damaged ranges of the log are separate, because they decide about messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress

import attrs

from gantrymq.kernel.env import Env, Lock
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.queues.consume_queue import FILLER
from gantrymq.kernel.store.queues.table import TagCodeRule
from gantrymq.kernel.store.recovery.queue_ends import QueueEnd, QueueEndList
from gantrymq.kernel.store.recovery.salvage import free_name
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance.state_check import QUARANTINE, decode_quarantine
from gantrymq.maintenance.state_repair import repair_state
from gantrymq.maintenance.store_check import StoreReport
from gantrymq.maintenance.store_files import (
    FOREIGN,
    UNIT,
    OpenedFiles,
    QueueFiles,
    find_files,
    find_queues,
    queue_ends,
    queue_file_bytes,
    read_small,
    read_state,
    size_of,
)
from gantrymq.plugins.index.layout import NAME


@attrs.define
class RepairReport:
    """What was changed: entries corrected in place, queues that were built again, or that the next start builds, and
    removed index files, which it builds too."""

    corrected_entries: int = 0
    queues_rebuilt: list[str] = attrs.field(factory=list)
    queues_to_rebuild: list[str] = attrs.field(factory=list)
    queues_left: list[str] = attrs.field(factory=list)
    """Queues with wrong files that are as they were, because damage of the log is not quarantined: the next start would
    not know where they ended."""
    index_files_removed: list[str] = attrs.field(factory=list)
    moved: list[str] = attrs.field(factory=list)
    """Files and folders in ``lost+found`` that the repair has moved there."""
    state_files_written: list[str] = attrs.field(factory=list)
    """State files with corrected contents."""


def repair(
    env: Env, root: str, found: StoreReport, lock: Lock, rules: Mapping[str, TagCodeRule] | None = None
) -> RepairReport:
    """Repair queues, index and state files; the caller holds the store's ``lock``, which stays held.

    ``rules``: the rules for tag codes by topic. :class:`OSError`.
    """
    done = RepairReport()
    units = queue_units(env, root)  # all queues may be moved away
    files = OpenedFiles(env)
    try:
        queues, _ = find_queues(env, root, files)
        rebuild = _correct_entries(root, found, queues, done)
        foreign = _wrong_files(root, found, rebuild)
        if read_state(env, root).marks is None:
            rebuild.clear()  # RocketMQ's store: the broker replaces queues with wrong files when it starts
        ends = queue_ends((queue for queue in queues.values() if queue.folder in rebuild), found.log_end)
        is_listed = _is_listed(env, root, found)
        if not is_listed:
            done.queues_left = [f"{root}/consumequeue/{topic}/{queue_id}" for topic, queue_id, _ in ends]
            for folder in done.queues_left:
                del rebuild[folder]
            ends = []
    finally:
        files.close()
    ends_list = QueueEndList(env, root)
    unfinished = ends_list.load()
    if ends:
        ends_list.save([*unfinished, *ends])  # recovery reads it when it has built the queues
    all_queues = f"{root}/consumequeue"
    if env.exists(all_queues) and not env.is_dir(all_queues):
        foreign.append(all_queues)
    for path in foreign:
        done.moved.append(move_to_lost_and_found(env, root, path))
    for folder in rebuild:
        # A missing queue makes the count of entries in the watermark wrong, so the next start reads the whole log.
        if env.exists(folder):
            done.moved.append(move_to_lost_and_found(env, root, folder))
        env.mkdirs(folder)
    rebuild |= {f"{root}/consumequeue/{topic}/{queue_id}": None for topic, queue_id, _ in unfinished}
    done.queues_to_rebuild = list(rebuild)
    _remove_index(env, root, found, done)
    state = repair_state(env, root, found.state, lambda path: move_to_lost_and_found(env, root, path))
    done.moved += state.moved
    done.state_files_written = state.written
    if done.queues_to_rebuild and is_listed and not found.tail_bytes:
        # A store that cannot be opened, for example because a file is in place of a folder, stops a broker as well. The
        # queues are left to the next start that succeeds.
        with suppress(StartError):
            clean = found.stopped_cleanly
            build_queues(env, root, found.log_end, rules or {}, _HeldLock(lock), units=units, is_clean=clean)
            done.queues_rebuilt, done.queues_to_rebuild = done.queues_to_rebuild, []
    return done


def _is_listed(env: Env, root: str, found: StoreReport) -> bool:
    """Whether all damage of the log is quarantined, so that a start continues behind it and cuts nothing off."""
    try:
        ranges = decode_quarantine(read_small(env, f"{root}/{QUARANTINE}") or b"[]")
    except (OSError, ValueError):
        ranges = []
    return all(any(start <= each.start and each.end <= end for start, end in ranges) for each in found.damage)


def _correct_entries(
    root: str, found: StoreReport, queues: Mapping[tuple[str, int], QueueFiles], done: RepairReport
) -> dict[str, None]:
    """Correct wrong entries in place. Returns the folders of the queues in which that is impossible."""
    rebuild: dict[str, None] = {}
    for wrong in found.wrong_entries:
        queue = queues.get((wrong.topic, wrong.queue))
        entry = FILLER if wrong.expected is None else wrong.expected
        if queue is not None and queue.correct(wrong.queue_offset, entry):
            done.corrected_entries += 1
        else:
            rebuild[f"{root}/consumequeue/{wrong.topic}/{wrong.queue}"] = None
    return rebuild


def _wrong_files(root: str, found: StoreReport, rebuild: dict[str, None]) -> list[str]:
    """Add the folders of queues with wrong files to ``rebuild``. Returns what does not belong there."""
    foreign = []
    for problem in found.files:
        folder = problem.path.rpartition("/")[0]
        if not folder.startswith(f"{root}/consumequeue"):
            continue
        if problem.reason == FOREIGN:
            foreign.append(problem.path)
        elif folder.count("/") == root.count("/") + 3:
            rebuild[folder] = None
    return foreign


@attrs.frozen
class _HeldLock:
    """A lock that its holder releases, not the store that is opened with it."""

    lock: Lock

    def close(self) -> None:
        """The holder does it."""


def build_queues(
    env: Env,
    root: str,
    log_end: int,
    rules: Mapping[str, TagCodeRule],
    lock: Lock | None = None,
    *,
    units: int = 0,
    is_clean: bool = True,
    is_restore: bool = False,
    ends: Iterable[QueueEnd] = (),
) -> None:
    """Build missing queues from the log, as a broker's start does.

    ``lock``: the store's lock if it is held; ``units``: the entries of a queue file, 0 as in other files of the store.
    ``is_clean``: leave a store that stopped cleanly; not if it did not before, because plugins trust their files then.
    ``is_restore``: the caller is restoring the store. ``ends``: where queues ended; the log alone does not say so of
    a queue whose messages have all expired.
    :class:`StartError` if the log does not end at ``log_end``.
    """
    file_bytes, _, _ = find_files(env, f"{root}/commitlog")
    config = StoreConfig(
        commit_log_file_bytes=file_bytes or StoreConfig().commit_log_file_bytes,
        queue_file_units=units or queue_units(env, root),
    )
    store = Store(env, root, config)
    store.open(lock, is_restore=is_restore)
    try:
        store.queues.tag_code_rules.update(rules)
        report = store.recover(lambda batch: None)  # plugins build what they need from the log when the broker starts
        if report.end != log_end:
            raise StartError(f"the log in {root} ends at {report.end}, not at {log_end}")
        for topic, queue_id, end in ends:
            store.extend_queue(topic, queue_id, end)
        store.flush_queues()
        if is_clean:
            store.close()
    finally:
        store.abandon()


def move_to_lost_and_found(env: Env, root: str, path: str) -> str:
    """Move a file or folder of the store to a free name in ``lost+found``, durably. Returns the new path."""
    if env.exists(f"{root}/lost+found") and not env.is_dir(f"{root}/lost+found"):
        raise StartError(f"{root}/lost+found is not a folder: move it away, what the repair replaces goes there")
    env.mkdirs(f"{root}/lost+found")
    target = free_name(env, f"{root}/lost+found/{path[len(root) + 1 :].replace('/', '-')}")
    env.rename(path, target)
    env.sync_dir(f"{root}/lost+found")
    env.sync_dir(path.rpartition("/")[0])
    return target


def _remove_index(env: Env, root: str, found: StoreReport, done: RepairReport) -> None:
    """Remove the first damaged file and all behind it, the newest first: a crash leaves a shorter index, no gap."""
    folder = f"{root}/index"
    if not found.index:
        return
    names = [problem.path.rpartition("/")[2] for problem in found.index]
    first = min(names) if all(map(NAME.fullmatch, names)) else ""
    for problem in found.index:
        if problem.path == f"{root}/gantrymq.index":
            done.moved.append(move_to_lost_and_found(env, root, problem.path))
    if not env.is_dir(folder):
        done.moved.append(move_to_lost_and_found(env, root, folder))
        return
    names = [name for name in env.listdir(folder) if NAME.fullmatch(name) and name >= first]
    for name in reversed(names):
        path = f"{folder}/{name}"
        if env.is_dir(path):
            done.moved.append(move_to_lost_and_found(env, root, path))
        else:
            env.unlink(path)
            done.index_files_removed.insert(0, path)
    env.sync_dir(folder)


def quarantine(env: Env, root: str, found: StoreReport) -> list[tuple[int, int]]:
    """Add the damaged ranges to ``gantrymq.quarantine``: the broker then refuses to read them and continues behind
    them. Returns all ranges that the file has now. An unreadable file moves to ``lost+found`` first, and is no longer
    among the findings.

    No broker starts without a file of the log, so files of zeros take the place of missing ones, and of files with a
    wrong size, which move to ``lost+found``. Missing oldest files need none after a clean stop: a broker starts without
    them. :class:`StartError` if too few files are left to tell the size of the missing ones; :class:`OSError`.
    """
    file_bytes, bases, _ = find_files(env, f"{root}/commitlog")
    missing = _missing_at_ends(env, root, found, file_bytes, bases)
    if (missing and len(bases) < 2) or (found.damage and not file_bytes):
        raise StartError(
            f"{root}/commitlog has {len(bases)} files, too few to tell the size of the missing ones: restore a backup "
            "or promote a slave; nothing was changed"
        )
    path = f"{root}/{QUARANTINE}"
    try:
        known = decode_quarantine(read_small(env, path) or b"[]")
    except (OSError, ValueError):
        known = []
        move_to_lost_and_found(env, root, path)
        found.state = [each for each in found.state if each.path != QUARANTINE]
    ranges: list[tuple[int, int]] = []
    for start, end in sorted({*known, *((each.start, each.end) for each in found.damage)}):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    env.replace(path, json.dumps(ranges).encode())
    _fill_log(env, root, found, file_bytes)
    for base in missing:
        _create_log_file(env, root, file_bytes, base)
    return ranges


def _missing_at_ends(env: Env, root: str, found: StoreReport, file_bytes: int, bases: list[int]) -> list[int]:
    """Where files of the log are missing before and behind the others, which no broker starts without.

    The inner ones come first: a crash while they are made leaves no gap.
    """
    state = read_state(env, root)
    if state.marks is None or not bases:
        return []
    missing = [*range(bases[-1] + file_bytes, state.marks.durable, file_bytes)]
    if state.log_start is not None and not state.clean:
        missing += range(bases[0] - file_bytes, state.log_start - file_bytes, -file_bytes)
    there = {problem.path for problem in found.files}
    paths = ((base, f"{root}/commitlog/{base:020d}") for base in missing)
    # An empty file is what a broker leaves that was killed when it created the file.
    return [base for base, path in paths if path not in there and not (env.exists(path) and size_of(env, path))]


def _fill_log(env: Env, root: str, found: StoreReport, file_bytes: int) -> None:
    """Replace the files that are wrong, or missing between others."""
    folder = f"{root}/commitlog"
    unknown = {problem.path for problem in found.files if not problem.end}  # foreign, or of another user
    for problem in found.files:
        if not problem.path.startswith(f"{folder}/") or not problem.end or problem.start % file_bytes:
            continue
        for base in range(problem.start, problem.end, file_bytes):
            path = f"{folder}/{base:020d}"
            if path in unknown:
                continue
            if env.exists(path):
                move_to_lost_and_found(env, root, path)
            _create_log_file(env, root, file_bytes, base)


def _create_log_file(env: Env, root: str, file_bytes: int, base: int) -> None:
    env.mkdirs(f"{root}/staging")
    segments = Segments(env, f"{root}/commitlog", file_bytes, f"{root}/staging")
    segments.ensure(base)
    segments.close()


def cut(env: Env, root: str, found: StoreReport, offset: int, lock: Lock) -> tuple[str, ...]:
    """Cut the log off at ``offset``, which must be the start of a damaged range. The caller holds the store's ``lock``,
    which stays held.

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
    store.open(_HeldLock(lock))
    try:
        return store.cut(offset)
    finally:
        store.abandon()


def queue_units(env: Env, root: str) -> int:
    """How many entries a file of the store's queues has; RocketMQ's default if there is no file."""
    return queue_file_bytes(env, root) // UNIT or StoreConfig().queue_file_units
