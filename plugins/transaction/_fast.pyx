# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.transaction.plain`.

It uses the kernel's C structures of requests, records and rows, without an object for each of their fields.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcmp

from gantrymq.kernel.fast._requests cimport (
    COLUMNS, FIELDS_MAX, OFFSETS, ONEWAY, PROPERTIES, AppendRows, Block, Field, HotRequest, Part, Row, StoredRecord,
    Text, find_value, known_topic, put_number, read_bool, read_number,
)

from gantrymq.plugins.transaction.half import table as halftable
from gantrymq.plugins.transaction import plain
from gantrymq.plugins.transaction.half.rows import END_PROPERTIES, STATE_BITS
from gantrymq.remoting import property_bytes
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC

KIND = "compiled"

cdef enum:
    DIGITS_MAX = 20
    ENTRY_SIZE = 20
    FILLER_SIZE = 0x7FFFFFFF

cdef int COMMIT = TransactionState.COMMIT
cdef int ROLLBACK = TransactionState.ROLLBACK
cdef int OPEN = halftable.OPEN
cdef int COMMITTED = halftable.COMMITTED
cdef int ROLLED_BACK = halftable.ROLLED_BACK
cdef int STATES = STATE_BITS
cdef bytes BEGAN = property_bytes.TRAN_PREPARED_QUEUE_OFFSET
cdef bytes DELAY = property_bytes.DELAY
cdef bytes PGROUP = property_bytes.PGROUP
cdef bytes REAL_QID = property_bytes.REAL_QID
cdef bytes REAL_TOPIC = property_bytes.REAL_TOPIC
cdef bytes TRAN_MSG = property_bytes.TRAN_MSG
cdef bytes NOTE = END_PROPERTIES
cdef str HALVES = TRANS_HALF_TOPIC
cdef str ENDS = TRANS_OP_HALF_TOPIC


@cython.no_gc
@cython.final
cdef class Ending:
    """See :class:`gantrymq.plugins.transaction.plain.Ending`. The group points into the bytes of the request."""

    cdef readonly object request
    cdef readonly int64_t table_offset, commit_log_offset
    cdef readonly bint is_commit
    cdef public object record
    cdef public int row
    cdef Block block
    cdef const uint8_t* group_at
    cdef Py_ssize_t group_size

    @property
    def group(self):
        return PyBytes_FromStringAndSize(<const char*>self.group_at, self.group_size)


# ------------------------------------------------------------------------------------------------------------ requests


cdef inline int header_field(Text* name) noexcept nogil:
    """The number of the field of ``EndTransactionHeader`` with this name; -1 if it has none."""
    cdef const uint8_t* at = name.at
    if name.size == 13 and memcmp(at, b"producerGroup", 13) == 0: return 0
    if name.size == 20 and memcmp(at, b"tranStateTableOffset", 20) == 0: return 1
    if name.size == 15 and memcmp(at, b"commitLogOffset", 15) == 0: return 2
    if name.size == 16 and memcmp(at, b"commitOrRollback", 16) == 0: return 3
    if name.size == 5 and memcmp(at, b"msgId", 5) == 0: return 4
    if name.size == 20 and memcmp(at, b"fromTransactionCheck", 20) == 0: return 5
    if name.size == 13 and memcmp(at, b"transactionId", 13) == 0: return 6
    if name.size == 5 and memcmp(at, b"topic", 5) == 0: return 7
    return -1


