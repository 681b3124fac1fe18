"""Reads fastjson's JSON dialect: the fallback of :func:`gantrymq.remoting.fastjson.loads`. No I/O.

Accepted beyond JSON: unquoted keys, whole objects as keys, references to closed objects, single quotes, stray commas,
leading zeros. Source: fastjson 1.2.69 ``DefaultJSONParser``, ``SerialContext`` (the form of a reference's path).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

DEPTH_MAX: Final = 32
"""The deepest nesting of values; the deepest body of RocketMQ has 7 levels."""
SHARED_MAX: Final = 1_000_000
"""The most values that references repeat in one text, so that a small text cannot become a huge value."""


class ObjectMap(list[tuple[Any, Any]]):
    """A map whose keys are whole objects, as a list of (key, value) pairs in the order of the text.

    :func:`loads` returns it for ``{{"topic":"T"}:1}``, :func:`dumps` writes it in that form, and
    ``msgspec.convert(value, list[tuple[MessageQueue, int]])`` gives it types. An empty map is an ordinary dict.
    """


_SPACE = re.compile(r"[ \t\r\n\f\b\ufeff]*")
_COMMAS = re.compile(r"[ \t\r\n\f\b,]*")
_PLAIN_DOUBLE = re.compile(r'[^"\\]*')
_PLAIN_SINGLE = re.compile(r"[^'\\]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?[0-9]+(?=[ \t\r\n]*:)")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "F": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "0": "\0", "1": "\1", "2": "\2", "3": "\3", "4": "\4", "5": "\5", "6": "\6", "7": "\7",
}  # fmt: skip
_HEX: Final = {"u": 4, "x": 2}
_HEX_DIGITS = re.compile(r"[0-9A-Fa-f]+")
_HALF = re.compile("[\ud800-\udfff]")
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}
_NUMBER_MAX_LENGTH: Final = 400
_SHORT_NUMBER: Final = 18
LONG_NUMBERS_MAX: Final = 65_536
"""The most characters of all numbers of more than 18 digits in one text: reading them is slow, and no field has
them."""

# Most values are short numbers, texts without escapes and words. A pattern matches each of them, four times as fast as
# the methods of Reader. These read all other values, and raise the errors.
_SPACES = r"[ \t\r\n\f\b\ufeff]*+"
_SCALAR = (
    r"""(?:"([^"\\]*+)"|'([^'\\]*+)'|"""
    rf"(-?[0-9]{{1,{_SHORT_NUMBER}}})|(-?[0-9]{{1,{_SHORT_NUMBER}}}\.[0-9]{{1,{_SHORT_NUMBER}}})|"
    rf"(true|false|null|NaN|undefined)){_SPACES}"
)
_ELEMENT = re.compile(rf"[ \t\r\n\f\b,]*+{_SCALAR}(?=[,\]])")
_MEMBER = re.compile(
    r"""[ \t\r\n\f\b,]*+(?:"(?P<double>[^"\\]*+)"|'(?P<single>[^'\\]*+)'|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*+))"""
    rf"{_SPACES}:{_SPACES}(?P<value>{_SCALAR})(?=[,}}])"
)
_FIRST_OF_VALUE: Final = 5
"""The number of the first group of a member's value."""


