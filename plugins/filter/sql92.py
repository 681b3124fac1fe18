"""SQL92 expressions on message properties: RocketMQ's dialect, parsed once a subscription.

``a > 5 AND (region IN ('eu', 'us') OR b IS NULL)``. Comparison, BETWEEN, IN, IS NULL, AND, OR, NOT; comments; names
and keywords as in ``SelectorParser.jj`` of RocketMQ 4.9.7, and as there the parser stops at the first word that does
not fit behind a complete expression: the rest is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import attrs
from lark import Lark, ParseTree, Token, Transformer, v_args
from lark.exceptions import LarkError, UnexpectedInput, UnexpectedToken, VisitError

from gantrymq.kernel.filters import RecordFilter
from gantrymq.plugins.filter import expressions
from gantrymq.plugins.filter.expressions import BadExpression, Part
from gantrymq.plugins.filter.values import EvaluationFailed, Long
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import find_property

EXPRESSION_MAX = 16_384
"""Characters, an IN with a thousand values and more: it is parsed while other connections wait, a millisecond for each
hundred of them. RocketMQ has no limit."""

GRAMMAR = r"""
    start: _or
    _or: alternatives | _and
    alternatives: _and (_OR _and)+
    _and: conjunction | _equality
    conjunction: _equality (_AND _equality)+
    _equality: equal | unequal | null | not_null | _comparison
    equal: _equality "=" _comparison
    unequal: _equality _UNEQUAL _comparison
    null: _equality _IS _NULL
    not_null: _equality _IS _NOT _NULL
    _comparison: ordered | between | not_between | member | not_member | _unary
    ordered: _comparison ORDER _unary
    between: _comparison _BETWEEN _unary _AND _unary
    not_between: _comparison _NOT _BETWEEN _unary _AND _unary
    member: _comparison _IN "(" TEXT ("," TEXT)* ")"
    not_member: _comparison _NOT _IN "(" TEXT ("," TEXT)* ")"
    _unary: "+" _unary | minus | negation | _primary
    minus: "-" _unary
    negation: _NOT _unary
    _primary: text | whole | real | true | false | nothing | name | "(" _or ")"
    text: TEXT
    whole: WHOLE
    real: REAL
    true: _TRUE
    false: _FALSE
    nothing: _NULL
    name: NAME

    _UNEQUAL.2: "<>"
    ORDER: ">=" | "<=" | ">" | "<"
    _NOT: "NOT"i
    _AND: "AND"i
    _OR: "OR"i
    _BETWEEN: "BETWEEN"i
    _IN: "IN"i
    _IS: "IS"i
    _TRUE: "TRUE"i
    _FALSE: "FALSE"i
    _NULL: "NULL"i
    NAME: /[a-z_$][a-z0-9_$]*/i
    REAL.2: /[0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
    WHOLE: /(?:0|[1-9][0-9]*l?)/i
    TEXT: /'(?:''|[^'])*'/
    BLANK: /[ \t\n\r\f]+/
    LINE_COMMENT.3: /--[^\n\r]*(\r\n|\n|\r)/
    BLOCK_COMMENT.3: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
    %ignore BLANK
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
"""


@attrs.frozen(eq=False)
class PropertyFilter(RecordFilter):
    """A compiled expression. Queue entries tell nothing of properties, so all of them may be wanted."""

    condition: Callable[[dict[str, str]], object]
    names: tuple[tuple[str, bytes], ...]

    def matches(self, tag_code: int) -> bool:
        """True: only the record can tell."""
        return True

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        """Which of the messages with these encoded properties are wanted. One that fails to compare is not."""
        return [self._holds(raw) for raw in properties]

    def _holds(self, raw: bytes) -> bool:
        values = {}
        for name, encoded in self.names:
            found = find_property(raw, encoded)
            if found is not None:
                values[name] = found.decode("utf-8", "replace")
        try:
            return self.condition(values) is True
        except EvaluationFailed:
            return False


@v_args(inline=True)
class _Builder(Transformer[Token, Part]):
    """From the grammar's rules to parts."""

    def alternatives(self, *parts: Part) -> Part:
        return expressions.either(parts)

    def conjunction(self, *parts: Part) -> Part:
        return expressions.both(parts)

    def equal(self, left: Part, right: Part) -> Part:
        return expressions.equality(left, right)

    def unequal(self, left: Part, right: Part) -> Part:
        return expressions.negation(expressions.equality(left, right))

    def null(self, part: Part) -> Part:
        return expressions.is_null(part)

    def not_null(self, part: Part) -> Part:
        return expressions.negation(expressions.is_null(part))

    def ordered(self, left: Part, operator: Any, right: Part) -> Part:
        return expressions.order(left, operator.value, right)

    def between(self, part: Part, low: Part, high: Part) -> Part:
        return expressions.between(part, low, high)

    def not_between(self, part: Part, low: Part, high: Part) -> Part:
        return expressions.not_between(part, low, high)

    def member(self, part: Part, *texts: Token) -> Part:
        return expressions.member(part, [_unquote(text) for text in texts], True)

    def not_member(self, part: Part, *texts: Token) -> Part:
        return expressions.member(part, [_unquote(text) for text in texts], False)

    def minus(self, part: Part) -> Part:
        return expressions.minus(part)

    def negation(self, part: Part) -> Part:
        return expressions.negation(part)

    def text(self, token: Token) -> Part:
        return expressions.literal(_unquote(token))

    def whole(self, token: Token) -> Part:
        digits = token.rstrip("lL")
        value = int(digits) if len(digits) <= 19 else 2**63
        if value >= 2**63:
            raise BadExpression(f"{digits[:40]} has more than 64 bits")
        return expressions.literal(value if value < 2**31 else Long(value))

    def real(self, token: Token) -> Part:
        value = float(token)
        if value == 0.0 or math.isinf(value):
            raise BadExpression(f"{token[:40]} is too small or too large; write 0 for nought")
        return expressions.literal(value)

    def true(self) -> Part:
        return expressions.literal(True)

    def false(self) -> Part:
        return expressions.literal(False)

    def nothing(self) -> Part:
        return expressions.literal(None)

    def name(self, token: Token) -> Part:
        return expressions.property_named(str(token))

    def start(self, part: Part) -> Part:
        return expressions.truth(part)


