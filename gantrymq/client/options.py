"""Options of consumers, workers and readers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, cast

import attrs

from gantrymq.client.allocation import NAMED, Allocation
from gantrymq.client.checks import check_group, check_topic
from gantrymq.client.errors import InvalidName
from gantrymq.client.serializers import Deserializer, DeserializerChoice, deserializer_of
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.names import retry_topic

PULL_BATCH_MESSAGES: Final = 512
"""Asked for at once by default; RocketMQ's clients ask for 32, which is what its brokers give at most. A request and
its answer cost as much as some dozens of small messages."""
PULL_BATCH_MAX: Final = 1024
PREFETCH_MAX: Final = 65_535
CONCURRENCY: Final = 16
CONCURRENCY_MAX: Final = 1000
DRAIN_SECONDS: Final = 30.0


@attrs.frozen
class Sql:
    """A subscription by the properties of messages: an SQL92 expression, such as ``price > 3 AND region = 'eu'``.

    The broker evaluates it; RocketMQ's does so with ``enablePropertyFilter=true``.
    """

    expression: str
    """The expression, at most 16,384 characters on GantryMQ's brokers."""


Topics = str | Iterable[str] | Mapping[str, str | Sql]
"""A topic, several, or a mapping of topics to what is wanted of each: tags, or :class:`Sql`."""

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=DeliveredRecord)

Start = Literal["first", "last"] | int | datetime
"""A place to begin at: the oldest message, the next one to come, or the first one stored at or after a time (a
datetime, or milliseconds since 1970)."""

QueuesChanged = Callable[[Sequence[MessageQueue]], Awaitable[Any] | Any]
"""Called with queues that a consumer has got, or is about to lose; a function or a coroutine function."""

Ordered = bool | Literal["key"]
"""Whether messages come one after another: those of each queue, or those of each order key."""

BadBodies = Literal["dead_letter", "retry"]
"""What a consumer does with a message whose body its deserializer cannot read."""

AllocationChoice = Allocation | Literal["average", "circle", "consistent_hash"]
"""How the members of a group share the queues: a strategy, or the name of one."""


class ConsumeOptions(TypedDict, total=False):
    """The options of :meth:`gantrymq.Client.consumer`, which describes them."""

    tags: str | Sql
    start: Start
    ordered: Ordered
    broadcast: bool
    max_retries: int | None
    pull_batch: int
    prefetch: int | None
    consume_timeout: float | timedelta | None
    allocation: AllocationChoice
    on_assigned: QueuesChanged | None
    on_revoked: QueuesChanged | None
    offsets_file: str | PathLike[str] | None
    bad_bodies: BadBodies


class WorkOptions(ConsumeOptions, total=False):
    """The options of :meth:`gantrymq.Client.run`, which describes them, and of :meth:`gantrymq.App.on`."""

    concurrency: int
    drain_timeout: float


class ReadOptions(TypedDict, total=False):
    """The options of :meth:`gantrymq.Client.reader`, which describes them."""

    group: str | None
    tags: str | Sql
    start: Start
    until: Literal["end"] | None
    pull_batch: int


_DEFAULTS: Final[Mapping[str, Any]] = {
    "tags": "*", "start": "last", "ordered": False, "broadcast": False, "max_retries": None,
    "pull_batch": PULL_BATCH_MESSAGES, "prefetch": None, "consume_timeout": None, "allocation": "average",
    "on_assigned": None, "on_revoked": None, "offsets_file": None, "bad_bodies": "dead_letter",
    "concurrency": CONCURRENCY, "drain_timeout": DRAIN_SECONDS,
}  # fmt: skip
_DEFAULTS_OF_READERS: Final[Mapping[str, Any]] = {
    "group": None, "tags": "*", "start": "first", "until": None, "pull_batch": PULL_BATCH_MESSAGES,
}  # fmt: skip
_OF_WORKERS: Final = ("concurrency", "drain_timeout")


def lists_options(function: F) -> F:
    """A decorator: the signature that ``help`` shows has each of a function's ``**options``, with its default."""
    signature = inspect.signature(function)
    *named, options = signature.parameters.values()
    kind, defaults = _LISTED[str(options.annotation)]
    listed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_shown(kind, name))
        for name, default in defaults.items()
        if name in kind.__optional_keys__
    ]
    function.__signature__ = signature.replace(parameters=[*named, *listed])  # type: ignore[attr-defined]
    return function


