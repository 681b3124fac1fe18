# A buffer that grows.

from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef struct Buffer:
    char* data
    Py_ssize_t size
    Py_ssize_t room


cdef int make_room(Buffer* buffer, Py_ssize_t more) except -1:
    cdef Py_ssize_t room
    cdef char* data
    if buffer.size + more > buffer.room:
        room = max(buffer.room * 2, buffer.size + more, 4096)
        data = <char*>realloc(buffer.data, room)
        if data == NULL:
            raise MemoryError
        buffer.data, buffer.room = data, room
    return 0


cdef inline int put(Buffer* buffer, const void* data, Py_ssize_t size) except -1:
    if size == 0:
        return 0  # there may be no buffer yet, and memcpy takes no null pointer
    make_room(buffer, size)
    memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0
