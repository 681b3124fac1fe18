# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""From Avro bodies to the buffers of Arrow columns, without an object for a value.

The loops take what is intact and usual. At anything else they stop, and the reader in ``avro``, which knows what to say
of it, decodes the whole batch.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

include "../_buffer.pxi"

cdef extern from *:
    """
    typedef __int128 gantrymq_int128;
    #define gantrymq_times(a, b, result) __builtin_mul_overflow(a, b, result)
    """
    ctypedef long long int128 "gantrymq_int128"
    bint times "gantrymq_times"(int64_t, int64_t, int64_t*) noexcept

DEF DATA_MAX = 0x7FFFFFFF
DEF VARINT_MAX = 10
DEF KEYS_MAX = 32
DEF DECIMAL_MAX = 1024

DEF NULL_ = 0
DEF BOOLEAN = 1
DEF LONG = 2
DEF FLOAT = 3
DEF DOUBLE = 4
DEF BYTES = 5
DEF STRING = 6
DEF FIXED = 7
DEF ENUM = 8
DEF ARRAY = 9
DEF MAP = 10
DEF RECORD = 11
DEF UNION = 12
DEF DECIMAL = 13
DEF REAL = 14

OPERATIONS = {
    "null": NULL_, "boolean": BOOLEAN, "long": LONG, "float": FLOAT, "double": DOUBLE, "bytes": BYTES,
    "string": STRING, "fixed": FIXED, "enum": ENUM, "array": ARRAY, "map": MAP, "record": RECORD, "union": UNION,
    "decimal": DECIMAL, "real": REAL,
}
"""The numbers of what a :class:`Node` does. ``long`` reads an Avro int too; ``real`` reads a number as a float."""

cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end


cdef class Column:
    """Collects the values of one Arrow array. ``width`` is the size of a value, 0 for values of variable length.

    ``has_ends`` is for texts, lists and maps; ``nests`` for structs, whose children have a row for each of theirs.
    """

    cdef Buffer data
    cdef Buffer ends
    cdef Buffer valid  # a byte a row
    cdef Py_ssize_t nulls
    cdef readonly Py_ssize_t rows
    cdef int width
    cdef bint has_ends, nests
    cdef int digits
    cdef readonly tuple children

    def __cinit__(self, int width, bint has_ends, bint nests, tuple children, int digits=0):
        memset(&self.data, 0, sizeof(Buffer))
        memset(&self.ends, 0, sizeof(Buffer))
        memset(&self.valid, 0, sizeof(Buffer))
        self.width, self.has_ends, self.nests, self.children, self.digits = width, has_ends, nests, children, digits

    def __dealloc__(self):
        free(self.data.data)
        free(self.ends.data)
        free(self.valid.data)

    def clear(self):
        """Forget all rows."""
        self.data.size = self.ends.size = self.valid.size = self.nulls = self.rows = 0
        for child in self.children:
            child.clear()

    def take(self):
        """``(rows, nulls, valid, ends, data)``; ``valid`` and ``ends`` may be None. The children have their own."""
        valid = pack(&self.valid) if self.nulls else None
        ends = None
        if self.has_ends:
            ends = PyBytes_FromStringAndSize(self.ends.data, self.ends.size) if self.rows else bytes(4)
        if self.width == 1:
            data = pack(&self.data)
        else:
            data = PyBytes_FromStringAndSize(self.data.data, self.data.size) if self.data.size else b""
        return self.rows, self.nulls, valid, ends, data

    cdef int end_row(self, bint is_valid) except -2:
        cdef char value = is_valid
        cdef int32_t end = 0
        cdef Py_ssize_t at
        self.rows += 1
        self.nulls += not is_valid
        put(&self.valid, &value, 1)
        if self.has_ends:
            if self.ends.size == 0:
                put(&self.ends, &end, 4)
            at = (<Column>self.children[0]).rows if self.children else self.data.size
            if at > DATA_MAX:
                return -1
            end = <int32_t>at
            put(&self.ends, &end, 4)
        return 0

    cdef int add_null(self) except -2:
        cdef char zeros[16]
        if self.width:
            memset(zeros, 0, 16)
            put(&self.data, zeros, self.width)
        if self.nests:
            for child in self.children:
                if (<Column>child).add_null() < 0:
                    return -1
        return self.end_row(False)

    cdef int add(self, const void* value) except -2:
        put(&self.data, value, self.width)
        return self.end_row(True)

    cdef int add_bytes(self, const void* data, Py_ssize_t size) except -2:
        put(&self.data, data, size)
        return self.end_row(True)


