# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.acl.plain`: verifies the signatures of requests whose headers have the usual
form. It reads a header once, without an object for each field, and compares in constant time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from gantrymq.kernel.fast._requests cimport FIELDS_MAX, Field, HotRequest, Text

from gantrymq.plugins.acl.plain import ACCESS_KEY_BYTES, KNOWN_MAX, SIGNATURE_BYTES, UNSIGNED_BYTES

include "../../kernel/fast/_escapes.pxi"
include "_sha1.pxi"

KIND = "compiled"

cdef enum:
    BLOCK = 64
    DIGEST = 20
    ENCODED = 28  # characters of a digest in base64
    NAMED_MAX = 1024  # bytes of the fields that name topic and group; longer ones take the slow path
    HEADER_MAX = 64 * 1024  # bytes of a header; longer ones take the slow path
    SHORT = 16  # bytes that are copied at once
    LAYOUTS = 256  # a power of two; layouts with the same place replace each other

cdef int ABILITIES = sha1_abilities()
cdef const char* LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef Py_ssize_t KNOWN_LIMIT = KNOWN_MAX
cdef bytes _access_key = ACCESS_KEY_BYTES
cdef bytes _signature = SIGNATURE_BYTES
cdef bytes _unsigned = UNSIGNED_BYTES


@cython.no_gc
@cython.final
cdef class SigningKey:
    """See :class:`gantrymq.plugins.acl.plain.SigningKey`. Has the hash's state after the padded key, not the key.

    ``abilities``: which of the processor's instructions may be used (for tests): bits 0 (those for SHA-1) and 1 (AVX-512).
    """

    cdef Sha1 inner
    cdef Sha1 outer

    def __cinit__(self, bytes secret, *, int abilities=-1):
        cdef uint8_t padded[BLOCK]
        cdef Py_ssize_t place, size = PyBytes_GET_SIZE(secret)
        cdef Sha1 hashed
        abilities &= ABILITIES
        memset(padded, 0, BLOCK)
        if size > BLOCK:
            sha1_start(&hashed, abilities)
            sha1_add(&hashed, <const uint8_t*>PyBytes_AS_STRING(secret), size)
            sha1_end(&hashed, padded)
        else:
            memcpy(padded, PyBytes_AS_STRING(secret), size)
        for place in range(BLOCK):
            padded[place] ^= 0x36
        sha1_start(&self.inner, abilities)
        sha1_add(&self.inner, padded, BLOCK)
        for place in range(BLOCK):
            padded[place] ^= 0x36 ^ 0x5C
        sha1_start(&self.outer, abilities)
        sha1_add(&self.outer, padded, BLOCK)

    def __reduce__(self):
        raise TypeError("a key is not copied or pickled")

    cdef void begin(self, HashedText* text) noexcept nogil:
        """Set the state and kind of a text that this key signs."""
        memcpy(text.state, self.inner.state, sizeof(text.state))
        text.abilities = self.inner.abilities

    def sign(self, bytes data):
        """See :meth:`gantrymq.plugins.acl.plain.SigningKey.sign`."""
        cdef uint8_t encoded[ENCODED]
        cdef uint8_t end[2 * BLOCK]
        cdef HashedText text
        cdef size_t size = PyBytes_GET_SIZE(data)
        self.begin(&text)
        set_pieces(&text, end, 0, <const uint8_t*>PyBytes_AS_STRING(data), size, end)
        sha1_text(&text)
        set_outer(self, &text, end)
        sha1_text(&text)
        encode(&text, encoded)
        return PyBytes_FromStringAndSize(<const char*>encoded, ENCODED)


