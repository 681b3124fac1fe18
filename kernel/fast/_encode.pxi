# Encodes the rows of a batch as records. A part of _requests.pyx.

cdef enum:
    HEAD = 88
    BLANK = 8
    HOST_V6 = 0x30
    STORE_V6 = 0x20
    PREPARED = 4

cdef uint32_t MAGIC_1 = 0xDAA320A7
cdef uint32_t MAGIC_2 = 0xDAA320AB


cdef struct RecordForm:
    # Fields that all records of a batch have in common.
    const uint8_t* store_host
    int32_t store_host_size
    int32_t bits
    int64_t stored


cdef inline uint8_t* put_record(uint8_t* at, Row* row, Part* topic, RecordForm* form) noexcept nogil:
    """Write the record of ``row`` at ``at``; returns its end."""
    cdef int32_t own_size = row.own_size + row.common_size
    put32(at, <uint32_t>row.size)
    put32(at + 4, MAGIC_1)
    put32(at + 8, crc32(row.body, row.body_size) & 0x7FFFFFFF)
    put32(at + 12, <uint32_t>row.queue_id)
    put32(at + 16, <uint32_t>row.flag)
    put64(at + 20, <uint64_t>row.queue_offset)
    put64(at + 28, <uint64_t>row.offset)
    put32(at + 36, <uint32_t>row.sys_flag)
    put64(at + 40, <uint64_t>row.born)
    memcpy(at + 48, row.host, row.host_size)
    at += 48 + row.host_size
    put64(at, <uint64_t>form.stored)
    memcpy(at + 8, form.store_host, form.store_host_size)
    at += 8 + form.store_host_size
    put32(at, <uint32_t>row.times)
    put64(at + 4, <uint64_t>row.prepared)
    put32(at + 12, <uint32_t>row.body_size)
    memcpy(at + 16, row.body, row.body_size)
    at += 16 + row.body_size
    memcpy(at, topic.at, topic.size)
    at += topic.size
    put16(at, <uint16_t>own_size)
    memcpy(at + 2, row.own, row.own_size)
    memcpy(at + 2 + row.own_size, row.common, row.common_size)
    return at + 2 + own_size


cdef inline bint has_zero(Row* row) noexcept nogil:
    return memchr(row.own, 0, row.own_size) != NULL or memchr(row.common, 0, row.common_size) != NULL


def encode_rows(batch, rows, Py_ssize_t first, int64_t offset, int64_t room, dict next_offsets, layout):
    """See :func:`gantrymq.kernel.fast.plain.encode_rows`."""
    cdef AppendRows some
    cdef bytes store_host = layout[0], data
    cdef int64_t max_body = layout[1], max_record = layout[2], limit = offset + room - BLANK, end = offset, size
    cdef Py_ssize_t index, place, behind, count = len(rows)
    cdef list chosen = None
    cdef RecordForm form
    cdef Part* topics
    cdef Row* row
    cdef uint8_t* at
    if type(batch) is not AppendRows:
        return records.encode_rows(batch, rows, first, offset, room, next_offsets, layout)
    some = <AppendRows>batch
    if PyBytes_GET_SIZE(store_host) not in (8, 20) or not some.placed or not some.freeze():
        some.to_lists()
        return records.encode_rows(batch, rows, first, offset, room, next_offsets, layout)
    if type(rows) is not range or count != some.count:
        chosen = list(rows)
    form.store_host = <const uint8_t*>PyBytes_AS_STRING(store_host)
    form.store_host_size = <int32_t>PyBytes_GET_SIZE(store_host)
    form.bits = STORE_V6 if form.store_host_size == 20 else 0
    form.stored = some.store_timestamp
    topics = topic_parts_of(some)
    try:
        for index in range(first, count):
            place = index if chosen is None else <Py_ssize_t>chosen[index]
            if not 0 <= place < some.count:
                raise IndexError(f"the batch has no row {place}")
            row = &some.rows[place]
            size = row.own_size + row.common_size
            if (
                topics[some.groups.groups[row.group].topic].size == 0 or row.body_size > max_body
                or size > PROPERTIES_MAX or has_zero(row)
            ):
                break
            size += HEAD + row.host_size - 8 + form.store_host_size - 8 + 2 + row.body_size
            size += topics[some.groups.groups[row.group].topic].size
            if size > max_record:
                break
            if end + size > limit:
                behind = index
                index = -1
                break
            row.size = <int32_t>size
            end += size
        else:
            behind = count
            index = -1
        if index >= 0:
            # The plain twin refuses this row, so that both twins refuse alike, with the same text.
            some.to_lists()
            return records.encode_rows(batch, rows, first, offset, room, next_offsets, layout)
        if behind == first:
            return [], behind, offset
        data = PyBytes_FromStringAndSize(NULL, end - offset)
        at = <uint8_t*>PyBytes_AS_STRING(data)
        some.pieces.append(data)
        for index in range(first, behind):
            place = index if chosen is None else <Py_ssize_t>chosen[index]
            row = &some.rows[place]
            row.sys_flag = row.sys_flag & ~HOST_V6 | form.bits | (BORN_HOST_V6 if row.host_size == 20 else 0)
            if row.sys_flag & PREPARED:
                row.queue_offset = some.own_queue_offsets.get(place, 0)
            else:
                row.queue_offset = next_offset(some.groups, row.group, next_offsets)
            row.offset = offset
            row.record = at
            at = put_record(at, row, &topics[some.groups.groups[row.group].topic], &form)
            offset += row.size
    finally:
        PyMem_Free(topics)
    give_next_offsets(some.groups, next_offsets)
    if some.made[SYS_FLAGS] is not None:
        for index in range(first, behind):
            (<list>some.made[SYS_FLAGS])[index if chosen is None else chosen[index]] = (
                some.rows[index if chosen is None else <Py_ssize_t>chosen[index]].sys_flag
            )
    return [data], behind, offset


cdef Part* topic_parts_of(AppendRows some) except NULL:
    """Length byte and name of each topic of the batch, by number; size 0 for a topic that cannot be stored."""
    cdef Py_ssize_t number, count = len(some.groups.names)
    cdef Part* parts = <Part*>PyMem_Malloc((count + 1) * sizeof(Part))
    cdef bytes part
    if parts == NULL:
        raise MemoryError
    some.parts = []
    for number in range(count):
        topic = some.groups.names[number]
        part = _topic_parts.get(topic)
        if part is None:
            part = plain_records._topic_part(topic)
        some.parts.append(part)
        parts[number].at = <const uint8_t*>PyBytes_AS_STRING(part)
        parts[number].size = <int32_t>PyBytes_GET_SIZE(part)
    return parts


cdef inline int64_t next_offset(Groups groups, int32_t number, dict next_offsets) except? -1:
    """The queue offset of the next row of a queue."""
    cdef Group* group = &groups.groups[number]
    if not group.loaded:
        group.next_offset = next_offsets.get(groups.key(number), 0)
        group.loaded = True
    group.next_offset += 1
    return group.next_offset - 1


cdef int give_next_offsets(Groups groups, dict next_offsets) except -1:
    """Write the next queue offsets of the groups to ``next_offsets``."""
    cdef int32_t number
    for number in range(groups.count):
        if groups.groups[number].loaded:
            groups.groups[number].loaded = False
            next_offsets[groups.key(number)] = groups.groups[number].next_offset
    return 0
