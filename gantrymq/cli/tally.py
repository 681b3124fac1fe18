"""Compare the messages that were sent with those that arrived, at 17 bytes per message."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

KEY_PREFIX = "line-"


class Tally:
    """Messages by their number from 1. ``count``: distinct messages, ``repeated``: further copies."""

    def __init__(self) -> None:
        self._digests = array("Q")
        self._seen = bytearray()
        self.count = 0
        self.repeated = 0
        self.unexpected = 0

    def note(self, number: int, tag: str | None, body: bytes) -> None:
        """Record one message."""
        missing = number + 1 - len(self._seen)
        if missing > 0:
            self._seen.extend(bytes(missing))
            self._digests.extend([0] * missing)
        if self._seen[number]:
            self.repeated += 1
            return
        self._seen[number] = 1
        self._digests[number] = digest(tag, body)
        self.count += 1

    def note_key(self, keys: Iterable[str], tag: str | None, body: bytes) -> None:
        """Record one message by the number in its key; a message without such a key is unexpected."""
        for key in keys:
            number = key.removeprefix(KEY_PREFIX)
            if key.startswith(KEY_PREFIX) and number.isascii() and number.isdigit() and len(number) <= 10:
                self.note(int(number), tag, body)
                return
        self.unexpected += 1

    def differences(self, wanted: Tally, verb: str) -> list[str]:
        """The differences from ``wanted``, one line each; empty if all messages arrived unchanged."""
        size = max(len(self._seen), len(wanted._seen))
        mine, theirs = self._padded(size), wanted._padded(size)
        lost = sum(1 for number in range(size) if theirs[0][number] and not mine[0][number])
        altered = sum(
            1
            for number in range(size)
            if theirs[0][number] and mine[0][number] and mine[1][number] != theirs[1][number]
        )
        extra = self.unexpected + sum(1 for number in range(size) if mine[0][number] and not theirs[0][number])
        found = (
            (lost, "are missing"),
            (altered, "are altered"),
            (extra, "were never sent"),
            (self.repeated, "came twice"),
        )
        return [f"{count} of {wanted.count} messages {verb} {what}" for count, what in found if count]

    def _padded(self, size: int) -> tuple[bytes, array[int]]:
        missing = size - len(self._seen)
        return bytes(self._seen) + bytes(missing), self._digests + array("Q", [0]) * missing


def digest(tag: str | None, body: bytes) -> int:
    """A 64-bit digest of tag and body."""
    value = blake2b(body, digest_size=8, key=(tag or "").encode()[:64])
    return int.from_bytes(value.digest(), "big")


def tally_parquet(folder: Path) -> Tally:
    """Record the rows of all Parquet files in ``folder``, by the columns keys, tags and body."""
    import pyarrow.parquet

    tally = Tally()
    for path in sorted(folder.rglob("*.parquet")):
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["keys", "tags", "body"]):
                for row in batch.to_pylist():
                    keys = row["keys"] or ""
                    tally.note_key(keys.split() if isinstance(keys, str) else keys, row["tags"], row["body"])
    return tally
