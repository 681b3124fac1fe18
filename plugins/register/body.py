"""The requests of a broker to a nameserver: REGISTER_BROKER (103), with its body, and UNREGISTER_BROKER (104).

Source: RocketMQ 4.9.7 ``BrokerOuterAPI``; its nameserver and 5.3.3's read the same format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.interfaces import Replication
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
    join_compressed,
    topic_for_compressed,
)
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD
from gantrymq.remoting.fastjson import dumps, join_between
from gantrymq.remoting.headers.nameserver import BrokerHeader, RegisterBrokerHeader

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.remoting.epoch import Epoch


log = structlog.get_logger("gantrymq.register")


COMPRESSED_FROM_BYTES: Final = 8 * 1024 * 1024
"""The size of the topics as JSON from which the body is compressed: it must fit into a frame. The compressed form lacks
the system flags and attributes of topics."""


class _TopicTexts:
    """The texts of all topics, each cached until its configuration changes."""

    def __init__(self, encode: Callable[[str, TopicConfig], bytes]) -> None:
        self._encode = encode
        self._topics: dict[str, TopicConfig] = {}
        self._texts: dict[str, bytes] = {}
        self.size = 0
        """The bytes of all texts."""
        self.changes = 0
        """The number of topics that were added, changed or removed."""

    def update(self, topics: Mapping[str, TopicConfig]) -> Collection[bytes]:
        """Return the texts of ``topics``."""
        known, texts = self._topics, self._texts
        find = known.get
        changed = [(name, topic) for name, topic in topics.items() if find(name) is not topic]
        self.changes += len(changed)
        for name, topic in changed:
            known[name] = topic
            text = self._encode(name, topic)
            self.size += len(text) - len(texts.get(name, b""))
            texts[name] = text
        if len(known) > len(topics):
            for name in known.keys() - topics.keys():
                del known[name]
                self.size -= len(texts.pop(name))
                self.changes += 1
        return texts.values()


class Announcement:
    """Builds the requests. The text of each topic is cached until its configuration changes, so that a registration is
    a join; a compressed body is cached until a topic changes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._json = _TopicTexts(_to_json)
        self._compressible: _TopicTexts | None = None
        """Exists while the body is compressed."""
        self._compressed = b""
        self._compressed_of: tuple[bytes, int] | None = None
        """What is compressed: the JSON of all but the topics, and the number of changes of the topics."""
        self._version = DataVersion()
        """As it was registered last."""

    def register(self) -> Command:
        """Return the present request, with the parts of all plugins (hook ``advertise``)."""
        broker = self._broker
        replication = broker.registry.find(Replication)
        epoch = None if replication is None else replication.epoch
        body, is_compressed = self._encode(RegisterBrokerBody(**self._collect()), epoch)
        host, port = parse_address(broker.address)
        header = RegisterBrokerHeader(
            broker_name=broker.name,
            broker_addr=broker.address,
            cluster_name=broker.cluster,
            ha_server_addr=(replication and replication.ha_address) or format_address(host, port + 1),
            broker_id=broker.broker_id,
            compressed=is_compressed,
            body_crc32=body_crc32(body),
            # As 5.x brokers set it: a nameserver that supports it accepts topics from a slave while there is no master,
            # so a restarted nameserver still returns the slave to consumers.
            enable_acting_master=False,
        )
        ext = header.to_ext()
        if epoch is not None:
            ext[EPOCH_FIELD] = str(epoch)
        return Command(RequestCode.REGISTER_BROKER, ext, body)

    def query(self) -> Command:
        """Ask whether the nameserver has this broker's last registration (322); small, and also a heartbeat."""
        ext = self._header().to_ext()
        replication = self._broker.registry.find(Replication)
        if replication is not None:
            ext[EPOCH_FIELD] = str(replication.epoch)
        return Command(RequestCode.QUERY_DATA_VERSION, ext, self._version.to_bytes())

    def unregister(self) -> Command:
        """Return the request to unregister."""
        return Command(RequestCode.UNREGISTER_BROKER, self._header().to_ext())

    def _header(self) -> BrokerHeader:
        broker = self._broker
        return BrokerHeader(
            broker_name=broker.name,
            broker_addr=broker.address,
            cluster_name=broker.cluster,
            broker_id=broker.broker_id,
        )

    def _collect(self) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for info, call in self._broker.manager.calls("advertise", broker=self._broker):
            try:
                part = _checked(call())
            except Exception as error:  # if a plugin fails, only its part is missing
                self._broker.manager.activity.failed(info.name, "advertise", error)
                log.exception("plugin_failed", plugin=info.name, hook="advertise")
                continue
            doubled = parts.keys() & part.keys()
            if doubled:
                raise StartError(f"two plugins advertise {', '.join(sorted(doubled))}: disable one of them")
            parts.update(part)
        return parts

    def _encode(self, body: RegisterBrokerBody, epoch: Epoch | None) -> tuple[bytes, bool]:
        """Return the body, and whether it is compressed."""
        wrapper = body.topic_config_serialize_wrapper
        version = wrapper.data_version
        if epoch is not None and not self._broker.broker_id:  # RocketMQ 5's nameserver lets the higher one stay
            version = DataVersion(version.counter, version.timestamp, epoch.number)
        self._version = version
        begin = b'{"filterServerList":%s,"topicConfigSerializeWrapper":{"dataVersion":%s,"topicConfigTable":{' % (
            dumps(body.filter_server_list),
            version.to_bytes(),
        )
        texts = self._json.update(wrapper.topic_config_table)
        if self._json.size < COMPRESSED_FROM_BYTES:
            self._compressible, self._compressed, self._compressed_of = None, b"", None
            return join_between(begin, texts, b"}}}"), False
        if self._compressible is None:
            self._compressible = _TopicTexts(_to_compressible)
        if self._compressed_of != (begin, self._json.changes):
            texts = self._compressible.update(wrapper.topic_config_table)
            self._compressed = join_compressed(version, texts, body.filter_server_list)
            self._compressed_of = begin, self._json.changes
        return self._compressed, True


def _to_json(name: str, topic: TopicConfig) -> bytes:
    return dumps(name) + b":" + topic.to_bytes()


def _to_compressible(_: str, topic: TopicConfig) -> bytes:
    return topic_for_compressed(topic)


def _checked(part: Any) -> dict[str, Any]:
    unknown = set(part) - set(RegisterBrokerBody.__struct_fields__)
    if unknown or not isinstance(part, dict):
        raise TypeError(f"not a part of RegisterBrokerBody: {part!r:.100}")
    return part