class Reader:
    """A recursive-descent parser. It keeps the open containers and the current keys in them to resolve references."""

    whole: Callable[[str], Any] = int
    decimal: Callable[[str], Any] = float
    """Converts short numbers."""

    def __init__(self, text: str, shared_max: int = SHARED_MAX) -> None:
        self.text = text
        self.at: int = 0
        self.open: list[tuple[Any, Any]] = []  # the open containers, each with the key that is being read
        self.shared: int = 0
        self.shared_max = shared_max
        self.long_numbers: int = 0

    def read(self) -> Any:
        """Read the whole text as one value; :class:`ValueError` names the problem and its position."""
        self._space()
        value = self._value()
        self._space()
        if self.at != len(self.text):
            raise self._error("something follows the value")
        return value

    def _error(self, what: str) -> ValueError:
        return ValueError(f"JSON: {what} at character {self.at}")

    def _space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        if match:
            self.at = match.end()

    def _peek(self) -> str:
        if self.at >= len(self.text):
            raise self._error("the text ends early")
        return self.text[self.at]

    def _value(self) -> Any:
        first = self._peek()
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first in "\"'":
            return self._string(first)
        number = _NUMBER.match(self.text, self.at)
        if number:
            return self._number(number)
        word = _NAME.match(self.text, self.at)
        if word and word.group() in _WORDS:
            self.at = word.end()
            return _WORDS[word.group()]
        raise self._error(f"no value begins with {first!r}")

    def _number(self, match: re.Match[str]) -> int | float:
        text = match.group()
        if len(text) > _NUMBER_MAX_LENGTH:
            raise self._error(f"a number of {len(text)} characters")
        if len(text) > _SHORT_NUMBER:
            self.long_numbers += len(text)
            if self.long_numbers > LONG_NUMBERS_MAX:
                raise self._error(f"long numbers of more than {LONG_NUMBERS_MAX} characters together")
        value = float(text) if match.group(1) or match.group(2) else int(text)
        if value in (math.inf, -math.inf):
            raise self._error("a number that no float can hold")
        self.at = match.end()
        return value

    def _scalar(self, match: re.Match[str], first: int) -> Any:
        """The value in the groups of :data:`_SCALAR` from group ``first`` on."""
        double, single, whole, decimal, word = match.group(first, first + 1, first + 2, first + 3, first + 4)
        if double is not None:
            return double
        if whole is not None:
            return self.whole(whole)
        if single is not None:
            return single
        return self.decimal(decimal) if decimal is not None else _WORDS[word]

    def _enter(self, container: Any) -> None:
        if len(self.open) >= DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} levels")
        self.open.append((container, None))
        self.at += 1

    def _skip_commas(self, closing: str) -> bool:
        """Move to the next element; False when the container ends here."""
        match = _COMMAS.match(self.text, self.at)
        if match:
            self.at = match.end()
        if self._peek() == closing:
            self.at += 1
            self.open.pop()
            return False
        return True

    def _separator(self, closing: str) -> None:
        self._space()
        if self._peek() not in ("," + closing):
            raise self._error(f"',' or '{closing}' expected")

    def _array(self) -> list[Any]:
        result: list[Any] = []
        self._enter(result)
        text, match_next, scalar = self.text, _ELEMENT.match, self._scalar
        while True:
            while (match := match_next(text, self.at)) is not None:
                result.append(scalar(match, 1))
                self.at = match.end()
            if not self._skip_commas("]"):
                break
            self.open[-1] = (result, len(result))
            result.append(self._value())
            self._separator("]")
        return result

    def _object(self) -> Any:
        result: dict[Any, Any] = {}
        pairs = ObjectMap()
        self._enter(result)
        text, match_next, scalar = self.text, _MEMBER.match, self._scalar
        while True:
            while (match := match_next(text, self.at)) is not None:
                double, single, name = match.group(1, 2, 3)
                key = double if double is not None else single if single is not None else name
                result[key] = scalar(match, _FIRST_OF_VALUE)
                self.at = match.end()
            if not self._skip_commas("}"):
                break
            key = self._key()
            self._space()
            if self._peek() != ":":
                raise self._error("':' expected")
            self.at += 1
            self._space()
            if isinstance(key, dict | list):
                self.open[-1] = (result, None)
                pairs.append((key, self._value()))
            else:
                self.open[-1] = (result, key)
                result[key] = self._value()
            self._separator("}")
        if pairs:
            return ObjectMap([*result.items(), *pairs])
        if len(result) == 1 and isinstance(result.get("$ref"), str):
            return self._resolve(result["$ref"])
        return result

    def _key(self) -> Any:
        first = self._peek()
        if first in "\"'":
            return self._string(first)
        if first == "{":
            self.open[-1] = (self.open[-1][0], None)
            return self._object()
        integer = _INTEGER.match(self.text, self.at)
        if integer:
            return self._number_key(integer)
        name = _NAME.match(self.text, self.at)
        if name:
            self.at = name.end()
            return name.group()
        raise self._error(f"no key begins with {first!r}")

    def _number_key(self, match: re.Match[str]) -> int:
        if len(match.group()) > 20:
            raise self._error("an integer key of more than 64 bits")
        self.at = match.end()
        return int(match.group())

    def _string(self, quote: str) -> str:
        plain = _PLAIN_DOUBLE if quote == '"' else _PLAIN_SINGLE
        pieces: list[str] = []
        self.at += 1
        halves = False
        while True:
            match = plain.match(self.text, self.at)
            if match:
                pieces.append(match.group())
                self.at = match.end()
            if self._peek() == quote:
                self.at += 1
                break
            piece = self._escape()
            halves = halves or "\ud800" <= piece <= "\udfff"
            pieces.append(piece)
        text = "".join(pieces)
        return _join_pairs(text) if halves else text

    def _escape(self) -> str:
        self.at += 1
        letter = self._peek()
        if letter in _HEX:
            digits = self.text[self.at + 1 : self.at + 1 + _HEX[letter]]
            if len(digits) != _HEX[letter] or not _HEX_DIGITS.fullmatch(digits):
                raise self._error("broken escape")
            self.at += 1 + _HEX[letter]
            return chr(int(digits, 16))
        if letter not in _ESCAPES:
            raise self._error(f"unknown escape {letter!r}")
        self.at += 1
        return _ESCAPES[letter]

    def _resolve(self, path: str) -> Any:
        """The object at ``path``: it must be within the open containers, and closed already."""
        tokens = _path_tokens(path)
        if not self.open or tokens is None:
            raise self._error(f"the reference {path[:80]!r} has no target")
        level = 0
        target: Any = self.open[0][0]
        for token in tokens:
            if level < len(self.open) - 1 and _same_key(self.open[level][1], token):
                level += 1
                target = self.open[level][0]
                continue
            level = len(self.open)
            target = _step(target, token)
            if target is None:
                raise self._error(f"the reference {path[:80]!r} has no target")
        if level < len(self.open):
            raise self._error(f"the reference {path[:80]!r} leads into itself")
        self._charge(target, len(self.open))
        return target

    def _charge(self, target: Any, depth: int) -> None:
        """Count the values that a reference repeats."""
        level = [target]
        while level:
            self.shared += len(level)
            if self.shared > self.shared_max:
                raise self._error(f"references repeat more than {self.shared_max} values")
            below: list[Any] = []
            for item in level:
                if isinstance(item, dict):
                    below.extend(item.values())
                elif isinstance(item, ObjectMap):
                    below.extend(part for pair in item for part in pair)
                elif isinstance(item, list):
                    below.extend(item)
            if below and depth >= DEPTH_MAX:
                raise self._error(f"more than {DEPTH_MAX} levels")
            depth += 1
            level = below


