"""Turn messages into send requests, and answers into results. No I/O.

Source: RocketMQ 4.9.7 ``DefaultMQProducerImpl.sendKernelImpl``, ``MessageDecoder.encodeMessage`` (batches).
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import anyio

from gantrymq.client.checks import BODY_MAX_BYTES, check_message, encode_message_properties, is_timed
from gantrymq.client.errors import InvalidMessage, broker_error
from gantrymq.client.requests import reading
from gantrymq.client.routes import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES
from gantrymq.message import Message, MessageQueue, SendResult, SendStatus
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import PREFIX
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.send import SendMessageResponse
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.properties import NAME_SEPARATOR, PAIR_SEPARATOR, PGROUP, TIMER_PREFIX, TRAN_MSG, UNIQ_KEY
from gantrymq.remoting.records import BATCH_ROW, COMPRESSED

ONLY_KEY: Final = UNIQ_KEY + NAME_SEPARATOR
"""The properties of a message that has none, but for the key itself."""
TEMPLATES_KEPT: Final = 4096
"""Headers for so many queues at most are kept."""
COMPRESS_FROM_BYTES: Final = 4096
COMPRESS_LEVEL: Final = 5
_COMPRESS_IN_THREAD_BYTES: Final = 256 * 1024

STATUSES: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
"""The codes with which a broker says that a message is stored."""
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ONLY_KEY_BYTES: Final = ONLY_KEY.encode()
SHAPES_KEPT: Final = 4096
_plain_ends: dict[tuple[int, int], tuple[bytes, bytes]] = {}
"""What :func:`encode_plain_row` writes around a body, by the lengths of body and key."""


class Stored:
    """A broker's answer that it has the messages of a request: the results, made when they are asked for."""

    __slots__ = ("_first_offset", "_handle", "_ids", "_keys", "_places", "_queue", "status")

    def __init__(
        self, status: SendStatus, keys: list[str], ids: str, queue: MessageQueue, offset: int, handle: str | None
    ) -> None:
        self.status: SendStatus = status
        self._keys = keys
        self._ids = ids
        self._places: list[str] | None = None if len(keys) > 1 else [ids]
        self._queue = queue
        self._first_offset = offset
        self._handle = handle

    @property
    def broker_name(self) -> str:
        """The broker that has them."""
        return self._queue.broker_name

    def result(self, place: int) -> SendResult:
        """The result of one message of the request, by its place in it."""
        if self._places is None:
            self._places = self._ids.split(",")
        at = self._places[place] if place < len(self._places) else ""
        return SendResult(self.status, self._keys[place], at, self._queue, self._first_offset + place, self._handle)

    def results(self) -> list[SendResult]:
        """The results of all messages in their order."""
        return [self.result(place) for place in range(len(self._keys))]


