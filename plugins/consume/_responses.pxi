# Responses to pulls, copied from blocks of the log into the bytes to send. A part of _fast.pyx.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from array import array

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** text, Py_ssize_t size) except -1
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char* text, Py_ssize_t size) except NULL
    void release "Py_XDECREF"(PyObject* thing)

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* at) noexcept nogil

cdef enum:
    COMMIT_OFFSET = 1
    WHICH_FILTER = 4  # the bit of a pull's sys flag that selects its filter
    WINDOWS = 256  # the most parts of the log for one response
    KEPT_WINDOWS = 64  # the most windows that are kept for the next responses; beyond it, the older half is closed
    KEPT_WINDOW_BYTES = 1 << 16  # their largest size: that of a block in kernel/store/log/windows.py
    KEPT_CODES = 1 << 16  # the most cached tag codes of all filters together
    CODES_SORTED = 16  # from this number of tag codes on, a binary search finds a code
    KEPT_ENTRIES = 512  # entries that are read at once, for the following pulls
    KEPT_QUEUES = 64  # the most queues with such entries
    KEPT_FORMS = 64  # the most suggested brokers with cached forms of responses
    PREFETCHED = 4  # how many records ahead of the one that is checked are loaded into the processor's cache
    SEND_BYTES = 1 << 17  # the size from which frames go to their connection, which may then be congested


@cython.final
cdef class Frames:
    """Frames for one connection, in a bytes object that is sent without a copy."""

    cdef PyObject* data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        release(self.data)

    cdef uint8_t* reserve(self, Py_ssize_t more) except NULL:
        """Make room for ``more`` bytes; returns where to write them."""
        cdef PyObject* larger
        if self.data == NULL:
            self.data = new_bytes(NULL, more)
            self.room = more
        elif self.size + more > self.room:
            # Not in place: without memory, the frames so far can still be sent.
            larger = new_bytes(NULL, 2 * (self.size + more))
            memcpy(PyBytes_AS_STRING(<object>larger), PyBytes_AS_STRING(<object>self.data), self.size)
            release(self.data)
            self.data = larger
            self.room = 2 * (self.size + more)
        return <uint8_t*>PyBytes_AS_STRING(<object>self.data) + self.size

    cdef object take(self):
        cdef object taken
        cdef Py_ssize_t size = self.size
        self.size = 0  # also if the next line fails, which drops the data
        _PyBytes_Resize(&self.data, size)
        taken = <object>self.data
        release(self.data)
        self.data = NULL
        return taken


@cython.final
cdef class Form:
    """The parts of one kind of response; see :class:`gantrymq.plugins.consume.plain.PullForm`."""

    cdef bytes first, second, third, fourth, last, fixed, remark, fields
    cdef Py_ssize_t most

    def __cinit__(self, form):
        (self.first, self.second, self.third, self.fourth, self.last), self.fixed, self.remark, self.fields = form
        self.most = 8 + sum(map(len, form.json)) + sum(map(len, form[1:])) + 256

    cdef uint8_t* write(self, uint8_t* start, HotRequest request, int64_t following, int64_t low, int64_t high,
                        int64_t body) noexcept:
        """Write the frame up to its body at ``start``; returns where the body begins."""
        cdef uint8_t* at = start + 8
        cdef uint8_t* fields
        if request.kind:
            at = put_bytes(at, self.fixed)
            put32(start + 8 + 5, <uint32_t>request.opaque)
            put32(at, <uint32_t>PyBytes_GET_SIZE(self.remark))
            at = put_bytes(at + 4, self.remark)
            fields = at + 4
            at = put_bytes(fields, self.fields)
            at = put_field_number(at, b"nextBeginOffset", 15, following)
            at = put_field_number(at, b"minOffset", 9, low)
            at = put_field_number(at, b"maxOffset", 9, high)
            put32(fields - 4, <uint32_t>(at - fields))
        else:
            at = put_bytes(put_number(put_bytes(at, self.first), following), self.second)
            at = put_bytes(put_number(at, low), self.third)
            at = put_bytes(put_number(at, high), self.fourth)
            at = put_bytes(put_number(at, request.opaque), self.last)
        put32(start, <uint32_t>(at - start - 4 + body))
        put32(start + 4, <uint32_t>request.kind << 24 | <uint32_t>(at - start - 8))
        return at