cdef bint read_ending(HotRequest request, list endings) except -1:
    """Add the ending of the request to ``endings``; False if the plain twin has to decode it."""
    cdef Field fields[FIELDS_MAX]
    cdef Text* texts[8]
    cdef int64_t numbers[4]
    cdef int count = request.read_fields(fields), number, place
    cdef Ending ending
    for place in range(8):
        texts[place] = NULL
    for number in range(count):
        place = header_field(&fields[number].name)
        if fields[number].value.escaped or fields[number].value.wide or (place >= 0 and texts[place] != NULL):
            return False
        if place >= 0:
            texts[place] = &fields[number].value
    for place in range(5):
        if texts[place] == NULL:
            return False
    for place in range(1, 4):
        if not read_number(texts[place].at, texts[place].size, &numbers[place]):
            return False
    if not -0x80000000LL <= numbers[3] <= 0x7FFFFFFFLL or (texts[5] != NULL and read_bool(texts[5]) < 0):
        return False
    if numbers[3] == COMMIT or numbers[3] == ROLLBACK:
        ending = Ending.__new__(Ending)
        ending.request = request
        ending.block, ending.group_at, ending.group_size = request.block, texts[0].at, texts[0].size
        ending.table_offset, ending.commit_log_offset = numbers[1], numbers[2]
        ending.is_commit = numbers[3] == COMMIT
        ending.row = -1
        endings.append(ending)
    return True


def read_endings(list requests, refuse):
    """See :func:`gantrymq.plugins.transaction.plain.read_endings`."""
    cdef list endings = []
    for request in requests:
        if not isinstance(request, HotRequest) or not read_ending(<HotRequest>request, endings):
            endings += plain.read_endings([request], refuse)
    return endings


cdef inline int64_t read64(const uint8_t* at) noexcept nogil:
    """Eight bytes, big-endian."""
    cdef uint64_t value = 0
    cdef int place
    for place in range(8):
        value = value << 8 | at[place]
    return <int64_t>value


cdef inline uint32_t read32(const uint8_t* at) noexcept nogil:
    """Four bytes, big-endian."""
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


def split_named(endings, bytes entries not None, int64_t first):
    """See :func:`gantrymq.plugins.transaction.plain.split_named`."""
    cdef list named = [], others = []
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef int64_t count = PyBytes_GET_SIZE(entries) // ENTRY_SIZE, number
    cdef const uint8_t* entry
    cdef Ending ending
    for one in endings:
        if type(one) is not Ending:
            some, rest = plain.split_named([one], entries, first)
            named += some
            others += rest
            continue
        ending = <Ending>one
        number = ending.table_offset
        # An unsigned difference, because a signed one may overflow with numbers from a client.
        if number >= first and <uint64_t>number - <uint64_t>first < <uint64_t>count:
            entry = data + (number - first) * ENTRY_SIZE
            if read64(entry) == ending.commit_log_offset and read32(entry + 8) != FILLER_SIZE:
                named.append(ending)
                continue
        others.append(ending)
    return named, others


def match_records(list endings, list records, is_prepared, refuse):
    """See :func:`gantrymq.plugins.transaction.plain.match_records`."""
    cdef list matching = []
    cdef Ending ending
    cdef StoredRecord record
    cdef Part value
    for one, found in zip(endings, records, strict=True):
        if type(one) is Ending and type(found) is StoredRecord and is_prepared(found):
            ending, record = <Ending>one, <StoredRecord>found
            if (
                find_value(record.at(record.properties_at), record.properties_size, PGROUP, &value)
                and value.size and value.size == ending.group_size
                and memcmp(value.at, ending.group_at, value.size) == 0
                and record.in_queue() == ending.table_offset
            ):
                ending.record = record
                matching.append(ending)
                continue
        matching += plain.match_records([one], [found], is_prepared, refuse)
    return matching


# ------------------------------------------------------------------------------------------------------ half messages


def half_rows(batch):
    """See :func:`gantrymq.plugins.transaction.plain.half_rows`."""
    cdef AppendRows some
    cdef Row* row
    cdef Part value
    cdef int32_t number
    cdef list rows = []
    if type(batch) is not AppendRows:
        return plain.half_rows(batch)
    some = <AppendRows>batch
    if some.listed or some.refused or some.made[PROPERTIES] is not None:
        return plain.half_rows(batch)
    for number in range(some.count):
        row = &some.rows[number]
        if not some.find_in(row, TRAN_MSG, &value) or value.size != 4:
            continue
        if memcmp(value.at, b"true", 4) != 0:
            return plain.half_rows(batch)
        if some.find_in(row, DELAY, &value) and value.size and (value.size != 1 or value.at[0] != c"0"):
            return plain.half_rows(batch)
        if not some.find_in(row, PGROUP, &value) or not value.size:
            return plain.half_rows(batch)
        rows.append(number)
    return rows


