# cython: language_level=3
"""Compiled twin of :mod:`gantrymq.kernel.fast.plain_flusher`: its thread never takes the global interpreter lock (GIL).

With the GIL, the thread and the sweep would pass it to each other twice in each flush, and the sweep would wait for it
in the middle of a turn. So the thread calls no Python code between flushes: it uses a mutex, a condition variable,
fdatasync and an eventfd.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memmove

import os

from gantrymq.kernel.fast.durations import BOUNDS_S
from gantrymq.kernel.fast.plain_flusher import FAST_FLUSHES_MAX, FAST_S

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_destroy(pthread_cond_t*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_signal(pthread_cond_t*)

cdef extern from "time.h" nogil:
    ctypedef long time_t
    ctypedef int clockid_t
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    clockid_t CLOCK_MONOTONIC
    int clock_gettime(clockid_t, timespec*)

cdef extern from "unistd.h" nogil:
    int fdatasync(int)
    Py_ssize_t write(int, const void*, size_t)


cdef enum:
    BOUNDS = 16

cdef double[BOUNDS] bounds = BOUNDS_S
cdef int64_t fast_flushes_max = FAST_FLUSHES_MAX


cdef double now_s() noexcept nogil:
    cdef timespec found
    clock_gettime(CLOCK_MONOTONIC, &found)
    return <double>found.tv_sec + 1e-9 * <double>found.tv_nsec


cdef int sync_descriptor(int descriptor) noexcept nogil:
    """Call fdatasync; 0, or the error number. EINTR is not a failure: the system has not begun to flush."""
    while fdatasync(descriptor):
        if errno != EINTR:
            return errno
    return 0


cdef class Flusher:
    """See the plain twin. Files must have a descriptor of the system, ``fileno()``."""

    # A thread holds ``guard`` briefly, also while it has the GIL, and ``syncing`` for a whole sync, never with the GIL.
    cdef pthread_mutex_t guard
    cdef pthread_mutex_t syncing
    cdef pthread_cond_t work
    cdef int64_t end
    cdef int64_t timestamp
    cdef int64_t durable_end
    cdef int64_t durable_timestamp
    cdef int* descriptors
    cdef int* flushed
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef bint asked
    cdef bint idle
    cdef bint stopping
    cdef int failure
    # Of syncs, under ``guard``.
    cdef int64_t[BOUNDS + 1] counts
    cdef double seconds
    cdef public double fast_s
    cdef int64_t fast
    # The flusher's own file objects, which own the descriptors: deleting a file closes another object.
    cdef list files

    def __cinit__(self, double fast_s=FAST_S):
        self.fast_s = fast_s
        self.room = 4
        self.files = []
        self.descriptors = <int*>PyMem_RawMalloc(self.room * sizeof(int))
        self.flushed = <int*>PyMem_RawMalloc(self.room * sizeof(int))
        if self.descriptors == NULL or self.flushed == NULL:
            raise MemoryError
        pthread_mutex_init(&self.guard, NULL)
        pthread_mutex_init(&self.syncing, NULL)
        pthread_cond_init(&self.work, NULL)

    def __dealloc__(self):
        pthread_cond_destroy(&self.work)
        pthread_mutex_destroy(&self.syncing)
        pthread_mutex_destroy(&self.guard)
        PyMem_RawFree(self.descriptors)
        PyMem_RawFree(self.flushed)

    @property
    def sync_times(self):
        cdef int64_t[BOUNDS + 1] counts
        cdef double seconds
        cdef int number
        pthread_mutex_lock(&self.guard)
        memcpy(counts, self.counts, sizeof(counts))
        seconds = self.seconds
        pthread_mutex_unlock(&self.guard)
        return [counts[number] for number in range(BOUNDS + 1)], seconds

    @property
    def fast_flushes(self):
        cdef int64_t flushes
        pthread_mutex_lock(&self.guard)
        flushes = self.fast
        pthread_mutex_unlock(&self.guard)
        return flushes

    @property
    def durable(self):
        cdef int64_t end
        pthread_mutex_lock(&self.guard)
        end = self.durable_end
        pthread_mutex_unlock(&self.guard)
        return end

    @property
    def durable_mark(self):
        cdef int64_t end, timestamp
        pthread_mutex_lock(&self.guard)
        end, timestamp = self.durable_end, self.durable_timestamp
        pthread_mutex_unlock(&self.guard)
        return end, timestamp

    def start_at(self, int64_t end, int64_t timestamp):
        pthread_mutex_lock(&self.guard)
        self.end = self.durable_end = end
        self.timestamp = self.durable_timestamp = timestamp
        self.count = 0
        pthread_mutex_unlock(&self.guard)
        self.let_go()

    cdef int let_go(self) except -1:
        """Drop the file objects that no flush needs any more."""
        cdef Py_ssize_t followed
        pthread_mutex_lock(&self.guard)
        followed = self.count
        pthread_mutex_unlock(&self.guard)
        if len(self.files) > followed:
            del self.files[: len(self.files) - followed]
        return 0

    def follow(self, file):
        cdef object shared = file.share()
        cdef int descriptor = shared.fileno()
        cdef int* grown
        with nogil:
            # ``flushed``, which a flush uses, grows together with ``descriptors``, so wait for the end of a flush.
            pthread_mutex_lock(&self.guard)
            if self.count == self.room:
                pthread_mutex_unlock(&self.guard)
                pthread_mutex_lock(&self.syncing)
                pthread_mutex_lock(&self.guard)
                grown = <int*>PyMem_RawRealloc(self.flushed, 2 * self.room * sizeof(int))
                if grown != NULL:
                    self.flushed = grown
                    grown = <int*>PyMem_RawRealloc(self.descriptors, 2 * self.room * sizeof(int))
                if grown != NULL:
                    self.descriptors = grown
                    self.room *= 2
                pthread_mutex_unlock(&self.syncing)
            if self.count < self.room:
                self.descriptors[self.count] = descriptor
                self.count += 1
                descriptor = -1
            pthread_mutex_unlock(&self.guard)
        if descriptor >= 0:
            raise MemoryError
        self.files.append(shared)  # after ``count``: otherwise let_go in another thread would drop a newer file
        self.let_go()

    def appended(self, int64_t end, int64_t timestamp):
        pthread_mutex_lock(&self.guard)
        self.end = end
        self.timestamp = timestamp
        pthread_mutex_unlock(&self.guard)

    def flush(self):
        cdef int failed
        with nogil:
            failed = self.flush_all()
        self.let_go()
        if failed:
            raise OSError(failed, os.strerror(failed))
        return self.durable

    def flush_at_once(self):
        cdef int failed
        with nogil:
            failed = pthread_mutex_trylock(&self.syncing)
            if not failed:
                failed = self.flush_locked()
                pthread_mutex_unlock(&self.syncing)
        if len(self.files) > 1:
            self.let_go()
        return not failed

    def sync(self, file):
        cdef object shared = file.share()
        cdef int descriptor = shared.fileno(), failed
        with nogil:
            pthread_mutex_lock(&self.syncing)
            failed = self.failure or self.timed_sync(descriptor)
            if failed:
                self.note(failed)
            pthread_mutex_unlock(&self.syncing)
        if failed:
            raise OSError(failed, os.strerror(failed))

    def ask(self):
        if len(self.files) > 1:
            self.let_go()
        self.set_work()

    def run(self, waker):
        cdef int descriptor = waker.fileno(), failed
        with nogil:
            failed = self.run_on(descriptor)
        if failed:
            raise OSError(failed, os.strerror(failed))

    def stop(self):
        self.stopping = True
        self.set_work()

    def fail(self, error):
        self.note(error.errno or EIO)
        self.set_work()

    cdef void set_work(self) noexcept nogil:
        cdef bint idle
        pthread_mutex_lock(&self.guard)
        self.asked = True
        idle = self.idle  # a thread that is not idle checks ``asked`` before it waits, and needs no signal
        self.idle = False
        pthread_mutex_unlock(&self.guard)
        if idle:  # after the unlock, because the thread needs the mutex as soon as it wakes
            pthread_cond_signal(&self.work)

    cdef void note(self, int failed) noexcept nogil:
        pthread_mutex_lock(&self.guard)
        if not self.failure:
            self.failure = failed
        pthread_mutex_unlock(&self.guard)

    cdef int timed_sync(self, int descriptor) noexcept nogil:
        cdef double began = now_s(), seconds
        cdef int failed = sync_descriptor(descriptor), place = 0
        seconds = now_s() - began
        while place < BOUNDS and seconds > bounds[place]:
            place += 1
        pthread_mutex_lock(&self.guard)
        self.counts[place] += 1
        self.seconds += seconds
        pthread_mutex_unlock(&self.guard)
        return failed

    cdef int flush_all(self) noexcept nogil:
        cdef int failed
        pthread_mutex_lock(&self.syncing)
        failed = self.flush_locked()
        pthread_mutex_unlock(&self.syncing)
        return failed

    cdef int flush_locked(self) noexcept nogil:
        """Flush everything that was appended; the caller holds ``syncing``."""
        cdef int failed = 0
        cdef int64_t end, timestamp
        cdef Py_ssize_t count, number
        cdef double began = now_s()
        pthread_mutex_lock(&self.guard)
        end, timestamp, count = self.end, self.timestamp, self.count
        memcpy(self.flushed, self.descriptors, count * sizeof(int))
        failed = self.failure
        if end <= self.durable_end:
            count = 0
        pthread_mutex_unlock(&self.guard)
        for number in range(count):
            if not failed:
                failed = self.timed_sync(self.flushed[number])
        if failed:
            self.note(failed)
        else:
            pthread_mutex_lock(&self.guard)
            if count:
                self.count_fast(now_s() - began)
            if not self.failure and end > self.durable_end:
                self.durable_end, self.durable_timestamp = end, timestamp
                if count > 1:  # keep the last file: more may have been appended to it
                    self.count -= count - 1
                    memmove(self.descriptors, self.descriptors + count - 1, self.count * sizeof(int))
            failed = self.failure
            pthread_mutex_unlock(&self.guard)
        return failed

    cdef void count_fast(self, double seconds) noexcept nogil:
        cdef int64_t lost = fast_flushes_max
        if seconds <= self.fast_s:
            self.fast = min(self.fast + 1, fast_flushes_max)
        else:
            if self.fast_s > 0 and seconds / self.fast_s < fast_flushes_max:
                lost = <int64_t>(seconds / self.fast_s)
            self.fast = max(self.fast - lost, 0)

    cdef int run_on(self, int waker) noexcept nogil:
        cdef int failed
        cdef bint stopping, more
        cdef uint64_t one = 1
        while True:
            pthread_mutex_lock(&self.guard)
            while not self.asked:
                self.idle = True
                pthread_cond_wait(&self.work, &self.guard)
            self.idle = self.asked = False
            stopping, failed, more = self.stopping, self.failure, self.end > self.durable_end
            pthread_mutex_unlock(&self.guard)
            while more and not failed:
                failed = self.flush_all()
                write(waker, &one, sizeof(one))
                pthread_mutex_lock(&self.guard)
                more = self.end > self.durable_end
                pthread_mutex_unlock(&self.guard)
            if failed or stopping:
                return failed
