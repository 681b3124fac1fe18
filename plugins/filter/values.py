"""Values of SQL92 expressions and how Java compares them: text, truth, 32-bit and 64-bit numbers, doubles.

Properties are always text; the other side of a comparison decides what the text is read as. Source: ``__compare`` of
``ComparisonExpression`` in RocketMQ 4.9.7 (text is converted), ``Integer.valueOf``, ``Double.valueOf``,
``Double.compareTo``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)|(?P<decimal>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?"
    r"|(?P<hexadecimal>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)",
    re.ASCII,
)
_BLANKS = "".join(map(chr, range(33)))


class EvaluationFailed(Exception):
    """The values cannot be compared: a message for which that happens does not match, whatever else is asked."""


class Long(int):
    """A 64-bit number, where ``int`` is a 32-bit one: text that is compared with it may be as large."""


Known = str | bool | int | float
Value = Known | None
"""None is SQL's NULL: unknown."""


def parse_int(text: str) -> int:
    """The 32-bit number in ``text``; :class:`EvaluationFailed` for anything else."""
    return _parse_whole(text, _INT_MAX)


def parse_long(text: str) -> Long:
    """The 64-bit number in ``text``; :class:`EvaluationFailed` for anything else."""
    return Long(_parse_whole(text, _LONG_MAX))


def _parse_whole(text: str, most: int) -> int:
    # Nobody means a number of a hundred digits; leading zeros are allowed.
    if not _INTEGER.fullmatch(text) or len(text.lstrip("+-0")) > 19:
        raise EvaluationFailed(f"no whole number: {text[:40]!r}")
    value = int(text)
    if not -most - 1 <= value <= most:
        raise EvaluationFailed(f"out of range: {text[:40]!r}")
    return value


def parse_double(text: str) -> float:
    """The double in ``text``, blanks around it aside; :class:`EvaluationFailed` for anything else."""
    found = _DOUBLE.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise EvaluationFailed(f"no number: {text[:40]!r}")
    if found["name"]:
        value = math.nan if found["name"] == "NaN" else math.inf
    elif found["decimal"]:
        value = float(found["decimal"])
    else:
        try:
            value = float.fromhex(found["hexadecimal"])
        except OverflowError:
            value = math.inf
    return -value if found["sign"] == "-" else value


def parse_truth(text: str) -> bool:
    """Whether ``text`` is "true" in any case of letters."""
    return text.lower() == "true"


def compare(left: Known, right: Known) -> int:
    """Below, at or above zero as ``left`` is less than, equal to or more than ``right``.

    -1 for kinds that have nothing in common; :class:`EvaluationFailed` for text that is not what the other side is.
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationFailed("a truth value on the left is not compared with text")
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return parse_truth(left) - right if isinstance(left, str) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = _reader(right)(left)
    elif isinstance(right, str):
        right = _reader(left)(right)
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def compare_order(left: Known, right: Known) -> int:
    """As :func:`compare`, for less and more: two texts are compared as numbers or not at all."""
    if isinstance(left, str) and isinstance(right, str):
        return _compare_doubles(parse_double(left), parse_double(right))
    return compare(left, right)


def equal(left: Value, right: Value) -> bool | None:
    """Equality as the broker knows it: unknown when only ``left`` is, false when only ``right`` is."""
    if left is None or right is None:
        return True if left is right else None if left is None else False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return compare(left, right) == 0


def _reader(like: Known) -> Callable[[str], int | float]:
    if isinstance(like, float):
        return parse_double
    return parse_long if isinstance(like, Long) else parse_int


def _compare_doubles(left: float, right: float) -> int:
    if left != right:
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) - math.isnan(right)
        return 1 if left > right else -1
    if left == 0.0:
        return int(math.copysign(1, left) > math.copysign(1, right)) - int(
            math.copysign(1, left) < math.copysign(1, right)
        )
    return 0
