# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.acl.plain`: verifies the signatures of requests whose headers have the usual
form. It reads a header once, without an object for each field, and compares in constant time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy, memset

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

cdef bint HAS_INSTRUCTIONS = sha1_has_instructions()
cdef const char* LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef Py_ssize_t KNOWN_LIMIT = KNOWN_MAX
cdef bytes _access_key = ACCESS_KEY_BYTES
cdef bytes _signature = SIGNATURE_BYTES
cdef bytes _unsigned = UNSIGNED_BYTES


@cython.no_gc
@cython.final
cdef class SigningKey:
    """See :class:`gantrymq.plugins.acl.plain.SigningKey`. Has the hash's state after the padded key, not the key.

    ``portable``: do not use the processor's instructions for SHA-1 (for tests).
    """

    cdef Sha1 inner
    cdef Sha1 outer

    def __cinit__(self, bytes secret, *, bint portable=False):
        cdef uint8_t padded[BLOCK]
        cdef bint accelerated = HAS_INSTRUCTIONS and not portable
        cdef Py_ssize_t place, size = PyBytes_GET_SIZE(secret)
        cdef Sha1 hashed
        memset(padded, 0, BLOCK)
        if size > BLOCK:
            sha1_start(&hashed, accelerated)
            sha1_add(&hashed, <const uint8_t*>PyBytes_AS_STRING(secret), size)
            sha1_end(&hashed, padded)
        else:
            memcpy(padded, PyBytes_AS_STRING(secret), size)
        for place in range(BLOCK):
            padded[place] ^= 0x36
        sha1_start(&self.inner, accelerated)
        sha1_add(&self.inner, padded, BLOCK)
        for place in range(BLOCK):
            padded[place] ^= 0x36 ^ 0x5C
        sha1_start(&self.outer, accelerated)
        sha1_add(&self.outer, padded, BLOCK)

    def __reduce__(self):
        raise TypeError("a key is not copied or pickled")

    cdef void finish(self, Sha1* hash, uint8_t* encoded) noexcept nogil:
        """Write the signature of what ``hash``, which began as ``inner``, was given, in base64."""
        cdef uint8_t digest[DIGEST + 1]
        cdef Sha1 outer = self.outer
        cdef uint32_t three
        cdef int group
        sha1_end(hash, digest)
        sha1_add(&outer, digest, DIGEST)
        sha1_end(&outer, digest)
        digest[DIGEST] = 0
        for group in range(ENCODED // 4):
            three = <uint32_t>digest[3 * group] << 16 | <uint32_t>digest[3 * group + 1] << 8 | digest[3 * group + 2]
            encoded[4 * group] = LETTERS[three >> 18]
            encoded[4 * group + 1] = LETTERS[three >> 12 & 63]
            encoded[4 * group + 2] = LETTERS[three >> 6 & 63]
            encoded[4 * group + 3] = LETTERS[three & 63]
        encoded[ENCODED - 1] = c'='

    def sign(self, bytes data):
        """See :meth:`gantrymq.plugins.acl.plain.SigningKey.sign`."""
        cdef uint8_t encoded[ENCODED]
        cdef Sha1 hash = self.inner
        sha1_add(&hash, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.finish(&hash, encoded)
        return PyBytes_FromStringAndSize(<const char*>encoded, ENCODED)


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


cdef bint is_one_of(Text* text, tuple names) noexcept:
    cdef Py_ssize_t number
    for number in range(len(names)):
        if is_text(text, <bytes>names[number]):
            return True
    return False


cdef Py_ssize_t copy_named(Field* fields, int count, tuple names, uint8_t* to) noexcept:
    """Write the fields with these names to ``to``, in the header's order; returns the size, -1 if there is no room."""
    cdef Py_ssize_t size = 0
    cdef int number, part
    cdef uint32_t length
    cdef Text* text
    for number in range(count):
        if not is_one_of(&fields[number].name, names):
            continue
        for part in range(2):
            text = &fields[number].value if part else &fields[number].name
            if size + 4 + text.size > NAMED_MAX:
                return -1
            length = <uint32_t>text.size
            memcpy(to + size, &length, 4)
            memcpy(to + size + 4, text.at, length)
            size += 4 + length
    return size


cdef Field* find_signature(Field* fields, int count, Field** key_field) noexcept:
    """The field with the signature, and the one with the access key; NULL if the slow path has to decide."""
    cdef Field* signature = NULL
    cdef int number
    key_field[0] = NULL
    for number in range(count):
        if fields[number].name.size < 9:  # none of the three, or SecurityToken
            continue
        if is_text(&fields[number].name, _unsigned):
            return NULL
        if is_text(&fields[number].name, _signature):
            signature = &fields[number]
        elif is_text(&fields[number].name, _access_key):
            key_field[0] = &fields[number]
    if signature == NULL or key_field[0] == NULL or signature.value.size != ENCODED:
        return NULL
    return NULL if key_field[0].value.escaped or key_field[0].value.wide else signature


cdef bint is_utf8(Text* text) except -1:
    try:
        PyUnicode_DecodeUTF8(<const char*>text.at, text.size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef bint add_text(Sha1* hash, Text* text) noexcept nogil:
    """Add a text without its escapes; False if one is not valid or not of an ASCII character."""
    cdef const uint8_t* at = text.at
    cdef const uint8_t* end = at + text.size
    cdef const uint8_t* run
    cdef Py_ssize_t size
    cdef uint8_t letter
    while text.escaped and at < end:
        run = <const uint8_t*>memchr(at, c'\\', end - at)
        if run == NULL:
            break
        sha1_add(hash, at, run - at)
        size = read_escape(run, end, &letter)
        if size == 0:
            return False
        sha1_add(hash, &letter, 1)
        at = run + size
    sha1_add(hash, at, end - at)
    return True


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
    cdef bint identified
    cdef int code
    cdef int named_code
    cdef object names
    cdef Py_ssize_t size
    cdef uint8_t last[NAMED_MAX]

    def __init__(self, find_key, allows, named):
        self.find_key, self.allows, self.named = find_key, allows, dict(named)
        self.forget()

    def forget(self):
        """See :meth:`gantrymq.plugins.acl.plain.SignedRequests.forget`."""
        self.senders = {}
        self.known = 0
        self.connection = self.host = self.sender = self.access_key = None
        self.names = None
        self.size = -1

    cdef int find_sender(self, HotRequest request, Text* access_key) except -1:
        """Set ``sender``; None if the slow path has to decide."""
        if request.connection is not self.connection:
            self.host = request.connection.peer[0]
            self.connection = request.connection
            self.sender = None
            self.identified = False
        if self.sender is not None and is_text(access_key, self.access_key):
            return 0
        self.size = -1
        self.identified = False
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

    cdef bint is_signed(self, HotRequest request, Field* fields, int count, Field* signature) except -1:
        cdef int order[FIELDS_MAX]
        cdef uint8_t encoded[ENCODED]
        cdef Sha1 hash
        cdef Field* field
        cdef int number
        if not put_in_order(fields, count, order):
            return False
        hash = self.sender.key.inner
        for number in range(count):
            field = &fields[order[number]]
            if field == signature:
                continue
            if (field.value.wide and not is_utf8(&field.value)) or not add_text(&hash, &field.value):
                return False
        sha1_add(&hash, request.payload, request.body_size)
        self.sender.key.finish(&hash, encoded)
        return are_equal(encoded, signature.value.at)

    cdef bint is_allowed(self, HotRequest request, Field* fields, int count, tuple names) except -1:
        cdef uint8_t now[NAMED_MAX]
        cdef Py_ssize_t size = copy_named(fields, count, names, now)
        if size < 0:
            return False
        if size == self.size and request.code == self.code and memcmp(now, self.last, size) == 0:
            return True
        asked = (request.code, PyBytes_FromStringAndSize(<const char*>now, size))
        if asked not in self.sender.allowed:
            if not self.allows(request, self.sender.access_key):
                return False
            self.sender.allowed.add(asked)
            self.known += 1
        memcpy(self.last, now, size)
        self.size, self.code = size, request.code
        return True

    cdef bint take_one(self, HotRequest request) except -1:
        cdef Field fields[FIELDS_MAX]
        cdef Field* key_field
        cdef Field* signature
        cdef int count
        if self.names is None or request.code != self.named_code:
            self.names = self.named.get(request.code)
            self.named_code = request.code
        if self.names is None or request._command is not None or not request.header_size:
            return False
        count = request.read_fields(fields)
        signature = find_signature(fields, count, &key_field)
        if signature == NULL:
            return False
        self.find_sender(request, &key_field.value)
        if self.sender is None or not self.is_signed(request, fields, count, signature):
            return False
        if not self.is_allowed(request, fields, count, <tuple>self.names):
            return False
        if not self.identified:
            request.connection.identity = self.sender.access_key
            self.identified = True
        return True

    def take(self, list requests, rows):
        """See :meth:`gantrymq.plugins.acl.plain.SignedRequests.take`."""
        cdef list rest = []
        cdef Py_ssize_t row
        if len(rows) == len(requests):  # all of them
            for row, request in enumerate(requests):
                if not isinstance(request, HotRequest) or not self.take_one(<HotRequest>request):
                    rest.append(row)
        else:
            for row in rows:
                request = requests[row]
                if not isinstance(request, HotRequest) or not self.take_one(<HotRequest>request):
                    rest.append(row)
        self.connection = None  # it must not outlive its end
        if self.known > KNOWN_LIMIT:
            self.forget()
        return rest
