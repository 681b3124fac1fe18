# The CRC-32 of zlib, for every compiled module that includes this file and calls ``prepare_crc()`` when it is loaded. It
# uses carry-less multiplication if the processor has it, else tables, with eight bytes in each step. The including
# module cimports ``memcpy`` and the integer types.

cdef extern from *:
    """
    static uint32_t gantry_crc_table[8][256];
    static int gantry_crc_folds = 0;

    static uint32_t gantry_crc_by_table(uint32_t crc, const uint8_t *at, Py_ssize_t size) {
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
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    /* The state of a CRC is a polynomial. 128 bits of text that precede n further bits contribute their product with
       x^n modulo the CRC's polynomial. So two multiplications by constants fold 16 bytes onto the following ones; the
       loop does this for four independent streams. Method and constants (bits reflected):
       V. Gopal and others, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009. */
    __attribute__((target("pclmul,sse4.1")))
    static inline __m128i gantry_fold(__m128i state, __m128i by, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(state, by, 0x00);
        __m128i high = _mm_clmulepi64_si128(state, by, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* size must be a multiple of 16, and at least 16. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t gantry_crc_by_folding(uint32_t crc, const uint8_t *at, Py_ssize_t size) {
        const __m128i *text = (const __m128i *)at, *end = (const __m128i *)(at + size);
        const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i words = _mm_set_epi32(0, -1, 0, -1);
        __m128i state = _mm_xor_si128(_mm_loadu_si128(text), _mm_cvtsi32_si128((int)crc)), rest;
        if (end - text >= 4) {
            __m128i second = _mm_loadu_si128(text + 1), third = _mm_loadu_si128(text + 2);
            __m128i fourth = _mm_loadu_si128(text + 3);
            for (text += 4; end - text >= 4; text += 4) {
                state = gantry_fold(state, by_512, _mm_loadu_si128(text));
                second = gantry_fold(second, by_512, _mm_loadu_si128(text + 1));
                third = gantry_fold(third, by_512, _mm_loadu_si128(text + 2));
                fourth = gantry_fold(fourth, by_512, _mm_loadu_si128(text + 3));
            }
            state = gantry_fold(gantry_fold(gantry_fold(state, by_128, second), by_128, third), by_128, fourth);
        } else {
            text++;
        }
        for (; text < end; text++) state = gantry_fold(state, by_128, _mm_loadu_si128(text));
        /* Reduce 128 bits to 96, then to 64, then take the remainder by Barrett reduction. */
        state = _mm_xor_si128(_mm_srli_si128(state, 8), _mm_clmulepi64_si128(state, by_128, 0x10));
        rest = _mm_srli_si128(state, 4);
        state = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(state, words), by_64, 0x00), rest);
        rest = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(state, words), barrett, 0x10), words);
        state = _mm_xor_si128(state, _mm_clmulepi64_si128(rest, barrett, 0x00));
        return (uint32_t)_mm_extract_epi32(state, 1);
    }

    static int gantry_can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    static uint32_t gantry_crc_by_folding(uint32_t crc, const uint8_t *at, Py_ssize_t size) {
        return gantry_crc_by_table(crc, at, size);
    }

    static int gantry_can_fold(void) { return 0; }
    #endif

    static inline void gantry_crc_prepare(void) {
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
        gantry_crc_folds = gantry_can_fold();
    }

    static inline uint32_t gantry_crc32_by(int folds, const uint8_t *at, Py_ssize_t size) {
        uint32_t crc = 0xFFFFFFFFu;
        if (folds && size >= 16) {
            Py_ssize_t whole = size & ~(Py_ssize_t)15;
            crc = gantry_crc_by_folding(crc, at, whole);
            at += whole;
            size -= whole;
        }
        return gantry_crc_by_table(crc, at, size) ^ 0xFFFFFFFFu;
    }

    static inline uint32_t gantry_crc32(const uint8_t *at, Py_ssize_t size) {
        return gantry_crc32_by(gantry_crc_folds, at, size);
    }
    """
    bint crc_folds "gantry_crc_folds"
    void prepare_crc "gantry_crc_prepare"() noexcept nogil
    uint32_t crc32 "gantry_crc32"(const uint8_t* at, Py_ssize_t size) noexcept nogil
    uint32_t crc32_by "gantry_crc32_by"(bint folds, const uint8_t* at, Py_ssize_t size) noexcept nogil
