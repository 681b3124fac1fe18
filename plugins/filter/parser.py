"""Reads SQL92 expressions: words by one pattern, sentences by the binding power of their operators.

Names, keywords and numbers are those of ``SelectorParser.jj`` of RocketMQ 4.9.7. Written by hand because an expression
of 16 thousand characters is read while other connections wait: a general parser took a second for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

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
    "BETWEEN": _COMPARISON, "NOT": _COMPARISON, "IN": _COMPARISON,
}  # fmt: skip
"""What binds an operand to its left, and how tightly; NOT is there for NOT BETWEEN and NOT IN."""


class SyntaxFault(Exception):
    """The text is no sentence of the grammar. Its text says where it could not go on."""


def parse(text: str) -> Part:
    """The condition that ``text`` is.

    What does not fit behind a complete expression is not read, as in RocketMQ. :class:`SyntaxFault` for text that is
    no expression, :class:`BadExpression` for one that means nothing.
    """
    reader = _Reader(text)
    return expressions.truth(reader.expression(_OR))


class _Reader:
    """One pass over the text; ``kind`` and ``word`` are the word that comes next."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._behind = 0
        self._depth = 0
        self.kind = self.word = ""
        self._advance()

    def expression(self, least: int) -> Part:
        """An operand, and what operators that bind as tightly as ``least`` make of it."""
        left = self._operand()
        power = _COMPARISON
        # What was made by a loose operator is no operand of a tighter one.
        while least <= (following := _POWER.get(self.kind, 0)) <= power:
            power = following
            if power == _OR:
                left = expressions.either(self._listed(left, "OR", _AND))
            elif power == _AND:
                left = expressions.both(self._listed(left, "AND", _EQUALITY))
            elif power == _EQUALITY:
                left = self._equality(left)
            else:
                left = self._comparison(left)
        return left

    def _listed(self, first: Part, word: str, least: int) -> list[Part]:
        parts = [first]
        while self.kind == word:
            self._advance()
            parts.append(self.expression(least))
        return parts

    def _equality(self, left: Part) -> Part:
        kind = self._taken()
        if kind == "IS":
            is_negated = self._skip("NOT")
            self._expect("NULL")
            part = expressions.is_null(left)
            return expressions.negation(part) if is_negated else part
        part = expressions.equality(left, self.expression(_COMPARISON))
        return part if kind == "=" else expressions.negation(part)

    def _comparison(self, left: Part) -> Part:
        if self.kind == "ORDER":
            operator = self.word
            self._advance()
            return expressions.order(left, operator, self._operand())  # type: ignore[arg-type]
        is_negated = self._skip("NOT")
        if self._skip("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            make = expressions.not_between if is_negated else expressions.between
            return make(left, low, self._operand())
        self._expect("IN")
        return expressions.member(left, self._texts(), not is_negated)

    def _texts(self) -> list[str]:
        texts = []
        self._expect("(")
        while True:
            word = self.word
            self._expect("TEXT")
            texts.append(_unquote(word))
            if not self._skip(","):
                self._expect(")")
                return texts

    def _operand(self) -> Part:
        made: list[Callable[[Part], Part]] = []
        while self.kind in ("+", "-", "NOT"):
            if self.kind != "+":
                made.append(expressions.minus if self.kind == "-" else expressions.negation)
            self._advance()
        part = self._primary()
        for make in reversed(made):
            part = make(part)
        return part

    def _primary(self) -> Part:
        kind, word = self.kind, self.word
        if kind == "(":
            return self._enclosed()
        if kind not in _MAKERS:
            raise self._fault()
        self._advance()
        return _MAKERS[kind](word)

    def _enclosed(self) -> Part:
        if self._depth == DEPTH_MAX:
            raise BadExpression(f"more than {DEPTH_MAX} parts lie in one another")
        self._advance()
        self._depth += 1
        part = self.expression(_OR)
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
        self.word = found[kind]
        self._at, self._behind = found.start(kind), found.end()
        if kind == "NAME" and (upper := self.word.upper()) in _KEYWORDS:
            kind = upper
        self.kind = self.word if kind == "SIGN" else kind

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
        raise BadExpression(f"{word[:40]} is too small or too large; write 0 for nought")
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
