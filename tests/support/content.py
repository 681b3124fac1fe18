"""Messages derived from a seed and an index, so that a program in another language can make the same ones.

The Java and Go programs in ``tests/interop`` implement the same rules, so change them together.
"""

from __future__ import annotations

import hashlib

import attrs

TAGS = ("TagA", "TagB", "TagC", "标签")
SIZES = (10, 100, 1000, 5000, 64, 333)
"""Body sizes in bytes, in turn; 5000 is above the size from which the Java client compresses."""


@attrs.frozen
class Content:
    """One message: its body, tag, keys (joined by spaces, as they travel) and user properties."""

    body: bytes
    tags: str
    keys: str
    properties: dict[str, str]

    @property
    def sha256(self) -> str:
        """The body's digest in hex."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def all_properties(self) -> dict[str, str]:
        """The user properties with TAGS and KEYS."""
        return {**self.properties, "TAGS": self.tags, "KEYS": self.keys}


def content(seed: int, index: int) -> Content:
    """The message number ``index`` of ``seed``."""
    start = f"{seed}-{index}|".encode()
    size = max(SIZES[index % len(SIZES)], len(start))
    rest = bytes((seed * 131 + index * 31 + at * 7 + (at >> 8)) & 0xFF for at in range(len(start), size))
    keys = f"key-{seed}-{index}" + (f" third-{index}" if index % 3 == 0 else "")
    properties = {"index": str(index), "greeting": "grüße 世界 😀"}
    if index % 5 == 0:
        properties["long"] = "x" * 200
    return Content(start + rest, TAGS[index % len(TAGS)], keys, properties)