class PlainFrames:
    """Encodes requests for messages that have a body and a unique key and nothing else, of one group.

    The bytes are those of :meth:`Outgoing.command`. All but the time, the key and the opaque number is the same for all
    messages to a queue, and is kept.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._templates: dict[tuple[str, int], bytes] = {}

    def template(self, topic: str, queue: MessageQueue) -> bytes:
        """The header of requests for ``queue``, with places for time, key and opaque number."""
        template = self._templates.get((topic, queue.queue_id))
        if template is None:
            if len(self._templates) >= TEMPLATES_KEPT:
                self._templates.clear()
            command = Outgoing(topic, b"", [], properties=ONLY_KEY + "@key@").command(self._group, queue)
            assert command.ext is not None  # of a send it never is
            command.ext["g"] = "@born@"
            # no name has a quote or an @
            template = encode(command)[PREFIX.size :].replace(b"%", b"%%").replace(b"@born@", b"%d")
            template = template.replace(b"@key@", b"%b").replace(b'"opaque":0,', b'"opaque":%d,')
            self._templates[topic, queue.queue_id] = template
        return template


class PlainRequest:
    """One request of :class:`PlainFrames`, as a channel takes it."""

    __slots__ = ("_outgoing", "_template")

    code: int = RequestCode.SEND_MESSAGE_V2

    def __init__(self, outgoing: Outgoing, template: bytes) -> None:
        self._outgoing = outgoing
        self._template = template

    def encode(self, opaque: int) -> bytes:
        """The whole frame."""
        outgoing = self._outgoing
        body = outgoing.body
        header = self._template % (outgoing.born, outgoing.keys[0].encode(), opaque)
        size = len(header)
        return PREFIX.pack(4 + size + len(body), size) + header + body


class Outgoing:
    """What one request carries, the same for every attempt; ``keys`` are the unique keys of its messages."""

    __slots__ = ("batch", "body", "born", "flag", "is_plain", "keys", "properties", "sys_flag", "timed", "topic")

    def __init__(self, topic: str, body: bytes, keys: list[str], *, properties: str = "", batch: bool = False) -> None:
        self.topic: str = topic
        self.body: bytes = body
        self.keys: list[str] = keys
        self.properties: str = properties
        self.batch: bool = batch
        self.flag: int = 0
        self.sys_flag: int = 0
        self.timed: bool = has_times(properties)
        self.is_plain: bool = False
        """Whether :class:`PlainFrames` can encode it."""
        self.born: int = int(time.time() * 1000)

    def command(self, group: str, queue: MessageQueue) -> Command:
        """The request that sends it to ``queue``; the letters are ``SEND_LETTERS``."""
        ext = {
            "a": group, "b": self.topic, "c": DEFAULT_TOPIC, "d": str(DEFAULT_TOPIC_QUEUES), "e": str(queue.queue_id),
            "f": str(self.sys_flag), "g": str(self.born), "h": str(self.flag), "i": self.properties, "j": "0",
            "k": "false", "m": "true" if self.batch else "false",
        }  # fmt: skip
        code = RequestCode.SEND_BATCH_MESSAGE if self.batch else RequestCode.SEND_MESSAGE_V2
        return Command(code, ext, self.body)

    def stored(self, queue: MessageQueue, answer: Command, address: str) -> Stored:
        """What ``answer`` says of its messages; :class:`BrokerError` when the broker at ``address`` took none."""
        status = STATUSES.get(answer.code)
        if status is None:
            raise broker_error(answer, address)
        ext = answer.ext
        try:
            # what any broker answers; the typed header, which costs more, finds the fault of anything else
            assert ext is not None
            ids, queue_id, offset = ext["msgId"], int(ext["queueId"]), int(ext["queueOffset"])
            handle = ext.get("recallHandle")
        except (AssertionError, KeyError, ValueError):
            with reading(address):
                header = read_header(SendMessageResponse, ext)
            ids, queue_id, offset, handle = header.msg_id, header.queue_id, header.queue_offset, header.recall_handle
        if queue_id != queue.queue_id:
            queue = MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue_id)
        return Stored(status, self.keys, ids, queue, offset, handle)


async def prepare(
    message: Message, new_key: Callable[[], str], added: Mapping[str, str] = MappingProxyType({})
) -> Outgoing:
    """The request for one message, its body compressed from 4 KiB on where that makes it smaller.

    ``added`` are properties that a user may not give.
    """
    check_message(message)
    key = new_key()
    body = bytes(message.body)
    outgoing = Outgoing(message.topic, body, [key], properties=encode_message_properties(message, key, added))
    outgoing.flag = message.flag
    await compress(outgoing)
    return outgoing


def prepare_plain(topic: str, body: bytes, key: str) -> Outgoing:
    """As :func:`prepare`, for a message that has a checked topic and body and nothing else; does not compress."""
    outgoing = Outgoing(topic, body, [key])
    outgoing.properties = ONLY_KEY + key
    outgoing.is_plain = True
    return outgoing


async def compress(outgoing: Outgoing) -> None:
    """Compress a body of 4 KiB or more where that makes it smaller."""
    body = outgoing.body
    if len(body) >= COMPRESS_FROM_BYTES:
        if len(body) < _COMPRESS_IN_THREAD_BYTES:
            packed = zlib.compress(body, COMPRESS_LEVEL)
        else:
            packed = await anyio.to_thread.run_sync(zlib.compress, body, COMPRESS_LEVEL)
        if len(packed) < len(body):
            outgoing.body = packed
            outgoing.sys_flag = COMPRESSED
            outgoing.is_plain = False


async def prepare_half(message: Message, group: str, new_key: Callable[[], str]) -> Outgoing:
    """The request for a message that no consumer sees until a producer of ``group`` has committed it."""
    if is_timed(message):
        raise InvalidMessage("a message of a transaction arrives when it is committed: give no delay or deliver_at")
    outgoing = await prepare(message, new_key, {TRAN_MSG: "true", PGROUP: group})
    outgoing.sys_flag |= TransactionState.PREPARED
    return outgoing


def prepare_batches(
    messages: Sequence[Message], new_key: Callable[[], str], limit: int = BODY_MAX_BYTES
) -> list[Outgoing]:
    """The requests for a batch, each of ``limit`` bytes at most; :class:`InvalidMessage` for what cannot be in one."""
    if not messages:
        raise InvalidMessage("a batch needs at least one message")
    topic = messages[0].topic
    parts: list[list[bytes]] = [[]]
    keys: list[list[str]] = [[]]
    size = 0
    for message in messages:
        check_message(message)
        if message.topic != topic:
            raise InvalidMessage(f"a batch has one topic, not both {topic} and {message.topic}")
        if message.delay_level or is_timed(message):
            raise InvalidMessage("a delayed message cannot go in a batch: send it alone, or enqueue it")
        if message.order_key != messages[0].order_key:
            raise InvalidMessage("a batch goes to one queue, so its messages have one order_key: enqueue them instead")
        key = new_key()
        row = encode_row(bytes(message.body), encode_message_properties(message, key), message.flag)
        if size and size + len(row) > limit:
            parts.append([])
            keys.append([])
            size = 0
        size += len(row)
        parts[-1].append(row)
        keys[-1].append(key)
    requests = [Outgoing(topic, b"".join(rows), own, batch=True) for rows, own in zip(parts, keys, strict=True)]
    if any(len(request.body) > BODY_MAX_BYTES for request in requests):
        raise InvalidMessage(
            f"a message and its properties have more than {BODY_MAX_BYTES} bytes, the limit of a batch: send it alone"
        )
    return requests


def has_times(properties: str) -> bool:
    """Whether the text form of a message's properties asks for a time of delivery."""
    return properties.startswith(TIMER_PREFIX) or PAIR_SEPARATOR + TIMER_PREFIX in properties


