"""Commands in both header forms: golden bytes, round trips, and headers that cannot be read."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG
from gantrymq.remoting.command import FIELDS_MAX, Command, decode, encode
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.frame import BINARY_HEADER, JSON_HEADER, Frame, cut_frames

JSON_GOLDEN = bytes.fromhex("0000007F0000007B") + (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)
BINARY_GOLDEN = bytes.fromhex(
    "00000025 01000021 0069 00 0197 00000001 00000000 00000000 0000000C 0005746F706963 00000001 54"
)

int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=40)
commands = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    ext=st.none() | st.dictionaries(text.filter(bool), text.filter(bool), min_size=1, max_size=5),
    body=st.binary(max_size=100),
    opaque=int32,
    flag=st.integers(0, 3),
    remark=st.none() | text.filter(bool),
    language=st.sampled_from(["JAVA", "PYTHON", "GO"]),
    version=st.integers(0, 2**15 - 1),
    kind=st.sampled_from([JSON_HEADER, BINARY_HEADER]),
)


def read(stream: bytes) -> Command:
    (frame,), used = cut_frames(stream)
    assert used == len(stream)
    return decode(frame)


@pytest.mark.parametrize(("golden", "kind"), [(JSON_GOLDEN, JSON_HEADER), (BINARY_GOLDEN, BINARY_HEADER)])
def test_requests_of_the_java_client_are_decoded_and_encoded_byte_for_byte(golden: bytes, kind: int) -> None:
    command = read(golden)
    assert command == Command(105, {"topic": "T"}, opaque=1, language="JAVA", version=407, kind=kind)
    assert encode(command) == golden


@given(commands)
def test_a_command_is_decoded_as_it_was_encoded(command: Command) -> None:
    assert read(encode(command)) == command


def test_a_response_has_the_opaque_and_header_form_of_its_request() -> None:
    request = Command(105, {"topic": "T"}, opaque=7, flag=0, kind=BINARY_HEADER)
    answer = request.answer(17, "no route")
    assert (answer.opaque, answer.kind, answer.flag) == (7, BINARY_HEADER, RESPONSE_FLAG)
    assert answer.is_response
    assert not answer.is_oneway
    assert Command(1, flag=ONEWAY_FLAG).is_oneway


def test_missing_fields_of_a_json_header_have_defaults_and_unknown_ones_are_ignored() -> None:
    command = decode(Frame(JSON_HEADER, b'{"code":3,"color":"red","remark":null,"extFields":null}', b"x"))
    assert (command.code, command.ext, command.opaque, command.flag, command.remark, command.body) == (
        3, None, 0, 0, None, b"x",
    )  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"code":"ten"}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"opaque":2147483648}',
        b'{"code":1,"opaque":99999999999999999999999}',
        b'{"code":1} {}',
        b'{"code":1,"x":' + b"[" * 60_000 + b"]" * 60 + b"}",
    ],
)
def test_an_invalid_json_header_is_a_fatal_fault(header: bytes) -> None:
    with pytest.raises(FatalRemoteFault):
        decode(Frame(JSON_HEADER, header, b""))


@pytest.mark.parametrize("kind", [JSON_HEADER, BINARY_HEADER])
def test_too_many_fields_are_a_fatal_fault(kind: int) -> None:
    fits = Command(1, {f"k{n}": "v" for n in range(FIELDS_MAX)}, kind=kind)
    assert read(encode(fits)).ext == fits.ext
    with pytest.raises(FatalRemoteFault, match="header fields"):
        read(encode(Command(1, {f"k{n}": "v" for n in range(FIELDS_MAX + 1)}, kind=kind)))


def binary(remark: bytes = b"\0\0\0\0", fields: bytes = b"\0\0\0\0") -> bytes:
    return struct.pack(">hBhii", 10, 0, 407, 1, 0) + remark + fields


@pytest.mark.parametrize(
    "header",
    [
        b"",
        binary()[:20],
        binary(remark=struct.pack(">i", -1)),
        binary(remark=struct.pack(">i", 100)),
        binary(fields=struct.pack(">i", 100)),
        binary(fields=struct.pack(">i", -5)),
        binary(fields=struct.pack(">ih", 2, 5)),
        binary(fields=struct.pack(">ihc", 3, 1, b"a")),
        binary(fields=struct.pack(">ihci", 7, 1, b"a", 9)),
        binary() + b"x",
    ],
)
def test_an_invalid_binary_header_is_a_fatal_fault(header: bytes) -> None:
    with pytest.raises(FatalRemoteFault):
        decode(Frame(BINARY_HEADER, header, b""))


def test_invalid_utf_8_in_a_binary_header_becomes_replacement_characters_as_in_java() -> None:
    fields = struct.pack(">hci", 1, b"\xff", 2) + b"a\xfe"
    header = binary(struct.pack(">i", 2) + b"\xffr", struct.pack(">i", len(fields)) + fields)
    command = decode(Frame(BINARY_HEADER, header, b""))
    assert (command.remark, command.ext) == ("\ufffdr", {"\ufffd": "a\ufffd"})


def test_a_long_header_of_one_field_is_accepted_and_one_of_many_tiny_fields_rejected_unread() -> None:
    text = '\x01\x02"\\' * 100_000
    for kind in (JSON_HEADER, BINARY_HEADER):
        assert read(encode(Command(310, {"i": text}, kind=kind))).ext == {"i": text}
    for field in (b'"%d":""', b'"%d\\\\":1', b'"%d\\\\":"\\\\"'):
        header = b'{"code":1,"extFields":{%s}}' % b",".join(field % number for number in range(20_000))
        with pytest.raises(FatalRemoteFault, match=f"{len(header)} bytes with more than {FIELDS_MAX} fields"):
            decode(Frame(JSON_HEADER, header, b""))


def test_every_truncated_binary_header_is_a_fatal_fault() -> None:
    header = BINARY_GOLDEN[8:]
    for end in range(len(header)):
        with pytest.raises(FatalRemoteFault):
            decode(Frame(BINARY_HEADER, header[:end], b""))


def test_an_empty_field_of_a_binary_header_is_omitted_as_in_java() -> None:
    fields = struct.pack(">hch", 1, b"a", 0) + b"\0\0" + struct.pack(">hcic", 1, b"b", 1, b"c")
    command = decode(Frame(BINARY_HEADER, binary(fields=struct.pack(">i", len(fields)) + fields), b""))
    assert command.ext == {"b": "c"}


def test_an_unknown_language_is_decoded_as_other() -> None:
    header = struct.pack(">hBhii", 10, 200, 407, 1, 0) + bytes(8)
    assert decode(Frame(BINARY_HEADER, header, b"")).language == "OTHER"
    assert read(encode(Command(1, language="COBOL", kind=BINARY_HEADER))).language == "OTHER"


def test_a_code_beyond_16_bits_is_truncated_in_binary_form_and_complete_in_json() -> None:
    assert read(encode(Command(200050, kind=BINARY_HEADER))).code == 200050 - 3 * 2**16
    assert read(encode(Command(200050))).code == 200050


def test_the_json_header_has_its_keys_in_java_s_order() -> None:
    header = encode(Command(1, {"a": "b"}, remark="r"))[8:]
    assert list(json.loads(header)) == sorted(json.loads(header))
