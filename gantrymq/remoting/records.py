"""Reads stored records, which a response to a pull has one after the other. No I/O.

::

    | i32 size | i32 magic | i32 crc | i32 queue id | i32 flag | i64 queue offset | i64 commit log offset |
    | i32 sys flag | i64 born | host | i64 stored | host | i32 reconsume times | i64 prepared offset |
    | i32 length, body | u8 (magic of V2: i16) length, topic | i16 length, properties |

A host is 4 bytes of address (16 when the sys flag says IPv6) and an i32 port. Source: RocketMQ 4.9.7
``MessageDecoder.decode``; ``docs/format/record.md`` has worked bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from gantrymq.remoting.errors import FatalRemoteFault, GantryError
from gantrymq.remoting.message_ids import offset_message_id
from gantrymq.remoting.properties import KEYS, TAGS, UNIQ_KEY, decode_properties

_compiled: Any = None
"""The compiled twins, where there are some and ``GANTRYMQ_PURE=1`` does not exclude them."""
if os.environ.get("GANTRYMQ_PURE") != "1":
    with suppress(ImportError):
        _compiled = import_module("gantrymq.remoting._records")
cut_compiled: Callable[[bytes, type[Any], bool, str | None, Any], tuple[list[Any], int]] | None = getattr(
    _compiled, "cut_records", None
)
"""The compiled twin of :func:`cut_records`, if there is one. It makes subclasses of :class:`Record` only."""

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""5.x writes it for topics longer than 127 bytes; the topic's length is then 16 bits."""

COMPRESSED: Final = 0x1
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
INNER_BATCH: Final = 0x80
"""5.x marks with it what is a batch kept as one record, in topics of type BatchCQ: the body is a row of messages."""
COMPRESSION_MASK: Final = 0x700
"""0 (older clients) and 0x300 zlib, 0x100 LZ4, 0x200 Zstandard."""

BODY_MAX_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of a decompressed body: eight times the largest body that a broker accepts by default."""

_ZSTANDARD_PIECE_BYTES: Final = 256
_CRC_MASK: Final = 0x7FFFFFFF
_CRC_AT: Final = 8
_SYS_FLAG_AT: Final = 36
_DECODED: Final = COMPRESSED | INNER_BATCH
"""A body with one of these flags is not given out as it is stored."""
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_I32 = struct.Struct(">i")
_U16 = struct.Struct(">H")
HEADS: Final = {
    flags: struct.Struct(f">iIiiiqqiq{20 if flags & BORN_HOST_V6 else 8}sq{20 if flags & STORE_HOST_V6 else 8}siqi")
    for flags in (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6)
}
"""All fields of a record up to the body's length, by which of the two hosts are IPv6."""
_CUT_V4: Final = struct.Struct(">iIi8xq8xi44xi")
"""Some of these fields, with hosts that are IPv4: size, magic, CRC, queue offset, sys flag, body length."""
_HEAD_FIELDS: Final = (
    "_size", "_magic", "_crc", "queue_id", "flag", "queue_offset", "commit_log_offset", "sys_flag", "born_timestamp",
    "raw_born_host", "store_timestamp", "raw_store_host", "reconsume_times", "prepared_offset", "_body_length",
)  # fmt: skip
_LATER: Final = frozenset(_HEAD_FIELDS) - {"queue_offset"}
"""What a record that was cut from an answer decodes when one of them is first asked for."""
BATCH_ROW: Final = struct.Struct(">iiiii")
"""The head of a message within a batch as it is sent: size, magic and CRC (both 0), flag, body length."""


class BodyError(GantryError):
    """A message's body cannot be decoded: damaged, larger than allowed, of a kind that is not supported, or its
    compressor is not installed."""


class CompressorMissing(BodyError):
    """The compressor of a message's body is not installed."""


