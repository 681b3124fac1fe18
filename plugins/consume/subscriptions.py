"""Which filter a pull means: the one it brings along, or what its group's heartbeats said."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gantrymq.kernel.filters import MessageFilter
from gantrymq.kernel.services import ConsumerGroups
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.remoting.bodies import SubscriptionGroupConfig

SUBSCRIPTION = 4
"""Bit of a pull's sys flag: it brings its expression along."""

FILTERS_KEPT = 1024
CHARACTERS_KEPT = 524_288
"""Compiled expressions that are kept, and how long all of them may be: a client may send another one with every pull,
and who filters by a long one must not have it read with every pull."""


class Subscriptions:
    """The filters of pulls; their compiled expressions are kept."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._consumers = broker.services.get(ConsumerGroups)
        self._compiled: OrderedDict[tuple[str, str], MessageFilter] = OrderedDict()
        self._characters = 0

    def filter_of(
        self,
        group: str,
        config: SubscriptionGroupConfig,
        topic: str,
        expression: str | None,
        kind: str | None,
        version: int,
        sys_flag: int,
    ) -> MessageFilter:
        """The filter of a pull with these header fields; ``RemoteFault`` when there is none.

        ``config`` is what was set up for ``group``.
        """
        if sys_flag & SUBSCRIPTION:
            return self._compile(kind or "TAG", expression or "*")
        model = self._consumers.message_model(group)
        if model is None:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if model == "BROADCASTING" and not config.consume_broadcast_enable:
            raise RemoteFault(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way"
            )
        subscription = self._consumers.subscription(group, topic)
        if subscription is None:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < version:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.class_filter_mode:
            return self._compile("TAG", "*")
        return self._compile(subscription.expression_type or "TAG", subscription.sub_string or "*")

    def _compile(self, kind: str, expression: str) -> MessageFilter:
        key = (kind, expression)
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
            return found
        compiler = self._broker.filters.get(kind)
        if compiler is None:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        found = compiler(expression)
        self._compiled[key] = found
        self._characters += len(expression)
        while len(self._compiled) > FILTERS_KEPT or self._characters > CHARACTERS_KEPT:
            (_, oldest), _ = self._compiled.popitem(last=False)
            self._characters -= len(oldest)
        return found
