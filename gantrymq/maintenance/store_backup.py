"""Back up a store while its broker runs.

A backup is a manifest and the objects that it names: ranges of the log, and the state files. A later backup to the same
place adds only the bytes that the log has grown by. Queues and index are derived from the log, so a restore builds
them. Only where a queue ends whose messages have all expired does not follow from the log, so the manifest has the ends
of all queues. The order makes a backup consistent: first the state files, then the queues' ends, then the log up to the
end that it has at that time, so that no offset of a group is ahead of the log.

Several backups may run to one place at the same time, also from several machines, and places have no locks. So each run
registers itself (``running/``) before it reads which backups exist, its objects have names of their own, and a run that
deletes old objects does so in this order: old manifests, list the objects, list the other runs, list the manifests,
delete. It deletes no object while another run is registered. If the other run has finished meanwhile, its manifest is
already listed; if it starts later, it builds on a manifest that stays. A run that fails before it writes its manifest
deletes its objects, which nobody else can need.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Final

import attrs

from gantrymq.kernel.env import Env, File
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.fast import Stop
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import Segments, read_around, read_blocks
from gantrymq.kernel.store.recovery.quarantine import QuarantineList, Range, find_rewritten
from gantrymq.kernel.store.recovery.queue_ends import QueueEnd
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.kernel.store.store import StoreConfig
from gantrymq.maintenance.backup_manifest import (
    OBJECT_BYTES,
    STATE_MAX_BYTES,
    Manifest,
    Piece,
    is_state,
    list_backups,
    read_backup,
    read_manifest,
)
from gantrymq.maintenance.backup_targets import Target
from gantrymq.maintenance.state_check import DELETED, QUARANTINE
from gantrymq.maintenance.store_files import (
    FileProblem,
    OpenedFiles,
    StoreState,
    find_queues,
    log_runs,
    queue_ends,
    read_state,
)
from gantrymq.maintenance.store_repair import queue_units

_ROWS: Final = 4096
_STATE_READS: Final = 5
RUNNING: Final = "running"
"""The folder in which backups that run are registered."""
REFRESH_MS: Final = 60_000
"""How often a run renews its registration, at least after each object."""
DEAD_AFTER_MS: Final = 3_600_000
"""A run whose registration is older was killed. The clocks of two machines may differ by less."""
_TIME: Final = re.compile(rb"[0-9]{13}")
"""A time in ms in a registration, which has 13 digits until the year 2286; a part of it has fewer."""


@attrs.frozen
class BackupReport:
    """What a backup stored: its name, the range of the log, and the bytes that were copied now.

    ``deletion_deferred``: objects that no backup needs stay until a later backup, because another one was running.
    """

    name: str
    log_start: int
    log_end: int
    copied_log_bytes: int
    copied_state_bytes: int
    objects: int
    deletion_deferred: bool = False


def back_up(
    env: Env,
    root: str,
    target: Target,
    *,
    full: bool = False,
    keep: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BackupReport:
    """Back up the store in ``root``, also while a broker uses it.

    The backup has every message that was acknowledged before the call. ``full``: copy the whole log again. ``keep``:
    how many backups stay; objects that only older ones need are deleted. ``progress`` gets copied and total bytes.

    :class:`StartError` if ``root`` is not a store, files of its log are missing, or it is not the continuation of the
    last backup; :class:`OSError` if reading or writing fails. Then the earlier backups remain valid.
    """
    read_state(env, root)  # before anything is written: another folder may have files that nobody else should see
    with _Registered(env, target) as run:
        try:
            manifest, report = _copy(env, root, target, run, full=full, progress=progress)
        except BaseException:
            with suppress(Exception):  # the place may be gone
                for name in run.written:
                    target.delete(name)
                _reclaim(target, run, objects=keep is not None)  # that may be what the place has no room for
            raise
        target.write(f"backups/{manifest.name}.json", manifest.encode())
        try:
            run.check()
        except StartError:
            target.delete(f"backups/{manifest.name}.json")
            raise
        if keep is None:
            with suppress(OSError):  # the backup is complete
                _reclaim(target, run, objects=False)
            return report
        return attrs.evolve(report, deletion_deferred=not _drop_old(target, keep, run))


class _Registered:
    """A backup that runs: its name is in ``running/`` with the time of its last renewal, until the block ends."""

    def __init__(self, env: Env, target: Target) -> None:
        self.name = secrets.token_hex(4)
        self.written: list[str] = []
        """The objects that :meth:`write` stored, or began to store."""
        self._env = env
        self._target = target
        self._renewed = 0

    def __enter__(self) -> _Registered:
        self.renew()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # it expires by itself
            self._target.delete(f"{RUNNING}/{self.name}")

    def renew(self) -> None:
        """Renew the registration of this run. :class:`StartError` as :meth:`check`."""
        now = self._env.wall_ms()
        if abs(now - self._renewed) >= REFRESH_MS:
            if self._renewed:
                self.check()
            self._target.write(f"{RUNNING}/{self.name}", b"%d" % now)
            self._renewed = now

    def write(self, name: str, data: bytes) -> None:
        """Store an object of this run, whose name no other run has."""
        self.written.append(name)
        self._target.write(name, data)

    def others(self) -> list[str]:
        """The other runs that are alive. Registrations of killed ones are deleted."""
        found = []
        for name in self._target.names(RUNNING):
            if name == self.name:
                continue
            try:
                text = self._target.read(f"{RUNNING}/{name}", 20)
            except FileNotFoundError:
                continue
            if not _TIME.fullmatch(text):
                # Its run may be writing it just now. If it is dead, the registration expires from now on.
                text = b"%d" % self._env.wall_ms()
                self._target.write(f"{RUNNING}/{name}", text)
            if self._env.wall_ms() - int(text) < DEAD_AFTER_MS:
                found.append(name)
            else:
                self._target.delete(f"{RUNNING}/{name}")
        return found

    def check(self) -> None:
        """:class:`StartError` if another run considered this one killed: this one was paused for too long."""
        if self.name not in self._target.names(RUNNING):
            raise StartError(
                "another backup considered this one killed and may have deleted its objects: back up again"
            )


def _copy(
    env: Env,
    root: str,
    target: Target,
    registered: _Registered,
    *,
    full: bool,
    progress: Callable[[int, int], None],
) -> tuple[Manifest, BackupReport]:
    """Store everything but the manifest."""
    before = None if full or not list_backups(target) else read_backup(target)
    marks = _read_state(env, root).marks  # before the files are listed, so that all up to there are among them
    contents = _state_contents(env, root, (QUARANTINE, DELETED) if marks is None else ())
    state = list(_store_state(contents, target, before, registered))
    with ExitStack() as stack:
        run = _open_log(env, root, stack)
        _check_ends(env, root, run, 0 if marks is None else marks.durable)
        start, end, newest = run.start, *_find_end(env, root, run)
        queues = _find_ends(env, root, end)
        kept = _continued(env, root, run, before, target, start, end)
        _check_present(target, kept)
        position = kept[-1].offset + kept[-1].size if kept else start
        copied, total = 0, end - position
        pieces = list(kept)
        while position < end:
            segment = run.at(position)
            if segment is None:
                raise StartError(f"{root}/commitlog: no file holds offset {position}; check the store (store check)")
            size = min(end, segment.end, position + OBJECT_BYTES) - position
            piece = _store_object(registered, _read_log(env, root, run, position, size), position)
            if piece.size != size:
                raise StartError(f"{segment.path} is too short: check the store (store check)")
            pieces.append(piece)
            position += size
            copied += size
            progress(copied, total)
            registered.renew()
        if marks is None and (ranges := _quarantined(env, root, run)):
            state += _store_state([(QUARANTINE, json.dumps(ranges).encode())], target, before, registered)
        manifest = Manifest(
            max(env.wall_ms(), _newest_ms(target) + 1), run.file_bytes, queue_units(env, root),
            start, end, newest, tuple(pieces), tuple(piece for piece, _ in state), registered.name, queues,
        )  # fmt: skip
    return manifest, BackupReport(
        manifest.name,
        start,
        end,
        copied,
        sum(size for _, size in state),
        len(pieces) - len(kept) + len(state),
    )


def _newest_ms(target: Target) -> int:
    """The time in the name of the newest backup; names sort by age, also those of two backups in one millisecond."""
    times = (name.partition("-")[0] for name in list_backups(target))
    return max((int(time) for time in times if time.isdecimal()), default=0)  # the folder may have foreign files


def _state_contents(env: Env, root: str, without: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Path and content of each state file but those ``without``: of a store that RocketMQ's broker wrote last, they are
    obsolete, at least in part. The restored store is GantryMQ's, so its broker would trust them."""
    for path in _state_files(env, root):
        if path in without:
            continue
        try:
            data = env.read_bytes(f"{root}/{path}")
        except FileNotFoundError:
            continue  # brokers replace their files
        if len(data) > STATE_MAX_BYTES:
            raise StartError(f"{root}/{path} has {len(data)} bytes, which no state file has: move it out of the store")
        yield path, data


