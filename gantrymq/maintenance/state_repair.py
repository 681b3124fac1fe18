"""Carry out what the findings in state files propose: files move to ``lost+found``, then contents are replaced.

Each step is atomic, and a repair that was killed is repeated: the next check finds what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from gantrymq.kernel.env import Env
from gantrymq.kernel.stopped_store import FileFinding


@attrs.define
class StateRepair:
    """Files that moved, and files that were written; paths are relative to the store."""

    moved: list[str] = attrs.field(factory=list)
    written: list[str] = attrs.field(factory=list)


def repair_state(env: Env, root: str, findings: Iterable[FileFinding], move: Callable[[str], str]) -> StateRepair:
    """Repair ``findings``; ``move`` moves a path of the store to ``lost+found`` and returns the new one."""
    done = StateRepair()
    moved: set[str] = set()
    written: set[str] = set()
    for finding in findings:
        if finding.change is None:
            continue
        for path in finding.change.moves:
            if path not in moved and env.exists(f"{root}/{path}"):
                done.moved.append(move(f"{root}/{path}"))
            moved.add(path)
        for path, content in finding.change.contents.items():
            if path in written:
                continue  # findings in one file share its corrected content
            written.add(path)
            env.replace(f"{root}/{path}", content)
            done.written.append(path)
            if "/" not in path and env.exists(f"{root}/{path}.bak"):
                done.moved.append(move(f"{root}/{path}.bak"))  # only files in config/ have one
    return done
