"""Parses SQL92 expressions: a regular expression finds the words, operator precedence determines the structure.

Names, keywords and numbers are those of ``SelectorParser.jj`` of RocketMQ 4.9.7, with the operators CONTAINS,
STARTSWITH and ENDSWITH of 5.x, which remain valid names of properties. The parser is written by hand because
it runs on the thread that serves all connections: for 16 thousand characters a general parser took a second, this one
takes up to a tenth, in steps between which other requests are served.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from gantrymq.plugins.filter import expressions
from gantrymq.plugins.filter.expressions import DEPTH_MAX, BadExpression, Part
from gantrymq.plugins.filter.values import Long

_TOKEN = re.compile(
    r"(?:[ \t\n\r\f]++|--[^\n\r]*+(?:\r\n|\n|\r)|/\*(?:[^*]++|\*(?!/))*+\*/)*+"
    r"(?:(?P<NAME>[a-z_$][a-z0-9_$]*+)"
    r"|(?P<REAL>[0-9]++\.[0-9]*+(?:e[+-]?[0-9]++)?|\.[0-9]++(?:e[+-]?[0-9]++)?|[0-9]++e[+-]?[0-9]++)"
    r"|(?P<WHOLE>0|[1-9][0-9]*+l?)"
    r"|(?P<TEXT>'(?:''|[^'])*')"
    r"|(?P<UNEQUAL><>)|(?P<ORDER>>=|<=|>|<)|(?P<SIGN>[=+\-(),])|(?P<END>\Z))",
    re.IGNORECASE | re.ASCII,
)
_KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"})
_OR, _AND, _EQUALITY, _COMPARISON = range(1, 5)
_POWER: Final = {
    "OR": _OR, "AND": _AND, "=": _EQUALITY, "UNEQUAL": _EQUALITY, "IS": _EQUALITY, "ORDER": _COMPARISON,
    "BETWEEN": _COMPARISON, "NOT": _COMPARISON, "IN": _COMPARISON, "CONTAINS": _COMPARISON, "STARTSWITH": _COMPARISON,
    "ENDSWITH": _COMPARISON,
}  # fmt: skip
"""The precedence of each operator; NOT is in it for NOT BETWEEN, NOT IN and their like."""
_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith,
}  # fmt: skip


STEP_WORDS: Final = 64
"""Words per step, which takes some hundred microseconds."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Parses a part of the text; yields between steps."""


class SyntaxFault(Exception):
    """The text does not match the grammar; the error names the position."""


def parse(text: str) -> Steps[Part]:
    """Parse ``text`` in steps; return the condition.

    Text behind a complete expression is ignored, as in RocketMQ. :class:`SyntaxFault` for text that is not an
    expression, :class:`BadExpression` for an invalid one.
    """
    reader = _Reader(text)
    try:
        return expressions.truth((yield from reader.expression(_OR)))
    except RecursionError:
        raise BadExpression("too many nested parts") from None


