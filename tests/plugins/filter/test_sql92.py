"""SQL92 expressions: their meaning, refused ones, and hostile texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.plugins.filter.sql92 import EXPRESSION_MAX, compile_sql92
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import encode_properties


def wanted(expression: str, **properties: str) -> bool:
    return compile_sql92(expression).select([encode_properties(properties).encode()])[0]


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a > 5", {"a": "6"}),
        ("5 < a", {"a": "6"}),
        ("a = 5 AND b = 'x'", {"a": "5", "b": "x"}),
        ("a BETWEEN 1 AND 3 AND b <> 'y'", {"a": "3", "b": "x"}),
        ("a NOT BETWEEN -1 AND 3", {"a": "-2"}),
        ("a IN ('x', 'it''s')", {"a": "it's"}),
        ("a NOT IN ('x')", {"a": "y"}),
        ("a IS NULL", {}),
        ("a IS NOT NULL", {"a": "x"}),
        ("a = b", {}),
        ("NOT (a = 1) or c = true", {"c": "TRUE"}),
        ("a=1 Or /* two\n* ways */ a=2 -- of it\n", {"a": "2"}),
        ("a = .5 or a = 5e0", {"a": "5"}),
        ("a = --5\n5", {"a": "5"}),
        ("notx <> 1", {"notx": "2"}),
        ("a > b", {"a": "10", "b": "9"}),
        ("$a_1 = 'grüße'", {"$a_1": "grüße"}),
    ],
)
def test_a_true_expression_selects(expression: str, properties: dict[str, str]) -> None:
    assert wanted(expression, **properties)


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a > 5", {}),
        ("a > 5", {"a": "x"}),
        ("NOT (a > 5)", {}),
        ("NOT (a > 5)", {"a": "x"}),
        ("a > 5 OR b = 'x'", {"a": "many", "b": "x"}),
        ("a IN ('x')", {"A": "x"}),
        ("a", {"a": "true"}),
        ("NULL", {}),
        ("TRUE = a", {"a": "true"}),
        ("a > 5 AND b = 1", {"a": "9"}),
    ],
)
def test_a_false_an_unknown_and_a_failing_expression_do_not_select(expression: str, properties: dict[str, str]) -> None:
    assert not wanted(expression, **properties)


def test_a_deciding_operand_prevents_the_evaluation_of_a_failing_one() -> None:
    assert wanted("b = 'x' OR a > 5", a="many", b="x")


@pytest.mark.parametrize(
    "expression",
    [
        "", " ", "5", "'x'", "a =", "a = NULL", "a > 'x'", "a > TRUE", "(a = 1) > 2", "a BETWEEN 3 AND 1", "a > 0.0",
        "a = 1e999", "a = 9223372036854775808", "5 IN ('x')", "a IN (5)", "a IN ()", "a == 1", "(a = 1 b)",
        "TRUE = 5", "NOT a > 5", "NOT -a", "a AND 5", "a NOT LIKE 'x'", "a IS b", "a = 1 AND", "a = 1 ;", "a = 'x",
        "a; b", "a = -" + "- " * 300 + "5",
        "(" * 9000, "a" * (EXPRESSION_MAX + 1),
    ],
)  # fmt: skip
def test_an_expression_without_a_meaning_is_refused_with_its_place(expression: str) -> None:
    with pytest.raises(RemoteFault) as caught:
        compile_sql92(expression)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert caught.value.remark.startswith("the SQL92 expression: ")


@pytest.mark.parametrize(
    "behind", [" LIKE 'x'", " b", ")", " ANDb = 2", "07", ", 5", " -- no end of the line", " b ; 'not read"]
)
def test_text_behind_a_complete_expression_is_ignored(behind: str) -> None:
    assert wanted(f"a = 0{behind}", a="0", b="5")
    assert not wanted(f"a = 0{behind}", a="1", b="5")


@pytest.mark.parametrize(
    ("operator", "found"), [("CONTAINS", {"ab", "b", "abc"}), ("startswith", {"b"}), ("EndsWith", {"ab", "b"})]
)
def test_a_text_is_searched_in_a_property_as_in_rocketmq_5(operator: str, found: set[str]) -> None:
    values = {"ab", "b", "abc", "a"}
    assert {value for value in values if wanted(f"x {operator} 'b'", x=value)} == found
    assert {value for value in values if wanted(f"x NOT {operator} 'b'", x=value)} == values - found
    for expression in (f"x {operator} ''", f"x NOT {operator} ''", f"y {operator} 'b'", f"y NOT {operator} 'b'"):
        assert not wanted(expression, x="b")
    assert wanted(f"x = 'b' AND x {operator} 'b' OR y IS NOT NULL", x="b")
    assert wanted(f"NOT (y {operator} 'b')"), "false, not unknown"
    assert wanted(f"{operator} = 'x'", **{operator: "x"}), "a name where no operator can be, as in RocketMQ 4"
    for expression in (f"x {operator}", f"x {operator} y", f"x {operator} 5", f"x NOT {operator}"):
        with pytest.raises(RemoteFault, match="cannot be read"):
            compile_sql92(expression)


def test_an_operand_of_a_tighter_operator_is_not_an_expression_of_a_looser_one() -> None:
    assert wanted("a IS NULL NOT IN ('x')")
    assert not wanted("'x' IS NULL <= 5")


def test_a_text_ends_at_the_last_quote_that_can_end_it() -> None:
    assert wanted("a IN ('it''s', '', '''')", a="'")
    assert wanted("a IS NULL '.5>''"), "a text behind a complete expression, and a quote that is not read"


def test_parentheses_may_lie_in_one_another_as_deep_as_parts() -> None:
    assert wanted("(" * 100 + "a = 1" + ")" * 100, a="1")
    with pytest.raises(RemoteFault, match="more than 100 nested parts"):
        compile_sql92("(" * 101 + "a = 1" + ")" * 101)


def test_a_list_of_a_thousand_values_is_an_expression() -> None:
    expression = f"a IN ({','.join(repr(str(number)) for number in range(2000))})"
    assert len(expression) > 10_000
    assert wanted(expression, a="1999")
    assert not wanted(expression, a="2000")


def test_the_error_names_the_position_that_cannot_be_parsed() -> None:
    with pytest.raises(RemoteFault, match="character 11 of line 1: a = 1 AND = LIKE"):
        compile_sql92("a = 1 AND = LIKE 'x'")


def test_many_alternatives_are_one_list() -> None:
    expression = " OR ".join(f"a = {number}" for number in range(300))
    assert wanted(expression, a="299")
    assert not wanted(expression, a="300")


_TEXT = "a b NOT AND OR BETWEEN IN IS NULL TRUE 1 -1 2.5 'x' '' ( ) , = <> < <= > >= + - -- /* */ ' é 9999999999"
_WORDS = st.sampled_from(list(dict.fromkeys(_TEXT.split(" "))))
_VALUES = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["", "1", "2.5", "x", "true", "9999999999", "\x00"]))


@given(st.lists(_WORDS, max_size=12).map(" ".join) | st.text(max_size=40), _VALUES)
def test_any_text_is_refused_or_answers_for_any_message(expression: str, properties: dict[str, str]) -> None:
    try:
        compiled = compile_sql92(expression)
    except RemoteFault:
        return
    assert compiled.select([encode_properties(properties).encode()])[0] in (True, False)