def _store_state(
    contents: Iterable[tuple[str, bytes]], target: Target, before: Manifest | None, run: _Registered
) -> Iterator[tuple[Piece, int]]:
    """Each state file's object, and how many bytes were copied: none if the last backup has the same content."""
    known = {} if before is None else {piece.sha256: piece.name for piece in before.state}
    if known:
        present = {f"state/{name}" for name in target.names("state")}
        known = {digest: name for digest, name in known.items() if name in present}
    for path, data in contents:
        digest = hashlib.sha256(data).hexdigest()
        copied = 0
        if digest not in known:
            known[digest] = f"state/{digest}-{run.name}"
            run.write(known[digest], data)
            copied = len(data)
        yield Piece(known[digest], len(data), digest, path=path), copied


def _find_ends(env: Env, root: str, log_end: int) -> tuple[QueueEnd, ...]:
    files = OpenedFiles(env)
    try:
        queues, _ = find_queues(env, root, files)
        return tuple(queue_ends(queues.values(), log_end))
    finally:
        files.close()


def _state_files(env: Env, root: str, folder: str = "") -> Iterator[str]:
    for name in env.listdir(f"{root}/{folder}" if folder else root):
        path = f"{folder}/{name}" if folder else name
        if env.is_dir(f"{root}/{path}"):
            if path == "config" or folder:
                yield from _state_files(env, root, path)
        elif is_state(path) and not name.endswith(".tmp"):
            yield path


