"""Samples of a cluster whose brokers do not respond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gantrymq
from gantrymq.operations.load import load_between, take_sample
from gantrymq.remoting.codes import RequestCode

pytestmark = pytest.mark.anyio


async def test_a_broker_that_does_not_respond_is_asked_for_nothing_more(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = lambda request: request.answer(1, "busy")
        sample = await take_sample(client)
        (row,) = load_between(sample, sample).brokers
        assert (row.state, row.stored_per_second) == ("unreachable", None)
        assert not cluster.broker.seen(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