cdef void set_pieces(
    HashedText* text, uint8_t* start, size_t size, const uint8_t* body, size_t body_size, uint8_t* end
) noexcept nogil:
    """Set what the inner hash of a signature gets: the ``size`` bytes at ``start``, which has room for a block more, and
    ``body``. ``end`` has room for two blocks, and may be ``start`` if ``size`` is 0."""
    cdef size_t filled = (BLOCK - size % BLOCK) % BLOCK
    cdef size_t whole
    cdef uint64_t all_bytes = BLOCK + size + body_size
    if filled > body_size:
        filled = body_size
    memcpy(start + size, body, filled)
    size += filled
    body += filled
    body_size -= filled
    whole = size // BLOCK  # all of it if there is more of the body
    text.at[0] = start
    text.blocks[0] = whole
    text.at[1] = body
    text.blocks[1] = body_size // BLOCK
    if body_size:
        size = body_size % BLOCK
        memcpy(end, body + body_size - size, size)
    else:
        memcpy(end, start + BLOCK * whole, size % BLOCK)
        size %= BLOCK
    text.at[2] = end
    text.blocks[2] = sha1_pad(end, size, all_bytes)


cdef void set_outer(SigningKey key, HashedText* text, uint8_t* end) noexcept nogil:
    """Let the outer hash of a signature follow the inner one; ``end`` has room for two blocks."""
    sha1_digest(text.state, end)
    memcpy(text.state, key.outer.state, sizeof(text.state))
    text.blocks[0] = text.blocks[1] = 0
    text.at[2] = end
    text.blocks[2] = sha1_pad(end, DIGEST, BLOCK + DIGEST)


