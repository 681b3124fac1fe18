# The rows of an append batch as C fields; its columns become lists on access. A part of _requests.pyx.


cdef class Arena:
    """Bytes whose addresses stay valid as long as the arena exists."""

    cdef uint8_t* take(self, Py_ssize_t size) except NULL:
        """Room for ``size`` bytes; ``put_back`` returns the part that is not needed."""
        cdef bytes block
        if size > self.left:
            block = PyBytes_FromStringAndSize(NULL, max(size, 16384))
            if self.blocks is None:
                self.blocks = []
            self.blocks.append(block)
            self.at = <uint8_t*>PyBytes_AS_STRING(block)
            self.left = PyBytes_GET_SIZE(block)
        cdef uint8_t* result = self.at
        self.at += size
        self.left -= size
        return result

    cdef void put_back(self, Py_ssize_t size) noexcept:
        self.at -= size
        self.left += size


cdef class Column:
    """An attribute of a batch that is a list, created on access."""

    cdef int number

    def __cinit__(self, int number):
        self.number = number

    def __get__(self, batch, owner):
        return self if batch is None else self.of(batch).column(self.number)

    def __set__(self, batch, value):
        self.of(batch).replace_column(self.number, value)

    cdef Columns of(self, batch):
        """``batch``, which must have this column; a batch of another kind has its own columns."""
        cdef Columns columns = <Columns?>batch
        if columns.made is None or not 0 <= self.number < len(columns.made):
            raise AttributeError(f"this batch has no column {self.number}")
        return columns


cdef class Columns:
    """Rows in C; each column becomes a list on access."""

    cdef list column(self, int number):
        raise NotImplementedError

    cdef int replace_column(self, int number, value) except -1:
        raise AttributeError("the column is read-only")


