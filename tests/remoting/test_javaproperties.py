"""Java properties survive a round trip."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given

from gantrymq.remoting.javaproperties import read_properties, write_properties

NAMES = st.from_regex(r"[a-zA-Z.]{1,20}", fullmatch=True)


def _joined(text: str) -> str:
    """Two halves of a pair as the one character that they stand for."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(st.dictionaries(NAMES, st.text(max_size=30)))
@example({"a": " x ", "b": "\\", "c": "\t", "d": "#", "e": "\U0001f600"})
def test_written_properties_are_read_back_unchanged(table: dict[str, str]) -> None:
    data = write_properties(table)
    assert data.isascii()
    assert {name: _joined(value) for name, value in read_properties(data).items()} == table


def test_properties_written_by_java_are_read() -> None:
    assert read_properties(b"a=1\nb : two\n# c=3\nd=\\u00e9\\\n  more\n") == {"a": "1", "b": "two", "d": "\u00e9more"}
