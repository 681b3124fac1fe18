"""The example ``encrypt`` keeps the rules for plugins that change bodies."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gantrymq.testing import transformkit
from gantrymq.testing.fixtures import StartPluginBroker

pytest.importorskip("cryptography", reason="the example needs it: pip install cryptography")
pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(120)]

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "encrypt"


@pytest.mark.parametrize("rule", transformkit.RULES, ids=lambda rule: rule.__name__)
def test_each_body_is_encrypted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin_broker: StartPluginBroker, rule: transformkit.Rule
) -> None:
    monkeypatch.syspath_prepend(str(SOURCE))
    file = tmp_path / "keys.txt"
    file.write_text(f"1 {base64.b64encode(bytes(32)).decode()}\n")
    settings = {"plugin.encrypt.keys": str(file), "plugin.encrypt.topics": "orders"}
    rule(plugin_broker, transformkit.Transform("gantrymq_encrypt:EncryptPlugin", settings))
