# A buffer that grows, numbers in network order, and those of 128 bits. Included by the kernels that write messages.

cdef extern from *:
    """
    typedef unsigned __int128 penstock_u128;
    typedef __int128 penstock_i128;
    """
    ctypedef unsigned long long u128 "penstock_u128"
    ctypedef long long i128 "penstock_i128"

cdef struct Out:
    uint8_t* data
    int64_t used, room


cdef bint fits(Out* out, int64_t more) noexcept nogil:
    """Make room for so many bytes."""
    cdef int64_t room
    cdef uint8_t* grown
    if out.used + more <= out.room:
        return True
    room = max(2 * out.room, out.used + more)
    grown = <uint8_t*>realloc(out.data, room)
    if grown == NULL:
        return False
    out.data = grown
    out.room = room
    return True


cdef inline bint bit(const uint8_t* bits, int64_t at) noexcept nogil:
    return bits[at >> 3] >> (at & 7) & 1


cdef inline void put16(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>value


cdef inline void put32(uint8_t* p, uint32_t value) noexcept nogil:
    put16(p, value >> 16)
    put16(p + 2, value)


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>value)
