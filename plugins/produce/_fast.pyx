# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.produce.plain`: requests to send, the rows made of them, and their replies.

It uses the kernel's C structures of requests and rows, and reads the header of a send as the kernel reads any header.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

include "../../kernel/fast/_bytes.pxi"

from gantrymq.kernel.fast._requests cimport (
    BORN_HOST_V6, COLUMNS, ITSELF, MOVABLE, OFFSETS, ONEWAY, ORIGINS, PROPERTIES_MAX, QUEUE_IDS, QUEUE_OFFSETS, SEVERAL,
    STATUSES, AppendRows, Block, Field, HotRequest, Output, RequestReader, Row, Sender, Text, as_int32, as_int64,
    name_of, two_texts, utf8_in,
)

include "../../kernel/fast/_texts.pxi"

from gantrymq.kernel.batch import BATCH_MAX_MESSAGES, BATCH_STORED_FACTOR, Trait
from gantrymq.plugins.produce import plain
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.headers.transactions import TransactionState

KIND = "compiled"

cdef enum:
    MORE_STORED = 128 + 256  # bytes of a record besides body and properties: fixed fields, hosts, the longest topic

cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
cdef object SUCCESS = ResponseCode.SUCCESS
cdef int BATCH = Trait.BATCH
cdef int TRANSACTION = TransactionState.ROLLBACK  # both bits: any transaction
cdef int FOR_PREPARED = Trait.PREPARED
cdef Py_ssize_t MESSAGES_MAX = BATCH_MAX_MESSAGES
cdef int64_t BATCH_FACTOR = BATCH_STORED_FACTOR


@cython.no_gc
@cython.final
cdef class SendRequest(HotRequest):
    """SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE."""

    cdef readonly object topic
    cdef const uint8_t* properties
    cdef Py_ssize_t properties_size
    cdef int queue_id
    cdef int sys_flag
    cdef int message_flag
    cdef int reconsume_times
    cdef int64_t born_timestamp
    cdef bint batch

    def forget(self):
        """See :meth:`gantrymq.kernel.processors.Request.forget`."""
        HotRequest.forget(self)
        self.properties = b""
        self.properties_size = 0

    cdef int move_out(self) except -1:
        cdef Block block = Block.__new__(Block)
        cdef Py_ssize_t frame = self.header_size + self.body_size
        # The properties are in the block's buffer of texts with resolved escapes, or in the header itself.
        block.data = two_texts(self.head, frame, self.properties, self.properties_size)
        self.properties = <const uint8_t*>PyBytes_AS_STRING(block.data) + frame
        self.head = <const uint8_t*>PyBytes_AS_STRING(block.data)
        self.payload = self.head + self.header_size
        self.block = block
        return 0


cdef int send_field(Text* name) noexcept nogil:
    """The field of SEND_MESSAGE with this name, as the number of its letter in SEND_MESSAGE_V2; -1 if unknown."""
    cdef const uint8_t* at = name.at
    cdef Py_ssize_t size = name.size
    if is_word(at, size, b"producerGroup", 13): return 0
    if is_word(at, size, b"topic", 5): return 1
    if is_word(at, size, b"defaultTopic", 12): return 2
    if is_word(at, size, b"defaultTopicQueueNums", 21): return 3
    if is_word(at, size, b"queueId", 7): return 4
    if is_word(at, size, b"sysFlag", 7): return 5
    if is_word(at, size, b"bornTimestamp", 13): return 6
    if is_word(at, size, b"flag", 4): return 7
    if is_word(at, size, b"properties", 10): return 8
    if is_word(at, size, b"reconsumeTimes", 14): return 9
    if is_word(at, size, b"unitMode", 8): return 10
    if is_word(at, size, b"maxReconsumeTimes", 17): return 11
    if is_word(at, size, b"batch", 5): return 12
    return -1


