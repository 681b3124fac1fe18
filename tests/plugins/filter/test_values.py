"""Values compare as in Java."""

from __future__ import annotations

import math

import pytest

from gantrymq.plugins.filter.values import (
    EvaluationFailed,
    Known,
    Long,
    compare,
    compare_order,
    equal,
    parse_double,
    parse_int,
    parse_long,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 5 ", 5.0), ("5.", 5.0), (".5d", 0.5), ("-1e3F", -1000.0), ("+Infinity", math.inf), ("0x1p3", 8.0),
        ("1e999", math.inf),
    ],
)  # fmt: skip
def test_a_double_is_read_as_java_reads_it(text: str, value: float) -> None:
    assert parse_double(text) == value


@pytest.mark.parametrize("text", ["", " ", "1_0", "infinity", "5e", "0x10", "1,5", "--5", "\xa05"])
def test_text_that_java_does_not_parse_as_a_double_fails(text: str) -> None:
    with pytest.raises(EvaluationFailed):
        parse_double(text)


def test_whole_numbers_have_their_range_and_no_blanks() -> None:
    assert parse_int("-2147483648") == -(2**31)
    assert parse_int("+007") == 7
    assert parse_long("9223372036854775807") == 2**63 - 1
    for text in ("2147483648", " 1", "1.0", "", "1_0", "9" * 5000):
        with pytest.raises(EvaluationFailed):
            parse_int(text)
    with pytest.raises(EvaluationFailed):
        parse_long("9223372036854775808")


def test_whole_numbers_may_have_any_number_of_leading_zeros() -> None:
    assert parse_int("0" * 9000) == 0
    assert parse_int("-" + "0" * 9000 + "12") == -12
    assert parse_int("\u0660" * 30 + "\u0663") == 3, "Arabic digits, which Java reads as well"
    assert parse_long("+" + "0" * 9000 + "9223372036854775807") == 2**63 - 1


@pytest.mark.parametrize(
    ("left", "right", "sign"),
    [
        ("5", 5, 0), ("3000000000", Long(3000000000), 0), ("5.0", 5.0, 0), (5, "6", -1), (5.5, "5", 1), (1, 1.5, -1),
        ("TRUE", True, 0), ("yes", True, -1), (True, False, 1), (5, True, -1), (True, 5, -1), (5.0, False, -1),
        (0.0, -0.0, 1), (-0.0, 0.0, -1), (math.nan, math.inf, 1), (math.nan, math.nan, 0), ("a", "b", -1),
    ],
)  # fmt: skip
def test_the_other_side_decides_how_text_is_read(left: Known, right: Known, sign: int) -> None:
    assert (compare(left, right) > 0) - (compare(left, right) < 0) == sign


def test_text_is_less_or_more_only_as_a_number() -> None:
    assert compare_order("10", "9") > 0
    with pytest.raises(EvaluationFailed):
        compare_order("b", "a")


def test_equality_of_the_unknown_is_not_symmetrical() -> None:
    assert equal(None, None) is True
    assert equal(None, "a") is None
    assert equal("a", None) is False
    assert equal("a", "a") is True
    with pytest.raises(EvaluationFailed):
        equal(True, "true")
