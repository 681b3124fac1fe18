"""Header, names and shapes of index files."""

from __future__ import annotations

from datetime import datetime

import pytest

from gantrymq.plugins.index.layout import Header, Shape, decode_header, file_name
from gantrymq.plugins.index.marks import FileMark, IndexMarks, decode_marks


def test_a_header_has_40_bytes_in_rocketmq_s_order() -> None:
    header = Header(1, 2, 3, 4, 5, 6)
    assert header.encode().hex() == (
        "0000000000000001" "0000000000000002" "0000000000000003" "0000000000000004" "00000005" "00000006"
    )  # fmt: skip
    assert decode_header(header.encode()) == header


def test_a_file_that_was_never_written_has_no_entries() -> None:
    assert decode_header(bytes(40)) == Header(count=1)


def test_rocketmq_s_shape_has_rocketmq_s_size() -> None:
    assert Shape(5_000_000, 20_000_000).file_bytes == 420_000_040


@pytest.mark.parametrize(
    "header",
    [
        Header(count=11),
        Header(count=0),
        Header(slots_used=-1, count=3),
        Header(slots_used=3, count=3),
        Header(begin_offset=5, end_offset=4, count=2),
        Header(begin_offset=-1, count=2),
        Header(begin_timestamp=-1, count=2),
        Header(end_timestamp=-1, count=2),
    ],
)
def test_a_header_that_contradicts_its_file_is_reported(header: Header) -> None:
    shape = Shape(7, 10)
    assert shape.is_sane(Header(1, 2, 3, 4, 2, 10))
    assert not shape.is_sane(header)


def test_files_are_named_by_local_time_and_in_order() -> None:
    now = 1_700_000_000_042
    local = datetime.fromtimestamp(now // 1000).strftime("%Y%m%d%H%M%S") + "042"
    assert file_name(now, "") == local
    assert file_name(now, local) == f"{int(local) + 1}"
    assert file_name(now - 3_600_000, local) > local


def test_marks_are_read_as_they_were_written() -> None:
    marks = IndexMarks(77, (FileMark("20260101000000000", (bytes(40), Header(count=5).encode()), bytes(range(40))),))
    assert decode_marks(marks.encode()) == marks


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"null", b"{}", b'{"version":2,"offset":0,"files":[]}', b'{"version":1,"offset":null,"files":[]}',
        b'{"version":1,"offset":1,"files":[{"name":"x","found":[],"state":"00"}]}',
        b'{"version":1,"offset":1,"files":[{"name":"x","found":3,"state":"00"}]}', b"\xff",
    ],
)  # fmt: skip
def test_invalid_marks_are_rejected(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_marks(text)
