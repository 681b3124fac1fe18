# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of ``rows.PlainRows``: from the buffers of Arrow columns to messages of a batch as they travel.

It encodes the usual rows, and stops before every other one: the client's functions encode that, or say what is wrong.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport memcmp, memset

include "_buffer.pxi"

DEF HEAD_BYTES = 20
DEF BODY_MAX = 4194304
DEF PROPERTIES_MAX = 32767
DEF PAIRS_MAX = 32
DEF TIMER_PREFIX_SIZE = 6


cdef struct Piece:
    const uint8_t* data
    Py_ssize_t size


cdef class Texts:
    """A column of strings or bytes: Arrow's buffers ``valid`` (or None), ``ends`` and ``data``, and where it begins in
    them."""

    cdef const uint8_t[::1] valid
    cdef const uint8_t[::1] ends
    cdef const uint8_t[::1] data
    cdef bint has_nulls
    cdef Py_ssize_t first, data_size

    def __init__(self, valid, ends, data, Py_ssize_t first, Py_ssize_t rows):
        self.has_nulls = valid is not None
        if self.has_nulls:
            self.valid = valid
            if self.valid.shape[0] * 8 < first + rows:
                raise ValueError("too short a validity buffer")
        self.ends = ends
        if self.ends.shape[0] < (first + rows + 1) * 4:
            raise ValueError("too few offsets")
        self.data_size = 0 if data is None else len(data)
        if self.data_size:
            self.data = data
        self.first = first

    cdef bint get(self, Py_ssize_t row, Piece* piece) noexcept:
        """Whether the row has a value, which ``piece`` is then. One outside of ``data`` counts as none."""
        cdef const int32_t* ends
        cdef int32_t begin, end
        row += self.first
        if self.has_nulls and not self.valid[row >> 3] >> (row & 7) & 1:
            return False
        ends = <const int32_t*>&self.ends[0]
        begin, end = ends[row], ends[row + 1]
        if not 0 <= begin <= end <= self.data_size:
            return False
        piece.size = end - begin
        piece.data = &self.data[begin] if end > begin else NULL
        return True


