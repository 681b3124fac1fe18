# cython: language_level=3
"""Compiled twin of :mod:`gantrymq.kernel.fast.plain_memory`.

The process ends if it cannot allocate a small object. Without memory for small objects any line can raise MemoryError,
in trio and in Python's threads too. Then a wakeup of a task can be lost, and the process waits forever. Ending the
process at the failed allocation needs no memory.
"""

cdef extern from "Python.h":
    bytearray PyByteArray_FromStringAndSize(const char* text, Py_ssize_t size)
    ctypedef enum PyMemAllocatorDomain:
        PYMEM_DOMAIN_RAW
    ctypedef struct PyMemAllocatorEx:
        void* ctx
        void* (*malloc)(void*, size_t) noexcept nogil
        void* (*calloc)(void*, size_t, size_t) noexcept nogil
        void* (*realloc)(void*, void*, size_t) noexcept nogil
        void (*free)(void*, void*) noexcept nogil
    ctypedef struct PyObjectArenaAllocator:
        void* ctx
        void* (*alloc)(void*, size_t) noexcept nogil
        void (*free)(void*, void*, size_t) noexcept nogil
    void PyMem_GetAllocator(PyMemAllocatorDomain, PyMemAllocatorEx*) nogil
    void PyMem_SetAllocator(PyMemAllocatorDomain, PyMemAllocatorEx*) nogil
    void PyObject_GetArenaAllocator(PyObjectArenaAllocator*) nogil
    void PyObject_SetArenaAllocator(PyObjectArenaAllocator*) nogil

cdef extern from "unistd.h" nogil:
    Py_ssize_t write(int, const void*, size_t)
    void _exit(int)

# A larger allocation raises MemoryError, which concerns only the code that wanted it.
cdef enum:
    SMALL = 64 * 1024
    TEXT_MAX = 512

cdef PyMemAllocatorEx raw
cdef PyObjectArenaAllocator arenas
cdef char last_words[TEXT_MAX]
cdef size_t last_length = 0
cdef bint installed = False


cdef void end() noexcept nogil:
    write(2, last_words, last_length)
    _exit(1)


# Python calls these for small objects when its arenas are full and the system gives no further arena.

cdef void* guarded_malloc(void* ctx, size_t size) noexcept nogil:
    cdef void* got = raw.malloc(ctx, size)
    if got == NULL and size <= SMALL and last_length:
        end()
    return got


cdef void* guarded_calloc(void* ctx, size_t count, size_t size) noexcept nogil:
    cdef void* got = raw.calloc(ctx, count, size)
    if got == NULL and count <= SMALL and size <= SMALL and count * size <= SMALL and last_length:
        end()
    return got


cdef void* guarded_realloc(void* ctx, void* old, size_t size) noexcept nogil:
    cdef void* got = raw.realloc(ctx, old, size)
    if got == NULL and size <= SMALL and last_length:
        end()
    return got


# Python allocates the frames of functions here directly, in chunks of 16 KiB.

cdef void* guarded_arena(void* ctx, size_t size) noexcept nogil:
    cdef void* got = arenas.alloc(ctx, size)
    if got == NULL and size <= SMALL and last_length:
        end()
    return got


def end_where_memory_ends(bytes text):
    """See the plain twin."""
    global last_length, installed
    cdef PyMemAllocatorEx hooks
    cdef PyObjectArenaAllocator arena_hooks
    if len(text) > TEXT_MAX:
        raise ValueError(f"the text has more than {TEXT_MAX} bytes")
    last_length = 0  # disables the hooks while the text changes
    for i in range(len(text)):
        last_words[i] = text[i]
    if not installed:
        PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &raw)
        hooks = raw
        hooks.malloc = guarded_malloc
        hooks.calloc = guarded_calloc
        hooks.realloc = guarded_realloc
        PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &hooks)
        PyObject_GetArenaAllocator(&arenas)
        arena_hooks = arenas
        arena_hooks.alloc = guarded_arena
        PyObject_SetArenaAllocator(&arena_hooks)
        installed = True
    last_length = len(text)


def empty_buffer(Py_ssize_t size):
    """See the plain twin."""
    if size < 0:
        raise ValueError(f"negative size: {size}")
    return PyByteArray_FromStringAndSize(NULL, size)
