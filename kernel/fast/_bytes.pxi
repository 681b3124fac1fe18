# Big-endian numbers and the CRC of the formats: a part of each compiled module. (An include, for it is found without
# the package's links, which a source distribution does not have.)

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy


cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #error "written for little-endian machines; the plain twin runs here"
    #endif
    #define gantry_be16(x) __builtin_bswap16(x)
    #define gantry_be32(x) __builtin_bswap32(x)
    #define gantry_be64(x) __builtin_bswap64(x)

    /* CRC-32 as zlib has it, eight bytes a step. */
    static uint32_t gantry_crc_table[8][256];

    static void gantry_crc_prepare(void) {
        for (uint32_t number = 0; number < 256; number++) {
            uint32_t value = number;
            for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
            gantry_crc_table[0][number] = value;
        }
        for (int number = 0; number < 256; number++)
            for (int step = 1; step < 8; step++) {
                uint32_t before = gantry_crc_table[step - 1][number];
                gantry_crc_table[step][number] = before >> 8 ^ gantry_crc_table[0][before & 255];
            }
    }

    static uint32_t gantry_crc32(const uint8_t *at, Py_ssize_t size) {
        uint32_t crc = 0xFFFFFFFFu;
        while (size >= 8) {
            uint64_t eight;
            memcpy(&eight, at, 8);
            eight ^= crc;
            crc = gantry_crc_table[7][eight & 255] ^ gantry_crc_table[6][eight >> 8 & 255]
                ^ gantry_crc_table[5][eight >> 16 & 255] ^ gantry_crc_table[4][eight >> 24 & 255]
                ^ gantry_crc_table[3][eight >> 32 & 255] ^ gantry_crc_table[2][eight >> 40 & 255]
                ^ gantry_crc_table[1][eight >> 48 & 255] ^ gantry_crc_table[0][eight >> 56];
            at += 8;
            size -= 8;
        }
        while (size--) crc = crc >> 8 ^ gantry_crc_table[0][(crc ^ *at++) & 255];
        return crc ^ 0xFFFFFFFFu;
    }
    """
    uint16_t be16 "gantry_be16"(uint16_t) noexcept nogil
    uint32_t be32 "gantry_be32"(uint32_t) noexcept nogil
    uint64_t be64 "gantry_be64"(uint64_t) noexcept nogil
    void prepare_crc "gantry_crc_prepare"() noexcept nogil
    uint32_t crc32 "gantry_crc32"(const uint8_t* at, Py_ssize_t size) noexcept nogil


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
