# Bytes, digits, dates and times; included by _binlog.pyx. `temporals.py` is the readable form.

cdef enum:
    TOO_LONG = 100  # beside the statuses of _cells
    TEXT_ROOM = 128  # bytes that any number's or time's text fits in

cdef int64_t DAY_US = 86400000000


cdef struct Scratch:
    uint8_t* data
    int64_t size
    int64_t used


cdef inline uint64_t little(const uint8_t* p, int64_t n) noexcept nogil:
    cdef uint64_t value = 0
    while n > 0:
        n -= 1
        value = value << 8 | p[n]
    return value


cdef inline uint64_t big(const uint8_t* p, int64_t n) noexcept nogil:
    cdef uint64_t value = 0
    cdef int64_t i
    for i in range(n):
        value = value << 8 | p[i]
    return value


cdef inline bint is_ascii(const uint8_t* p, int64_t n) noexcept nogil:
    cdef uint64_t eight
    cdef int64_t i = 0
    while n - i >= 8:
        memcpy(&eight, p + i, 8)
        if eight & <uint64_t>0x8080808080808080:
            return False
        i += 8
    while i < n:
        if p[i] & 0x80:
            return False
        i += 1
    return True


cdef int put_bytes(
    Column* column, int64_t row, const uint8_t* p, int64_t n, int64_t* text
) noexcept nogil:
    """Store bytes or checked text; `text` counts what the row has."""
    cdef uint8_t* room
    if text[0] + n > TEXT_MAX:
        return TOO_LONG
    room = column_room(column, n)
    if room == NULL:
        return NO_MEMORY
    memcpy(room, p, n)
    column.length += n
    column.offsets[row + 1] = <int32_t>column.length
    text[0] += n
    return FINE


# --- numbers as text

cdef int64_t digits_of(uint64_t value, uint8_t* out) noexcept nogil:
    """Write a number; return how many digits it has."""
    cdef uint8_t reversed[20]
    cdef int64_t n = 0, i
    while True:
        reversed[n] = <uint8_t>(c'0' + value % 10)
        n += 1
        value //= 10
        if value == 0:
            break
    for i in range(n):
        out[i] = reversed[n - 1 - i]
    return n


cdef void fixed_digits(uint64_t value, int64_t n, uint8_t* out) noexcept nogil:
    """Write exactly n digits."""
    while n > 0:
        n -= 1
        out[n] = <uint8_t>(c'0' + value % 10)
        value //= 10


# --- dates and times

cdef struct Moment:
    int64_t year
    int64_t month
    int64_t day
    int64_t hour
    int64_t minute
    int64_t second
    int64_t micro


cdef inline bint is_possible(Moment* moment) noexcept nogil:
    return (
        moment.year <= 9999
        and moment.month <= 12
        and moment.hour <= 23
        and moment.minute <= 59
        and moment.second <= 59
    )


cdef inline bint to_days(int64_t year, int64_t month, int64_t day, int64_t* out) noexcept nogil:
    """Compute days since 1970-01-01; return False for a day that no calendar has."""
    cdef int64_t length, era, year_of_era, day_of_year
    cdef bint leap
    if month == 0 or day == 0:
        return False
    if day > 28:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        length = 28 + leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
        if day > length:
            return False
    if month <= 2:
        year -= 1
        month += 12
    # Years from 0 on; the first is -1 in January and February of year 0.
    era = (year + 400) // 400 - 1
    year_of_era = year - era * 400
    day_of_year = (153 * (month - 3) + 2) // 5 + day - 1
    out[0] = (
        era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
        - 719468
    )
    return True


cdef inline bint fraction_us(const uint8_t* p, int64_t n, int64_t* out) noexcept nogil:
    """Read the microseconds of a stored fraction; return False if there are too many."""
    cdef int64_t number = <int64_t>big(p, n)
    if n == 0:
        out[0] = 0
        return True
    if n == 1:
        out[0] = number * 10000
        return number < 100
    if n == 2:
        out[0] = number * 100
        return number < 10000
    out[0] = number
    return number < 1000000


cdef int64_t moment_text(Moment* moment, int fsp, uint8_t* out) noexcept nogil:
    """Write `2024-02-29 12:34:56.789`; return its length."""
    date_digits(moment, out)
    out[10] = c' '
    fixed_digits(moment.hour, 2, out + 11)
    out[13] = c':'
    fixed_digits(moment.minute, 2, out + 14)
    out[16] = c':'
    fixed_digits(moment.second, 2, out + 17)
    return 19 + fraction_text(moment.micro, fsp, out + 19)


cdef void date_digits(Moment* moment, uint8_t* out) noexcept nogil:
    fixed_digits(moment.year, 4, out)
    out[4] = c'-'
    fixed_digits(moment.month, 2, out + 5)
    out[7] = c'-'
    fixed_digits(moment.day, 2, out + 8)


cdef int64_t fraction_text(int64_t micro, int fsp, uint8_t* out) noexcept nogil:
    if fsp == 0:
        return 0
    out[0] = c'.'
    fixed_digits(micro, 6, out + 1)
    return fsp + 1


