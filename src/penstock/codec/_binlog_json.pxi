# Binary JSON to the server's text; included by _binlog.pyx. `mysql_json.py` is the readable form.
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
    """The shortest digits that give the number: by trial for those of up to 15 digits."""
    cdef double value, size
    cdef int64_t k, n, whole
    cdef uint8_t* out
    if bits & <uint64_t>0x7FF0000000000000 == <uint64_t>0x7FF0000000000000:
        return MALFORMED
    memcpy(&value, &bits, 8)
    size = -value if value < 0 else value
    if size < 1e-5 or size >= 1e14:
        return json_double_slow(doc, value)
    k = 0
    while k < 20:
        if size * TENS_FLOAT[k] >= 1e15:
            return json_double_slow(doc, value)
        n = <int64_t>(size * TENS_FLOAT[k] + 0.5)
        # Both sides of the division are exact, so it rounds as reading the digits would.
        if <double>n / TENS_FLOAT[k] == size:
            break
        k += 1
    else:
        return json_double_slow(doc, value)
    if not scratch_room(doc.out, 48):
        return NO_MEMORY
    out = doc.out.data + doc.out.used
    if value < 0:
        out[0] = c'-'
        out += 1
    whole = n
    if k <= 18:
        whole = n // TENS[k]
        n -= whole * TENS[k]
    else:
        whole = 0
    out += digits_of(whole, out)
    out[0] = c'.'
    if k == 0:
        out[1] = c'0'
        out += 2
    else:
        fixed_digits(n, k, out + 1)
        out += 1 + k
    doc.out.used = out - doc.out.data
    return FINE


cdef int json_double_slow(Document* doc, double value) except RAISED with gil:
    cdef bytes text = mysql_json.double_text(value).encode("ascii")
    return write_raw(doc, text, len(text))


cdef int json_length(Document* doc, int64_t* at, int64_t* out) noexcept nogil:
    """A length of seven bits per byte, low ones first; `at` is moved behind it."""
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
    """A text with quotes and escapes."""
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
    """One element: its kind, and where it is or, when it is small, itself."""
    cdef int kind = doc.data[at]
    cdef int64_t offset
    if 4 <= kind <= 6 or (width == 4 and 7 <= kind <= 8):
        return json_value(doc, kind, at + 1, depth + 1)
    offset = little(doc.data + at + 1, width)
    if offset >= size:
        return MALFORMED
    return json_value(doc, kind, start + offset, depth + 1)