cdef class Rows:
    """The rows of one Arrow batch. All columns but ``bodies`` may be None.

    ``names`` and ``values`` are the properties' pairs; ``pair_ends`` has by row the end of its pairs, and the rows'
    validity is ``has_pairs`` (or None); both begin at ``first_map``. With ``dedup_prefix`` row n has that property, which is
    the prefix and ``dedup_first + n``. ``refused`` are names of properties to stop at.
    """

    cdef Py_ssize_t rows
    cdef Texts bodies, tags, keys, order_keys, dedup_keys, names, values
    cdef const uint8_t[::1] pair_ends
    cdef const uint8_t[::1] has_pairs
    cdef bint has_maps, has_null_maps
    cdef Py_ssize_t first_map, pairs_count
    cdef bytes dedup_prefix
    cdef long long dedup_first
    cdef frozenset refused
    cdef Buffer out
    cdef Piece seen[PAIRS_MAX]

    def __cinit__(self):
        memset(&self.out, 0, sizeof(self.out))

    def __init__(
        self, Py_ssize_t rows, Texts bodies not None, Texts tags, Texts keys, Texts order_keys, Texts dedup_keys,
        maps, dedup_prefix, dedup_first, frozenset refused not None,
    ):
        self.rows, self.bodies, self.tags, self.keys = rows, bodies, tags, keys
        self.order_keys, self.dedup_keys = order_keys, dedup_keys
        self.dedup_prefix, self.dedup_first, self.refused = dedup_prefix, dedup_first, refused
        self.has_maps = maps is not None
        if self.has_maps:
            has_pairs, self.pair_ends, self.first_map, self.names, self.values, self.pairs_count = maps
            if self.pair_ends.shape[0] < (self.first_map + rows + 1) * 4:
                raise ValueError("too few offsets")
            self.has_null_maps = has_pairs is not None
            if self.has_null_maps:
                self.has_pairs = has_pairs
                if self.has_pairs.shape[0] * 8 < self.first_map + rows:
                    raise ValueError("too short a validity buffer")

    def __dealloc__(self):
        free(self.out.data)

    def encode(self, rows not None, Py_ssize_t first, list unique_keys not None, Py_ssize_t limit):
        """The rows whose numbers are in ``rows`` from place ``first`` on, up to ``limit`` bytes or one row, and the place
        after them; the unique key of row n is ``unique_keys[n]``."""
        cdef Py_ssize_t place = first, count = len(rows), row, before
        self.out.size = 0
        if first < 0 or len(unique_keys) < self.rows:
            raise IndexError("a row without a unique key")
        while place < count:
            row = rows[place]
            if not 0 <= row < self.rows:
                raise IndexError("no row has this number")
            before = self.out.size
            if not self.put_row(row, <str?>unique_keys[row]):
                self.out.size = before
                break
            if self.out.size > limit and place > first:
                self.out.size = before
                break
            place += 1
        return (PyBytes_FromStringAndSize(self.out.data, self.out.size) if self.out.size else b""), place

    cdef bint put_row(self, Py_ssize_t row, str unique_key) except -1:
        cdef Piece body, piece
        cdef Py_ssize_t start = self.out.size, properties, size
        cdef char number[24]
        cdef uint8_t* head
        if not self.bodies.get(row, &body) or not 0 < body.size <= BODY_MAX:
            return False
        make_room(&self.out, HEAD_BYTES + body.size + 2)
        self.out.size += HEAD_BYTES
        put(&self.out, body.data, body.size)
        self.out.size += 2
        properties = self.out.size
        if self.has_maps and not self.put_pairs(row, properties):
            return False
        if self.dedup_prefix is not None:
            self.begin_pair(properties, b"DEDUP_KEY", 9)
            put(&self.out, <const char*>self.dedup_prefix, len(self.dedup_prefix))
            size = snprintf(number, sizeof(number), b"%lld", self.dedup_first + row)
            put(&self.out, number, size)
        elif self.dedup_keys is not None and self.dedup_keys.get(row, &piece):
            if not is_value(&piece):
                return False
            self.put_pair(properties, b"DEDUP_KEY", 9, &piece)
        if self.keys is not None and self.keys.get(row, &piece) and piece.size:
            if not are_keys(&piece):
                return False
            self.put_pair(properties, b"KEYS", 4, &piece)
        if self.tags is not None and self.tags.get(row, &piece):
            if not is_value(&piece):
                return False
            self.put_pair(properties, b"TAGS", 4, &piece)
        if self.order_keys is not None and self.order_keys.get(row, &piece):
            if not is_value(&piece):
                return False
            self.put_pair(properties, b"__SHARDINGKEY", 13, &piece)
        piece.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(unique_key, &piece.size)
        self.put_pair(properties, b"UNIQ_KEY", 8, &piece)
        size = self.out.size - properties
        if size > PROPERTIES_MAX:
            return False
        head = <uint8_t*>self.out.data + start
        memset(head, 0, HEAD_BYTES)
        put32(head, self.out.size - start)
        put32(head + 16, body.size)
        self.out.data[properties - 2], self.out.data[properties - 1] = <char>(size >> 8), <char>size
        return True

    cdef bint put_pairs(self, Py_ssize_t row, Py_ssize_t properties) except -1:
        cdef const int32_t* ends = <const int32_t*>&self.pair_ends[0]
        cdef Py_ssize_t at, begin, end, other, place = row + self.first_map
        cdef Piece name, value
        if self.has_null_maps and not self.has_pairs[place >> 3] >> (place & 7) & 1:
            return True
        begin, end = ends[place], ends[place + 1]
        if not 0 <= begin <= end <= self.pairs_count or end - begin > PAIRS_MAX:
            return False
        for at in range(begin, end):
            if not self.names.get(at, &name) or not self.values.get(at, &value):
                return False
            if not is_value(&name) or not is_value(&value):
                return False
            if name.size > TIMER_PREFIX_SIZE and memcmp(name.data, b"TIMER_", TIMER_PREFIX_SIZE) == 0:
                return False
            if PyBytes_FromStringAndSize(<const char*>name.data, name.size) in self.refused:
                return False
            for other in range(at - begin):
                if self.seen[other].size == name.size and memcmp(self.seen[other].data, name.data, name.size) == 0:
                    return False
            self.seen[at - begin] = name
            self.put_pair(properties, <const char*>name.data, name.size, &value)
        return True

    cdef int begin_pair(self, Py_ssize_t properties, const char* name, Py_ssize_t size) except -1:
        if self.out.size > properties:
            put(&self.out, b"\x02", 1)
        put(&self.out, name, size)
        return put(&self.out, b"\x01", 1)

    cdef int put_pair(self, Py_ssize_t properties, const char* name, Py_ssize_t size, Piece* value) except -1:
        self.begin_pair(properties, name, size)
        return put(&self.out, value.data, value.size)


cdef inline void put32(uint8_t* at, Py_ssize_t value) noexcept:
    at[0], at[1], at[2], at[3] = <uint8_t>(value >> 24), <uint8_t>(value >> 16), <uint8_t>(value >> 8), <uint8_t>value


cdef bint is_value(Piece* piece) except -1:
    """Whether a property can have it as its name or value: valid Unicode without separators, not empty."""
    cdef Py_ssize_t at
    cdef uint8_t seen = 0
    if not piece.size:
        return False
    for at in range(piece.size):
        if piece.data[at] == 1 or piece.data[at] == 2:
            return False
        seen |= piece.data[at]
    if seen >= 0x80:
        try:
            PyUnicode_DecodeUTF8(<char*>piece.data, piece.size, NULL)
        except UnicodeDecodeError:
            return False
    return True


cdef bint are_keys(Piece* piece) noexcept:
    """Whether these are ASCII keys with single spaces between them, as they travel."""
    cdef Py_ssize_t at
    cdef uint8_t before = 32
    for at in range(piece.size):
        if piece.data[at] < 32 or piece.data[at] >= 0x80 or (piece.data[at] == 32 and before == 32):
            return False
        before = piece.data[at]
    return before != 32