class _Reader:
    """One pass over the text; ``kind`` and ``word`` are those of the next word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._behind = 0
        self._depth = 0
        self._words = 0
        self.kind = self.word = ""
        self._advance()

    def expression(self, least: int) -> Steps[Part]:
        """Return an operand with all following operators of at least the precedence ``least``."""
        left = yield from self._operand()
        power = _COMPARISON
        # The result of an operator cannot be the operand of one with a higher precedence.
        while least <= (following := _POWER.get(self._operator(), 0)) <= power:
            power = following
            if power == _OR:
                left = expressions.either((yield from self._listed(left, "OR", _AND)))
            elif power == _AND:
                left = expressions.both((yield from self._listed(left, "AND", _EQUALITY)))
            elif power == _EQUALITY:
                left = yield from self._equality(left)
            else:
                left = yield from self._comparison(left)
        return left

    def _listed(self, first: Part, word: str, least: int) -> Steps[list[Part]]:
        parts = [expressions.truth(first)]
        while self.kind == word:
            self._advance()
            parts.append(expressions.truth((yield from self.expression(least))))
        return parts

    def _equality(self, left: Part) -> Steps[Part]:
        kind = self._taken()
        if kind == "IS":
            is_negated = self._skip("NOT")
            self._expect("NULL")
            part = expressions.is_null(left)
            return expressions.negation(part) if is_negated else part
        part = expressions.equality(left, (yield from self.expression(_COMPARISON)))
        return part if kind == "=" else expressions.negation(part)

    def _comparison(self, left: Part) -> Steps[Part]:
        if self.kind == "ORDER":
            operator = self.word
            self._advance()
            return expressions.order(left, operator, (yield from self._operand()))  # type: ignore[arg-type]
        is_negated = self._skip("NOT")
        if self._skip("BETWEEN"):
            low = yield from self._operand()
            self._expect("AND")
            make = expressions.not_between if is_negated else expressions.between
            return make(left, low, (yield from self._operand()))
        if self._operator() in _SEARCHES:
            test, text = _SEARCHES[self._taken()], self.word
            self._expect("TEXT")
            return expressions.search(left, test, _unquote(text), not is_negated)
        self._expect("IN")
        return expressions.member(left, (yield from self._texts()), not is_negated)

    def _texts(self) -> Steps[list[str]]:
        texts = []
        self._expect("(")
        while True:
            word = self.word
            self._expect("TEXT")
            texts.append(_unquote(word))
            if not self._skip(","):
                self._expect(")")
                return texts
            if self._is_step_over():
                yield

    def _operand(self) -> Steps[Part]:
        made: list[Callable[[Part], Part]] = []
        while self.kind in ("+", "-", "NOT"):
            if self.kind != "+":
                made.append(expressions.minus if self.kind == "-" else expressions.negation)
            self._advance()
            if self._is_step_over():
                yield
        kind, word = self.kind, self.word
        if kind == "(":
            part = yield from self._enclosed()
        elif kind in _MAKERS:
            self._advance()
            part = _MAKERS[kind](word)
        else:
            raise self._fault()
        for make in reversed(made):
            part = make(part)
        if self._is_step_over():
            yield
        return part

    def _enclosed(self) -> Steps[Part]:
        if self._depth == DEPTH_MAX:
            raise BadExpression(f"more than {DEPTH_MAX} nested parts")
        self._advance()
        self._depth += 1
        part = yield from self.expression(_OR)
        self._depth -= 1
        self._expect(")")
        return part

    # ------------------------------------------------------------------------------------------------------- words

    def _advance(self) -> None:
        found = _TOKEN.match(self._text, self._behind)
        if found is None:
            self._at = self._first_unreadable()
            raise self._fault()
        kind = str(found.lastgroup)
        self._words += 1
        self.word = found[kind]
        self._at, self._behind = found.start(kind), found.end()
        if kind == "NAME" and (upper := self.word.upper()) in _KEYWORDS:
            kind = upper
        self.kind = self.word if kind == "SIGN" else kind

    def _operator(self) -> str:
        """Return the kind of the next word where an operator may be. Elsewhere the operators of 5.x are names."""
        if self.kind == "NAME" and (upper := self.word.upper()) in _SEARCHES:
            self.kind = upper
        return self.kind

    def _is_step_over(self) -> bool:
        if self._words < STEP_WORDS:
            return False
        self._words = 0
        return True

    def _taken(self) -> str:
        kind = self.kind
        self._advance()
        return kind

    def _skip(self, kind: str) -> bool:
        if self.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str) -> None:
        if not self._skip(kind):
            raise self._fault()

    def _first_unreadable(self) -> int:
        blank = _BLANK.match(self._text, self._behind)
        return self._behind if blank is None else blank.end()

    def _fault(self) -> SyntaxFault:
        text, at = self._text, self._at
        if at >= len(text):
            return SyntaxFault("cannot be read at its end")
        line_start = text.rfind("\n", 0, at) + 1
        near = text[max(line_start, at - 20) : at] + text[at : at + 20].split("\n", 1)[0]
        return SyntaxFault(
            f"cannot be read at character {at - line_start + 1} of line {text.count(chr(10), 0, at) + 1}: {near}"
        )


_BLANK = re.compile(r"(?:[ \t\n\r\f]++|--[^\n\r]*+(?:\r\n|\n|\r)|/\*(?:[^*]++|\*(?!/))*+\*/)*+")


def _unquote(word: str) -> str:
    return word[1:-1].replace("''", "'")


def _whole(word: str) -> Part:
    digits = word.rstrip("lL")
    value = int(digits) if len(digits) <= 19 else 2**63
    if value >= 2**63:
        raise BadExpression(f"{digits[:40]} has more than 64 bits")
    return expressions.literal(value if value < 2**31 else Long(value))


def _real(word: str) -> Part:
    value = float(word)
    if value == 0.0 or math.isinf(value):
        raise BadExpression(f"{word[:40]} is too small or too large; write 0 for zero")
    return expressions.literal(value)


_MAKERS: Final[dict[str, Callable[[str], Part]]] = {
    "TEXT": lambda word: expressions.literal(_unquote(word)),
    "WHOLE": _whole,
    "REAL": _real,
    "TRUE": lambda word: expressions.literal(True),
    "FALSE": lambda word: expressions.literal(False),
    "NULL": lambda word: expressions.literal(None),
    "NAME": expressions.property_named,
}
