# SHA-1 (FIPS 180-4) for signatures: with the processor's instructions for it or its long vectors (x86-64), else in C.
# `hashlib` costs more than the hash itself for messages of some hundred bytes. A part of _fast.pyx.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* How a text may be hashed: with the instructions for SHA-1, and 16 texts at once with AVX-512. */
    #define GMQ_INSTRUCTIONS 1
    #define GMQ_WIDE 2
    #define GMQ_LANES 16

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

    static int gmq_sha1_abilities(void) {
        unsigned int a, b, c, d;
        int found = 0;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
        __builtin_cpu_init();
        if ((b & (1u << 29)) && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1"))
            found |= GMQ_INSTRUCTIONS;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) found |= GMQ_WIDE;
        return found;
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

    #define GMQ_ROUNDS_OF_FOUR(w, function) GMQ_ROUNDS_OF_TWO(w, function); GMQ_ROUNDS(C, w, function); GMQ_ROUNDS(D, w, function)
    #define GMQ_SCHEDULED_OF_FOUR(a, b, c, d, function) \\
        GMQ_SCHEDULE(A, a, b, c, d); GMQ_SCHEDULE(B, a, b, c, d); GMQ_SCHEDULE(C, a, b, c, d); \\
        GMQ_SCHEDULE(D, a, b, c, d); GMQ_ROUNDS_OF_FOUR(a, function)

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
    __attribute__((target("sha,sse4.1,ssse3")))
    static void gmq_sha1_instructions_of_four(uint32_t* states[4], const uint8_t* at[4], size_t blocks) {
        const __m128i order = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL);
        const uint8_t *first = at[0], *second = at[1], *third = at[2], *fourth = at[3];
        GMQ_BEGIN(A, states[0]);
        GMQ_BEGIN(B, states[1]);
        GMQ_BEGIN(C, states[2]);
        GMQ_BEGIN(D, states[3]);
        for (; blocks; blocks--, first += 64, second += 64, third += 64, fourth += 64) {
            GMQ_BLOCK(
                GMQ_LOADS(A, first); GMQ_LOADS(B, second); GMQ_LOADS(C, third); GMQ_LOADS(D, fourth),
                GMQ_FIRST(A); GMQ_FIRST(B); GMQ_FIRST(C); GMQ_FIRST(D), GMQ_ROUNDS_OF_FOUR, GMQ_SCHEDULED_OF_FOUR,
                GMQ_LAST(A); GMQ_LAST(B); GMQ_LAST(C); GMQ_LAST(D)
            );
        }
        GMQ_FINISH(A, states[0]);
        GMQ_FINISH(B, states[1]);
        GMQ_FINISH(C, states[2]);
        GMQ_FINISH(D, states[3]);
    }

    /* A word of 16 hashes in each vector: bit operations of three values (tables 0xCA, 0x96, 0xE8) are one instruction. */
    #define GMQ_WIDE_NEXT(i) (w[(i) & 15] = _mm512_rol_epi32(_mm512_xor_si512(_mm512_ternarylogic_epi32( \\
        w[((i) + 13) & 15], w[((i) + 8) & 15], w[((i) + 2) & 15], 0x96), w[(i) & 15]), 1))
    #define GMQ_WIDE_ROUND(i, a, b, c, d, e, table, k) \\
        e = _mm512_add_epi32(_mm512_add_epi32(e, _mm512_add_epi32((i) < 16 ? w[(i) & 15] : GMQ_WIDE_NEXT(i), k)), \\
            _mm512_add_epi32(_mm512_rol_epi32(a, 5), _mm512_ternarylogic_epi32(b, c, d, table))); \\
        b = _mm512_rol_epi32(b, 30)
    #define GMQ_WIDE_FIVE(i, table, k) \\
        GMQ_WIDE_ROUND((i), a, b, c, d, e, table, k); GMQ_WIDE_ROUND((i) + 1, e, a, b, c, d, table, k); \\
        GMQ_WIDE_ROUND((i) + 2, d, e, a, b, c, table, k); GMQ_WIDE_ROUND((i) + 3, c, d, e, a, b, table, k); \\
        GMQ_WIDE_ROUND((i) + 4, b, c, d, e, a, table, k)
    #define GMQ_WIDE_TWENTY(i, table, k) do { \\
        const __m512i constant = _mm512_set1_epi32((int)(k)); \\
        GMQ_WIDE_FIVE((i), table, constant); GMQ_WIDE_FIVE((i) + 5, table, constant); \\
        GMQ_WIDE_FIVE((i) + 10, table, constant); GMQ_WIDE_FIVE((i) + 15, table, constant); } while (0)

    __attribute__((target("avx512f,avx512bw")))
    static void gmq_sha1_wide(uint32_t states[5][GMQ_LANES], const uint8_t* at[GMQ_LANES], size_t blocks) {
        const __m512i order = _mm512_broadcast_i32x4(
            _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
        __m512i a = _mm512_loadu_si512(states[0]), b = _mm512_loadu_si512(states[1]);
        __m512i c = _mm512_loadu_si512(states[2]), d = _mm512_loadu_si512(states[3]);
        __m512i e = _mm512_loadu_si512(states[4]);
        size_t place;
        int i;
        for (place = 0; blocks; blocks--, place += 64) {
            const __m512i a0 = a, b0 = b, c0 = c, d0 = d, e0 = e;
            __m512i w[16], t[16];
            /* Transpose: the first words of all texts come together, then the second ones, and so on. */
            for (i = 0; i < 16; i++) w[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(at[i] + place), order);
            for (i = 0; i < 16; i += 2) {
                t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
                t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
            }
            for (i = 0; i < 16; i += 4) {
                w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
                w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
                w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
                w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
            }
            for (i = 0; i < 4; i++) {
                t[i] = _mm512_shuffle_i32x4(w[i], w[4 + i], 0x88);
                t[4 + i] = _mm512_shuffle_i32x4(w[i], w[4 + i], 0xDD);
                t[8 + i] = _mm512_shuffle_i32x4(w[8 + i], w[12 + i], 0x88);
                t[12 + i] = _mm512_shuffle_i32x4(w[8 + i], w[12 + i], 0xDD);
            }
            for (i = 0; i < 4; i++) {
                w[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
                w[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
                w[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
                w[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
            }
            GMQ_WIDE_TWENTY(0, 0xCA, 0x5A827999u);
            GMQ_WIDE_TWENTY(20, 0x96, 0x6ED9EBA1u);
            GMQ_WIDE_TWENTY(40, 0xE8, 0x8F1BBCDCu);
            GMQ_WIDE_TWENTY(60, 0x96, 0xCA62C1D6u);
            a = _mm512_add_epi32(a, a0); b = _mm512_add_epi32(b, b0); c = _mm512_add_epi32(c, c0);
            d = _mm512_add_epi32(d, d0); e = _mm512_add_epi32(e, e0);
        }
        _mm512_storeu_si512(states[0], a); _mm512_storeu_si512(states[1], b);
        _mm512_storeu_si512(states[2], c); _mm512_storeu_si512(states[3], d);
        _mm512_storeu_si512(states[4], e);
    }
    #else
    static int gmq_sha1_abilities(void) { return 0; }
    #define gmq_sha1_instructions gmq_sha1_portable
    static void gmq_sha1_instructions_of_two(
        uint32_t one[5], const uint8_t* at, uint32_t other[5], const uint8_t* other_at, size_t blocks
    ) {
        gmq_sha1_portable(one, at, blocks);
        gmq_sha1_portable(other, other_at, blocks);
    }
    static void gmq_sha1_instructions_of_four(uint32_t* states[4], const uint8_t* at[4], size_t blocks) {
        int number;
        for (number = 0; number < 4; number++) gmq_sha1_portable(states[number], at[number], blocks);
    }
    static void gmq_sha1_wide(uint32_t states[5][GMQ_LANES], const uint8_t* at[GMQ_LANES], size_t blocks) {
        (void)states; (void)at; (void)blocks;  /* no text may be hashed so */
    }
    #endif

    typedef struct {
        uint32_t state[5];
        uint64_t size;
        int abilities;
        uint8_t block[64];
    } gmq_sha1;

    static void gmq_sha1_blocks(gmq_sha1* hash, const uint8_t* at, size_t blocks) {
        if (hash->abilities & GMQ_INSTRUCTIONS) gmq_sha1_instructions(hash->state, at, blocks);
        else gmq_sha1_portable(hash->state, at, blocks);
    }

    static void gmq_sha1_start(gmq_sha1* hash, int abilities) {
        static const uint32_t first[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
        memcpy(hash->state, first, sizeof first);
        hash->size = 0;
        hash->abilities = abilities;
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
        int abilities;
        int piece;  /* the next one with blocks; 3: none */
    } gmq_text;

    static inline void gmq_sha1_advance(gmq_text* text, size_t blocks) {
        text->at[text->piece] += 64 * blocks;
        text->blocks[text->piece] -= blocks;
        while (text->piece < 3 && !text->blocks[text->piece]) text->piece++;
    }

    static inline void gmq_sha1_begin(gmq_text* text) {
        text->piece = 0;
        gmq_sha1_advance(text, 0);
    }

    static void gmq_sha1_text(gmq_text* text) {
        for (gmq_sha1_begin(text); text->piece < 3; gmq_sha1_advance(text, text->blocks[text->piece])) {
            if (text->abilities & GMQ_INSTRUCTIONS)
                gmq_sha1_instructions(text->state, text->at[text->piece], text->blocks[text->piece]);
            else gmq_sha1_portable(text->state, text->at[text->piece], text->blocks[text->piece]);
        }
    }

    /* The blocks that all texts have in their next piece. */
    static inline size_t gmq_sha1_common(gmq_text** texts, int count) {
        size_t blocks = texts[0]->blocks[texts[0]->piece];
        int number;
        for (number = 1; number < count; number++)
            if (texts[number]->blocks[texts[number]->piece] < blocks) blocks = texts[number]->blocks[texts[number]->piece];
        return blocks;
    }

    /* Leave out texts that are hashed; returns how many there are still. */
    static inline int gmq_sha1_remaining(gmq_text** texts, int count) {
        int number, kept = 0;
        for (number = 0; number < count; number++)
            if (texts[number]->piece < 3) texts[kept++] = texts[number];
        return kept;
    }

    /* Hash the texts as far as at least `least` of them have blocks; returns how many remain. */
    static int gmq_sha1_texts_wide(gmq_text** texts, int count, int least) {
        uint32_t states[5][GMQ_LANES];
        const uint8_t* at[GMQ_LANES];
        size_t blocks;
        int lane, word, left = count;
        for (word = 0; word < 5; word++)
            for (lane = 0; lane < GMQ_LANES; lane++) states[word][lane] = texts[lane < count ? lane : 0]->state[word];
        while (left == count) {
            blocks = gmq_sha1_common(texts, count);
            for (lane = 0; lane < GMQ_LANES; lane++) {
                gmq_text* text = texts[lane < count ? lane : 0];
                at[lane] = text->at[text->piece];
            }
            gmq_sha1_wide(states, at, blocks);
            for (lane = left = 0; lane < count; lane++) {
                gmq_sha1_advance(texts[lane], blocks);
                left += texts[lane]->piece < 3;
            }
        }
        for (lane = 0; lane < count; lane++)
            for (word = 0; word < 5; word++) texts[lane]->state[word] = states[word][lane];
        count = gmq_sha1_remaining(texts, count);
        return count < least ? count : gmq_sha1_texts_wide(texts, count, least);
    }

    /* Hash up to GMQ_LANES texts, and change the order of `texts`. */
    static void gmq_sha1_texts(gmq_text** texts, int count) {
        int number, least, abilities = GMQ_INSTRUCTIONS | GMQ_WIDE;
        size_t blocks;
        for (number = 0; number < count; number++) {
            abilities &= texts[number]->abilities;
            gmq_sha1_begin(texts[number]);
        }
        count = gmq_sha1_remaining(texts, count);
        /* From so many texts on, the vectors are faster than the instructions, four texts at once. */
        least = abilities & GMQ_INSTRUCTIONS ? 12 : 2;
        if (abilities & GMQ_WIDE && count >= least) count = gmq_sha1_texts_wide(texts, count, least);
        while (abilities & GMQ_INSTRUCTIONS && count >= 2) {
            int together = count >= 4 ? 4 : 2;
            blocks = gmq_sha1_common(texts, together);
            if (together == 4) {
                uint32_t* states[4];
                const uint8_t* at[4];
                for (number = 0; number < 4; number++) {
                    states[number] = texts[number]->state;
                    at[number] = texts[number]->at[texts[number]->piece];
                }
                gmq_sha1_instructions_of_four(states, at, blocks);
            } else {
                gmq_sha1_instructions_of_two(
                    texts[0]->state, texts[0]->at[texts[0]->piece], texts[1]->state, texts[1]->at[texts[1]->piece], blocks);
            }
            for (number = 0; number < together; number++) gmq_sha1_advance(texts[number], blocks);
            count = gmq_sha1_remaining(texts, count);
        }
        for (number = 0; number < count; number++) gmq_sha1_text(texts[number]);
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
    enum:
        LANES "GMQ_LANES"
    ctypedef struct Sha1 "gmq_sha1":
        uint32_t state[5]
        int abilities
    ctypedef struct HashedText "gmq_text":
        const uint8_t* at[3]
        size_t blocks[3]
        uint32_t state[5]
        int abilities
    size_t sha1_pad "gmq_sha1_pad"(uint8_t* end, size_t used, uint64_t size) noexcept nogil
    void sha1_text "gmq_sha1_text"(HashedText* text) noexcept nogil
    void sha1_texts "gmq_sha1_texts"(HashedText** texts, int count) noexcept nogil
    void sha1_digest "gmq_sha1_digest"(const uint32_t* state, uint8_t* digest) noexcept nogil
    int sha1_abilities "gmq_sha1_abilities"() noexcept nogil
    void sha1_start "gmq_sha1_start"(Sha1* hash, int abilities) noexcept nogil
    void sha1_add "gmq_sha1_add"(Sha1* hash, const uint8_t* at, size_t size) noexcept nogil
    void sha1_end "gmq_sha1_end"(Sha1* hash, uint8_t* digest) noexcept nogil