def _open_log(env: Env, root: str, stack: ExitStack) -> Segments:
    before: list[FileProblem] = []
    for _ in range(10):
        runs, problems = log_runs(env, root)
        if problems and problems != before:
            before = problems  # retention may have deleted files meanwhile: look again
            continue
        if problems or len(runs) > 1:
            text = "; ".join(f"{each.path} {each.reason}" for each in problems[:3])
            raise StartError(f"the log has gaps or wrong files ({text}): check the store first (gantrymq store check)")
        if not runs:
            return Segments(env, f"{root}/commitlog", StoreConfig().commit_log_file_bytes, f"{root}/staging")
        opened: list[File] = []
        try:
            opened = [segment.file for segment in runs[0]]
        except FileNotFoundError:
            runs[0].close()  # retention has deleted the oldest file meanwhile
            continue
        if opened:
            stack.callback(runs[0].close)
            return runs[0]
    raise StartError(f"{root}/commitlog: files disappear faster than they can be opened")


def _read_state(env: Env, root: str) -> StoreState:
    """As :func:`read_state`, of a running broker too: it may write twice between the reads of checkpoint and watermark,
    and then these do not match."""
    state = read_state(env, root)
    for _ in range(_STATE_READS - 1):
        if state.marks is not None:
            break
        state = read_state(env, root)
    return state


