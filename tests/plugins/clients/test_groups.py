"""The group's subscription, merged from its members, and the cost of merging it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.plugins.clients.groups import ConsumerGroup, Member
from gantrymq.remoting.bodies.clients import ConsumerData, SubscriptionData


def beat(group: ConsumerGroup, number: int, *subscriptions: SubscriptionData) -> bool:
    connection: Any = SimpleNamespace(id=number)
    return group.update(
        Member(connection, f"c{number}", 0.0), ConsumerData("g", subscription_data_set=[*subscriptions]), False
    )


TOPICS = st.sets(st.sampled_from("abcd"))
STEPS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), TOPICS), st.integers(-50, 50), st.booleans()))


@given(STEPS)
def test_a_group_has_the_newest_subscription_of_its_members_for_each_topic(steps: list[Any]) -> None:
    group = ConsumerGroup("g")
    said: dict[int, dict[str, int]] = {}
    for order, (number, topics, shift, is_asked) in enumerate(steps):
        if topics is None:
            assert group.remove(number) is (said.pop(number, None) is not None)
        else:
            # No two versions are alike.
            said[number] = dict.fromkeys(topics, (order + shift) * 1000 + order)
            beat(group, number, *(SubscriptionData(topic, "*", sub_version=v) for topic, v in said[number].items()))
        wanted: dict[str, int] = {}
        for versions in said.values():
            for topic, version in versions.items():
                wanted[topic] = max(version, wanted.get(topic, version))
        if is_asked:
            found = {topic: group.subscription(topic) for topic in "abcd"}
            assert {topic: wish.sub_version for topic, wish in found.items() if wish is not None} == wanted
        else:
            assert {topic: wish.sub_version for topic, wish in group.subscriptions.items()} == wanted
        assert group.differs is (len({frozenset(versions) for versions in said.values()}) > 1)


def test_members_that_all_leave_cause_no_comparison_of_subscriptions() -> None:
    compared = 0

    class Version(int):
        def __ge__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) >= int(other)

    group = ConsumerGroup("g")
    members, topics = 50, [f"T{number}" for number in range(100)]
    for number in range(members):
        beat(group, number, *(SubscriptionData(topic, "*", sub_version=Version(number)) for topic in topics))
    assert compared <= members * len(topics)
    compared = 0
    for number in range(members - 1, 0, -1):
        group.remove(number)
    assert compared == 0
    assert {wish.sub_version for wish in group.subscriptions.values()} == {0}
    assert compared <= len(topics)
