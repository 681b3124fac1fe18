"""The KV config and its file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gantrymq.nameserver import kv as kv_module
from gantrymq.nameserver.kv import KVConfig
from gantrymq.remoting.errors import RemoteFault


def test_values_are_kept_by_namespace_and_key() -> None:
    kv = KVConfig()
    assert kv.get("n", "k") is None
    assert kv.namespace("n") is None
    kv.put("n", "k", "v")
    kv.put("n", "k", "w")
    kv.put("m", "k", "x")
    assert kv.get("n", "k") == "w"
    assert kv.namespace("n") == {"k": "w"}
    kv.delete("n", "k")
    kv.delete("n", "k")
    kv.delete("unknown", "k")
    assert kv.get("n", "k") is None
    assert kv.namespace("n") == {}
    assert kv.get("m", "k") == "x"


def test_the_file_is_read_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KVConfig(path)
    kv.put("ORDER_TOPIC_CONFIG", "T\u00e4", "broker-a:4")
    assert json.loads(path.read_bytes()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T\u00e4": "broker-a:4"}}}
    assert KVConfig(path).get("ORDER_TOPIC_CONFIG", "T\u00e4") == "broker-a:4"
    kv.delete("ORDER_TOPIC_CONFIG", "T\u00e4")
    assert KVConfig(path).namespace("ORDER_TOPIC_CONFIG") == {}
    assert os.listdir(path.parent) == ["kvConfig.json"]


def test_files_of_the_java_nameserver_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"NS":{"K":"V"\n\t\t}\n\t}\n}')
    assert KVConfig(path).get("NS", "K") == "V"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"configTable":{"n":5}}', b"\xff"])
def test_a_damaged_file_is_named_and_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"kvConfig\.json: KVConfigFile"):
        KVConfig(path)
    assert path.read_bytes() == content


def test_a_change_that_cannot_be_written_is_refused_and_not_visible(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path)
    kv.put("n", "k", "v")
    (tmp_path / "kvConfig.json.new").mkdir()  # the file beside cannot be opened
    with pytest.raises(RemoteFault, match="cannot be written") as caught:
        kv.put("n", "k", "w")
    assert caught.value.code == 1
    assert kv.get("n", "k") == "v"
    assert KVConfig(path).get("n", "k") == "v"


def test_the_table_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "ENTRIES_MAX", 2)
    kv = KVConfig()
    kv.put("n", "a", "1")
    kv.put("m", "b", "2")
    with pytest.raises(RemoteFault, match="2 entries"):
        kv.put("n", "c", "3")
    kv.put("n", "a", "4")
    assert kv.get("n", "a") == "4"


def test_keys_values_and_empty_namespaces_share_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "CHARACTERS_MAX", 20)
    kv = KVConfig()
    kv.put("n", "k", "v" * 10)
    with pytest.raises(RemoteFault, match="20 characters"):
        kv.put("n", "l", "v" * 10)
    kv.delete("n", "k")
    kv.put("m" * 15, "k", "v")
    kv.delete("m" * 15, "k")
    with pytest.raises(RemoteFault, match="20 characters"):
        kv.put("o" * 15, "k", "v")
    kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"