cdef int put_date(Column* column, int64_t row, const uint8_t* p, int64_t* text) noexcept nogil:
    cdef uint8_t out[TEXT_ROOM]
    cdef uint64_t packed = little(p, 3)
    cdef Moment moment
    cdef int64_t days = 0
    memset(&moment, 0, sizeof(Moment))
    moment.year = packed >> 9
    moment.month = packed >> 5 & 15
    moment.day = packed & 31
    if not is_possible(&moment):
        return MALFORMED
    if column.kind == STRING:
        date_digits(&moment, out)
        return put_bytes(column, row, out, 10, text)
    if not to_days(moment.year, moment.month, moment.day, &days):
        return UNFIT
    (<int32_t*>column.data)[row] = <int32_t>days
    return FINE


cdef int put_datetime(
    Column* column, int64_t row, int64_t size, int fsp, const uint8_t* p, int64_t* text
) noexcept nogil:
    cdef uint8_t out[TEXT_ROOM]
    cdef uint64_t packed = big(p, 5)
    cdef Moment moment
    cdef int64_t days = 0
    if not packed & <uint64_t>0x8000000000:
        return MALFORMED
    packed &= <uint64_t>0x7FFFFFFFFF
    moment.year = (packed >> 22) // 13
    moment.month = (packed >> 22) % 13
    moment.day = packed >> 17 & 31
    moment.hour = packed >> 12 & 31
    moment.minute = packed >> 6 & 63
    moment.second = packed & 63
    if not fraction_us(p + 5, size - 5, &moment.micro) or not is_possible(&moment):
        return MALFORMED
    if column.kind == STRING:
        return put_bytes(column, row, out, moment_text(&moment, fsp, out), text)
    if not to_days(moment.year, moment.month, moment.day, &days):
        return UNFIT
    (<int64_t*>column.data)[row] = (
        days * DAY_US
        + ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1000000
        + moment.micro
    )
    return FINE


cdef int put_epoch(
    Column* column, int64_t row, int64_t size, int fsp, const uint8_t* p, int64_t* text
) noexcept nogil:
    """Store a TIMESTAMP, which is seconds since 1970; zero is not a time."""
    cdef uint8_t out[TEXT_ROOM]
    cdef int64_t seconds = be32(p), micro = 0
    cdef Moment moment
    if not fraction_us(p + 4, size - 4, &micro):
        return MALFORMED
    if column.kind != STRING:
        if seconds == 0 and micro == 0:
            return UNFIT
        (<int64_t*>column.data)[row] = seconds * 1000000 + micro
        return FINE
    memset(&moment, 0, sizeof(Moment))
    if seconds or micro:
        civil_date(seconds // 86400, &moment)
        seconds = seconds % 86400
        moment.hour = seconds // 3600
        moment.minute = seconds // 60 % 60
        moment.second = seconds % 60
        moment.micro = micro
    return put_bytes(column, row, out, moment_text(&moment, fsp, out), text)


cdef void civil_date(int64_t days, Moment* moment) noexcept nogil:
    """Compute the calendar date of a day since 1970-01-01; earlier days do not occur."""
    cdef int64_t shifted = days + 719468
    cdef int64_t era = shifted // 146097, day_of_era = shifted % 146097
    cdef int64_t year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096
    ) // 365
    cdef int64_t day_of_year = day_of_era - (
        365 * year_of_era + year_of_era // 4 - year_of_era // 100
    )
    cdef int64_t month_index = (5 * day_of_year + 2) // 153
    moment.day = day_of_year - (153 * month_index + 2) // 5 + 1
    moment.month = month_index + 3 if month_index < 10 else month_index - 9
    moment.year = year_of_era + era * 400 + (moment.month <= 2)


cdef int put_span(
    Column* column, int64_t row, int64_t size, int fsp, const uint8_t* p, int64_t* text
) noexcept nogil:
    """Store a TIME, which is a signed number of 24 bits and the fraction."""
    cdef uint8_t out[TEXT_ROOM]
    cdef uint8_t fraction[3]
    cdef int64_t bits = 8 * (size - 3), packed, whole, hour, minute, second, micro = 0, i
    cdef int64_t n = 0
    cdef bint negative
    packed = <int64_t>big(p, size) - (<int64_t>0x800000 << bits)
    negative = packed < 0
    if negative:
        packed = -packed
    whole = packed >> bits
    packed &= (<int64_t>1 << bits) - 1
    for i in range(size - 3):
        fraction[i] = <uint8_t>(packed >> (bits - 8 - 8 * i))
    hour = whole >> 12
    minute = whole >> 6 & 63
    second = whole & 63
    if not fraction_us(fraction, size - 3, &micro) or hour > 838 or minute > 59:
        return MALFORMED
    if second > 59:
        return MALFORMED
    if column.kind != STRING:
        micro += ((hour * 60 + minute) * 60 + second) * 1000000
        if negative or micro >= DAY_US:
            return UNFIT
        (<int64_t*>column.data)[row] = micro
        return FINE
    if negative:
        out[0] = c'-'
        n = 1
    if hour > 99:
        fixed_digits(hour, 3, out + n)
        n += 3
    else:
        fixed_digits(hour, 2, out + n)
        n += 2
    out[n] = c':'
    fixed_digits(minute, 2, out + n + 1)
    out[n + 3] = c':'
    fixed_digits(second, 2, out + n + 4)
    n += 6
    n += fraction_text(micro, fsp, out + n)
    return put_bytes(column, row, out, n, text)
