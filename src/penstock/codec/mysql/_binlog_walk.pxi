# From packets or file bytes to single events; included by _binlog.pyx. `binlog_walk.py` is the
# readable form.

cdef class _Scope:
    """Bindings of table ids, and events at the side."""

    cdef IdMap ids
    cdef dict bindings
    cdef list sides  # (bytes, where to go on, sealed, payload), the innermost last and taken out below
    cdef bint has_side
    cdef bytes side
    cdef object payload  # has more of the side's events, or None
    cdef const uint8_t* side_data
    cdef int64_t side_size, side_at
    cdef bint side_sealed

    def __cinit__(self):
        self.bindings = {}
        self.sides = []
        if not ids_clear(&self.ids):
            raise MemoryError

    def __dealloc__(self):
        free(self.ids.places)

    cdef int push(self, bytes data, bint sealed, payload=None) except RAISED:
        if self.has_side:
            self.sides.append((self.side, self.side_at, self.side_sealed, self.payload))
        self.set_side(data, 0, sealed, payload)
        return 0

    cdef int set_side(self, bytes data, int64_t at, bint sealed, payload) except RAISED:
        self.side = data
        self.payload = payload
        self.side_data = data
        self.side_size = len(data)
        self.side_at = at
        self.side_sealed = sealed
        self.has_side = True
        return 0

    cdef int pop(self) except RAISED:
        if self.sides:
            data, at, sealed, payload = self.sides.pop()
            self.set_side(data, at, sealed, payload)
        else:
            self.has_side = False
            self.side = None
            self.payload = None
        return 0

    cdef int refill(self) except RAISED with gil:
        """Continue with the rest of the payload; return GO_ON if it had more."""
        if self.payload is None or self.payload.is_used_up:
            return NOT_WHOLE
        data = self.payload.more(self.side[self.side_at:])
        return self.set_side(data, 0, self.side_sealed, self.payload)