cdef void encode(HashedText* text, uint8_t* encoded) noexcept nogil:
    """Write the hash in base64."""
    cdef uint8_t digest[DIGEST + 1]
    cdef uint32_t three
    cdef int group
    sha1_digest(text.state, digest)
    digest[DIGEST] = 0
    for group in range(ENCODED // 4):
        three = <uint32_t>digest[3 * group] << 16 | <uint32_t>digest[3 * group + 1] << 8 | digest[3 * group + 2]
        encoded[4 * group] = LETTERS[three >> 18]
        encoded[4 * group + 1] = LETTERS[three >> 12 & 63]
        encoded[4 * group + 2] = LETTERS[three >> 6 & 63]
        encoded[4 * group + 3] = LETTERS[three & 63]
    encoded[ENCODED - 1] = c'='


cdef inline bint is_text(Text* text, bytes word) noexcept:
    return text.size == PyBytes_GET_SIZE(word) and memcmp(text.at, PyBytes_AS_STRING(word), text.size) == 0


cdef inline uint64_t prefix_of(Text* text) noexcept nogil:
    """The first 8 bytes of a name, as a number that orders as they do."""
    cdef uint64_t prefix = 0
    cdef Py_ssize_t place
    for place in range(8):
        prefix = prefix << 8 | (text.at[place] if place < text.size else 0)
    return prefix


cdef int compare(Text* one, Text* other) noexcept nogil:
    cdef Py_ssize_t size = one.size if one.size < other.size else other.size
    cdef int found = memcmp(one.at, other.at, size)
    return found if found else (one.size > other.size) - (one.size < other.size)


cdef bint put_in_order(Field* fields, int count, int* order) noexcept nogil:
    """Set ``order`` to the fields' numbers in order of their names. False: two have the same name."""
    cdef uint64_t prefixes[FIELDS_MAX]
    cdef uint64_t prefix
    cdef int number, place, result
    for number in range(count):
        prefix = prefix_of(&fields[number].name)
        place = number
        while place > 0:
            if prefix > prefixes[place - 1]:
                break
            if prefix == prefixes[place - 1]:
                result = compare(&fields[order[place - 1]].name, &fields[number].name)
                if result == 0:
                    return False
                if result < 0:
                    break
            prefixes[place] = prefixes[place - 1]
            order[place] = order[place - 1]
            place -= 1
        prefixes[place] = prefix
        order[place] = number
    return True


cdef bint are_equal(const uint8_t* one, const uint8_t* other) noexcept nogil:
    """Whether two signatures are equal, in a time that does not depend on where they differ."""
    cdef uint8_t difference = 0
    cdef int place
    for place in range(ENCODED):
        difference |= one[place] ^ other[place]
    return difference == 0


@cython.final
cdef class Sender:
    """An access key at an address: its signing key, and what it may do."""

    cdef object access_key
    cdef SigningKey key
    cdef set allowed


cdef struct Layout:
    # What was found out about the names of a header's fields.
    int64_t number
    int code
    int signature
    int key
    int count
    int named_count
    int order[FIELDS_MAX]  # by name, without the signature
    int named[FIELDS_MAX]  # those that name topic and group, in the header's order


cdef bint is_one_of(Text* text, tuple names) noexcept:
    cdef Py_ssize_t number
    for number in range(len(names)):
        if is_text(text, <bytes>names[number]):
            return True
    return False


cdef bint set_layout(Layout* layout, Field* fields, int count, tuple names) noexcept:
    """Read the names of the fields; False if the slow path has to decide."""
    cdef int order[FIELDS_MAX]
    cdef int number
    layout.number = 0
    layout.signature = layout.key = -1
    layout.count = layout.named_count = 0
    if not put_in_order(fields, count, order):
        return False
    for number in range(count):
        if is_one_of(&fields[number].name, names):
            layout.named[layout.named_count] = number
            layout.named_count += 1
        if is_text(&fields[number].name, _unsigned):
            return False
        if is_text(&fields[number].name, _signature):
            layout.signature = number
        elif is_text(&fields[number].name, _access_key):
            layout.key = number
    for number in range(count):
        if order[number] != layout.signature:
            layout.order[layout.count] = order[number]
            layout.count += 1
    return layout.signature >= 0 and layout.key >= 0


cdef Py_ssize_t copy_named(Field* fields, Layout* layout, uint8_t* to) noexcept:
    """Write the fields that name topic and group to ``to``; returns the size, -1 if there is no room."""
    cdef Py_ssize_t size = 0
    cdef int number, part
    cdef uint32_t length
    cdef Text* text
    for number in range(layout.named_count):
        for part in range(2):
            text = &fields[layout.named[number]].value if part else &fields[layout.named[number]].name
            if size + 4 + text.size > NAMED_MAX:
                return -1
            length = <uint32_t>text.size
            memcpy(to + size, &length, 4)
            memcpy(to + size + 4, text.at, length)
            size += 4 + length
    return size


cdef bint is_utf8(Text* text) except -1:
    try:
        PyUnicode_DecodeUTF8(<const char*>text.at, text.size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef Py_ssize_t copy_text(uint8_t* to, Text* text) noexcept nogil:
    """Write a text without its escapes; returns its size, -1 if one is not valid or not of an ASCII character."""
    cdef const uint8_t* at = text.at
    cdef const uint8_t* end = at + text.size
    cdef uint8_t* start = to
    cdef Py_ssize_t size
    while at < end:
        if at[0] != c'\\':
            to[0] = at[0]
            size = 1
        else:
            size = read_escape(at, end, to)
            if size == 0:
                return -1
        to += 1
        at += size
    return to - start


@cython.final
cdef class Signed:
    """A request whose signature is verified: those that are hashed together have one each."""

    cdef HotRequest request
    cdef Sender sender
    cdef Py_ssize_t row
    cdef HashedText text
    cdef uint8_t* values  # of its fields, in order of their names
    cdef Py_ssize_t room
    cdef uint8_t end[2 * BLOCK]
    cdef const uint8_t* signature
    cdef Py_ssize_t named_size
    cdef uint8_t named[NAMED_MAX]

    def __dealloc__(self):
        PyMem_Free(self.values)

    cdef bint take_values(self, Field* fields, Layout* layout) except -1:
        """Prepare the hash of the request; False if the slow path has to decide."""
        cdef HotRequest request = self.request
        cdef const uint8_t* behind = request.head + request.header_size
        cdef uint8_t* to
        cdef Py_ssize_t size
        cdef int number
        cdef Text* text
        size = request.header_size + SHORT + BLOCK
        if size > self.room:
            PyMem_Free(self.values)
            self.room = 0
            self.values = <uint8_t*>PyMem_Malloc(2 * size)
            if self.values == NULL:
                raise MemoryError
            self.room = 2 * size
        to = self.values
        for number in range(layout.count):
            text = &fields[layout.order[number]].value
            if text.escaped or text.wide:
                if text.wide and not is_utf8(text):
                    return False
                size = copy_text(to, text) if text.escaped else text.size
                if size < 0:
                    return False
                if not text.escaped:
                    memcpy(to, text.at, size)
                to += size
            elif text.size <= SHORT and behind - text.at >= SHORT:
                memcpy(to, text.at, SHORT)  # a copy of a known size is one instruction
                to += text.size
            else:
                memcpy(to, text.at, text.size)
                to += text.size
        self.sender.key.begin(&self.text)
        set_pieces(&self.text, self.values, to - self.values, request.payload, request.body_size, self.end)
        return True

    cdef bint is_signed(self) noexcept:
        """Whether the signature is right, once the outer hash is there."""
        cdef uint8_t encoded[ENCODED]
        encode(&self.text, encoded)
        return are_equal(encoded, self.signature)


@cython.final
cdef class SignedRequests:
    """See :class:`gantrymq.plugins.acl.plain.SignedRequests`."""

    cdef object find_key
    cdef object allows
    cdef dict named
    cdef dict senders
    cdef Py_ssize_t known
    # The last request's connection, sender, code and named fields: the next one usually has the same.
    cdef object connection
    cdef object host
    cdef Sender sender
    cdef bytes access_key
    cdef object identified
    cdef Sender identified_as
    cdef int code
    cdef int named_code
    cdef object names
    cdef Sender allowed_sender
    cdef Py_ssize_t size
    cdef uint8_t last[NAMED_MAX]
    cdef Layout layouts[LAYOUTS]
    cdef list together

    def __init__(self, find_key, allows, named):
        self.find_key, self.allows, self.named = find_key, allows, dict(named)
        self.together = [Signed.__new__(Signed) for _ in range(LANES)]
        memset(self.layouts, 0, sizeof(self.layouts))
        self.forget()

    def forget(self):
        """See :meth:`gantrymq.plugins.acl.plain.SignedRequests.forget`."""
        self.senders = {}
        self.known = 0
        self.connection = self.host = self.sender = self.access_key = self.identified = self.identified_as = None
        self.names = self.allowed_sender = None
        self.size = -1

    cdef int find_sender(self, HotRequest request, Text* access_key) except -1:
        """Set ``sender``; None if the slow path has to decide."""
        if request.connection is not self.connection:
            host = request.connection.peer[0]
            if host != self.host:
                self.host = host
                self.sender = None
            self.connection = request.connection
        if self.sender is not None and is_text(access_key, self.access_key):
            return 0
        self.access_key = PyBytes_FromStringAndSize(<const char*>access_key.at, access_key.size)
        self.sender = self.senders.get((self.host, self.access_key))
        if self.sender is None:
            name = self.access_key.decode()
            key = self.find_key(self.host, name)
            if key is not None:
                self.sender = Sender.__new__(Sender)
                self.sender.access_key, self.sender.key, self.sender.allowed = name, key, set()
                self.senders[self.host, self.access_key] = self.sender
                self.known += 1
        return 0

    cdef Layout* find_layout(self, int64_t number, int code, Field* fields, int count, Layout* own) except? NULL:
        """What is known of a header with this layout; NULL if the slow path has to decide."""
        cdef Layout* layout = &self.layouts[number & (LAYOUTS - 1)] if number else own
        if number and layout.number == number and layout.code == code:
            return layout
        if not set_layout(layout, fields, count, <tuple>self.names):
            return NULL
        layout.number, layout.code = number, code
        return layout

    cdef bint prepare(self, HotRequest request, Signed signed) except -1:
        """Prepare the verification of a request; False if the slow path has to decide."""
        cdef Field fields[FIELDS_MAX]
        cdef Layout own
        cdef Layout* layout
        cdef Text* key
        cdef Text* signature
        cdef int count
        cdef int64_t number = 0
        if self.names is None or request.code != self.named_code:
            self.names = self.named.get(request.code)
            self.named_code = request.code
        if self.names is None or request._command is not None or not 0 < request.header_size <= HEADER_MAX:
            return False
        count = request.read_like_last(fields, &number)
        if count < 0:
            return False
        layout = self.find_layout(number, request.code, fields, count, &own)
        if layout == NULL:
            return False
        key, signature = &fields[layout.key].value, &fields[layout.signature].value
        if signature.size != ENCODED or key.escaped or key.wide:
            return False
        self.find_sender(request, key)
        if self.sender is None:
            return False
        signed.request, signed.sender, signed.signature = request, self.sender, signature.at
        signed.named_size = copy_named(fields, layout, signed.named)
        return signed.named_size >= 0 and signed.take_values(fields, layout)

    cdef bint is_allowed(self, Signed signed) except -1:
        cdef HotRequest request = signed.request
        cdef Sender sender = signed.sender
        cdef Py_ssize_t size = signed.named_size
        if (
            size == self.size and sender is self.allowed_sender and request.code == self.code
            and memcmp(signed.named, self.last, size) == 0
        ):
            return True
        asked = (request.code, PyBytes_FromStringAndSize(<const char*>signed.named, size))
        if asked not in sender.allowed:
            if not self.allows(request, sender.access_key):
                return False
            sender.allowed.add(asked)
            self.known += 1
        memcpy(self.last, signed.named, size)
        self.size, self.code, self.allowed_sender = size, request.code, sender
        return True

    cdef int decide(self, Signed signed, list rest) except -1:
        """Take a request whose hash is there, or add its row to ``rest``."""
        if not signed.is_signed() or not self.is_allowed(signed):
            rest.append(signed.row)
        elif self.identified is not signed.request.connection or self.identified_as is not signed.sender:
            self.identified, self.identified_as = signed.request.connection, signed.sender
            self.identified.identity = signed.sender.access_key
        return 0

    cdef int verify(self, int count, list rest) except -1:
        """Verify the first ``count`` prepared requests together, and decide about one after the other."""
        cdef HashedText* texts[LANES]
        cdef Signed signed
        cdef int number
        for number in range(count):
            texts[number] = &(<Signed>self.together[number]).text
        sha1_texts(texts, count)
        for number in range(count):
            signed = <Signed>self.together[number]
            set_outer(signed.sender.key, &signed.text, signed.end)
            texts[number] = &signed.text
        sha1_texts(texts, count)
        for number in range(count):
            self.decide(<Signed>self.together[number], rest)
        return 0

    def take(self, list requests, rows):
        """See :meth:`gantrymq.plugins.acl.plain.SignedRequests.take`."""
        cdef list rest = []
        cdef Py_ssize_t row
        cdef int waiting = 0  # requests that are prepared
        cdef Signed signed
        try:
            for row in rows:
                request = requests[row]
                signed = <Signed>self.together[waiting]
                if isinstance(request, HotRequest) and self.prepare(<HotRequest>request, signed):
                    signed.row = row
                    waiting += 1
                    if waiting == LANES:
                        waiting = 0
                        self.verify(LANES, rest)
                    continue
                if waiting:  # before a later row is decided
                    self.verify(waiting, rest)
                    waiting = 0
                rest.append(row)
            if waiting:
                self.verify(waiting, rest)
        finally:
            self.connection = self.identified = None  # they must not outlive their end
            for signed in self.together:
                signed.request = None
        if self.known > KNOWN_LIMIT:
            self.forget()
        return rest