def _join_pairs(text: str) -> str:
    """``text`` with its surrogate pairs, which came as two escapes each, as characters; half a pair is ``?`` (Java)."""
    pairs = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _HALF.sub("?", pairs)


_PATH_TOKEN = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[(-?[0-9]{1,19})\]", re.DOTALL)


def _path_tokens(path: str) -> list[str] | None:
    # "$.table.Topic\-a[3].0": a backslash quotes the character behind it
    if not path.startswith("$"):
        return None
    tokens: list[str] = []
    at = 1
    while at < len(path):
        if len(tokens) == DEPTH_MAX:
            return None  # no container is this deep
        match = _PATH_TOKEN.match(path, at)
        if match is None:
            return None
        tokens.append(re.sub(r"\\(.)", r"\1", match.group(1), flags=re.DOTALL) if match.group(1) else match.group(2))
        at = match.end()
    return tokens


def _same_key(key: Any, token: str) -> bool:
    return key is not None and str(key) == token


def _step(container: Any, token: str) -> Any:
    if type(container) is dict:
        if token in container:
            return container[token]
        return container.get(int(token)) if re.fullmatch(r"-?[0-9]{1,19}", token) else None
    if type(container) is list and token.isascii() and token.isdigit() and int(token) < len(container):
        return container[int(token)]
    return None
