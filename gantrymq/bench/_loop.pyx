# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Compiled twin of :mod:`gantrymq.bench.plain_loop`: it handles the usual responses of sends and pulls.

A response is usual if it is whole, has a JSON header that begins with the code of a success, and names a slot. All else
is left to the caller with its bytes, so each unusual case has one meaning. Slots, times and offsets are arrays that both
sides use; the counts are added to the load before :meth:`Loop.poll` returns.
"""

from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp, memcpy

import os
from math import ceil

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    #include <sys/epoll.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <time.h>
    """
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLLIN
    int epoll_wait(int, epoll_event*, int, int)
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t recv(int, void*, size_t, int)
    Py_ssize_t send(int, const void*, size_t, int)
    Py_ssize_t writev(int, const iovec*, int)
    void* memmem(const void*, size_t, const void*, size_t)
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec*)

KIND = "compiled"

cdef enum:
    EVENTS_MAX = 1024
    FRAMES_MAX = 1024  # the buffers that Linux accepts in one call
    RECEIVE_BYTES = 512 * 1024
    SEND_BYTES = 256 * 1024
    DIGITS_MAX = 18
    OFFSET_BYTES = 20


cdef struct Frame:
    const char* header
    Py_ssize_t header_size
    const char* body
    Py_ssize_t body_size
    Py_ssize_t size


cdef inline int64_t clock_ns() noexcept nogil:
    """``time.perf_counter_ns``."""
    cdef timespec found
    clock_gettime(CLOCK_MONOTONIC, &found)
    return <int64_t>found.tv_sec * 1_000_000_000 + found.tv_nsec


cdef object error_of(int number):
    return OSError(number, os.strerror(number))


cdef inline uint32_t get32(const char* at) noexcept nogil:
    cdef const unsigned char* bytes_at = <const unsigned char*>at
    return (<uint32_t>bytes_at[0] << 24) | (bytes_at[1] << 16) | (bytes_at[2] << 8) | bytes_at[3]