class PlainFields:
    """The fields of a :class:`Record` without compiled code: the reference. Most are decoded when one is first used."""

    topic: str
    """The topic; a consumer's message has the one that it was sent to, also on redelivery."""
    queue_id: int
    """The number of its queue."""
    flag: int
    """The number that the sender gave it."""
    queue_offset: int
    """Its place in the queue."""
    commit_log_offset: int
    """Its place in the broker's log, in bytes."""
    sys_flag: int
    born_timestamp: int
    """When it was sent, by the producer's clock, in ms since 1970."""
    raw_born_host: bytes
    store_timestamp: int
    """When it was stored, by the broker's clock, in ms since 1970."""
    raw_store_host: bytes
    reconsume_times: int
    """The number of earlier deliveries to the group."""
    prepared_offset: int
    stored_body: bytes
    """The body as it is in the log, perhaps compressed."""
    raw_properties: bytes
    stored_size: int
    """The size of the whole message in the log, in bytes."""
    broker_name: str = ""
    """The name of the broker that it was read from; empty for a reply."""
    delivery: Any = None
    retry_topic: str | None = None
    """The topic of its redelivery, None at the first delivery."""
    decoded: Any = None
    _head: bytes

    def __init__(
        self,
        topic: str,
        queue_id: int,
        flag: int,
        queue_offset: int,
        commit_log_offset: int,
        sys_flag: int,
        born_timestamp: int,
        raw_born_host: bytes,
        store_timestamp: int,
        raw_store_host: bytes,
        reconsume_times: int,
        prepared_offset: int,
        stored_body: bytes,
        raw_properties: bytes,
        stored_size: int,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.flag = flag
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.raw_born_host = raw_born_host
        self.store_timestamp = store_timestamp
        self.raw_store_host = raw_store_host
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.stored_body = stored_body
        self.raw_properties = raw_properties
        self.stored_size = stored_size

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _LATER:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            head = self._head
            values = HEADS[_I32.unpack_from(head, _SYS_FLAG_AT)[0] & _HOSTS_V6].unpack(head)
            # what was assigned meanwhile stays
            self.__dict__ = {**dict(zip(_HEAD_FIELDS, values, strict=True)), **self.__dict__}
            return self.__dict__[name]

    @cached_property
    def body(self) -> bytes:
        """The decompressed body; :class:`BodyError` if it cannot be decoded."""
        if not self.sys_flag & _DECODED:
            return self.stored_body
        return decode_body(self.stored_body, self.sys_flag)

    @cached_property
    def properties(self) -> dict[str, str]:
        """All properties, including the reserved ones (TAGS, KEYS, UNIQ_KEY, ...)."""
        return decode_properties(self.raw_properties.decode("utf-8", "replace"))


if TYPE_CHECKING:
    _Fields = PlainFields
else:
    _Fields = PlainFields if _compiled is None else _compiled.Fields


class Record(_Fields):
    """One stored message.

    ``stored_body`` is the body as stored in the log; :attr:`body` is decompressed. ``born_host`` and ``store_host`` are
    ``address:port``. Timestamps are milliseconds since 1970, the producer's clock (born) and the broker's (stored).
    ``broker_name`` is not part of the record: the reader sets it.

    :func:`decode_records` checks the bytes of each record. A record holds copies of its own bytes, not the answer that
    it came in. It has no room for attributes of other names where the module is compiled.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.queue_id}@{self.queue_offset}"
        return f"<{type(self).__name__} {where} {self.message_id} {len(self.stored_body)} bytes>"

    @property
    def tags(self) -> str | None:
        """The tag, if the message has one."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which the message can be found."""
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def message_id(self) -> str:
        """The producer's id (UNIQ_KEY); without one, the broker's id."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: hex of its address, port and the commit log offset."""
        return offset_message_id(self.raw_store_host, self.commit_log_offset)

    @property
    def born_host(self) -> str:
        """The address of the sender, ``address:port``."""
        return show_host(self.raw_born_host)

    @property
    def store_host(self) -> str:
        """The address of the broker that stored it, ``address:port``."""
        return show_host(self.raw_store_host)


R = TypeVar("R", bound=Record)


@overload
def decode_records(data: bytes, *, check_crc: bool = True) -> list[Record]: ...
@overload
def decode_records(data: bytes, make: type[R], *, check_crc: bool = True) -> list[R]: ...
def decode_records(data: bytes, make: type[Record] = Record, *, check_crc: bool = True) -> list[Any]:
    """All records in ``data``, in their order.

    ``make`` is the class of the results. Raises :class:`FatalRemoteFault` if the bytes are not a whole number of
    records, or if a body does not match its CRC.
    """
    if cut_compiled is None or type(data) is not bytes:
        return cut_records(data, make, check_crc)
    records, end = cut_compiled(data, make, check_crc, None, None)
    if end < len(data):
        records += cut_records(data, make, check_crc, end)
    return records


def decode_pulled(data: bytes, make: type[R], broker_name: str, delivery: object, *, check_crc: bool = True) -> list[R]:
    """As :func:`decode_records`, for records with a ``delivery``: sets that and ``broker_name``."""
    records: list[R] = []
    end = 0
    if cut_compiled is not None and type(data) is bytes:
        records, end = cut_compiled(data, make, check_crc, broker_name, delivery)
    if end < len(data):
        records += cut_records(data, make, check_crc, end, broker_name, delivery)
    return records


def sort_damaged(data: bytes, make: type[R], broker_name: str, delivery: object) -> tuple[list[R], list[R]]:
    """As :func:`decode_pulled`: the records whose body matches its CRC, and those whose body does not.

    Raises :class:`FatalRemoteFault` only if the bytes are not a whole number of records.
    """
    intact: list[R] = []
    damaged: list[R] = []
    start = 0
    for record in decode_pulled(data, make, broker_name, delivery, check_crc=False):
        (crc,) = _I32.unpack_from(data, start + _CRC_AT)
        (intact if zlib.crc32(record.stored_body) & _CRC_MASK == crc else damaged).append(record)
        start += record.stored_size
    return intact, damaged


def stored_sizes(records: list[R]) -> list[int]:
    """The ``stored_size`` of each record."""
    if _compiled is None:
        return [record.stored_size for record in records]
    sizes: list[int] = _compiled.stored_sizes(records)
    return sizes


def cut_records(
    data: bytes, make: type[R], check_crc: bool, start: int = 0, broker_name: str | None = None, delivery: object = None
) -> list[R]:
    """The plain twin of :func:`decode_records`, from ``start`` on; of :func:`decode_pulled` with a ``broker_name``."""
    records: list[R] = []
    crc32, unpack, whole = zlib.crc32, _CUT_V4.unpack_from, len(data)
    is_plain, is_pulled = issubclass(make, PlainFields), broker_name is not None
    topic, raw_topic = "", b""
    try:
        while start < whole:
            size, magic, crc, queue_offset, sys_flag, body_length = unpack(data, start)
            body_start = start + _CUT_V4.size
            if sys_flag & _HOSTS_V6:
                (body_length,) = _I32.unpack_from(data, start + HEADS[sys_flag & _HOSTS_V6].size - _I32.size)
                body_start = start + HEADS[sys_flag & _HOSTS_V6].size
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                raise FatalRemoteFault(f"no record at byte {start}: magic {magic:08X}")
            end = start + size
            topic_at = body_start + body_length
            if not body_start < end <= whole or not body_start <= topic_at < end:
                raise FatalRemoteFault(f"the record at byte {start} claims {size} bytes with a body of {body_length}")
            if magic == MAGIC_V1:
                topic_start = topic_at + 1
                topic_end = topic_start + data[topic_at]
            else:
                topic_start = topic_at + 2
                topic_end = topic_start + _U16.unpack_from(data, topic_at)[0]
            properties_start = topic_end + 2
            if properties_start + (data[topic_end] << 8) + data[topic_end + 1] != end:
                raise FatalRemoteFault(f"the record at byte {start} does not end where its size of {size} says")
            body = data[body_start:topic_at]
            if check_crc and crc32(body) & _CRC_MASK != crc:
                raise FatalRemoteFault(f"the body of the record at byte {start} does not match its CRC")
            if data[topic_start:topic_end] != raw_topic:
                raw_topic = data[topic_start:topic_end]
                topic = raw_topic.decode("utf-8", "replace")
            record: Any = make.__new__(make)
            records.append(record)
            if not is_plain:  # what compiled code has left to this function, because it is damaged or almost
                properties = data[properties_start:end]
                record._fill(data[start:body_start], topic, size, body, properties, broker_name, delivery)
                start = end
                continue
            record._head = data[start:body_start]
            record.topic = topic
            record.queue_offset = queue_offset
            record.stored_size = size
            record.stored_body = body
            if not sys_flag & _DECODED:
                record.body = body
            record.raw_properties = data[properties_start:end]
            # attributes that are set later would give each object a dictionary of its own
            if is_pulled:
                record.broker_name = broker_name
                record.delivery = delivery
            start = end
    except (struct.error, IndexError):
        raise FatalRemoteFault(f"a torn record at byte {start} of {whole}") from None
    return records


def decode_body(stored: bytes, sys_flag: int) -> bytes:
    """The body of a record whose ``sys_flag`` says that it is compressed or a batch; :class:`BodyError`."""
    if sys_flag & INNER_BATCH:
        raise BodyError("a batch kept as one record (a topic of type BatchCQ), which cannot be read")
    return decompress(stored, sys_flag)


def decompress(body: bytes, sys_flag: int, limit: int = BODY_MAX_BYTES) -> bytes:
    """``body`` decompressed by the method in ``sys_flag``; :class:`BodyError` beyond ``limit`` bytes."""
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, 0x300):
        return _inflate(body, limit)
    if kind == 0x100:
        return _unpack_lz4(body, limit)
    if kind == 0x200:
        return _unpack_zstandard(body, limit)
    raise BodyError(f"unknown compressor {kind >> 8} in sys flag {sys_flag:#x}")


