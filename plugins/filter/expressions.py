"""The parts of a SQL92 expression: built once, evaluated for each message.

Each part is a function of the message's properties and has a kind, because RocketMQ checks operand types when it
builds an expression. The checks and the three-valued logic are those of ``ComparisonExpression``,
``LogicExpression`` and ``UnaryExpression`` of RocketMQ 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Literal

import attrs

from gantrymq.plugins.filter.values import Long, Value, compare, compare_order, equal

DEPTH_MAX = 100
"""The deepest nesting of parts, because evaluation is recursive."""

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Operator = Literal["<", "<=", ">", ">="]


class BadExpression(Exception):
    """The expression is grammatical but invalid, for example because of its operand types."""


class Kind(Enum):
    """The type of a part when the expression is built."""

    CONSTANT = auto()
    TRUTH = auto()
    PROPERTY = auto()
    OTHER = auto()


@attrs.define(eq=False)  # not frozen, which would take three times as long to create thousands of parts
class Part:
    """One part. ``constant`` is its value if ``kind`` is CONSTANT, or a TRUTH that is a literal."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    is_literal: bool = False
    constant: Value = None
    names: frozenset[str] = frozenset()
    """The properties that it reads."""
    size: int = 1
    """The number of parts in it, including itself."""


def literal(value: Value) -> Part:
    """Return the part of a text, a number, a truth value or NULL."""
    kind = Kind.TRUTH if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Part(kind, lambda properties: value, 1, True, value)


def property_named(name: str) -> Part:
    """Return the part that reads a property of the message; NULL if it is missing."""
    return Part(Kind.PROPERTY, lambda properties: properties.get(name), names=frozenset({name}))


def _made(kind: Kind, evaluate: Evaluate, *parts: Part) -> Part:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise BadExpression(f"more than {DEPTH_MAX} nested parts")
    names = frozenset().union(*(part.names for part in parts))
    return Part(kind, evaluate, depth, names=names, size=1 + sum(part.size for part in parts))


def truth(part: Part) -> Part:
    """Return ``part`` as a condition. A property as a condition is false, or NULL if it is missing."""
    if part.kind is Kind.TRUTH:
        return part
    if part.kind is not Kind.PROPERTY:
        raise BadExpression("a condition is needed, not a value")
    inner = part.evaluate
    return _made(Kind.TRUTH, lambda properties: None if inner(properties) is None else False, part)


def either(parts: Sequence[Part]) -> Part:
    """Return the OR of conditions, evaluated from left to right up to the first true one."""
    return _logic(parts, True)


def both(parts: Sequence[Part]) -> Part:
    """Return the AND of conditions, evaluated from left to right up to the first false one."""
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
    """Return NOT ``part``; the negation of unknown is unknown."""
    inner = truth(part)
    test = inner.evaluate

    def evaluate(properties: Properties) -> Value:
        value = test(properties)
        return None if value is None else not value

    return _made(Kind.TRUTH, evaluate, inner)


def minus(part: Part) -> Part:
    """Return the negative of a number; NULL for other values."""
    inner = part.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return _made(Kind.OTHER, evaluate, part)


def equality(left: Part, right: Part) -> Part:
    """Return ``left = right``. :class:`BadExpression` for NULL, which needs IS NULL."""
    for part in (left, right):
        if part.is_literal and part.constant is None:
            raise BadExpression("= and <> cannot compare NULL; use IS NULL")
    if left.is_literal and right.is_literal and left.kind is Kind.TRUTH and right.kind is not Kind.TRUTH:
        raise BadExpression("a truth value cannot be compared with a value of another type")
    return _equality(left, right)


def is_null(part: Part) -> Part:
    """Return the condition that ``part`` is NULL."""
    return _equality(part, literal(None))


def _equality(left: Part, right: Part) -> Part:
    first, second = left.evaluate, right.evaluate
    return _made(Kind.TRUTH, lambda properties: equal(first(properties), second(properties)), left, right)


def order(left: Part, operator: Operator, right: Part) -> Part:
    """Return ``left < right`` and similar comparisons of numbers and properties."""
    for part in (left, right):
        is_number = isinstance(part.constant, int | float) and not isinstance(part.constant, bool)
        if part.kind is Kind.TRUTH or (part.kind is Kind.CONSTANT and not is_number):
            raise BadExpression(f"{operator} can compare only numbers and properties")
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
    """Return ``low <= part <= high``; two constants must be in this order."""
    if low.is_literal and high.is_literal:
        if low.constant is None or high.constant is None:
            raise BadExpression("BETWEEN cannot have NULL as a bound")
        if compare(high.constant, low.constant) < 0:
            raise BadExpression("BETWEEN needs the lower value first")
    return both([order(part, ">=", low), order(part, "<=", high)])


def not_between(part: Part, low: Part, high: Part) -> Part:
    """Return the condition that ``part`` is below ``low`` or above ``high``."""
    return either([order(part, "<", low), order(part, ">", high)])


def member(part: Part, texts: Sequence[str], wanted: bool) -> Part:
    """Return the condition that a property is one of ``texts``, or is not if ``wanted`` is false."""
    if part.kind is not Kind.PROPERTY:
        raise BadExpression("IN needs a property on its left")
    inner, chosen = part.evaluate, frozenset(texts)

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else (value in chosen) is wanted

    return _made(Kind.TRUTH, evaluate, part)


def search(part: Part, test: Callable[[str, str], bool], text: str, wanted: bool) -> Part:
    """Return the condition that ``test(value, text)`` holds, or does not if ``wanted`` is false.

    It is false, never unknown, for a value that is not a text and for an empty ``text``, also if ``wanted`` is false:
    as ``ComparisonExpression`` of RocketMQ 5.3.3.
    """
    inner = part.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return bool(text) and isinstance(value, str) and test(value, text) is wanted

    return _made(Kind.TRUTH, evaluate, part)