_LISTED: Final[Mapping[str, tuple[Any, Mapping[str, Any]]]] = {
    "Unpack[ConsumeOptions]": (ConsumeOptions, _DEFAULTS),
    "Unpack[WorkOptions]": (WorkOptions, _DEFAULTS),
    "Unpack[ReadOptions]": (ReadOptions, _DEFAULTS_OF_READERS),
}


def _shown(kind: Any, name: str) -> str:
    annotation = kind.__annotations__[name]
    return str(getattr(annotation, "__forward_arg__", annotation))


@attrs.frozen(kw_only=True)
class ConsumerSettings:
    """How a consumer works, whatever its topics are; see :meth:`gantrymq.Client.consumer`."""

    tags: str | Sql
    start: Start
    max_retries: int | None
    pull_batch: int
    prefetch: int | None
    consume_timeout: float | None
    on_assigned: QueuesChanged | None
    on_revoked: QueuesChanged | None
    allocation: Allocation
    ordered: Ordered
    broadcast: bool
    offsets_file: Path | None
    deserialize: Deserializer | None
    bad_bodies: BadBodies

    @classmethod
    def checked(cls, options: ConsumeOptions, deserializer: DeserializerChoice | None = None) -> ConsumerSettings:
        """The settings from what a user gave; ValueError names one that cannot be, TypeError one that is unknown."""
        given: dict[str, Any] = {**_DEFAULTS, **options}
        for name in _OF_WORKERS:
            del given[name]
        _check_names(options.keys(), given)
        timeout, offsets_file, allocation = given["consume_timeout"], given["offsets_file"], given["allocation"]
        ordered, broadcast = given["ordered"], given["broadcast"]
        check_start(given["start"])
        check_number("max_retries", given["max_retries"], 0, 2**31 - 1, optional=True)
        check_number("pull_batch", given["pull_batch"], 1, PULL_BATCH_MAX)
        check_number("prefetch", given["prefetch"], 1, PREFETCH_MAX, optional=True)
        if not (isinstance(ordered, bool) or ordered == "key"):
            raise ValueError(f"ordered {ordered!r} is none of False, True (by queue) and 'key'")
        if given["bad_bodies"] not in ("dead_letter", "retry"):
            raise ValueError(f"bad_bodies {given['bad_bodies']!r} is neither 'dead_letter' nor 'retry'")
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if timeout is not None and not timeout > 0:
            raise ValueError(f"consume_timeout {timeout} is not a time: give seconds above 0, or a timedelta")
        if timeout is not None and (ordered or broadcast):
            raise ValueError("consume_timeout sends messages back to the broker: not with ordered or broadcast")
        if offsets_file is not None and not broadcast:
            raise ValueError("offsets_file is for broadcast=True; other groups have their offsets in the brokers")
        strategy = NAMED.get(allocation) if isinstance(allocation, str) else allocation
        if not callable(strategy):
            raise ValueError(f"allocation {allocation!r} is neither one of {', '.join(NAMED)} nor a function")
        given.update(
            consume_timeout=timeout, allocation=strategy,
            offsets_file=None if offsets_file is None else Path(offsets_file),
        )  # fmt: skip
        return cls(deserialize=None if deserializer is None else deserializer_of(deserializer), **given)


@attrs.frozen(kw_only=True)
class WorkerSettings:
    """How a worker handles the messages of its consumer; see :meth:`gantrymq.Client.run`."""

    concurrency: int
    drain_timeout: float
    consumer: ConsumerSettings

    @classmethod
    def checked(cls, options: WorkOptions, deserializer: DeserializerChoice | None = None) -> WorkerSettings:
        """As :meth:`ConsumerSettings.checked`."""
        _check_names(options.keys(), _DEFAULTS)
        given: dict[str, Any] = {**_DEFAULTS, **options}
        concurrency, drain_timeout = (given.pop(name) for name in _OF_WORKERS)
        check_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
        if not drain_timeout >= 0:
            raise ValueError(f"drain_timeout {drain_timeout} is not a time: give seconds, 0 or more")
        consumer = ConsumerSettings.checked(cast(ConsumeOptions, given), deserializer)
        return cls(concurrency=concurrency, drain_timeout=drain_timeout, consumer=consumer)


