# Entries of records, and all those of a segment at once, without the GIL.
# Included by _wal.pyx, which has the imports; `wal.py` is the readable twin.

# -- entries -----------------------------------------------------------------------------------

cdef struct Change:  # changes.CHANGE
    int64_t time_ms
    int64_t counter
    int64_t expire_time_ms
    int64_t near_order
    int64_t write_order
    uint32_t offset
    int32_t ordinal
    int32_t cache_id
    int32_t partition
    uint32_t key_at
    int32_t key_length
    uint32_t value_at
    int32_t value_length  # -1: none
    int32_t near_topology
    int32_t near_node
    int32_t write_topology
    int32_t write_node
    uint8_t operation
    uint8_t flags
    int8_t key_kind
    int8_t value_kind
    uint8_t near
    uint8_t write


cdef inline int _versions(
    const uint8_t *data, Py_ssize_t *cursor, Py_ssize_t limit, Py_ssize_t *second, Fault *fault
) noexcept nogil:
    """Pass over one version or two; return its form, or -1. second: where the second one is, or 0.
    """
    cdef int form
    second[0] = 0
    if limit - cursor[0] < 1:
        _fault(fault, BEHIND_END, 0, 0)
        return -1
    form = data[cursor[0]]
    cursor[0] += 1
    if form > 2:
        _fault(fault, VERSION_FORM, form, 0)
        return -1
    if limit - cursor[0] < VERSION_BYTES * form:
        _fault(fault, BEHIND_END, 0, 0)
        return -1
    if form == 2:
        second[0] = cursor[0] + VERSION_BYTES
    cursor[0] += VERSION_BYTES * form
    return form


cdef int _parse(
    const uint8_t *data, Py_ssize_t *cursor, Py_ssize_t limit, Change *made, Py_ssize_t *conflict,
    Fault *fault,
) noexcept nogil:
    """Read the entry at the cursor; return 0, or what is wrong. conflict: where that version is, or
    0.
    """
    cdef Py_ssize_t at = cursor[0], begin
    cdef int form
    if limit - at < 9:
        return _fault(fault, BEHIND_END, 0, 0)
    made.cache_id = _int(data + at)
    made.key_length = _int(data + at + 4)
    made.key_kind = <int8_t>data[at + 8]
    at += 9
    if made.key_length < 0:
        return _fault(fault, BYTE_COUNT, made.key_length, 0)
    if limit - at < made.key_length:
        return _fault(fault, BEHIND_END, 0, 0)
    made.key_at = <uint32_t>at
    at += made.key_length
    if limit - at < 4:
        return _fault(fault, BEHIND_END, 0, 0)
    made.value_length = _int(data + at)
    at += 4
    made.value_kind = 0
    made.value_at = 0
    if made.value_length != -1:
        if limit - at < 1:
            return _fault(fault, BEHIND_END, 0, 0)
        made.value_kind = <int8_t>data[at]
        at += 1
        if made.value_length < 0:
            return _fault(fault, BYTE_COUNT, made.value_length, 0)
        if limit - at < made.value_length:
            return _fault(fault, BEHIND_END, 0, 0)
        made.value_at = <uint32_t>at
        at += made.value_length
    if limit - at < 1:
        return _fault(fault, BEHIND_END, 0, 0)
    made.operation = data[at]
    at += 1
    begin = at + 1
    form = _versions(data, &at, limit, conflict, fault)
    if form < 0:
        return fault.code
    made.near = form > 0
    if form:
        made.near_topology, made.near_node = _int(data + begin), _int(data + begin + 4)
        made.near_order = _long(data + begin + 8)
    else:
        made.near_topology = made.near_node = 0
        made.near_order = 0
    begin = at + 1
    form = _versions(data, &at, limit, conflict, fault)
    if form < 0:
        return fault.code
    made.write = form > 0
    if form:
        made.write_topology, made.write_node = _int(data + begin), _int(data + begin + 4)
        made.write_order = _long(data + begin + 8)
    else:
        made.write_topology = made.write_node = 0
        made.write_order = 0
    if limit - at < 21:
        return _fault(fault, BEHIND_END, 0, 0)
    made.partition = _int(data + at)
    made.counter = _long(data + at + 4)
    made.expire_time_ms = _long(data + at + 12)
    made.flags = data[at + 20]
    cursor[0] = at + 21
    return 0


cdef int _enter(
    const uint8_t *data, Found *found, Py_ssize_t *cursor, Py_ssize_t *limit, int64_t *time_ms,
    int32_t *count, Fault *fault,
) noexcept nogil:
    """Go to the entries of a data record; return 0, or what is wrong."""
    cdef Py_ssize_t begin = found.offset + RECORD_BYTES_MIN - 4
    fault.at = found.offset
    limit[0] = found.offset + found.length - 4
    if limit[0] - begin < 12:
        return _fault(fault, BEHIND_END, 0, 0)
    count[0] = _int(data + begin)
    time_ms[0] = _long(data + begin + 4)
    cursor[0] = begin + 12
    if count[0] < 0:
        return _fault(fault, ENTRY_COUNT, count[0], 0)
    if not count[0] and cursor[0] != limit[0]:
        return _fault(fault, BYTES_LEFT, 0, 0)
    return 0


# -- a whole segment -----------------------------------------------------------------------------

cdef struct Scan:
    Change *rows
    Py_ssize_t room
    Py_ssize_t told
    int64_t count  # of entries
    Found *others  # trees and encrypted records
    Py_ssize_t others_room
    Py_ssize_t others_count
    bint has_resent
    int64_t time_ms
    Py_ssize_t last_end  # of the last record with changes; -1: none
    Py_ssize_t end
    bint is_full  # no memory


