"""The plugin in a real broker, seen through clients that sign their requests and one that does not."""

import pytest
from gantrymq_signed import SignedPlugin

import gantrymq
from gantrymq.sync import connect

SECRETS = {"alice": "secret-of-alice", "bob": "secret-of-bob"}


def credentials(name, secret=None):
    return {"access_key": name, "secret_key": secret or SECRETS[name]}


def test_requests_of_known_keys_are_taken_and_a_reader_cannot_send(plugin_broker, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("".join(f"{name} {secret}\n" for name, secret in SECRETS.items()))
    running = plugin_broker(SignedPlugin, settings={"plugin.signed.keys": str(keys), "plugin.signed.readers": "bob"})
    nameserver = running.cluster.nameserver
    with connect(nameserver, **credentials("alice")) as client:
        client.admin.create_topic("orders")
        with client.producer() as producer:
            producer.send("orders", b"signed")
    for wrong in (credentials("alice", "a guess"), credentials("bob"), {}):
        with (
            connect(nameserver, **wrong) as client,
            client.producer() as producer,
            pytest.raises(gantrymq.BrokerError, match=r"not signed by a key|'bob' may not send"),
        ):
            producer.send("orders", b"refused")
    with (
        connect(nameserver, **credentials("bob")) as client,
        client.consumer("orders", "readers", start="first") as consumer,
    ):
        assert next(consumer).body == b"signed"
