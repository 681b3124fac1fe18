"""A real file system on a loop device, for tests of what disks do: lose their power, or a block.

Needs the right to mount, and the tools of e2fsprogs and util-linux.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BLOCK: Final = 4096
BLOCKS: Final = 6144
DIRECT_BLOCKS: Final = 12
"""The number of blocks of a file without extents whose positions are in the inode itself."""
PLAIN: Final = "^extent,^has_journal,^metadata_csum,^64bit,^flex_bg"
"""Features of a file system whose files' blocks can be moved by hand."""
JOURNALED: Final = "extent,has_journal"
TOOLS: Final = ("mkfs.ext4", "losetup", "debugfs", "mount", "umount")
_SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN, and its flag by which not even the journal is written (EXT4_GOING_FLAGS_NOLOGFLUSH)."""
_NOTHING_MORE: Final = struct.pack("I", 2)


class NoLoopDisk(Exception):
    """This machine or user cannot have such a disk; the text has the reason."""


class LoopDisk:
    """A file system of ``blocks`` blocks of 4 KiB, mounted at ``folder`` from :meth:`mount` on."""

    def __init__(self, home: Path, name: str = "disk", *, features: str = PLAIN, blocks: int = BLOCKS) -> None:
        for tool in TOOLS:
            if shutil.which(tool) is None:
                raise NoLoopDisk(f"{tool} is missing; install e2fsprogs and util-linux")
        self.image, self.folder = home / f"{name}.image", home / name
        self.folder.mkdir()
        self._blocks = blocks
        self._spoiled = 0
        with self.image.open("wb") as file:
            file.truncate(BLOCK * blocks)
        _run("mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-O", features, str(self.image))
        try:
            self.device = _run("losetup", "-f", "--show", str(self.image)).strip()
        except subprocess.CalledProcessError as error:
            raise NoLoopDisk(f"this user may have no loop device: {error.stderr.strip()}") from None

    def mount(self) -> None:
        """Make the folder the file system's root; after a power cut its journal is replayed."""
        _run("mount", "-t", "ext4", self.device, str(self.folder))

    def unmount(self) -> None:
        """Unmount the file system, of which no file may be open."""
        _run("umount", str(self.folder))

    def cut_power(self) -> None:
        """Stop all writes to the disk, which keeps synced data and only a random part of the rest.

        Processes with open files get EIO. End them, :meth:`unmount` and :meth:`mount`.
        """
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, _NOTHING_MORE)
        finally:
            os.close(folder)

    def spoil(self, path: Path, block: int) -> None:
        """Let the disk no longer give this block of the file; nobody may have a file open. Needs :data:`PLAIN`."""
        if block >= DIRECT_BLOCKS:
            raise ValueError(f"block {block} of {path}: only the first {DIRECT_BLOCKS} can be moved")
        self._spoiled += 1
        name = "/" + str(path.relative_to(self.folder))
        beyond = self._blocks - self._spoiled
        self.unmount()
        _run("debugfs", "-w", "-R", f"set_inode_field {name} block[{block}] {beyond}", self.device)
        os.truncate(self.image, BLOCK * beyond)
        self.mount()
        with path.open("rb", buffering=0) as file:
            file.seek(block * BLOCK)
            try:
                file.read(1)
            except OSError:
                return
        raise AssertionError(f"{path} can be read at block {block}")

    def close(self) -> None:
        """Unmount it if need be, and give the device back."""
        subprocess.run(["umount", str(self.folder)], capture_output=True, check=False)
        _run("losetup", "-d", self.device)


@contextmanager
def loop_disk(home: Path, name: str = "disk", *, features: str = PLAIN, blocks: int = BLOCKS) -> Iterator[LoopDisk]:
    """A mounted one, until the end of the block."""
    disk = LoopDisk(home, name, features=features, blocks=blocks)
    try:
        try:
            disk.mount()
        except subprocess.CalledProcessError as error:
            raise NoLoopDisk(f"this user may not mount: {error.stderr.strip()}") from None
        yield disk
    finally:
        disk.close()


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout
