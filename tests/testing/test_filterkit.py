"""The contract for filter compilers: ours keep it, and the kit finds each violation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gantrymq.kernel.filters import EXTENSION_ADDRESSES_END, CodeFilter, FilterSteps, RecordFilter
from gantrymq.plugins.filter import sql92, tags
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import find_property
from gantrymq.testing import filterkit

pytestmark = [pytest.mark.once, pytest.mark.twins]

TAG = filterkit.Filter(
    tags.compile_in_steps,
    examples=(
        ("*", {"TAGS": "a"}, True),
        ("*", {}, True),
        ("a || b", {"TAGS": "a"}, True),
        ("a || b", {"TAGS": "c", "a": "b"}, False),
        ("a || b", {}, False),
        ("||".join(f"tag-{number}" for number in range(1000)), {"TAGS": "tag-999"}, True),
    ),
    invalid=("||", " || ", "x" * (tags.EXPRESSION_MAX + 1)),
)
SQL92 = filterkit.Filter(
    sql92.compile_in_steps,
    examples=(
        ("a > 5", {"a": "6"}, True),
        ("a > 5", {"a": "5"}, False),
        ("a > 5", {"a": "many"}, False),
        ("a > 5", {}, False),
        ("region IN ('eu', 'us') AND b IS NULL", {"region": "us"}, True),
        (" OR ".join(f"a = {number}" for number in range(200)), {"a": "199"}, True),
    ),
    invalid=("", "a >", "AND", "(" * 300, "x" * (sql92.EXPRESSION_MAX + 1)),
)


@pytest.mark.parametrize("own", [TAG, SQL92], ids=["tag", "sql92"])
@pytest.mark.parametrize("rule", filterkit.RULES, ids=lambda rule: rule.__name__)
def test_the_shipped_filters_keep_the_rules(rule: filterkit.Rule, own: filterkit.Filter) -> None:
    rule(own)


class Prefix(RecordFilter):
    """A filter of somebody else: the property ``region`` begins with a text."""

    __slots__ = ("start",)

    def __init__(self, start: str) -> None:
        if not start:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "a prefix has at least one character")
        self.start = start.encode()

    def matches(self, tag_code: int) -> bool:
        return True

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        return [self.decide(each) for each in properties]

    def decide(self, properties: bytes) -> bool:
        return (find_property(properties, b"region") or b"").startswith(self.start)


class Contains(Prefix):
    """Finds the text anywhere."""

    def decide(self, properties: bytes) -> bool:
        return self.start in properties


class Strict(Prefix):
    """Has read tag codes as hashes alone."""

    def matches(self, tag_code: int) -> bool:
        return tag_code >= 0


class Trusting(Prefix):
    """Takes properties for text with a separator."""

    def decide(self, properties: bytes) -> bool:
        return dict(pair.split("\x01") for pair in properties.decode().split("\x02") if pair)["region"] == self.start


class First(Prefix):
    """Answers once for many."""

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        return super().select(properties)[:1]


class Counting(Prefix):
    """Lets each message pass once."""

    __slots__ = ("seen",)

    def __init__(self, start: str) -> None:
        super().__init__(start)
        self.seen: set[bytes] = set()

    def decide(self, properties: bytes) -> bool:
        known = properties in self.seen
        self.seen.add(properties)
        return super().decide(properties) and not known


class Free(Prefix):
    def cost(self, size: int) -> int:
        return 0


class Cheaper(Prefix):
    def cost(self, size: int) -> int:
        return 40_000 - size


def raising(expression: str) -> Prefix:
    return Prefix(expression or str([][0]))


def refusing(expression: str) -> Prefix:
    if not expression:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "no")
    return Prefix(expression)


def taking(expression: str) -> Prefix:
    return Prefix(expression or "anything")


class Every(Prefix):
    """Has a test of entries that refuses all, and claims that no entry needs one. The broker uses the test."""

    matches_all = True

    def matches(self, tag_code: int) -> bool:
        return False


class Tag:
    """A test of entries that forgets addresses of the extension."""

    matches_all = False

    def __init__(self, tag: str) -> None:
        self.code = ord(tag)

    def matches(self, tag_code: int) -> bool:
        return tag_code == self.code


class Group(CodeFilter):
    """The tags of a named group; none for an unknown name. The broker uses only ``codes``, and none means all."""

    __slots__ = ("codes",)
    matches_all = False

    def __init__(self, name: str) -> None:
        self.codes = frozenset([ord("a"), ord("b")] if name == "letters" else [])

    def matches(self, tag_code: int) -> bool:
        return tag_code in self.codes or tag_code < EXTENSION_ADDRESSES_END


def endless(expression: str) -> FilterSteps:
    while True:
        yield


def case_of(compiler: Callable[[str], Any]) -> filterkit.Filter:
    examples = (
        ("eu-", {"region": "eu-1"}, True), ("eu-", {"region": "us-1"}, False), ("eu-", {"zone": "eu-1"}, False),
        ("us-", {"region": "us-1"}, True),
    )  # fmt: skip
    return filterkit.Filter(compiler, examples, invalid=("",))


@pytest.mark.parametrize("rule", filterkit.RULES, ids=lambda rule: rule.__name__)
def test_a_third_party_filter_that_keeps_the_rules_passes(rule: filterkit.Rule) -> None:
    rule(case_of(Prefix))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Contains, filterkit.messages_that_match_are_delivered_and_no_others),
        (Every, filterkit.messages_that_match_are_delivered_and_no_others),
        (Strict, filterkit.an_entry_with_an_unknown_tag_passes),
        (Trusting, filterkit.properties_of_any_bytes_are_decided),
        (First, filterkit.many_messages_are_decided_as_single_ones),
        (Counting, filterkit.many_messages_are_decided_as_single_ones),
        (Free, filterkit.the_work_for_a_message_is_known),
        (Cheaper, filterkit.the_work_for_a_message_is_known),
        (raising, filterkit.invalid_expressions_are_refused),
        (refusing, filterkit.invalid_expressions_are_refused),
        (taking, filterkit.invalid_expressions_are_refused),
    ],
)
def test_a_filter_that_breaks_a_rule_is_found(broken: Callable[[str], Any], rule: filterkit.Rule) -> None:
    with pytest.raises(AssertionError):
        rule(case_of(broken))


def test_a_tag_filter_that_drops_addresses_is_found() -> None:
    case = filterkit.Filter(Tag, examples=(("a", {"TAGS": "a"}, True), ("a", {"TAGS": "b"}, False)))
    filterkit.messages_that_match_are_delivered_and_no_others(case)
    with pytest.raises(AssertionError, match="drops the address"):
        filterkit.an_entry_with_an_unknown_tag_passes(case)


def test_a_filter_of_tag_codes_is_tested_by_its_codes() -> None:
    examples = (("letters", {"TAGS": "b"}, True), ("letters", {"TAGS": "1"}, False))
    filterkit.messages_that_match_are_delivered_and_no_others(filterkit.Filter(Group, examples))
    case = filterkit.Filter(Group, (*examples, ("digits", {"TAGS": "1"}, False)))
    with pytest.raises(AssertionError, match="'digits' delivers"):
        filterkit.messages_that_match_are_delivered_and_no_others(case)


def test_an_endless_compiler_of_a_valid_expression_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filterkit, "SENSIBLE_STEPS", 100)
    with pytest.raises(AssertionError, match="'eu-' is not compiled in 100 steps"):
        filterkit.messages_that_match_are_delivered_and_no_others(case_of(endless))


def test_examples_that_show_nothing_are_refused() -> None:
    with pytest.raises(AssertionError, match="need a match and a mismatch"):
        filterkit.messages_that_match_are_delivered_and_no_others(filterkit.Filter(Prefix, (("a", {}, False),)))
