"""The body of REGISTER_BROKER (103): plain JSON, or the compressed binary form that costs less with many topics.

::

    zlib( i32 length, DataVersion as JSON
          i32 number of topics
          i32 length, "name read write perm FILTERTYPE"      for each topic
          i32 length, list of filter servers as JSON
          i32 number of mappings                             5.x only
          i32 length, mapping of a static topic as JSON      for each )

Source: RocketMQ 4.9.7 and 5.3.3 ``RegisterBrokerBody``, ``BrokerOuterAPI``; integers are big-endian.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from gantrymq.remoting.bodies import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicQueueMapping,
    read_filter_servers,
    write_filter_servers,
)
from gantrymq.remoting.body import TOLERANT_VALUES_MAX, Body, count_values
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

INFLATED_MAX_BYTES: Final = 64 * 1024 * 1024
"""The longest a compressed body may grow: about a million topics."""

_I32 = struct.Struct(">i")


class RegisterBrokerBody(Body):
    """The body of a broker's registration: its topics and filter servers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = msgspec.field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = []

    def encode(self, compressed: bool = False) -> bytes:
        """The body as it travels; :func:`body_crc32` of it goes into the header."""
        if not compressed:
            return self.to_bytes()
        wrapper = self.topic_config_serialize_wrapper
        pieces = [_sized(wrapper.data_version.to_bytes()), _I32.pack(len(wrapper.topic_config_table))]
        pieces += [_sized(topic.to_text().encode()) for topic in wrapper.topic_config_table.values()]
        pieces.append(_sized(write_filter_servers(self.filter_server_list)))
        if wrapper.topic_queue_mapping_info_map is not None:
            pieces.append(_I32.pack(len(wrapper.topic_queue_mapping_info_map)))
            pieces += [_sized(mapping.to_bytes()) for mapping in wrapper.topic_queue_mapping_info_map.values()]
        return zlib.compress(b"".join(pieces), 9)

    @classmethod
    def decode(cls, data: bytes, compressed: bool = False) -> RegisterBrokerBody:
        """The inverse of :meth:`encode`; :class:`RemoteFault` (code 1) for what cannot be read.

        Of JSON that is not plain it reads as much as any request may have, see :meth:`Body.from_request`.
        """
        if not compressed:
            return cls.from_request(data)
        reader = _Sized(_inflate(data))
        version = DataVersion.from_request(reader.take())
        topics: dict[str, TopicConfig] = {}
        for _ in range(reader.number()):
            topic = TopicConfig.from_text(reader.text())
            topics[topic.topic_name] = topic
        filter_servers = read_filter_servers(reader.take())
        mappings = None
        if not reader.ended:
            pieces = [reader.take() for _ in range(reader.number())]
            # The limit of a body that Python reads holds for all of them together.
            values_max = TOLERANT_VALUES_MAX if sum(map(count_values, pieces)) <= TOLERANT_VALUES_MAX else 0
            found = [TopicQueueMapping.from_bytes(piece, values_max) for piece in pieces]
            mappings = {mapping.topic: mapping for mapping in found} or None
        return cls(TopicConfigSerializeWrapper(topics, version, mappings), filter_servers)


def body_crc32(data: bytes) -> int:
    """The checksum of a body as RocketMQ has it: CRC-32 without its highest bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        result = inflater.decompress(data, INFLATED_MAX_BYTES)
    except zlib.error as error:
        raise _fault(str(error)) from None
    if not inflater.eof:
        raise _fault(f"the compressed body ends early or grows beyond {INFLATED_MAX_BYTES} bytes")
    return result


def _sized(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


class _Sized:
    """Takes length-prefixed pieces from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.at == len(self.data)

    def number(self) -> int:
        """A count; every counted thing takes at least its own length, so more than fit are refused at once."""
        if self.at + 4 > len(self.data):
            raise _fault("it ends early")
        (value,) = _I32.unpack_from(self.data, self.at)
        self.at += 4
        if not 0 <= value <= len(self.data) - self.at:
            raise _fault(f"a length of {value} with {len(self.data) - self.at} bytes left")
        return int(value)

    def take(self) -> bytes:
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at]

    def text(self) -> str:
        try:
            return self.take().decode()
        except UnicodeDecodeError as error:
            raise _fault(f"no UTF-8: {error.reason}") from None


def _fault(what: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, f"RegisterBrokerBody: {what}")
