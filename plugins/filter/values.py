"""Values of SQL92 expressions and how Java compares them: text, truth, 32-bit and 64-bit numbers, doubles.

Properties are always text; the type of the other operand determines how the text is read. Source: ``__compare`` of
``ComparisonExpression`` in RocketMQ 4.9.7 (text is converted), ``Integer.valueOf``, ``Double.valueOf``,
``Double.compareTo``.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_INTEGER = re.compile(r"[+-]?\d++")
# A property may have 32 thousand digits and is read while other connections wait. The possessive repeats prevent
# quadratic backtracking for a text that does not match.
_DOUBLE = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)|(?P<decimal>(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)[fFdD]?"
    r"|(?P<hexadecimal>0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?\d++)[fFdD]?)",
    re.ASCII,
)
BLANKS = "".join(map(chr, range(33)))
"""What Java's ``String.trim`` removes."""
LONG_TEXT = 64
"""Results for texts of more characters are cached."""


class EvaluationFailed(Exception):
    """The values cannot be compared: the message does not match, regardless of other conditions."""


class Long(int):
    """A 64-bit number (``int`` is a 32-bit one): text that is compared with it is read as 64-bit."""


Known = str | bool | int | float
Value = Known | None
"""None is SQL's NULL, unknown."""


def parse_int(text: str) -> int:
    """Return the 32-bit number in ``text``; :class:`EvaluationFailed` for anything else."""
    return _parse_whole(text, _INT_MAX)


def parse_long(text: str) -> Long:
    """Return the 64-bit number in ``text``; :class:`EvaluationFailed` for anything else."""
    return Long(_parse_whole(text, _LONG_MAX))


def _parse_whole(text: str, most: int) -> int:
    value = _whole(text) if len(text) <= LONG_TEXT else _long_whole(text)
    if value is None:
        raise EvaluationFailed(f"not a whole number: {text[:40]!r}")
    if not -most - 1 <= value <= most:
        raise EvaluationFailed(f"out of range: {text[:40]!r}")
    return value


@cache
def _zeros() -> str:
    """Return the digit zero of each script, because Java accepts all of them."""
    return "".join(one for one in map(chr, range(0x10000)) if unicodedata.decimal(one, None) == 0)


def _whole(text: str) -> int | None:
    """Return the number, or any number beyond 64 bits if the text has a larger one; None for other text."""
    if not _INTEGER.fullmatch(text):
        return None
    # Any number of leading zeros is allowed, and int() refuses a text of more than 4,300 digits.
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19:
        digits = digits.lstrip(_zeros())
    value = int(digits or "0") if len(digits) <= 19 else 2**64
    return -value if text[0] == "-" else value


def parse_double(text: str) -> float:
    """Return the double in ``text``, without surrounding blanks; :class:`EvaluationFailed` for anything else."""
    value = _double(text) if len(text) <= LONG_TEXT else _long_double(text)
    if value is None:
        raise EvaluationFailed(f"not a number: {text[:40]!r}")
    return value


def _double(text: str) -> float | None:
    found = _DOUBLE.fullmatch(text.strip(BLANKS))
    if found is None:
        return None
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


# An expression may compare one property of 32 thousand characters a thousand times: cache the result.
_long_whole = lru_cache(maxsize=16)(_whole)
_long_double = lru_cache(maxsize=16)(_double)


def parse_truth(text: str) -> bool:
    """Return whether ``text`` is "true" in any case of letters."""
    return len(text) == 4 and text.lower() == "true"


def compare(left: Known, right: Known) -> int:
    """Return a number below, at or above zero if ``left`` is less than, equal to or greater than ``right``.

    Returns -1 for values of different types; :class:`EvaluationFailed` for text that cannot be read as the other type.
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationFailed("a truth value on the left cannot be compared with text")
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
    """As :func:`compare`, for less and greater: two texts are compared as numbers, or fail."""
    if isinstance(left, str) and isinstance(right, str):
        return _compare_doubles(parse_double(left), parse_double(right))
    return compare(left, right)


def equal(left: Value, right: Value) -> bool | None:
    """Return whether the values are equal: None if only ``left`` is NULL, False if only ``right`` is."""
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
