"""Back up a store while its broker runs, and restore it.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Final

import attrs

from gantrymq.kernel.env import Env, File
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.fast import Stop
from gantrymq.kernel.store.log.record import TOPIC_PATTERN
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import Segments, read_around, read_blocks
from gantrymq.kernel.store.queues.table import TagCodeRule
from gantrymq.kernel.store.recovery.checkpoint import MarkFiles, Marks
from gantrymq.kernel.store.recovery.quarantine import QuarantineList
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.kernel.store.store import RESTORING, UNFINISHED_RESTORE, StoreConfig
from gantrymq.maintenance.backup_targets import Target
from gantrymq.maintenance.store_files import (
    UNIT,
    FileProblem,
    OpenedFiles,
    QueueEnd,
    find_queues,
    is_queue_id,
    log_runs,
    queue_ends,
    read_state,
)
from gantrymq.maintenance.store_repair import build_queues, queue_units

VERSION: Final = 1
OBJECT_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of the log in one object."""
STATE_MAX_BYTES: Final = 256 * 1024 * 1024
"""A larger state file is refused: brokers write none of this size."""
MANIFEST_MAX_BYTES: Final = 256 * 1024 * 1024
_DERIVED: Final = frozenset(
    {"lock", "abort", "checkpoint", "gantrymq.watermark", "gantrymq.index", "gantrymq.reserve", "gantrymq.transaction",
     "timerwheel", RESTORING}
)  # fmt: skip
"""Files that describe others, which a restore or the next start builds again. ``config/timercheck`` stays: with it and
without the timer's log, the broker rebuilds the timer from its queue and delivers nothing twice."""
_ROWS: Final = 4096
_QUEUE_END_MAX: Final = 2**63 // UNIT
_OBJECT: Final = re.compile(r"(log/\d{20}-[0-9a-f]{16}|state/[0-9a-f]{64})(-[0-9a-f]{8})?")
"""The names of objects; a manifest comes from outside and must not name files elsewhere."""


RUNNING: Final = "running"
"""The folder in which backups that run are registered."""
REFRESH_MS: Final = 60_000
"""How often a run renews its registration, at least after each object."""
DEAD_AFTER_MS: Final = 3_600_000
"""A run whose registration is older was killed. The clocks of two machines may differ by less."""
_RUN: Final = re.compile(r"[0-9a-f]{8}")
_TIME: Final = re.compile(rb"[0-9]{13}")
"""A time in ms in a registration, which has 13 digits until the year 2286; a part of it has fewer."""


class BadBackup(StartError):
    """The backup is incomplete, or its bytes are not those that were written."""


@attrs.frozen
class Piece:
    """An object. ``offset``: its place in the log; -1 for a state file, which has a ``path`` in the store instead."""

    name: str
    size: int
    sha256: str
    offset: int = -1
    path: str = ""


@attrs.frozen
class Manifest:
    """One backup. Offsets and sizes are bytes of the log, times ms since 1970.

    ``queues``: where the queues ended.
    """

    created: int
    file_bytes: int
    queue_units: int
    start: int
    end: int
    last_timestamp: int
    log: tuple[Piece, ...]
    state: tuple[Piece, ...]
    run: str = ""
    queues: tuple[QueueEnd, ...] = ()

    @property
    def name(self) -> str:
        """The name of the backup; names are in the order of their times."""
        return f"{self.created:014d}-{self.run}" if self.run else f"{self.created:014d}"

    def encode(self) -> bytes:
        """The manifest's object."""
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, indent=1).encode()


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


