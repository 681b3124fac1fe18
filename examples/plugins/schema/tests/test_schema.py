"""The plugin in a real broker, seen through a client."""

import json

import pytest
from gantrymq_schema import SchemaPlugin

import gantrymq
from gantrymq.kernel.errors import StartError
from gantrymq.remoting.codes import ResponseCode

SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 1}},
    "required": ["count"],
}


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "orders.json"
    path.write_text(json.dumps(SCHEMA))
    return {"plugin.schema.files": f"orders={path}", "plugin.schema.max_body": "16 KiB"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no json", "not JSON that can be read"),
        (b"\xff\xfe\xff", "not JSON that can be read"),
        (b"[" * 10_000, "not JSON that can be read"),
        (b"{}", "must contain \\['count'\\] properties"),
        (b'{"count": 0}', "data.count must be bigger than or equal to 1"),
        (b'{"count": "' + b"x" * 1000 + b'"}', "data.count must be integer"),
        (b'"' + bytes(range(65, 91)) * 700 + b'"', "can be checked|not JSON that can be read"),
    ],
)
def test_a_body_that_breaks_the_schema_is_refused_and_affects_no_other(plugin_broker, settings, body, says):
    client = plugin_broker(SchemaPlugin, settings=settings).client
    with client.producer() as producer:
        with pytest.raises(gantrymq.BrokerError, match=says):
            producer.send("orders", body)
        producer.send("orders", b'{"count": 3}')
        producer.send("others", body)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "NaN", "1" + "0" * 400])
def test_a_number_that_the_validator_cannot_compute_with_is_refused(plugin_broker, tmp_path, number):
    path = tmp_path / "orders.json"
    path.write_text(json.dumps({"properties": {"price": {"multipleOf": 0.01}}}))
    client = plugin_broker(SchemaPlugin, settings={"plugin.schema.files": f"orders={path}"}).client
    with client.producer() as producer:
        with pytest.raises(gantrymq.BrokerError) as refused:
            producer.send("orders", b'{"price": %b}' % number.encode())
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
        producer.send("orders", b'{"price": 1.25}')


def test_compressed_and_delayed_bodies_are_checked_too(plugin_broker, settings):
    client = plugin_broker(SchemaPlugin, settings=settings).client
    long = json.dumps({"count": 1, "text": "x" * 8000}).encode()
    with client.producer() as producer:
        producer.send("orders", long)
        with pytest.raises(gantrymq.BrokerError, match="must contain"):
            producer.send("orders", long.replace(b"count", b"amount"))
        with pytest.raises(gantrymq.BrokerError, match="must contain"):
            producer.send(gantrymq.Message("orders", b"{}", delay_level=1))
    with client.consumer("orders", "readers", start="first") as consumer:
        assert next(consumer).body == long


def test_a_schema_that_cannot_be_used_refuses_the_start(plugin_broker, tmp_path):
    path = tmp_path / "bad.json"
    for content in (None, "no json", '{"type": "nonsense"}'):
        if content is not None:
            path.write_text(content)
        with pytest.raises(StartError, match="of 'orders' cannot be used"):
            plugin_broker(SchemaPlugin, settings={"plugin.schema.files": f"orders={path}"})
