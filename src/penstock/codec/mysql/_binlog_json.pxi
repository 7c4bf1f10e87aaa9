# Binary JSON to the server's text; included by _binlog.pyx. `binary_json.py` is the readable form.
# Values of column types that JSON does not have (dates, decimals, ...) are left to the twin.

cdef enum:
    JSON_DEPTH_MAX = 100

cdef struct Document:
    const uint8_t* data
    int64_t size
    int64_t budget
    Scratch* out


cdef inline bint scratch_room(Scratch* scratch, int64_t size) noexcept nogil:
    cdef int64_t wanted = scratch.used + size
    if wanted <= scratch.size:
        return True
    wanted += wanted >> 1
    if not regrow(<void**>&scratch.data, wanted + 64):
        return False
    scratch.size = wanted + 64
    return True


cdef inline int write_raw(Document* doc, const char* p, int64_t n) noexcept nogil:
    if not scratch_room(doc.out, n):
        return NO_MEMORY
    memcpy(doc.out.data + doc.out.used, p, n)
    doc.out.used += n
    return FINE


cdef int json_text(const uint8_t* p, int64_t n, Scratch* out) except RAISED nogil:
    """Write a document into the scratch."""
    cdef Document doc
    cdef int status
    out.used = 0
    doc.data = p
    doc.size = n
    doc.budget = n
    doc.out = out
    if n == 0:
        return write_raw(&doc, b"null", 4)
    status = json_value(&doc, p[0], 1, 0)
    if status != FINE:
        return status
    if out.used > TEXT_MAX:
        return TOO_LONG
    return FINE if is_utf8(out.data, out.used) else MALFORMED


cdef int json_value(Document* doc, int kind, int64_t at, int depth) except RAISED nogil:
    cdef int64_t size = 0
    cdef int status
    doc.budget -= 1
    if doc.budget < 0:
        return MALFORMED
    if kind <= 3:
        return json_container(doc, kind, at, depth)
    if kind == 4:
        if at >= doc.size:
            return MALFORMED
        if doc.data[at] == 0:
            return write_raw(doc, b"null", 4)
        if doc.data[at] == 1:
            return write_raw(doc, b"true", 4)
        if doc.data[at] == 2:
            return write_raw(doc, b"false", 5)
        return MALFORMED
    if kind <= 11:
        return json_number(doc, kind, at)
    if kind == 12:
        status = json_length(doc, &at, &size)
        if status != FINE:
            return status
        return json_string(doc, at, size)
    if kind == 15:
        return ASK_TWIN
    return MALFORMED


cdef int json_number(Document* doc, int kind, int64_t at) except RAISED nogil:
    cdef int64_t size = 2 if kind <= 6 else 4 if kind <= 8 else 8
    cdef uint64_t number
    cdef uint8_t* out
    if size > doc.size - at:
        return MALFORMED
    number = little(doc.data + at, size)
    if kind == 11:
        return json_double(doc, number)
    if not scratch_room(doc.out, 24):
        return NO_MEMORY
    out = doc.out.data + doc.out.used
    if kind & 1:  # the signed ones
        number <<= 64 - 8 * size
        number = <uint64_t>(<int64_t>number >> (64 - 8 * size))
        if <int64_t>number < 0:
            out[0] = c'-'
            doc.out.used += 1
            out += 1
            number = 0 - number
    doc.out.used += digits_of(number, out)
    return FINE


cdef int json_double(Document* doc, uint64_t bits) except RAISED nogil:
    """Write the shortest digits that give the number; those of up to 15 digits are found by trial.
    """
    cdef double value, size
    cdef int64_t n
    cdef int k
    cdef uint64_t digits = 0
    if bits & <uint64_t>0x7FF0000000000000 == <uint64_t>0x7FF0000000000000:
        return MALFORMED
    memcpy(&value, &bits, 8)
    size = -value if value < 0 else value
    if size >= 1e-5 and size < 1e14:
        for k in range(20):
            if size * TENS_FLOAT[k] >= 1e15:
                break
            n = <int64_t>(size * TENS_FLOAT[k] + 0.5)
            # Both sides of the division are exact, so it rounds as reading the digits would.
            if <double>n / TENS_FLOAT[k] == size:
                return write_double(doc, value < 0, <uint64_t>n, k)
    if shortest_digits(bits & <uint64_t>0x7FFFFFFFFFFFFFFF, &digits, &k):
        return write_double(doc, value < 0, digits, k)
    return json_double_slow(doc, value)