def _check_ends(env: Env, root: str, run: Segments, durable: int) -> None:
    """:class:`StartError` if the log's newest or oldest files are missing, which leaves no gap between files.

    ``durable``: the offset up to which the log was flushed before its files were listed.
    """
    state = _read_state(env, root)  # later: a broker records the log's start before it deletes files
    start = state.log_start if state.marks is not None else None
    if durable > run.end:
        problem = f"ends at offset {run.end}, but everything up to {durable} was acknowledged"
    elif len(run) and start is not None and start < run.start:
        problem = f"begins at offset {run.start}, but it began at {start} when the broker ran last"
    else:
        return
    raise StartError(
        f"{root}/commitlog {problem}: restore the missing files, or check the store first (gantrymq store check)"
    )


def _quarantined(env: Env, root: str, run: Segments) -> list[Range]:
    """The quarantined ranges, without those that a start drops because RocketMQ's broker cut the log there."""
    ranges = QuarantineList(env, root).load()
    rewritten = find_rewritten(run, ranges) if _read_state(env, root).marks is None else None
    return ranges if rewritten is None else ranges[: rewritten.row]


def _find_end(env: Env, root: str, run: Segments) -> tuple[int, int]:
    """The end of the log now, at least that of every acknowledged record, and the last record's time.

    The watermark is behind what was acknowledged, so the rest is read up to where no record begins. A store of
    RocketMQ's broker has no watermark: there, :class:`StartError` if intact records are behind what is not a record.
    """
    state = _read_state(env, root)
    ranges = _quarantined(env, root, run)
    newest = 0
    position, stopped_at = run.start, -1
    if state.marks is not None:
        position = max(state.marks.durable, run.start)
    elif len(run):
        position = max(run.start, run.end - 2 * run.file_bytes)  # the last file can be one that was made in advance
    while (segment := run.at(position)) is not None:
        behind = next((end for first, end in ranges if first <= position < end), None)
        try:
            batch, stop = scan_block(run, position, segment.end, _ROWS, check_body=True)
        except OSError:
            if behind is None:
                _check_unreadable(env, root, run, position, segment.end - position)
                raise
        else:
            newest = max(newest, batch.newest_timestamp)
            is_moving = batch.end > position or stop is Stop.BLANK
            position = segment.end if stop is Stop.BLANK else batch.end
            if is_moving:
                continue
        if behind is not None:
            position = behind
            continue
        found = find_record(run, position + 1) if state.marks is None else None
        if found is None or found[1] < newest:  # an older one is a remainder of a tail that was cut off
            break
        if position == stopped_at:
            raise StartError(
                f"{segment.path} has no record at offset {position} of the log, but one at {found[0]}: check the store "
                "first (gantrymq store check)"
            )
        stopped_at = position  # a running broker may have added both meanwhile: read once more
    return min(position, run.end), max(newest, state.checkpoint.log_timestamp)


def _read_log(env: Env, root: str, run: Segments, offset: int, size: int) -> bytes:
    """The bytes of the log, with zeros for unreadable blocks in quarantined ranges, which no reader of the restored log
    reads. :class:`StartError` if another block cannot be read."""
    try:
        return run.pread(offset, size)
    except OSError:
        _check_unreadable(env, root, run, offset, size)
        segment = run.at(offset)
        return b"" if segment is None else read_around(segment, offset - segment.base, size)


def _check_unreadable(env: Env, root: str, run: Segments, offset: int, size: int) -> None:
    """:class:`StartError` if a block of the log that is not quarantined cannot be read."""
    segment = run.at(offset)
    if segment is None:
        return
    ranges = _quarantined(env, root, run)
    for start, data, error in read_blocks(segment, offset - segment.base, size):
        at = segment.base + start
        if error is not None and not any(first <= at and at + len(data) <= last for first, last in ranges):
            raise StartError(
                f"{segment.path} cannot be read at offset {at} of the log ({error.strerror}): restore the last backup "
                "or promote a slave; or stop the broker and let it skip what is damaged (gantrymq store check "
                "--quarantine), then back up again"
            )


