# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.kernel.fast.plain_requests`: requests and the rows of batches.

It reads frames, JSON and binary headers in the forms that clients write, without an object for each field. If a header
has another form (blanks, unusual escapes, repeated or unknown top-level keys, numbers out of range, errors),
:mod:`gantrymq.remoting` decodes it, so that both twins refuse alike. A plugin reads the fields of its own hot requests
with a ``RequestReader`` for their codes.

The module includes one file for each subject, so that they call each other as C functions. This file has the requests.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

include "_bytes.pxi"

from gantrymq.kernel.batch import STORED, refuse_every_row, settle_row, settle_row_as
from gantrymq.kernel.fast import _records as records
from gantrymq.kernel.fast import plain as plain_records
from gantrymq.kernel.fast import plain_requests as plain
from gantrymq.kernel.fast.plain import QueueEntries, Stop
from gantrymq.kernel.processors import Request
from gantrymq.remoting.message_ids import offset_message_id
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import Frame
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.send import topic_in
from gantrymq.remoting.lenient_header import EFFORT
from gantrymq.remoting.properties import find_property, replace_properties

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyLong_CheckExact(object thing)

prepare_crc()

KIND = "compiled"

cdef enum:
    RESPONSE = 1
    NAME_MAX = 256

cdef object SUCCESS = ResponseCode.SUCCESS
cdef dict _topic_parts = plain_records._topic_parts
cdef dict _topics = plain_records._topics


cdef int as_int64(object number, int64_t* value) except -1:
    """Set ``value`` and return 1, or return 0 if ``number`` is not an ``int`` of at most 64 bits."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return 0
    value[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return 0 if overflow else 1


cdef int as_int32(object number, int64_t* value) except -1:
    """Set ``value`` and return 1, or return 0 if ``number`` is not an ``int`` of at most 32 bits."""
    if not as_int64(number, value):
        return 0
    return 1 if -0x80000000LL <= value[0] <= 0x7FFFFFFFLL else 0


include "_texts.pxi"
include "_escapes.pxi"
include "_headers.pxi"


cdef class Block:
    """Received bytes to which requests point, and a buffer for their texts after escapes are resolved."""

    def __dealloc__(self):
        PyMem_Free(self.texts)

    cdef uint8_t* room(self) except NULL:
        """Where to write the next text; there is room for all, because a text with escapes is longer."""
        if self.texts == NULL:
            self.texts = <uint8_t*>PyMem_Malloc(PyBytes_GET_SIZE(self.data) + 1)
            if self.texts == NULL:
                raise MemoryError
        return self.texts + self.used


cdef class HotRequest:
    """A request whose header was read without a ``Command``; :attr:`command` creates one when it is needed.

    It needs no cycle collection, because a connection has no reference to its requests.
    """

    cdef int read_fields(self, Field* fields) noexcept:
        """Read the header's fields, at most ``FIELDS_MAX``; returns how many, or -1 if the plain decoder has to."""
        cdef Head head
        return head.count if read_head(self.kind, self.head, self.header_size, &head, fields, 0) else -1

    cdef int read_like_last(self, Field* fields, int64_t* layout) noexcept:
        """As :meth:`read_fields`, for a plugin that reads the headers of a turn: the fields may be kept from the first
        reading, or the header is like the last one of the connection and code.

        Sets ``layout`` to a number that only headers with the same field names in the same order have; 0: not known.
        """
        global _are_read_again
        cdef Head head
        cdef KeptHeader* kept = &_kept_headers[self.read_as_number & (FIELDS_KEPT - 1)]
        if self.read_as_number and kept.number == self.read_as_number and kept.at == self.head:
            memcpy(fields, kept.fields, kept.count * sizeof(Field))
            layout[0] = kept.layout
            return kept.count
        _are_read_again = True
        if not read_head(self.kind, self.head, self.header_size, &head, fields, <size_t><PyObject*>self.connection):
            return -1
        layout[0] = head.layout
        return head.count

    cdef int move_out(self) except -1:
        """Copy the request's frame, so that the request does not keep all received bytes alive."""
        cdef Block block = Block.__new__(Block)
        block.data = PyBytes_FromStringAndSize(<const char*>self.head, self.header_size + self.body_size)
        self.head = <const uint8_t*>PyBytes_AS_STRING(block.data)
        self.payload = self.head + self.header_size
        self.block = block
        return 0

    def own_frame(self):
        """Copy the request's frame if the request keeps other received bytes alive, which its size does not include.

        For requests that wait.
        """
        if self.block is not None and PyBytes_GET_SIZE(self.block.data) > self.header_size + self.body_size + 8:
            self.move_out()

    @property
    def command(self):
        """The request as :mod:`gantrymq.remoting` decodes it."""
        if self._command is None:
            self._command = decode(Frame(
                self.kind,
                PyBytes_FromStringAndSize(<const char*>self.head, self.header_size),
                PyBytes_FromStringAndSize(<const char*>self.payload, self.body_size),
            ))
        return self._command

    @property
    def is_oneway(self):
        """See :attr:`gantrymq.kernel.processors.Request.is_oneway`."""
        return bool(self.flag & ONEWAY)

    @property
    def size(self):
        """See :attr:`gantrymq.kernel.processors.Request.size`."""
        return self.header_size + self.body_size

    @property
    def ext(self):
        """See :attr:`gantrymq.kernel.processors.Request.ext`."""
        cdef Field fields[FIELDS_MAX]
        cdef int number, count = self.read_fields(fields) if self._command is None and self.header_size else -1
        cdef dict ext = {}
        for number in range(count):
            value = text_in(&fields[number].value)
            if value is None:
                count = -1
                break
            ext[name_of(&fields[number].name)] = value
        return ext if count >= 0 else self.command.ext or {}

    @property
    def body(self):
        """See :attr:`gantrymq.kernel.processors.Request.body`."""
        return PyBytes_FromStringAndSize(<const char*>self.payload, self.body_size)

    @property
    def topic(self):
        """See :attr:`gantrymq.kernel.processors.Request.topic`."""
        return topic_in(self.code, self.ext)

    def header(self, kind):
        """See :meth:`gantrymq.kernel.processors.Request.header`."""
        if self.kind == 0 and self.header_size:
            try:
                return decoder_of(kind)(PyBytes_FromStringAndSize(<const char*>self.head, self.header_size)).fields
            except ValidationError:
                pass  # read_header below raises the error with the usual text
        return read_header(kind, self.command.ext)

    def forget(self):
        """See :meth:`gantrymq.kernel.processors.Request.forget`."""
        self.block = None
        self.read_as_number = 0
        self.head = self.payload = b""
        self.header_size = self.body_size = 0
        self._command = Command(self.code, None, b"", self.opaque, self.flag, kind=self.kind)

    def answer(self, code, remark=None, ext=None, body=b""):
        """See :meth:`gantrymq.kernel.processors.Request.answer`."""
        if not (self.answered or self.flag & ONEWAY):
            self.answered = True
            if remark is None and ext is None and not body:
                self.connection.send_bytes(short_response(code, self.kind, self.opaque))
            else:
                self.connection.send(Command(code, ext, body, self.opaque, RESPONSE, remark, kind=self.kind))


