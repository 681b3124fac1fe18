"""JSON headers in other forms than the Java client's. fastjson 1.2.69, as RocketMQ 4.9.7 has it, gave each result."""

from __future__ import annotations

import pytest

from gantrymq.remoting.command import Command, decode
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.fastjson_reader import Reader
from gantrymq.remoting.frame import JSON_HEADER, Frame
from gantrymq.remoting.lenient_header import DIALECT_MAX_BYTES, DIALECT_VALUES_MAX, EFFORT, LENIENT_MAX_BYTES


def read(header: bytes | str) -> Command:
    return decode(Frame(JSON_HEADER, header.encode() if isinstance(header, str) else header, b""))


SCALARS = [
    ("0", "0"), ("-0", "-0"), ("-1", "-1"), ("2147483648", "2147483648"), ("9223372036854775807",) * 2,
    ("-9223372036854775809", "-9223372036854775809"), ("9" * 60, "9" * 60), ("01", "01"), ("-007", "-007"),
    ("1.0", "1.0"), ("1.50", "1.50"), ("0.1", "0.1"), ("-0.5", "-0.5"), ("-0.0", "0.0"), ("1e3", "1E+3"),
    ("1E3", "1E+3"), ("1e+3", "1E+3"), ("1e-3", "0.001"), ("1.5e3", "1.5E+3"), ("1.5e-3", "0.0015"),
    ("1.5E+10", "1.5E+10"), ("1e400", "1E+400"), ("1e-400", "1E-400"), ("0.0000001", "1E-7"), ("0.000000", "0.000000"),
    ("0.0000000", "0E-7"), ("0e5", "0E+5"), ("0.0e5", "0E+4"), ("10e0", "10"), ("-0e0", "0"), ("-0e3", "0E+3"),
    ("-0.00e-3", "0.00000"), ("1.0e2", "1.0E+2"), ("123e20", "1.23E+22"), ("12e-1", "1.2"), ("120.0e-1", "12.00"),
    ("12345678901234567890.1234567890e5", "1234567890123456789012345.67890"),
    ("1.23456789012345678901234567890", "1.23456789012345678901234567890"), ("1e2147483647", "1E+2147483647"),
    ("true", "true"), ("false", "false"), ("null", None), ("NaN", None), ('"null"', "null"), ('""', ""), ("'x'", "x"),
    ("{}", "{}"), ("[]", "[]"), ('{"b":1}', '{"b":1}'), ('{"b":"c","a":null,"d":true,"e":1.0}',) * 2,
    ('[1,"b",null,{"c":[2]}]',) * 2, ("[1.0,1e3,-0.0]", "[1.0,1E+3,0.0]"), ('{"d":-0,"e":01}', '{"d":0,"e":1}'),
    ('"\\ud83d\\ude00"', "😀"), ('"\\ud83d"', "?"), ('"x\ty\nz\x01"', "x\ty\nz\x01"),
    ('"\\x41\\v\\\'\\0\\7\\/"', "A\v'\0\7/"),
]  # fmt: skip
SCALARS[SCALARS.index(('{"b":"c","a":null,"d":true,"e":1.0}',) * 2)] = (
    '{"b":"c","a":null,"d":true,"e":1.0}',
    '{"b":"c","d":true,"e":1.0}',
)


@pytest.mark.parametrize(("written", "text"), SCALARS)
def test_fields_are_converted_to_text_as_by_fastjson(written: str, text: str | None) -> None:
    for between in ("", " "):
        command = read(f'{{"code":310,"extFields":{{"a":{between}{written}{between},"b":"c"}},"opaque":7}}')
        assert (command.code, command.opaque) == (310, 7)
        assert command.ext == ({"b": "c"} if text is None else {"a": text, "b": "c"})


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"\xe0\x80", "\ufffd\ufffd"),
        (b"\xf0\x82\x82\xac", "\ufffd" * 4),
        (b"\xe2\x82\xe2\x82\xac", "\ufffd€"),
        (b"\xd3\xc5\xbb\xdd\xc8\xaf", "\ufffd\u017b\ufffd\u022f"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
    ],
)
def test_invalid_utf_8_becomes_replacement_characters_as_in_java(raw: bytes, text: str) -> None:
    assert read(b'{"code":1,"extFields":{"a":"%s"}}' % raw).ext == {"a": text}


@pytest.mark.parametrize(
    "fields",
    ['"a":"x",', ',"a":"x"', "'a':\"x\"", 'a:"x"', '"a":"w","a":"x"', '"a" : "x"', '"b":null,"a":"x"'],
)
def test_fields_in_fastjsons_dialect_are_decoded(fields: str) -> None:
    assert read(f'{{"code":1,"extFields":{{{fields}}}}}').ext == {"a": "x"}


@pytest.mark.parametrize(
    "value", ["1.5e2147483648", "1e", "-", "TRUE", "abc", '"\\q"', '{"$ref":"$"}', "1" * 401 + ".5"]
)
def test_an_unreadable_value_is_a_fatal_fault(value: str) -> None:
    with pytest.raises(FatalRemoteFault, match="unreadable JSON header"):
        read(f'{{"code":1,"extFields":{{"a":{value}}}}}')


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ('"1"', 1), ('"+1"', 1), ('"-5"', -5), ('"01"', 1), ('""', 0), ('"null"', 0), ('"NULL"', 0), ('"1.0"', 1),
        ('"1.00"', 1), ('"1."', 1), ('"1,000"', 1000), ("1.0", 1), ("1.5", 1), ("-1.5", -1), ("1e3", 1000),
        ("1e-3", 0), ("null", 0), ("true", 1), ("false", 0), ("'1'", 1), ("01", 1), ("-0", 0),
        ("2147483647", 2147483647), ("-2147483648", -2147483648), ("2147483647.9", 2147483647),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_numbers_of_a_header_may_have_other_notations(name: str, written: str, number: int) -> None:
    others = {"code": 9, "opaque": 9, "flag": 9, "version": 9}
    text = ",".join(f'"{key}":{written if key == name else value}' for key, value in others.items())
    assert getattr(read(f'{{{text},"extFields":{{"n":1}}}}'), name) == number
    assert getattr(read(f"{{{text}}}"), name) == number