def _inflate(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        result = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise BodyError(f"a zlib body cannot be unpacked: {error}") from None
    return _whole(result, unpacker.eof, limit, "zlib")


def _missing(kind: str, package: str) -> CompressorMissing:
    extras = "'gantrymq[compression]' (or 'gantrymq-client[compression]' if only the client is installed)"
    return CompressorMissing(f"{kind} body needs the package {package}: run pip install {extras}")


def _unpack_lz4(body: bytes, limit: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("an LZ4", "lz4") from None
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        result: bytes = unpacker.decompress(body, limit + 1)
    except RuntimeError as error:
        raise BodyError(f"an LZ4 body cannot be unpacked: {error}") from None
    return _whole(result, unpacker.eof, limit, "LZ4")


def _unpack_zstandard(body: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("a Zstandard", "zstandard") from None
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        # Its output cannot be limited, but its input can: four bytes are at most one block of 128 KiB.
        for start in range(0, len(body), _ZSTANDARD_PIECE_BYTES):
            parts.append(unpacker.decompress(body[start : start + _ZSTANDARD_PIECE_BYTES]))
            size += len(parts[-1])
            if unpacker.eof or size > limit:
                break
    except zstandard.ZstdError as error:
        raise BodyError(f"a Zstandard body cannot be unpacked: {error}") from None
    return _whole(b"".join(parts), unpacker.eof, limit, "Zstandard")


def _whole(result: bytes, finished: bool, limit: int, kind: str) -> bytes:
    if len(result) > limit:
        raise BodyError(f"a {kind} body unpacks to more than {limit} bytes")
    if not finished:
        raise BodyError(f"a {kind} body is cut short")
    return result


def show_host(raw: bytes) -> str:
    """A host as a record has it, as ``address:port``."""
    port = int.from_bytes(raw[-4:], "big")
    if len(raw) == 8:
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}:{port}"
    return f"[{IPv6Address(raw[:16])}]:{port}"