cdef int _scan(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t checked, int64_t number,
    Scan *scan, Fault *fault,
) noexcept nogil:
    """Scan the records; return 0, or what is wrong, or that memory is missing."""
    cdef Found found
    cdef Py_ssize_t cursor, limit, conflict
    cdef int32_t left
    cdef Change *made
    while at < size:
        if _find(data, size, at, checked, number, SCAN_MASK, &found, fault):
            return fault.code
        at = scan.end = found.end
        if found.kind < 0:
            return 0
        if found.kind != DATA_KIND and found.kind != CDC_DATA_KIND:
            if _keep(scan, &found):
                return -1
            continue
        scan.has_resent |= found.kind == CDC_DATA_KIND
        scan.last_end = found.end
        if _enter(data, &found, &cursor, &limit, &scan.time_ms, &left, fault):
            return fault.code
        while left:
            if scan.told == scan.room and _grow(scan):
                return -1
            made = scan.rows + scan.told
            if _parse(data, &cursor, limit, made, &conflict, fault):
                return fault.code
            left -= 1
            if not left and cursor != limit:
                return _fault(fault, BYTES_LEFT, 0, 0)
            made.time_ms = scan.time_ms
            made.offset = <uint32_t>found.offset
            made.ordinal = <int32_t>scan.count
            scan.count += 1
            if CREATE <= made.operation <= TRANSFORM and not made.flags & NOT_TOLD:
                scan.told += 1
    return 0


cdef int _grow(Scan *scan) noexcept nogil:
    cdef Py_ssize_t room = scan.room * 2 + 1024
    cdef Change *rows = <Change *>realloc(scan.rows, room * sizeof(Change))
    if rows == NULL:
        return -1
    scan.rows, scan.room = rows, room
    return 0


cdef int _keep(Scan *scan, Found *found) noexcept nogil:
    cdef Py_ssize_t room
    cdef Found *others
    if scan.others_count == scan.others_room:
        room = scan.others_room * 2 + 16
        others = <Found *>realloc(scan.others, room * sizeof(Found))
        if others == NULL:
            return -1
        scan.others, scan.others_room = others, room
    scan.others[scan.others_count] = found[0]
    scan.others_count += 1
    return 0


cdef enum:
    FIELD_COUNT_MAX = 32
    BLOCK_ROWS = 128  # what stays in the nearest cache

cdef struct Field:
    uint8_t *put
    Py_ssize_t at  # in a row
    Py_ssize_t size


cdef void _turn(const uint8_t *rows, Py_ssize_t count, Field *fields, int field_count) noexcept nogil:
    """Turn rows into one array per field, some rows at a time."""
    cdef Py_ssize_t end, row
    cdef Field *one
    cdef const uint8_t *data
    cdef int number
    cdef Py_ssize_t begin = 0
    while begin < count:
        end = min(begin + BLOCK_ROWS, count)
        for number in range(field_count):
            one = fields + number
            data = rows + one.at + begin * <Py_ssize_t>sizeof(Change)
            if one.size == 8:
                for row in range(begin, end):
                    memcpy(one.put + 8 * row, data, 8)
                    data += sizeof(Change)
            elif one.size == 4:
                for row in range(begin, end):
                    memcpy(one.put + 4 * row, data, 4)
                    data += sizeof(Change)
            else:
                for row in range(begin, end):
                    one.put[row] = data[0]
                    data += sizeof(Change)
        begin = end


cdef dict _columns(Scan *scan):
    import numpy as np

    from penstock.codec.ignite.changes import CHANGE

    cdef Field fields[FIELD_COUNT_MAX]
    cdef uint8_t[::1] put
    cdef int number = 0
    cdef dict made = {}
    if CHANGE.itemsize != sizeof(Change) or len(CHANGE.fields) > FIELD_COUNT_MAX:
        raise TypeError("another CHANGE")
    for name, (kind, at) in CHANGE.fields.items():
        found = made[name] = np.empty(scan.told, kind)
        if scan.told:
            put = found.view(np.uint8)
            fields[number].put = &put[0]
        fields[number].at, fields[number].size = at, kind.itemsize
        number += 1
    with nogil:
        _turn(<const uint8_t *>scan.rows, scan.told, fields, number)
    return made


def scan(const uint8_t[::1] data, *, int64_t number, str name, Py_ssize_t begin, checked=0):
    """See wal.scan()."""
    from penstock.codec.ignite.wal import Place, Record, Scanned

    cdef Scan made
    cdef Fault fault
    cdef Py_ssize_t at, size = data.shape[0], passed = checked
    cdef int code = 0
    memset(&made, 0, sizeof(made))
    begin = max(begin, HEADER_BYTES)
    made.end, made.last_end = begin, -1
    try:
        if begin < size:
            with nogil:
                code = _scan(&data[0], size, begin, passed, number, &made, &fault)
            if code < 0:
                raise MemoryError
            if code:
                raise _error(name, &fault)
        rows = _columns(&made)
        others = [
            Record(made.others[at].offset, made.others[at].length, made.others[at].kind)
            for at in range(made.others_count)
        ]
    finally:
        free(made.rows)
        free(made.others)
    place = made.last_end if made.last_end >= 0 else made.end if made.end > begin else None
    return Scanned(
        rows=rows,
        trees=[one for one in others if one.kind == TREE_KIND],
        encrypted=[one for one in others if one.kind != TREE_KIND],
        has_resent=made.has_resent,
        entry_count=made.count,
        time_ms=made.time_ms,
        place=None if place is None else Place(number, place, 0),
        end=made.end,
    )