def _is_same(env: Env, root: str, run: Segments, last: Piece, target: Target) -> bool:
    """Whether the log still has the bytes of ``last``, the last piece of a backup."""
    data = _read_log(env, root, run, last.offset, last.size)
    if hashlib.sha256(data).hexdigest() == last.sha256:
        return True
    segment = run.at(last.offset)
    if segment is None:
        return False
    start = last.offset - segment.base
    blocks = list(read_blocks(segment, start, last.size))
    if all(error is None for _, _, error in blocks):
        return False
    stored = target.read(last.name, last.size)  # blocks may have become unreadable after it was stored
    return all(error or stored[at - start : at - start + len(found)] == found for at, found, error in blocks)


def _continued(
    env: Env, root: str, run: Segments, before: Manifest | None, target: Target, start: int, end: int
) -> list[Piece]:
    """The pieces of the last backup that this one needs too."""
    if before is None or not before.log:
        return []
    last = before.log[-1]
    at = max(last.offset, start)
    same = before.file_bytes == run.file_bytes and before.end <= end
    if same and at == last.offset:
        same = _is_same(env, root, run, last, target)
    if not same:
        raise StartError(
            f"the log is not the continuation of the last backup ({before.name}): it was cut or replaced; back up to"
            " another place, or copy the whole log again (--full)"
        )
    kept = [piece for piece in before.log if piece.offset + piece.size > start]
    # Retention deletes whole files, and no piece crosses the end of a file.
    return kept if kept and kept[0].offset == start else []


def _check_present(target: Target, kept: list[Piece]) -> None:
    """Refuse to build on a backup whose objects are gone: the new one could not be restored either."""
    present = set(target.names("log")) if kept else set()
    missing = [piece.name for piece in kept if piece.name.removeprefix("log/") not in present]
    if missing:
        raise StartError(
            f"{len(missing)} objects of the last backup are missing, the first is {missing[0]}: copy the whole log"
            " again (--full)"
        )


def _store_object(run: _Registered, data: bytes, offset: int) -> Piece:
    digest = hashlib.sha256(data).hexdigest()
    name = f"log/{offset:020d}-{digest[:16]}-{run.name}"
    run.write(name, data)
    return Piece(name, len(data), digest, offset)


def _drop_old(target: Target, keep: int, run: _Registered) -> bool:
    """Delete old backups, then the objects that no backup needs; False if another run does not allow the latter.

    The module's text explains the order.
    """
    names = list_backups(target)
    for name in names[: max(len(names) - keep, 0)]:
        target.delete(f"backups/{name}.json")
    return _reclaim(target, run, objects=True)


def _reclaim(target: Target, run: _Registered, *, objects: bool) -> bool:
    """Delete what killed runs began to write, and the ``objects`` that no backup needs; False if another run does not
    allow it."""
    found = [f"{folder}/{name}" for folder in ("log", "state", "backups") for name in target.parts(folder)]
    if objects:
        found += [f"{folder}/{name}" for folder in ("log", "state") for name in target.names(folder)]
    if found and run.others():
        return False
    needed = _needed_objects(target) if objects else ()
    for name in found:
        if name not in needed:
            target.delete(name)
    return True


def _needed_objects(target: Target) -> set[str]:
    while True:
        needed: set[str] = set()
        try:
            for name in list_backups(target):
                manifest = read_manifest(target, name)
                needed |= {piece.name for piece in (*manifest.log, *manifest.state)}
            return needed
        except FileNotFoundError:
            continue  # a run that started meanwhile deleted it; a newer manifest, not yet listed, has its objects