def decode_manifest(data: bytes) -> Manifest:
    """:class:`BadBackup` for anything that is not a manifest of this version."""
    try:
        tree = json.loads(data)
        if tree.pop("version") != VERSION:
            raise ValueError("another version")
        tree["log"] = tuple(Piece(**piece) for piece in tree["log"])
        tree["state"] = tuple(Piece(**piece) for piece in tree["state"])
        tree["queues"] = tuple(_queue_end(*each) for each in tree.get("queues", ()))
        found = Manifest(**tree)
        position = found.start
        for piece in found.log:
            if piece.offset != position or piece.size <= 0:
                raise ValueError(f"the log has no piece at {position}")
            position += piece.size
        if position != found.end or found.file_bytes <= 0 or found.queue_units <= 0:
            raise ValueError(f"the log ends at {position}, not at {found.end}")
        if not isinstance(found.created, int) or (found.run and not _RUN.fullmatch(found.run)):
            raise ValueError(f"its name {found.created}-{found.run} is not that of a backup")
        for piece in found.state:
            if not _is_state(piece.path):
                raise ValueError(f"{piece.path!r} is no state file")
        for piece in (*found.log, *found.state):
            if not _OBJECT.fullmatch(piece.name):
                raise ValueError(f"{piece.name!r} is no object of a backup")
            if not 0 <= piece.size <= (OBJECT_BYTES if piece.offset >= 0 else STATE_MAX_BYTES):
                raise ValueError(f"{piece.name} cannot have {piece.size} bytes")
        return found
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadBackup(f"not a backup that this version can read: {error}") from None


def _queue_end(topic: str, queue_id: int, end: int) -> QueueEnd:
    if not TOPIC_PATTERN.fullmatch(topic) or not is_queue_id(str(queue_id)) or not 0 < end < _QUEUE_END_MAX:
        raise ValueError(f"{topic!r} can have no queue {queue_id} that ends at {end}")
    return topic, queue_id, int(end)


def list_backups(target: Target) -> list[str]:
    """The names of the complete backups, oldest first."""
    return [name.removesuffix(".json") for name in target.names("backups") if name.endswith(".json")]


def read_backup(target: Target, name: str | None = None) -> Manifest:
    """The manifest of a backup, by default the newest. :class:`BadBackup` if there is none, or it is too large."""
    while True:
        names = list_backups(target)
        if not names or (name is not None and name not in names):
            wanted = "no backup" if name is None else f"no backup {name}"
            raise BadBackup(f"there is {wanted} here; complete backups: {', '.join(names) or 'none'}")
        try:
            return _read_manifest(target, name or names[-1])
        except FileNotFoundError:
            continue  # a run deleted it after it was listed


def _read_manifest(target: Target, name: str) -> Manifest:
    data = target.read(f"backups/{name}.json", MANIFEST_MAX_BYTES)
    if len(data) > MANIFEST_MAX_BYTES:
        raise BadBackup(f"the manifest has more than {MANIFEST_MAX_BYTES} bytes, so no broker's backup wrote it")
    return decode_manifest(data)


# ------------------------------------------------------------------------------------------------------------- backup


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

    :class:`StartError` if ``root`` is not a store, its log has gaps, or it is not the continuation of the last backup;
    :class:`OSError` if reading or writing fails. Then the earlier backups remain valid.
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
    state = list(_store_state(env, root, target, before, registered))
    queues = _find_ends(env, root)
    with ExitStack() as stack:
        run = _open_log(env, root, stack)
        start, end, newest = run.start, *_find_end(env, root, run)
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


def _store_state(
    env: Env, root: str, target: Target, before: Manifest | None, run: _Registered
) -> Iterator[tuple[Piece, int]]:
    """Each state file's object, and how many bytes were copied: none if the last backup has the same content."""
    known = {} if before is None else {piece.sha256: piece.name for piece in before.state}
    if known:
        present = {f"state/{name}" for name in target.names("state")}
        known = {digest: name for digest, name in known.items() if name in present}
    for path in _state_files(env, root):
        try:
            data = env.read_bytes(f"{root}/{path}")
        except FileNotFoundError:
            continue  # brokers replace their files
        if len(data) > STATE_MAX_BYTES:
            raise StartError(f"{root}/{path} has {len(data)} bytes, which no state file has: move it out of the store")
        digest = hashlib.sha256(data).hexdigest()
        copied = 0
        if digest not in known:
            known[digest] = f"state/{digest}-{run.name}"
            run.write(known[digest], data)
            copied = len(data)
        yield Piece(known[digest], len(data), digest, path=path), copied


def _find_ends(env: Env, root: str) -> tuple[QueueEnd, ...]:
    files = OpenedFiles(env)
    try:
        queues, _ = find_queues(env, root, files)
        return tuple(queue_ends(queues.values()))
    finally:
        files.close()


def _state_files(env: Env, root: str, folder: str = "") -> Iterator[str]:
    for name in env.listdir(f"{root}/{folder}" if folder else root):
        path = f"{folder}/{name}" if folder else name
        if env.is_dir(f"{root}/{path}"):
            if path == "config" or folder:
                yield from _state_files(env, root, path)
        elif _is_state(path) and not name.endswith(".tmp"):
            yield path


def _is_state(path: str) -> bool:
    parts = path.split("/")
    return (parts[0] == "config" or len(parts) == 1) and path not in _DERIVED and not {"", ".", ".."} & set(parts)


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


def _find_end(env: Env, root: str, run: Segments) -> tuple[int, int]:
    """The end of the log now, at least that of every acknowledged record, and the last record's time.

    The watermark is behind what was acknowledged, so the rest is read up to where no record begins. A store of
    RocketMQ's broker has no watermark: there, :class:`StartError` if intact records are behind what is no record.
    """
    state = read_state(env, root)
    ranges = QuarantineList(env, root).load()
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
    ranges = QuarantineList(env, root).load()
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
                manifest = _read_manifest(target, name)
                needed |= {piece.name for piece in (*manifest.log, *manifest.state)}
            return needed
        except FileNotFoundError:
            continue  # a run that started meanwhile deleted it; a newer manifest, not yet listed, has its objects


# ------------------------------------------------------------------------------------------------------------ restore


def restore(
    env: Env,
    target: Target,
    root: str,
    *,
    name: str | None = None,
    rules: Mapping[str, TagCodeRule] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Restore a backup, by default the newest, into the new or empty folder ``root``, and build its queues.

    The result is the store of a broker that stopped cleanly; GantryMQ and RocketMQ 4.9 open it. ``rules``: the rules
    for tag codes by topic. :class:`BadBackup` if bytes are missing or changed. After an error or a crash, brokers and
    ``store check`` refuse the folder.
    """
    manifest = read_backup(target, name)
    if env.exists(f"{root}/{RESTORING}"):
        raise StartError(UNFINISHED_RESTORE.format(root=root))
    if env.exists(root) and (not env.is_dir(root) or env.listdir(root)):
        raise StartError(f"{root} is not empty: restore into a new folder (--data)")
    env.mkdirs(root)
    # from here to the last queue, neither a broker nor a check takes the folder for a whole store
    env.open(f"{root}/{RESTORING}", create=True).close()
    env.sync_dir(root)
    env.mkdirs(f"{root}/commitlog")
    total = manifest.end - manifest.start
    file: File | None = None
    base = -1
    try:
        for piece in manifest.log:
            if piece.offset - piece.offset % manifest.file_bytes != base:
                _finish(file)
                base = piece.offset - piece.offset % manifest.file_bytes
                file = env.open(f"{root}/commitlog/{base:020d}", create=True)
                file.preallocate(manifest.file_bytes)
            assert file is not None  # opened for the first piece
            file.pwrite(_checked(target, piece), piece.offset - base)
            progress(piece.offset + piece.size - manifest.start, total)
    finally:
        _finish(file)
    env.sync_dir(f"{root}/commitlog")
    for piece in manifest.state:
        path = f"{root}/{piece.path}"
        env.mkdirs(path.rpartition("/")[0])
        env.replace(path, _checked(target, piece))
    if manifest.log:
        files = MarkFiles(env, root)
        try:
            files.save(Marks(manifest.end, manifest.start, 0, clean=False), manifest.last_timestamp, 0, 0)
            files.save_start(manifest.start)
        finally:
            files.close()
        env.open(f"{root}/abort", create=True).close()
        env.sync_dir(root)
    units, ends = manifest.queue_units, manifest.queues
    try:
        build_queues(env, root, manifest.end, rules or {}, units=units, is_restore=True, ends=ends)
    except StartError as error:
        raise BadBackup(str(error)) from None
    env.unlink(f"{root}/{RESTORING}")
    env.sync_dir(root)
    return manifest


def _finish(file: File | None) -> None:
    if file is not None:
        file.datasync()
        file.close()


def _checked(target: Target, piece: Piece) -> bytes:
    try:
        data = target.read(piece.name, piece.size)
    except FileNotFoundError:
        raise BadBackup(f"the object {piece.name} is missing") from None
    if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.sha256:
        raise BadBackup(f"the object {piece.name} does not have the bytes that were written")
    return data
