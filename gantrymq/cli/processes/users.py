"""Compares the files of users of a unit's brokers: a change at one broker does not reach the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from gantrymq.cli.loading import Loaded
from gantrymq.cli.processes.layout import Layout

PLACE: Final = ("plugin.acl", "users")
SHOWN_MAX: Final = 10
"""The most names in a warning."""

log = structlog.get_logger("gantrymq.processes")


def warn_of_other_users(loaded: Loaded, layout: Layout) -> None:
    """Log ``users_not_copied`` for each broker whose users or policies are not those of broker 0, or that lacks a user
    of the configured file, which a single broker had there."""
    configured = next((str(row.value) for row in loaded.config.explain() if (row.section, row.key) == PLACE), "")
    if not configured:
        return
    files = {member.name: Path(member.settings[".".join(PLACE)]) for member in layout.members}
    first, single = next(iter(files.values())), Path(configured)
    of_first, of_single = _users_in(first), _users_in(single) or {}
    for name, file in files.items():
        users = _users_in(file)
        if users is None:
            continue
        source, differing = single, of_single.keys() - users.keys()
        if of_first and users != of_first:
            source = first
            differing = {user for user in {*of_first, *users} if of_first.get(user) != users.get(user)}
        if differing:
            log.warning(
                "users_not_copied", process=name, file=str(file), source=str(source),
                users=sorted(differing)[:SHOWN_MAX], number=len(differing),
            )  # fmt: skip


def _users_in(file: Path) -> dict[str, Any] | None:
    """Password, type, status and policies by user; empty without a file, None if it cannot be read: a broker that
    starts with it gives the reason."""
    from gantrymq.plugins.acl.users import SUBJECT_PREFIX, UserDocument

    try:
        document = UserDocument.parse(file.read_bytes() if file.exists() else b"")
    except (OSError, ValueError):
        return None
    found: dict[str, Any] = {}
    for name, user in document.users.items():
        acl = document.acls.get(SUBJECT_PREFIX + name)
        policies = (acl.policies if acl is not None else None) or ()
        entries = {msgspec.json.encode((each.policy_type, row)) for each in policies for row in each.entries or ()}
        found[name] = (user, entries)
    return found
