"""The typed headers of replies to requests, and the fifth part of the table of request codes.

Source: RocketMQ 4.9.7 ``ReplyMessageRequestHeader``, ``SendMessageRequestHeader``; unchanged in 5.3.3.
"""

from __future__ import annotations

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers import Header, Int32, Int64, RequestSpec, SendMessageHeader, SendMessageResponse


class ReplyMessageHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): the fields of the reply as it was sent, and where it comes from.

    ``born_host`` and ``store_host`` are ``address:port`` of the replying client and of the broker, the address in
    digits.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


REPLY_REQUESTS: dict[RequestCode, RequestSpec] = {
    RequestCode.SEND_REPLY_MESSAGE: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: RequestSpec("client", ReplyMessageHeader),
}
