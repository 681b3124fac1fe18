"""Section ``[plugin.acl]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from gantrymq.kernel.config.fields import duration, filled
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, Place
from gantrymq.kernel.env import environment

FILE = "conf/plain_acl.yml"
"""RocketMQ's place of the file, below its home."""


def _read_switch(properties: Mapping[str, str]) -> dict[Place, str]:
    if properties["aclEnable"].lower() != "true":
        return {}
    home = properties.get("rocketmqHome") or environment("ROCKETMQ_HOME")
    return {("plugin.acl", "file"): f"{home}/{FILE}" if home else FILE}


def _write_switch(_section: AclConfig) -> dict[str, str]:
    return {"aclEnable": "true"}


@attrs.frozen(kw_only=True)
class AclConfig:
    """The file of the accounts."""

    broker_conf_groups: ClassVar = (KeyGroup(("aclEnable",), _read_switch, _write_switch),)

    file: str = filled(FILE)
    """RocketMQ's ``plain_acl.yml``, from the working directory. Requests 50, 51 and 53 change it."""
    interval: float = duration("5s", minimum="100ms", maximum="1h")
    """How often the broker looks for changes of the file."""
    keys: str = ""
    """RocketMQ's ``conf/tools.yml``: ``accessKey`` and ``secretKey`` with which this broker signs its own requests to
    nameservers and other brokers. Empty: it does not sign."""
    codes: dict[str, str] = attrs.field(factory=dict)
    """Rights for request codes of other plugins: ``admin``, ``send``, ``read``, ``topic``, ``consume`` or ``group``."""
