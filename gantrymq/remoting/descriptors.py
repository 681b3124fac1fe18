"""Limits of file descriptors: connections use one each, and files need some too."""

from __future__ import annotations

import sys

if sys.platform != "win32":  # Windows has no such limit
    import resource

OWN_DESCRIPTORS = 32
"""The number of descriptors that a server has open before its first client connects."""
DESCRIPTORS_WANTED = 1 << 20


def descriptors_allowed(share: int) -> int:
    """One ``share``-th of this process's descriptors, without those for the server itself; at least 1."""
    if sys.platform == "win32":
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(1, (soft - OWN_DESCRIPTORS) // share)


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its hard limit allows, up to a million; the usual 1024 are too few."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
