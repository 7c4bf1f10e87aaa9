# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Conversion of one value from PostgreSQL's text form to its Arrow form, in C, as `pgtext.py`
specifies.

Each function gets a pointer and a length that the caller has checked, reads nothing outside, and
returns a status. Nothing here allocates or needs the GIL. Not here: where values go
(`_pgoutput.pyx`).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #error "the kernel is for little-endian machines; the plain decoder does the work elsewhere"
    #endif
    typedef unsigned __int128 penstock_u128;
    typedef __int128 penstock_i128;

    static inline uint32_t penstock_be16(const uint8_t *p) {
        return ((uint32_t)p[0] << 8) | p[1];
    }
    static inline uint32_t penstock_be32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t penstock_be64(const uint8_t *p) {
        return ((uint64_t)penstock_be32(p) << 32) | penstock_be32(p + 4);
    }
    /* Filled when the module is imported, see _pgoutput.pyx. */
    #define PENSTOCK_POWER_MIN (-342)
    #define PENSTOCK_POWER_MAX 308
    #define PENSTOCK_POWERS (PENSTOCK_POWER_MAX - PENSTOCK_POWER_MIN + 1)
    static uint64_t penstock_power_high[PENSTOCK_POWERS];
    static uint64_t penstock_power_low[PENSTOCK_POWERS];
    static int32_t penstock_power_log2[PENSTOCK_POWERS];
    static uint8_t penstock_hex[256];
    """
    ctypedef unsigned long long u128 "penstock_u128"
    ctypedef long long i128 "penstock_i128"
    uint32_t be16 "penstock_be16"(const uint8_t* p) noexcept nogil
    uint32_t be32 "penstock_be32"(const uint8_t* p) noexcept nogil
    uint64_t be64 "penstock_be64"(const uint8_t* p) noexcept nogil
    int clz64 "__builtin_clzll"(uint64_t value) noexcept nogil
    int popcount64 "__builtin_popcountll"(uint64_t value) noexcept nogil
    int POWER_MIN "PENSTOCK_POWER_MIN"
    int POWER_MAX "PENSTOCK_POWER_MAX"
    uint64_t* power_high "penstock_power_high"
    uint64_t* power_low "penstock_power_low"
    int32_t* power_log2 "penstock_power_log2"
    uint8_t* hex_digits "penstock_hex"

cdef enum Status:
    FINE = 0
    UNFIT = 1  # a proper value that the neutral type cannot hold
    MALFORMED = 2
    NOT_UTF8 = 3
    ASK_TWIN = 4  # the quick way is not sure: the plain decoder decides
    NO_MEMORY = 5

cdef enum:
    NOT_HEX = 0xFF

cdef inline int read_int(
    const uint8_t* p, int64_t n, int64_t high, int64_t* out
) noexcept nogil:
    """Read a signed integer from -high - 1 to high."""
    cdef uint64_t value = 0
    cdef uint8_t digit
    cdef int64_t i = 0
    cdef bint negative = n > 0 and p[0] == c'-'
    if negative:
        i = 1
    if n - i < 1 or n - i > 19:
        # Twenty digits are more than any signed number has; leading zeros are not printed.
        if n - i != 20 or p[i] != c'0':
            return MALFORMED
    while i < n:
        digit = <uint8_t>(p[i] - c'0')
        if digit > 9:
            return MALFORMED
        value = value * 10 + digit
        i += 1
    if value > <uint64_t>high + negative:  # there is one more number below zero than above
        return MALFORMED
    if negative:
        out[0] = <int64_t>(0 - value)
    else:
        out[0] = <int64_t>value
    return FINE

cdef inline int read_unsigned(
    const uint8_t* p, int64_t n, uint64_t high, uint64_t* out
) noexcept nogil:
    """Read an unsigned integer up to high."""
    cdef uint64_t value = 0
    cdef uint8_t digit
    cdef int64_t i
    if n < 1 or n > 20:
        return MALFORMED
    for i in range(n):
        digit = <uint8_t>(p[i] - c'0')
        if digit > 9:
            return MALFORMED
        # 18446744073709551615 is the greatest: the twentieth digit may not fit.
        if i == 19 and (
            value > <uint64_t>1844674407370955161
            or (value == <uint64_t>1844674407370955161 and digit > 5)
        ):
            return MALFORMED
        value = value * 10 + digit
    if value > high:
        return MALFORMED
    out[0] = value
    return FINE

cdef inline int read_decimal(
    const uint8_t* p, int64_t n, int precision, int scale, uint64_t* out
) noexcept nogil:
    """Read a decimal with exactly `scale` digits after the point into 128 bits (low word first)."""
    cdef uint64_t narrow = 0
    cdef u128 wide
    cdef int64_t i = 0, digits = 0, significant = 0, point = -1
    cdef uint8_t digit
    cdef bint negative
    if n == 3 and memcmp(p, b"NaN", 3) == 0:
        return UNFIT
    if (n == 8 and memcmp(p, b"Infinity", 8) == 0) or (
        n == 9 and memcmp(p, b"-Infinity", 9) == 0
    ):
        return UNFIT
    negative = n > 0 and p[0] == c'-'
    if negative:
        i = 1
    wide = 0
    while i < n:
        if p[i] == c'.':
            if point >= 0 or digits == 0:
                return MALFORMED
            point = digits
            i += 1
            continue
        digit = <uint8_t>(p[i] - c'0')
        if digit > 9:
            return MALFORMED
        digits += 1
        i += 1
        if significant == 0 and digit == 0:
            continue
        significant += 1
        if significant > precision:
            return MALFORMED
        if significant <= 19:
            narrow = narrow * 10 + digit
        else:
            if significant == 20:
                wide = narrow
            wide = wide * 10 + digit
    if digits == 0:
        return MALFORMED
    if point < 0:
        if scale != 0:
            return MALFORMED
    elif digits - point != scale or scale == 0:
        return MALFORMED
    if significant <= 19:
        wide = narrow
    if negative:
        wide = 0 - wide
    out[0] = <uint64_t>wide
    out[1] = <uint64_t>(wide >> 64)
    return FINE

cdef inline int read_float(
    const uint8_t* p, int64_t n, int mantissa_bits, int exponent_bias, uint64_t* out
) noexcept nogil:
    """Read the bits of the nearest binary float; return ASK_TWIN if the rounding is not certain.

    Lemire's way: digits times a 128-bit power of five. The product is known to lie in a small
    interval; when the middle between two floats is outside it, the rounding is certain.
    mantissa_bits: 53 or 24, the hidden one included. exponent_bias: 1023 or 127.
    """
    cdef uint64_t digits = 0, high, middle, rest, half, mantissa
    cdef u128 product
    cdef int64_t i = 0
    cdef int significant = 0, power = 0, exponent = 0, shift, seen = 0, binary
    cdef uint8_t digit
    cdef bint fraction = False, negative_exponent = False
    cdef uint64_t sign = 0
    cdef int total_bits = 64 if mantissa_bits == 53 else 32
    cdef uint64_t infinity = (<uint64_t>2 * exponent_bias + 1) << (mantissa_bits - 1)
    if n > 40 or n < 1:
        return ASK_TWIN
    if n == 3 and memcmp(p, b"NaN", 3) == 0:
        out[0] = infinity | <uint64_t>1 << (mantissa_bits - 2)
        return FINE
    if p[0] == c'-':
        sign = <uint64_t>1 << (total_bits - 1)
        i = 1
    if n - i == 8 and memcmp(p + i, b"Infinity", 8) == 0:
        out[0] = sign | infinity
        return FINE
    while i < n:
        if p[i] == c'.':
            if fraction or seen == 0:
                return ASK_TWIN
            fraction = True
            seen = 0
            i += 1
            continue
        digit = <uint8_t>(p[i] - c'0')
        if digit > 9:
            break
        seen += 1
        i += 1
        if significant or digit:
            significant += 1
            if significant > 19:
                return ASK_TWIN
            digits = digits * 10 + digit
        if fraction:
            power -= 1
    if seen == 0:
        return ASK_TWIN
    if i < n:
        if p[i] != c'e':
            return ASK_TWIN
        i += 1
        if i < n and (p[i] == c'-' or p[i] == c'+'):
            negative_exponent = p[i] == c'-'
            i += 1
        if n - i < 1 or n - i > 3:
            return ASK_TWIN
        while i < n:
            digit = <uint8_t>(p[i] - c'0')
            if digit > 9:
                return ASK_TWIN
            exponent = exponent * 10 + digit
            i += 1
        power += -exponent if negative_exponent else exponent
    if digits == 0:
        out[0] = sign
        return FINE
    if power < POWER_MIN or power > POWER_MAX:
        return ASK_TWIN
    shift = clz64(digits)
    digits <<= shift
    product = <u128>digits * power_high[power - POWER_MIN]
    product += (<u128>digits * power_low[power - POWER_MIN]) >> 64
    high = <uint64_t>(product >> 64)
    middle = <uint64_t>product
    # The number's highest bit: 190 or 191 counted in the full product, of which two words remain.
    binary = 190 + <int>(high >> 63) + power_log2[power - POWER_MIN] - 127 + power - shift
    shift = 63 - mantissa_bits + <int>(high >> 63)
    mantissa = high >> shift
    rest = high & ((<uint64_t>1 << shift) - 1)
    half = <uint64_t>1 << (shift - 1)
    if (rest == half and middle == 0) or (rest == half - 1 and middle >= <uint64_t>-2):
        return ASK_TWIN
    if rest >= half:
        mantissa += 1
        if mantissa >> mantissa_bits:
            mantissa >>= 1
            binary += 1
    binary += exponent_bias
    if binary < 1 or binary > 2 * exponent_bias:
        return ASK_TWIN
    mantissa &= (<uint64_t>1 << (mantissa_bits - 1)) - 1
    out[0] = sign | (<uint64_t>binary << (mantissa_bits - 1)) | mantissa
    return FINE

cdef inline int two_digits(const uint8_t* p) noexcept nogil:
    """Return the number of two digits; -1 if they are not digits."""
    cdef uint8_t tens = <uint8_t>(p[0] - c'0')
    cdef uint8_t ones = <uint8_t>(p[1] - c'0')
    if tens > 9 or ones > 9:
        return -1
    return tens * 10 + ones

cdef inline int64_t skip_date(
    const uint8_t* p, int64_t n, int* year, int* month, int* day
) noexcept nogil:
    """Read `2024-02-29`; return its length, 0 if it is malformed. Ranges of days are not checked.
    """
    cdef int64_t i = 0
    cdef uint8_t digit
    year[0] = 0
    while i < n and i < 7:
        digit = <uint8_t>(p[i] - c'0')
        if digit > 9:
            break
        year[0] = year[0] * 10 + digit
        i += 1
    if i < 4 or n - i < 6 or p[i] != c'-' or p[i + 3] != c'-':
        return 0
    month[0] = two_digits(p + i + 1)
    day[0] = two_digits(p + i + 4)
    if month[0] < 0 or day[0] < 0:
        return 0
    return i + 6

cdef inline int64_t skip_time(const uint8_t* p, int64_t n, int64_t* microseconds) noexcept nogil:
    """Read `23:59:59.123`; return its length, 0 if it is malformed or out of range."""
    cdef int hour, minute, second
    cdef int64_t i = 8, fraction = 0, scale = 1000000
    cdef uint8_t digit
    if n < 8 or p[2] != c':' or p[5] != c':':
        return 0
    hour = two_digits(p)
    minute = two_digits(p + 3)
    second = two_digits(p + 6)
    if hour < 0 or minute < 0 or second < 0 or hour > 23 or minute > 59 or second > 59:
        return 0
    if i < n and p[i] == c'.':
        i += 1
        while i < n and scale > 1:
            digit = <uint8_t>(p[i] - c'0')
            if digit > 9:
                break
            fraction = fraction * 10 + digit
            scale = scale // 10
            i += 1
        if scale == 1000000:
            return 0
    microseconds[0] = (<int64_t>hour * 3600 + minute * 60 + second) * 1000000 + fraction * scale
    return i

cdef inline int64_t skip_zone(const uint8_t* p, int64_t n, int64_t* seconds) noexcept nogil:
    """Read `+05:30`; return its length, 0 if it is malformed or out of range."""
    cdef int hour, minute = 0, second = 0
    cdef int64_t i = 3
    if n < 3 or (p[0] != c'+' and p[0] != c'-'):
        return 0
    hour = two_digits(p + 1)
    if n - i >= 3 and p[i] == c':':
        minute = two_digits(p + i + 1)
        i += 3
        if n - i >= 3 and p[i] == c':':
            second = two_digits(p + i + 1)
            i += 3
    if hour < 0 or hour > 15 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return 0
    seconds[0] = <int64_t>hour * 3600 + minute * 60 + second
    if p[0] == c'-':
        seconds[0] = -seconds[0]
    return i

cdef inline bint era_is(const uint8_t* p, int64_t n, bint* bc) noexcept nogil:
    """Return whether the rest of a date is empty or ` BC`."""
    bc[0] = n == 3 and p[0] == c' ' and p[1] == c'B' and p[2] == c'C'
    return n == 0 or bc[0]

cdef inline int days_since_1970(
    int64_t year, int month, int day, bint bc, int64_t* days
) noexcept nogil:
    """Compute days in the proleptic Gregorian calendar; check that the day exists."""
    cdef int length
    cdef int64_t era, year_of_era, day_of_year
    if year == 0 or month < 1 or month > 12:
        return MALFORMED
    if bc:
        year = 1 - year
    if month == 2:
        length = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    else:
        length = 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    if day < 1 or day > length:
        return MALFORMED
    if month <= 2:
        year -= 1
    era = (year if year >= 0 else year - 399) // 400
    year_of_era = year - era * 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days[0] = (
        era * 146097
        + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
        - 719468
    )
    return FINE

cdef inline bint is_unbounded(const uint8_t* p, int64_t n) noexcept nogil:
    """Return whether the text is `infinity` or `-infinity`."""
    if n == 8:
        return memcmp(p, b"infinity", 8) == 0
    return n == 9 and memcmp(p, b"-infinity", 9) == 0

cdef inline int read_date(const uint8_t* p, int64_t n, int32_t* out) noexcept nogil:
    """Read days since 1970-01-01."""
    cdef int year, month, day, status
    cdef bint bc
    cdef int64_t days, i
    if is_unbounded(p, n):
        return UNFIT
    i = skip_date(p, n, &year, &month, &day)
    if i == 0 or not era_is(p + i, n - i, &bc):
        return MALFORMED
    status = days_since_1970(year, month, day, bc, &days)
    if status != FINE:
        return status
    if days != <int32_t>days:
        return UNFIT
    out[0] = <int32_t>days
    return FINE

cdef inline int read_time(const uint8_t* p, int64_t n, int64_t* out) noexcept nogil:
    """Read microseconds since midnight."""
    if n == 8 and memcmp(p, b"24:00:00", 8) == 0:
        return UNFIT
    if n < 8 or skip_time(p, n, out) != n:
        return MALFORMED
    return FINE

cdef inline int read_timestamp(
    const uint8_t* p, int64_t n, bint zoned, int64_t* out
) noexcept nogil:
    """Read microseconds since 1970, in UTC if the text has an offset (zoned)."""
    cdef int year, month, day, status
    cdef bint bc
    cdef int64_t days, microseconds, i, length, offset = 0
    cdef i128 total
    if is_unbounded(p, n):
        return UNFIT
    i = skip_date(p, n, &year, &month, &day)
    if i == 0 or i >= n or p[i] != c' ':
        return MALFORMED
    i += 1
    length = skip_time(p + i, n - i, &microseconds)
    if length == 0:
        return MALFORMED
    i += length
    if zoned:
        length = skip_zone(p + i, n - i, &offset)
        if length == 0:
            return MALFORMED
        i += length
    if not era_is(p + i, n - i, &bc):
        return MALFORMED
    status = days_since_1970(year, month, day, bc, &days)
    if status != FINE:
        return status
    total = <i128>days * <int64_t>86400000000 + microseconds - offset * 1000000
    if total != <int64_t>total:
        return UNFIT
    out[0] = <int64_t>total
    return FINE

cdef inline int read_uuid(const uint8_t* p, int64_t n, uint8_t* out) noexcept nogil:
    """Read the sixteen bytes of a uuid."""
    cdef int i, at = 0
    cdef uint8_t high, low
    if n != 36 or p[8] != c'-' or p[13] != c'-' or p[18] != c'-' or p[23] != c'-':
        return MALFORMED
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            at += 1
        high = hex_digits[p[at]]
        low = hex_digits[p[at + 1]]
        if high == NOT_HEX or low == NOT_HEX:
            return MALFORMED
        out[i] = <uint8_t>(high << 4 | low)
        at += 2
    return FINE

cdef inline bint is_bytea(const uint8_t* p, int64_t n) noexcept nogil:
    """Return whether the text starts like a bytea in hex form and has pairs of digits."""
    return n >= 2 and n % 2 == 0 and p[0] == c'\\' and p[1] == c'x'

cdef inline int read_hex(const uint8_t* p, int64_t n, uint8_t* out) noexcept nogil:
    """Read n bytes from 2 n hex digits."""
    cdef int64_t i
    cdef uint8_t high, low
    for i in range(n):
        high = hex_digits[p[2 * i]]
        low = hex_digits[p[2 * i + 1]]
        if high == NOT_HEX or low == NOT_HEX:
            return MALFORMED
        out[i] = <uint8_t>(high << 4 | low)
    return FINE

cdef inline bint is_utf8(const uint8_t* p, int64_t n) noexcept nogil:
    """Return whether the bytes are UTF-8 as Unicode defines it: no surrogates, nothing over-long.
    """
    cdef int64_t i = 0
    cdef uint64_t eight
    cdef uint8_t lead, second
    while i < n:
        if n - i >= 8:
            memcpy(&eight, p + i, 8)
            if not eight & <uint64_t>0x8080808080808080:
                i += 8
                continue
        lead = p[i]
        if lead < 0x80:
            i += 1
        elif lead < 0xC2:
            return False
        elif lead < 0xE0:
            if n - i < 2 or p[i + 1] & 0xC0 != 0x80:
                return False
            i += 2
        elif lead < 0xF0:
            if n - i < 3 or p[i + 1] & 0xC0 != 0x80 or p[i + 2] & 0xC0 != 0x80:
                return False
            second = p[i + 1]
            if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F):
                return False
            i += 3
        elif lead < 0xF5:
            if (
                n - i < 4
                or p[i + 1] & 0xC0 != 0x80
                or p[i + 2] & 0xC0 != 0x80
                or p[i + 3] & 0xC0 != 0x80
            ):
                return False
            second = p[i + 1]
            if (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F):
                return False
            i += 4
        else:
            return False
    return True
