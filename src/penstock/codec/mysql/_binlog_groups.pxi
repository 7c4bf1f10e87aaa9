# Begin and end of transactions, and their ids; included by _binlog.pyx.

cdef struct Gtid:
    # kind 0: none; 1: MySQL's; 2: MariaDB's, which has no uuid and no tag.
    int kind
    int tag_length
    uint8_t server[16]
    uint8_t tag[32]
    uint32_t domain
    uint32_t server_id
    uint64_t first
    uint64_t last


cdef object gtid_text(Gtid* gtid):
    """Return a GTID as the servers print it; a run has its first and last number."""
    if gtid.kind == 0:
        return ""
    if gtid.kind == 2:
        return f"{gtid.domain}-{gtid.server_id}-{gtid.last}"
    number = str(gtid.first) if gtid.first == gtid.last else f"{gtid.first}-{gtid.last}"
    server = uuid.UUID(bytes=gtid.server[:16])
    if gtid.tag_length:
        return f"{server}:{gtid.tag[:gtid.tag_length].decode()}:{number}"
    return f"{server}:{number}"


cdef bint extends(Gtid* run, Gtid* one) noexcept nogil:
    """Return whether a transaction follows a run directly; MariaDB's last one implies all before
    it.
    """
    if run.kind != one.kind:
        return False
    if run.kind == 2:
        return run.domain == one.domain and run.server_id == one.server_id
    return (
        run.last + 1 == one.first
        and run.tag_length == one.tag_length
        and memcmp(run.server, one.server, 16) == 0
        and memcmp(run.tag, one.tag, one.tag_length) == 0
    )


