# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled walk over CopyData frames; `pgcopy.py` is its readable twin and says what it does."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    HEAD_BYTES = 5
    LENGTH_MIN = 4
    TRAILER_LENGTH = 6
    COPY_DATA = 100  # the letter d
    COPY_DONE = 99  # the letter c
    XLOG_DATA = 119  # the letter w


def next_head(block, int64_t start, int64_t end):
    """See the twin."""
    cdef Py_buffer view
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end < 0 or end > view.len:
            raise ValueError(f"no span of {view.len} bytes: {start} to {end}")
        return walk(<const uint8_t*>view.buf, start, end)
    finally:
        PyBuffer_Release(&view)


def as_stream(bytearray block, int64_t start, int64_t end):
    """See the twin."""
    cdef bint is_last = False
    cdef int64_t stop
    if start < 0 or start > end or end > len(block):
        raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
    stop = as_xlog_data(<uint8_t*>block, start, end, &is_last)
    return stop, is_last


cdef int64_t as_xlog_data(
    uint8_t* bytes_, int64_t start, int64_t end, bint* is_last
) noexcept nogil:
    cdef uint8_t* head
    cdef int32_t length
    while start <= end - HEAD_BYTES:
        head = bytes_ + start
        length = length_of(head)
        if length < LENGTH_MIN or start + 1 + <int64_t>length > end:
            break
        if head[0] == COPY_DONE:
            is_last[0] = True
            break
        if head[0] == COPY_DATA and length > LENGTH_MIN:
            if length == TRAILER_LENGTH and head[5] == 0xFF and head[6] == 0xFF:
                is_last[0] = True
                break
            head[5] = XLOG_DATA
        start += 1 + <int64_t>length
    return start


cdef inline int32_t length_of(const uint8_t* head) noexcept nogil:
    return <int32_t>(
        (<uint32_t>head[1] << 24)
        | (<uint32_t>head[2] << 16)
        | (<uint32_t>head[3] << 8)
        | <uint32_t>head[4]
    )


cdef int64_t walk(const uint8_t* bytes_, int64_t start, int64_t end) noexcept nogil:
    cdef const uint8_t* head
    cdef int32_t length
    # Lengths are at most 2**31 - 1 and end is a buffer's: start + length cannot overflow.
    while start <= end - HEAD_BYTES:
        head = bytes_ + start
        if head[0] != COPY_DATA:
            break
        length = length_of(head)
        if length < LENGTH_MIN:
            break
        start += 1 + <int64_t>length
    return start