def _unquote(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@cache
def _parser() -> Lark:
    # A contextual lexer would take "a ANDb" for "a AND b": words are cut before anybody asks what may stand there.
    return Lark(GRAMMAR, parser="lalr", lexer="basic")


def _parse(expression: str) -> ParseTree:
    """The tree of the longest beginning that is an expression, where a word follows that cannot go on with it."""
    parser: Any = _parser().parse_interactive(expression)
    taken: list[Token] = []
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            parser.feed_token(token)
            taken.append(token)
    except UnexpectedToken:
        whole: Any = _parser().parse_interactive("")
        for token in taken:
            whole.feed_token(token)
        if "$END" not in whole.choices():
            raise
        parser = whole
    tree: ParseTree = parser.feed_eof(taken[-1] if taken else None)
    return tree


def compile_sql92(expression: str) -> PropertyFilter:
    """The filter of ``expression``; ``RemoteFault`` (23) that says where one cannot be read."""
    if len(expression) > EXPRESSION_MAX:
        raise _refusal(f"it has more than {EXPRESSION_MAX} characters")
    try:
        part: Part = _Builder().transform(_parse(expression))
    except VisitError as error:
        if isinstance(error.orig_exc, BadExpression | EvaluationFailed):
            raise _refusal(str(error.orig_exc)) from None
        raise
    except UnexpectedInput as error:
        raise _refusal(f"cannot be read {_place(error, expression)}") from None
    except (LarkError, RecursionError) as error:
        raise _refusal(str(error).splitlines()[0][:200]) from None
    return PropertyFilter(part.evaluate, tuple((name, name.encode()) for name in sorted(part.names)))


def _place(error: UnexpectedInput, expression: str) -> str:
    token = getattr(error, "token", None)
    if isinstance(token, Token) and token.type == "$END":
        return "at its end"
    near = error.get_context(expression, 20).splitlines()[0]
    return f"at character {error.column} of line {error.line}: {near}"


def _refusal(reason: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the SQL92 expression: {reason}")
