"""SQL92 expressions have the same results as in RocketMQ's own evaluator, for a generated table."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gantrymq.plugins.filter.sql92 import compile_sql92
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import encode_properties
from support.foreign import Java

EXPRESSIONS = 4000
BEHIND = (
    " LIKE 'x'", " b", ")", " ;", " NOT x", " NOT", " IS x", " IS", " AND", " 'x", " -- c", ", 5", " ANDb = 1", "07",
    " #", " b ; 'x", " /* x", " (", " TRUE", " IN", " NOTb", " - 1", " + a",
)  # fmt: skip
"""Invalid endings, appended to one expression in eight."""
NAMES = ("a", "b", "_c", "$d")
VALUES = (
    "1", "2", "-3", "+4", "1.5", "1e3", "x", "it's", "true", "False", "2147483648", "9223372036854775808", "NaN",
    "Infinity", " 5 ", "5d", "0x1p3", "-0.0", "0", "grüße", "007",
)  # fmt: skip
NUMBERS = ("0", "1", "2", "5", "2147483647", "2147483648", "4294967296", "1.5", ".5", "5.", "1e3", "4L", "0.0", "1e999")
TEXTS = ("'x'", "'it''s'", "''", "'1'", "'grüße'", "'true'")


class Table:
    """Random sentences of the grammar, with parts where they mean nothing now and then."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def expression(self, depth: int = 3) -> str:
        make = self._random.choice(
            [self._order, self._order, self._equality, self._equality, self._member, self._null, self._between]
            + ([self._logic, self._logic, self._negation] if depth else [self._property])
        )
        return make(depth - 1)

    def tail(self) -> str:
        return self._random.choice(BEHIND) if self._random.randrange(8) == 0 else ""

    def messages(self) -> Iterator[dict[str, str]]:
        for _ in range(8):
            names = self._random.sample(NAMES, self._random.randrange(len(NAMES) + 1))
            yield {name: self._random.choice(VALUES) for name in names}

    def _operand(self) -> str:
        kind = self._random.randrange(20)
        if kind < 9:
            return self._random.choice(NAMES)
        if kind < 16:
            return self._random.choice(("", "", "", "-", "+", "- ")) + self._random.choice(NUMBERS)
        if kind < 19:
            return self._random.choice(TEXTS)
        return self._random.choice(("TRUE", "false", "NULL", "(a = 1)"))

    def _logic(self, depth: int) -> str:
        word = self._random.choice((" AND ", " or ", "\nOR\t", ") and ("))
        joined = word.join(self.expression(depth) for _ in range(self._random.randrange(2, 4)))
        return f"({joined})"

    def _negation(self, depth: int) -> str:
        return self._random.choice(("NOT ", "not ")) + f"({self.expression(depth)})"

    def _order(self, _: int) -> str:
        return f"{self._operand()} {self._random.choice(('<', '<=', '>', '>='))} {self._operand()}"

    def _equality(self, _: int) -> str:
        return f"{self._operand()}{self._random.choice((' = ', '=', '<>'))}{self._operand()}"

    def _member(self, _: int) -> str:
        texts = ", ".join(self._random.choice(TEXTS) for _ in range(self._random.randrange(1, 8)))
        return f"{self._operand()} {self._random.choice(('IN', 'NOT IN'))} ({texts})"

    def _null(self, _: int) -> str:
        return f"{self._operand()} IS {self._random.choice(('', 'NOT '))}NULL"

    def _between(self, _: int) -> str:
        words = f"{self._random.choice(('', 'NOT '))}BETWEEN {self._operand()} AND {self._operand()}"
        return f"{self._operand()} {words}"

    def _property(self, _: int) -> str:
        return self._random.choice(NAMES)


@pytest.mark.interop
def test_generated_expressions_select_the_same_messages_as_in_java(java: Java, homes: Callable[[str], Path]) -> None:
    table = Table(20261121)
    refused = selected = 0
    with java.program(homes("sql"), "sql") as evaluator:
        for _ in range(EXPRESSIONS):
            expression, messages = table.expression() + table.tail(), list(table.messages())
            evaluator.say(msgspec.json.encode({"expression": expression, "messages": messages}).decode())
            theirs = msgspec.json.decode(evaluator.wait_line(lambda line: line.startswith("{")))
            try:
                compiled = compile_sql92(expression)
            except RemoteFault:
                compiled = None
            assert (compiled is None) == theirs.get("refused", False), expression
            if compiled is None:
                refused += 1
                continue
            ours = compiled.select([encode_properties(message).encode() for message in messages])
            for message, mine, answer in zip(messages, ours, theirs["answers"], strict=True):
                assert mine == (answer == "true"), (expression, message, answer)
                selected += mine
    # The table is worth something only while neither kind is rare.
    assert EXPRESSIONS // 10 < refused < EXPRESSIONS // 2 * 1.5
    assert selected > EXPRESSIONS