cdef class _Walker:
    """Parser of packets, file bytes and events at the side; it keeps the place in the log."""

    cdef readonly object file_name
    cdef readonly int64_t file_number
    cdef readonly int64_t offset
    cdef const uint8_t* _message_data
    cdef int64_t _message_size
    cdef int _checksums  # -1: no format description yet
    cdef int64_t _row_at, _offset_before
    cdef bint _closing
    cdef _Scope _scope
    cdef list _joining
    cdef Trouble _trouble  # for the error that is made once the GIL is back

    cdef int _dispatch(
        self, const uint8_t* block, int64_t start, int64_t end, bint sealed
    ) except RAISED nogil:
        """Handle one event, block[start:end] without checksum."""
        return FAILED

    cdef int _close(self) except RAISED nogil:
        """End the transaction."""
        return FAILED

    cdef int _hand_out(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        self._message_data = block + start
        self._message_size = end - start
        return STOP_MESSAGE

    cdef int _walk(
        self, const uint8_t* block, int64_t start, int64_t end, int mode, int64_t* consumed
    ) except RAISED nogil:
        """Parse packet after packet; events at the side come before what follows in the block."""
        cdef int status
        while True:
            if self._closing:
                status = self._close()
            elif self._scope.has_side:
                status = self._side_event()
            elif mode == PACKETS:
                status = self._packet(block, end, consumed)
            else:
                status = self._block_event(block, end, mode, consumed)
            if status == NOT_WHOLE:
                return GO_ON
            if status != GO_ON:
                return status

    cdef int _packet(
        self, const uint8_t* block, int64_t end, int64_t* consumed
    ) except RAISED nogil:
        """Parse one packet; move `consumed` after it."""
        cdef int64_t at = consumed[0], length, behind
        cdef int status
        cdef uint8_t first
        if end - at < 4:
            return NOT_WHOLE
        length = <int64_t>little(block + at, 3)
        behind = at + 4 + length
        if behind > end:
            return NOT_WHOLE
        if self._joining is not None:
            status = self._join(block + at + 4, length, at)
            consumed[0] = behind
            return status
        first = block[at + 4] if length else 1
        if first == 0xFF or (first == 0xFE and length < 9):
            self._message_data = block + at + 4
            self._message_size = length
            return STOP_OTHER_FRAME
        if first != 0:
            return fail(&self._trouble, BAD_PACKET, at)
        if length == 0xFFFFFF:
            with gil:
                self._joining = []
            status = self._join(block + at + 5, length - 1, at)
            consumed[0] = behind
            return status
        status = self._event(block, at + 5, behind, True)
        if status >= 0 and status != STOP_LIMIT and status != STOP_WIDEN:
            consumed[0] = behind
        return status

    cdef int _join(self, const uint8_t* piece, int64_t size, int64_t at) except RAISED with gil:
        """Append a piece of a long event to the others; the last one is shorter than the maximum.
        """
        is_last = size + (not self._joining) < 0xFFFFFF
        self._joining.append((<const char*>piece)[:size])
        if sum(map(len, self._joining)) > EVENT_LENGTH_MAX:
            return fail(&self._trouble, BAD_EVENT_LENGTH, at)
        if is_last:
            self._scope.push(b"".join(self._joining), True)
            self._joining = None
        return GO_ON

    cdef int _block_event(
        self, const uint8_t* block, int64_t end, int mode, int64_t* consumed
    ) except RAISED nogil:
        """Parse one event of a file or of parked ones; move `consumed` after it."""
        cdef int64_t at = consumed[0], behind = 0
        cdef int status
        if mode == FILE_BYTES and self.offset == 0:
            if end - at < 4:
                return NOT_WHOLE
            if memcmp(block + at, <const char*>b"\xfebin", 4):
                status = memcmp(block + at, <const char*>b"\xfdbin", 4)
                return fail(&self._trouble, BAD_MAGIC if status else BAD_ENCRYPTED, at)
            self.offset = 4
            consumed[0] = at + 4
            return GO_ON
        status = event_end(&self._trouble, block, at, end, &behind)
        if status != GO_ON:
            return status
        if mode == FILE_BYTES and block[at + 4] == START_ENCRYPTION:
            return fail(&self._trouble, BAD_ENCRYPTED, at)
        status = self._event(block, at, behind, mode == FILE_BYTES)
        if status >= 0 and status != STOP_LIMIT and status != STOP_WIDEN:
            consumed[0] = behind
        return status

    cdef int _side_event(self) except RAISED nogil:
        cdef int64_t at = self._scope.side_at, behind = 0
        cdef const uint8_t* data = self._scope.side_data
        cdef int status
        status = event_end(&self._trouble, data, at, self._scope.side_size, &behind)
        if status == NOT_WHOLE:
            status = self._scope.refill()
            if status != NOT_WHOLE:
                return status
            if at != self._scope.side_size:
                return fail(&self._trouble, BAD_EVENT_LENGTH, at)
            with gil:
                self._scope.pop()
            return GO_ON
        if status != GO_ON:
            return status
        self._scope.side_at = behind  # before more is put on top of it
        status = self._event(data, at, behind, self._scope.side_sealed)
        if status == STOP_LIMIT or status == STOP_WIDEN:
            self._scope.side_at = at
        return status

    cdef int _event(
        self, const uint8_t* block, int64_t start, int64_t end, bint sealed
    ) except RAISED nogil:
        """Handle one event. sealed: it comes from the server, with a checksum, and moves the
        position.
        """
        cdef int64_t body_end = end
        cdef int status
        self._offset_before = self.offset
        if end - start < HEAD or <int64_t>little(block + start + 9, 4) != end - start:
            return fail(&self._trouble, BAD_EVENT_LENGTH, start)
        if sealed:
            status = self._unseal(block, start, end, &body_end)
            if status == GO_ON:
                status = self._move(block, start, end)
            if status != GO_ON:
                return status
        status = self._dispatch(block, start, body_end, sealed)
        if status < 0 or status == STOP_LIMIT or status == STOP_WIDEN:
            self.offset = self._offset_before
        return status

    cdef int _unseal(
        self, const uint8_t* block, int64_t start, int64_t end, int64_t* body_end
    ) noexcept nogil:
        """Check the checksum, if the event has one, and remove it."""
        cdef uint8_t kind = block[start + 4]
        cdef int checksums = self._checksums
        if kind == FORMAT_DESCRIPTION:
            checksums = 1
        elif kind == ROTATE and block[start + 17] & ARTIFICIAL:
            checksums = end - start >= HEAD + 8 + SEAL and sum_is_right(block, start, end)
        if checksums < 0:
            return fail(&self._trouble, BAD_NO_FORMAT, start)
        if checksums == 0:
            return GO_ON
        if end - start < HEAD + SEAL:
            return fail(&self._trouble, BAD_EVENT_LENGTH, start)
        if self._row_at == 0 and not sum_is_right(block, start, end):
            return fail(&self._trouble, BAD_CHECKSUM, start)
        body_end[0] = end - SEAL
        return GO_ON

    cdef int _move(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        """Go to where the event ends in its file: its head has only the lower 32 bits of that."""
        cdef uint8_t kind = block[start + 4]
        cdef uint32_t stated = <uint32_t>little(block + start + 13, 4)
        cdef int64_t expected = self.offset + end - start, gap
        if block[start + 17] & ARTIFICIAL or kind == HEARTBEAT or kind == HEARTBEAT_V2:
            return GO_ON
        if stated == 0 and (kind == FORMAT_DESCRIPTION or <uint32_t>expected != 0):
            return GO_ON
        gap = <uint32_t>(stated - <uint32_t>expected)
        expected += gap
        if gap > GAP_MAX or expected >> OFFSET_BITS:
            return fail(&self._trouble, BAD_PLACE, start)
        self.offset = expected
        return GO_ON


cdef int event_end(
    Trouble* trouble, const uint8_t* block, int64_t at, int64_t end, int64_t* behind
) noexcept nogil:
    """Find where a bare event ends."""
    cdef int64_t length
    if end - at < HEAD:
        return NOT_WHOLE
    length = <int64_t>little(block + at + 9, 4)
    if length < HEAD or length > EVENT_LENGTH_MAX:
        return fail(trouble, BAD_EVENT_LENGTH, at)
    if length > end - at:
        return NOT_WHOLE
    behind[0] = at + length
    return GO_ON


cdef bint sum_is_right(const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
    """Return whether an event's checksum is right. A file that is still open counts as closed."""
    cdef const uint8_t* event = block + start
    cdef int64_t size = end - start - SEAL
    cdef uint32_t crc
    cdef uint8_t flags
    if event[4] != FORMAT_DESCRIPTION:
        crc = crc32(0, event, size)
    else:
        flags = event[17] & 0xFE
        crc = crc32(crc32(crc32(0, event, 17), &flags, 1), event + 18, size - 18)
    return crc == <uint32_t>little(event + size, 4)
