"""The body of REGISTER_BROKER (103): plain JSON, or a compressed binary form that is smaller with many topics.

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
from collections.abc import Collection, Generator, Iterable
from typing import Final, cast

import msgspec

from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.body import TOLERANT_VALUES_MAX, Body, check_values, count_values
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicQueueMapping
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

INFLATED_MAX_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of a decompressed body: 200,000 topics with the longest names."""
REGISTERED_TOPICS_MAX: Final = 200_000
"""The most topics of one registration; more are refused before they are decoded."""
STEPS_FROM: Final = 65_536
"""The size in bytes from which a plain JSON body is decoded topic by topic."""
STEP_TOPICS: Final = 256
STEP_BYTES: Final = 262_144
"""The topics and decompressed bytes of one step: about a millisecond."""
_I32 = struct.Struct(">i")
_FASTEST: Final = 1


class _WrapperFrame(msgspec.Struct, rename="camel"):
    """:class:`TopicConfigSerializeWrapper` with topics that are not decoded yet."""

    topic_config_table: dict[str, msgspec.Raw] = {}
    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] | None = None


class _Frame(msgspec.Struct, rename="camel"):
    """:class:`RegisterBrokerBody` with topics that are not decoded yet."""

    topic_config_serialize_wrapper: _WrapperFrame = msgspec.field(default_factory=_WrapperFrame)
    filter_server_list: list[str] = []


