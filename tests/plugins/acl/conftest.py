"""Fixtures: a broker with accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.testing.harness import make_broker
from support.accounts import ACCOUNTS, ACL, MakeBroker


@pytest.fixture
def accounts_file(tmp_path: Path) -> Path:
    return tmp_path / "plain_acl.yml"


@pytest.fixture
def guarded(tmp_path: Path, accounts_file: Path) -> MakeBroker:
    def make(text: str = ACCOUNTS, **settings: str) -> Broker:
        accounts_file.write_text(text)
        given = {"plugin.acl.file": str(accounts_file), "plugin.acl.interval": "100ms"}
        given |= {name.replace("__", "."): value for name, value in settings.items()}
        return make_broker(tmp_path / "store", settings=given, enable=[ACL])

    return make
