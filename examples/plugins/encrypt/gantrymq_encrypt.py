"""Encrypts the bodies of messages in the broker's files (AES-GCM). Clients send and receive them as they are.

Slot: none. Hooks: config_section, configure, before_append, before_deliver. Files: the one of the keys, which it reads.
Config ``[plugin.encrypt]``: ``keys``, a file with an id and 16, 24 or 32 bytes in base64 in each line; ``current``, the
id of the key for new messages; ``topics``, whose messages are encrypted, all of them without it.

Rotation: add a line to the file, name its id in ``current``, restart. Keep a key for as long as there are messages of
it: without it they cannot be delivered, and no consumer goes past them. Random nonces are safe for 2**32 messages of a
key.

A slave has its master's bytes, and needs the plugin with the same keys to serve consumers. Properties, keys and tags
among them, are not encrypted: queries and filters need them. Java clients, the Spark source and ``gantrymq export``
read through the broker and get the bodies as they were sent. A program that reads the store's files, such as RocketMQ's
broker, finds encrypted bodies.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import Source
from gantrymq.kernel.config.fields import filled
from gantrymq.kernel.errors import StartError
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TRANS_OP_HALF_TOPIC, is_retry_topic
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES, find_property, replace_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.delivery import DeliverBatch

MARK: Final = b"ENCRYPTED"
"""The property of an encrypted message, in the store only: the id of its key."""
RETRIED_TOPIC: Final = b"RETRY_TOPIC"
"""The property of a message in a retry topic: the topic to which it was sent at first."""
BROKERS_OWN: Final = frozenset({TRANS_OP_HALF_TOPIC})
"""Topics of which the broker itself reads the bodies."""
NONCE_BYTES: Final = 12
MORE_BYTES: Final = NONCE_BYTES + 16
"""What encryption adds to a body."""


class NotReadable(Exception):
    """The body cannot be decrypted; the text says why."""


@attrs.frozen
class EncryptConfig:
    """``[plugin.encrypt]``."""

    keys: str = filled("keys.txt")
    current: str = filled("1")
    topics: tuple[str, ...] = ()


class EncryptPlugin:
    """One object a broker."""

    name = "encrypt"
    version = "1.0.0"
    sources = Source.ALL
    """What was stored before the plugin was there is encrypted when the broker appends it again."""

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "encrypt", EncryptConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the keys; without the current one nothing starts."""
        section = config.section(EncryptConfig)
        self._keys = read_keys(section.keys)
        if section.current not in self._keys:
            raise StartError(f"plugin.encrypt.current = {section.current!r}: {section.keys!r} has no such key")
        self._current = section.current.encode()
        self._cipher = self._keys[section.current]
        self._topics = frozenset(section.topics)
        self._body_max = config.store.max_message_bytes - MORE_BYTES

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        """Encrypt what is not encrypted yet: the broker appends some messages more than once, a delayed one, say."""
        for row in batch.live:
            properties, body = batch.properties[row], batch.bodies[row]
            if find_property(properties, MARK) is not None:
                try:
                    self._decrypted(properties, body)
                except NotReadable as error:
                    batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, f"property {MARK.decode()}: {error}")
                continue
            topic = batch.topics[row]
            if is_retry_topic(topic):  # a consumer sends back what it has decrypted
                topic = (find_property(properties, RETRIED_TOPIC) or b"").decode("utf-8", "replace")
            if topic in BROKERS_OWN or (self._topics and topic not in self._topics):
                continue
            marked = replace_properties(properties, {MARK: self._current})
            if len(body) > self._body_max or len(marked) > PROPERTIES_MAX_BYTES:
                batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "the message is too long to be encrypted")
                continue
            nonce = os.urandom(NONCE_BYTES)
            batch.bodies[row] = nonce + self._cipher.encrypt(nonce, body, self._current)
            batch.properties[row] = marked

    @hookimpl(tryfirst=True)
    def before_deliver(self, batch: DeliverBatch) -> None:
        """Decrypt. What cannot be decrypted raises: the broker does not deliver it, and no consumer goes past it."""
        for row in batch.live:
            properties = batch.properties[row]
            if find_property(properties, MARK) is not None:
                batch.bodies[row] = self._decrypted(properties, batch.bodies[row])
                batch.properties[row] = replace_properties(properties, {MARK: None})

    def _decrypted(self, properties: bytes, body: bytes) -> bytes:
        mark = find_property(properties, MARK) or b""
        cipher = self._keys.get(mark.decode("utf-8", "replace"))
        if cipher is None:
            raise NotReadable(f"there is no key {mark[:64]!r}")
        try:
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], mark)
        except (InvalidTag, ValueError):
            raise NotReadable(f"the body was not encrypted with the key {mark[:64]!r}") from None


def read_keys(path: str) -> dict[str, AESGCM]:
    """The ciphers by id; ``StartError`` names the line that is wrong, never what it says."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"plugin.encrypt.keys = {path!r}: cannot be read: {type(error).__name__}") from None
    keys: dict[str, AESGCM] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            name, text = words
            cipher = AESGCM(base64.b64decode(text, validate=True))
        except ValueError:
            raise StartError(
                f"plugin.encrypt.keys: line {number} of {path!r} must be an id, and 16, 24 or 32 bytes in base64"
            ) from None
        if name in keys:
            raise StartError(f"plugin.encrypt.keys: line {number} of {path!r} names {name!r} once more")
        keys[name] = cipher
    return keys