cdef class Node:
    """Reads one type of the writer's schema into ``column``, or past it if that is None."""

    cdef int operation
    cdef Column column
    cdef tuple children  # of a record by field, of a union by branch, of an array or map its one
    cdef tuple missing  # of a record: the columns that none of its fields has
    cdef tuple symbols  # of an enum: texts, None where it has none
    cdef int64_t size  # of a fixed; the factor of a long

    def __init__(self, int operation, column, children=(), missing=(), symbols=(), size=0):
        self.operation, self.column, self.children, self.missing = operation, column, tuple(children), tuple(missing)
        self.symbols, self.size = tuple(symbols), size


def decode(Node node not None, bytes prefix not None, const uint8_t[::1] data not None, const uint8_t[::1] offsets not None,
           uint8_t[::1] done not None, Py_ssize_t first, Py_ssize_t rows):
    """Decode each body that begins with ``prefix`` and is not ``done`` (a byte a row), and make it ``done``. The ends of
    bodies are in ``offsets`` from place ``first`` on.

    Returns the numbers of its rows as int32, or None if one of them needs the other reader.
    """
    cdef const int32_t* ends = <const int32_t*>&offsets[0] + first
    cdef const char* wanted = PyBytes_AS_STRING(prefix)
    cdef const uint8_t* begin = &data[0] if data.shape[0] else <const uint8_t*>wanted  # all bodies are empty
    cdef Py_ssize_t length = PyBytes_GET_SIZE(prefix), row, size
    cdef bytes taken = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef int32_t* numbers = <int32_t*>PyBytes_AS_STRING(taken)
    cdef Py_ssize_t count = 0
    cdef Cursor cursor
    for row in range(rows):
        if done[row]:
            continue
        cursor.at, cursor.end = begin + ends[row], begin + ends[row + 1]
        size = cursor.end - cursor.at
        if size < length or memcmp(cursor.at, wanted, length):
            continue
        cursor.at += length
        if read(node, &cursor) < 0 or cursor.at != cursor.end:
            return None
        done[row] = 1
        numbers[count] = <int32_t>row
        count += 1
    return taken[:4 * count]


cdef int read_long(Cursor* cursor, int64_t* value) noexcept:
    cdef uint64_t number = 0
    cdef int at
    cdef uint8_t byte
    for at in range(VARINT_MAX):
        if cursor.at == cursor.end:
            return -1
        byte = cursor.at[0]
        cursor.at += 1
        if at == VARINT_MAX - 1 and byte > 1:
            return -1
        number |= <uint64_t>(byte & 0x7F) << (7 * at)
        if byte < 0x80:
            value[0] = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
            return 0
    return -1


cdef int read_size(Cursor* cursor, Py_ssize_t* size) noexcept:
    cdef int64_t value = 0
    if read_long(cursor, &value) < 0 or not 0 <= value <= cursor.end - cursor.at:
        return -1
    size[0] = <Py_ssize_t>value
    return 0


