# Transactions that have ended, until they are taken as columns. Included by both kernels;
# `columns.transactions_batch` is the readable form.

cdef enum:
    ENDED_KEPT_MAX = 1 << 16  # so many places are kept for the next batch


cdef struct EndedTransaction:
    uint64_t position
    uint64_t end_position
    int64_t commit_time
    uint64_t source_id


cdef struct Ended:
    int64_t count
    int64_t capacity
    EndedTransaction* places


cdef bint ended_add(
    Ended* ended, uint64_t position, uint64_t end_position, int64_t time_us, uint64_t source_id
) noexcept nogil:
    """Keep a transaction; return False if memory is missing."""
    cdef EndedTransaction* place
    cdef int64_t capacity
    if ended.count == ended.capacity:
        capacity = 2 * ended.capacity + 256
        if not regrow(<void**>&ended.places, capacity * sizeof(EndedTransaction)):
            return False
        ended.capacity = capacity
    place = &ended.places[ended.count]
    place.position = position
    place.end_position = end_position
    place.commit_time = time_us
    place.source_id = source_id
    ended.count += 1
    return True


cdef void ended_free(Ended* ended) noexcept:
    free(ended.places)
    ended.places = NULL
    ended.count = 0
    ended.capacity = 0


cdef inline void put_position(uint8_t* place, uint64_t position) noexcept nogil:
    """Write 16 bytes in the order of memcmp; positions of 64 bits take the last 8."""
    cdef uint64_t swapped = be64(<const uint8_t*>&position)  # as it is on a big-endian machine
    memset(place, 0, 8)
    memcpy(place + 8, &swapped, 8)


cdef void* address(object buffer) except NULL:
    """Return the address of an Arrow buffer's bytes; they stay there as long as it lives."""
    cdef size_t found = buffer.address
    return <void*>found


cdef object ended_batch(Ended* ended):
    """Move the transactions into a batch of TRANSACTIONS_SCHEMA; return None if there are none.

    The batch is in memory of Arrow's pool, which is already mapped: fresh pages would cost more
    than the rest of the work.
    """
    cdef int64_t count = ended.count, i
    cdef uint8_t* positions
    cdef uint8_t* ends
    cdef int64_t* times
    cdef uint64_t* ids
    if count == 0:
        return None
    buffers = [
        pa.allocate_buffer(count * ((field.type.bit_width + 7) >> 3))
        for field in TRANSACTIONS_SCHEMA
    ]
    positions, ends = <uint8_t*>address(buffers[0]), <uint8_t*>address(buffers[1])
    times, ids = <int64_t*>address(buffers[2]), <uint64_t*>address(buffers[3])
    memset(address(buffers[4]), 0, 2 * count)
    for i in range(count):
        put_position(positions + 16 * i, ended.places[i].position)
        put_position(ends + 16 * i, ended.places[i].end_position)
        times[i] = ended.places[i].commit_time
        ids[i] = ended.places[i].source_id
    ended.count = 0
    if ended.capacity > ENDED_KEPT_MAX:
        ended_free(ended)
    arrays = [
        whole(field.type, count, buffer)
        for field, buffer in zip(TRANSACTIONS_SCHEMA, buffers, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS_SCHEMA)
