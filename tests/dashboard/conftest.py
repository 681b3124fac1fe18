"""A cluster whose broker serves the dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.attempts import shared_or_new
from support.dashboard import Site, started_site


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A dashboard that everybody may use: the module's, and a new one for the second attempt of a test."""
    yield from shared_or_new(request, "shared_site", lambda: started_site(tmp_path_factory.mktemp("cluster")))


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started_site(tmp_path_factory.mktemp("cluster")) as site:
        yield site