cdef class _Groups(_Walker):
    """Decoder part that opens and closes transactions."""

    cdef readonly int64_t gsn
    cdef readonly int64_t trx
    cdef readonly int64_t row_count
    cdef readonly int64_t byte_count
    cdef readonly bint in_transaction
    cdef readonly uint64_t commit_position
    cdef readonly uint64_t end_position
    cdef readonly int64_t commit_time_us
    cdef readonly uint64_t xid
    cdef bint _counted, _begun, _single
    cdef int64_t _gsn_before, _bytes_before, _byte_limit, _commit_limit
    cdef int64_t _rows_open  # of the open transaction
    cdef _Scope _again
    cdef int64_t _park_limit  # 0: rows are decoded, not put aside
    cdef Ended _ended
    cdef Gtid _gtid
    cdef Gtid* _gtids
    cdef int64_t _gtid_count, _gtid_capacity

    def __dealloc__(self):
        free(self._gtids)
        ended_free(&self._ended)

    @property
    def gtid(self):
        return gtid_text(&self._gtid)

    cdef inline void _count(self) noexcept nogil:
        if not self._counted:
            self._counted = True
            self.trx += 1

    cdef int _tagged_event(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED with gil:
        cdef bytes text
        if self.in_transaction:
            return fail(&self._trouble, BAD_NESTED_BEGIN, start)
        try:
            said = binlog_events.gtid_tagged((<const char*>block)[start:end])
        except BinlogBroken:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        self._open(block, start, said.commit_time_us)
        self._gtid.kind = 1
        text = uuid.UUID(said.server).bytes
        memcpy(self._gtid.server, <const char*>text, 16)
        text = said.tag.encode()
        self._gtid.tag_length = <int>len(text)
        memcpy(self._gtid.tag, <const char*>text, len(text))
        self._gtid.first = said.number
        self._gtid.last = said.number
        return GO_ON

    cdef int _gtid_event(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        cdef const uint8_t* body = block + start + HEAD
        cdef int64_t size = end - start - HEAD, time_us = 0
        cdef uint64_t number
        if self.in_transaction:
            return fail(&self._trouble, BAD_NESTED_BEGIN, start)
        if size < 25:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        number = little(body + 17, 8)
        if block[start + 4] == GTID and (number < 1 or number > NUMBER_MAX):
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        if size >= 49 and body[25] == 2:
            time_us = <int64_t>(little(body + 42, 7) & <uint64_t>0x7FFFFFFFFFFFFF)
        self._open(block, start, time_us)
        if block[start + 4] == GTID:
            self._gtid.kind = 1
            memcpy(self._gtid.server, body + 1, 16)
            self._gtid.first = number
            self._gtid.last = number
        return GO_ON

    cdef int _maria_gtid(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        cdef const uint8_t* body = block + start + HEAD
        cdef int64_t size = end - start - HEAD, at = 13
        cdef uint8_t flags, extra = 0
        if self.in_transaction:
            return fail(&self._trouble, BAD_NESTED_BEGIN, start)
        if size < 13:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        flags = body[12]
        if flags & 2:
            at += 8
            if at > size:
                return fail(&self._trouble, BAD_EVENT_BODY, start)
        if flags & 0xC0:
            if at + 6 > size or at + 6 + body[at + 4] + body[at + 5] > size:
                return fail(&self._trouble, BAD_EVENT_BODY, start)
            at += 6 + body[at + 4] + body[at + 5]
        if at < size:
            extra = body[at]
        at += 1 + (extra & 1)
        if extra & 0x0C and at + 8 > size:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        self._open(block, start, 0)
        self._gtid.kind = 2
        self._gtid.domain = <uint32_t>little(body + 8, 4)
        self._gtid.server_id = <uint32_t>little(block + start + 5, 4)
        self._gtid.last = little(body, 8)
        self._begun = True
        self._single = flags & 1
        if flags & 0xE0 or extra & 0x0E:
            return self._hand_out(block, start, end)
        return GO_ON

    cdef void _open(self, const uint8_t* block, int64_t start, int64_t time_us) noexcept nogil:
        """Begin a transaction at the event at `start`."""
        cdef int64_t begins = self.offset - <int64_t>little(block + start + 9, 4)
        if begins < 0:
            begins = 0
        self.commit_position = <uint64_t>self.file_number << OFFSET_BITS | <uint64_t>begins
        self.commit_time_us = time_us
        if time_us == 0:
            self.commit_time_us = <int64_t>little(block + start, 4) * 1000000
        memset(&self._gtid, 0, sizeof(Gtid))
        self.xid = 0
        self.in_transaction = True
        self._begun = False
        self._single = False
        self._counted = False
        self._gsn_before = self.gsn
        self._bytes_before = self.byte_count
        self._rows_open = 0

    cdef int _query_event(
        self, const uint8_t* block, int64_t start, int64_t end
    ) except RAISED nogil:
        cdef const uint8_t* body = block + start + HEAD
        cdef const char* text
        cdef int64_t size = end - start - HEAD, at
        if size < 13:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        at = 13 + <int64_t>little(body + 11, 2) + body[8] + 1
        if at > size:
            return fail(&self._trouble, BAD_EVENT_BODY, start)
        text = <const char*>body + at
        size -= at
        if size == 5 and memcmp(text, <const char*>b"BEGIN", 5) == 0:
            if self.in_transaction and (self._begun or self._single):
                return fail(&self._trouble, BAD_NESTED_BEGIN, start)
            if not self.in_transaction:
                self._open(block, start, 0)
            self._begun = True
            return GO_ON
        if size == 6 and memcmp(text, <const char*>b"COMMIT", 6) == 0:
            if not self.in_transaction:
                return fail(&self._trouble, BAD_NO_TRANSACTION, start)
            return self._parked_end(block, start, end) if self._park_limit else self._close()
        if not self.in_transaction:
            self._open(block, start, 0)
        if not self._begun:
            # MySQL says BEGIN or XA START when more follows.
            self._begun = size >= 8 and memcmp(text, <const char*>b"XA START", 8) == 0
            self._single = not self._begun
        self._closing = (
            self._single
            or (size >= 9 and memcmp(text, <const char*>b"XA COMMIT", 9) == 0)
            or (size >= 11 and memcmp(text, <const char*>b"XA ROLLBACK", 11) == 0)
            or (size == 8 and memcmp(text, <const char*>b"ROLLBACK", 8) == 0)
        )
        return self._hand_out(block, start, end)

    cdef int _parked_end(self, const uint8_t* block, int64_t start, int64_t end) noexcept nogil:
        """Handle a commit while rows are put aside: they are replayed before the transaction ends.
        """
        self._closing = True
        return self._hand_out(block, start, end)

    cdef int _close(self) except RAISED nogil:
        """End the transaction; return COMMIT if there is enough to take."""
        self.end_position = <uint64_t>self.file_number << OFFSET_BITS | <uint64_t>self.offset
        self.in_transaction = False
        self._closing = False
        if self._gtid.kind and not self._note_gtid():
            return OUT_OF_MEMORY
        if self._counted and not ended_add(
            &self._ended, self.commit_position, self.end_position, self.commit_time_us, self.xid
        ):
            return OUT_OF_MEMORY
        if self._again.ids.used:
            self._forget_replayed()
        if self.row_count >= self._commit_limit or self.byte_count >= self._byte_limit:
            return STOP_COMMIT
        return GO_ON

    cdef int _forget_replayed(self) except RAISED with gil:
        self._again = _Scope()
        return 0

    cdef bint _note_gtid(self) noexcept nogil:
        """Keep the id of the transaction that ends; return False if memory is missing."""
        cdef Gtid* last
        cdef int64_t capacity
        if self._gtid_count:
            last = &self._gtids[self._gtid_count - 1]
            if extends(last, &self._gtid):
                last.last = self._gtid.last
                return True
        if self._gtid_count == self._gtid_capacity:
            capacity = 2 * self._gtid_capacity + 16
            if not regrow(<void**>&self._gtids, capacity * sizeof(Gtid)):
                return False
            self._gtid_capacity = capacity
        self._gtids[self._gtid_count] = self._gtid
        self._gtid_count += 1
        return True
