"""Administrators list connected clients with their roles and subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.remoting.bodies.clients import (
    ConsumerConnections,
    ConsumerData,
    GroupSubscription,
    HeartbeatData,
    ProducerConnections,
    ProducerData,
    ProducerTable,
    SubscriptionData,
)


@pytest.fixture
def broker(make_broker: Any) -> Any:
    return make_broker("topics", "clients")


@pytest.fixture
def peer(broker: Any, connect: Any) -> Any:
    connection = connect()
    data = HeartbeatData(
        "c1",
        [ProducerData("senders")],
        [ConsumerData("readers", subscription_data_set=[SubscriptionData.for_tags("orders", "red")])],
    )
    assert broker.ask(34, body=data.to_bytes(), connection=connection).code == 0
    return connection


def test_consumers_are_listed_with_their_clients_and_subscriptions(broker: Any, peer: Any) -> None:
    answer = broker.ask(203, {"consumerGroup": "readers"})
    found = ConsumerConnections.from_bytes(answer.body)
    (client,) = found.connection_set
    assert (client.client_id, client.client_addr, client.language) == ("c1", peer.address, "PYTHON")
    assert client.version > 0
    assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found.subscription_table["orders"].tags_set == {"red"}


def test_a_group_without_members_is_an_error(broker: Any) -> None:
    offline = broker.ask(203, {"consumerGroup": "readers"})
    assert (offline.code, offline.remark) == (206, "the consumer group[readers] not online")
    unknown = broker.ask(204, {"producerGroup": "senders"})
    assert (unknown.code, unknown.remark) == (1, "the producer group[senders] not exist")


def test_an_administrator_disconnects_a_client(broker: Any, peer: Any, connect: Any) -> None:
    other = connect()
    data = HeartbeatData("c2", [ProducerData("senders")], [ConsumerData("readers")])
    assert broker.ask(34, body=data.to_bytes(), connection=other).code == 0
    for client_id, closed in (("c3", "0"), ("c1", "1"), ("c1", "0")):
        answer = broker.ask(47005, {"clientID": client_id})
        assert (answer.code, answer.ext) == (0, {"closed": closed}), client_id
    assert (peer.closed, other.closed) == (True, False)
    (client,) = ConsumerConnections.from_bytes(broker.ask(203, {"consumerGroup": "readers"}).body).connection_set
    assert client.client_id == "c2"
    assert [info.client_id for info in ProducerTable.from_bytes(broker.ask(328).body).data["senders"]] == ["c2"]


def test_producers_by_group_and_all(broker: Any, peer: Any) -> None:
    (client,) = ProducerConnections.from_bytes(broker.ask(204, {"producerGroup": "senders"}).body).connection_set
    assert (client.client_id, client.client_addr) == ("c1", peer.address)
    table = ProducerTable.from_bytes(broker.ask(328).body).data
    (info,) = table["senders"]
    assert (info.client_id, info.remote_ip) == ("c1", f"/{peer.address}")
    assert info.last_update_timestamp == broker.env.wall_ms()


def test_the_subscription_of_a_group(broker: Any, peer: Any) -> None:
    known = GroupSubscription.from_bytes(broker.ask(345, {"group": "readers", "topic": "orders"}).body)
    assert known.subscription_data is not None
    assert known.subscription_data.sub_string == "red"
    other = GroupSubscription.from_bytes(broker.ask(345, {"group": "nobody", "topic": "orders"}).body)
    assert other == GroupSubscription("nobody", "orders", None)


@pytest.mark.parametrize("code", [203, 204, 345])
def test_a_request_without_its_fields_is_refused(broker: Any, code: int) -> None:
    assert broker.ask(code).code == 1
