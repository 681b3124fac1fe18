# Rows of committed records in C, made from rows that were just encoded or from the log. A part of _requests.pyx.

cdef enum:
    LEAST = 91
    ENTRY = 20

    AT_OFFSETS = 0
    AT_SIZES, AT_TOPICS, AT_QUEUE_IDS, AT_QUEUE_OFFSETS, AT_TIMES, AT_SYS_FLAGS, AT_PREPARED, AT_PROPERTIES, AT_CODES
    AT_BEHIND


cdef class DispatchRows(Columns):
    """The compiled form of :class:`gantrymq.kernel.batch.DispatchBatch`; its columns are read-only."""

    offsets = Column(AT_OFFSETS)
    sizes = Column(AT_SIZES)
    topics = Column(AT_TOPICS)
    queue_ids = Column(AT_QUEUE_IDS)
    queue_offsets = Column(AT_QUEUE_OFFSETS)
    store_timestamps = Column(AT_TIMES)
    sys_flags = Column(AT_SYS_FLAGS)
    prepared_offsets = Column(AT_PREPARED)
    properties = Column(AT_PROPERTIES)
    tag_codes = Column(AT_CODES)

    def __cinit__(self):
        self.made = [None] * AT_BEHIND
        self.kept = []
        self.groups = Groups()

    def __dealloc__(self):
        PyMem_Free(self.rows)

    def __len__(self):
        return self.count

    cdef list column(self, int number):
        cdef list made = self.made[number]
        cdef int32_t place
        if made is None:
            made = self.made[number] = [self.cell(number, &self.rows[place]) for place in range(self.count)]
        return made

    cdef object cell(self, int number, Stored* row):
        if number == AT_OFFSETS: return row.offset
        if number == AT_SIZES: return row.size
        if number == AT_TOPICS: return self.groups.names[self.groups.groups[row.group].topic]
        if number == AT_QUEUE_IDS: return row.queue_id
        if number == AT_QUEUE_OFFSETS: return row.queue_offset
        if number == AT_TIMES: return row.stored
        if number == AT_SYS_FLAGS: return row.sys_flag
        if number == AT_PREPARED: return row.prepared
        if number == AT_PROPERTIES:
            return PyBytes_FromStringAndSize(<const char*>row.properties, row.properties_size)
        return row.tag_code

    cdef Stored* new_row(self) except NULL:
        """Add an uninitialized row."""
        cdef void* moved
        if self.count == self.room:
            moved = PyMem_Realloc(self.rows, max(2 * self.room, 32) * sizeof(Stored))
            if moved == NULL:
                raise MemoryError
            self.rows = <Stored*>moved
            self.room = max(2 * self.room, 32)
        self.count += 1
        return &self.rows[self.count - 1]

    cdef int link(self, Stored* row) except -1:
        """Append a row whose fields are set to the rows of its queue, and set the tag code of its queue entry."""
        cdef Group* group = &self.groups.groups[row.group]
        cdef bint simple = True
        row.tag_code = simple_tag_code(row.properties, row.properties_size, &simple)
        if not simple:
            row.tag_code = plain_records.tag_code(self.cell(AT_PROPERTIES, row))
        row.next = -1
        if row.sys_flag & PREPARED:
            return 0
        if group.count:
            self.rows[group.tail].next = self.count - 1
        else:
            group.head = self.count - 1
        group.tail = self.count - 1
        group.count += 1
        return 0

    @property
    def newest_timestamp(self):
        """See :attr:`gantrymq.kernel.batch.DispatchBatch.newest_timestamp`."""
        cdef int32_t place
        cdef int64_t newest = 0
        for place in range(self.count):
            newest = max(newest, self.rows[place].stored)
        return newest

    @property
    def sys_flag_bits(self):
        """See :attr:`gantrymq.kernel.batch.DispatchBatch.sys_flag_bits`."""
        cdef int32_t place, bits = 0
        for place in range(self.count):
            bits |= self.rows[place].sys_flag
        return bits

    @property
    def queues(self):
        """See :attr:`gantrymq.kernel.batch.DispatchBatch.queues`."""
        cdef int32_t number
        return [self.groups.key(number) for number in range(self.groups.count)]

    def tag_codes_of(self, topic, queue_id):
        """See :meth:`gantrymq.kernel.batch.DispatchBatch.tag_codes_of`."""
        cdef set codes = set()
        cdef int32_t place, number
        cdef object wanted = (topic, queue_id)
        # A search among the existing queues, because ``find`` would add one.
        for number in range(self.groups.count):
            if self.groups.key(number) == wanted:
                break
        else:
            return codes
        for place in range(self.count):
            if self.rows[place].group == number:
                codes.add(self.rows[place].tag_code)
        return codes


