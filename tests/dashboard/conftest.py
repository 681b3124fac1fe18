"""A cluster whose broker serves the dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gantrymq.sync import connect
from gantrymq.testing.harness import cluster_in_thread
from support.dashboard import PLUGIN, Site, address_of


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A dashboard that everybody may use."""
    settings = {"plugin.dashboard.listen": "127.0.0.1:0"}
    folder = tmp_path_factory.mktemp("cluster")
    with cluster_in_thread(folder, settings=settings, enable=[PLUGIN]) as cluster:
        with connect(cluster.nameserver) as client:
            yield Site(address_of(cluster), cluster, client)
