"""Tag expressions become sets of hashes, as in RocketMQ."""

from __future__ import annotations

import pytest

from gantrymq.plugins.filter.tags import EXPRESSION_MAX, compile_tags
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import java_hash


@pytest.mark.parametrize("expression", ["*", ""])
def test_a_star_passes_everything(expression: str) -> None:
    assert compile_tags(expression).matches_all
    assert compile_tags(expression).matches(7)


def test_tags_are_split_and_trimmed() -> None:
    wanted = compile_tags("TagA || TagB||")
    assert not wanted.matches_all
    assert wanted.matches(2598919)  # "TagA", as the Java broker stores it
    assert wanted.matches(java_hash("TagB"))
    assert not wanted.matches(java_hash("TagC"))
    assert not wanted.matches(0), "a message without a tag"


def test_only_the_blanks_that_java_trims_are_no_part_of_a_tag() -> None:
    wanted = compile_tags("\t TagA\u3000 || TagB\u00a0")
    assert wanted.matches(java_hash("TagA\u3000"))
    assert wanted.matches(java_hash("TagB\u00a0"))
    assert not wanted.matches(java_hash("TagA"))


@pytest.mark.parametrize("code", [-(2**63), -(2**31) - 1])
def test_a_code_that_is_an_address_of_the_extension_file_passes(code: int) -> None:
    assert compile_tags("TagA").matches(code), "any tag may be meant"


def test_the_lowest_hash_is_no_address() -> None:
    assert not compile_tags("TagA").matches(-(2**31))


@pytest.mark.parametrize("expression", ["||", " ", "a" * (EXPRESSION_MAX + 1)])
def test_an_expression_without_a_tag_or_too_long_is_refused(expression: str) -> None:
    with pytest.raises(RemoteFault) as caught:
        compile_tags(expression)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_an_expression_of_ten_thousand_tags_is_compiled() -> None:
    tags = [f"{number:04x}" for number in range(10_900)]
    expression = "||".join(tags)
    assert 65_000 < len(expression) <= EXPRESSION_MAX
    codes = {java_hash(tag) for tag in tags}
    wanted = compile_tags(expression)
    assert all(map(wanted.matches, codes))
    assert not any(wanted.matches(code) for code in range(-1000, 1000) if code not in codes)


@pytest.mark.parametrize("tag", ["TagA", "标签", "\U0001f600", "a\x01b", "a\x02b", "\ud800", "x" * 300])
def test_the_code_of_a_tag_is_javas_hash(tag: str) -> None:
    assert compile_tags(f"{tag} || other").matches(java_hash(tag))
