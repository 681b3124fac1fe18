# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.tls.plain`: the kernel's loops over all sockets decrypt and encrypt by it.

It passes whole records only to TLS, so it knows how many reads they need: each read decrypts one record to its place,
and none fails because it finds nothing. What TLS keeps in memory for a connection stays as small as a record.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_XDECREF
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from gantrymq.kernel.fast._requests cimport CodecSocket

import ssl

from gantrymq.plugins.tls.plain import READ_BYTES

cdef extern from "Python.h":
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char* text, Py_ssize_t size) except NULL
    int _PyBytes_Resize(PyObject** one, Py_ssize_t size) except -1

KIND = "compiled"

cdef enum:
    RECORD_HEAD = 5  # type, version, and size of the record
    RECORD_MAX = RECORD_HEAD + 16384 + 2048  # of TLS 1.2; 1.3 has smaller ones
    FIRST_TYPE = 20
    LAST_TYPE = 24
    TOGETHER = 16384  # records of up to so many bytes are passed to TLS together

cdef object MemoryBIO = ssl.MemoryBIO
cdef object SSLError = ssl.SSLError
cdef object WantRead = ssl.SSLWantReadError
cdef object ZeroReturn = ssl.SSLZeroReturnError
cdef object RECORD_BYTES = READ_BYTES


