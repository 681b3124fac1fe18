# cython: language_level=3
# C declarations of requests, records and rows, for the parts of _requests.pyx and for the compiled twins of plugins'
# inner loops, which cimport them and are built from the same source. They are not part of the plugin API.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t


# ---------------------------------------------------------------------------------------------------------- headers

cdef enum:
    FIELDS_MAX = 32
    ONEWAY = 2  # of a request's flag
    BORN_HOST_V6 = 0x10  # of a message's sys flag
    PROPERTIES_MAX = 32767


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size
    bint escaped
    bint wide


cdef struct Field:
    Text name
    Text value


cdef struct Head:
    int64_t code
    int64_t flag
    int64_t opaque
    int64_t layout  # the same number only for headers with the same field names in the same order; 0: not known
    int count


@cython.no_gc
@cython.final
cdef class Block:
    cdef bytes data
    cdef uint8_t* texts
    cdef Py_ssize_t used

    cdef uint8_t* room(self) except NULL


@cython.no_gc
cdef class HotRequest:
    cdef readonly object connection
    cdef readonly int code
    cdef public bint answered
    cdef int opaque
    cdef int flag
    cdef int kind
    cdef Block block
    cdef const uint8_t* head
    cdef const uint8_t* payload
    cdef Py_ssize_t header_size
    cdef Py_ssize_t body_size
    cdef object _command

    cdef bint keeps_frame
    cdef int64_t read_as_number  # of the fields that are kept from the first reading; 0: none

    cdef int read_fields(self, Field* fields) noexcept
    cdef int read_like_last(self, Field* fields, int64_t* layout) noexcept
    cdef int move_out(self) except -1


cdef class RequestReader:
    cdef bint keeps_frames

    cdef HotRequest read(self, Block block, Field* fields, int count, int code)


cdef object name_of(Text* text)
cdef const uint8_t* utf8_in(Block block, Text* text, Py_ssize_t* size) except? NULL
cdef bint read_number(const uint8_t* at, Py_ssize_t size, int64_t* value) noexcept nogil
cdef int read_bool(Text* text) noexcept nogil
cdef uint8_t* put_number(uint8_t* at, int64_t value) noexcept nogil
cdef int as_int64(object number, int64_t* value) except -1
cdef int as_int32(object number, int64_t* value) except -1
cdef bytes two_texts(const uint8_t* first, Py_ssize_t first_size, const uint8_t* second, Py_ssize_t second_size)


cdef class CodecSocket:
    # A socket that decodes what it receives and encodes what it sends. The loops of _transfer.pxi receive and send for
    # it as long as it allows them to; otherwise they leave it to its methods ``recv`` and ``send``.
    cdef int descriptor
    cdef bint decodes
    cdef bint encodes

    # What ``size`` received bytes have; None: nothing yet; empty: ``recv`` has to be called for the end or the error.
    cdef bytes decode(self, const uint8_t* at, Py_ssize_t size)
    # The bytes to send for ``data``; None: ``send`` has to be called.
    cdef bytes encode(self, bytes data)
    # The socket took the first ``sent`` bytes of ``encoded`` only; ``size``: the bytes of the data.
    cdef int keep_unsent(self, bytes encoded, Py_ssize_t sent, Py_ssize_t size) except -1


cdef class Output:
    cdef uint8_t* start
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    cdef uint8_t* reserve(self, Py_ssize_t more) except NULL
    cdef int let_go(self, connection) except -1


# ------------------------------------------------------------------------------------------------------- properties

cdef struct Part:
    const uint8_t* at
    int32_t size


cdef bint find_value(const uint8_t* at, Py_ssize_t size, bytes name, Part* value) noexcept
cdef object known_topic(bytes raw)


# ------------------------------------------------------------------------------------------------------------- rows

cdef enum:
    TOPICS, QUEUE_IDS, BODIES, PROPERTIES, FLAGS, SYS_FLAGS, BORN_TIMESTAMPS, BORN_HOSTS, RECONSUME_TIMES
    PREPARED_OFFSETS, WAITS, ORIGINS, STATUSES, OFFSETS, SIZES, QUEUE_OFFSETS, COLUMNS