def can_be_gathered(message: Message, outgoing: Outgoing) -> bool:
    """Whether ``message`` can go in a batch, and is so small that this is of use."""
    delayed = message.delay_level or outgoing.timed
    return len(outgoing.body) < COMPRESS_FROM_BYTES and not (outgoing.sys_flag or delayed)


def encode_row(body: bytes, properties: str, flag: int) -> bytes:
    """One message of a batch as it travels."""
    text = properties.encode()
    size = BATCH_ROW.size + len(body) + _I16.size + len(text)
    return b"".join((BATCH_ROW.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(text)), text))


def encode_plain_row(body: bytes, key: str) -> bytes:
    """:func:`encode_row` for a message that has a unique key and nothing else."""
    shape = len(body), len(key)
    ends = _plain_ends.get(shape)
    if ends is None:
        if len(_plain_ends) >= SHAPES_KEPT:
            _plain_ends.clear()
        size, properties = len(body), len(_ONLY_KEY_BYTES) + len(key)
        head = BATCH_ROW.pack(BATCH_ROW.size + size + _I16.size + properties, 0, 0, 0, size)
        ends = _plain_ends[shape] = head, _I16.pack(properties) + _ONLY_KEY_BYTES
    return ends[0] + body + ends[1] + key.encode()


def row_ends(rows: bytes | bytearray) -> list[int]:
    """Where each of some :func:`encode_row` one behind the other ends."""
    ends: list[int] = []
    end = 0
    while end < len(rows):
        end += _I32.unpack_from(rows, end)[0]
        ends.append(end)
    return ends


async def from_rows(topic: str, rows: bytes, keys: list[str]) -> Outgoing:
    """The request for messages that are encoded already: one goes as a message of its own, more as a batch."""
    if len(keys) > 1:
        return Outgoing(topic, rows, keys, batch=True)
    _, _, _, flag, length = BATCH_ROW.unpack_from(rows)
    end = BATCH_ROW.size + length
    outgoing = Outgoing(topic, rows[BATCH_ROW.size : end], keys, properties=rows[end + _I16.size :].decode())
    outgoing.flag = flag
    outgoing.is_plain = not flag and outgoing.properties == ONLY_KEY + keys[0]
    await compress(outgoing)
    return outgoing
