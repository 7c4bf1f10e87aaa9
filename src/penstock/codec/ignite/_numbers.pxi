# Little-endian numbers at any place.

cdef inline int32_t _int(const uint8_t *data) noexcept nogil:
    cdef int32_t found
    memcpy(&found, data, 4)
    return found


cdef inline int64_t _long(const uint8_t *data) noexcept nogil:
    cdef int64_t found
    memcpy(&found, data, 8)
    return found
