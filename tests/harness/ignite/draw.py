"""Inputs for both readers of Ignite's bytes: recorded and generated, mutated at every level."""

from __future__ import annotations

import random
import struct
from functools import cache

from harness.ignite.recordings import record_bytes, seal_record, segments_of, walk_entries
from harness.ignite.twins import (
    CELLS,
    MODES,
    RECORDINGS,
    SEGMENT,
    TWIN,
    TYPE,
    VALUE,
    items_of,
    type_files,
)
from penstock.codec.ignite import marshal, wal

INPUT_BYTES_MAX = 6000
NUMBERS = [
    0, 1, 2, 3, 5, 7, 23, 24, 25, 31, 32, 127, 128, 255, 256, 1000, 65_535, 65_536, 1 << 20,
    2**31 - 1, -1, -2, -3, -25, -(2**31), 0x65656565, 0x67676767,
]  # fmt: skip
CODES = [*range(1, 39), 101, 102, 103, 253, 254]
HEADER = seal_record(struct.pack("<BqiQi", 5, 0, 0, wal.MAGIC, wal.SERIALIZER))


@cache
def recorded_values() -> list[bytes]:
    """Return keys and values of the recordings, except long ones."""
    found = set()
    for name in RECORDINGS:
        for entry in walk_entries(name, TWIN, marshal.decode):
            found |= {entry.key_bytes, entry.value_bytes or b""}
    return sorted(one for one in found if len(one) < INPUT_BYTES_MAX // 2)


@cache
def recorded_records() -> list[tuple[int, bytes]]:
    """Return kind and content of records: all with changes, and some of each other kind."""
    found = []
    counts: dict[int, int] = {}
    for name in RECORDINGS:
        for number, data in segments_of(name):
            at = wal.HEADER_BYTES
            while True:
                record, at = wal.find_record(data, at, number, frozenset(range(83)), name)
                if record is None:
                    break
                counts[record.kind] = counts.get(record.kind, 0) + 1
                is_wanted = record.kind in wal.DATA_KINDS or counts[record.kind] < 6
                if is_wanted and record.length_bytes < INPUT_BYTES_MAX // 3:
                    begin = record.offset + 17
                    end = record.offset + record.length_bytes - 4
                    found.append((record.kind, data[begin:end]))
    return found


def _items(found: list[bytes | None]) -> bytes:
    """Return values in the form that items_of() reads."""
    return b"".join(
        b"\xff\xff" if one is None else struct.pack("<H", len(one)) + one
        for one in found
        if one is None or len(one) < 0xFFFF
    )


class Mutator:
    """A maker of inputs."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.types = list(type_files())

    def seed_input(self) -> bytes:
        """Return a fresh input."""
        mode = self.dice.choice([VALUE, VALUE, VALUE, SEGMENT, SEGMENT, CELLS, CELLS, TYPE])
        head = bytes([mode, self.dice.randrange(256)])
        if mode == TYPE:
            return head + self.dice.choice(list(type_files().values()))
        if mode == SEGMENT:
            return head + self._segment()
        if mode == CELLS:
            return head + self._cells()
        if self.dice.random() < 0.4:
            return head + self._build_value(0)
        return head + self.dice.choice(recorded_values())

    def mutate(self, case: bytes) -> bytes:
        """Mutate an input a few times."""
        head, data = case[:2], case[2:]
        if self.dice.random() < 0.1:
            head = bytes([head[0], self.dice.randrange(256)])
        mode = head[0] % len(MODES)
        change = {SEGMENT: self._in_segment, CELLS: self._in_cells}.get(mode, self._in_value)
        for _ in range(self.dice.randint(1, 4)):
            data = change(data)
        return head + data[:INPUT_BYTES_MAX]

    # -- values ------------------------------------------------------------------------------

    def _number(self) -> bytes:
        return struct.pack("<i", self.dice.choice(NUMBERS))

    def _in_value(self, data: bytes) -> bytes:
        dice = self.dice
        at = dice.randint(0, len(data))
        way = dice.randrange(9)
        if way == 0:
            return self._bytes(data)
        if way == 1:  # a handle, to any earlier place
            back = dice.choice([dice.randint(0, at + 1), at, 0, dice.choice(NUMBERS)])
            return self._over(data, at, b"\x66" + struct.pack("<i", back))
        if way == 2:
            return self._over(data, at, bytes([dice.choice(CODES)]))
        if way == 3:
            return self._over(data, at, self._number())
        if way == 4:  # another value, inside
            return data[:at] + dice.choice(recorded_values())[:400] + data[at:]
        if way == 5:  # deeper
            return self._wrap(data)
        if way == 6:
            return self._in_object(data)
        if way == 7:
            return data[:at]
        begin = dice.randint(0, at)
        return data[:at] + data[begin : begin + dice.randint(1, 40)] + data[at:]

    def _over(self, data: bytes, at: int, put: bytes) -> bytes:
        return data[:at] + put + data[at + len(put) :]

    def _bytes(self, data: bytes) -> bytes:
        dice, changed = self.dice, bytearray(data)
        at = dice.randint(0, len(changed))
        way = dice.randrange(4)
        if way == 0 and at < len(changed):
            changed[at] ^= 1 << dice.randrange(8)
        elif way == 1:
            del changed[at : at + dice.randint(1, 6)]
        elif way == 2:
            changed[at:at] = dice.randbytes(dice.randint(1, 4))
        elif at < len(changed):
            changed[at] = dice.randrange(256)
        return bytes(changed)

    def _in_object(self, data: bytes) -> bytes:
        """Change a field of an object's header, or its footer."""
        places = [at for at in range(len(data) - 24) if data[at : at + 2] == b"\x67\x01"]
        if not places:
            return self._wrap(data)
        dice, at = self.dice, self.dice.choice(places)
        field = dice.choice([2, 4, 8, 12, 16, 20, 24])
        if field == 2:
            return self._over(data, at + 2, struct.pack("<H", dice.randrange(128)))
        if field == 4:
            return self._over(data, at + 4, struct.pack("<i", dice.choice([0, *self.types])))
        if field == 24:
            (offset,) = struct.unpack_from("<i", data, at + 20)
            place = at + max(24, min(offset, len(data))) + dice.randint(-2, 6)
            return self._over(data, max(0, place), bytes([dice.choice([24, 25, 29, 33, 255])]))
        (old,) = struct.unpack_from("<i", data, at + field)
        near = struct.pack("<i", max(-(2**31), min(2**31 - 1, old + dice.randint(-3, 3))))
        return self._over(data, at + field, dice.choice([near, self._number()]))

    def _wrap(self, data: bytes) -> bytes:
        dice = self.dice
        count = struct.pack("<i", dice.choice([1, 1, 2, 3]))
        way = dice.randrange(6)
        if way == 0:
            return b"\x18" + count + bytes([dice.choice([0, 1, 2, 3, 4, 5, 255])]) + data
        if way == 1:
            return b"\x17" + self._number() + count + data
        if way == 2:
            start = struct.pack("<i", dice.choice([0, 0, 1, len(data) - 1, -1]))
            return b"\x1b" + struct.pack("<i", len(data)) + data + start
        if way == 3:
            return b"\x19" + count + bytes([dice.choice([0, 1, 2])]) + data + data[:60]
        if way == 4:
            return b"\x23" + struct.pack("<ii", 1, 7) + data
        return self._object([data] * dice.choice([1, 1, 2, 5]))

    def _build_value(self, depth: int) -> bytes:
        """Return a value of any type that is mostly valid."""
        dice = self.dice
        code = dice.choice(CODES)
        size = {1: 1, 2: 2, 3: 4, 4: 8, 5: 4, 6: 8, 7: 2, 8: 1, 10: 16, 11: 8, 33: 12, 36: 8}
        items = {12: 1, 13: 2, 14: 4, 15: 8, 16: 4, 17: 8, 18: 2, 19: 1, 9: 1}
        inner = {20: 9, 21: 10, 22: 11, 31: 30, 34: 33, 37: 36}
        begin = bytes([code])
        if code in size:
            return begin + bytes(b & 0x9F for b in dice.randbytes(size[code]))
        count = dice.choice([0, 1, 2, 3, 9])
        if code in items:
            content = bytes(dice.choice(b"ab\0\1\xc3\xa4") for _ in range(count * items[code]))
            return begin + struct.pack("<i", count) + content
        if code == 30:
            digits = dice.randbytes(dice.choice([1, 2, 4, 7, 8, 9, 12, 30]))
            return begin + struct.pack("<ii", dice.choice(NUMBERS), len(digits)) + digits
        if code in inner:
            one = bytes([inner[code]]) + bytes(size.get(inner[code], 4))
            return begin + struct.pack("<i", count) + dice.choice([one, b"\x65"]) * count
        if code in (28, 38):
            return begin + struct.pack("<ii", dice.choice(self.types), dice.choice([0, 1, 2, 9]))
        if code in (23, 24, 25, 103) and depth < 4:
            made = [self._build_value(depth + 1) for _ in range(count * (2 if code == 25 else 1))]
            if code == 103:
                return self._object(made)
            kind = bytes([dice.choice([1, 2])])
            head = struct.pack("<ii", 7, count) if code == 23 else struct.pack("<i", count) + kind
            return begin + head + b"".join(made)
        if code == 102:
            return begin + struct.pack("<i", dice.randint(1, 40))
        return b"\x65"

    def _object(self, fields: list[bytes], type_id: int | None = None) -> bytes:
        """Return a binary object with a footer of any form, of a recorded type or of none."""
        dice = self.dice
        is_plain = type_id is not None
        if type_id is None:
            type_id = dice.choice([*self.types, 0, 5])
        schemas = {}
        if type_id in type_files():
            schemas = dict(marshal.read_metadata(type_files()[type_id]).schemas)
        schema = dice.choice(list(schemas) or [7])
        width, bits = dice.choice([("B", 8), ("H", 16), ("i", 0)])
        compact = is_plain or dice.random() < 0.7
        offset, footer = 24, b""
        wanted = len(schemas.get(schema, fields))
        fields = (fields * (wanted + 1))[:wanted]
        if is_plain:
            fields = [self._build_value(3) if dice.random() < 0.7 else one for one in fields]
        for number, field in enumerate(fields):
            footer += b"" if compact else struct.pack("<i", number)
            place = offset if is_plain else dice.choice([offset, offset, offset, 24])
            footer += struct.pack(f"<{width}", place & (0xFF if width == "B" else 0x7FFF))
            offset += len(field)
        flags = 3 | bits | (32 if compact else 0)
        if not is_plain and dice.random() < 0.3:
            flags |= 4
            footer += struct.pack("<i", dice.choice([24, offset, offset - 1]))
        body = b"".join(fields)
        length = 24 + len(body) + len(footer)
        head = struct.pack("<BBHiiiii", 103, 1, flags, type_id, 9, length, schema, 24 + len(body))
        return head + body + footer

    # -- values for columns ------------------------------------------------------------------

    def _cells(self) -> bytes:
        """Return objects of one type, or separate values."""
        dice = self.dice
        count = dice.randint(0, 6)
        if dice.random() < 0.4:
            first = self._build_value(3)
            found = [first if dice.random() < 0.6 else self._build_value(3) for _ in range(count)]
        else:
            type_id = dice.choice(self.types)
            mark = struct.pack("<i", type_id)
            found = [one for one in recorded_values() if one[:1] == b"g" and one[4:8] == mark]
            found = [dice.choice(found) for _ in range(count)] if found else []
            found += [
                self._object([self._build_value(3)] * 9, type_id) for _ in range(dice.randint(0, 2))
            ]
        return _items([None if dice.random() < 0.1 else one for one in found])

    def _in_cells(self, data: bytes) -> bytes:
        items = items_of(data)
        if not items or self.dice.random() < 0.1:
            return self._cells()
        at = self.dice.randrange(len(items))
        items[at] = self._in_value(items[at] or b"")
        return _items(items)

    # -- segments ----------------------------------------------------------------------------

    def _segment(self) -> bytes:
        """Return some recorded records, adapted to their new places."""
        data = HEADER
        for _ in range(self.dice.randint(0, 5)):
            data += self._record(*self.dice.choice(recorded_records()), len(data))
        return data + self.dice.choice([b"", b"", b"\0" * 30, b"\x29"])

    def _record(self, kind: int, content: bytes, at: int) -> bytes:
        return record_bytes(kind, content, at)

    def _parts(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return kind and content of each record, as far as their lengths are valid."""
        found = []
        at = len(HEADER)
        while at + 21 <= len(data):
            (length,) = struct.unpack_from("<i", data, at + 13)
            if not 21 <= length <= len(data) - at:
                break
            found.append(((data[at] - 1) & 255, data[at + 17 : at + length - 4]))
            at += length
        return found

    def _in_segment(self, data: bytes) -> bytes:
        dice = self.dice
        way = dice.randrange(8)
        if way == 0:  # after its checksums
            return self._bytes(data)
        if way == 1:
            return data[: dice.randint(0, len(data))]
        parts = self._parts(data)
        if way == 2 or not parts:
            parts.insert(dice.randint(0, len(parts)), dice.choice(recorded_records()))
        else:
            where = dice.randrange(len(parts))
            kind, content = parts[where]
            if way == 3:
                del parts[where]
            elif way == 4:
                kind = dice.choice([70, 78, 71, 64, 53, 52, 79, 80, 45, 82, 83, 200])
                parts[where] = kind, content
            else:
                parts[where] = kind, self._in_entries(content)
        made = HEADER
        for kind, content in parts:
            made += self._record(min(kind, 254), content, len(made))
        return made

    def _in_entries(self, content: bytes) -> bytes:
        """Change the record's count, or anything inside its entries: keys, values, lengths."""
        dice = self.dice
        if dice.random() < 0.2:
            return self._over(content, 0, self._number())
        if dice.random() < 0.4:  # a whole value, with its correct length
            (length,) = struct.unpack_from("<i", content, 16) if len(content) > 21 else (-1,)
            value_at = 21 + length
            if length >= 0 and value_at + 5 < len(content):
                (size,) = struct.unpack_from("<i", content, value_at)
                end = value_at + 5 + size
                if size >= 0 and end <= len(content):
                    value = self._in_value(content[value_at + 5 : end])
                    head = struct.pack("<i", len(value)) + content[value_at + 4 : value_at + 5]
                    return content[:value_at] + head + value + content[end:]
        at = dice.randint(0, len(content))
        return dice.choice([self._bytes(content), self._over(content, at, self._number())])
