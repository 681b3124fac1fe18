# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.kernel.fast.plain_requests`: requests, rows of sends, replies, pull bodies.

It reads frames, JSON and binary headers of the hot requests in the forms that clients write, without an object for each
field. Whatever has another form (blanks, odd escapes, doubled or unknown top-level keys, numbers out of range, errors)
is decoded by :mod:`gantrymq.remoting`, so that both twins refuse alike.

One module in parts, a noun each, so that they call one another without a way through Python: headers, sends, replies,
pulls; here are the requests themselves.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

include "_bytes.pxi"

from gantrymq.kernel.batch import Trait
from gantrymq.kernel.fast import plain_requests as plain
from gantrymq.kernel.processors import Request
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command, decode
from gantrymq.remoting.frame import HEADER_MAX_BYTES, Frame
from gantrymq.remoting.headers import PullMessageHeader

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

prepare_crc()

KIND = "compiled"

cdef enum:
    SEND_V2 = 310
    SEND_BATCH = 320
    PULL = 11
    LITE_PULL = 361
    RESPONSE = 1
    ONEWAY = 2
    FIELDS_MAX = 32
    BORN_HOST_V6 = 0x10
    PROPERTIES_MAX = 32767
    SCRATCH = 1 << 17
    NAME_MAX = 256
    FILLER_SIZE = 0x7FFFFFFF

cdef object SUCCESS = ResponseCode.SUCCESS
cdef object BATCH = Trait.BATCH
cdef Py_ssize_t HEADER_MAX = HEADER_MAX_BYTES
cdef uint8_t scratch[SCRATCH]

include "_headers.pxi"


@cython.no_gc
cdef class HotRequest:
    """A request whose header was read without a ``Command``; that one is made when somebody asks for it.

    The collector of cycles does not look at it: a connection knows nothing of its requests.
    """

    cdef readonly object connection
    cdef readonly int code
    cdef public bint answered
    cdef int opaque
    cdef int flag
    cdef int kind
    cdef bytes header
    cdef bytes body
    cdef object _command

    @property
    def command(self):
        """The request as :mod:`gantrymq.remoting` decodes it."""
        if self._command is None:
            self._command = decode(Frame(self.kind, self.header, self.body))
        return self._command

    def forget(self):
        """See :meth:`gantrymq.kernel.processors.Request.forget`."""
        self.header = self.body = b""
        self._command = Command(self.code, None, b"", self.opaque, self.flag, kind=self.kind)

    def answer(self, code, remark=None, ext=None, body=b""):
        """See :meth:`gantrymq.kernel.processors.Request.answer`."""
        if not (self.answered or self.flag & ONEWAY):
            self.answered = True
            self.connection.send(Command(code, ext, body, self.opaque, RESPONSE, remark, kind=self.kind))


include "_sends.pxi"
include "_replies.pxi"
include "_pulls.pxi"
include "_answers.pxi"


cdef HotRequest read_hot(const uint8_t* header, Py_ssize_t size, int kind):
    """The request with this header, or None when the plain decoder must look at it."""
    cdef Field fields[FIELDS_MAX]
    cdef Head head
    cdef HotRequest request
    cdef bint known = read_binary(header, size, &head, fields) if kind else read_json(header, size, &head, fields)
    if not known or head.flag & RESPONSE or not -0x80000000LL <= head.opaque <= 0x7FFFFFFFLL:
        return None
    if not 0 <= head.flag <= 0x7FFFFFFF:
        return None
    if head.code == SEND_V2 or head.code == SEND_BATCH:
        request = read_send(fields, head.count)
    elif head.code == PULL or head.code == LITE_PULL:
        request = read_pull(fields, head.count)
    else:
        return None
    if request is not None:
        request.code = <int>head.code
        request.opaque = <int>head.opaque
        request.flag = <int>head.flag
        request.kind = kind
    return request


cdef Py_ssize_t whole_frames(const uint8_t* data, Py_ssize_t size, int64_t limit) noexcept nogil:
    """How many bytes the whole frames at the start take; -1 when one is not as it must be."""
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
        if (mark & 0xFFFFFF) > length - 4 or (mark & 0xFFFFFF) > HEADER_MAX or mark >> 24 > 1:
            return -1
        if position + 4 + length > size:
            break
        position += 4 + length
    return position


def read_requests(connection, buffer, limit):
    """See :func:`gantrymq.kernel.fast.plain_requests.read_requests`."""
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t size = len(view), taken, position = 0, header_size, length
    cdef const uint8_t* data = &view[0] if size else NULL
    cdef const uint8_t* header
    cdef uint32_t mark
    cdef HotRequest request
    cdef list requests = []
    taken = whole_frames(data, size, limit)
    if taken < 0:
        return plain.read_requests(connection, buffer, limit)
    while position < taken:
        length = get32(data + position)
        mark = get32(data + position + 4)
        header_size = mark & 0xFFFFFF
        header = data + position + 8
        request = read_hot(header, header_size, mark >> 24)
        header_bytes = PyBytes_FromStringAndSize(<const char*>header, header_size)
        body = PyBytes_FromStringAndSize(<const char*>header + header_size, length - 4 - header_size)
        position += 4 + length
        if request is not None:
            request.connection = connection
            request.header = header_bytes
            request.body = body
            requests.append(request)
            continue
        command = decode(Frame(mark >> 24, header_bytes, body))
        if command.is_response:
            connection.take_answer(command)
        else:
            requests.append(Request(connection, command))
    return requests, taken