class RegisterBrokerBody(Body):
    """The body of a broker's registration: its topics and filter servers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = msgspec.field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = []

    def encode(self, compressed: bool = False) -> bytes:
        """The encoded body; the header has its :func:`body_crc32`."""
        if not compressed:
            return self.to_bytes()
        wrapper = self.topic_config_serialize_wrapper
        pieces = [_sized(wrapper.data_version.to_bytes()), _I32.pack(len(wrapper.topic_config_table))]
        pieces += map(topic_for_compressed, wrapper.topic_config_table.values())
        pieces.append(_sized(write_filter_servers(self.filter_server_list)))
        if wrapper.topic_queue_mapping_info_map is not None:
            pieces.append(_I32.pack(len(wrapper.topic_queue_mapping_info_map)))
            pieces += [_sized(mapping.to_bytes()) for mapping in wrapper.topic_queue_mapping_info_map.values()]
        return zlib.compress(b"".join(pieces), 9)

    @classmethod
    def decode(cls, data: bytes, compressed: bool = False) -> RegisterBrokerBody:
        """The inverse of :meth:`encode`; :class:`RemoteFault` (code 1) for invalid data.

        The limits of :meth:`Body.from_request` apply to JSON that is not plain.
        """
        steps = cls.decode_in_steps(data, compressed)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast("RegisterBrokerBody", done.value)

    @classmethod
    def decode_in_steps(cls, data: bytes, compressed: bool = False) -> Generator[None, None, RegisterBrokerBody]:
        """:meth:`decode` as a generator, which yields about once a millisecond."""
        if not compressed:
            return (yield from cls._decode_json(data))
        inflated = yield from _inflate(data)
        reader = _Sized(inflated)
        version = DataVersion.from_request(reader.take())
        topics: dict[str, TopicConfig] = {}
        count = reader.number()
        _check_count(count)
        for number in range(count):
            topic = TopicConfig.from_text(reader.text())
            topics[topic.topic_name] = topic
            if number % STEP_TOPICS == 0:
                yield
        filter_servers = read_filter_servers(reader.take())
        mappings = None
        if not reader.ended:
            pieces = [reader.take() for _ in range(_check_count(reader.number()))]
            yield
            # The limit for bodies that Python reads applies to all topics together.
            values = 0
            for number, piece in enumerate(pieces):
                values += count_values(piece)
                if number % STEP_TOPICS == 0:
                    yield
            values_max = TOLERANT_VALUES_MAX if values <= TOLERANT_VALUES_MAX else 0
            mappings = {}
            for number, piece in enumerate(pieces):
                mapping = TopicQueueMapping.from_bytes(piece, values_max)
                mappings[mapping.topic] = mapping
                if number % STEP_TOPICS == 0:
                    yield
        return cls(TopicConfigSerializeWrapper(topics, version, mappings or None), filter_servers)

    @classmethod
    def _decode_json(cls, data: bytes) -> Generator[None, None, RegisterBrokerBody]:
        if len(data) > STEPS_FROM and b"$ref" not in data:
            _check_count(data.count(b"{"), 4 * REGISTERED_TOPICS_MAX)
            try:
                frame = msgspec.json.decode(data, type=_Frame)
                yield
                wrapper = frame.topic_config_serialize_wrapper
                _check_count(len(wrapper.topic_config_table))
                topics: dict[str, TopicConfig] = {}
                for number, (name, raw) in enumerate(wrapper.topic_config_table.items()):
                    topics[name] = msgspec.json.decode(raw, type=TopicConfig)
                    if number % STEP_TOPICS == 0:
                        yield
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # not in the form of RocketMQ's broker: the tolerant decoder decides
            else:
                taken = TopicConfigSerializeWrapper(topics, wrapper.data_version, wrapper.topic_queue_mapping_info_map)
                return cls(taken, frame.filter_server_list)
        return cls.from_request(data)


def _check_count(count: int, most: int = REGISTERED_TOPICS_MAX) -> int:
    if count > most:
        raise _fault(f"{count} topics, {most} are the limit")
    return count


def topic_for_compressed(topic: TopicConfig) -> bytes:
    """One topic for :func:`join_compressed`."""
    return _sized(topic.to_text().encode())


def join_compressed(version: DataVersion, topics: Collection[bytes], filter_servers: Iterable[str]) -> bytes:
    """The compressed form of a registration. Uses zlib's fastest level: 15 times as fast as RocketMQ's, which is 9,
    for a result a third larger."""
    head = _sized(version.to_bytes()) + _I32.pack(len(topics))
    return zlib.compress(b"".join((head, *topics, _sized(write_filter_servers(filter_servers)))), _FASTEST)


def body_crc32(data: bytes) -> int:
    """RocketMQ's checksum of a body: CRC-32 without the highest bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def _inflate(data: bytes) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    pieces: list[bytes] = []
    size = 0
    try:
        while data and not inflater.eof and size <= INFLATED_MAX_BYTES:
            pieces.append(inflater.decompress(data, STEP_BYTES))
            data = inflater.unconsumed_tail
            size += len(pieces[-1])
            yield
    except zlib.error as error:
        raise _fault(str(error)) from None
    if not inflater.eof or size > INFLATED_MAX_BYTES:
        raise _fault(f"the compressed body ends early or grows beyond {INFLATED_MAX_BYTES} bytes")
    return b"".join(pieces)


def _sized(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


class _Sized:
    """Reads length-prefixed parts one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def ended(self) -> bool:
        """Whether all data has been read."""
        return self.at == len(self.data)

    def number(self) -> int:
        """A count; each item has at least a length field, so a count that cannot fit is refused at once."""
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
            raise _fault(f"not UTF-8: {error.reason}") from None


def _fault(what: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, f"RegisterBrokerBody: {what}")


def read_filter_servers(data: bytes) -> list[str]:
    """The list of filter server addresses at the end of a compressed registration; :class:`RemoteFault` (code 1)."""
    try:
        return msgspec.json.decode(data, type=list[str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass  # most likely the dialect: the tolerant way decides
    try:
        check_values(data, TOLERANT_VALUES_MAX)
        return msgspec.convert(fastjson.loads(data), list[str])
    except ValueError as error:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"filterServerList: {error}") from None


def write_filter_servers(addresses: Iterable[str]) -> bytes:
    """The inverse of :func:`read_filter_servers`."""
    return fastjson.dumps(list(addresses))
