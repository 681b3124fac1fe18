"""The store of a broker that does not run, as the hook ``check_files`` gets it: read its files, report what is wrong.

Only ``gantrymq store check`` uses it. Nothing here writes: a repair is a description, which the command carries out if
it is asked to (``gantrymq/maintenance/state_repair.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env, File

T = TypeVar("T")

SMALL_BYTES: Final = 64 * 1024 * 1024
"""No broker writes a larger state file; a larger one is not read into memory."""


@attrs.frozen
class FileChange:
    """What a repair does with files of the store; paths are relative to its folder.

    First ``moves`` go to ``lost+found``, then ``contents`` are written, each atomically. An interrupted repair is
    repeated from its start.
    """

    moves: tuple[str, ...] = ()
    contents: Mapping[str, bytes] = MappingProxyType({})


@attrs.frozen
class FileFinding:
    """What a check found in a file. ``path``: relative to the store's folder.

    ``problem``: what is wrong; ``meaning``: what follows from it; ``repair``: what ``--repair`` does, empty for
    nothing. ``is_damage``: False for what the next start corrects by itself, or what has no effect.
    """

    path: str
    problem: str
    meaning: str
    repair: str = ""
    is_damage: bool = True
    change: FileChange | None = None


@attrs.define
class StoppedStore:
    """A store that no broker uses. Offsets of the log are bytes; paths are relative to the store's folder.

    ``is_clean``: the last broker stopped cleanly. ``is_foreign``: RocketMQ's broker wrote it last. ``log_start``,
    ``log_end``: the readable log; ``newest_ms``: the highest store time of its messages, 0 without messages.
    ``queue_ends``: by topic and queue id, the offset behind the last entry.
    """

    env: Env
    root: str
    is_clean: bool
    is_foreign: bool
    log_start: int = 0
    log_end: int = 0
    newest_ms: int = 0
    queue_ends: Mapping[tuple[str, int], int] = attrs.field(factory=dict)
    findings: list[FileFinding] = attrs.field(factory=list)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        return self.env.exists(f"{self.root}/{path}")

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty if it is missing or no folder."""
        place = f"{self.root}/{folder}"
        return self.env.listdir(place) if self.env.is_dir(place) else []

    def open(self, path: str) -> File:
        """Open a file for reading. :class:`OSError` if it is missing, no file, or a symbolic link."""
        return self.env.open(f"{self.root}/{path}")

    def read(self, path: str) -> bytes:
        """Return the content of a state file. ``ValueError`` for a file of more than 64 MiB, :class:`OSError`."""
        file = self.open(path)
        try:
            size = file.size()
            if size > SMALL_BYTES:
                raise ValueError(f"it has {size} bytes; no broker writes more than {SMALL_BYTES}")
            return file.pread(size, 0)
        finally:
            file.close()

    def damaged(
        self,
        path: str,
        problem: str,
        meaning: str,
        repair: str = "",
        *,
        moves: Sequence[str] = (),
        contents: Mapping[str, bytes] | None = None,
    ) -> None:
        """Report damage, and what a repair does: it moves the files ``moves`` to ``lost+found``, then writes
        ``contents`` by path."""
        change = FileChange(tuple(moves), contents or {}) if moves or contents else None
        self.findings.append(FileFinding(path, problem, meaning, repair, True, change))

    def note(self, path: str, problem: str, meaning: str) -> None:
        """Report what is unusual but no damage: the next start corrects it, or it has no effect."""
        self.findings.append(FileFinding(path, problem, meaning, is_damage=False))

    def read_table(self, path: str, decode: Callable[[bytes], T], lost: str) -> T | None:
        """Read a state file that the broker replaces atomically and keeps as ``.bak``, and check both.

        ``decode`` raises ``ValueError``, or ``RemoteFault``, for a damaged file. ``lost``: what is lost if neither can
        be read, for the report. Returns the table that the next start uses; None if there is none.
        """
        backup = f"{path}.bak"
        has_main, main, problem = self._try(path, decode)
        has_backup, older, backup_problem = self._try(backup, decode)
        if not has_main and not has_backup:
            return None
        if has_main and not problem:
            if backup_problem:
                self.damaged(
                    backup, backup_problem, f"no broker reads it while {path} is intact", "moves it to lost+found",
                    moves=[backup],
                )  # fmt: skip
            return main
        if has_backup and not backup_problem:
            content = self.read(backup)
            self.damaged(
                path, problem or "it is missing", f"the next start uses {backup}, which is one write older",
                f"{'moves it to lost+found and ' if has_main else ''}copies {backup} to it",
                moves=[path] if has_main else [], contents={path: content},
            )  # fmt: skip
            return older
        there = [name for name, is_there in ((path, has_main), (backup, has_backup)) if is_there]
        self.damaged(
            path, problem or f"it is missing, and {backup}: {backup_problem}",
            f"no broker starts with it and no {'intact ' if has_backup else ''}{backup} is there; lost: {lost}",
            f"moves {' and '.join(there)} to lost+found; the next start begins with an empty table", moves=there,
        )  # fmt: skip
        return None

    def _try(self, path: str, decode: Callable[[bytes], T]) -> tuple[bool, T | None, str]:
        """Whether the file is there, its table, and what is wrong with it."""
        if not self.exists(path):
            return False, None, ""
        try:
            return True, decode(self.read(path)), ""
        except RemoteFault as fault:
            return True, None, f"it cannot be read: {fault.remark}"
        except OSError as error:
            return True, None, f"it cannot be read: {error.strerror or error}"
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return True, None, f"it cannot be read: {error}"
