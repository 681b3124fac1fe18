"""Restore a backup into a new folder: the log and the state files are copied, the queues are built from the log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from gantrymq.kernel.env import Env, File
from gantrymq.kernel.errors import StartError, blame
from gantrymq.kernel.store.queues.table import TagCodeRule
from gantrymq.kernel.store.recovery.checkpoint import MarkFiles, Marks
from gantrymq.kernel.store.store import RESTORING, UNFINISHED_RESTORE
from gantrymq.maintenance.backup_manifest import BadBackup, Manifest, Piece, read_backup
from gantrymq.maintenance.backup_targets import Target
from gantrymq.maintenance.store_repair import build_queues


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
    if env.exists(root) and not _is_empty_folder(env, root):
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
                file = _create_log_file(env, root, manifest, base)
            assert file is not None  # opened for the first piece
            file.pwrite(_checked(target, piece), piece.offset - base)
            progress(piece.offset + piece.size - manifest.start, total)
        if manifest.end and not manifest.log:  # it is empty, but does not begin at 0
            file = _create_log_file(env, root, manifest, manifest.end - manifest.end % manifest.file_bytes)
    finally:
        _finish(file)
    env.sync_dir(f"{root}/commitlog")
    for piece in manifest.state:
        path = f"{root}/{piece.path}"
        env.mkdirs(path.rpartition("/")[0])
        env.replace(path, _checked(target, piece))
    if manifest.end:
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


def _is_empty_folder(env: Env, root: str) -> bool:
    """Also with an empty ``lost+found``, as at the root of a new ext4 disk. :class:`StartError` if it cannot be read:
    the store could not be opened there."""
    if not env.is_dir(root) or set(env.listdir(root)) - {"lost+found"}:
        return False
    lost = f"{root}/lost+found"
    try:
        return not env.listdir(lost)
    except OSError as error:
        raise blame(lost, error) from None


def _create_log_file(env: Env, root: str, manifest: Manifest, base: int) -> File:
    file = env.open(f"{root}/commitlog/{base:020d}", create=True)
    file.preallocate(manifest.file_bytes)
    return file


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
