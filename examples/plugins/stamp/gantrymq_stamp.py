"""Stamps a property on every message of some topics, and counts what the broker dispatches of them.

Slot: none. Hooks: config_section, configure, before_append, dispatch, load_state, save_state, stopping.
Config ``[plugin.stamp]``: topics, name, value. Files: the state that the kernel keeps, ``config/plugins/stamp.state``.

Enable it by its entry point (the package being installed) or as module:attr (the folder being on PYTHONPATH)::

    [plugins]
    enable = ["stamp"]                       # or "gantrymq_stamp:StampPlugin"

    [plugin.stamp]
    topics = ["orders"]
    name = "region"
    value = "eu-1"
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import filled
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.record import PREPARED_BIT
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES, decode_properties, encode_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch, DispatchBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.plugin_state import SavedState

log = structlog.get_logger("gantrymq.stamp")


@attrs.frozen
class StampConfig:
    """``[plugin.stamp]``: the broker refuses to start with a wrong key or type, and names it."""

    topics: tuple[str, ...] = ()
    name: str = filled("stamped-by")
    value: str = filled("gantrymq-stamp")


class StampPlugin:
    """The broker creates one object, and calls a hook once for all messages of a turn."""

    name = "stamp"
    version = "1.0.0"

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "stamp", StampConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the section; refuse wrong values before the store is open."""
        section = config.section(StampConfig)
        if "\x01" in section.name + section.value or "\x02" in section.name + section.value:
            raise StartError("plugin.stamp: name and value may not contain \\x01 and \\x02, which separate properties")
        self._name = section.name
        self._value = section.value
        self._topics = frozenset(section.topics)

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        """Add the property; refuse a message that has no space for it."""
        topics = batch.topics
        for row in batch.live:
            if topics[row] in self._topics:
                properties = decode_properties(batch.properties[row].decode("utf-8", "surrogateescape"))
                properties[self._name] = self._value
                encoded = encode_properties(properties).encode("utf-8", "surrogateescape")
                if len(encoded) > PROPERTIES_MAX_BYTES:
                    batch.refuse(
                        row, ResponseCode.MESSAGE_ILLEGAL, "no room for the stamp: the properties are too long"
                    )
                else:
                    batch.properties[row] = encoded

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """Count committed messages, without half messages and rollbacks; with :meth:`save_state` each counts once."""
        for topic, sys_flag in zip(batch.topics, batch.sys_flags, strict=True):
            if topic in self._topics and not sys_flag & PREPARED_BIT:
                self.counts[topic] = self.counts.get(topic, 0) + 1

    @hookimpl
    def load_state(self, state: SavedState) -> None:
        """Take the counts of the last run; ``dispatch`` gets the messages since then."""
        if state.missing is not None:
            log.warning("not_counted", start=state.missing[0], end=state.missing[1])
        self.counts = {} if state.data is None else json.loads(state.data)

    @hookimpl
    def save_state(self) -> bytes:
        """Return the counts; the kernel stores them with their log offset."""
        return json.dumps(self.counts).encode()

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Log the counts while the broker drains."""
        log.info("stamped", counts=self.counts, total=sum(self.counts.values()))
