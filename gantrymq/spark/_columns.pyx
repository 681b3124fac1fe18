# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of ``columns.PlainColumns``: from stored records to the buffers of Arrow columns.

It takes records that are in order, and leaves what is not to the plain twin, which knows what to say of it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

include "../remoting/_crc.pxi"
include "_buffer.pxi"

prepare_crc()

DEF HOST_V6_MORE = 12
DEF SHORTEST_HEAD = 88
DEF SYS_FLAG_AT = 36
DEF BORN_AT = 40
DEF PAIRS_MAX = 64
DEF DATA_MAX = 0x7FFFFFFF

DEF QUEUE_ID = 0
DEF QUEUE_OFFSET = 1
DEF LOG_OFFSET = 2
DEF MESSAGE_ID = 3
DEF KEYS_COLUMN = 4
DEF TAGS_COLUMN = 5
DEF BODY = 6
DEF BORN_TIME = 7
DEF STORE_TIME = 8
DEF BORN_HOST = 9
DEF RECONSUMES = 10
DEF FLAG = 11
DEF SYS_FLAG = 12
DEF NAMES = 13
DEF VALUES = 14
DEF COUNT = 15

NUMBERS = {
    "queueId": QUEUE_ID, "queueOffset": QUEUE_OFFSET, "commitLogOffset": LOG_OFFSET, "msgId": MESSAGE_ID,
    "keys": KEYS_COLUMN, "tags": TAGS_COLUMN, "body": BODY, "bornTimestamp": BORN_TIME, "storeTimestamp": STORE_TIME,
    "bornHost": BORN_HOST, "reconsumeTimes": RECONSUMES, "flag": FLAG, "sysFlag": SYS_FLAG,
}

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef int32_t COMPRESSED = 0x1
cdef int32_t BORN_HOST_V6 = 0x10
cdef int32_t STORE_HOST_V6 = 0x20
cdef int32_t INNER_BATCH = 0x80
cdef int64_t MILLIS_MAX = 9223372036854775
cdef const char* HEX = b"0123456789ABCDEF"


cdef struct Column:
    Buffer data
    Buffer ends  # of values of variable length: where each ends, after a 0
    Buffer valid  # a byte a row
    Py_ssize_t nulls


cdef struct Pair:
    const char* name
    Py_ssize_t name_size
    const char* value
    Py_ssize_t value_size


cdef inline int put32(Column* column, int32_t value) except -1:
    return put(&column.data, &value, 4)


cdef inline int put64(Column* column, int64_t value) except -1:
    return put(&column.data, &value, 8)


cdef int put_end(Buffer* ends, Py_ssize_t end) except -1:
    cdef int32_t value = 0
    if end > DATA_MAX:
        raise OverflowError("a column of one batch has more than 2 GiB")
    if ends.size == 0:
        put(ends, &value, 4)
    value = <int32_t>end
    return put(ends, &value, 4)


cdef int put_text(Column* column, const void* data, Py_ssize_t size) except -1:
    put(&column.data, data, size)
    return put_end(&column.ends, column.data.size)


cdef int put_valid(Column* column, bint is_valid) except -1:
    cdef char value = is_valid
    column.nulls += not is_valid
    return put(&column.valid, &value, 1)


cdef int put_millis(Column* column, int64_t millis) except -1:
    cdef bint fits = -MILLIS_MAX <= millis <= MILLIS_MAX
    put64(column, millis * 1000 if fits else 0)
    return put_valid(column, fits)


cdef inline uint32_t get32(const uint8_t* at) noexcept:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t get64(const uint8_t* at) noexcept:
    return <int64_t>((<unsigned long long>get32(at) << 32) | get32(at + 4))


cdef inline int get16(const uint8_t* at) noexcept:
    return (<int>at[0] << 8) | at[1]


cdef bint is_ascii(const char* data, Py_ssize_t size) noexcept:
    cdef Py_ssize_t at
    cdef uint8_t seen = 0
    for at in range(size):
        seen |= <uint8_t>data[at]
    return seen < 0x80


cdef inline bint is_name(Pair* pair, const char* name, Py_ssize_t size) noexcept:
    return pair.name_size == size and memcmp(pair.name, name, size) == 0


