# SHA-1 (FIPS 180-4) for signatures: with the processor's instructions for it where it has them (x86-64), else in C.
# `hashlib` costs more than the hash itself for messages of some hundred bytes. A part of _fast.pyx.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #define GMQ_ROTATE(x, n) (((x) << (n)) | ((x) >> (32 - (n))))

    static void gmq_sha1_portable(uint32_t state[5], const uint8_t* at, size_t blocks) {
        uint32_t w[80], a, b, c, d, e, f, k, next;
        int round;
        for (; blocks; blocks--, at += 64) {
            for (round = 0; round < 16; round++)
                w[round] = (uint32_t)at[4 * round] << 24 | (uint32_t)at[4 * round + 1] << 16
                    | (uint32_t)at[4 * round + 2] << 8 | at[4 * round + 3];
            for (; round < 80; round++) {
                next = w[round - 3] ^ w[round - 8] ^ w[round - 14] ^ w[round - 16];
                w[round] = GMQ_ROTATE(next, 1);
            }
            a = state[0]; b = state[1]; c = state[2]; d = state[3]; e = state[4];
            for (round = 0; round < 80; round++) {
                if (round < 20) { f = d ^ (b & (c ^ d)); k = 0x5A827999; }
                else if (round < 40) { f = b ^ c ^ d; k = 0x6ED9EBA1; }
                else if (round < 60) { f = (b & c) | (d & (b | c)); k = 0x8F1BBCDC; }
                else { f = b ^ c ^ d; k = 0xCA62C1D6; }
                next = GMQ_ROTATE(a, 5) + f + e + k + w[round];
                e = d; d = c; c = GMQ_ROTATE(b, 30); b = a; a = next;
            }
            state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e;
        }
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <cpuid.h>
    #include <immintrin.h>

    static int gmq_sha1_has_instructions(void) {
        unsigned int a, b, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & (1u << 29))) return 0;  /* SHA */
        if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
        return (c & (1u << 9)) && (c & (1u << 19));  /* SSSE3, SSE4.1 */
    }

    /* Four rounds: `before` has the values of four rounds ago, from which the instruction makes the next e. */
    #define GMQ_ROUNDS(w, function) \\
        next = _mm_sha1nexte_epu32(before, w); before = abcd; abcd = _mm_sha1rnds4_epu32(abcd, next, function)
    #define GMQ_SCHEDULE(w0, w1, w2, w3) \\
        w0 = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(w0, w1), w2), w3)

    __attribute__((target("sha,sse4.1,ssse3")))
    static void gmq_sha1_instructions(uint32_t state[5], const uint8_t* at, size_t blocks) {
        const __m128i order = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL);
        __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)state), 0x1B);
        __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0), abcd_then, before, next, w0, w1, w2, w3;
        for (; blocks; blocks--, at += 64) {
            w0 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)at), order);
            w1 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(at + 16)), order);
            w2 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(at + 32)), order);
            w3 = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(at + 48)), order);
            abcd_then = abcd;
            next = _mm_add_epi32(e, w0); before = abcd; abcd = _mm_sha1rnds4_epu32(abcd, next, 0);
            GMQ_ROUNDS(w1, 0); GMQ_ROUNDS(w2, 0); GMQ_ROUNDS(w3, 0);
            GMQ_SCHEDULE(w0, w1, w2, w3); GMQ_ROUNDS(w0, 0);
            GMQ_SCHEDULE(w1, w2, w3, w0); GMQ_ROUNDS(w1, 1);
            GMQ_SCHEDULE(w2, w3, w0, w1); GMQ_ROUNDS(w2, 1);
            GMQ_SCHEDULE(w3, w0, w1, w2); GMQ_ROUNDS(w3, 1);
            GMQ_SCHEDULE(w0, w1, w2, w3); GMQ_ROUNDS(w0, 1);
            GMQ_SCHEDULE(w1, w2, w3, w0); GMQ_ROUNDS(w1, 1);
            GMQ_SCHEDULE(w2, w3, w0, w1); GMQ_ROUNDS(w2, 2);
            GMQ_SCHEDULE(w3, w0, w1, w2); GMQ_ROUNDS(w3, 2);
            GMQ_SCHEDULE(w0, w1, w2, w3); GMQ_ROUNDS(w0, 2);
            GMQ_SCHEDULE(w1, w2, w3, w0); GMQ_ROUNDS(w1, 2);
            GMQ_SCHEDULE(w2, w3, w0, w1); GMQ_ROUNDS(w2, 2);
            GMQ_SCHEDULE(w3, w0, w1, w2); GMQ_ROUNDS(w3, 3);
            GMQ_SCHEDULE(w0, w1, w2, w3); GMQ_ROUNDS(w0, 3);
            GMQ_SCHEDULE(w1, w2, w3, w0); GMQ_ROUNDS(w1, 3);
            GMQ_SCHEDULE(w2, w3, w0, w1); GMQ_ROUNDS(w2, 3);
            GMQ_SCHEDULE(w3, w0, w1, w2); GMQ_ROUNDS(w3, 3);
            e = _mm_sha1nexte_epu32(before, e);
            abcd = _mm_add_epi32(abcd, abcd_then);
        }
        _mm_storeu_si128((__m128i*)state, _mm_shuffle_epi32(abcd, 0x1B));
        state[4] = (uint32_t)_mm_extract_epi32(e, 3);
    }
    #else
    static int gmq_sha1_has_instructions(void) { return 0; }
    #define gmq_sha1_instructions gmq_sha1_portable
    #endif

    typedef struct {
        uint32_t state[5];
        uint64_t size;
        int accelerated;
        uint8_t block[64];
    } gmq_sha1;

    static void gmq_sha1_blocks(gmq_sha1* hash, const uint8_t* at, size_t blocks) {
        if (hash->accelerated) gmq_sha1_instructions(hash->state, at, blocks);
        else gmq_sha1_portable(hash->state, at, blocks);
    }

    static void gmq_sha1_start(gmq_sha1* hash, int accelerated) {
        static const uint32_t first[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
        memcpy(hash->state, first, sizeof first);
        hash->size = 0;
        hash->accelerated = accelerated;
    }

    static void gmq_sha1_add(gmq_sha1* hash, const uint8_t* at, size_t size) {
        size_t used = hash->size & 63, part;
        hash->size += size;
        if (used) {
            part = 64 - used < size ? 64 - used : size;
            memcpy(hash->block + used, at, part);
            if (used + part < 64) return;
            gmq_sha1_blocks(hash, hash->block, 1);
            at += part;
            size -= part;
        }
        if (size >= 64) gmq_sha1_blocks(hash, at, size / 64);
        memcpy(hash->block, at + (size & ~(size_t)63), size & 63);
    }

    static void gmq_sha1_end(gmq_sha1* hash, uint8_t digest[20]) {
        size_t used = hash->size & 63;
        uint64_t bits = hash->size * 8;
        int place;
        hash->block[used++] = 0x80;
        if (used > 56) {
            memset(hash->block + used, 0, 64 - used);
            gmq_sha1_blocks(hash, hash->block, 1);
            used = 0;
        }
        memset(hash->block + used, 0, 56 - used);
        for (place = 0; place < 8; place++) hash->block[56 + place] = (uint8_t)(bits >> (56 - 8 * place));
        gmq_sha1_blocks(hash, hash->block, 1);
        for (place = 0; place < 20; place++) digest[place] = (uint8_t)(hash->state[place / 4] >> (24 - 8 * (place % 4)));
    }
    """
    ctypedef struct Sha1 "gmq_sha1":
        pass
    int sha1_has_instructions "gmq_sha1_has_instructions"() noexcept nogil
    void sha1_start "gmq_sha1_start"(Sha1* hash, int accelerated) noexcept nogil
    void sha1_add "gmq_sha1_add"(Sha1* hash, const uint8_t* at, size_t size) noexcept nogil
    void sha1_end "gmq_sha1_end"(Sha1* hash, uint8_t* digest) noexcept nogil