cdef SendRequest read_send(Block block, Field* fields, int count, bint long_names):
    """The request with these fields, or None if the plain decoder has to decode it."""
    cdef Text* texts[13]
    cdef int64_t numbers[13]
    cdef int number, place, truth
    cdef SendRequest send
    cdef const uint8_t* properties = b""
    cdef Py_ssize_t properties_size = 0
    for place in range(13):
        texts[place] = NULL
        numbers[place] = 0
    for number in range(count):
        if fields[number].name.size == 1 and c'a' <= fields[number].name.at[0] <= c'm':
            place = fields[number].name.at[0] - c'a'
        else:
            place = send_field(&fields[number].name) if long_names else -1
        if place >= 0:
            if texts[place] != NULL:
                return None
            texts[place] = &fields[number].value
            if place == 8:
                continue
        if fields[number].value.escaped or fields[number].value.wide:
            return None
    for place in range(8):
        if texts[place] == NULL:
            return None
    for place in (3, 4, 5, 6, 7, 9, 11):
        if texts[place] != NULL and not is_number(texts[place], &numbers[place], place == 6):
            return None
    for place in (10, 12):
        if texts[place] != NULL:
            truth = read_bool(texts[place])
            if truth < 0:
                return None
            numbers[place] = truth
    if texts[8] != NULL:
        properties = utf8_in(block, texts[8], &properties_size)
        if properties == NULL:
            return None
    send = SendRequest.__new__(SendRequest)
    send.topic = name_of(texts[1])
    send.properties = properties
    send.properties_size = properties_size
    send.queue_id = <int>numbers[4]
    send.sys_flag = <int>numbers[5]
    send.born_timestamp = numbers[6]
    send.message_flag = <int>numbers[7]
    send.reconsume_times = <int>numbers[9]
    send.batch = numbers[12]
    return send


@cython.final
cdef class SendReader(RequestReader):
    """Reads requests to send."""

    def __cinit__(self):
        self.keeps_frames = True

    cdef HotRequest read(self, Block block, Field* fields, int count, int code):
        return read_send(block, fields, count, code == SEND)


READERS = dict.fromkeys(
    (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), SendReader()
)


cdef Py_ssize_t without_wait(
    uint8_t* to, const uint8_t* at, Py_ssize_t size, bint* waits, bint* prepared
) noexcept nogil:
    """Write the properties without trailing separators, and without WAIT unless the message is ``prepared``.

    Returns their size, or -1 if a property may concern a plugin for another reason.
    """
    cdef const uint8_t* begin = at
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef uint8_t* start = to
    cdef bint first = True
    while True:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        if size >= 5 and memcmp(at, b"WAIT\x01", 5) == 0:
            if is_word(at, size, b"WAIT\x01false", 10):
                waits[0] = False
        elif is_for_plugins(at, size):
            return -1
        else:
            if size >= 9 and memcmp(at, b"TRAN_MSG\x01", 9) == 0:
                if prepared[0] or not is_word(at, size, b"TRAN_MSG\x01true", 13):
                    return -1
                prepared[0] = True
            if not first:
                to[0] = 2
                to += 1
            first = False
            memcpy(to, at, size)
            to += size
        if stop == end:
            break
        at = stop + 1
    if prepared[0]:
        memcpy(start, begin, end - begin)
        to = start + (end - begin)
    return without_end(start, to - start)