cdef class AppendRows(Columns):
    """The compiled form of :class:`gantrymq.kernel.batch.AppendBatch`.

    A column that was accessed is a list from then on, and the list counts: before the log encodes the batch, the values
    are read back into the fields. If a value does not fit into its field, all columns become lists, and the batch is
    treated as one that a plugin made (``listed``).
    """

    topics = Column(TOPICS)
    queue_ids = Column(QUEUE_IDS)
    bodies = Column(BODIES)
    properties = Column(PROPERTIES)
    flags = Column(FLAGS)
    sys_flags = Column(SYS_FLAGS)
    born_timestamps = Column(BORN_TIMESTAMPS)
    born_hosts = Column(BORN_HOSTS)
    reconsume_times = Column(RECONSUME_TIMES)
    prepared_offsets = Column(PREPARED_OFFSETS)
    waits = Column(WAITS)
    origins = Column(ORIGINS)
    statuses = Column(STATUSES)
    offsets = Column(OFFSETS)
    sizes = Column(SIZES)
    queue_offsets = Column(QUEUE_OFFSETS)

    def __cinit__(self, done=None, int traits=0, str source not None="plugin"):
        # Not __init__: a caller could omit it, or call it again and replace objects to which rows point.
        self.done = done
        self.traits = traits
        self.source = source
        self.remarks = {}
        self.settled = {}
        self.response_fields = {}
        self.attempts_max = {}
        self.own_queue_offsets = {}
        self.tied = {}
        self.made = [None] * COLUMNS
        self.origins_kept = []
        self.kept = []
        self.groups = Groups()
        self.arena = Arena()

    def __dealloc__(self):
        PyMem_Free(self.rows)
        PyMem_Free(self.senders)

    def __len__(self):
        return self.count if self.made[TOPICS] is None else len(<list>self.made[TOPICS])

    # ---------------------------------------------------------------------------------------------------- columns

    cdef list column(self, int number):
        cdef list made = self.made[number]
        if made is not None:
            return made
        if number >= OFFSETS and not self.placed:
            return []
        made = self.make_origins() if number == ORIGINS else [self.cell(number, row) for row in range(self.count)]
        self.made[number] = made
        return made

    cdef int replace_column(self, int number, value) except -1:
        if not isinstance(value, list):
            raise TypeError("a column is a list")
        self.made[number] = value
        if number >= OFFSETS and not self.placed:
            self.to_lists()
        return 0

    cdef object cell(self, int number, Py_ssize_t place):
        cdef Row* row = &self.rows[place]
        if number == TOPICS: return self.groups.names[self.groups.groups[row.group].topic]
        if number == QUEUE_IDS: return row.queue_id
        if number == BODIES: return PyBytes_FromStringAndSize(<const char*>row.body, row.body_size)
        if number == PROPERTIES: return two_texts(row.own, row.own_size, row.common, row.common_size)
        if number == FLAGS: return row.flag
        if number == SYS_FLAGS: return row.sys_flag
        if number == BORN_TIMESTAMPS: return row.born
        if number == BORN_HOSTS: return PyBytes_FromStringAndSize(<const char*>row.host, row.host_size)
        if number == RECONSUME_TIMES: return row.times
        if number == PREPARED_OFFSETS: return row.prepared
        if number == WAITS: return bool(row.wait)
        if number == STATUSES: return SUCCESS
        if number == OFFSETS: return row.offset
        if number == SIZES: return row.size
        return row.queue_offset

    cdef list make_origins(self):
        cdef int32_t number
        cdef Sender* sender
        cdef list origins = []
        for number in range(self.senders_count):
            sender = &self.senders[number]
            origin = self.origins_kept[number]
            if sender.kind == SEVERAL:
                origin = self.make_origin(origin, sender.first, sender.count, None)
            elif sender.kind == MOVABLE:
                origin = self.make_origin(origin, sender.first, sender.count, sender.queue_id)
            origins += [origin] * sender.count
        return origins

    cdef int to_lists(self) except -1:
        """Convert all columns to lists; the batch stays in this form."""
        cdef int number
        if not self.listed:
            for number in range(COLUMNS):
                if self.made[number] is None:
                    self.made[number] = self.column(number)
            self.listed = True
        return 0

    cdef bint some_made(self, int first, int behind):
        """Whether one of these columns is a list."""
        cdef int number
        for number in range(first, behind):
            if self.made[number] is not None:
                return True
        return False

    # ------------------------------------------------------------------------------------------------------- rows

    cdef Row* new_row(self) except NULL:
        """Add a row of the last sender; only its place is set."""
        cdef void* moved
        cdef Row* row
        if self.count == self.room:
            moved = PyMem_Realloc(self.rows, max(2 * self.room, 16) * sizeof(Row))
            if moved == NULL:
                raise MemoryError
            self.rows = <Row*>moved
            self.room = max(2 * self.room, 16)
        row = &self.rows[self.count]
        row.offset = row.queue_offset = -1
        row.size = 0
        row.record = NULL
        row.prepared = 0
        row.sender = self.senders_count - 1
        self.count += 1
        return row

    cdef int new_sender(self, origin, int32_t count, int kind) except -1:
        """Set the origin of the next ``count`` rows."""
        cdef void* moved
        if self.senders_count == self.senders_room:
            moved = PyMem_Realloc(self.senders, max(2 * self.senders_room, 16) * sizeof(Sender))
            if moved == NULL:
                raise MemoryError
            self.senders = <Sender*>moved
            self.senders_room = max(2 * self.senders_room, 16)
        self.senders[self.senders_count].first = self.count
        self.senders[self.senders_count].count = count
        self.senders[self.senders_count].kind = kind
        self.senders[self.senders_count].queue_id = 0
        self.senders_count += 1
        self.origins_kept.append(origin)
        return 0

    cdef int keep_block(self, Block block) except -1:
        """Keep the bytes to which rows point alive as long as the batch, also if the request is dropped."""
        if block is not self.last_block:
            self.kept.append(block)
            self.last_block = block
        return 0

    cdef bint takes_rows(self):
        """Whether rows may be added as fields: the log has not encoded the batch, and no column is a list."""
        return not (self.listed or self.placed or self.some_made(0, COLUMNS))

    cdef Row* begin_row(self, origin, int32_t group, bint wait) except NULL:
        """Add a row for this queue with its own sender; only the defaults, these and ``wait`` are set."""
        cdef Row* row
        self.new_sender(origin, 1, ITSELF)
        row = self.new_row()
        row.group = group
        row.queue_id = self.groups.groups[group].queue_id
        row.wait = wait
        self.waited = self.waited or wait
        return row

    def add(
        self, topic, queue_id, body, properties, *, flag=0, sys_flag=0, born_timestamp=0,
        born_host=b"\x7f\0\0\x01\0\0\0\0", reconsume_times=0, prepared_offset=0, wait=True, origin=None,
    ):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.add`."""
        cdef tuple cells = (
            topic, queue_id, body, properties, flag, sys_flag, born_timestamp, born_host, reconsume_times,
            prepared_offset, wait, origin,
        )
        cdef Row row
        cdef int32_t number
        if not self.listed and (self.some_made(0, COLUMNS) or self.placed):
            self.to_lists()
        if not self.listed:
            row.wait = bool(wait)
            row.offset = row.queue_offset = -1
            row.size = 0
            row.record = NULL
            row.sender = self.senders_count
            if self.read_cells(&row, cells):
                self.kept.append(cells)
                self.new_sender(origin, 1, ITSELF)
                self.new_row()[0] = row
                self.waited = self.waited or row.wait
                return
            self.to_lists()
        for number in range(ORIGINS + 1):
            (<list>self.made[number]).append(cells[number])
        (<list>self.made[STATUSES]).append(SUCCESS)

    def add_stored(
        self, record, topic, queue_id, *, properties=None, sys_flag=None, prepared_offset=0, wait=True, origin=None
    ):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.add_stored`."""
        cdef int64_t queue = 0, flags = 0, prepared = 0
        cdef Row* row
        if sys_flag is None:
            sys_flag = record.sys_flag
        if (
            type(record) is StoredRecord and properties is None and self.takes_rows() and type(topic) is str
            and as_int32(queue_id, &queue) and as_int32(sys_flag, &flags) and as_int64(prepared_offset, &prepared)
        ):
            row = self.begin_row(origin, self.groups.find(self.groups.topic(topic), <int32_t>queue), bool(wait))
            (<StoredRecord>record).fill(row)
            row.sys_flag = <int32_t>flags
            row.prepared = prepared
            self.kept.append(record)
            return
        self.add(
            topic, queue_id, record.body, record.properties if properties is None else properties, flag=record.flag,
            sys_flag=sys_flag, born_timestamp=record.born_timestamp, born_host=record.born_host,
            reconsume_times=record.reconsume_times, prepared_offset=prepared_offset, wait=wait, origin=origin,
        )

    cdef bint read_cells(self, Row* row, tuple cells) except -1:
        """Set the first ten columns of a row from objects; False if a value does not fit into its field."""
        cdef int number
        for number in range(WAITS):
            if not self.read_cell(row, number, cells[number]):
                return False
        row.group = self.groups.find(row.group, row.queue_id)
        return True

    cdef bint read_cell(self, Row* row, int number, cell) except -1:
        """Set one column of a row from an object, which must stay alive. Sets the group by the topic alone."""
        cdef int64_t value = 0
        if number == TOPICS:
            if type(cell) is not str:
                return False
            row.group = self.groups.topic(cell)
        elif number == BODIES:
            if type(cell) is not bytes or PyBytes_GET_SIZE(cell) > 0x7FFFFFFF:
                return False
            row.body = <const uint8_t*>PyBytes_AS_STRING(cell)
            row.body_size = <int32_t>PyBytes_GET_SIZE(cell)
        elif number == PROPERTIES:
            if type(cell) is not bytes or PyBytes_GET_SIZE(cell) > PROPERTIES_MAX:
                return False
            row.own = <const uint8_t*>PyBytes_AS_STRING(cell)
            row.own_size = <int32_t>PyBytes_GET_SIZE(cell)
            row.common_size = 0
            row.common = row.own
        elif number == BORN_HOSTS:
            if type(cell) is not bytes or PyBytes_GET_SIZE(cell) not in (8, 20):
                return False
            row.host = <const uint8_t*>PyBytes_AS_STRING(cell)
            row.host_size = <int32_t>PyBytes_GET_SIZE(cell)
        elif number == BORN_TIMESTAMPS or number == PREPARED_OFFSETS:
            if not as_int64(cell, &value):
                return False
            if number == PREPARED_OFFSETS:
                row.prepared = value
            else:
                row.born = value
        else:
            if not as_int32(cell, &value):
                return False
            if number == QUEUE_IDS:
                row.queue_id = <int32_t>value
            elif number == FLAGS:
                row.flag = <int32_t>value
            elif number == SYS_FLAGS:
                row.sys_flag = <int32_t>value
            else:
                row.times = <int32_t>value
        return True

    cdef bint freeze(self) except -1:
        """Read the columns that are lists back into the fields. False if the batch has (or now gets) lists only."""
        cdef int number
        cdef int32_t place
        cdef list column
        cdef Row* row
        if self.listed:
            return False
        if self.frozen or not self.some_made(0, COLUMNS):
            return True
        for number in range(COLUMNS):
            if self.made[number] is not None and len(<list>self.made[number]) != self.count:
                self.to_lists()
                return False
        for number in range(WAITS):
            column = self.made[number]
            if column is None:
                continue
            if number == BODIES or number == PROPERTIES or number == BORN_HOSTS:
                # The objects to which the rows point must stay alive, also if the list changes.
                self.kept.append(tuple(column))
            for place in range(self.count):
                row = &self.rows[place]
                # The group depends on the topic here, and on the queue id below.
                if number == TOPICS and self.made[TOPICS] is not None:
                    if type(column[place]) is not str:
                        self.to_lists()
                        return False
                elif not self.read_cell(row, number, column[place]):
                    self.to_lists()
                    return False
        if self.made[TOPICS] is not None or self.made[QUEUE_IDS] is not None:
            for place in range(self.count):
                row = &self.rows[place]
                number = self.groups.groups[row.group].topic
                if self.made[TOPICS] is not None:
                    number = self.groups.topic((<list>self.made[TOPICS])[place])
                row.group = self.groups.find(number, row.queue_id)
        self.frozen = True
        return True

    # ---------------------------------------------------------------------------------------------------- the batch

    def place(self, int64_t start, int64_t store_timestamp):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.place`."""
        cdef int32_t row
        cdef int number
        self.start = self.end = start
        self.store_timestamp = store_timestamp
        self.placed = True
        self.frozen = False
        self.pieces = []
        self.made[OFFSETS] = self.made[SIZES] = self.made[QUEUE_OFFSETS] = None
        for row in range(self.count):
            self.rows[row].offset = self.rows[row].queue_offset = -1
            self.rows[row].size = 0
            self.rows[row].record = NULL
        if self.listed:
            number = len(self)
            self.made[OFFSETS], self.made[SIZES], self.made[QUEUE_OFFSETS] = [-1] * number, [0] * number, [-1] * number

    def refuse(self, row, code, remark):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.refuse`."""
        if code in STORED:
            raise ValueError(f"a row cannot be refused with code {int(code)}, which says that the message is stored")
        if self.settled and row in self.settled:
            raise ValueError(f"row {row} is settled and cannot be refused; batch.live has the rows to look at")
        cdef list statuses = self.column(STATUSES)
        if statuses[row] == SUCCESS:
            statuses[row] = code
            self.remarks[row] = remark
            self.refused += 1
        if row in self.tied:
            self.refuse(self.tied[row], code, remark)

    def refuse_all(self, code, remark):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.refuse_all`."""
        refuse_every_row(self, code, remark)

    def settle(self, row, *, offset, queue_id, queue_offset):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.settle`."""
        settle_row(self, row, offset, queue_id, queue_offset)

    def settle_as(self, row, earlier):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.settle_as`."""
        settle_row_as(self, row, earlier)

    def tie_next_to(self, row):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.tie_next_to`."""
        self.tied[row] = len(self)

    cdef bint all_stored(self):
        """Whether the log has placed the rows, none is known to be refused, and each origin is the row's own
        request."""
        cdef int32_t number
        if self.listed or not self.placed or self.remarks or self.some_made(ORIGINS, OFFSETS):
            return False
        for number in range(self.senders_count):
            if self.senders[number].kind != ITSELF or self.senders[number].count != 1:
                return False
        return True

    @cython.boundscheck(True)
    @cython.wraparound(True)
    def queue_of(self, Py_ssize_t row):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.queue_of`."""
        if self.listed or not 0 <= row < self.count or self.some_made(TOPICS, QUEUE_IDS + 1):
            return self.column(TOPICS)[row], self.column(QUEUE_IDS)[row]
        return self.cell(TOPICS, row), self.rows[row].queue_id

    cdef bint find_in(self, Row* fields, bytes name, Part* value) noexcept:
        """Find the first property ``name`` of a row and set ``value``; False if there is none."""
        return find_value(fields.own, fields.own_size, name, value) or find_value(
            fields.common, fields.common_size, name, value
        )

    @cython.boundscheck(True)
    @cython.wraparound(True)
    def property_of(self, Py_ssize_t row, bytes name not None):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.property_of`."""
        cdef Part value
        if self.listed or not 0 <= row < self.count or self.made[PROPERTIES] is not None:
            return find_property(self.column(PROPERTIES)[row], name)
        if self.find_in(&self.rows[row], name, &value) and value.size:
            return PyBytes_FromStringAndSize(<const char*>value.at, value.size)
        return None

    @cython.boundscheck(True)
    @cython.wraparound(True)
    def sizes_of(self, Py_ssize_t row):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.sizes_of`."""
        cdef Row* fields
        if self.listed or not 0 <= row < self.count or self.some_made(BODIES, PROPERTIES + 1):
            return len(self.column(BODIES)[row]), len(self.column(PROPERTIES)[row])
        fields = &self.rows[row]
        return fields.body_size, fields.own_size + fields.common_size

    cdef bint may_divert(self):
        """Whether rows may be diverted as fields: the log has not encoded the batch, and no changed column is a
        list."""
        return not (
            self.listed or self.placed or self.some_made(TOPICS, QUEUE_IDS + 1)
            or self.made[PROPERTIES] is not None or self.made[SYS_FLAGS] is not None
        )

    @cython.boundscheck(True)
    @cython.wraparound(True)
    def divert(self, Py_ssize_t row, str topic not None, int32_t queue_id, dict changes not None, int32_t clear):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.divert`."""
        if not 0 <= row < self.count or not self.may_divert():
            self.column(PROPERTIES)[row] = replace_properties(self.column(PROPERTIES)[row], changes)
            self.column(TOPICS)[row] = topic
            self.column(QUEUE_IDS)[row] = queue_id
            self.column(SYS_FLAGS)[row] &= ~clear
            return
        self.divert_row(&self.rows[row], self.groups.find(self.groups.topic(topic), queue_id), changes)
        self.rows[row].sys_flag &= ~clear

    cdef int divert_row(self, Row* fields, int32_t group, dict changes) except -1:
        """Send a row to this queue with changed properties, as :meth:`divert` does."""
        cdef Py_ssize_t size = 0
        cdef uint8_t* replaced
        for name, value in changes.items():
            size += len(name) + 2 + (0 if value is None else len(value))
        size += fields.own_size + fields.common_size + 1
        if size > 0x7FFFFFFF:
            raise ValueError(f"properties of {size} bytes cannot be stored")
        replaced = self.arena.take(size)
        memcpy(replaced, fields.own, fields.own_size)
        memcpy(replaced + fields.own_size, fields.common, fields.common_size)
        fields.own_size = <int32_t>change_properties(replaced, fields.own_size + fields.common_size, changes)
        self.arena.put_back(size - fields.own_size)
        fields.own = fields.common = replaced
        fields.common_size = 0
        fields.group = group
        fields.queue_id = self.groups.groups[group].queue_id
        return 0

    @cython.boundscheck(True)
    @cython.wraparound(True)
    def place_of(self, Py_ssize_t row):
        """See :meth:`gantrymq.kernel.batch.AppendBatch.place_of`."""
        if self.some_made(OFFSETS, COLUMNS) or not 0 <= row < self.count:
            offsets, queue_offsets = self.column(OFFSETS), self.column(QUEUE_OFFSETS)
            return (offsets[row], queue_offsets[row]) if offsets else (-1, -1)
        return self.rows[row].offset, self.rows[row].queue_offset

    @property
    def waited_for(self):
        """See :attr:`gantrymq.kernel.batch.AppendBatch.waited_for`."""
        return any(self.made[WAITS]) if self.made[WAITS] is not None else bool(self.waited)

    @property
    def live(self):
        """See :attr:`gantrymq.kernel.batch.AppendBatch.live`."""
        if not self.refused:
            return range(len(self))
        return [row for row, status in enumerate(self.column(STATUSES)) if status == SUCCESS]


cdef bytes two_texts(const uint8_t* first, Py_ssize_t first_size, const uint8_t* second, Py_ssize_t second_size):
    cdef bytes result = PyBytes_FromStringAndSize(NULL, first_size + second_size)
    memcpy(PyBytes_AS_STRING(result), first, first_size)
    memcpy(PyBytes_AS_STRING(result) + first_size, second, second_size)
    return result


def new_batch(done, str source not None):
    """See :func:`gantrymq.kernel.fast.plain_requests.new_batch`."""
    return AppendRows(done, 0, source)
