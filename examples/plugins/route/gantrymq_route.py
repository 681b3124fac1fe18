"""Copies or moves messages to other topics by rules.

Slot: none. Hooks: config_section, configure, register_processors, before_append. Files: none.
Config ``[plugin.route]``: ``queues`` of new targets; ``rules``, each of the form ``ACTION TOPIC [PROPERTY=VALUE]
TARGET``. The action is ``copy`` or ``move``. The first ``move`` that matches ends the search; every ``copy`` before it
is made::

    [plugin.route]
    rules = ["copy orders audit", "move orders TAGS=urgent urgent-orders"]

A message is routed when consumers can read it: a delayed one when it is due, a transaction's when it is committed. A
copy is stored before the message, so an acknowledged message has its copy. A message that is delivered again by a
retry is not routed again. The sender of a moved message is answered with its offset in the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.config.fields import number
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.record import PREPARED_BIT
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.properties import find_property

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config

log = structlog.get_logger("gantrymq.route")


@attrs.frozen
class RouteConfig:
    """``[plugin.route]``."""

    rules: tuple[str, ...] = ()
    queues: int = number(4, 1, 64)


@attrs.frozen
class Rule:
    """One rule. ``name`` and ``value``: the property that a message must have; empty for all messages of the topic."""

    is_move: bool
    topic: str
    name: bytes
    value: bytes
    target: str

    def matches(self, properties: bytes) -> bool:
        """Whether a message of the topic with these properties (encoded) is meant."""
        return not self.name or find_property(properties, self.name) == self.value


class RoutePlugin:
    """One object per broker."""

    name = "route"
    version = "1.0.0"
    sources = (Source.CLIENT, Source.DELAY, Source.TIMER, Source.TRANSACTION)
    """Not Source.PLUGIN: copies are not routed again."""

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "route", RouteConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the rules; the broker refuses to start with a wrong one."""
        section = config.section(RouteConfig)
        self._broker = broker
        self._queues = section.queues
        self._rules: dict[str, list[Rule]] = {}
        for text in section.rules:
            rule = read_rule(text)
            self._rules.setdefault(rule.topic, []).append(rule)
        self._targets: dict[str, int] = {}

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Any]:
        """No processor: from here on the table of topics is there, and the targets are made."""
        topics = broker.registry.get(TopicTable)
        for rules in self._rules.values():
            for rule in rules:
                wanted = TopicConfig(rule.target, self._queues, self._queues)
                self._targets[rule.target] = topics.ensure(wanted).write_queue_nums
        return {}

    @hookimpl(trylast=True)
    def before_append(self, batch: AppendBatch) -> None:
        """Last, so that a message that waits for its time or its commit has another topic, or the bit of half messages
        (the transaction strategy ``state_table``), and is left alone."""
        copies = AppendBatch(done=_report)
        for row in batch.live:
            if batch.sys_flags[row] & PREPARED_BIT:
                continue
            topic, queue_id = batch.queue_of(row)
            for rule in self._rules.get(topic, ()):
                if not rule.matches(batch.properties[row]):
                    continue
                target_queue = queue_id % self._targets[rule.target]
                if rule.is_move:
                    batch.topics[row] = rule.target
                    batch.queue_ids[row] = target_queue
                    break
                copies.add(
                    rule.target,
                    target_queue,
                    batch.bodies[row],
                    batch.properties[row],
                    flag=batch.flags[row],
                    sys_flag=batch.sys_flags[row] & ~TransactionState.ROLLBACK,  # a copy is not part of the transaction
                    born_timestamp=batch.born_timestamps[row],
                    born_host=batch.born_hosts[row],
                    wait=False,
                )
        if len(copies):
            self._broker.append(copies)


def read_rule(text: str) -> Rule:
    """The rule of this text; ``StartError`` says what is wrong with it."""
    words = text.split()
    if len(words) not in (3, 4) or words[0] not in ("copy", "move"):
        raise StartError(
            f"plugin.route.rules: {text!r}: write 'copy' or 'move', TOPIC, PROPERTY=VALUE or nothing, TARGET"
        )
    action, topic, *condition, target = words
    name, separator, value = condition[0].partition("=") if condition else ("", "=", "")
    if not separator or bool(condition) != bool(name):
        raise StartError(f"plugin.route.rules: {text!r}: the condition {condition[0]!r} is not PROPERTY=VALUE")
    if topic == target:
        raise StartError(f"plugin.route.rules: {text!r}: topic and target are the same")
    return Rule(action == "move", topic, name.encode(), value.encode(), target)


def _report(batch: AppendBatch) -> None:
    """A copy that could not be stored is in the log; its message is stored all the same."""
    for row, status in enumerate(batch.statuses):
        if status in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT):
            continue
        log.error("copy_not_stored", topic=batch.topics[row], code=int(status), reason=batch.remarks.get(row, ""))