@attrs.frozen(kw_only=True)
class ReaderSettings:
    """How a reader works, whatever its topics are; see :meth:`gantrymq.Client.reader`."""

    group: str | None
    tags: str | Sql
    start: Start
    until: Literal["end"] | None
    pull_batch: int
    deserialize: Deserializer | None

    @classmethod
    def checked(cls, options: ReadOptions, deserializer: DeserializerChoice | None = None) -> ReaderSettings:
        """As :meth:`ConsumerSettings.checked`; :class:`InvalidName` for the group."""
        _check_names(options.keys(), _DEFAULTS_OF_READERS)
        given: dict[str, Any] = {**_DEFAULTS_OF_READERS, **options}
        if given["group"] is not None:
            check_group(given["group"])
        check_start(given["start"])
        check_number("pull_batch", given["pull_batch"], 1, PULL_BATCH_MAX)
        if given["until"] not in ("end", None):
            raise ValueError(f"until {given['until']!r} is not 'end'")
        return cls(deserialize=None if deserializer is None else deserializer_of(deserializer), **given)


def _check_names(given: Iterable[str], known: Collection[str]) -> None:
    if unknown := sorted(set(given).difference(known)):
        raise TypeError(f"there is no option {unknown[0]!r}: {', '.join(sorted(known))}")


def check_number(name: str, value: int | None, least: int, most: int, *, optional: bool = False) -> None:
    """Raise ValueError unless ``value`` is a whole number from ``least`` to ``most``."""
    if value is None and optional:
        return
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} {value!r} is not a number from {least} to {most}")


@attrs.frozen
class ConsumerOptions(Generic[R]):
    """One membership: which topic as which group, what of it, from where, and as what class messages come."""

    topic: str
    group: str
    subscription: SubscriptionData
    start: Start
    make: type[R]
    settings: ConsumerSettings

    @classmethod
    def checked(
        cls, topics: Topics, group: str, make: type[R], version: int, settings: ConsumerSettings
    ) -> list[ConsumerOptions[R]]:
        """Options of each topic from what a user gave; :class:`InvalidName` for what a broker would refuse.

        ``version`` (ms): brokers keep the subscription with the higher one.
        """
        check_group(group)
        wanted = subscriptions(topics, settings.tags, version)
        return [cls(topic, group, wanted[topic], settings.start, make, settings) for topic in wanted]

    def of_retries(self) -> ConsumerOptions[R] | None:
        """The same membership in the retry topic; None if this is it already."""
        topic = retry_topic(self.group)
        if self.topic == topic:
            return None
        subscription = SubscriptionData.for_tags(topic, "*", self.subscription.sub_version)
        return attrs.evolve(self, topic=topic, subscription=subscription, start="first")

    def start_timestamp(self) -> int:
        """``start`` in ms since 1970, where it is a time."""
        return as_timestamp(self.start)


def subscriptions(topics: Topics, tags: str | Sql, version: int) -> dict[str, SubscriptionData]:
    """What is wanted of each topic; :class:`InvalidName` for what a broker would refuse."""
    if isinstance(topics, Mapping):
        if tags != "*":
            raise InvalidName("give tags either in the mapping of topics or as an argument, not both")
        wanted = dict(topics)
    elif isinstance(topics, str):
        wanted = {topics: tags}
    else:
        try:
            wanted = dict.fromkeys(topics, tags)
        except TypeError:
            raise InvalidName(f"topics are one str, several, or a mapping to tags, not {topics!r}"[:200]) from None
    if not wanted:
        raise InvalidName("name at least one topic")
    return {topic: _subscription(topic, wanted[topic], version) for topic in wanted}


def _subscription(topic: str, tags: str | Sql, version: int) -> SubscriptionData:
    check_topic(topic)
    if isinstance(tags, Sql):
        if not isinstance(tags.expression, str) or not tags.expression.strip():
            raise InvalidName(f"the Sql expression of topic {topic} is empty: leave it out, or say what is wanted")
        return SubscriptionData.for_sql(topic, tags.expression, version)
    if not isinstance(tags, str):
        raise InvalidName(f"tags of topic {topic} are a str, as in 'a || b', or Sql, not {type(tags).__name__}")
    try:
        return SubscriptionData.for_tags(topic, tags.strip(), version)
    except ValueError as error:
        raise InvalidName(f"tags: {error}") from None


def check_start(start: Start, option: str = "start") -> None:
    """Raise :class:`InvalidName` unless ``start``, which the user gave as ``option``, is a place to begin at."""
    if not (start in ("first", "last") or isinstance(start, datetime) or (type(start) is int and start >= 0)):
        raise InvalidName(f"{option} {start!r} is neither first, last, a datetime nor milliseconds since 1970")


def as_timestamp(when: Start) -> int:
    """A time in ms since 1970; ValueError where it is none."""
    if isinstance(when, datetime):
        return int(when.timestamp() * 1000)
    if isinstance(when, int):
        return when
    raise ValueError(f"{when!r} is not a time: give a datetime, or milliseconds since 1970")