cdef struct Row:
    const uint8_t* body
    const uint8_t* own
    const uint8_t* common
    const uint8_t* host
    const uint8_t* record
    int64_t born
    int64_t prepared
    int64_t offset
    int64_t queue_offset
    int32_t body_size
    int32_t own_size
    int32_t common_size
    int32_t host_size
    int32_t group
    int32_t sender
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t times
    int32_t size
    bint wait


cdef enum:
    # The origin of a request's rows: the request itself, or the result of ``make_origin``, called without or with the
    # queue id of the request.
    ITSELF, SEVERAL, MOVABLE


cdef struct Sender:
    int32_t first
    int32_t count
    int32_t queue_id
    int kind


cdef struct Group:
    int32_t topic
    int32_t queue_id
    int32_t head
    int32_t tail
    int32_t count
    bint loaded
    int64_t next_offset


cdef class Groups:
    cdef dict numbers
    cdef list names
    cdef object last_name
    cdef int32_t last_number
    cdef Group* groups
    cdef int32_t count
    cdef int32_t room
    cdef int32_t* slots
    cdef uint32_t mask

    cdef int32_t topic(self, object name) except -1
    cdef int32_t find(self, int32_t topic, int32_t queue_id) except -1
    cdef int grow(self) except -1
    cdef tuple key(self, int32_t number)


cdef class Arena:
    cdef list blocks
    cdef uint8_t* at
    cdef Py_ssize_t left

    cdef uint8_t* take(self, Py_ssize_t size) except NULL
    cdef void put_back(self, Py_ssize_t size) noexcept


cdef class Columns:
    cdef list made

    cdef list column(self, int number)
    cdef int replace_column(self, int number, value) except -1


cdef class AppendRows(Columns):
    cdef public object done
    cdef public int traits
    cdef public str source
    cdef public dict remarks, settled, response_fields, attempts_max, own_queue_offsets
    cdef public int64_t start, end, store_timestamp
    cdef public Py_ssize_t refused
    cdef bint listed, placed, frozen, waited
    cdef Row* rows
    cdef int32_t count, room
    cdef Sender* senders
    cdef int32_t senders_count, senders_room
    cdef list origins_kept, kept, parts, pieces
    cdef Groups groups
    cdef Arena arena
    cdef object make_origin
    cdef dict tied
    cdef Block last_block

    cdef object cell(self, int number, Py_ssize_t place)
    cdef list make_origins(self)
    cdef int to_lists(self) except -1
    cdef bint some_made(self, int first, int behind)
    cdef int keep_block(self, Block block) except -1
    cdef bint takes_rows(self)
    cdef Row* new_row(self) except NULL
    cdef int new_sender(self, origin, int32_t count, int kind) except -1
    cdef Row* begin_row(self, origin, int32_t group, bint wait) except NULL
    cdef bint read_cells(self, Row* row, tuple cells) except -1
    cdef bint read_cell(self, Row* row, int number, cell) except -1
    cdef bint freeze(self) except -1
    cdef bint all_stored(self)
    cdef bint find_in(self, Row* fields, bytes name, Part* value) noexcept
    cdef bint may_divert(self)
    cdef int divert_row(self, Row* fields, int32_t group, dict changes) except -1


@cython.no_gc
@cython.final
cdef class StoredRecord:
    cdef bytes data
    cdef Py_ssize_t body_at
    cdef Py_ssize_t properties_at
    cdef readonly Py_ssize_t body_size, properties_size
    cdef readonly object topic

    cdef const uint8_t* at(self, Py_ssize_t place) noexcept
    cdef Py_ssize_t more(self) noexcept
    cdef int64_t in_queue(self) noexcept
    cdef int fill(self, Row* row) noexcept


cdef struct Stored:
    const uint8_t* properties
    int64_t offset
    int64_t queue_offset
    int64_t stored
    int64_t prepared
    int64_t tag_code
    int32_t size
    int32_t queue_id
    int32_t sys_flag
    int32_t properties_size
    int32_t group
    int32_t next


cdef class DispatchRows(Columns):
    # Its columns cannot be replaced, so the fields of its rows always count.
    cdef public int64_t start, end
    cdef public bint replay
    cdef Stored* rows
    cdef int32_t count, room
    cdef Groups groups
    cdef list kept

    cdef object cell(self, int number, Stored* row)
    cdef Stored* new_row(self) except NULL
    cdef int link(self, Stored* row) except -1