def divert_rows(batch, list rows, str topic, changes, int32_t clear, Py_ssize_t fitting):
    """See :func:`gantrymq.plugins.transaction.plain.divert_rows`."""
    cdef AppendRows some
    cdef Row* row
    cdef int32_t group
    cdef Py_ssize_t number
    cdef dict known = {}
    cdef list large = []
    if type(batch) is not AppendRows or not rows or not (<AppendRows>batch).may_divert():
        return plain.divert_rows(batch, rows, topic, changes, clear, fitting)
    some = <AppendRows>batch
    group = some.groups.find(some.groups.topic(topic), 0)
    for number in rows:
        if not 0 <= number < some.count:
            raise IndexError(number)
        row = &some.rows[number]
        change = known.get(row.group)
        if change is None:
            change = known[row.group] = changes(*some.groups.key(row.group))
        some.divert_row(row, group, change)
        row.sys_flag &= ~clear
        if row.body_size + row.own_size > fitting:
            large.append(number)
    return large


# --------------------------------------------------------------------------------------------------------------- ends


@cython.no_gc
@cython.final
cdef class EndRows:
    """Adds the rows of endings to one batch. Keeps the values that they share, and the topic of the last message."""

    cdef AppendRows batch
    cdef bytearray states
    cdef dict moved
    cdef bytes host
    cdef int64_t origin, born
    cdef Py_ssize_t fitting
    cdef int32_t notes
    cdef bytes last_name
    cdef int32_t last_topic

    def __cinit__(self, AppendRows batch not None, terms):
        self.batch = batch
        self.states, self.origin, self.moved = terms.states, terms.origin, terms.moved
        self.born, self.host, self.fitting = terms.born, terms.host, terms.fitting
        self.notes = -1
        self.last_name = b""
        batch.kept.append(self.host)

    cdef bint is_open(self, Ending ending, dict ended) except -1:
        """Whether its half message is open, was not stored again, and does not end in this batch already."""
        cdef StoredRecord record = <StoredRecord>ending.record
        cdef int64_t index = ending.table_offset - self.origin
        cdef Part value
        if not 0 <= index < PyByteArray_GET_SIZE(self.states) or PyByteArray_AS_STRING(self.states)[index] != OPEN:
            return False
        if find_value(record.at(record.properties_at), record.properties_size, BEGAN, &value):
            return False
        return ending.table_offset not in self.moved and ending.table_offset not in ended

    cdef int32_t queue_of(self, StoredRecord record) except -2:
        """The number in the batch of the message's destination queue; -1 if the plain twin has to find it."""
        cdef const uint8_t* at = record.at(record.properties_at)
        cdef Part name, queue_id
        cdef int64_t number
        if not (
            find_value(at, record.properties_size, REAL_TOPIC, &name)
            and find_value(at, record.properties_size, REAL_QID, &queue_id) and name.size
            and read_number(queue_id.at, queue_id.size, &number) and 0 <= number <= 0x7FFFFFFFLL
        ):
            return -1
        if name.size != PyBytes_GET_SIZE(self.last_name) or memcmp(
            name.at, PyBytes_AS_STRING(self.last_name), name.size
        ):
            raw = PyBytes_FromStringAndSize(<const char*>name.at, name.size)
            topic = known_topic(raw)
            if topic is None or topic == HALVES:
                return -1
            self.last_topic = self.batch.groups.topic(topic)
            self.last_name = raw
        return self.batch.groups.find(self.last_topic, <int32_t>number)

    cdef int add_note(self, int64_t offset, origin, bint wait) except -1:
        """Add the op message that marks the half message at the queue offset ``offset`` as ended."""
        cdef uint8_t* digits = self.batch.arena.take(DIGITS_MAX)
        cdef int size = <int>(put_number(digits, offset) - digits)
        cdef Row* row
        self.batch.arena.put_back(DIGITS_MAX - size)
        if self.notes < 0:
            self.notes = self.batch.groups.find(self.batch.groups.topic(ENDS), 0)
        row = self.batch.begin_row(origin, self.notes, wait)
        row.body, row.body_size = digits, size
        row.own = <const uint8_t*>PyBytes_AS_STRING(NOTE)
        row.own_size = <int32_t>PyBytes_GET_SIZE(NOTE)
        row.common, row.common_size = row.own, 0
        row.host, row.host_size = <const uint8_t*>PyBytes_AS_STRING(self.host), <int32_t>PyBytes_GET_SIZE(self.host)
        row.born = self.born
        row.flag = row.sys_flag = row.times = 0
        return 0

    cdef bint add(self, Ending ending, dict ended) except -1:
        """Add the rows of an ending; False if the plain twin has to."""
        cdef StoredRecord record
        cdef HotRequest request
        cdef Row* row
        cdef int32_t first = self.batch.count, group
        cdef bint wait
        if (
            type(ending.record) is not StoredRecord or not isinstance(ending.request, HotRequest)
            or not self.batch.takes_rows() or not self.is_open(ending, ended)
        ):
            return False
        record, request = <StoredRecord>ending.record, <HotRequest>ending.request
        wait = not request.flag & ONEWAY
        if ending.is_commit:
            group = self.queue_of(record)
            if group < 0 or record.body_size + record.properties_size > self.fitting:
                return False
            row = self.batch.begin_row(request, group, wait)
            record.fill(row)
            row.sys_flag = row.sys_flag & ~STATES | COMMIT
            row.prepared = ending.commit_log_offset
            self.batch.kept.append(record)
            self.batch.tied[first] = first + 1
            self.add_note(ending.table_offset, None, False)
        else:
            self.add_note(ending.table_offset, request, wait)
        ending.row = self.batch.count - 1
        ended[ending.table_offset] = ending
        return True


