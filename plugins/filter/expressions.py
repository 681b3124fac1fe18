"""The parts of a SQL92 expression: built once, evaluated for each message.

Each part is a function of the message's properties that gives a value, and says what it is, for RocketMQ checks at
building what may stand where. The checks and the three-valued logic are those of ``ComparisonExpression``,
``LogicExpression`` and ``UnaryExpression`` of RocketMQ 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Literal

import attrs

from gantrymq.plugins.filter.values import Long, Value, compare, compare_order, equal

DEPTH_MAX = 100
"""How deep parts may lie in one another: evaluating goes down by calls."""

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Operator = Literal["<", "<=", ">", ">="]


class BadExpression(Exception):
    """The text is a sentence of the grammar that means nothing."""


class Kind(Enum):
    """What a part is at building."""

    CONSTANT = auto()
    TRUTH = auto()
    PROPERTY = auto()
    OTHER = auto()


@attrs.define(eq=False)  # not frozen: that takes three times as long to make, and an expression has thousands
class Part:
    """One part: ``constant`` is its value where ``kind`` is CONSTANT, or a TRUTH written as a literal."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    is_literal: bool = False
    constant: Value = None
    names: frozenset[str] = frozenset()
    """The properties that it reads."""
    size: int = 1
    """How many parts it is made of."""


def literal(value: Value) -> Part:
    """A text, a number, a truth value or NULL."""
    kind = Kind.TRUTH if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Part(kind, lambda properties: value, 1, True, value)


def property_named(name: str) -> Part:
    """A property of the message; NULL where it has none."""
    return Part(Kind.PROPERTY, lambda properties: properties.get(name), names=frozenset({name}))


def _made(kind: Kind, evaluate: Evaluate, *parts: Part) -> Part:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise BadExpression(f"more than {DEPTH_MAX} parts lie in one another")
    names = frozenset().union(*(part.names for part in parts))
    return Part(kind, evaluate, depth, names=names, size=1 + sum(part.size for part in parts))


def truth(part: Part) -> Part:
    """``part`` where a truth value is needed: a property is one of neither, it is false, or NULL when missing."""
    if part.kind is Kind.TRUTH:
        return part
    if part.kind is not Kind.PROPERTY:
        raise BadExpression("a condition is needed, not a value")
    inner = part.evaluate
    return _made(Kind.TRUTH, lambda properties: None if inner(properties) is None else False, part)


def either(parts: Sequence[Part]) -> Part:
    """OR of conditions, from left to right: what comes behind a true one is not looked at."""
    return _logic(parts, True)


def both(parts: Sequence[Part]) -> Part:
    """AND of conditions, from left to right: what comes behind a false one is not looked at."""
    return _logic(parts, False)


def _logic(parts: Sequence[Part], decisive: bool) -> Part:
    tests = [part.evaluate for part in parts]

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for test in tests:
            value = test(properties)
            if value is decisive:
                return decisive
            unknown = unknown or value is None
        return None if unknown else not decisive

    return _made(Kind.TRUTH, evaluate, *parts)


def negation(part: Part) -> Part:
    """NOT: unknown stays unknown."""
    inner = truth(part)
    test = inner.evaluate

    def evaluate(properties: Properties) -> Value:
        value = test(properties)
        return None if value is None else not value

    return _made(Kind.TRUTH, evaluate, inner)


def minus(part: Part) -> Part:
    """A number with the other sign; NULL for what is no number."""
    inner = part.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return _made(Kind.OTHER, evaluate, part)


def equality(left: Part, right: Part) -> Part:
    """``left = right``; NULL cannot be written here."""
    for part in (left, right):
        if part.is_literal and part.constant is None:
            raise BadExpression("NULL is compared by IS NULL")
    if left.is_literal and right.is_literal and left.kind is Kind.TRUTH and right.kind is not Kind.TRUTH:
        raise BadExpression("a truth value is not compared with another kind")
    return _equality(left, right)


def is_null(part: Part) -> Part:
    """Whether ``part`` has no value."""
    return _equality(part, literal(None))


def _equality(left: Part, right: Part) -> Part:
    first, second = left.evaluate, right.evaluate
    return _made(Kind.TRUTH, lambda properties: equal(first(properties), second(properties)), left, right)


def order(left: Part, operator: Operator, right: Part) -> Part:
    """``left < right`` and the like: of numbers, properties, and what is made of them."""
    for part in (left, right):
        is_number = isinstance(part.constant, int | float) and not isinstance(part.constant, bool)
        if part.kind is Kind.TRUTH or (part.kind is Kind.CONSTANT and not is_number):
            raise BadExpression(f"only numbers and properties are compared by {operator}")
    first, second = left.evaluate, right.evaluate
    holds = _ORDERS[operator]

    def evaluate(properties: Properties) -> Value:
        one = first(properties)
        if one is None:
            return None
        other = second(properties)
        return None if other is None else holds(compare_order(one, other))

    return _made(Kind.TRUTH, evaluate, left, right)


_ORDERS: dict[Operator, Callable[[int], bool]] = {
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
}


def between(part: Part, low: Part, high: Part) -> Part:
    """``low <= part <= high``; two constants must be in this order."""
    if low.is_literal and high.is_literal:
        if low.constant is None or high.constant is None:
            raise BadExpression("BETWEEN has no NULL")
        if compare(high.constant, low.constant) < 0:
            raise BadExpression("BETWEEN has the lower value first")
    return both([order(part, ">=", low), order(part, "<=", high)])


def not_between(part: Part, low: Part, high: Part) -> Part:
    """Below ``low`` or above ``high``."""
    return either([order(part, "<", low), order(part, ">", high)])


def member(part: Part, texts: Sequence[str], wanted: bool) -> Part:
    """Whether a property is (not) one of ``texts``."""
    if part.kind is not Kind.PROPERTY:
        raise BadExpression("IN asks for a property on its left")
    inner, chosen = part.evaluate, frozenset(texts)

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else (value in chosen) is wanted

    return _made(Kind.TRUTH, evaluate, part)