cdef class RequestReader:
    """Reads the requests of some codes into typed fields. With ``keeps_frames``, data made from a request still points
    into its frame, so that many requests may share the received bytes."""

    cdef HotRequest read(self, Block block, Field* fields, int count, int code):
        """The request with these fields, or None if the plain decoder has to decode it. The caller sets everything
        else."""
        return read_other(fields, count)


@cython.final
cdef class Readers:
    """See :class:`gantrymq.kernel.fast.plain_requests.Readers`. Ignores readers of the plain twin."""

    cdef list readers
    cdef int64_t* codes
    cdef Py_ssize_t count

    def __cinit__(self, readers=()):
        cdef dict known = dict(readers)
        self.readers = []
        self.codes = <int64_t*>PyMem_Malloc((len(known) + 1) * sizeof(int64_t))
        if self.codes == NULL:
            raise MemoryError
        for code, reader in known.items():
            if isinstance(reader, RequestReader):
                self.codes[self.count] = code
                self.readers.append(reader)
                self.count += 1

    def __dealloc__(self):
        PyMem_Free(self.codes)

    cdef RequestReader find(self, int64_t code):
        cdef Py_ssize_t number
        for number in range(self.count):
            if self.codes[number] == code:
                return <RequestReader>self.readers[number]
        return None


include "_short.pxi"
include "_groups.pxi"
include "_properties.pxi"
include "_rows.pxi"
include "_encode.pxi"
include "_dispatch.pxi"
include "_replies.pxi"
include "_stored.pxi"
include "_delivered.pxi"


