# Big-endian numbers and the CRC of the file formats. Each compiled module includes this file. It is an include because
# the compiler finds it without the package's symbolic links, which a source distribution does not have.

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

include "../../gantrymq/remoting/_crc.pxi"


cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #error "written for little-endian machines; the plain twin runs here"
    #endif
    #define gantry_be16(x) __builtin_bswap16(x)
    #define gantry_be32(x) __builtin_bswap32(x)
    #define gantry_be64(x) __builtin_bswap64(x)
    """
    uint16_t be16 "gantry_be16"(uint16_t) noexcept nogil
    uint32_t be32 "gantry_be32"(uint32_t) noexcept nogil
    uint64_t be64 "gantry_be64"(uint64_t) noexcept nogil


cdef inline uint16_t get16(const uint8_t* at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return be16(value)


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return be32(value)


cdef inline uint64_t get64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return be64(value)


cdef inline void put16(uint8_t* at, uint16_t value) noexcept nogil:
    value = be16(value)
    memcpy(at, &value, 2)


cdef inline void put32(uint8_t* at, uint32_t value) noexcept nogil:
    value = be32(value)
    memcpy(at, &value, 4)


cdef inline void put64(uint8_t* at, uint64_t value) noexcept nogil:
    value = be64(value)
    memcpy(at, &value, 8)