cdef struct Window:
    int64_t start
    int64_t length
    const uint8_t* data


@cython.final
cdef class KeptEntries:
    """Entries of a queue from one offset on. Entries do not change within a generation of the queue."""

    cdef int64_t first
    cdef object generation
    cdef bytes data


@cython.final
cdef class PullResponses:
    """See :class:`gantrymq.plugins.consume.plain.PullResponses`."""

    cdef object policy, find_queue, commit, pulled, deliver, reader
    cdef int64_t max_messages, max_bytes, scan_entries
    cdef object limits_now, log, transfer
    cdef Limits limits
    cdef Form found, unmatched
    cdef object make_forms
    cdef dict other_forms
    cdef Frames frames
    cdef dict kept
    cdef object connection
    cdef object codes
    cdef dict packed_codes
    cdef Py_ssize_t packed_count
    cdef bytes code_bytes
    cdef const int64_t* code_list
    cdef Py_ssize_t code_count
    cdef Run* runs
    cdef Py_ssize_t run_room
    cdef Py_ssize_t run_count
    cdef Py_ssize_t found_count
    cdef Window windows[WINDOWS]
    cdef Py_buffer buffers[WINDOWS]
    cdef int window_count
    cdef int window_hit
    cdef object quarantine
    cdef int64_t oldest

    def __cinit__(self, context):
        self.policy, self.find_queue = context.policy, context.find_queue
        self.commit, self.pulled, self.deliver = context.commit, context.pulled, context.deliver
        self.reader = context.windows
        self.max_messages, self.max_bytes, self.scan_entries = context.max_messages, context.max_bytes, context.scan_entries
        self.make_forms, self.other_forms = context.forms, {}
        self.found, self.unmatched = map(Form, context.forms(0))
        self.frames = Frames()
        self.kept = {}
        self.packed_codes = {}
        self.limits_now, self.log = context.limits, context.log

    def __dealloc__(self):
        self.close_windows()
        PyMem_Free(self.runs)

    # ------------------------------------------------------------------------------------------------------ reading

    cdef void close_windows(self) noexcept:
        while self.window_count:
            self.window_count -= 1
            PyBuffer_Release(&self.buffers[self.window_count])

    cdef void keep_windows(self) noexcept:
        """Close the windows, except some blocks that the next pulls are likely to read too.

        The bytes of an open log never change. :meth:`take_limits` closes windows with quarantined ranges.
        """
        cdef int number, kept = 0
        cdef int closed = self.window_count - KEPT_WINDOWS // 2 if self.window_count > KEPT_WINDOWS else 0
        for number in range(self.window_count):
            if number < closed or self.windows[number].length > KEPT_WINDOW_BYTES:
                PyBuffer_Release(&self.buffers[number])
                continue
            if kept < number:
                self.windows[kept] = self.windows[number]
                self.buffers[kept] = self.buffers[number]
            kept += 1
        self.window_count = kept

    cdef const uint8_t* bytes_at(self, int64_t at, int64_t size, bint goes_on) except? NULL:
        """The log's bytes at ``at``; NULL if the fallback has to read them. ``goes_on``: as for the reader's ``span``."""
        cdef int number
        cdef int64_t start
        cdef Window* window
        if self.window_hit < self.window_count:
            window = &self.windows[self.window_hit]
            if holds(window.start, window.length, at, size):
                return window.data + (at - window.start)
        for number in range(self.window_count - 1, -1, -1):
            window = &self.windows[number]
            if holds(window.start, window.length, at, size):
                self.window_hit = number
                return window.data + (at - window.start)
        if self.window_count == WINDOWS:
            return NULL  # no window may be closed, because the runs point into them
        span = self.reader.span(at, size, goes_on)
        if span is None:
            return NULL
        start, data = span
        number = self.window_count
        PyObject_GetBuffer(data, &self.buffers[number], PyBUF_SIMPLE)
        self.window_count += 1
        self.window_hit = number
        window = &self.windows[number]
        window.start, window.length = start, self.buffers[number].len
        window.data = <const uint8_t*>self.buffers[number].buf
        return window.data + (at - start)

    cdef void prefetch_record(self, int64_t at) noexcept nogil:
        """Load the head and the first bytes of the body of the record at ``at`` into the processor's cache, if it is in
        the window that was used last."""
        cdef Window* window = &self.windows[self.window_hit]
        cdef const uint8_t* record
        if self.window_hit < self.window_count and holds(window.start, window.length, at, 192):
            record = window.data + (at - window.start)
            prefetch(record)
            prefetch(record + 64)
            prefetch(record + 128)

    cdef bytes entries_of(self, object queue, int64_t offset, int64_t count, const uint8_t** entry):
        """Set ``entry`` to the entries from ``offset`` on. Returns their bytes, for at least ``count`` entries if the
        queue has them, or None if they cannot be read here."""
        cdef KeptEntries block = self.kept.get(queue)
        cdef object generation = queue.generation
        cdef int64_t skipped
        if block is not None and block.generation == generation and block.first <= offset:
            skipped = (offset - block.first) * 20
            if skipped + count * 20 <= PyBytes_GET_SIZE(block.data):
                entry[0] = <const uint8_t*>PyBytes_AS_STRING(block.data) + skipped
                return block.data
        block = KeptEntries.__new__(KeptEntries)
        block.first, block.generation = offset, generation
        try:
            block.data = queue.peek(offset, max(count, KEPT_ENTRIES))
        except OSError:
            return None  # the fallback reports it
        if block.data is None:
            return None
        if count < KEPT_ENTRIES and PyBytes_GET_SIZE(block.data) > 2 * 20 * count:
            if len(self.kept) >= KEPT_QUEUES:
                self.kept.clear()
            self.kept[queue] = block
        entry[0] = <const uint8_t*>PyBytes_AS_STRING(block.data)
        return block.data

    cdef int take_codes(self, object codes) except -1:
        """Set the wanted tag codes."""
        cdef bytes packed
        if codes is self.codes:
            return 0
        # A filter may have ten thousand codes; sort them once, not at each change of the group.
        packed = self.packed_codes.get(codes)
        if packed is None:
            self.packed_count += 1 + len(codes)
            if self.packed_count > KEPT_CODES:
                self.packed_codes.clear()
                self.packed_count = 1 + len(codes)
            packed = self.packed_codes[codes] = array("q", sorted(codes)).tobytes()
        self.code_bytes = packed
        self.code_list = <const int64_t*>PyBytes_AS_STRING(packed)
        self.code_count = PyBytes_GET_SIZE(packed) // sizeof(int64_t)
        self.codes = codes
        return 0

    cdef bint is_wanted(self, int64_t code) noexcept nogil:
        cdef Py_ssize_t low = 0, high = self.code_count, middle
        if code < -0x80000000LL:  # EXTENSION_ADDRESSES_END of gantrymq.kernel.filters
            return True
        if high < CODES_SORTED:
            for low in range(high):
                if self.code_list[low] == code:
                    return True
            return high == 0
        while low < high:
            middle = (low + high) // 2
            if self.code_list[middle] < code:
                low = middle + 1
            else:
                high = middle
        return low < self.code_count and self.code_list[low] == code

    cdef int take_limits(self) except -1:
        """Read the current limits, and make room for as many records as they allow.

        Closes all windows if a range was quarantined since the last call.
        """
        cdef Limits* limits = &self.limits
        cdef int64_t most
        cdef Run* room
        cdef object transfer = self.limits_now.transfer
        quarantine = self.log.quarantine
        if quarantine is not self.quarantine:
            self.close_windows()
            self.quarantine = quarantine
        limits.disk_end = self.log.end - self.limits_now.memory_bytes
        if transfer is self.transfer:
            return 0
        limits.messages, limits.size, limits.disk_messages, limits.disk_size = transfer
        most = max(self.max_messages, limits.messages, limits.disk_messages)
        if most > self.run_room:
            room = <Run*>PyMem_Realloc(self.runs, most * sizeof(Run))
            if room == NULL:
                raise MemoryError
            self.runs, self.run_room = room, most
        self.transfer = transfer
        return 0

    cdef Limits limits_of(self, int64_t messages, int64_t size) noexcept:
        """The limits of a pull for at most ``messages`` messages and, if ``size`` is above 0, at most ``size``
        bytes."""
        cdef Limits limits = self.limits
        messages = max(1, messages)
        if size > 0:
            limits.messages = min(messages, self.max_messages)
            limits.size = min(size, self.max_bytes)
            limits.disk_messages, limits.disk_size = limits.messages, limits.size
        else:
            limits.messages = min(messages, limits.messages)
            limits.disk_messages = min(messages, limits.disk_messages)
        return limits

    cdef int64_t collect(self, const uint8_t* entry, Py_ssize_t count, const Limits* limits, const Owner* owner,
                         Py_ssize_t* scanned) except -2:
        """Find the records of these entries as :func:`gather` does. Returns their size, or -1 if the fallback has
        to."""
        cdef Py_ssize_t number, found = 0, runs = 0
        cdef int64_t at, size, total = 0
        cdef const uint8_t* record
        cdef Py_ssize_t ahead
        cdef int window = -1
        cdef bint goes_on
        scanned[0] = 0
        if self.window_count > WINDOWS // 2:
            self.keep_windows()
        for number in range(count):
            at = <int64_t>get64(entry)
            size = <int32_t>get32(entry + 8)
            if is_full(limits, found, total, at, size):
                break
            scanned[0] += 1
            if size == FILLER_SIZE or (at >= self.oldest and not self.is_wanted(<int64_t>get64(entry + 12))):
                entry += 20
                continue
            if at < self.oldest or size < 88:
                return -1
            goes_on = number + 1 < count and 0 < <int64_t>get64(entry + 20) - at < KEPT_WINDOW_BYTES
            record = self.bytes_at(at, size, goes_on)
            for ahead in range(PREFETCHED if window == self.window_hit else 1, PREFETCHED + 1):
                if number + ahead < count:
                    self.prefetch_record(<int64_t>get64(entry + 20 * ahead))
            window = self.window_hit
            if record == NULL or not is_record(record, size, at) or not is_of(record, size, owner, number):
                return -1
            if runs and self.runs[runs - 1].at + self.runs[runs - 1].size == record:
                self.runs[runs - 1].size += size
            else:
                self.runs[runs].at = record
                self.runs[runs].size = size
                runs += 1
            found += 1
            total += size
            entry += 20
        self.run_count = runs
        self.found_count = found
        return total

    # ------------------------------------------------------------------------------------------------------ sending

    cdef int send(self) except -1:
        """Pass the written frames to their connection."""
        if self.frames.size:
            self.connection.send_bytes(self.frames.take())
        self.connection = None
        return 0

    cdef int finish(self) except -1:
        self.keep_windows()
        self.send()
        return 0

    cdef bytes found_records(self, int64_t size):
        """The found records, which have this size, one after the other."""
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        cdef char* at = PyBytes_AS_STRING(data)
        cdef Py_ssize_t number
        for number in range(self.run_count):
            memcpy(at, self.runs[number].at, self.runs[number].size)
            at += self.runs[number].size
        return data

    cdef Form form_for(self, broker_id, bint has_messages):
        """The form of the response that suggests this broker."""
        cdef tuple forms = self.other_forms.get(broker_id)
        if forms is None:
            if len(self.other_forms) >= KEPT_FORMS:
                self.other_forms.clear()
            forms = self.other_forms[broker_id] = tuple(map(Form, self.make_forms(broker_id)))
        return <Form>forms[0 if has_messages else 1]

    cdef int64_t give(self, HotRequest request, object group, object topic, int64_t queue_id, int64_t offset,
                      const Limits* limits, object codes, object suggest, int64_t* commit_offset) except -2:
        """Answer from the queue, and commit unless ``commit_offset`` is NULL. Returns the size of the body, or -1 if
        nothing was done."""
        cdef object queue = self.find_queue(topic, queue_id)
        cdef bytes entries
        cdef int64_t low, high, total, count = max(limits.messages, limits.disk_messages)
        cdef Py_ssize_t scanned = 0, number, messages
        cdef const uint8_t* entry = NULL
        cdef uint8_t* at
        cdef bytes data = None
        cdef Form form
        cdef Owner owner
        if queue is None:
            return -1
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return -1
        if request.connection is not self.connection:
            self.send()
            if request.connection.is_congested():
                return -1
            self.connection = request.connection
        self.take_codes(codes)
        if self.code_count:
            count = max(count, self.scan_entries)
        entries = self.entries_of(queue, offset, count, &entry)
        if entries is None:
            return -1
        count = min(count, (PyBytes_GET_SIZE(entries) - (entry - <const uint8_t*>PyBytes_AS_STRING(entries))) // 20)
        if count < 1:
            return -1
        owner.topic = PyUnicode_AsUTF8AndSize(topic, &owner.topic_size)
        if owner.topic_size >= 5 and memcmp(owner.topic, b"%LMQ%", 5) == 0:  # LIGHT_TOPIC
            owner.topic = NULL
        owner.queue_id, owner.first = queue_id, offset
        total = self.collect(entry, count, limits, &owner, &scanned)
        if total < 0:
            return -1
        messages = self.found_count
        if messages and self.deliver is not None:
            given = self.deliver(self.found_records(total), messages, request.connection, group)
            if given is None:
                return -1
            data, messages = given
            total = PyBytes_GET_SIZE(data)
            if request.connection is not self.connection:  # a plugin has resumed other pulls
                self.send()
                self.connection = request.connection
        if commit_offset != NULL:
            self.commit(group, topic, queue_id, commit_offset[0])
        if self.pulled is not None:
            self.pulled(group, topic, queue_id, messages, total, offset + scanned)
        form = self.found if messages else self.unmatched
        if suggest is not None:
            form = self.form_for(suggest(<int64_t>get64(entry + 20 * (scanned - 1))), messages)
        at = self.frames.reserve(form.most + total)
        request.answered = True
        at = form.write(at, request, offset + scanned, low, high, total)
        if data is None:
            for number in range(self.run_count):
                memcpy(at, self.runs[number].at, self.runs[number].size)
                at += self.runs[number].size
        else:
            memcpy(at, PyBytes_AS_STRING(data), total)
            at += total
        self.frames.size = at - <uint8_t*>PyBytes_AS_STRING(<object>self.frames.data)
        if self.frames.size >= SEND_BYTES:
            self.send()
        return total

    cdef int64_t pull(self, PullRequest pull, dict known) except -2:
        """Answer a new pull. Returns the size of the body, or -1 if nothing was done."""
        cdef int64_t which = pull.numbers[3] & WHICH_FILTER, queue_id = pull.numbers[0]
        cdef object key = (
            pull.group, pull.topic, pull.subscription, pull.expression_type, 0 if which else pull.numbers[6], which
        )
        cdef object policy = known.get(key, known)
        cdef Limits limits
        if policy is known:
            policy = known[key] = self.policy(*key)
        if policy is None or pull.answered or pull.flag & ONEWAY:
            return -1
        queues, codes, suggest = policy
        if not 0 <= queue_id < queues:
            return -1
        limits = self.limits_of(pull.numbers[2], pull.numbers[MAX_BYTES])
        return self.give(
            pull, pull.group, pull.topic, queue_id, pull.numbers[1], &limits, codes, suggest,
            &pull.numbers[4] if pull.numbers[3] & COMMIT_OFFSET else NULL,
        )

    def answer(self, list requests, Py_ssize_t first, int64_t budget, fallback):
        """See :meth:`gantrymq.plugins.consume.plain.PullResponses.answer`."""
        cdef dict known = {}
        cdef int64_t given
        self.oldest = self.reader.min_offset
        self.take_limits()
        try:
            while first < len(requests) and budget > 0:
                request = requests[first]
                first += 1
                given = self.pull(<PullRequest>request, known) if type(request) is PullRequest else -1
                if given < 0:
                    # The fallback may change the state on which the cached policies depend.
                    self.finish()
                    known.clear()
                    given = fallback(request)
                    self.take_limits()
                budget -= given
        finally:
            self.finish()
        return first

    def resume(self, pull, codes, suggest):
        """See :meth:`gantrymq.plugins.consume.plain.PullResponses.resume`."""
        cdef HotRequest request
        cdef Limits limits
        if not isinstance(pull.request, HotRequest):
            return -1
        request = pull.request
        if request.answered or request.flag & ONEWAY:
            return -1
        self.oldest = self.reader.min_offset
        self.take_limits()
        limits = self.limits_of(pull.limit, pull.max_bytes)
        try:
            return self.give(request, pull.group, pull.topic, pull.queue_id, pull.offset, &limits, codes, suggest, NULL)
        finally:
            self.finish()