def add_ends(batch, list endings, dict ended, terms, other):
    """See :func:`gantrymq.plugins.transaction.plain.add_ends`."""
    cdef EndRows rows
    if type(batch) is not AppendRows:
        return plain.add_ends(batch, endings, ended, terms, other)
    rows = EndRows(batch, terms)
    for ending in endings:
        if type(ending) is not Ending or not rows.add(<Ending>ending, ended):
            other(ending)


def close_ends(batch, dict ended not None, bytearray states not None, int64_t origin):
    """See :func:`gantrymq.plugins.transaction.plain.close_ends`."""
    cdef AppendRows some
    cdef int64_t offset, note, first = -1, last = -1, highest = -1
    cdef int32_t row, closed = 0
    cdef char* state
    cdef bint is_commit
    cdef list unnoted = []
    if type(batch) is not AppendRows or (<AppendRows>batch).some_made(OFFSETS, COLUMNS):
        return plain.close_ends(batch, ended, states, origin)
    some = <AppendRows>batch
    for offset, ending in ended.items():
        row = (<Ending>ending).row if type(ending) is Ending else ending.row
        is_commit = (<Ending>ending).is_commit if type(ending) is Ending else ending.is_commit
        if not 0 <= row < some.count or some.rows[row].offset < 0:
            unnoted.append(offset)
            continue
        note = some.rows[row].queue_offset
        if first < 0 or note < first:
            first = note
        last, highest = max(last, note), max(highest, offset)
        state = PyByteArray_AS_STRING(states) + (offset - origin)
        if 0 <= offset - origin < PyByteArray_GET_SIZE(states) and state[0] == OPEN:
            state[0] = COMMITTED if is_commit else ROLLED_BACK
            closed += 1
    return closed, first, last, highest, unnoted
