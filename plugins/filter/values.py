"""Values of SQL92 expressions and how Java compares them: text, truth, 32-bit and 64-bit numbers, doubles.

Properties are always text; the other side of a comparison decides what the text is read as. Source: ``__compare`` of
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
# A property may have 32 thousand digits and is read while other connections wait: the repeats give nothing back, or a
# text that does not match would take quadratic time.
_DOUBLE = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)|(?P<decimal>(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)[fFdD]?"
    r"|(?P<hexadecimal>0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?\d++)[fFdD]?)",
    re.ASCII,
)
_BLANKS = "".join(map(chr, range(33)))
LONG_TEXT = 64
"""Characters; what longer texts were read as is kept for a while."""


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
    value = _whole(text) if len(text) <= LONG_TEXT else _long_whole(text)
    if value is None:
        raise EvaluationFailed(f"no whole number: {text[:40]!r}")
    if not -most - 1 <= value <= most:
        raise EvaluationFailed(f"out of range: {text[:40]!r}")
    return value


@cache
def _zeros() -> str:
    """The digit nought of each script, for Java reads them all."""
    return "".join(one for one in map(chr, range(0x10000)) if unicodedata.decimal(one, None) == 0)


def _whole(text: str) -> int | None:
    """The number, or another one beyond 64 bits where it has more; None for no number."""
    if not _INTEGER.fullmatch(text):
        return None
    # Leading zeros are allowed in any number, and int() refuses a text of more than 4,300 digits.
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19:
        digits = digits.lstrip(_zeros())
    value = int(digits or "0") if len(digits) <= 19 else 2**64
    return -value if text[0] == "-" else value


def parse_double(text: str) -> float:
    """The double in ``text``, blanks around it aside; :class:`EvaluationFailed` for anything else."""
    value = _double(text) if len(text) <= LONG_TEXT else _long_double(text)
    if value is None:
        raise EvaluationFailed(f"no number: {text[:40]!r}")
    return value


def _double(text: str) -> float | None:
    found = _DOUBLE.fullmatch(text.strip(_BLANKS))
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


# An expression may compare one property of 32 thousand characters a thousand times.
_long_whole = lru_cache(maxsize=16)(_whole)
_long_double = lru_cache(maxsize=16)(_double)


def parse_truth(text: str) -> bool:
    """Whether ``text`` is "true" in any case of letters."""
    return len(text) == 4 and text.lower() == "true"


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
