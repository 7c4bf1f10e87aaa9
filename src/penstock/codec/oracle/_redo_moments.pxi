# Dates and times of a statement into column buffers; included by _sql_redo.pyx.
# `moments.py` is the readable form.

cdef enum:
    MOMENT_SHOWN_MAX = 48


cdef struct Moment:
    bint is_bc
    bint has_offset
    int year  # as it is printed, without its sign
    int month
    int day
    int hour
    int minute
    int second
    int digits  # of the fraction, without zeros at the end
    int64_t fraction  # its digits as a number
    int offset  # minutes east of UTC


cdef inline bint is_leap(int year) noexcept nogil:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


cdef bint has_day(Moment* moment) noexcept nogil:
    """Return whether Oracle's calendar has the day."""
    cdef int year = 1 - moment.year if moment.is_bc else moment.year
    cdef int length = 31
    cdef bint is_julian
    if moment.month < 1 or moment.month > 12 or moment.day < 1:
        return False
    if moment.month == 2:
        is_julian = year <= 1582 and year % 4 == 0
        length = 29 if is_leap(year) or is_julian else 28
    elif moment.month == 4 or moment.month == 6 or moment.month == 9 or moment.month == 11:
        length = 30
    return moment.day <= length


cdef int parse_moment(const uint8_t* p, int64_t n, Moment* moment) noexcept nogil:
    """Read a date and time; return OTHER_FORMAT or MALFORMED if it is none."""
    cdef int64_t at = 0
    cdef int high, low, hours, minutes, count = 0
    moment.is_bc = p[0] == c'-'
    if p[0] == c'-' or p[0] == c' ':
        at = 1
    if n - at < 19:
        return OTHER_FORMAT
    p += at
    n -= at
    high = two_digits(p)
    low = two_digits(p + 2)
    moment.month = two_digits(p + 5)
    moment.day = two_digits(p + 8)
    moment.hour = two_digits(p + 11)
    moment.minute = two_digits(p + 14)
    moment.second = two_digits(p + 17)
    if (
        high < 0 or low < 0 or moment.month < 0 or moment.day < 0 or moment.hour < 0
        or moment.minute < 0 or moment.second < 0 or p[4] != c'-' or p[7] != c'-'
        or p[10] != c' ' or p[13] != c':' or p[16] != c':'
    ):
        return OTHER_FORMAT
    moment.year = high * 100 + low
    moment.is_bc = moment.is_bc and moment.year != 0
    at = 19
    moment.fraction = 0
    if at < n and p[at] == c'.':
        at += 1
        while at < n and count < 9 and <uint8_t>(p[at] - c'0') <= 9:
            moment.fraction = moment.fraction * 10 + p[at] - c'0'
            count += 1
            at += 1
    while count and moment.fraction % 10 == 0:
        moment.fraction //= 10
        count -= 1
    moment.digits = count
    moment.has_offset = at < n
    moment.offset = 0
    if at < n:
        if n - at != 7 or p[at] != c' ' or (p[at + 1] != c'+' and p[at + 1] != c'-'):
            return OTHER_FORMAT
        hours = two_digits(p + at + 2)
        minutes = two_digits(p + at + 5)
        if hours < 0 or minutes < 0 or p[at + 4] != c':':
            return OTHER_FORMAT
        if hours > 15 or minutes > 59:
            return MALFORMED
        moment.offset = hours * 60 + minutes
        if p[at + 1] == c'-':
            moment.offset = -moment.offset
    if not has_day(moment) or moment.hour > 23 or moment.minute > 59 or moment.second > 59:
        return MALFORMED
    return FINE


cdef int put_moment_number(Column* column, int64_t row, Moment* moment) noexcept nogil:
    """Store microseconds since 1970."""
    cdef int64_t days = 0, fraction = moment.fraction, seconds
    cdef int i
    if moment.year == 0 or moment.digits > 6:
        return UNFIT
    if days_since_1970(moment.year, moment.month, moment.day, moment.is_bc, &days) != FINE:
        return UNFIT  # a leap day that only the Julian calendar has
    for i in range(6 - moment.digits):
        fraction *= 10
    seconds = days * 86400 + moment.hour * 3600 + (moment.minute - moment.offset) * 60
    (<int64_t*>column.data)[row] = (seconds + moment.second) * 1000000 + fraction
    return FINE


