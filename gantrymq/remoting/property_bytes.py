"""The names of :mod:`gantrymq.remoting.properties` as bytes, as in the encoded properties of a message."""

from __future__ import annotations

from typing import Final

from gantrymq.remoting import properties

TAGS: Final = properties.TAGS.encode()
KEYS: Final = properties.KEYS.encode()
WAIT: Final = properties.WAIT.encode()
DELAY: Final = properties.DELAY.encode()
UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
REAL_QID: Final = properties.REAL_QID.encode()
RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
ORIGIN_MESSAGE_ID: Final = properties.ORIGIN_MESSAGE_ID.encode()
BORN_TIMESTAMP: Final = properties.BORN_TIMESTAMP.encode()
TRAN_MSG: Final = properties.TRAN_MSG.encode()
PGROUP: Final = properties.PGROUP.encode()
TRANSACTION_CHECK_TIMES: Final = properties.TRANSACTION_CHECK_TIMES.encode()
TRAN_PREPARED_QUEUE_OFFSET: Final = properties.TRAN_PREPARED_QUEUE_OFFSET.encode()
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = properties.CHECK_IMMUNITY_TIME_IN_SECONDS.encode()
TIMER_DELAY_SEC: Final = properties.TIMER_DELAY_SEC.encode()
TIMER_DELAY_MS: Final = properties.TIMER_DELAY_MS.encode()
TIMER_DELIVER_MS: Final = properties.TIMER_DELIVER_MS.encode()
TIMER_OUT_MS: Final = properties.TIMER_OUT_MS.encode()
TIMER_ENQUEUE_MS: Final = properties.TIMER_ENQUEUE_MS.encode()
TIMER_DEQUEUE_MS: Final = properties.TIMER_DEQUEUE_MS.encode()
TIMER_ROLL_TIMES: Final = properties.TIMER_ROLL_TIMES.encode()
TIMER_DEL_UNIQKEY: Final = properties.TIMER_DEL_UNIQKEY.encode()
TIMER_PREFIX: Final = properties.TIMER_PREFIX.encode()
CLUSTER: Final = properties.CLUSTER.encode()