cdef bint is_text(const uint8_t* data, Py_ssize_t size) except -2:
    cdef Py_ssize_t at
    cdef uint8_t seen = 0
    for at in range(size):
        seen |= data[at]
    if seen < 0x80:
        return True
    try:
        PyUnicode_DecodeUTF8(<char*>data, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef int read(Node node, Cursor* cursor) except -2:
    """0, or -1 for what only the other reader can decode or name."""
    cdef Column column = node.column
    cdef int operation = node.operation
    cdef int64_t number = 0, scaled = 0
    cdef int32_t narrow
    cdef float single
    cdef double real
    cdef uint8_t flag
    cdef Py_ssize_t size = 0
    cdef const uint8_t* at
    cdef bytes symbol
    if operation == RECORD:
        for child in node.children:
            if read(<Node>child, cursor) < 0:
                return -1
        for child in node.missing:
            if (<Column>child).add_null() < 0:
                return -1
        return 0 if column is None else column.end_row(True)
    if operation == UNION:
        if read_long(cursor, &number) < 0 or not 0 <= number < len(node.children):
            return -1
        return read(<Node>node.children[<Py_ssize_t>number], cursor)
    if operation == NULL_:
        return 0 if column is None else column.add_null()
    if operation == LONG or operation == REAL:
        if read_long(cursor, &number) < 0:
            return -1
        if column is None:
            return 0
        if operation == REAL:
            real = <double>number
            if column.width == 8:
                return column.add(&real)
            single = <float>real
            return column.add(&single)
        if times(number, node.size, &scaled):
            return -1
        if column.width == 8:
            return column.add(&scaled)
        if not INT32_MIN <= scaled <= INT32_MAX:
            return -1
        narrow = <int32_t>scaled
        return column.add(&narrow)
    if operation == BYTES or operation == STRING:
        if read_size(cursor, &size) < 0:
            return -1
        at = cursor.at
        cursor.at += size
        if operation == STRING and not is_text(at, size):
            return -1
        return 0 if column is None else column.add_bytes(at, size)
    if operation == DOUBLE or operation == FLOAT:
        size = 8 if operation == DOUBLE else 4
        if cursor.end - cursor.at < size:
            return -1
        at = cursor.at
        cursor.at += size
        if column is None:
            return 0
        if column.width == size:
            return column.add(at)
        if operation == DOUBLE:
            return -1
        memcpy(&single, at, 4)
        real = single
        return column.add(&real)
    if operation == BOOLEAN:
        if cursor.at == cursor.end or cursor.at[0] > 1:
            return -1
        flag = cursor.at[0]
        cursor.at += 1
        return 0 if column is None else column.add(&flag)
    if operation == ENUM:
        if read_long(cursor, &number) < 0 or not 0 <= number < len(node.symbols):
            return -1
        symbol = node.symbols[<Py_ssize_t>number]
        if symbol is None:
            return -1
        return 0 if column is None else column.add_bytes(PyBytes_AS_STRING(symbol), PyBytes_GET_SIZE(symbol))
    if operation == FIXED:
        if cursor.end - cursor.at < node.size:
            return -1
        at = cursor.at
        cursor.at += node.size
        return 0 if column is None else column.add_bytes(at, node.size)
    if operation == DECIMAL:
        size = node.size
        if size < 0:
            if read_size(cursor, &size) < 0:
                return -1
        elif cursor.end - cursor.at < size:
            return -1
        at = cursor.at
        cursor.at += size
        if not 1 <= size <= DECIMAL_MAX:
            return -1
        return 0 if column is None else add_decimal(column, at, size)
    return read_items(node, cursor)


cdef int add_decimal(Column column, const uint8_t* at, Py_ssize_t size) except -2:
    cdef int128 value = <int8_t>at[0]
    cdef int128 limit = 1
    cdef Py_ssize_t number
    if size > 16:
        return -1
    for number in range(1, size):
        value = value * 256 + at[number]
    for number in range(column.digits):
        limit *= 10
    if not -limit < value < limit:
        return -1
    return column.add(&value)


cdef int read_items(Node node, Cursor* cursor) except -2:
    """An array or a map: blocks of items until an empty one."""
    cdef Column column = node.column
    cdef Node item = <Node>node.children[0]
    cdef bint is_map = node.operation == MAP
    cdef Column keys = <Column>column.children[0] if is_map and column is not None else None
    cdef const uint8_t* names[KEYS_MAX]
    cdef Py_ssize_t sizes[KEYS_MAX]
    cdef int64_t count = 0, ignored = 0
    cdef Py_ssize_t size = 0
    cdef int known = 0, number
    while True:
        if read_long(cursor, &count) < 0:
            return -1
        if count == 0:
            break
        if count < 0:  # the size of the block in bytes follows
            if count < -DATA_MAX or read_long(cursor, &ignored) < 0:
                return -1
            count = -count
        while count > 0:
            count -= 1
            if is_map:
                if known == KEYS_MAX or read_size(cursor, &size) < 0 or not is_text(cursor.at, size):
                    return -1
                for number in range(known):
                    if sizes[number] == size and memcmp(names[number], cursor.at, size) == 0:
                        return -1  # the last value of a name counts
                names[known], sizes[known] = cursor.at, size
                known += 1
                if keys is not None and keys.add_bytes(cursor.at, size) < 0:
                    return -1
                cursor.at += size
            if read(item, cursor) < 0:
                return -1
    return 0 if column is None else column.end_row(True)


cdef bytes pack(Buffer* flags):
    """The bits of Arrow, the first row in the lowest bit."""
    cdef Py_ssize_t size = (flags.size + 7) // 8, row
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, size)
    cdef char* at = PyBytes_AS_STRING(bits)
    memset(at, 0, size)
    for row in range(flags.size):
        at[row >> 3] |= flags.data[row] << (row & 7)
    return bits
