"""The bodies about topics, and RocketMQ's file of them.

The fields that 5.3.3 added are optional and omitted unless set, so that both versions read the text. Source: RocketMQ
4.9.7 ``TopicConfig``, ``TopicConfigSerializeWrapper``, ``TopicList``.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import Int32, Int64


class TopicConfig(Body):
    """A topic's settings on one broker."""

    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None

    def to_text(self) -> str:
        """``name read write perm FILTERTYPE``, the form in compressed registrations; the other fields are lost."""
        return f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} {self.topic_filter_type}"

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """The inverse of :meth:`to_text`; accepts the form of 5.3.3, and ignores the attributes at its end.

        :class:`RemoteFault` (code 1) for anything else.
        """
        words = text.split(" ", 5)
        try:
            name, reads, writes, perm, kind = words[:5]
            numbers = [int(reads), int(writes), int(perm)]
            if min(numbers) < -0x80000000 or max(numbers) > 0x7FFFFFFF:
                raise ValueError("a number of more than 32 bits")
        except ValueError:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"TopicConfig: unreadable text {text[:200]!r}") from None
        return cls(name, numbers[0], numbers[1], numbers[2], kind)


class TopicQueueMapping(Body):
    """The logical queues of a static topic on a broker, logical id to queue id (``TopicQueueMappingInfo``, 5.x)."""

    topic: str = ""
    scope: str = "__global__"
    total_queues: Int32 = 0
    bname: str = ""
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[Int32, Int32] = {}


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker: body of 21, file ``topics.json``. 5.x brokers register mappings of static topics too."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] | None = None


class TopicList(Body):
    """Names of topics; ``broker_addr`` only in the response to 304."""

    topic_list: list[str] = []
    broker_addr: str | None = None