cdef class RecordLayer(CodecSocket):
    """See :class:`gantrymq.plugins.tls.plain.RecordLayer`."""

    cdef public object tls, incoming, outgoing, failure
    cdef public bint has_ended
    cdef public Py_ssize_t in_flight
    cdef bytes _unsent
    cdef bint _is_open
    cdef bint is_unframed  # whether something was not a record: TLS decides about everything that comes
    cdef bytes rest  # the beginning of a record

    def __init__(self):
        self.incoming, self.outgoing = MemoryBIO(), MemoryBIO()
        self._unsent = b""
        self.descriptor = -1

    @property
    def is_open(self):
        """See the plain twin."""
        return self._is_open

    @is_open.setter
    def is_open(self, bint is_open):
        self._is_open = self.decodes = is_open
        self.encodes = is_open and not self._unsent

    @property
    def unsent(self):
        """See the plain twin."""
        return self._unsent

    @unsent.setter
    def unsent(self, bytes unsent):
        self._unsent = unsent
        self.encodes = self._is_open and not unsent

    def open(self, int descriptor):
        """See the plain twin."""
        self.descriptor = descriptor
        self.is_open = True

    def feed(self, bytes data):
        """See the plain twin."""
        cdef Py_ssize_t whole
        if self.rest is not None:
            data = self.rest + data
            self.rest = None
        whole = self.whole_records(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if whole == PyBytes_GET_SIZE(data):
            self.incoming.write(data)
            return
        self.rest = data[whole:]
        if whole:
            self.incoming.write(data[:whole])

    def decrypt(self, bytes data):
        """See the plain twin."""
        return self.decode(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def read(self):
        """See the plain twin. Only for bytes that came with the end of the handshake, or are not records."""
        cdef list parts = []
        try:
            while self.incoming.pending or self.tls.pending():
                part = self.tls.read(RECORD_BYTES)
                if not part:
                    self.has_ended = True
                    break
                parts.append(part)
        except WantRead:
            pass
        except ZeroReturn:
            self.has_ended = True
        except SSLError as error:
            self.failure = self.refuse(error)
            return None
        if self.outgoing.pending:
            self.answer_peer()
        if not parts:
            return b"" if self.has_ended else None
        return b"".join(parts)

    def encrypt(self, data):
        """See the plain twin."""
        self.in_flight = self.tls.write(data)
        self.unsent = self.outgoing.read()

    def refuse(self, error):
        """See the plain twin."""
        raise NotImplementedError

    def answer_peer(self):
        """See the plain twin."""
        raise NotImplementedError

    cdef Py_ssize_t whole_records(self, const uint8_t* at, Py_ssize_t size) noexcept:
        """How many of the bytes TLS gets now: the whole records, or all if something else is among them."""
        cdef Py_ssize_t place = 0, length
        while not self.is_unframed and size - place >= RECORD_HEAD:
            length = size_of_record(at + place)
            if length < 0:
                self.is_unframed = True
            elif length > size - place:
                return place
            else:
                place += length
        return size if self.is_unframed else place

    cdef bytes decode(self, const uint8_t* at, Py_ssize_t size):
        cdef bytes joined
        cdef Py_ssize_t whole, rest
        if self.rest is not None:
            rest = PyBytes_GET_SIZE(self.rest)
            joined = PyBytes_FromStringAndSize(NULL, rest + size)
            memcpy(PyBytes_AS_STRING(joined), PyBytes_AS_STRING(self.rest), rest)
            memcpy(PyBytes_AS_STRING(joined) + rest, at, size)
            at = <const uint8_t*>PyBytes_AS_STRING(joined)
            size += rest
            self.rest = None
        whole = self.whole_records(at, size)
        if whole < size:
            self.rest = PyBytes_FromStringAndSize(<const char*>at + whole, size - whole)
            if whole == 0:
                return None
        if self.is_unframed:
            self.incoming.write(PyMemoryView_FromMemory(<char*>at, size, PyBUF_READ))
            data = self.read()
            return b"" if self.failure is not None else data
        return self.decrypt_records(at, whole)

    cdef bytes decrypt_records(self, const uint8_t* at, Py_ssize_t size):
        """Decrypt whole records. Returns as :meth:`decode` does."""
        cdef PyObject* decrypted = new_bytes(NULL, size)
        cdef Py_ssize_t used = 0, place = 0, together, records, length, got
        cdef bytes data
        try:
            while place < size and not self.has_ended:
                together, records = size_of_record(at + place), 1
                while place + together < size:
                    length = size_of_record(at + place + together)
                    if together + length > TOGETHER:
                        break
                    together += length
                    records += 1
                self.incoming.write(PyMemoryView_FromMemory(<char*>at + place, together, PyBUF_READ))
                place += together
                while records:
                    records -= 1
                    target = PyMemoryView_FromMemory(PyBytes_AS_STRING(<object>decrypted) + used, size - used, PyBUF_WRITE)
                    try:
                        got = self.tls.read(size - used, target)
                    except WantRead:
                        break  # not all records have bytes of the application
                    except ZeroReturn:
                        got = 0
                    if got == 0:
                        self.has_ended = True
                        break
                    used += got
            if self.outgoing.pending:
                self.answer_peer()
            if self.failure is None:
                if used == 0:
                    return b"" if self.has_ended else None
                _PyBytes_Resize(&decrypted, used)
                data = <bytes>decrypted
                return data
        except SSLError as error:
            self.failure = self.refuse(error)
        finally:
            Py_XDECREF(decrypted)
        return b""

    cdef bytes encode(self, bytes data):
        cdef Py_ssize_t done
        try:
            done = self.tls.write(data)
            while done < PyBytes_GET_SIZE(data):
                done += self.tls.write(memoryview(data)[done:])
            return self.outgoing.read()
        except OSError as error:
            self.failure = error
            return None

    cdef int keep_unsent(self, bytes encoded, Py_ssize_t sent, Py_ssize_t size) except -1:
        self.unsent = encoded[sent:]
        self.in_flight = size
        return 0


cdef inline Py_ssize_t size_of_record(const uint8_t* at) noexcept nogil:
    """The size of the record that begins here with its head; -1: it is none."""
    cdef Py_ssize_t size = RECORD_HEAD + (<Py_ssize_t>at[3] << 8 | at[4])
    return size if FIRST_TYPE <= at[0] <= LAST_TYPE and at[1] == 3 and size <= RECORD_MAX else -1
