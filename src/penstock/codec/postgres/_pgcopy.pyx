# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled walk over CopyData frames; `pgcopy.py` is its readable twin and says what it does."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    HEAD_BYTES = 5
    LENGTH_MIN = 4
    COPY_DATA = 100  # the letter d


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


cdef int64_t walk(const uint8_t* bytes_, int64_t start, int64_t end) noexcept nogil:
    cdef const uint8_t* head
    cdef int32_t length
    # Lengths are at most 2**31 - 1 and end is a buffer's: start + length cannot overflow.
    while start <= end - HEAD_BYTES:
        head = bytes_ + start
        if head[0] != COPY_DATA:
            break
        length = <int32_t>(
            (<uint32_t>head[1] << 24)
            | (<uint32_t>head[2] << 16)
            | (<uint32_t>head[3] << 8)
            | <uint32_t>head[4]
        )
        if length < LENGTH_MIN:
            break
        start += 1 + <int64_t>length
    return start
