"""Message properties in their text form, read whole and one at a time; Java's string hash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.properties import decode_properties, encode_properties, find_property, java_hash

names = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(st.dictionaries(names, names, max_size=6))
def test_properties_are_decoded_as_they_were_encoded(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text + "\x02") == properties  # 5.x ends with a separator
    for name, value in properties.items():
        assert find_property(text.encode(), name.encode()) == value.encode()


def test_malformed_properties_are_dropped_as_in_java() -> None:
    found = decode_properties("\x02a\x01b\x02\x02c\x02d\x01\x02\x01e\x02f\x01g\x01h\x02i\x01j")
    assert found == {"a": "b", "f": "g\x01h", "i": "j"}
    assert decode_properties("") == {}


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"TAGS\x01a", b"a"),
        (b"TAGS\x01a\x02", b"a"),
        (b"K\x01v\x02TAGS\x01a b\x02X\x01y", b"a b"),
        (b"XTAGS\x01a", None),
        (b"XTAGS\x01a\x02TAGS\x01b\x02TAGS\x01c", b"b"),
        (b"XTAGS\x01TAGS\x01a\x02YTAGS\x01b", None),
        (b"K\x01TAGS\x02L\x01m", None),
        (b"TAGS\x01", None),
        (b"TAGS\x01\x02K\x01v", None),
        (b"", None),
    ],
)
def test_a_property_is_found_without_decoding_the_others(raw: bytes, found: bytes | None) -> None:
    assert find_property(raw, b"TAGS") == found


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("a", 97), ("TagA", 2598919), ("polygenelubricants", -(2**31)), ("ä€😀", 16603051)]
)
def test_the_string_hash_equals_that_of_java(text: str, code: int) -> None:
    assert java_hash(text) == code
