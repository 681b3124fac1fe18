"""The CRC of the compiled twins equals zlib's for any length and alignment, with either implementation."""

from __future__ import annotations

import random
import zlib

import pytest

pytestmark = pytest.mark.once  # it runs both twins

compiled = pytest.importorskip("gantrymq.kernel.fast._records", reason="the extension is not built")

needs_folding = pytest.mark.skipif(not compiled.FOLDS, reason="this processor has no carry-less multiplication")
WAYS = pytest.mark.parametrize("folds", [pytest.param(True, marks=needs_folding, id="folded"), False])


@WAYS
def test_the_crc_is_right_for_every_length_and_alignment(folds: bool) -> None:
    text = memoryview(random.Random(7).randbytes(700))
    for size in range(601):
        for start in (0, 1, 5, 16, 63):
            part = text[start : start + size]
            assert compiled.body_crc(part, folds) == zlib.crc32(part), (size, start)


@WAYS
@pytest.mark.parametrize("byte", [0, 0xFF])
def test_the_crc_is_right_for_long_uniform_data(folds: bool, byte: int) -> None:
    for size in (4096, 65_537, 1_000_003):
        text = bytes([byte]) * size
        assert compiled.body_crc(text, folds) == zlib.crc32(text)


@WAYS
def test_every_single_bit_changes_the_crc(folds: bool) -> None:
    text = bytearray(160)
    expected = compiled.body_crc(text, folds)
    for bit in range(8 * len(text)):
        text[bit // 8] ^= 1 << bit % 8
        assert compiled.body_crc(text, folds) != expected
        text[bit // 8] ^= 1 << bit % 8
