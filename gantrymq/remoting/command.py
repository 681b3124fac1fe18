"""A remoting command: one request or response, encoded with a JSON or a binary header.

Source: RocketMQ 4.9.7 ``RemotingCommand`` and ``RocketMQSerializable``; both header forms carry the same fields.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.frame import BINARY_HEADER, JSON_HEADER, Frame, join_frame
from gantrymq.remoting.lenient_header import LANGUAGES, read_lenient

VERSION: Final = 407
"""The version in requests and responses: the ordinal of RocketMQ 4.9.7, whose behavior GantryMQ has (``MQVersion``)."""
LANGUAGE: Final = "PYTHON"
FIELDS_MAX: Final = 256
LONG_HEADER_BYTES: Final = 64 * 1024
"""The fields of a longer JSON header are counted before it is decoded, so that tiny fields cannot fill the memory."""
LONG_HEADER_QUOTES: Final = 4 * (FIELDS_MAX + 16)

_BINARY_FIXED = struct.Struct(">hBhii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class Command(msgspec.Struct, rename={"ext": "extFields"}):
    """A request or a response.

    ``ext`` are the header's own fields, text to text; ``opaque`` matches a response with its request on one
    connection; ``kind`` is the form of the header (0 JSON, 1 binary), which is the same in a request and its response.
    """

    code: int
    ext: dict[str, str] | None = None
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = LANGUAGE
    version: int = VERSION
    kind: int = JSON_HEADER

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether this is a oneway request, which must not be answered."""
        return bool(self.flag & ONEWAY_FLAG)

    def answer(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """The response to this request, in the request's form."""
        return Command(code, ext, body, self.opaque, RESPONSE_FLAG, remark, kind=self.kind)


class _JsonHeader(msgspec.Struct, rename={"ext": "extFields", "kind": "serializeTypeCurrentRPC"}):
    # For encoding only. The fields are in RocketMQ's (alphabetical) order, so that frames are equal byte for byte.
    code: int
    ext: dict[str, str] | msgspec.UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    kind: str
    version: int


_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(Command).decode


def encode(command: Command) -> bytes:
    """The whole frame of ``command``."""
    if command.kind == BINARY_HEADER:
        return join_frame(BINARY_HEADER, _binary_header(command), command.body)
    header = _JsonHeader(
        command.code,
        msgspec.UNSET if command.ext is None else command.ext,
        command.flag,
        command.language,
        command.opaque,
        msgspec.UNSET if command.remark is None else command.remark,
        "JSON",
        command.version,
    )
    return join_frame(JSON_HEADER, _encode_json(header), command.body)


def decode(frame: Frame) -> Command:
    """The command in ``frame``; :class:`FatalRemoteFault` if its header is not valid."""
    command = _decode_binary(frame.header) if frame.kind == BINARY_HEADER else _decode_json_header(frame.header)
    command.kind = frame.kind
    command.body = frame.body
    return command


def _decode_json_header(header: bytes) -> Command:
    if len(header) > LONG_HEADER_BYTES and _count_quotes(header) > LONG_HEADER_QUOTES:
        raise FatalRemoteFault(f"a JSON header of {len(header)} bytes with more than {FIELDS_MAX} fields")
    try:
        command = _decode_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            code, ext, opaque, flag, remark, language, version = read_lenient(header, FIELDS_MAX)
        except ValueError as error:
            raise FatalRemoteFault(f"unreadable JSON header: {error}") from None
        command = Command(code, ext, b"", opaque, flag, remark, language, version)
    else:
        # Decoded values are other objects, so identity shows that both fields are missing in the header.
        if command.language is LANGUAGE:
            command.language = "JAVA"
        if command.version is VERSION:
            command.version = 0
        if not -0x80000000 <= command.opaque <= 0x7FFFFFFF:
            raise FatalRemoteFault(f"opaque {command.opaque} is no 32-bit number")
    if command.ext is not None and len(command.ext) > FIELDS_MAX:
        raise FatalRemoteFault(f"{len(command.ext)} header fields, at most {FIELDS_MAX} are taken")
    return command


def _count_quotes(header: bytes) -> int:
    """The number of quotes around names and values; each field has at least one, also with escapes."""
    return header.count(b'"') - header.count(b'\\"')


def _binary_header(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index("OTHER")
    remark = b"" if command.remark is None else command.remark.encode()
    fields = bytearray()
    for key, value in (command.ext or {}).items():
        raw_key = key.encode()
        raw_value = value.encode()
        fields += _I16.pack(len(raw_key)) + raw_key + _I32.pack(len(raw_value)) + raw_value
    # Java truncates the code to 16 bits too.
    code = (command.code + 0x8000) % 0x10000 - 0x8000
    return b"".join(
        (
            _BINARY_FIXED.pack(code, language, command.version, command.opaque, command.flag),
            _I32.pack(len(remark)),
            remark,
            _I32.pack(len(fields)),
            fields,
        )
    )


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header, 0)
        remark, position = _take(header, _BINARY_FIXED.size, _I32)
        fields, position = _take(header, position, _I32)
        if position != len(header):
            raise FatalRemoteFault(f"{len(header) - position} bytes behind the binary header's fields")
        ext = _decode_fields(fields) if fields else None
        return Command(
            code,
            ext,
            b"",
            opaque,
            flag,
            remark.decode(errors="replace") if remark else None,
            LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
            version,
        )
    except struct.error as error:
        raise FatalRemoteFault(f"unreadable binary header: {error}") from None


def _decode_fields(fields: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    position = 0
    count = 0
    while position < len(fields):
        key, position = _take(fields, position, _I16)
        value, position = _take(fields, position, _I32)
        count += 1
        if count > FIELDS_MAX:
            raise FatalRemoteFault(f"more than {FIELDS_MAX} header fields")
        if key and value:  # Java reads a zero length as null and ignores the entry
            ext[key.decode(errors="replace")] = value.decode(errors="replace")
    return ext


def _take(data: bytes, position: int, size: struct.Struct) -> tuple[bytes, int]:
    (length,) = size.unpack_from(data, position)
    start = position + size.size
    end = start + length
    if length < 0 or end > len(data):
        raise FatalRemoteFault(f"a field of {length} bytes does not fit into the binary header")
    return data[start:end], end
