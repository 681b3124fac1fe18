"""Every parser of external bytes reads mutated recorded traffic, or refuses it with its declared error.

Ten thousand inputs for each target by default; ``GANTRYMQ_FUZZ_INPUTS=1000000 make fuzz`` is the long run, and
``GANTRYMQ_FUZZ_SEED`` another one. A failure prints the input.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest
from fuzz_targets import TARGETS

INPUTS = int(os.environ.get("GANTRYMQ_FUZZ_INPUTS", "10000"))
SEED = int(os.environ.get("GANTRYMQ_FUZZ_SEED", "1"))
SLOWEST_S = 2.0
"""The time limit of one input: a hundred times the longest measured here."""

INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TOKENS = (
    b"", b"\0", b"\x01", b"\x02", b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"-1", b"1e999",
    b"\\u0000", b"\\ud800", b"9" * 40, b"\xff\xfe", b"\xef\xbb\xbf", b"..", b"/", b"'", b"||", b" AND ", b"NOT ",
    b"(" * 9, b"{" * 99,
)  # fmt: skip


def mutations(corpus: tuple[bytes, ...], seed: str) -> Iterator[bytes]:
    """Endlessly: pieces cut, doubled, joined, swapped; bits, bytes and numbers changed; tokens put in."""
    chance = random.Random(seed)
    while True:
        data = bytearray(chance.choice(corpus))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
            at = chance.randrange(len(data) + 1)
            kind = chance.randrange(8)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 1 and at < len(data):
                data[at] = chance.randrange(256)
            elif kind == 2:
                number = (chance.choice(INTERESTING) + chance.randint(-1, 1)) & 0xFFFFFFFF
                data[at : at + 4] = number.to_bytes(4, "big")
            elif kind == 3:
                data[at : at + chance.randrange(9)] = chance.choice(TOKENS)
            elif kind == 4:
                del data[at : at + chance.randrange(1, 40)]
            elif kind == 5:
                data[at:at] = data[at : at + chance.randrange(1, 40)]
            elif kind == 6:
                data[at:] = chance.choice(corpus)[at:]
            else:
                del data[at:]
        yield bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_parsers_decode_any_bytes_or_raise_the_documented_error(name: str) -> None:
    target = TARGETS[name]
    read = 0
    inputs = mutations(target.corpus, f"{SEED} {name}")
    for whole in target.corpus:
        try:
            target.parse(whole)
        except target.errors:
            continue
        read += 1
    assert read, "the corpus has something that can be read"
    for _ in range(INPUTS):
        data = next(inputs)
        began = time.perf_counter()
        try:
            target.parse(data)
        except target.errors:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} for {data!r}") from error
        if time.perf_counter() - began > SLOWEST_S:
            raise AssertionError(f"{name}: more than {SLOWEST_S} s for {data!r}")
