"""The plugin in a real broker, seen through clients that sign their requests and one that does not."""

import pytest
import trio
from gantrymq_signed import SignedPlugin

import gantrymq
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SendMessageHeader
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


def test_a_reader_cannot_store_a_message_as_a_reply(plugin_broker, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("".join(f"{name} {secret}\n" for name, secret in SECRETS.items()))
    running = plugin_broker(SignedPlugin, settings={"plugin.signed.keys": str(keys), "plugin.signed.readers": "bob"})
    header = SendMessageHeader(
        producer_group="repliers", topic="orders", default_topic="TBW102", default_topic_queue_nums=1, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="CLUSTER\x01DefaultCluster",
    )  # fmt: skip
    reply = Command(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext(), b"forged")

    async def send_reply():
        async with gantrymq.connect(running.cluster.nameserver, **credentials("bob")) as client:
            await client.admin.request(running.address, reply)

    with pytest.raises(gantrymq.BrokerError, match="'bob' may not send"):
        trio.run(send_reply)