cdef inline bint is_for_plugins(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    return (
        (size >= 6 and memcmp(at, b"DELAY\x01", 6) == 0)
        or (size >= 8 and memcmp(at, b"CLUSTER\x01", 8) == 0)
        or (size >= 9 and memcmp(at, b"TIMER_DEL", 9) == 0)
    )


cdef bint wants_more(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether a property may concern a plugin: that of a delay or of a half message."""
    cdef const uint8_t* end = at + size
    while True:
        if end - at >= 6 and memcmp(at, b"DELAY\x01", 6) == 0:
            return True
        if end - at >= 9 and (memcmp(at, b"TRAN_MSG\x01", 9) == 0 or memcmp(at, b"TIMER_DEL", 9) == 0):
            return True
        at = <const uint8_t*>memchr(at, 2, end - at)
        if at == NULL:
            return False
        at += 1


cdef Py_ssize_t without_end(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """The size of the properties without trailing separators."""
    while size and at[size - 1] == 2:
        size -= 1
    return size


cdef inline bint has_zero(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    return size > 0 and memchr(at, 0, size) != NULL


cdef Py_ssize_t count_messages(const uint8_t* at, Py_ssize_t size, Py_ssize_t common, int64_t room) noexcept nogil:
    """The number of messages in a batch body; -1 if one is not valid, or has a property that concerns a plugin or a
    zero byte in its properties, which the log refuses.

    Also -1 if there are too many, or if their records, with ``common`` bytes added to each, may exceed ``room`` bytes.
    The estimate is an upper bound.
    """
    cdef Py_ssize_t count = 0, length, body, own
    while size:
        if size < 22:
            return -1
        length, body = <int32_t>get32(at), <int32_t>get32(at + 16)
        if length < 22 or length > size or body < 0 or 20 + body + 2 > length:
            return -1
        own = <int16_t>get16(at + 20 + body)
        if own < 0 or 22 + body + own != length or own + 1 + common > PROPERTIES_MAX:
            return -1
        if wants_more(at + 22 + body, own) or has_zero(at + 22 + body, own):
            return -1
        room -= length + common + MORE_STORED
        if room < 0 or count >= MESSAGES_MAX:
            return -1
        at += length
        size -= length
        count += 1
    return count


cdef bytes common_properties(SendRequest send, bytes suffix):
    """The properties that follow the own ones of each message of a batch, with a leading separator."""
    cdef bytes given = two_texts(
        send.properties, without_end(send.properties, send.properties_size), <const uint8_t*>b"", 0
    )
    return b"\x02" + given + suffix if send.properties_size else suffix


cdef inline bint has_word(const uint8_t* at, Py_ssize_t size, const char* word, Py_ssize_t length) noexcept nogil:
    cdef const uint8_t* end = at + size
    while end - at >= length:
        at = <const uint8_t*>memchr(at, word[0], end - at - length + 1)
        if at == NULL:
            return False
        if memcmp(at, word, length) == 0:
            return True
        at += 1
    return False


cdef struct Terms:
    # Values that are the same for all sends to a topic, or of a connection.
    int32_t queues
    int32_t bits
    int32_t topic
    const uint8_t* host
    int32_t host_size


cdef inline int set_row(AppendRows some, Row* row, SendRequest send, Terms* terms, int32_t group, bint wait) except -1:
    """Set the fields that all rows of a request have in common."""
    row.group = group
    row.queue_id = send.queue_id
    row.sys_flag = send.sys_flag & ~BORN_HOST_V6 | terms.bits | (BORN_HOST_V6 if terms.host_size > 8 else 0)
    row.born = send.born_timestamp
    row.host = terms.host
    row.host_size = terms.host_size
    row.times = send.reconsume_times
    row.wait = wait
    return 0


cdef bint add_one(AppendRows some, SendRequest send, Terms* terms, bytes suffix) except -1:
    """Add the row of a message; False if the fallback has to. ``suffix`` begins with a separator."""
    cdef Py_ssize_t size = send.properties_size
    cdef uint8_t* own = NULL
    cdef bint wait = True, prepared = False
    cdef Row* row
    if size + PyBytes_GET_SIZE(suffix) > PROPERTIES_MAX:
        return False
    if size:
        own = some.arena.take(size)
        size = without_wait(own, send.properties, send.properties_size, &wait, &prepared)
        some.arena.put_back(send.properties_size - max(size, 0))
        if size < 0:
            return False
    if prepared:
        some.traits |= FOR_PREPARED
    some.keep_block(send.block)
    some.new_sender(send, 1, MOVABLE if prepared else ITSELF)
    some.senders[some.senders_count - 1].queue_id = send.queue_id
    row = some.new_row()
    set_row(some, row, send, terms, some.groups.find(terms.topic, send.queue_id), wait)
    row.body = send.payload
    row.body_size = <int32_t>send.body_size
    row.flag = send.message_flag
    set_properties(row, own, size, size > 0, suffix)
    some.waited = some.waited or wait
    return True


cdef inline void set_properties(Row* row, const uint8_t* own, Py_ssize_t size, bint apart, bytes common) noexcept:
    """Set the own and the common properties. ``common`` begins with a separator, which is omitted unless ``apart``."""
    row.own = own if size else <const uint8_t*>b""
    row.own_size = <int32_t>size
    row.common = <const uint8_t*>PyBytes_AS_STRING(common) + (0 if apart else 1)
    row.common_size = <int32_t>PyBytes_GET_SIZE(common) - (0 if apart else 1)


cdef int64_t add_many(AppendRows some, SendRequest send, Terms* terms, bytes suffix, int64_t room) except -1:
    """Add the rows of a batch. Returns an upper bound of the bytes of their records; 0 if the fallback has to add them.
    ``room`` is for the records of all its messages, in bytes."""
    cdef bytes common = common_properties(send, suffix)
    cdef const uint8_t* at = send.payload
    cdef Py_ssize_t length, body_size, own_size
    cdef Py_ssize_t count = count_messages(at, send.body_size, PyBytes_GET_SIZE(common) - 1, room)
    cdef bint wait = not has_word(send.properties, send.properties_size, b"WAIT\x01false", 10)
    cdef int32_t group
    cdef Row* row
    if (
        count < 1 or send.sys_flag & TRANSACTION or wants_more(send.properties, send.properties_size)
        or has_zero(send.properties, send.properties_size)
    ):
        return 0
    cdef int64_t stored = send.body_size + count * (PyBytes_GET_SIZE(common) + MORE_STORED)
    some.kept.append(common)
    some.keep_block(send.block)
    some.new_sender(send, <int32_t>count, SEVERAL)
    some.waited = some.waited or wait
    group = some.groups.find(terms.topic, send.queue_id)
    while count:
        length, body_size = get32(at), get32(at + 16)
        own_size = length - 22 - body_size
        row = some.new_row()
        set_row(some, row, send, terms, group, wait)
        row.body = at + 20
        row.body_size = <int32_t>body_size
        row.flag = <int32_t>get32(at + 12)
        set_properties(row, at + 22 + body_size, without_end(at + 22 + body_size, own_size), own_size > 0, common)
        at += length
        count -= 1
    return stored


def add_sends(
    batch, list requests not None, terms, bytes suffix not None, Py_ssize_t max_body_bytes, make_origin, fallback,
    int64_t most_bytes=0x7FFFFFFFFFFFFFFF,
):
    """See :func:`gantrymq.plugins.produce.plain.add_sends`."""
    cdef AppendRows some
    cdef dict known = {}
    cdef object request, topic = None, connection = None, host = None, usual = None
    cdef SendRequest send
    cdef Terms now
    cdef bint batched = False, taken, several
    cdef bytes parted = b"\x02" + suffix
    cdef int64_t room = BATCH_FACTOR * <int64_t>max_body_bytes, stored
    cdef Py_ssize_t number = 0
    if type(batch) is not AppendRows:
        return plain.add_sends(batch, requests, terms, suffix, max_body_bytes, make_origin, fallback, most_bytes)
    some = <AppendRows>batch
    some.make_origin = make_origin
    some.kept.append(parted)
    for request in requests:
        if most_bytes < 0:
            break
        number += 1
        if type(request) is not SendRequest or (<SendRequest>request).block is None:  # forget() was called
            most_bytes -= fallback(batch, request) or 0
            continue
        send = <SendRequest>request
        if send.topic is not topic:
            topic = send.topic
            if topic in known:
                usual = known[topic]
            else:
                usual = known[topic] = terms(topic)
            if usual is not None:
                now.queues, now.bits = usual
                now.topic = some.groups.topic(topic)
        if send.connection is not connection:
            connection = send.connection
            host = connection.host
            some.kept.append(host)
            now.host = <const uint8_t*>PyBytes_AS_STRING(host)
            now.host_size = <int32_t>PyBytes_GET_SIZE(host)
        taken = False
        if (
            usual is not None and 0 <= send.queue_id < now.queues and send.body_size <= max_body_bytes
            and not some.listed and not some.some_made(0, COLUMNS)
        ):
            several = send.batch or send.code == SEND_BATCH
            if several:
                stored = add_many(some, send, &now, parted, room)
                most_bytes -= stored
                taken = stored > 0
                batched = batched or taken
            else:
                taken = add_one(some, send, &now, parted)
        if not taken:
            most_bytes -= fallback(batch, request) or 0
            if usual is None:
                # The fallback may have created the topic.
                known.clear()
                topic = None
    if batched:
        batch.traits |= BATCH
    return number


# ------------------------------------------------------------------------------------------------------------ replies


cdef inline uint8_t* put_hex(uint8_t* at, uint64_t value) noexcept nogil:
    cdef int place
    for place in range(16):
        at[place] = b"0123456789ABCDEF"[(value >> (60 - 4 * place)) & 15]
    return at + 16


@cython.final
cdef class Replies:
    """The pieces of a reply form, and the replies of one connection so far."""

    cdef bytes first, second, third, fourth, last, fixed, fields, id_prefix
    cdef Py_ssize_t most
    cdef Output output

    def __cinit__(self, form):
        (self.first, self.second, self.third, self.fourth, self.last), self.fixed, self.fields, self.id_prefix = form
        self.most = sum(map(len, form.json)) + len(self.fixed) + len(self.fields) + len(self.id_prefix) + 256
        self.output = Output()

    cdef uint8_t* put_ids(self, uint8_t* at, Row* rows, Py_ssize_t count) noexcept:
        """Write the message ids of ``count`` consecutive rows, separated by commas."""
        cdef Py_ssize_t row
        for row in range(count):
            if row:
                at[0] = c','
                at += 1
            at = put_hex(put_bytes(at, self.id_prefix), <uint64_t>rows[row].offset)
        return at

    cdef int add(self, SendRequest send, Row* rows, Py_ssize_t count, int32_t queue_id) except -1:
        """Add the reply to a request with these rows, with this queue id."""
        cdef Py_ssize_t ids_size = count * (PyBytes_GET_SIZE(self.id_prefix) + 17) - 1
        cdef uint8_t* start = self.output.reserve(self.most + ids_size)
        cdef uint8_t* at = start + 8
        cdef uint8_t* fields
        if send.kind:
            at = put_bytes(at, self.fixed)
            put32(start + 8 + 5, <uint32_t>send.opaque)
            put32(at, 0)
            fields = at + 8
            at = put_bytes(fields, self.fields)
            at = put_name(at, b"msgId", 5)
            put32(at, <uint32_t>ids_size)
            at = self.put_ids(at + 4, rows, count)
            at = put_field_number(at, b"queueId", 7, queue_id)
            at = put_field_number(at, b"queueOffset", 11, rows.queue_offset)
            put32(fields - 4, at - fields)
        else:
            at = put_bytes(self.put_ids(put_bytes(at, self.first), rows, count), self.second)
            at = put_bytes(put_number(at, queue_id), self.third)
            at = put_bytes(put_number(at, rows.queue_offset), self.fourth)
            at = put_bytes(put_number(at, send.opaque), self.last)
        put32(start, at - start - 4)
        put32(start + 4, <uint32_t>send.kind << 24 | <uint32_t>(at - start - 8))
        self.output.size += at - start
        return 0


def answer_sends(batch, form, fallback):
    """See :func:`gantrymq.plugins.produce.plain.answer_sends`."""
    cdef AppendRows some
    cdef Replies replies
    cdef SendRequest send
    cdef Sender* sender
    cdef Row* row
    cdef int32_t number, following = 0
    cdef object connection = None
    if type(batch) is not AppendRows or (<AppendRows>batch).listed or not (<AppendRows>batch).placed:
        return plain.answer_sends(batch, form, fallback)
    some = <AppendRows>batch
    if some.made[QUEUE_IDS] is not None or some.some_made(ORIGINS, COLUMNS):
        return answer_lists(some, form, fallback)
    replies = Replies(form)
    for number in range(some.senders_count):
        sender = &some.senders[number]
        if sender.first < following:
            continue
        origin = some.origins_kept[number]
        if (
            type(origin) is not SendRequest or some.remarks
            or (some.response_fields and sender.first in some.response_fields)
        ):
            replies.output.let_go(connection)
            following = fallback(batch, sender.first)
            continue
        send = <SendRequest>origin
        if send.connection is not connection:
            replies.output.let_go(connection)
            connection = send.connection
        if not (send.answered or send.flag & ONEWAY):
            send.answered = True
            row = &some.rows[sender.first]
            replies.add(send, row, sender.count, send.queue_id if sender.kind == MOVABLE else row.queue_id)
    replies.output.let_go(connection)


@cython.boundscheck(True)
@cython.wraparound(True)
cdef int answer_lists(AppendRows some, form, fallback) except -1:
    """:func:`answer_sends` for a batch of which a plugin may have changed a column that the replies contain."""
    cdef list origins = some.column(ORIGINS), statuses = some.column(STATUSES), queue_ids = some.column(QUEUE_IDS)
    cdef list queue_offsets = some.column(QUEUE_OFFSETS), offsets = some.column(OFFSETS)
    cdef Py_ssize_t row = 0, count = some.count
    cdef int64_t queue_id = 0, queue_offset = 0, offset = 0
    cdef Replies replies = Replies(form)
    cdef SendRequest send
    cdef Row fields
    cdef object connection = None
    if not count == len(origins) == len(statuses) == len(queue_ids) == len(queue_offsets) == len(offsets):
        plain.answer_sends(some, form, fallback)
        return 0
    while row < count:
        if (
            type(origins[row]) is SendRequest and statuses[row] == SUCCESS and row not in some.remarks
            and row not in some.settled and row not in some.response_fields
            and as_int32(queue_ids[row], &queue_id) and as_int64(queue_offsets[row], &queue_offset)
            and as_int64(offsets[row], &offset)
        ):
            send = <SendRequest>origins[row]
            if send.connection is not connection:
                replies.output.let_go(connection)
                connection = send.connection
            if not (send.answered or send.flag & ONEWAY):
                send.answered = True
                fields.queue_offset, fields.offset = queue_offset, offset
                replies.add(send, &fields, 1, <int32_t>queue_id)
            row += 1
            continue
        replies.output.let_go(connection)
        row = fallback(some, row)
    replies.output.let_go(connection)
    return 0
