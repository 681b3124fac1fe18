# Decodes typed headers directly from JSON, and encodes responses without fields. A part of _requests.pyx.

from msgspec import ValidationError, defstruct
from msgspec.json import Decoder

cdef enum:
    KEPT_RESPONSES = 256
    KEPT_HEADERS = 256
    OPAQUE_AT = 8 + 5  # of a binary frame

cdef object OPAQUE = 1_234_567_890
cdef dict _decoders = {}
cdef dict _short_forms = {}


cdef object decoder_of(kind):
    """The decoder of JSON headers with fields of this kind; its result has them as ``fields``."""
    found = _decoders.get(kind)
    if found is None:
        if len(_decoders) >= KEPT_HEADERS:
            _decoders.clear()
        whole = defstruct("Whole", [("fields", kind)], rename={"fields": "extFields"})
        found = _decoders[kind] = Decoder(whole, strict=False).decode
    return found


cdef bytes short_response(code, int kind, int opaque):
    """The frame of a response that has a code and nothing else."""
    cdef object key = (code, kind)
    cdef tuple form = _short_forms.get(key)
    cdef bytes first, last, frame
    cdef uint8_t digits[24]
    cdef uint8_t* at
    cdef Py_ssize_t size
    if form is None:
        frame = encode(Command(code, None, b"", OPAQUE, RESPONSE, None, kind=kind))
        if kind:
            form = (frame[:OPAQUE_AT], frame[OPAQUE_AT + 4:])
        else:
            form = tuple(frame[8:].split(str(OPAQUE).encode(), 1))
        if len(_short_forms) >= KEPT_RESPONSES:
            _short_forms.clear()
        _short_forms[key] = form
    first, last = form
    if kind:
        put32(digits, <uint32_t>opaque)
        size = 4
        frame = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(first) + size + PyBytes_GET_SIZE(last))
        at = <uint8_t*>PyBytes_AS_STRING(frame)
    else:
        size = put_number(digits, opaque) - digits
        frame = PyBytes_FromStringAndSize(NULL, 8 + PyBytes_GET_SIZE(first) + size + PyBytes_GET_SIZE(last))
        at = <uint8_t*>PyBytes_AS_STRING(frame)
        put32(at, <uint32_t>(PyBytes_GET_SIZE(frame) - 4))
        put32(at + 4, <uint32_t>(PyBytes_GET_SIZE(frame) - 8))
        at += 8
    at = put_bytes(at, first)
    memcpy(at, digits, size)
    put_bytes(at + size, last)
    return frame