@pytest.mark.parametrize(
    "written", ['" 1"', '"x"', '"1.5"', '"1e3"', '"2147483648"', "[]", "[1]", "{}", "1e400", "-1e-400", '"--1"', '","']
)
@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_numbers_that_fastjson_rejects_are_a_fatal_fault(name: str, written: str) -> None:
    with pytest.raises(FatalRemoteFault, match=name):
        read(f'{{"code":1,"{name}":{written}}}')


def test_missing_fields_have_the_defaults_of_the_java_class() -> None:
    for header in ("{}", '{"code":0}', '{"extFields":null}', '{"opaque":0}'):
        assert read(header) == Command(0, None, language="JAVA", version=0)


@pytest.mark.parametrize(
    ("written", "language"),
    [
        ('"JAVA"', "JAVA"), ('"cpp"', "CPP"), ('"NODE_JS"', "NODE_JS"), ('"NODEJS"', "OTHER"), ('""', "OTHER"),
        ("null", "OTHER"), ("0", "JAVA"), ("2", "DOTNET"), ("12", "RUST"), ("99", "OTHER"), ('"2"', "OTHER"),
    ],
)  # fmt: skip
def test_a_language_is_given_by_name_or_number(written: str, language: str) -> None:
    assert read(f'{{"code":1,"language":{written},"extFields":{{"n":1}}}}').language == language


@pytest.mark.parametrize("written", ["-1", "1.5", "true", "{}", "[]"])
def test_an_invalid_language_is_a_fatal_fault(written: str) -> None:
    with pytest.raises(FatalRemoteFault, match="language"):
        read(f'{{"code":1,"language":{written}}}')


@pytest.mark.parametrize(
    ("written", "remark"), [("5", "5"), ("1.50", "1.50"), ("true", "true"), ('{"a":1}', '{"a":1}')]
)
def test_a_remark_of_any_type_becomes_text(written: str, remark: str) -> None:
    assert read(f'{{"code":1,"remark":{written}}}').remark == remark


@pytest.mark.parametrize("ext", ['""', '"{}"', "[]", "1", "true"])
def test_fields_that_are_not_an_object_are_a_fatal_fault(ext: str) -> None:
    with pytest.raises(FatalRemoteFault, match="extFields"):
        read(f'{{"code":1,"extFields":{ext}}}')


def test_a_long_header_may_contain_numbers_but_not_fastjsons_dialect() -> None:
    text = "x" * DIALECT_MAX_BYTES
    assert read(f'{{"code":1,"extFields":{{"a":1,"b":"{text}"}}}}').ext == {"a": "1", "b": text}
    for written in ("a:1", '"a":[1]' + " " * DIALECT_MAX_BYTES + "]", '"a":[' + "1," * DIALECT_MAX_BYTES + "1]"):
        with pytest.raises(FatalRemoteFault):
            read(f'{{"code":1,"extFields":{{{written},"b":"{text}"}}}}')


NESTED = "[" + "0," * (DIALECT_VALUES_MAX // 4) + "0]"


@pytest.mark.parametrize(
    "header",
    [
        f"{{code:1,extFields:{{a:[{'0,' * DIALECT_VALUES_MAX}0]}}}}",
        f'{{"code":1,"extFields":{{{",".join(f"{name!r}:{NESTED}" for name in "abcde")}}}}}'.replace("'", '"'),
        f'{{"code":1,"flag":"0",{",".join(f"{name!r}:{NESTED}" for name in "abcde")}}}'.replace("'", '"'),
        '{"code":1,"extFields":{' + ",".join(f'"a{number}":1' for number in range(300)) + "}}",
        '{"code":1,"flag":"0",' + ",".join(f'"a{number}":1' for number in range(300)) + "}",
        f'{{"code":1,"extFields":{{"a":1,"b":"{"x" * LENIENT_MAX_BYTES}"}}}}',
        '{"code":1,"extFields":{"a":[0,1,2],"b":[' + '{"$ref":"$.a"},' * 100 + "0]}}",
    ],
    ids=["dialect", "nested", "nested beside", "fields", "names", "bytes", "references"],
)
def test_a_header_that_exceeds_the_parsing_budget_is_a_fatal_fault(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_values = 0

    def read_value(self: Reader) -> object:
        nonlocal read_values
        read_values += self.text.count(",")
        return original(self)

    original = Reader.read
    monkeypatch.setattr(Reader, "read", read_value)
    with pytest.raises(FatalRemoteFault):
        read(header)
    assert read_values <= DIALECT_VALUES_MAX


def test_each_value_of_an_unusual_header_counts_towards_the_parsing_budget() -> None:
    before = EFFORT.values
    read('{"code":1,"extFields":{"a":"b"}}')
    assert EFFORT.values == before
    read('{"code":1,"extFields":{"a":1,"b":2}}')
    assert 3 <= EFFORT.values - before < 10
    read("{code:1,extFields:{a:[" + "0," * 500 + "0]}}")
    assert EFFORT.values - before > 500