cdef HotRequest read_hot(
    Block block, const uint8_t* header, Py_ssize_t size, int kind, Readers readers, size_t sender
):
    """The request with this header, or None if the plain decoder has to decode it."""
    cdef Field fields[FIELDS_MAX]
    cdef Head head
    cdef HotRequest request
    cdef RequestReader reader
    cdef int64_t number = 0
    if not read_head(kind, header, size, &head, fields, sender) or head.flag & RESPONSE:
        return None
    if not -0x80000000LL <= head.opaque <= 0x7FFFFFFFLL:
        return None
    if not 0 <= head.flag <= 0x7FFFFFFF or not -0x80000000LL <= head.code <= 0x7FFFFFFFLL:
        return None
    if _are_read_again:
        number = keep_fields(header, &head, fields)
    reader = None if readers is None else readers.find(head.code)
    if reader is None:
        request = read_other(fields, head.count)
    else:
        request = reader.read(block, fields, head.count, <int>head.code)
        if request is not None:
            request.keeps_frame = reader.keeps_frames
    if request is not None:
        request.code = <int>head.code
        request.opaque = <int>head.opaque
        request.flag = <int>head.flag
        request.kind = kind
        request.read_as_number = number
    return request


cdef HotRequest read_other(Field* fields, int count):
    """A request without fields of its own; its command can be decoded at any time."""
    cdef int number
    for number in range(count):
        if fields[number].value.escaped or fields[number].value.wide:
            return None
    return HotRequest.__new__(HotRequest)


cdef Py_ssize_t whole_frames(const uint8_t* data, Py_ssize_t size, int64_t limit) noexcept nogil:
    """The size in bytes of the whole frames at the start of ``data``; -1 if one is not valid."""
    cdef Py_ssize_t position = 0
    cdef int64_t length
    cdef uint32_t mark
    while size - position >= 4:
        length = <int32_t>get32(data + position)
        if length < 4 or length + 4 > limit:
            return -1
        if size - position < 8:
            break
        mark = get32(data + position + 4)
        if (mark & 0xFFFFFF) > length - 4 or mark >> 24 > 1:
            return -1
        if position + 4 + length > size:
            break
        position += 4 + length
    return position


cdef inline void set_place(
    HotRequest request, connection, Block block, const uint8_t* frame, Py_ssize_t header_size, Py_ssize_t length
):
    """Set where the request is from and where its bytes are."""
    request.connection = connection
    request.block = block
    request.head = frame + 8
    request.header_size = header_size
    request.payload = request.head + header_size
    request.body_size = length - 4 - header_size


def common_code(list requests):
    """See :func:`gantrymq.kernel.fast.plain_requests.common_code`."""
    cdef object request, common
    cdef bint is_hot
    cdef int code = 0
    if not requests:
        return None
    common, is_hot = requests[0].code, isinstance(requests[0], HotRequest)
    if is_hot:
        code = common
    for request in requests:
        if is_hot and isinstance(request, HotRequest):
            if (<HotRequest>request).code != code:
                return None
        elif request.code != common:  # which may be a number of any size
            return None
    return common


def read_requests(connection, buffer, limit, Readers readers=None):
    """See :func:`gantrymq.kernel.fast.plain_requests.read_requests`."""
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t size = len(view), taken, position = 0, header_size, length, sent = 0
    cdef bint keeps_all = True, has_others = False
    cdef const uint8_t* data = &view[0] if size else NULL
    cdef uint32_t mark
    cdef Block block
    cdef HotRequest request
    cdef list requests = []
    cdef object effort_until = None
    taken = whole_frames(data, size, limit)
    if taken < 0:
        return plain.read_requests(connection, buffer, limit)  # raises the error
    if not taken:
        return requests, 0
    block = Block.__new__(Block)
    block.data = buffer if type(buffer) is bytes else PyBytes_FromStringAndSize(<const char*>data, taken)
    data = <const uint8_t*>PyBytes_AS_STRING(block.data)
    while position < taken:
        length = get32(data + position)
        mark = get32(data + position + 4)
        header_size = mark & 0xFFFFFF
        request = read_hot(
            block, data + position + 8, header_size, mark >> 24, readers, <size_t><PyObject*>connection
        )
        if request is not None:
            set_place(request, connection, block, data + position, header_size, length)
            requests.append(request)
            if request.keeps_frame:
                sent += length
            else:
                has_others = True
        else:
            if effort_until is None:
                effort_until = EFFORT.values + plain.UNUSUAL_VALUES
            command = decode(Frame(mark >> 24, data[position + 8 : position + 8 + header_size],
                                   data[position + 8 + header_size : position + 4 + length]))
            if command.is_response:
                connection.take_response(command)
            else:
                requests.append(Request(connection, command))
            if EFFORT.values >= effort_until:
                taken = position + 4 + length
        position += 4 + length
    keeps_all = 4 * sent >= size
    if has_others or not keeps_all:
        # A request that waits must not keep many received bytes alive that are not its own.
        for one in requests:
            if isinstance(one, HotRequest) and not (keeps_all and (<HotRequest>one).keeps_frame):
                (<HotRequest>one).move_out()
    return requests, taken


include "_transfer.pxi"
