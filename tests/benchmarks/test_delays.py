"""The program ``delays.py`` fails when messages never arrive, instead of reporting a better figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_a_message_that_does_not_come_is_an_error(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    delays = load("delays")
    delivered = delays._delivered

    def drop_one(folder: Path, topic: str) -> Iterator[tuple[int, int]]:
        found = list(delivered(folder, topic))
        yield from found[1:] if topic == delays.LIVE else found

    monkeypatch.setattr(delays, "_delivered", drop_one)
    sizes = delays.Sizes(pending=100, rate=200, seconds=1, burst=100)
    with pytest.raises(RuntimeError, match=r"19 of 20 messages with times of 1 to 10 s came"):
        delays.measure("gantrymq", sizes, tmp_path)