cdef bint scale_mantissa(uint64_t mantissa, int exponent, int scale, uint64_t* out) noexcept nogil:
    """Compute mantissa * 2**exponent * 10**scale, rounded; return False if the rounding is
    uncertain.
    """
    cdef u128 product, low, rest, half = 1
    cdef int shift
    if scale < POWER_MIN or scale > POWER_MAX:
        return False
    low = <u128>mantissa * power_low[scale - POWER_MIN]
    product = <u128>mantissa * power_high[scale - POWER_MIN] + <uint64_t>(low >> 64)
    # The table is cut off below: the product is too small by less than one here.
    shift = 63 - exponent - power_log2[scale - POWER_MIN] - scale
    if shift < 2 or shift > 100:
        return False
    out[0] = <uint64_t>(product >> shift)
    half <<= shift - 1
    rest = product & (half + half - 1)
    if rest == half or rest == half - 1:
        return False
    out[0] += rest > half
    return True


cdef bint shortest_digits(uint64_t bits, uint64_t* digits, int* scale) noexcept nogil:
    """Find the fewest digits that give a positive number, digits / 10**scale; return False if they
    are uncertain.

    If any number of so many digits is right, the nearest one is, except at powers of two, below
    which the next float is nearer.
    """
    cdef uint64_t mantissa = bits & (((<uint64_t>1) << 52) - 1), read = 0
    cdef int binary = <int>(bits >> 52), power, count, tries
    cdef int64_t n
    cdef uint8_t out[TEXT_ROOM]
    if binary == 0 or mantissa == 0:
        return False
    mantissa |= (<uint64_t>1) << 52
    power = (binary - 1023) * 1233 >> 12  # of ten; one off at most
    for count in range(15, 18):
        for tries in range(3):
            scale[0] = count - 1 - power
            if not scale_mantissa(mantissa, binary - 1075, scale[0], digits):
                return False
            # Rounding up to the next power of ten is right: its zeros are taken off below.
            if digits[0] > <uint64_t>TENS[count]:
                power += 1
            elif digits[0] < <uint64_t>TENS[count - 1]:
                power -= 1
            else:
                break
        else:
            return False
        if count < 17:
            n = digits_of(digits[0], out)
            out[n] = c'e'
            n += 1
            if scale[0] > 0:
                out[n] = c'-'
                n += 1
            n += digits_of(scale[0] if scale[0] > 0 else -scale[0], out + n)
            if read_float(out, n, 53, 1023, &read) != FINE:
                return False
            if read != bits:
                continue
        while digits[0] % 10 == 0:
            digits[0] //= 10
            scale[0] -= 1
        return True
    return False


cdef int write_double(Document* doc, bint negative, uint64_t digits, int scale) noexcept nogil:
    """Write digits / 10**scale as the server prints it: with an exponent only far from the point.
    """
    cdef uint8_t text[TEXT_ROOM]
    cdef int64_t n = digits_of(digits, text), point = n - scale, i
    cdef uint8_t* out
    if not scratch_room(doc.out, 64):
        return NO_MEMORY
    out = doc.out.data + doc.out.used
    if negative:
        out[0] = c'-'
        out += 1
    if point < -14 or (point > 15 and n <= point):
        out[0] = text[0]
        out += 1
        if n > 1:
            out[0] = c'.'
            memcpy(out + 1, text + 1, n - 1)
            out += n
        out[0] = c'e'
        out += 1
        point -= 1
        if point < 0:
            out[0] = c'-'
            out += 1
            point = -point
        out += digits_of(point, out)
    elif point <= 0:
        memset(out, c'0', 2 - point)
        out[1] = c'.'
        memcpy(out + 2 - point, text, n)
        out += 2 - point + n
    else:
        for i in range(point):
            out[i] = text[i] if i < n else c'0'
        out += point
        out[0] = c'.'
        out += 1
        if n > point:
            memcpy(out, text + point, n - point)
            out += n - point
        else:
            out[0] = c'0'
            out += 1
    doc.out.used = out - doc.out.data
    return FINE