cdef int64_t simple_tag_code(const uint8_t* text, Py_ssize_t size, bint* simple) noexcept nogil:
    """The tag code; sets ``simple`` to False for a tag that is not ASCII."""
    cdef const uint8_t* end = text + size
    cdef const uint8_t* at = text
    cdef uint32_t code = 0
    while end - at >= 5:
        if memcmp(at, b"TAGS\x01", 5) == 0:
            at += 5
            while at < end and at[0] != 2:
                if at[0] >= 0x80:
                    simple[0] = False
                    return 0
                code = code * 31 + at[0]
                at += 1
            return <int32_t>code
        at = <const uint8_t*>memchr(at, 2, end - at)
        if at == NULL:
            return 0
        at += 1
    return 0


def dispatch_batch(list batches):
    """See :func:`gantrymq.kernel.fast.plain.dispatch_batch`."""
    cdef DispatchRows rows
    for one in batches:
        if type(one) is not AppendRows:
            return plain_records.dispatch_batch(batches)
        some = <AppendRows>one
        if some.listed or not some.placed or some.some_made(OFFSETS, COLUMNS):
            return plain_records.dispatch_batch(batches)
    rows = DispatchRows.__new__(DispatchRows)
    rows.start, rows.end = (<AppendRows>batches[0]).start, (<AppendRows>batches[len(batches) - 1]).end
    for one in batches:
        add_appended(rows, <AppendRows>one)
    return rows


cdef int add_appended(DispatchRows rows, AppendRows some) except -1:
    """Add the rows of ``some`` that are encoded."""
    cdef Row* row
    cdef Stored* stored
    cdef int32_t place
    cdef int32_t* numbers = <int32_t*>PyMem_Malloc((some.groups.count + 1) * sizeof(int32_t))
    if numbers == NULL:
        raise MemoryError
    rows.kept.append(some.pieces)
    try:
        for place in range(some.groups.count):
            numbers[place] = -1
        for place in range(some.count):
            row = &some.rows[place]
            if row.record == NULL:
                continue
            if numbers[row.group] < 0:
                numbers[row.group] = rows.groups.find(
                    rows.groups.topic(some.groups.names[some.groups.groups[row.group].topic]), row.queue_id
                )
            stored = rows.new_row()
            stored.properties_size = row.own_size + row.common_size
            stored.properties = row.record + row.size - stored.properties_size
            stored.offset = row.offset
            stored.queue_offset = row.queue_offset
            stored.stored = some.store_timestamp
            stored.prepared = row.prepared
            stored.size = row.size
            stored.queue_id = row.queue_id
            stored.sys_flag = row.sys_flag
            stored.group = numbers[row.group]
            rows.link(stored)
    finally:
        PyMem_Free(numbers)
    return 0


def queue_entries(batch, dict rules):
    """See :func:`gantrymq.kernel.fast.plain.queue_entries`."""
    cdef DispatchRows rows
    cdef Group* group
    cdef Stored* row
    cdef int32_t number, place
    cdef uint8_t* at
    cdef bytes entries
    cdef list queue_offsets, all_entries = []
    cdef int64_t expected
    if type(batch) is not DispatchRows:
        return plain_records.queue_entries(batch, rules)
    rows = <DispatchRows>batch
    for number in range(rows.groups.count):
        group = &rows.groups.groups[number]
        if not group.count:
            continue
        topic, queue_id = rows.groups.key(number)
        if rules and topic in rules:
            give_tag_codes(rows, number, rules[topic])
        entries = PyBytes_FromStringAndSize(NULL, group.count * ENTRY)
        at = <uint8_t*>PyBytes_AS_STRING(entries)
        expected = rows.rows[group.head].queue_offset
        queue_offsets = None
        place = group.head
        while place >= 0:
            row = &rows.rows[place]
            if row.queue_offset != expected:
                queue_offsets = []
                expected = row.queue_offset
            put64(at, <uint64_t>row.offset)
            put32(at + 8, <uint32_t>row.size)
            put64(at + 12, <uint64_t>row.tag_code)
            at += ENTRY
            place = row.next
            if expected < INT64_MAX:
                expected += 1
            elif place >= 0:
                queue_offsets = []  # no offset follows the greatest number
        if queue_offsets is not None:
            place = group.head
            while place >= 0:
                queue_offsets.append(rows.rows[place].queue_offset)
                place = rows.rows[place].next
        all_entries.append(QueueEntries(
            topic, queue_id, rows.rows[group.head].queue_offset, rows.rows[group.head].offset,
            rows.rows[group.tail].offset + rows.rows[group.tail].size, entries, queue_offsets,
        ))
    return all_entries


cdef int give_tag_codes(DispatchRows rows, int32_t number, rule) except -1:
    """Set the tag codes of a queue's entries by the rule of its topic."""
    cdef int32_t place = rows.groups.groups[number].head
    cdef Stored* row
    rows.made[AT_CODES] = None
    while place >= 0:
        row = &rows.rows[place]
        row.tag_code = rule(row.queue_id, rows.cell(AT_PROPERTIES, row), row.stored)
        place = row.next
    return 0