cdef class Columns:
    """The messages of one queue, as columns. ``names`` are those to build.

    ``rows`` and ``size`` say when a batch is full; at ``size_max`` bytes no message is added. ``read_body`` gets each
    stored body that is not the column's value, its flags and its queue offset; the body is null if it returns None.
    """

    cdef Column columns[COUNT]
    cdef bint wants[COUNT]
    cdef bint wants_properties
    cdef bint reads_properties
    cdef Buffer pairs_ends  # by row: the end of its properties
    cdef Pair pairs[PAIRS_MAX]
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t size
    cdef readonly int64_t next_offset
    cdef Py_ssize_t size_max
    cdef object read_body, show_host
    cdef uint64_t shown_host  # the bytes of the last IPv4 host, and its text: a queue has few producers
    cdef char host_text[32]
    cdef int host_length

    def __cinit__(self, names, Py_ssize_t size_max, read_body, show_host):
        memset(self.columns, 0, sizeof(self.columns))
        memset(self.wants, 0, sizeof(self.wants))
        memset(&self.pairs_ends, 0, sizeof(self.pairs_ends))
        for name in names:
            if name in NUMBERS:
                self.wants[<int>NUMBERS[name]] = True
        self.wants_properties = "properties" in names
        self.reads_properties = (
            self.wants_properties or self.wants[MESSAGE_ID] or self.wants[KEYS_COLUMN] or self.wants[TAGS_COLUMN]
        )
        self.size_max = size_max
        self.read_body = read_body
        self.show_host = show_host

    def __dealloc__(self):
        cdef int number
        for number in range(COUNT):
            free(self.columns[number].data.data)
            free(self.columns[number].ends.data)
            free(self.columns[number].valid.data)
        free(self.pairs_ends.data)

    def add(self, bytes data not None, Py_ssize_t start, int64_t first, int64_t end):
        """Add the messages from byte ``start`` on with ``first <= queue offset < end``, each offset once, in ascending
        order, until ``size_max`` is reached.

        Returns their number and the byte where reading stopped. It also stops before a record that is not intact.
        """
        cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef const uint8_t* at
        cdef Py_ssize_t whole = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t room, head, before = self.rows
        cdef int64_t size, body_size, topic_at, topic_end, queue_offset
        cdef int32_t sys_flag
        cdef uint32_t magic
        cdef const char* body
        cdef bytes inflated
        first = max(first, self.next_offset)
        while start < whole and self.size < self.size_max:
            at = begin + start
            room = whole - start
            if room < SHORTEST_HEAD:
                break
            magic = get32(at + 4)
            sys_flag = <int32_t>get32(at + SYS_FLAG_AT)
            head = SHORTEST_HEAD
            if sys_flag & BORN_HOST_V6:
                head += HOST_V6_MORE
            if sys_flag & STORE_HOST_V6:
                head += HOST_V6_MORE
            if room < head or (magic != MAGIC_V1 and magic != MAGIC_V2):
                break
            size = <int32_t>get32(at)
            body_size = <int32_t>get32(at + head - 4)
            topic_at = head + body_size
            if not head < size <= room or not head <= topic_at < size:
                break
            if magic == MAGIC_V1:
                topic_end = topic_at + 1 + at[topic_at]
            else:
                if topic_at + 2 > size:
                    break
                topic_end = topic_at + 2 + get16(at + topic_at)
            if topic_end + 2 > size or topic_end + 2 + get16(at + topic_end) != size:
                break
            if crc32(at + head, body_size) & 0x7FFFFFFF != get32(at + 8):
                break
            queue_offset = get64(at + 20)
            if first <= queue_offset < end:
                first = self.next_offset = queue_offset + 1
                body = <const char*>at + head
                if sys_flag & INNER_BATCH or (sys_flag & COMPRESSED and self.wants[BODY]):
                    inflated = self.read_body(PyBytes_FromStringAndSize(body, body_size), sys_flag, queue_offset)
                    if inflated is None:
                        body, body_size = NULL, 0
                    else:
                        body, body_size = PyBytes_AS_STRING(inflated), PyBytes_GET_SIZE(inflated)
                self.put_row(at, sys_flag, body, body_size, <const char*>at + topic_end + 2, size - topic_end - 2)
            start += size
        return self.rows - before, start

    cdef int put_row(
        self, const uint8_t* at, int32_t sys_flag, const char* body, Py_ssize_t body_size, const char* properties,
        Py_ssize_t size,
    ) except -1:
        cdef const uint8_t* born_host = at + BORN_AT + 8
        cdef Py_ssize_t born_size = 20 if sys_flag & BORN_HOST_V6 else 8
        cdef const uint8_t* stored = born_host + born_size
        cdef const uint8_t* store_host = stored + 8
        cdef Py_ssize_t store_size = 20 if sys_flag & STORE_HOST_V6 else 8
        cdef bytes shown
        self.rows += 1
        if self.wants[QUEUE_ID]:
            put32(&self.columns[QUEUE_ID], <int32_t>get32(at + 12))
        if self.wants[FLAG]:
            put32(&self.columns[FLAG], <int32_t>get32(at + 16))
        if self.wants[QUEUE_OFFSET]:
            put64(&self.columns[QUEUE_OFFSET], get64(at + 20))
        if self.wants[LOG_OFFSET]:
            put64(&self.columns[LOG_OFFSET], get64(at + 28))
        if self.wants[SYS_FLAG]:
            put32(&self.columns[SYS_FLAG], sys_flag)
        if self.wants[BORN_TIME]:
            put_millis(&self.columns[BORN_TIME], get64(at + BORN_AT))
        if self.wants[STORE_TIME]:
            put_millis(&self.columns[STORE_TIME], get64(stored))
        if self.wants[RECONSUMES]:
            put32(&self.columns[RECONSUMES], <int32_t>get32(store_host + store_size))
        if self.wants[BODY]:
            self.size += body_size
            put_valid(&self.columns[BODY], body != NULL)
            put_text(&self.columns[BODY], body, body_size)
        if self.wants[BORN_HOST]:
            if born_size == 8:
                self.show_host_v4(born_host)
                put_text(&self.columns[BORN_HOST], self.host_text, self.host_length)
            else:
                shown = self.show_host(PyBytes_FromStringAndSize(<const char*>born_host, born_size)).encode()
                put_text(&self.columns[BORN_HOST], PyBytes_AS_STRING(shown), PyBytes_GET_SIZE(shown))
        if self.reads_properties:
            self.size += size
            self.put_properties(properties, size, at + 28, store_host, store_size)
        return 0

    cdef void show_host_v4(self, const uint8_t* host) noexcept:
        """Sets ``host_text``, unless it has this host already: printing takes longer than all else of a row."""
        cdef uint64_t raw
        memcpy(&raw, host, 8)
        if self.host_length and raw == self.shown_host:
            return
        self.shown_host = raw
        self.host_length = snprintf(
            self.host_text, sizeof(self.host_text), b"%u.%u.%u.%u:%u", <unsigned int>host[0], <unsigned int>host[1],
            <unsigned int>host[2], <unsigned int>host[3], <unsigned int>get32(host + 4),
        )

    cdef int put_properties(
        self, const char* data, Py_ssize_t size, const uint8_t* log_offset, const uint8_t* host, Py_ssize_t host_size
    ) except -1:
        cdef bytes replaced
        cdef int count, number
        cdef Pair* keys = NULL
        cdef Pair* tags = NULL
        cdef Pair* unique = NULL
        if not is_ascii(data, size):
            replaced = PyUnicode_DecodeUTF8(<char*>data, size, "replace").encode()
            data, size = PyBytes_AS_STRING(replaced), PyBytes_GET_SIZE(replaced)
        count = self.cut_pairs(data, size)
        if count < 0:  # very many: their names are found by a hash table
            replaced = squeeze(PyBytes_FromStringAndSize(data, size))
            return self.put_many(replaced, log_offset, host, host_size)
        for number in range(count):
            if self.wants_properties:
                put_text(&self.columns[NAMES], self.pairs[number].name, self.pairs[number].name_size)
                put_text(&self.columns[VALUES], self.pairs[number].value, self.pairs[number].value_size)
            if is_name(&self.pairs[number], b"KEYS", 4):
                keys = &self.pairs[number]
            elif is_name(&self.pairs[number], b"TAGS", 4):
                tags = &self.pairs[number]
            elif is_name(&self.pairs[number], b"UNIQ_KEY", 8):
                unique = &self.pairs[number]
        return self.end_properties(keys, tags, unique, log_offset, host, host_size)

    cdef int put_many(
        self, bytes squeezed, const uint8_t* log_offset, const uint8_t* host, Py_ssize_t host_size
    ) except -1:
        """``squeezed`` has each name once, and pairs alone."""
        cdef Pair found[3]
        cdef Pair* keys = NULL
        cdef Pair* tags = NULL
        cdef Pair* unique = NULL
        cdef Pair pair
        cdef const char* at = PyBytes_AS_STRING(squeezed)
        cdef const char* end = at + PyBytes_GET_SIZE(squeezed)
        while at < end:
            at = next_pair(at, end, &pair)
            if self.wants_properties:
                put_text(&self.columns[NAMES], pair.name, pair.name_size)
                put_text(&self.columns[VALUES], pair.value, pair.value_size)
            if is_name(&pair, b"KEYS", 4):
                found[0] = pair
                keys = &found[0]
            elif is_name(&pair, b"TAGS", 4):
                found[1] = pair
                tags = &found[1]
            elif is_name(&pair, b"UNIQ_KEY", 8):
                found[2] = pair
                unique = &found[2]
        return self.end_properties(keys, tags, unique, log_offset, host, host_size)

    cdef int end_properties(
        self, Pair* keys, Pair* tags, Pair* unique, const uint8_t* log_offset, const uint8_t* host, Py_ssize_t host_size
    ) except -1:
        cdef char text[64]
        cdef Py_ssize_t at
        cdef uint8_t value
        if self.wants_properties:
            put_end(&self.pairs_ends, (self.columns[NAMES].ends.size // 4 - 1) if self.columns[NAMES].ends.size else 0)
        if self.wants[KEYS_COLUMN]:
            put_found(&self.columns[KEYS_COLUMN], keys)
        if self.wants[TAGS_COLUMN]:
            put_found(&self.columns[TAGS_COLUMN], tags)
        if self.wants[MESSAGE_ID]:
            if unique != NULL:
                put_text(&self.columns[MESSAGE_ID], unique.value, unique.value_size)
            else:
                for at in range(host_size + 8):
                    value = host[at] if at < host_size else log_offset[at - host_size]
                    text[2 * at], text[2 * at + 1] = HEX[value >> 4], HEX[value & 15]
                put_text(&self.columns[MESSAGE_ID], text, 2 * (host_size + 8))
        return 0

    cdef int cut_pairs(self, const char* at, Py_ssize_t size) noexcept:
        """The pairs of a message in ``pairs``, each name once: where it is first, with its last value. -1: too many."""
        cdef const char* end = at + size
        cdef int count = 0, number
        cdef Pair pair
        while at < end:
            at = next_pair(at, end, &pair)
            if pair.name == NULL:
                continue
            for number in range(count):
                if is_name(&self.pairs[number], pair.name, pair.name_size):
                    self.pairs[number] = pair
                    break
            else:
                if count == PAIRS_MAX:
                    return -1
                self.pairs[count] = pair
                count += 1
        return count

    def take(self):
        """The columns by name, and empties them: ``(valid, ends, data, nulls)``; ``valid`` and ``ends`` may be None.

        The properties are under ``properties``: by row the ends of their pairs, then the columns of names and values.
        """
        cdef int number
        found = {}
        for name, number in NUMBERS.items():
            if self.wants[number]:
                found[name] = self.take_column(number)
        if self.wants_properties:
            ends = content(&self.pairs_ends)
            found["properties"] = (ends, self.take_column(NAMES), self.take_column(VALUES))
            self.pairs_ends.size = 0
        self.rows = self.size = 0
        return found

    cdef tuple take_column(self, int number):
        cdef Column* column = &self.columns[number]
        valid = pack(&column.valid) if column.nulls else None
        ends = content(&column.ends) if column.ends.size else None
        taken = (valid, ends, content(&column.data), column.nulls)
        column.data.size = column.ends.size = column.valid.size = column.nulls = 0
        return taken


cdef const char* next_pair(const char* at, const char* end, Pair* pair) noexcept:
    """Reads the pair at ``at``, whose name is NULL if it is none; returns where the next one begins."""
    cdef const char* stop = <const char*>memchr(at, 2, end - at)
    cdef const char* middle
    pair.name = NULL
    if stop == NULL:
        stop = end
    middle = <const char*>memchr(at, 1, stop - at)
    if middle != NULL and middle > at and middle + 1 < stop:
        pair.name, pair.name_size = at, middle - at
        pair.value, pair.value_size = middle + 1, stop - middle - 1
    return stop + 1


cdef int put_found(Column* column, Pair* pair) except -1:
    put_valid(column, pair != NULL)
    if pair == NULL:
        return put_end(&column.ends, column.data.size)
    return put_text(column, pair.value, pair.value_size)


cdef bytes content(Buffer* buffer):
    return PyBytes_FromStringAndSize(buffer.data, buffer.size) if buffer.size else b""


cdef bytes pack(Buffer* valid):
    """The bits of Arrow, the first row in the lowest bit."""
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, (valid.size + 7) // 8)
    cdef char* at = PyBytes_AS_STRING(bits)
    cdef Py_ssize_t row
    memset(at, 0, (valid.size + 7) // 8)
    for row in range(valid.size):
        at[row >> 3] |= valid.data[row] << (row & 7)
    return bits


cdef bytes squeeze(bytes data):
    pairs = {}
    for piece in data.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if separator and name and value:
            pairs[name] = value
    return b"\x02".join([name + b"\x01" + value for name, value in pairs.items()])
