# cython: boundscheck=False, wraparound=False, cdivision=True
"""Texts of many rows at once: quoting, base64, joining. The specification is `texts.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

import numpy as np

from penstock.kafka.errors import MessageTooLarge

cdef const char* BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef const char* DIGITS = "0123456789abcdef"
cdef int64_t LIMIT = 2147483647


cdef _too_large():
    return MessageTooLarge.of_batch()


def quote_json(const int32_t[::1] offsets, const uint8_t[::1] data):
    cdef Py_ssize_t count = offsets.shape[0] - 1, row, at, start, end
    cdef int64_t size = 0
    cdef uint8_t byte
    cdef int64_t more
    for row in range(count):
        start, end = offsets[row], offsets[row + 1]
        more = end - start + 2
        for at in range(start, end):
            byte = data[at]
            if byte >= 32 and byte != 34 and byte != 92:
                continue
            if byte in (34, 92, 8, 9, 10, 12, 13):
                more += 1
            else:
                more += 5
        size += more
    if size > LIMIT:
        raise _too_large()
    made = np.empty(count + 1, np.int32)
    cdef int32_t[::1] places = made
    out = PyBytes_FromStringAndSize(NULL, size)
    cdef char* to = PyBytes_AS_STRING(out)
    cdef char* begin = to
    places[0] = 0
    for row in range(count):
        to[0] = 34
        to += 1
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if byte >= 32 and byte != 34 and byte != 92:
                to[0] = byte
                to += 1
                continue
            to[0] = 92
            if byte == 34 or byte == 92:
                to[1] = byte
            elif byte == 8:
                to[1] = 98
            elif byte == 9:
                to[1] = 116
            elif byte == 10:
                to[1] = 110
            elif byte == 12:
                to[1] = 102
            elif byte == 13:
                to[1] = 114
            else:
                memcpy(to + 1, b"u00", 3)
                to[4] = DIGITS[byte >> 4]
                to[5] = DIGITS[byte & 15]
                to += 4
            to += 2
        to[0] = 34
        to += 1
        places[row + 1] = <int32_t>(to - begin)
    return made, out


def quote_base64(const int32_t[::1] offsets, const uint8_t[::1] data):
    cdef Py_ssize_t count = offsets.shape[0] - 1, row, at, end
    cdef int64_t size = 0
    for row in range(count):
        size += 2 + (offsets[row + 1] - offsets[row] + 2) // 3 * 4
    if size > LIMIT:
        raise _too_large()
    made = np.empty(count + 1, np.int32)
    cdef int32_t[::1] places = made
    out = PyBytes_FromStringAndSize(NULL, size)
    cdef char* to = PyBytes_AS_STRING(out)
    cdef char* begin = to
    cdef int one, two, three
    places[0] = 0
    for row in range(count):
        to[0] = 34
        to += 1
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            one = data[at]
            two = data[at + 1] if at + 1 < end else 0
            three = data[at + 2] if at + 2 < end else 0
            to[0] = BASE64[one >> 2]
            to[1] = BASE64[(one & 3) << 4 | two >> 4]
            to[2] = BASE64[(two & 15) << 2 | three >> 6] if at + 1 < end else 61
            to[3] = BASE64[three & 63] if at + 2 < end else 61
            to += 4
            at += 3
        to[0] = 34
        to += 1
        places[row + 1] = <int32_t>(to - begin)
    return made, out


def shortest_bytes(const uint8_t[::1] numbers):
    cdef Py_ssize_t count = numbers.shape[0] // 16, row, first
    cdef uint8_t sign
    cdef const uint8_t* number
    made = np.empty(count + 1, np.int32)
    cdef int32_t[::1] places = made
    out = np.empty(count * 16, np.uint8)
    cdef uint8_t[::1] to = out
    cdef Py_ssize_t end = 0
    places[0] = 0
    for row in range(count):
        number = &numbers[row * 16]
        sign = 255 if number[15] & 128 else 0
        first = 15
        while first > 0 and number[first] == sign and (number[first - 1] & 128) == (sign & 128):
            first -= 1
        while first >= 0:
            to[end] = number[first]
            end += 1
            first -= 1
        places[row + 1] = <int32_t>end
    return made, out[:end]


def instants(const int64_t[::1] times):
    cdef Py_ssize_t count = times.shape[0], row
    made = np.empty(count + 1, np.int32)
    cdef int32_t[::1] places = made
    out = PyBytes_FromStringAndSize(NULL, count * 48)
    cdef char* begin = PyBytes_AS_STRING(out)
    cdef char* to = begin
    cdef int64_t days, rest, era, day_of_era, year_of_era, day, month, year, second
    cdef int length
    places[0] = 0
    for row in range(count):
        days = times[row] // 86400000000
        rest = times[row] - days * 86400000000
        if rest < 0:
            days -= 1
            rest += 86400000000
        days += 719468
        era = (days if days >= 0 else days - 146096) // 146097
        day_of_era = days - era * 146097
        year_of_era = (
            day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096
        ) // 365
        day = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        month = (5 * day + 2) // 153
        day = day - (153 * month + 2) // 5 + 1
        year = year_of_era + era * 400 + (1 if month >= 10 else 0)
        month = month + 3 if month < 10 else month - 9
        second = rest // 1000000
        rest = rest - second * 1000000
        if year > 9999:
            to[0] = 43
            to += 1
        elif year < 0:
            to[0] = 45
            to += 1
            year = -year
        length = snprintf(
            to, 40, "%04lld-%02d-%02dT%02d:%02d:%02d", <long long>year, <int>month, <int>day,
            <int>(second // 3600), <int>(second // 60 % 60), <int>(second % 60),
        )
        to += length
        if rest:
            length = snprintf(to, 12, ".%06d", <int>rest)
            to += length
            while (to - 1)[0] == 48:
                to -= 1
        to[0] = 90
        to += 1
        places[row + 1] = <int32_t>(to - begin)
    return made, out[: to - begin]


cdef class _Piece:
    cdef const int32_t[::1] offsets
    cdef const uint8_t[::1] data
    cdef const uint8_t[::1] valid
    cdef bint has_valid
    cdef bytes text
    cdef bytes prefix
    cdef bytes otherwise


def join_rows(list pieces, Py_ssize_t count):
    cdef Py_ssize_t number = len(pieces), row, each, length
    cdef int64_t size = 0
    cdef list known = []
    cdef _Piece piece
    for given in pieces:
        piece = _Piece()
        if isinstance(given, bytes):
            piece.text = given
            size += len(given) * count
        else:
            piece.offsets, piece.data, valid, piece.prefix, piece.otherwise = given
            piece.has_valid = valid is not None
            if piece.has_valid:
                piece.valid = valid
            for row in range(count):
                if piece.has_valid and not piece.valid[row]:
                    size += len(piece.otherwise)
                else:
                    size += len(piece.prefix) + piece.offsets[row + 1] - piece.offsets[row]
        known.append(piece)
    if size > LIMIT:
        raise _too_large()
    made = np.empty(count + 1, np.int32)
    cdef int32_t[::1] places = made
    out = PyBytes_FromStringAndSize(NULL, size)
    cdef char* to = PyBytes_AS_STRING(out)
    cdef char* begin = to
    cdef bytes fixed
    places[0] = 0
    for row in range(count):
        for each in range(number):
            piece = <_Piece>known[each]
            if piece.text is not None:
                fixed = piece.text
            elif piece.has_valid and not piece.valid[row]:
                fixed = piece.otherwise
            else:
                fixed = piece.prefix
            length = len(fixed)
            if length:
                memcpy(to, PyBytes_AS_STRING(fixed), length)
                to += length
            if piece.text is None and fixed is piece.prefix:
                if not piece.has_valid or piece.valid[row]:
                    length = piece.offsets[row + 1] - piece.offsets[row]
                    if length:
                        memcpy(to, &piece.data[piece.offsets[row]], length)
                        to += length
        places[row + 1] = <int32_t>(to - begin)
    return made, out


def varints(const int64_t[::1] numbers):
    cdef Py_ssize_t count = numbers.shape[0], row
    cdef unsigned long long rest
    made = np.empty(count + 1, np.int32)
    cdef int32_t[::1] places = made
    out = np.empty(count * 10, np.uint8)
    cdef uint8_t[::1] to = out
    cdef Py_ssize_t end = 0
    places[0] = 0
    for row in range(count):
        rest = <unsigned long long>numbers[row]
        while rest >= 128:
            to[end] = <uint8_t>(rest & 127 | 128)
            end += 1
            rest >>= 7
        to[end] = <uint8_t>rest
        end += 1
        places[row + 1] = <int32_t>end
    return made, out[:end]


def cut(const int32_t[::1] offsets, const uint8_t[::1] data):
    cdef Py_ssize_t count = offsets.shape[0] - 1, row
    cdef list found = [None] * count
    cdef const char* begin = NULL
    if not data.shape[0]:
        return [b""] * count
    begin = <const char*>&data[0]
    for row in range(count):
        found[row] = PyBytes_FromStringAndSize(
            begin + offsets[row], offsets[row + 1] - offsets[row]
        )
    return found