cdef inline uint8_t* show_pair(uint8_t* to, int number, uint8_t sign) noexcept nogil:
    to[0] = <uint8_t>(c'0' + number // 10)
    to[1] = <uint8_t>(c'0' + number % 10)
    to[2] = sign
    return to + 3


cdef int put_moment_text(Column* column, int64_t row, Moment* moment) noexcept nogil:
    """Store a moment's text, with its offset if it has one."""
    cdef uint8_t shown[MOMENT_SHOWN_MAX]
    cdef uint8_t* to = shown
    cdef int64_t fraction = moment.fraction
    cdef int i, offset = moment.offset
    show_pair(to, moment.year // 100, c'0')
    to = show_pair(to + 2, moment.year % 100, c'-')
    to = show_pair(to, moment.month, c'-')
    to = show_pair(to, moment.day, c' ')
    to = show_pair(to, moment.hour, c':')
    to = show_pair(to, moment.minute, c':')
    to = show_pair(to, moment.second, c'.')
    if moment.digits == 0:
        to -= 1
    for i in range(moment.digits - 1, -1, -1):
        to[i] = <uint8_t>(c'0' + fraction % 10)
        fraction //= 10
    to += moment.digits
    if moment.has_offset:
        to[0] = c'-' if offset < 0 else c'+'
        if offset < 0:
            offset = -offset
        to = show_pair(to + 1, offset // 60, c':')
        to = show_pair(to, offset % 60, c' ') - 1
    if moment.is_bc:
        memcpy(to, b" BC", 3)
        to += 3
    return put_shown(column, row, shown, to - shown)


cdef inline bint mask_is(
    const uint8_t* p, int64_t n, const char* mask, int64_t length
) noexcept nogil:
    return n == length and memcmp(p, mask, length) == 0


cdef bint is_mask(int how, const uint8_t* p, int64_t n) noexcept nogil:
    """Return whether a format is that of the sessions."""
    if n and p[0] == c'S':
        p += 1
        n -= 1
    if n < 21 or memcmp(p, b"YYYY-MM-DD HH24:MI:SS", 21) != 0:
        return False
    p += 21
    n -= 21
    if how == HOW_DATE:
        return n == 0
    if mask_is(p, n, b".FF", 3) or mask_is(p, n, b".FF9", 4):
        return True
    if how == HOW_TIMESTAMP or n < 3 or memcmp(p, b".FF", 3) != 0:
        return False
    p += 3
    n -= 3
    if n and p[0] == c'9':
        p += 1
        n -= 1
    return mask_is(p, n, b" TZH:TZM", 8) or mask_is(p, n, b" TZR", 4)


cdef int put_moment(
    Column* column, int64_t row, Cell* cell, const uint8_t* text, Literal* literal
) noexcept nogil:
    """Store the argument of TO_DATE, TO_TIMESTAMP or TO_TIMESTAMP_TZ."""
    cdef Moment moment
    cdef int status
    if literal.mask_first >= 0:
        if not is_mask(
            cell.how, text + literal.mask_first, literal.mask_last - literal.mask_first
        ):
            return OTHER_FORMAT
    if literal.last == literal.first:
        return NULL_VALUE
    status = parse_moment(text + literal.first, literal.last - literal.first, &moment)
    if status != FINE:
        return status
    if cell.how == HOW_LOCAL:
        moment.has_offset = True  # the sessions' zone is UTC
    elif moment.has_offset != (cell.how == HOW_ZONED):
        return OTHER_FORMAT
    if cell.is_text:
        return put_moment_text(column, row, &moment)
    return put_moment_number(column, row, &moment)
