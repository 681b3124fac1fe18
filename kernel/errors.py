"""Errors for users and plugins, including those of disk and log: each says what is wrong and what to do."""

from __future__ import annotations

import errno


class StartError(Exception):
    """The broker cannot start as it is configured; the text names what is wrong and the remedy."""


class PluginError(Exception):
    """A plugin raised where only a refusal is allowed: a bug that stops the broker, named by plugin, hook and place."""


class TaskFailed(Exception):
    """A background task of a plugin raised: the broker stops cleanly. Named by plugin, task and place."""


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that end when space is available again: a full disk, a quota, a limit on the size of files."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class StoreInUse(StartError):
    """Another broker holds the lock of this store."""

    def __init__(self, path: str, process: int = 0) -> None:
        """``process``: the id of the process that holds ``path``; 0 if it is not known."""
        self.process = process
        holder = f" (process {process})" if process else ""
        super().__init__(
            f"the store is in use: another broker{holder} holds {path}. Stop that broker, or give this one a data "
            "folder of its own"
        )


class LockNotRegular(StartError):
    """The store's lock is a pipe, a folder, a link or another file that cannot be locked."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is not a regular file, so nobody can lock the store. Remove it; a broker creates the lock again"
        )


class StoreNotWritable(StartError):
    """The store's folder, or a file in it, cannot be written by this user."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {error.strerror}. Give the broker's user the right to write there, or choose "
            "another data folder"
        )


class NoRoom(StartError):
    """The disk, or the process, has no space for a file that the store needs; retry when there is space."""

    def __init__(self, path: str, error: OSError) -> None:
        remedy = (
            "Raise the limit of open files (ulimit -n)"
            if error.errno in NO_DESCRIPTORS
            else "Free some space on that disk"
        )
        super().__init__(f"no room for {path}: {error.strerror}. {remedy}; a running broker resumes by itself")


def blame(path: str, error: OSError) -> StartError:
    """Return the error for users about ``error`` on ``path``, with the remedy."""
    if error.errno in NO_ROOM:
        return NoRoom(path, error)
    if error.errno in _NOT_ALLOWED:
        return StoreNotWritable(path, error)
    return StartError(f"the store at {path} cannot be used: {error}. Check the disk, then start the broker again")


class LogPoisoned(Exception):
    """The disk failed under the log: nothing more may be written or acknowledged; the broker must stop."""


class OutOfLog(ValueError):
    """The requested range lies before the first file, behind the end, or across the end of a file."""


class CorruptRange(Exception):
    """The requested bytes are quarantined: they were acknowledged once and are damaged now."""


class UnreadableRange(CorruptRange):
    """The disk cannot read the requested bytes now. ``offset``: where they begin; ``reason``: its error; ``errno``: the
    error's number, or 0."""

    def __init__(self, offset: int, size: int, reason: str, errno: int = 0) -> None:
        super().__init__(f"{size} bytes at {offset}: the disk cannot read them: {reason}")
        self.offset = offset
        self.reason = reason
        self.errno = errno

    def raise_if_temporary(self) -> None:
        """Raise :class:`OSError` if the process has no file descriptor left: nothing is lost, and can be read later."""
        if self.errno in NO_DESCRIPTORS:
            raise OSError(self.errno, self.reason) from self
