# Numbers for the distinct queues of a batch, so that work for all rows of a queue is done once. A part of
# _requests.pyx.


cdef class Groups:
    """Numbers for topics, and for pairs of such a number and a queue id."""

    def __cinit__(self):
        self.numbers = {}
        self.names = []

    def __dealloc__(self):
        PyMem_Free(self.groups)
        PyMem_Free(self.slots)

    cdef int32_t topic(self, object name) except -1:
        """The number of a topic, which is added if it is new."""
        cdef PyObject* found
        if name is self.last_name:
            return self.last_number
        found = PyDict_GetItem(self.numbers, name)
        if found == NULL:
            self.last_number = len(self.names)
            self.names.append(name)
            self.numbers[name] = self.last_number
        else:
            self.last_number = <object>found
        self.last_name = name
        return self.last_number

    cdef int32_t find(self, int32_t topic, int32_t queue_id) except -1:
        """The number of a queue, which is added if it is new."""
        cdef uint32_t slot
        cdef int32_t number
        cdef Group* group
        if 2 * self.count >= <int32_t>self.mask:
            self.grow()
        slot = (<uint32_t>topic * 2654435761u ^ <uint32_t>queue_id * 2246822519u) >> 7 & self.mask
        while self.slots[slot] >= 0:
            number = self.slots[slot]
            if self.groups[number].topic == topic and self.groups[number].queue_id == queue_id:
                return number
            slot = (slot + 1) & self.mask
        number = self.count
        self.slots[slot] = number
        group = &self.groups[number]
        group.topic = topic
        group.queue_id = queue_id
        group.head = group.tail = -1
        group.count = 0
        group.loaded = False
        group.next_offset = 0
        self.count += 1
        return number

    cdef int grow(self) except -1:
        """Double the capacity; at first, make room for 8 queues."""
        cdef uint32_t size = 32 if self.mask == 0 else 2 * (self.mask + 1), slot
        cdef int32_t number
        cdef void* moved = PyMem_Realloc(self.groups, size // 2 * sizeof(Group))
        if moved == NULL:
            raise MemoryError
        self.groups = <Group*>moved
        moved = PyMem_Realloc(self.slots, size * sizeof(int32_t))
        if moved == NULL:
            raise MemoryError
        self.slots = <int32_t*>moved
        self.mask = size - 1
        memset(self.slots, 0xFF, size * sizeof(int32_t))
        for number in range(self.count):
            slot = (
                <uint32_t>self.groups[number].topic * 2654435761u
                ^ <uint32_t>self.groups[number].queue_id * 2246822519u
            ) >> 7 & self.mask
            while self.slots[slot] >= 0:
                slot = (slot + 1) & self.mask
            self.slots[slot] = number
        return 0

    cdef tuple key(self, int32_t number):
        """Topic and queue id of a queue."""
        return self.names[self.groups[number].topic], self.groups[number].queue_id
