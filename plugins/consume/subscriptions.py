"""The filter of a pull: the one that it carries, or the one from its group's heartbeats."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from gantrymq.kernel.filters import CodeFilter, FilterCompiler, FilterSteps, MessageFilter
from gantrymq.plugins.interfaces import ConsumerGroups
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.rare_warnings import RareWarnings

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig

SUBSCRIPTION = 4
"""Bit of a pull's sys flag: the pull carries its expression."""

FILTERS_KEPT = 1024
CHARACTERS_KEPT = 524_288
"""The most cached compiled expressions, and their most characters: a client can send another expression with every
pull, and a long expression should not be compiled for every pull."""
CHARACTERS_IN_USE = 4 * 1_048_576
"""The most characters of compiled expressions that held pulls keep in memory, at about 30 bytes each. Beyond it, pulls
with more than :data:`CODES_FREE` tags or with SQL92 are not held."""
CODES_FREE = 64

log = structlog.get_logger("gantrymq.consume")


class _Released:
    """The filter of answered pulls, which keeps no expression in memory."""

    matches_all = False

    def matches(self, tag_code: int) -> bool:
        """Return False: nothing matches."""
        return False


RELEASED: Final[MessageFilter] = _Released()


KEPT_FOR_OWNER_S: Final = 5.0
"""How long a compiled expression waits for its pull before others are compiled."""


class NotCompiled(Exception):
    """The expression takes long to compile: the pull must be repeated."""


@attrs.define(eq=False)
class _Compilation:
    """An expression that is compiled in steps, for a pull of ``owner``; ``found`` or ``fault`` is the result."""

    key: tuple[str, str]
    owner: Connection
    steps: FilterSteps
    found: MessageFilter | None = None
    fault: RemoteFault | None = None
    done_at: float | None = None


class Subscriptions:
    """The filters of pulls, with a cache of compiled expressions.

    A long expression is compiled in steps, one expression at a time: connections that send such expressions share the
    time, and half-compiled expressions do not fill the memory. Its pull is repeated until it is compiled.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._consumers = broker.registry.get(ConsumerGroups)
        self._compiled: OrderedDict[tuple[str, str], MessageFilter] = OrderedDict()
        self._characters = 0
        self._in_use = 0
        self._clock = broker.env.monotonic
        self._warnings = RareWarnings(self._clock)
        self._current: _Compilation | None = None

    def may_hold(self, wanted: MessageFilter) -> bool:
        """Return whether a pull with this filter may wait: those with expressions of their own must not fill the
        memory."""
        if self._in_use <= CHARACTERS_IN_USE:
            return True
        return isinstance(wanted, CodeFilter) and len(wanted.codes) <= CODES_FREE

    def filter_of(
        self,
        group: str,
        config: SubscriptionGroupConfig,
        topic: str,
        expression: str | None,
        kind: str | None,
        version: int,
        sys_flag: int,
        owner: Connection | None = None,
    ) -> MessageFilter:
        """Return the filter of a pull with these header fields; ``RemoteFault`` if there is none.

        ``config``: the configuration of ``group``. :class:`NotCompiled` if compiling takes long, until :meth:`work` has
        compiled the expression; compiling begins only for an ``owner``, the connection of the pull.
        """
        if sys_flag & SUBSCRIPTION:
            return self._compile(group, topic, kind or "TAG", expression or "*", owner)
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
            return self._compile(group, topic, "TAG", "*", owner)
        kind, expression = subscription.expression_type or "TAG", subscription.sub_string or "*"
        return self._compile(group, topic, kind, expression, owner)

    def work(self, until: float) -> None:
        """Continue compiling the current expression, up to a time on the broker's clock or until it is compiled."""
        current = self._current
        if current is None or current.done_at is not None:
            return
        try:
            while True:
                next(current.steps)
                if self._clock() >= until:
                    return
        except StopIteration as done:
            current.found = done.value
        except RemoteFault as fault:
            current.fault = fault
        current.done_at = self._clock()

    def _compile(self, group: str, topic: str, kind: str, expression: str, owner: Connection | None) -> MessageFilter:
        key = (kind, expression)
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
            return found
        try:
            found = self._compile_now(key, owner)
        except RemoteFault as fault:
            if owner is not None:
                self._log_refusal(group, topic, kind, expression, fault)
            raise
        weakref.finalize(found, self._forget, len(expression)).atexit = False
        self._in_use += len(expression)
        self._compiled[key] = found
        self._characters += len(expression)
        while len(self._compiled) > FILTERS_KEPT or self._characters > CHARACTERS_KEPT:
            (_, oldest), _ = self._compiled.popitem(last=False)
            self._characters -= len(oldest)
        return found

    def _compile_now(self, key: tuple[str, str], owner: Connection | None) -> MessageFilter:
        """Return the filter if it is compiled or compiles quickly. Otherwise its compilation begins when it is
        its turn.

        Without an ``owner`` no compilation begins, and no result is taken.
        """
        current = self._current
        if current is not None and current.key == key:
            if current.done_at is None or owner is None:
                raise NotCompiled
            self._current = None
            if current.fault is not None:
                raise current.fault
            assert current.found is not None
            return current.found
        if owner is None and key[0] != "TAG":  # only tags may take no time
            raise NotCompiled
        made = self._compiler(key[0])(key[1])
        if not isinstance(made, Generator):
            return made
        if owner is not None and (current is None or self._is_forsaken(current)):
            self._current = _Compilation(key, owner, made)
        raise NotCompiled

    def _is_forsaken(self, current: _Compilation) -> bool:
        """Return whether no pull waits for the expression that is being compiled."""
        if current.owner.closed or current.owner.peer_left:
            return True
        return current.done_at is not None and self._clock() - current.done_at > KEPT_FOR_OWNER_S

    def _compiler(self, kind: str) -> FilterCompiler:
        compiler = self._broker.filters.get(kind)
        if compiler is None:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind[:100]}"
            )
        return compiler

    def _forget(self, characters: int) -> None:
        """Subtract the characters of an expression that is no longer cached or used by a held pull."""
        self._in_use -= characters

    def _log_refusal(self, group: str, topic: str, kind: str, expression: str, fault: RemoteFault) -> None:
        """Log the refusal once an hour for each group, whose clients pull repeatedly and get no messages."""
        if not self._warnings.is_due(group):
            return
        log.warning(
            "subscription_refused", group=group, topic=topic, expression_type=kind[:200], characters=len(expression),
            expression=expression[:200], reason=fault.remark,
        )  # fmt: skip
