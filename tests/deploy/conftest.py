"""Fixture: the image, shared by several test files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.foreign import ToolMissing
from support.images import Image, find_image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image of the shipped Dockerfile; one for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    try:
        return find_image(Path(folder) / "image")
    except ToolMissing as missing:
        pytest.skip(str(missing))
