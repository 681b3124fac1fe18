"""A cluster whose broker serves the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gantrymq.sync import connect
from gantrymq.testing.harness import cluster_in_thread
from support.attempts import shared_or_new
from support.dashboard import PLUGIN, Site, address_of


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A dashboard that everybody may use: the module's, and a new one for the second attempt of a test."""
    yield from shared_or_new(request, "shared_site", lambda: started_site(tmp_path_factory.mktemp("cluster")))


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started_site(tmp_path_factory.mktemp("cluster")) as site:
        yield site


@contextmanager
def started_site(folder: Path) -> Iterator[Site]:
    settings = {"plugin.dashboard.listen": "127.0.0.1:0"}
    with cluster_in_thread(folder, settings=settings, enable=[PLUGIN]) as cluster:
        with connect(cluster.nameserver) as client:
            yield Site(address_of(cluster), cluster, client)