def scan(data, int64_t start, int64_t limit, *, bint check_body, replay=False, bint copied=False):
    """See :func:`gantrymq.kernel.fast.plain.scan`."""
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t length = len(data), position = 0, size, head, body_size, body_end, topic_start, topic_end
    cdef const uint8_t* base = &view[0] if length else NULL
    cdef const uint8_t* at = NULL
    cdef const uint8_t* last_topic = NULL
    cdef Py_ssize_t last_topic_size = -1
    cdef uint32_t magic, bits = 0
    cdef bint longer, whole
    cdef object topic = None
    cdef Stored* row
    cdef DispatchRows rows = DispatchRows.__new__(DispatchRows)
    rows.replay = replay
    rows.kept.append(data)
    stop = Stop.ROWS
    memory = memoryview(data)
    while limit > 0:
        whole = False
        if length - position >= LEAST:
            at = base + position
            size = <int32_t>get32(at)
            magic = get32(at + 4)
            bits = get32(at + 36)
            head = HEAD + (12 if bits & BORN_HOST_V6 else 0) + (12 if bits & STORE_V6 else 0)
            longer = magic == MAGIC_2
            if (
                (magic == MAGIC_1 or longer) and <int64_t>get64(at + 28) == start + position
                and head + 3 <= size <= length - position
            ):
                body_size = <int32_t>get32(at + head - 4)
                body_end = head + body_size
                if body_size >= 0 and body_end + 3 <= size:
                    topic_start = body_end + (2 if longer else 1)
                    topic_end = topic_start + (get16(at + body_end) if longer else at[body_end])
                    whole = topic_end + 2 <= size and topic_end + 2 + get16(at + topic_end) == size
        if whole and check_body and body_size:
            whole = crc32(at + head, body_size) & 0x7FFFFFFF == get32(at + 8)
        if whole and (
            topic_end - topic_start != last_topic_size or memcmp(at + topic_start, last_topic, last_topic_size) != 0
        ):
            topic = known_topic(PyBytes_FromStringAndSize(<const char*>at + topic_start, topic_end - topic_start))
            whole = topic is not None
            last_topic = at + topic_start
            last_topic_size = topic_end - topic_start if whole else -1
        if not whole:
            # The plain twin classifies these bytes; if they are a record, its row is added.
            one, stop = plain_records.scan(memory[position:], start + position, 1, check_body=check_body)
            if not len(one):
                break
            add_scanned(rows, one)
            position = one.end - start
            last_topic_size = -1
            limit -= 1
            continue
        row = rows.new_row()
        row.offset = start + position
        row.size = <int32_t>size
        row.queue_id = <int32_t>get32(at + 12)
        row.queue_offset = <int64_t>get64(at + 20)
        row.stored = <int64_t>get64(at + (68 if bits & BORN_HOST_V6 else 56))
        row.sys_flag = <int32_t>bits
        row.prepared = <int64_t>get64(at + head - 12)
        row.properties = at + topic_end + 2
        row.properties_size = <int32_t>(size - topic_end - 2)
        row.group = rows.groups.find(rows.groups.topic(topic), row.queue_id)
        rows.link(row)
        position += size
        limit -= 1
    rows.start = start
    rows.end = start + position
    if copied:
        copy_properties(rows)
    return rows, stop


cdef int copy_properties(DispatchRows rows) except -1:
    """Copy the properties to which the rows point into one block that the batch owns."""
    cdef Py_ssize_t total = 0
    cdef int32_t place
    cdef bytes own
    cdef uint8_t* at
    for place in range(rows.count):
        total += rows.rows[place].properties_size
    own = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t*>PyBytes_AS_STRING(own)
    for place in range(rows.count):
        memcpy(at, rows.rows[place].properties, rows.rows[place].properties_size)
        rows.rows[place].properties = at
        at += rows.rows[place].properties_size
    rows.kept = [own]
    return 0


cdef object known_topic(bytes raw):
    """The topic with this encoded name, or None if the name is not valid."""
    found = _topics.get(raw)
    return found if found is not None else plain_records._topic(raw)


cdef int add_scanned(DispatchRows rows, one) except -1:
    """Add the first row of ``one``, a batch of the plain twin."""
    cdef bytes properties = one.properties[0]
    cdef Stored* row
    cdef int32_t group = rows.groups.find(rows.groups.topic(one.topics[0]), one.queue_ids[0])
    rows.kept.append(properties)
    row = rows.new_row()
    row.offset, row.size, row.queue_id = one.offsets[0], one.sizes[0], one.queue_ids[0]
    row.queue_offset, row.stored = one.queue_offsets[0], one.store_timestamps[0]
    row.sys_flag, row.prepared = one.sys_flags[0], one.prepared_offsets[0]
    row.properties = <const uint8_t*>PyBytes_AS_STRING(properties)
    row.properties_size = <int32_t>PyBytes_GET_SIZE(properties)
    row.group = group
    return rows.link(row)
