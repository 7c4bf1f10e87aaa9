# Checksums, and the records of a segment with what can be wrong with them.
# Included by _wal.pyx, which has the imports; `wal.py` is the readable twin.

# -- checksums: CRC-32, sixteen bytes at a time ------------------------------------------------

cdef uint32_t POLYNOMIAL = <uint32_t>0xEDB88320
cdef uint32_t CRC[16][256]


cdef void _fill_crc() noexcept nogil:
    cdef uint32_t one
    cdef int at, bit, table
    for at in range(256):
        one = <uint32_t>at
        for bit in range(8):
            one = (one >> 1) ^ (POLYNOMIAL * (one & 1))
        CRC[0][at] = one
    for table in range(1, 16):
        for at in range(256):
            one = CRC[table - 1][at]
            CRC[table][at] = (one >> 8) ^ CRC[0][one & 255]


_fill_crc()


cdef uint32_t _crc(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t found = 0xFFFFFFFF
    cdef uint32_t a, b, c, d
    while size >= 16:
        memcpy(&a, data, 4)
        memcpy(&b, data + 4, 4)
        memcpy(&c, data + 8, 4)
        memcpy(&d, data + 12, 4)
        a ^= found
        found = (
            CRC[15][a & 255] ^ CRC[14][(a >> 8) & 255] ^ CRC[13][(a >> 16) & 255] ^ CRC[12][a >> 24]
            ^ CRC[11][b & 255] ^ CRC[10][(b >> 8) & 255] ^ CRC[9][(b >> 16) & 255] ^ CRC[8][b >> 24]
            ^ CRC[7][c & 255] ^ CRC[6][(c >> 8) & 255] ^ CRC[5][(c >> 16) & 255] ^ CRC[4][c >> 24]
            ^ CRC[3][d & 255] ^ CRC[2][(d >> 8) & 255] ^ CRC[1][(d >> 16) & 255] ^ CRC[0][d >> 24]
        )
        data += 16
        size -= 16
    while size:
        found = (found >> 8) ^ CRC[0][(found ^ data[0]) & 255]
        data += 1
        size -= 1
    return found


# -- what is wrong -----------------------------------------------------------------------------

cdef enum:
    UNKNOWN_KIND = 1
    TORN = 2
    ELSEWHERE = 3
    NO_LENGTH = 4
    CHECKSUM = 5
    BEHIND_END = 6
    BYTES_LEFT = 7
    ENTRY_COUNT = 8
    BYTE_COUNT = 9
    VERSION_FORM = 10


cdef struct Fault:
    int code
    Py_ssize_t at  # of the record
    int64_t first  # what is shown of it
    int64_t second


cdef inline int _fault(Fault *made, int code, int64_t first, int64_t second) noexcept nogil:
    made.code = code
    made.first = first
    made.second = second
    return code


cdef object _error(str name, Fault *fault):
    cdef int code = fault.code
    at, first, second = fault.at, fault.first, fault.second
    if code == UNKNOWN_KIND:
        return make_unsupported(name, at, f"an unknown record of type {first}")
    if code == TORN:
        cause = "the file ends inside a record"
    elif code == ELSEWHERE:
        cause = f"a record of segment {first}, offset {second}"
    elif code == NO_LENGTH:
        cause = f"a record of {first} bytes"
    elif code == CHECKSUM:
        cause = "the checksum of a record is wrong"
    elif code == BYTES_LEFT:
        cause = "a record has bytes after its last entry"
    elif code == ENTRY_COUNT:
        cause = f"a record of {first} entries"
    elif code == BYTE_COUNT:
        cause = f"a key or value of {first} bytes"
    elif code == VERSION_FORM:
        cause = f"a version of form {first}"
    else:
        cause = ENDS
    return make_broken(name, at, cause)


# -- records -----------------------------------------------------------------------------------

cdef struct Found:
    Py_ssize_t offset
    Py_ssize_t length
    Py_ssize_t end
    int kind  # -1: none

cdef uint8_t DATA_MASK[256]  # and encrypted ones
cdef uint8_t SCAN_MASK[256]  # and those that begin trees
cdef uint8_t NO_MASK[256]
for _kind in (DATA_KIND, CDC_DATA_KIND, 53, 64, 71):
    DATA_MASK[_kind] = SCAN_MASK[_kind] = 1
SCAN_MASK[TREE_KIND] = 1


cdef int _find(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t checked, int64_t number,
    const uint8_t *mask, Found *found, Fault *fault,
) noexcept nogil:
    """Find the next record of a kind in the mask; return 0, or what is wrong, at found.end."""
    cdef int kind
    cdef int32_t length
    found.kind = -1
    while at < size:
        if data[at] == 0 or data[at] == SWITCH_KIND + 1:
            break
        found.end = fault.at = at
        kind = data[at] - 1
        if kind > KIND_MAX:
            return _fault(fault, UNKNOWN_KIND, kind, 0)
        if size - at < RECORD_BYTES_MIN:
            return _fault(fault, TORN, 0, 0)
        if _long(data + at + 1) != number or _int(data + at + 9) != at:
            return _fault(fault, ELSEWHERE, _long(data + at + 1), _int(data + at + 9))
        length = _int(data + at + 13)
        if length < RECORD_BYTES_MIN:
            return _fault(fault, NO_LENGTH, length, 0)
        if length > size - at:
            return _fault(fault, TORN, 0, 0)
        if at + length > checked:
            if <uint32_t>_int(data + at + length - 4) != _crc(data + at, length - 4):
                return _fault(fault, CHECKSUM, 0, 0)
        if mask[kind]:
            found.offset = at
            found.length = length
            found.kind = kind
            found.end = at + length
            return 0
        at += length
    found.end = at
    return 0


def checked_end(const uint8_t[::1] data, int64_t number, Py_ssize_t begin):
    """See wal.checked_end()."""
    cdef Found found
    cdef Fault fault
    if begin >= data.shape[0]:
        return begin
    with nogil:
        _find(&data[0], data.shape[0], begin, 0, number, NO_MASK, &found, &fault)
    return found.end


def find_record(
    const uint8_t[::1] data, Py_ssize_t at, int64_t number, kinds, str name, Py_ssize_t checked=0
):
    """See wal.find_record()."""
    from penstock.codec.ignite.wal import Record

    cdef uint8_t mask[256]
    cdef Found found
    cdef Fault fault
    cdef int kind
    for kind in range(256):
        mask[kind] = 0
    for kind in kinds:
        mask[kind & 255] = 1
    if at >= data.shape[0]:
        return None, at
    if _find(&data[0], data.shape[0], at, checked, number, mask, &found, &fault):
        raise _error(name, &fault)
    if found.kind < 0:
        return None, found.end
    return Record(found.offset, found.length, found.kind), found.end
