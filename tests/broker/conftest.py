"""Fixtures: one nameserver and one broker in a thread for all tests of a module, and their log lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.rawpeer import RawPeer

FAULTS_OF_OURS = {"processor_failed", "request_failed", "connection_failed", "task_failed", "persist_failed"}
"""Log events of unexpected exceptions in our code."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = dict.fromkeys(
        ("plugin.clients.max_groups", "plugin.topics.max_topics", "plugin.topics.max_groups"), "200"
    )
    with cluster_in_thread(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


@pytest.fixture(params=["broker", "nameserver"])
def target(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """The address of either server."""
    return cluster.address if request.param == "broker" else cluster.nameserver


@pytest.fixture
def bystander(cluster: Cluster) -> Iterator[RawPeer]:
    """An honest connection to the broker that must not notice anything."""
    with RawPeer(cluster.address) as peer:
        assert peer.is_served()
        yield peer
        assert peer.is_served()


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """Every line that the servers log during a test; none of them may tell of a fault of ours."""
    with structlog.testing.capture_logs() as lines:
        yield lines
    assert [line for line in lines if line["event"] in FAULTS_OF_OURS] == []
