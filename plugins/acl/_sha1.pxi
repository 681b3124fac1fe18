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

    /* The state of a hash `s`, and the next block. */
    #define GMQ_BEGIN(s, state) \\
        __m128i abcd##s = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)(state)), 0x1B); \\
        __m128i e##s = _mm_set_epi32((int)(state)[4], 0, 0, 0); \\
        __m128i then##s, before##s, next##s, w0##s, w1##s, w2##s, w3##s
    #define GMQ_LOAD(s, w, at) w##s = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(at)), order)
    #define GMQ_FIRST(s) \\
        then##s = abcd##s; next##s = _mm_add_epi32(e##s, w0##s); before##s = abcd##s; \\
        abcd##s = _mm_sha1rnds4_epu32(abcd##s, next##s, 0)
    /* Four rounds: `before` has the values of four rounds ago, from which the instruction makes the next e. */
    #define GMQ_ROUNDS(s, w, function) \\
        next##s = _mm_sha1nexte_epu32(before##s, w##s); before##s = abcd##s; \\
        abcd##s = _mm_sha1rnds4_epu32(abcd##s, next##s, function)
    #define GMQ_SCHEDULE(s, a, b, c, d) \\
        a##s = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(a##s, b##s), c##s), d##s)
    #define GMQ_LAST(s) e##s = _mm_sha1nexte_epu32(before##s, e##s); abcd##s = _mm_add_epi32(abcd##s, then##s)
    #define GMQ_FINISH(s, state) \\
        _mm_storeu_si128((__m128i*)(state), _mm_shuffle_epi32(abcd##s, 0x1B)); \\
        (state)[4] = (uint32_t)_mm_extract_epi32(e##s, 3)

    /* One block: each STEP is done for every hash that is computed. */
    #define GMQ_BLOCK(LOADS, FIRST, ROUNDS, SCHEDULED, LAST) \\
        LOADS; FIRST; ROUNDS(w1, 0); ROUNDS(w2, 0); ROUNDS(w3, 0); \\
        SCHEDULED(w0, w1, w2, w3, 0); SCHEDULED(w1, w2, w3, w0, 1); SCHEDULED(w2, w3, w0, w1, 1); \\
        SCHEDULED(w3, w0, w1, w2, 1); SCHEDULED(w0, w1, w2, w3, 1); SCHEDULED(w1, w2, w3, w0, 1); \\
        SCHEDULED(w2, w3, w0, w1, 2); SCHEDULED(w3, w0, w1, w2, 2); SCHEDULED(w0, w1, w2, w3, 2); \\
        SCHEDULED(w1, w2, w3, w0, 2); SCHEDULED(w2, w3, w0, w1, 2); SCHEDULED(w3, w0, w1, w2, 3); \\
        SCHEDULED(w0, w1, w2, w3, 3); SCHEDULED(w1, w2, w3, w0, 3); SCHEDULED(w2, w3, w0, w1, 3); \\
        SCHEDULED(w3, w0, w1, w2, 3); LAST

    #define GMQ_LOADS(s, at) \\
        GMQ_LOAD(s, w0, at); GMQ_LOAD(s, w1, at + 16); GMQ_LOAD(s, w2, at + 32); GMQ_LOAD(s, w3, at + 48)
    #define GMQ_ROUNDS_OF_ONE(w, function) GMQ_ROUNDS(A, w, function)
    #define GMQ_SCHEDULED_OF_ONE(a, b, c, d, function) GMQ_SCHEDULE(A, a, b, c, d); GMQ_ROUNDS(A, a, function)
    #define GMQ_ROUNDS_OF_TWO(w, function) GMQ_ROUNDS(A, w, function); GMQ_ROUNDS(B, w, function)
    #define GMQ_SCHEDULED_OF_TWO(a, b, c, d, function) \\
        GMQ_SCHEDULE(A, a, b, c, d); GMQ_SCHEDULE(B, a, b, c, d); GMQ_ROUNDS_OF_TWO(a, function)

    __attribute__((target("sha,sse4.1,ssse3")))
    static void gmq_sha1_instructions(uint32_t state[5], const uint8_t* at, size_t blocks) {
        const __m128i order = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL);
        GMQ_BEGIN(A, state);
        for (; blocks; blocks--, at += 64) {
            GMQ_BLOCK(GMQ_LOADS(A, at), GMQ_FIRST(A), GMQ_ROUNDS_OF_ONE, GMQ_SCHEDULED_OF_ONE, GMQ_LAST(A));
        }
        GMQ_FINISH(A, state);
    }

    /* Each instruction of a hash waits for the one before it, so two hashes take little longer than one. */
    __attribute__((target("sha,sse4.1,ssse3")))
    static void gmq_sha1_instructions_of_two(
        uint32_t one[5], const uint8_t* at, uint32_t other[5], const uint8_t* other_at, size_t blocks
    ) {
        const __m128i order = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL);
        GMQ_BEGIN(A, one);
        GMQ_BEGIN(B, other);
        for (; blocks; blocks--, at += 64, other_at += 64) {
            GMQ_BLOCK(
                GMQ_LOADS(A, at); GMQ_LOADS(B, other_at), GMQ_FIRST(A); GMQ_FIRST(B), GMQ_ROUNDS_OF_TWO,
                GMQ_SCHEDULED_OF_TWO, GMQ_LAST(A); GMQ_LAST(B)
            );
        }
        GMQ_FINISH(A, one);
        GMQ_FINISH(B, other);
    }
    #else
    static int gmq_sha1_has_instructions(void) { return 0; }
    #define gmq_sha1_instructions gmq_sha1_portable
    #define gmq_sha1_instructions_of_two(one, at, other, other_at, blocks) \\
        do { gmq_sha1_portable(one, at, blocks); gmq_sha1_portable(other, other_at, blocks); } while (0)
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

    /* Set the end of a text of `size` bytes: the padding behind its `used` last bytes at `end`, which has room for two
       blocks. Returns how many blocks there are now. */
    static size_t gmq_sha1_pad(uint8_t* end, size_t used, uint64_t size) {
        size_t whole = used < 56 ? 64 : 128;
        uint64_t bits = __builtin_bswap64(size * 8);
        end[used] = 0x80;
        memset(end + used + 1, 0, whole - 8 - used - 1);
        memcpy(end + whole - 8, &bits, 8);
        return whole / 64;
    }

    /* A text to be hashed, in up to three pieces of whole blocks. */
    typedef struct {
        const uint8_t* at[3];
        size_t blocks[3];
        uint32_t state[5];
        int accelerated;
    } gmq_text;

    static void gmq_sha1_text(gmq_text* text) {
        int piece;
        for (piece = 0; piece < 3; piece++) {
            if (!text->blocks[piece]) continue;
            if (text->accelerated) gmq_sha1_instructions(text->state, text->at[piece], text->blocks[piece]);
            else gmq_sha1_portable(text->state, text->at[piece], text->blocks[piece]);
        }
    }

    static void gmq_sha1_texts(gmq_text* one, gmq_text* other) {
        int piece = 0, other_piece = 0;
        size_t blocks;
        while (one->accelerated && other->accelerated) {
            while (piece < 3 && !one->blocks[piece]) piece++;
            while (other_piece < 3 && !other->blocks[other_piece]) other_piece++;
            if (piece == 3 || other_piece == 3) break;
            blocks = one->blocks[piece];
            if (other->blocks[other_piece] < blocks) blocks = other->blocks[other_piece];
            gmq_sha1_instructions_of_two(
                one->state, one->at[piece], other->state, other->at[other_piece], blocks);
            one->at[piece] += 64 * blocks;
            one->blocks[piece] -= blocks;
            other->at[other_piece] += 64 * blocks;
            other->blocks[other_piece] -= blocks;
        }
        gmq_sha1_text(one);
        gmq_sha1_text(other);
    }

    static inline void gmq_sha1_digest(const uint32_t state[5], uint8_t digest[20]) {
        uint32_t word;
        int place;
        for (place = 0; place < 5; place++) {
            word = __builtin_bswap32(state[place]);
            memcpy(digest + 4 * place, &word, 4);
        }
    }

    static void gmq_sha1_end(gmq_sha1* hash, uint8_t digest[20]) {
        uint8_t end[128];
        size_t used = hash->size & 63;
        memcpy(end, hash->block, used);
        gmq_sha1_blocks(hash, end, gmq_sha1_pad(end, used, hash->size));
        gmq_sha1_digest(hash->state, digest);
    }
    """
    ctypedef struct Sha1 "gmq_sha1":
        uint32_t state[5]
        int accelerated
    ctypedef struct HashedText "gmq_text":
        const uint8_t* at[3]
        size_t blocks[3]
        uint32_t state[5]
        int accelerated
    size_t sha1_pad "gmq_sha1_pad"(uint8_t* end, size_t used, uint64_t size) noexcept nogil
    void sha1_text "gmq_sha1_text"(HashedText* text) noexcept nogil
    void sha1_texts "gmq_sha1_texts"(HashedText* one, HashedText* other) noexcept nogil
    void sha1_digest "gmq_sha1_digest"(const uint32_t* state, uint8_t* digest) noexcept nogil
    int sha1_has_instructions "gmq_sha1_has_instructions"() noexcept nogil
    void sha1_start "gmq_sha1_start"(Sha1* hash, int accelerated) noexcept nogil
    void sha1_add "gmq_sha1_add"(Sha1* hash, const uint8_t* at, size_t size) noexcept nogil
    void sha1_end "gmq_sha1_end"(Sha1* hash, uint8_t* digest) noexcept nogil
