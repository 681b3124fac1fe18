"""The index's configuration."""

from __future__ import annotations

from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.plugins.index.config import IndexConfig


def test_rocketmq_s_names_of_a_file_s_shape_are_read() -> None:
    settings = read_settings("broker.conf", b"maxHashSlotNum=61\nmaxIndexNum=150\n")
    config = build_config(settings, load_plugins(DEFAULT_PLUGINS)).section(IndexConfig)
    assert (config.slots, config.entries) == (61, 150)


def test_the_defaults_are_rocketmq_s() -> None:
    assert (IndexConfig().slots, IndexConfig().entries) == (5_000_000, 20_000_000)
