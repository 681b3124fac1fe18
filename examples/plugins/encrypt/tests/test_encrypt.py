"""The plugin in a real broker, seen through a client and in the broker's files."""

import base64

import pytest
from gantrymq_encrypt import EncryptPlugin

from gantrymq.kernel.errors import StartError

SECRET = b"plain text must not be on the disk"


def line(name):
    return f"{name} {base64.b64encode(name.encode() * 32).decode()}\n"


def settings(path, current, *names):
    path.write_text("".join(map(line, names)))
    return {"plugin.encrypt.keys": str(path), "plugin.encrypt.current": current}


def bodies(client, topic, count):
    with client.consumer(topic, "readers", start="first") as consumer:
        return sorted(next(consumer).body for _ in range(count))


def test_bodies_are_encrypted_in_the_files_and_clear_for_consumers(plugin_broker, tmp_path):
    keys = tmp_path / "keys.txt"
    running = plugin_broker(EncryptPlugin, settings=settings(keys, "1", "1"))
    with running.client.producer() as producer:
        producer.send("orders", SECRET + b"1")
    running.restart(settings=settings(keys, "2", "1", "2"))
    with running.client.producer() as producer:
        producer.send("orders", SECRET + b"2")
    assert bodies(running.client, "orders", 2) == [SECRET + b"1", SECRET + b"2"]
    running.stop()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.stat().st_size for path in files)
    assert not any(SECRET in path.read_bytes() for path in files)


def test_a_missing_key_refuses_the_start(plugin_broker, tmp_path):
    with pytest.raises(StartError, match=r"plugin\.encrypt"):
        plugin_broker(EncryptPlugin, settings=settings(tmp_path / "keys.txt", "2", "1"))
