"""Sizes in the format of administrators' tools."""

from __future__ import annotations

from gantrymq.plugins.admin.brokers import human_bytes


def test_sizes_have_rocketmqs_format() -> None:
    sizes = [0, 1023, 1024, 1536, 1024**2, 252 * 1024**3, 1024**6 * 3]
    assert [human_bytes(size) for size in sizes] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "252.0 GiB", "3.0 EiB",
    ]  # fmt: skip
