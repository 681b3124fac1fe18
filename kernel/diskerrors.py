"""What a disk refuses, told so that a user knows what to do. :mod:`gantrymq.kernel.env` has these names too."""

from __future__ import annotations

import errno

from gantrymq.kernel.errors import StartError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that go away when there is room again: a full disk, a quota, a limit on the size of files."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class StoreInUse(StartError):
    """Another broker holds the lock of this store."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the store is in use: another broker holds {path}. Stop that broker, or give this one a data folder of "
            "its own"
        )


class StoreNotWritable(StartError):
    """The store's folder, or a file in it, cannot be written by this user."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {error.strerror}. Give the broker's user the right to write there, or choose "
            "another data folder"
        )


class NoRoom(StartError):
    """The disk, or the process, has no room for a file that the store needs; it can be tried again when there is."""

    def __init__(self, path: str, error: OSError) -> None:
        remedy = (
            "Raise the limit of open files (ulimit -n)"
            if error.errno in NO_DESCRIPTORS
            else "Free some space on that disk"
        )
        super().__init__(f"no room for {path}: {error.strerror}. {remedy}; a running broker goes on by itself")


def blame(path: str, error: OSError) -> StartError:
    """The error that tells a user what to do about ``error``, which happened to ``path``."""
    if error.errno in NO_ROOM:
        return NoRoom(path, error)
    if error.errno in _NOT_ALLOWED:
        return StoreNotWritable(path, error)
    return StartError(f"the store at {path} cannot be used: {error}. Look after the disk, then start the broker again")