cdef int json_double_slow(Document* doc, double value) except RAISED with gil:
    """Write zero, numbers next to zero, powers of two, and numbers whose rounding is uncertain."""
    cdef bytes text = mysql_json.double_text(value).encode("ascii")
    return write_raw(doc, text, len(text))


cdef int json_length(Document* doc, int64_t* at, int64_t* out) noexcept nogil:
    """Read a length of seven bits per byte, low ones first; move `at` after it."""
    cdef int64_t number = 0
    cdef int i
    cdef uint8_t byte
    for i in range(5):
        if at[0] >= doc.size:
            return MALFORMED
        byte = doc.data[at[0]]
        at[0] += 1
        number |= <int64_t>(byte & 0x7F) << 7 * i
        if not byte & 0x80:
            out[0] = number
            return FINE
    return MALFORMED


cdef int json_string(Document* doc, int64_t at, int64_t size) noexcept nogil:
    """Write a text with quotes and escapes."""
    cdef int64_t i
    cdef uint8_t* out
    cdef uint8_t letter, code
    if at < 0 or size > doc.size - at:
        return MALFORMED
    doc.budget -= size
    if doc.budget < 0:
        return MALFORMED
    if not scratch_room(doc.out, 6 * size + 2):
        return NO_MEMORY
    out = doc.out.data + doc.out.used
    out[0] = c'"'
    out += 1
    for i in range(size):
        letter = doc.data[at + i]
        code = ESCAPES[letter]
        if code == 0:
            out[0] = letter
            out += 1
        elif code == c'u':
            memcpy(out, <const char*>b"\\u00", 4)
            out[4] = HEX_LOW[letter >> 4]
            out[5] = HEX_LOW[letter & 15]
            out += 6
        else:
            out[0] = c'\\'
            out[1] = code
            out += 2
    out[0] = c'"'
    doc.out.used = out + 1 - doc.out.data
    return FINE


cdef int json_container(Document* doc, int kind, int64_t start, int depth) except RAISED nogil:
    cdef int64_t width = 4 if kind & 1 else 2
    cdef bint is_object = kind < 2
    cdef int64_t count, size, keys, values, i, at, offset, length = 0, last_offset = 0, last = -1
    cdef int status, order
    if depth >= JSON_DEPTH_MAX or 2 * width > doc.size - start:
        return MALFORMED
    count = little(doc.data + start, width)
    size = little(doc.data + start + width, width)
    if size > doc.size - start:
        return MALFORMED
    keys = 2 * width
    values = keys + (count * (width + 2) if is_object else 0)
    if values + count * (width + 1) > size:
        return MALFORMED
    status = write_raw(doc, b"{" if is_object else b"[", 1)
    for i in range(count):
        if status == FINE and i:
            status = write_raw(doc, b", ", 2)
        if status == FINE and is_object:
            at = start + keys + i * (width + 2)
            offset = little(doc.data + at, width)
            length = little(doc.data + at + width, 2)
            if offset + length > size:
                return MALFORMED
            offset += start
            if last >= 0:
                # Names ascend by length, then by bytes, and none comes twice.
                order = 0
                if length == last:
                    order = memcmp(doc.data + offset, doc.data + last_offset, length)
                if length < last or (length == last and order <= 0):
                    return MALFORMED
            last = length
            last_offset = offset
            status = json_string(doc, offset, length)
            if status == FINE:
                status = write_raw(doc, b": ", 2)
        if status != FINE:
            return status
        at = start + values + i * (width + 1)
        status = json_entry(doc, start, size, at, width, depth)
        if status != FINE:
            return status
    return write_raw(doc, b"}" if is_object else b"]", 1) if status == FINE else status


cdef int json_entry(
    Document* doc, int64_t start, int64_t size, int64_t at, int64_t width, int depth
) except RAISED nogil:
    """Write one element. Its entry has its kind, and its offset or, if it is small, its value."""
    cdef int kind = doc.data[at]
    cdef int64_t offset
    if 4 <= kind <= 6 or (width == 4 and 7 <= kind <= 8):
        return json_value(doc, kind, at + 1, depth + 1)
    offset = little(doc.data + at + 1, width)
    if offset >= size:
        return MALFORMED
    return json_value(doc, kind, start + offset, depth + 1)
