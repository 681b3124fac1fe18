"""The page cache is filled before each start of a system."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MIB = 2**20


def test_a_filled_page_cache_has_the_pages_of_a_file_without_blocks(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_cache = load("page_cache")
    monkeypatch.setattr(page_cache, "memory_bytes", lambda field: page_cache.LEFT_BYTES + 64 * MIB)
    file = (tmp_path / "pages").open("w+b")
    monkeypatch.setattr(page_cache.tempfile, "TemporaryFile", lambda **_: file)
    with page_cache.filler() as fill:
        assert fill() == 64 * MIB
        assert fill() == 64 * MIB
        buffer = bytearray(4096)
        assert os.preadv(file.fileno(), [buffer], 64 * MIB - 4096, os.RWF_NOWAIT) == 4096  # without waiting: in memory
        assert Path(file.name).stat().st_blocks * 512 < MIB


def test_three_gibibytes_are_not_filled(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page_cache = load("page_cache")
    for available, expected in ((page_cache.LEFT_BYTES + 3 * MIB, 3 * MIB), (page_cache.LEFT_BYTES - 1, 0)):
        monkeypatch.setattr(page_cache, "memory_bytes", lambda field, available=available: available)
        with page_cache.filler() as fill:
            assert fill() == expected


def test_only_a_whole_run_fills_the_page_cache_without_being_asked(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench_run, arguments = load("bench_run"), load("arguments")
    filled: list[int] = []

    @contextmanager
    def filler() -> Any:
        yield lambda: filled.append(1) or 2**30

    monkeypatch.setattr(bench_run, "filler", filler)
    for words, expected in ((["--only", "none of them"], 0), (["--only", "none of them", "--fill"], 1)):
        run = bench_run.Run(arguments.read(words), [], [])
        run.measure()
        assert len(filled) == expected
        assert [line for line in run.report.notes if "page cache" in line] == (
            ["page cache filled with 1.0 GiB of another file before each start"] if expected else []
        )
