"""What a consumer was asked to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Generic, Literal, TypeVar

import attrs

from gantrymq.client.checks import check_group, check_topic
from gantrymq.client.errors import InvalidName
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.names import retry_topic

Topics = str | Iterable[str] | Mapping[str, str]
"""A topic, several, or a mapping of topics to the tags that are wanted of each."""

R = TypeVar("R", bound=DeliveredRecord)

Start = Literal["first", "last"] | int | datetime
"""Where a group begins that has no offset yet: the oldest message, the next one to come, or the first one stored at or
after a time (a datetime, or milliseconds since 1970)."""


@attrs.frozen
class ConsumerOptions(Generic[R]):
    """One membership: which topic as which group, what of it, from where, and as what class messages come."""

    topic: str
    group: str
    subscription: SubscriptionData
    start: Start
    make: type[R]

    @classmethod
    def checked(
        cls, topics: Topics, group: str, tags: str, start: Start, make: type[R], version: int
    ) -> list[ConsumerOptions[R]]:
        """Options of each topic from what a user gave; :class:`InvalidName` for what a broker would refuse.

        ``version`` (ms) tells brokers which of two subscriptions is the newer one.
        """
        check_group(group)
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
            raise InvalidName("a consumer needs at least one topic")
        return [cls._of_one(topic, group, wanted[topic], start, make, version) for topic in wanted]

    @classmethod
    def _of_one(
        cls, topic: str, group: str, tags: str, start: Start, make: type[R], version: int
    ) -> ConsumerOptions[R]:
        check_topic(topic)
        if not isinstance(tags, str):
            raise InvalidName(f"tags of topic {topic} are a str, as in 'a || b', not {type(tags).__name__}")
        if not (start in ("first", "last") or isinstance(start, datetime) or (type(start) is int and start >= 0)):
            raise InvalidName(f"start {start!r} is neither first, last, a datetime nor milliseconds since 1970")
        try:
            subscription = SubscriptionData.for_tags(topic, tags.strip(), version)
        except ValueError as error:
            raise InvalidName(f"tags: {error}") from None
        return cls(topic, group, subscription, start, make)

    def of_retries(self) -> ConsumerOptions[R] | None:
        """The same membership in the topic by which messages come again; None where this is it already."""
        topic = retry_topic(self.group)
        if self.topic == topic:
            return None
        subscription = SubscriptionData.for_tags(topic, "*", self.subscription.sub_version)
        return attrs.evolve(self, topic=topic, subscription=subscription, start="first")

    def start_timestamp(self) -> int:
        """``start`` in ms since 1970, where it is a time."""
        if isinstance(self.start, datetime):
            return int(self.start.timestamp() * 1000)
        if isinstance(self.start, int):
            return self.start
        raise ValueError(f"start {self.start!r} is no time")
