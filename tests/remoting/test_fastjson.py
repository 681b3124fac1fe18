"""The fastjson dialect: output, accepted input, and a ValueError for every invalid text."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting import fastjson, fastjson_reader
from gantrymq.remoting.fastjson import DEPTH_MAX, ObjectMap, dumps, join_between, loads
from gantrymq.remoting.fastjson_reader import Reader
from gantrymq.remoting.lenient_header import _DialectReader


class Queue(msgspec.Struct, rename="camel", frozen=True):
    topic: str
    queue_id: int
    broker_name: str | None = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1}', {"a": 1}),
        ('{0:"x",1:"y"}', {0: "x", 1: "y"}),
        ('{ -3 : "x" }', {-3: "x"}),
        ("{'a':'it\"s',}", {"a": 'it"s'}),
        ("{a:true,b:false,c:null}", {"a": True, "b": False, "c": None}),
        ("[1,,2,]", [1, 2]),
        ("[]", []),
        ("[ ]", []),
        ("{}", {}),
        ("{,}", {}),
        ("[-1,1.5,1e3,01]", [-1, 1.5, 1000.0, 1]),
        (r"'\x41\u00e4\/\v\0\''", "A\u00e4/\v\0'"),
        (r"['\ud83d\ude00']", ["\U0001f600"]),
        ('\ufeff{"a":1}', {"a": 1}),
        ("NaN", None),
    ],
)
def test_fastjsons_dialect_is_parsed(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


def test_whole_objects_as_keys_become_pairs() -> None:
    value = loads('{{"brokerName":"b","queueId":3,"topic":"T"}:{"n":1},{"brokerName":"b","queueId":4,"topic":"T"}:2}')
    assert isinstance(value, ObjectMap)
    assert value == [
        ({"brokerName": "b", "queueId": 3, "topic": "T"}, {"n": 1}),
        ({"brokerName": "b", "queueId": 4, "topic": "T"}, 2),
    ]
    typed = msgspec.convert(loads('{{"queueId":3,"topic":"T"}:7}'), list[tuple[Queue, int]])
    assert typed == [(Queue("T", 3), 7)]


def test_plain_keys_beside_whole_objects_are_kept() -> None:
    assert loads('{"a":1,{"b":2}:3}') == [("a", 1), ({"b": 2}, 3)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":[1]},"b":{"$ref":"$.a"}}', {"a": {"x": [1]}, "b": {"x": [1]}}),
        ('{"a":{"x":[1]},"b":[{"$ref":"$.a.x"}]}', {"a": {"x": [1]}, "b": [[1]]}),
        ('[{"v":1},{"$ref":"$[0]"}]', [{"v": 1}, {"v": 1}]),
        ('{"t":{0:{"v":1},1:{"$ref":"$.t.0"}}}', {"t": {0: {"v": 1}, 1: {"v": 1}}}),
        ('{"t":{0:{"v":1},1:{"$ref":"$.t[0]"}}}', {"t": {0: {"v": 1}, 1: {"v": 1}}}),
        (r'{"T-a.b":{"v":1},"c":{"$ref":"$.T\\-a\\.b"}}', {"T-a.b": {"v": 1}, "c": {"v": 1}}),
        ('{"list":[{"d":{"v":1}},{"d":{"$ref":"$.list[0].d"}}]}', {"list": [{"d": {"v": 1}}, {"d": {"v": 1}}]}),
    ],
)
def test_references_are_resolved(text: str, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"b":{"$ref":"$.a"}}}',
        '{"a":{"b":{"$ref":".."}}}',
        '{"a":{"$ref":"@"}}',
        '{"a":{"$ref":"$.b"},"b":{"x":1}}',
        '{"a":[1],"b":{"$ref":"$.a[1]"}}',
        '{"a":[1],"b":{"$ref":"$.a[-1]"}}',
        '{"a":{"x":1},"b":{"$ref":"$.a.x.y"}}',
        '{"$ref":"$"}',
        '{"a":{"x":1},"b":{"$ref":"$.."}}',
    ],
)
def test_a_reference_into_itself_or_nowhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="reference"):
        loads(text)


def test_references_cannot_blow_a_small_text_up() -> None:
    doubled = "".join(f',"a{n + 1}":[{{"$ref":"$.a{n}"}},{{"$ref":"$.a{n}"}}]' for n in range(30))
    with pytest.raises(ValueError, match="references repeat"):
        loads('{"a0":[1,2,3]' + doubled + "}")
    deep = "".join(f',"a{n + 1}":[{{"$ref":"$.a{n}"}}]' for n in range(DEPTH_MAX + 1))
    with pytest.raises(ValueError, match="levels"):
        loads('{"a0":[1]' + deep + "}")


def test_a_lone_surrogate_becomes_a_question_mark_and_undefined_null() -> None:
    assert loads("['x\\ud800y','\\udc00','\\ud83d\\ude00',undefined]") == ["x?y", "?", "\U0001f600", None]


@pytest.mark.parametrize("form", ["[{}]", '{{"a":{}}}', "{{a:{}}}", "['x',{}]"])
def test_depth_is_limited_in_every_form(form: str) -> None:
    text = "1"
    for _ in range(DEPTH_MAX):
        text = form.format(text)
    loads(text)
    with pytest.raises(ValueError, match="levels"):
        loads(form.format(text))


@pytest.mark.parametrize("opening", ["[", "{a:", '{"a":', "{{", "{{{"])
def test_unlimited_nesting_is_a_value_error(opening: str) -> None:
    with pytest.raises(ValueError, match="levels"):
        loads(opening * 100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b"[", b'"', b"'", b"{a", b"{a:", b"{a:1", b"{a 1}", b"{:1}", b"[1 2]", b"{a:1 b:2}", b"1 2",
        b"nul", b"undefine", b'"\\u12"', b'"\\uzzzz"', b'"\\u+123"', b'"\\q"', b'"\\', b"\xff",
        b'"\xff"',
        b'{"a":1}}', b"-", b"+1",
        b"[1e999]", b"[1e999,]", b"{{a:1}}", b"{1.5:2}", b"[" + b"1" * 5000 + b"]", b"{" + b"1" * 30 + b":1}",
    ],
)  # fmt: skip
def test_bad_text_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        loads(data)


def test_a_text_beyond_the_limit_is_rejected_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "SIZE_MAX", 4)
    assert loads(b"[12]") == [12]
    with pytest.raises(ValueError, match="at most"):
        loads(b"[123]")


def test_legacy_form_has_bare_integer_keys_and_no_whitespace() -> None:
    value = {"b": {1: "1.2.3.4:5", 0: "x"}, "a": [1, True, None, 1.5, "\u00e4"], "n": None}
    assert dumps(value) == '{"b":{1:"1.2.3.4:5",0:"x"},"a":[1,true,null,1.5,"\u00e4"]}'.encode()


def test_strict_form_is_json_with_sorted_keys_in_ascii() -> None:
    value = {"b": {10: "x", 9: "y"}, "a": "\u00e4\U0001f600"}
    data = dumps(value, quoted_keys=True)
    assert data == b'{"a":"\\u00e4\\ud83d\\ude00","b":{"9":"y","10":"x"}}'
    assert json.loads(data) == {"a": "\u00e4\U0001f600", "b": {"10": "x", "9": "y"}}


def test_struct_keys_are_alphabetical_and_none_is_left_out() -> None:
    assert dumps(Queue("T", 3)) == b'{"queueId":3,"topic":"T"}'
    assert dumps({Queue("T", 3, "b"): 7}) == b'{{"brokerName":"b","queueId":3,"topic":"T"}:7}'
    assert dumps(ObjectMap([({"queueId": 3}, 7)])) == b'{{"queueId":3}:7}'
    assert dumps({}) == b"{}"
    assert dumps({"a": None}) == b"{}"
    assert (
        dumps({"s": {"c", "a", "b"}, "f": float("nan"), "i": float("inf")}) == b'{"s":["a","b","c"],"f":null,"i":null}'
    )


def test_unsupported_values_are_rejected() -> None:
    with pytest.raises(TypeError, match="bytes"):
        dumps(b"x")
    with pytest.raises(ValueError, match="UTF-8"):
        dumps("\ud800")
    with pytest.raises(ValueError, match="strict"):
        dumps({Queue("T", 1): 1}, quoted_keys=True)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="levels"):
        dumps(endless)


texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | texts
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts.filter(lambda key: key != "$ref"), inner, max_size=4)
        | st.dictionaries(st.integers(-(2**63), 2**63 - 1), inner, max_size=4)
    ),
    max_leaves=20,
)


def without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nones(item) for key, item in value.items() if item is not None}
    return [without_nones(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_written_values_are_read_back_unchanged(value: Any) -> None:
    assert loads(dumps(value)) == without_nones(value)


@given(values)
def test_the_strict_form_is_read_by_any_json_reader(value: Any) -> None:
    data = dumps(value, quoted_keys=True)
    assert data.isascii()
    assert json.loads(data) == loads(data)


@given(st.text(alphabet="{}[]:,\"'\\ \n01-e.truefalsn$ab\u00e4"))
def test_any_text_gives_a_value_that_can_be_written_or_a_value_error(text: str) -> None:
    try:
        value = loads(text)
    except ValueError:
        return
    assert dumps(value)


@given(values, st.data())
def test_a_truncated_text_is_never_accepted_as_complete(value: Any, data: st.DataObject) -> None:
    text = dumps([value])
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ValueError, match="JSON"):
        loads(text[:cut])


def test_a_reference_into_missing_depth_is_rejected() -> None:
    with pytest.raises(ValueError, match="has no target") as refused:
        loads(b'[{"$ref":"$' + b".a" * 1_000_000 + b'"}]')
    assert len(str(refused.value)) < 200


SPACES = st.sampled_from(["", "", " ", "\n\t ", "\ufeff", ","])
WORDS = st.sampled_from(["true", "false", "null", "NaN", "undefined", "truex", "nul"])
NUMBERS = st.one_of(
    st.integers(-(10**25), 10**25).map(str), st.floats(allow_nan=False).map(repr),
    st.sampled_from(["01", "-0", "1.5", "-1.50", "1.", ".5", "1e3", "--1", "1" * 18, "1" * 19, "1" * 18 + ".5"]),
)  # fmt: skip
STRINGS = st.builds(
    lambda quote, text: quote + text + quote,
    st.sampled_from("\"'"),
    st.lists(st.sampled_from(["a", "\u00e4", "'", '"', "\\n", "\\'", '\\"', "\\ud83d", ",", "]", " "])).map("".join),
)
SCALARS = st.one_of(WORDS, NUMBERS, STRINGS)
KEYS = st.one_of(STRINGS, st.sampled_from(["a", "b_1", "$ref", '"$ref"', "3", "-7", "1.5", "\u00e4"]))


def container(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    item = st.builds("".join, st.tuples(SPACES, inner, SPACES))
    member = st.builds("".join, st.tuples(SPACES, KEYS, SPACES, st.just(":"), SPACES, inner, SPACES))
    return st.one_of(
        st.lists(item, max_size=4).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(member, max_size=4).map(lambda items: "{" + ",".join(items) + "}"),
    )


@pytest.mark.parametrize("kind", [Reader, _DialectReader])
@given(text=st.recursive(SCALARS, container, max_leaves=12))
def test_the_patterns_for_plain_values_agree_with_the_methods(kind: type[Reader], text: str) -> None:
    outcomes: list[Any] = []
    for patterns in ((), ("_ELEMENT", "_MEMBER")):
        with pytest.MonkeyPatch.context() as patch:
            for name in patterns:
                patch.setattr(fastjson_reader, name, re.compile("(?!)"))
            try:
                value = kind(text).read()
                outcomes.append((type(value), repr(value)))
            except ValueError as error:
                outcomes.append(str(error).partition(" at character ")[0])
    assert outcomes[0] == outcomes[1]


class Wanted(msgspec.Struct, rename="camel"):
    tags_set: set[str] = set()
    code_set: set[int] = set()
    names: list[str] = []


@given(st.sets(st.text(st.characters(codec="utf-8"), max_size=3)), st.sets(st.integers(-(2**31), 2**31 - 1)))
def test_sets_in_structs_are_written_sorted(tags: set[str], codes: set[int]) -> None:
    slow = dumps({"codeSet": codes, "names": list(tags), "tagsSet": tags})
    assert dumps(Wanted(tags, codes, list(tags))) == slow


@pytest.mark.parametrize(
    ("members", "text"), [([], b"{}"), ([b"1:2"], b"{1:2}"), ([b"1:2", b"3:4", b"5:6"], b"{1:2,3:4,5:6}")]
)
def test_members_are_joined_between_their_brackets(members: list[bytes], text: bytes) -> None:
    before = list(members)
    assert join_between(b"{", members, b"}") == text
    assert members == before