cdef inline void put32(char* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = <char>(value >> 24), <char>(value >> 16), <char>(value >> 8), <char>value


cdef inline bint find_frame(const char* data, Py_ssize_t size, Frame* frame) noexcept nogil:
    """Find the first frame; False if it is unfinished, damaged, or its header is not JSON."""
    cdef uint32_t length, mark
    if size < 8:
        return False
    length, mark = get32(data), get32(data + 4)
    if length < 4 or <Py_ssize_t>length > size - 4 or mark > length - 4 or mark >> 24:
        return False
    frame.header, frame.header_size = data + 8, mark
    frame.body, frame.body_size = data + 8 + mark, <Py_ssize_t>length - 4 - mark
    frame.size = <Py_ssize_t>length + 4
    return True


cdef inline int64_t number_of(const Frame* frame, const char* key, Py_ssize_t key_size) noexcept nogil:
    """Return the number that follows a text in the header; -1 if there is none."""
    cdef const char* at = <const char*>memmem(frame.header, frame.header_size, key, key_size)
    cdef const char* end = frame.header + frame.header_size
    cdef int64_t value = 0
    cdef int digits = 0
    if at == NULL:
        return -1
    at += key_size
    while at < end and c'0' <= at[0] <= c'9':
        if digits == DIGITS_MAX:
            return -1
        value = value * 10 + (at[0] - c'0')
        digits += 1
        at += 1
    return value if digits else -1


cdef int64_t count_records(const char* data, Py_ssize_t size, int64_t expected) noexcept nogil:
    """Return the number of records in a body of at least four bytes; ``expected`` if they have the same size."""
    cdef int64_t count = 0
    cdef Py_ssize_t at = 0
    cdef uint32_t length
    if 0 < expected <= size and size == expected * <int64_t>get32(data):
        return expected
    while at + 4 <= size:
        length = get32(data + at)
        if length == 0 or length > 0x7FFFFFFF:
            break
        at += length
        count += 1
    return count


cdef Py_ssize_t write_pull(char* at, bytes before, bytes after, int64_t offset) noexcept:
    """Write the frame of a pull, with ``offset`` between the two parts of its header; returns its length."""
    cdef char[OFFSET_BYTES] digits
    cdef Py_ssize_t first = OFFSET_BYTES, size
    while first:
        first -= 1
        digits[first] = <char>(c'0' + offset % 10)
        offset //= 10
        if not offset:
            break
    size = len(before) + OFFSET_BYTES - first + len(after)
    put32(at, <uint32_t>(size + 4))
    put32(at + 4, <uint32_t>size)
    memcpy(at + 8, PyBytes_AS_STRING(before), len(before))
    memcpy(at + 8 + len(before), &digits[first], OFFSET_BYTES - first)
    memcpy(at + 8 + size - len(after), PyBytes_AS_STRING(after), len(after))
    return 8 + size


cdef class LoadState:
    """What a load has counted since its own counts were updated, and how many more requests it may send."""

    cdef object load
    cdef bytes success
    cdef array exact
    cdef bint measuring
    cdef int64_t allowed
    cdef int64_t requests
    cdef int64_t messages
    cdef int64_t size
    cdef int64_t request_messages
    cdef int64_t request_size

    def __init__(self, load):
        self.load = load
        self.success = b'{"code":%d,' % load.load.success
        self.exact = load.latencies.exact
        self.request_messages, self.request_size = load.load.batch, load.load.batch * load.load.body_bytes

    cdef int begin(self) except -1:
        self.measuring, self.allowed = self.load.measuring, self.load.allowed
        self.requests = self.messages = self.size = 0
        return 0

    cdef int end(self) except -1:
        if self.requests:
            self.load.count(self.requests, self.messages, self.size)
        return 0

    cdef inline int64_t slot_of(self, const Frame* frame) noexcept:
        """Return the slot of a success, its opaque; -1 for other frames."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.success)
        if frame.header_size < size or memcmp(frame.header, PyBytes_AS_STRING(self.success), size):
            return -1
        return number_of(frame, b'"opaque":', 9)

    cdef inline int record_latency(self, int64_t nanoseconds) except -1:
        cdef int64_t microseconds = nanoseconds // 1000
        if not self.measuring:
            return 0
        if 0 <= microseconds < len(self.exact):
            self.exact.data.as_longlongs[microseconds] += 1
        else:
            self.load.latencies.add_one(microseconds)
        return 0


cdef class Member:
    """A connection. ``frames``, ``begins`` and the others as in ``Loop.add_sender`` and ``add_puller``."""

    cdef int fd
    cdef bint pulls
    cdef bint is_ours
    cdef LoadState state
    cdef list frames
    cdef array sent
    cdef array place
    cdef array offsets
    cdef array begins


cdef class Loop:
    """See the plain twin."""

    cdef readonly int64_t last_response
    cdef object epoll
    cdef int epoll_fd
    cdef list members  # by descriptor
    cdef dict states
    cdef char* incoming
    cdef char* outgoing
    cdef epoll_event[EVENTS_MAX] events
    cdef iovec[FRAMES_MAX] parts
    cdef int64_t[FRAMES_MAX] slots

    def __cinit__(self, epoll):
        self.epoll, self.epoll_fd = epoll, epoll.fileno()
        self.members, self.states = [], {}
        self.incoming, self.outgoing = <char*>PyMem_Malloc(RECEIVE_BYTES), <char*>PyMem_Malloc(SEND_BYTES)
        if self.incoming == NULL or self.outgoing == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.incoming)
        PyMem_Free(self.outgoing)

    cdef Member add(self, int fd, object load, list frames, array sent):
        cdef Member member = Member()
        if load not in self.states:
            self.states[load] = LoadState(load)
        member.fd, member.state, member.frames, member.sent = fd, self.states[load], frames, sent
        if len(sent) != len(frames):
            raise ValueError("each slot has a frame and a time")
        if fd >= len(self.members):
            self.members += [None] * (fd + 1 - len(self.members))
        self.members[fd] = member
        return member

    def add_sender(self, int fd, object load, list frames not None, array sent not None, array place not None):
        """See the plain twin."""
        self.add(fd, load, frames, sent).place = place

    def add_puller(
        self, int fd, object load, list frames not None, array offsets not None, array begins not None,
        array sent not None,
    ):
        """See the plain twin."""
        cdef Member member = self.add(fd, load, frames, sent)
        member.pulls, member.offsets, member.begins = True, offsets, begins

    def resume(self, int fd):
        """See the plain twin."""
        if fd < len(self.members) and self.members[fd] is not None:
            (<Member>self.members[fd]).is_ours = True

    def remove(self, int fd):
        """See the plain twin."""
        if fd < len(self.members):
            self.members[fd] = None

    def poll(self, double wait, int64_t until):
        """See the plain twin."""
        cdef int count, index, error = 0, milliseconds = ceil(wait * 1000)
        cdef list left = []
        cdef LoadState state
        for state in self.states.values():
            state.begin()
        while True:
            with nogil:
                count = epoll_wait(self.epoll_fd, self.events, EVENTS_MAX, milliseconds)
                if count < 0:
                    error = errno
            if count < 0 and error != EINTR:
                raise error_of(error)
            PyErr_CheckSignals()
            for index in range(count):
                self.handle(self.events[index].data.fd, self.events[index].events, left)
            if left or count <= 0 or clock_ns() >= until:
                break
        for state in self.states.values():
            state.end()
        return left

    cdef int handle(self, int fd, uint32_t events, list left) except -1:
        """Receive and respond, if the connection is ours and readable; else leave the event to the caller."""
        cdef Member member = self.members[fd] if fd < len(self.members) else None
        cdef Py_ssize_t size
        if member is None or not member.is_ours:
            left.append((fd, events, b"", b""))
            return 0
        # At its end the connection belongs to the caller, which receives once more.
        size = recv(fd, self.incoming, RECEIVE_BYTES, 0) if events == <uint32_t>EPOLLIN else 0
        if size == 0:
            left.append((fd, events, b"", b""))
            member.is_ours = False
            return 0
        if size < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if size < 0:
            return self.leave(member, events, 0, 0, error_of(errno), left)
        self.last_response = clock_ns()
        if member.pulls:
            return self.handle_pulls(member, size, events, left)
        return self.handle_sends(member, size, events, left)

    cdef object write(self, int fd, int count, Py_ssize_t total):
        """Send the first ``count`` parts; returns the bytes that the socket did not take, or its error."""
        cdef Py_ssize_t sent
        if count == 1:
            sent = send(fd, self.parts[0].iov_base, total, 0)
        else:
            sent = writev(fd, self.parts, count)
        if sent == total:
            return b""
        if sent < 0 and errno != EAGAIN:
            return error_of(errno)
        pieces = [(<char*>self.parts[index].iov_base)[: self.parts[index].iov_len] for index in range(count)]
        return b"".join(pieces)[max(sent, 0) :]

    cdef int leave(self, Member member, uint32_t events, Py_ssize_t taken, Py_ssize_t size, object unsent, list left)\
            except -1:
        """Leave what was received after ``taken`` to the caller, and what was not sent: bytes, or an error."""
        if isinstance(unsent, OSError):
            left.append((member.fd, events, unsent, b""))
        elif taken < size or unsent:
            left.append((member.fd, events, self.incoming[taken:size], unsent))
        else:
            return 0
        member.is_ours = False
        return 0

    cdef int handle_sends(self, Member member, Py_ssize_t size, uint32_t events, list left) except -1:
        """Count the successes at the beginning of the received bytes, and send the requests that follow them."""
        cdef LoadState state = member.state
        cdef Py_ssize_t taken = 0, total = 0, slot_count = len(member.frames)
        cdef long long* times = member.sent.data.as_longlongs
        cdef long long* place = member.place.data.as_longlongs if len(member.place) else NULL
        cdef int64_t slot
        cdef int count = 0, index
        cdef Frame frame
        while count < FRAMES_MAX and find_frame(self.incoming + taken, size - taken, &frame):
            slot = state.slot_of(&frame)
            if not 0 <= slot < slot_count:
                break
            self.slots[count] = slot
            count += 1
            taken += frame.size
        if not count or count > state.allowed - state.requests:
            return self.leave(member, events, 0, size, b"", left)
        state.requests += count
        state.messages += count * state.request_messages
        state.size += count * state.request_size
        for index in range(count):
            state.record_latency(self.last_response - times[self.slots[index]])
        for index in range(count):
            slot = self.slots[index]
            if place != NULL:
                slot = place[0] % slot_count
                place[0] += 1
            times[slot] = self.last_response
            self.parts[index].iov_base = PyBytes_AS_STRING(member.frames[slot])
            self.parts[index].iov_len = PyBytes_GET_SIZE(member.frames[slot])
            total += self.parts[index].iov_len
        return self.leave(member, events, taken, size, self.write(member.fd, count, total), left)

    cdef int handle_pulls(self, Member member, Py_ssize_t size, uint32_t events, list left) except -1:
        """Count the messages in the successes at the beginning of the received bytes, and send the next pulls."""
        cdef LoadState state = member.state
        cdef Py_ssize_t taken = 0, total = 0, slot_count = len(member.frames)
        cdef long long* times = member.sent.data.as_longlongs
        cdef long long* offsets = member.offsets.data.as_longlongs
        cdef int64_t slot, following, most
        cdef bytes before, after
        cdef Frame frame
        cdef object unsent = b""
        while find_frame(self.incoming + taken, size - taken, &frame):
            slot = state.slot_of(&frame)
            following = number_of(&frame, b'"nextBeginOffset":"', 19)
            most = number_of(&frame, b'"maxOffset":"', 13)
            if not 0 <= slot < slot_count or following < 0 or most < 0 or frame.body_size < 4:
                break
            before, after = member.frames[slot]
            if total + 8 + len(before) + OFFSET_BYTES + len(after) > SEND_BYTES:
                break
            state.requests += 1
            state.messages += count_records(frame.body, frame.body_size, following - offsets[slot])
            state.size += frame.body_size
            state.record_latency(self.last_response - times[slot])
            times[slot] = self.last_response
            offsets[slot] = following if following < most else member.begins.data.as_longlongs[slot]
            total += write_pull(self.outgoing + total, before, after, offsets[slot])
            taken += frame.size
        if total:
            self.parts[0].iov_base, self.parts[0].iov_len = self.outgoing, total
            unsent = self.write(member.fd, 1, total)
        return self.leave(member, events, taken, size, unsent, left)
