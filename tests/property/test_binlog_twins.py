"""Equality of twin and kernel for any bytes: valid binlogs, cut ones and broken ones."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from harness.twins.binlog import recorded_files
from harness.twins.binlog_events import (
    DELETE,
    KINDS,
    LABELS,
    UPDATE,
    WRITE,
    Log,
    Table,
    bare,
    gtid_body,
    image,
    maria_body,
    payload_body,
    query_body,
    rows_body,
)
from harness.twins.binlog_twins import MODES, WORLD, Case, assert_same, is_refused
from harness.twins.examples import examples
from penstock.codec.mysql import binlog_compressed
from penstock.codec.mysql.binary_json import Opaque, encode_json
from penstock.codec.mysql.binlog_events import EventKind

CORPUS = Path(__file__).parent / "corpus" / "binlog"

# --- values as a server stores them

_REST_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_value(number: int, precision: int, scale: int) -> bytes:
    """Return a DECIMAL of `number` units of its last digit."""
    digits = str(abs(number)).rjust(precision, "0")
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    groups = [whole[: len(whole) % 9]] if len(whole) % 9 else []
    groups += [whole[at : at + 9] for at in range(len(whole) % 9, len(whole), 9)]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    data = b"".join(int(group).to_bytes(_REST_BYTES[len(group)]) for group in groups)
    if number < 0:
        data = bytes(byte ^ 0xFF for byte in data)
    return bytes((data[0] ^ 0x80,)) + data[1:]


def decimals(precision: int, scale: int) -> st.SearchStrategy[bytes]:
    """Return DECIMALs of all digits."""
    top = 10**precision - 1
    return st.integers(-top, top).map(lambda number: decimal_value(number, precision, scale))


def fractions(digits: int) -> st.SearchStrategy[bytes]:
    """Return fractions of a second as stored."""
    size = (digits + 1) // 2
    return st.integers(0, 10**digits - 1).map(
        lambda number: (number * 10 ** (2 * size - digits)).to_bytes(size)
    )


@st.composite
def dates(draw: st.DrawFn) -> bytes:
    """Return dates, impossible ones too."""
    year, month, day = (draw(st.integers(0, top)) for top in (9999, 12, 31))
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


@st.composite
def datetimes(draw: st.DrawFn, digits: int) -> bytes:
    """Return DATETIMEs, impossible ones too."""
    year, month, day, hour, minute, second = (
        draw(st.integers(0, top)) for top in (9999, 12, 31, 23, 59, 59)
    )
    packed = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    return (packed + 0x80_0000_0000).to_bytes(5) + draw(fractions(digits))


@st.composite
def times(draw: st.DrawFn, digits: int) -> bytes:
    """Return TIMEs of both signs."""
    hour, minute, second = (draw(st.integers(0, top)) for top in (838, 59, 59))
    fraction = draw(fractions(digits))
    packed = int.from_bytes((hour << 12 | minute << 6 | second).to_bytes(3) + fraction)
    zero = 0x80_0000 << 8 * len(fraction)
    return (zero + (-packed if draw(st.booleans()) else packed)).to_bytes(3 + len(fraction))


def _moment(seconds: int) -> Opaque:
    """Return a DATETIME inside a document; the number spreads over its calendar parts."""
    month, day = seconds % 13, seconds % 32
    whole = ((2024 * 13 + month) << 5 | day) << 17 | (seconds % 24) << 12
    return Opaque(12, struct.pack("<q", whole << 24 | seconds % 1_000_000))


def scalars() -> st.SearchStrategy[Any]:
    """Return values that can be a document of their own."""
    opaque = st.one_of(
        decimals(12, 3).map(lambda data: Opaque(246, b"\x0c\x03" + data)),
        st.binary(max_size=9).map(lambda data: Opaque(252, data)),
        st.sampled_from([0x19BAB21900_000000, 0, 0x7FFF_FFFF]).map(_moment),
    )
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(10**6), 10**6).map(lambda number: number / 1000),
        st.text(max_size=12),
        opaque,
    )


def documents() -> st.SearchStrategy[bytes]:
    """Return stored documents."""
    trees = st.recursive(
        scalars(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        ),
        max_leaves=8,
    )
    return trees.map(encode_json)


def text(codec: str, most: int) -> st.SearchStrategy[bytes]:
    """Return encoded text."""
    return st.text(max_size=most).map(lambda value: value.encode(codec, "ignore")[: 4 * most])


def whole_numbers(size: int) -> st.SearchStrategy[bytes]:
    """Return any bytes of a length."""
    return st.binary(min_size=size, max_size=size)


def reals(size: int) -> st.SearchStrategy[bytes]:
    """Return finite floats."""
    form = "<f" if size == 4 else "<d"
    return st.floats(width=8 * size, allow_nan=False, allow_infinity=False).map(  # type: ignore[call-overload,no-any-return]
        lambda value: struct.pack(form, value)
    )


VALUES: dict[str, st.SearchStrategy[bytes]] = {
    name: whole_numbers(kind.size) for name, kind in KINDS.items() if kind.code in (1, 2, 3, 8, 9)
} | {
    "float": reals(4),
    "double": reals(8),
    "decimal(10,4)": decimals(10, 4),
    "decimal(38,10)": decimals(38, 10),
    "decimal(65,30)": decimals(65, 30),
    "decimal(5,5)": decimals(5, 5),
    "bit(9)": st.integers(0, 511).map(lambda number: number.to_bytes(2)),
    "bit(64)": whole_numbers(8),
    "year": whole_numbers(1),
    "date": dates(),
    "time": times(0),
    "time(3)": times(3),
    "time(6)": times(6),
    "datetime": datetimes(0),
    "datetime(2)": datetimes(2),
    "datetime(6)": datetimes(6),
    "timestamp": whole_numbers(4),
    "timestamp(6)": st.builds(lambda a, b: a + b, whole_numbers(4), fractions(6)),
    "old time": st.builds(
        lambda h, m, s, sign: (sign * (h * 10_000 + m * 100 + s)).to_bytes(
            3, "little", signed=True
        ),
        st.integers(0, 838),
        st.integers(0, 59),
        st.integers(0, 59),
        st.sampled_from([-1, 1]),
    ),
    "old datetime": st.builds(
        lambda y, mo, d, h: (((y * 100 + mo) * 100 + d) * 1_000_000 + h).to_bytes(8, "little"),
        st.integers(0, 9999),
        st.integers(0, 12),
        st.integers(0, 31),
        st.sampled_from([0, 235_959]),
    ),
    "old timestamp": whole_numbers(4),
    "varchar(60)": text("utf-8", 20),
    "varchar(300) latin1": st.binary(max_size=40),
    "varchar(20) gbk": st.text(st.sampled_from("ab 中文繁"), max_size=12).map(
        lambda value: value.encode("gbk")
    ),
    "char(200)": text("utf-8", 20),
    "binary(4)": st.binary(max_size=4),
    "varbinary(10)": st.binary(max_size=10),
    "tinytext": text("utf-8", 20),
    "blob": st.binary(max_size=40),
    "mediumblob": st.binary(max_size=40),
    "longtext": text("utf-8", 40),
    "enum": st.integers(0, len(LABELS)).map(lambda number: bytes((number,))),
    "set": st.integers(0, 2 ** len(LABELS) - 1).map(lambda number: bytes((number,))),
    "json": documents(),
    "geometry": st.builds(
        lambda srid, point: struct.pack("<IBI", srid, 1, 1) + point,
        st.sampled_from([0, 4326]),
        whole_numbers(16),
    ),
}


def proper(name: str) -> st.SearchStrategy[bytes]:
    """Return values as a server stores them."""
    return VALUES[name]


def spice_values(name: str) -> st.SearchStrategy[bytes]:
    """Return values of the right length, most of them broken; any bytes if the length is free."""
    kind = KINDS[name]
    if kind.prefix:
        most = min(40, 2 ** (8 * kind.prefix) - 1)
        return st.one_of(VALUES[name], st.binary(max_size=most), VALUES[name].map(_bitten))
    return st.one_of(VALUES[name], whole_numbers(kind.size))


def _bitten(data: bytes) -> bytes:
    """Return the data with a flipped bit, whose place depends on the data."""
    if not data:
        return data
    at = sum(data) % len(data)
    return data[:at] + bytes((data[at] ^ 1 << len(data) % 8,)) + data[at + 1 :]


# --- rows and streams


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Return a table of up to twelve columns of any types, with and without a key."""
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12)))
    key = tuple(draw(st.permutations(range(len(kinds))))[: draw(st.integers(0, 2))])
    table_id = draw(st.integers(1, 2**48 - 1).filter(lambda number: number != 0xFFFFFF))
    return Table(kinds=kinds, key=key, table_id=table_id, nullable=draw(st.booleans()))


Values = Any


@st.composite
def rows_events(draw: st.DrawFn, table: Table, values: Values) -> tuple[int, bytes]:
    """Return one rows event of one to three rows, with whole or partial images."""
    every = list(range(len(table.kinds)))

    def cells() -> list[bytes | None]:
        return [
            None if draw(st.integers(0, 9)) == 0 else draw(values(name)) for name in table.kinds
        ]

    def some(must: tuple[int, ...] = ()) -> list[int]:
        if draw(st.booleans()):
            return every
        chosen = draw(st.sets(st.sampled_from(every), min_size=1))
        return sorted(chosen | set(must))

    kind = draw(st.sampled_from([WRITE, UPDATE, DELETE]))
    before = some(table.key or tuple(every))
    after = some()
    rows = b""
    for _ in range(draw(st.integers(1, 3))):
        old = cells()
        if kind != WRITE:
            rows += image(table, old, before)
        if kind != DELETE:
            new = old if draw(st.booleans()) else cells()
            rows += image(table, new, after)
    version = 7 if draw(st.booleans()) else 0  # kinds of the first version are lower by seven
    return kind - version, rows_body(table, kind - version, rows, before=before, after=after)


@st.composite
def logs(draw: st.DrawFn, shapes: list[Table], values: Values, maria: bool = False) -> Log:
    """Return transactions, also empty and open ones, with other events between."""
    version = "10.11.6-MariaDB" if maria else "8.0.40"
    log = Log(checksums=draw(st.booleans()), version=version)
    for number in range(1, draw(st.integers(1, 4)) + 1):
        if maria:
            flags, more = draw(st.sampled_from([(0, 0), (4, 0), (2, 8), (0x44, 0)]))
            log.add(EventKind.MARIA_GTID, maria_body(number, flags, more=bytes(more)))
        else:
            log.begin(number)
        for _ in range(draw(st.integers(0, 4))):
            table = draw(st.sampled_from(shapes))
            log.table(table)
            for _ in range(draw(st.integers(0, 2))):
                log.add(*draw(rows_events(table, values)))
            if draw(st.integers(0, 4)) == 0:
                log.add(draw(st.sampled_from([EventKind.HEARTBEAT, EventKind.ROWS_QUERY])), b"x")
        if draw(st.integers(0, 3)):
            log.commit(number)
        else:
            ending = draw(st.sampled_from(["COMMIT", "ROLLBACK", "SAVEPOINT `a`"]))
            log.add(EventKind.QUERY, query_body(ending))
            if ending.startswith("S"):
                break
    if draw(st.integers(0, 5)) == 0:
        log.rotate("binlog.000009")
    return log


@given(data=st.data(), shapes=st.lists(tables(), min_size=1, max_size=3))
def test_valid_logs_decode_equally_however_they_are_cut(
    data: st.DataObject, shapes: list[Table]
) -> None:
    """Rows, numbers, places, stops and batches are the same, with any limits and blocks."""
    shapes = list({shape.table_id: shape for shape in shapes}.values())
    maria = data.draw(st.booleans())
    shapes = [replace(shape, is_mariadb=maria) for shape in shapes]
    log = data.draw(logs(shapes, proper, maria=maria))
    mode = data.draw(st.sampled_from(["packets", "file"]))
    block = log.packets() if mode == "packets" else log.file()
    case = Case(
        block=block,
        mode=mode,
        cuts=tuple(data.draw(st.lists(st.integers(0, len(block)), max_size=4))),
        row_limit=data.draw(st.integers(1, 12)),
        commit_limit=data.draw(st.none() | st.integers(0, 4)),
        byte_limit=data.draw(st.sampled_from([1, 500, 1 << 20])),
    )
    events, _ = assert_same(case)
    assert not is_refused(events), "a valid log was refused"


@given(data=st.data())
@examples(0.03)  # each decodes a hundred cuts or more
def test_a_log_cut_at_every_byte_gives_the_same_rows(data: st.DataObject) -> None:
    """Every split of a block in two gives the rows of the whole (of a long block, some)."""
    block = data.draw(logs(list(WORLD.values()), proper)).packets()
    _, whole = assert_same(Case(block=block))
    counts = sorted((rows.relation.name, rows.batch.num_rows) for rows in whole)
    for cut in range(0, len(block) + 1, max(1, len(block) // 150)):
        _, parts = assert_same(Case(block=block, cuts=(cut,)))
        assert sorted((rows.relation.name, rows.batch.num_rows) for rows in parts) == counts


@given(data=st.data())
@examples(0.4)  # the tables have every type
def test_payloads_decode_equally_in_pieces_of_any_length(data: st.DataObject) -> None:
    """The payload has a transaction's rows, sometimes a misplaced event, or is cut off."""
    log = data.draw(logs(list(WORLD.values()), proper))
    inside = [
        bare(event[4], event[19 : -4 if log.checksums or event[4] == 15 else None])
        for event in log.events
        if event[4] not in (4, 15, 33) or data.draw(st.integers(0, 30)) == 0
    ]
    if inside and data.draw(st.integers(0, 4)) == 0:
        inside[-1] = inside[-1][: data.draw(st.integers(0, len(inside[-1])))]
    outer = Log(checksums=False).add(EventKind.GTID, gtid_body(1))
    body = payload_body(*inside, zstd=data.draw(st.booleans()))
    block = outer.add(EventKind.TRANSACTION_PAYLOAD, body).begin(2).commit().packets()
    whole, rows = assert_same(Case(block=block))
    with patch.object(binlog_compressed, "CHUNK_BYTES", data.draw(st.integers(1, 300))):
        _, pieces = assert_same(Case(block=block))
    if not is_refused(whole):
        assert sum(one.batch.num_rows for one in pieces) == sum(one.batch.num_rows for one in rows)
    assert_same(Case(block=block, row_limit=data.draw(st.integers(1, 4)), commit_limit=0))


@given(data=st.data(), shapes=st.lists(tables(), min_size=1, max_size=2))
@examples(0.4)  # the tables have every type
def test_broken_values_fail_equally(data: st.DataObject, shapes: list[Table]) -> None:
    """Each is right, widened or refused by both, at the same place."""
    log = data.draw(logs(shapes[:1], spice_values))
    assert_same(Case(block=log.packets()))


@given(data=st.data())
@examples(0.4)  # the tables have every type
def test_broken_events_fail_equally(data: st.DataObject) -> None:
    """One event has changed, removed or added bytes, and a valid head and packet."""
    log = data.draw(logs(list(WORLD.values()), proper))
    log.checksums = False
    where = data.draw(st.integers(1, len(log.events) - 1)) if len(log.events) > 1 else 0
    kind, body = log.events[where][4], bytearray(log.events[where][19:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    changed = Log(checksums=False)
    changed.begin()
    for table in WORLD.values():
        changed.table(table)
    changed.add(kind, bytes(body)).commit()
    assert_same(Case(block=changed.packets(), row_limit=2))


@given(data=st.data())
@examples(0.4)  # the tables have every type
def test_broken_bytes_fail_equally(data: st.DataObject) -> None:
    """Bytes are changed, removed, doubled or cut off anywhere, lengths too."""
    block = bytearray(data.draw(logs(list(WORLD.values()), proper)).packets())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(block)))
        drop = data.draw(st.integers(0, 3))
        block[at : at + drop] = data.draw(st.binary(max_size=4))
    assert_same(Case(block=bytes(block), cuts=(data.draw(st.integers(0, len(block))),)))


@given(data=st.data())
@examples(0.4)  # the tables have every type
def test_parked_rows_replay_equally(data: st.DataObject) -> None:
    """The events are those of a transaction that was parked, whole and broken."""
    table = data.draw(st.sampled_from(list(WORLD.values())))
    parts = [bare(EventKind.TABLE_MAP, table.body())]
    for _ in range(data.draw(st.integers(0, 3))):
        parts.append(bare(*data.draw(rows_events(table, spice_values))))
    block = bytearray(b"".join(parts))
    if data.draw(st.booleans()):
        block[data.draw(st.integers(0, len(block) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert_same(Case(block=bytes(block), mode="replay", row_limit=2))


@given(data=st.data())
@examples(0.2)
def test_recorded_logs_with_a_broken_event_fail_equally(data: st.DataObject) -> None:
    """A byte of a real event is changed under a checksum that is not verified."""
    name = data.draw(st.sampled_from(["mysql-9.7", "mariadb-11.4"]))
    _, file = data.draw(st.sampled_from(recorded_files(name)[3:4]))
    block = bytearray(file)
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(200, len(block) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert_same(Case(block=bytes(block), mode="file", row_limit=100))


@given(st.binary(max_size=300))
def test_any_bytes_are_handled_equally(block: bytes) -> None:
    """Noise gives a typed error or nothing, in every mode."""
    for mode in MODES:
        assert_same(Case(block=block, mode=mode))


def test_kept_inputs_are_handled_equally() -> None:
    """The fuzzer kept these inputs because they reached new code or once failed."""
    paths = sorted(CORPUS.glob("*.bin"))
    assert paths
    for path in paths:
        check_kept(path)


def check_kept(path: Path) -> None:
    """Check one input; pytest shows the path of one that fails."""
    assert_same(Case.of(path.read_bytes()))


def test_doubles_in_documents_are_printed_equally() -> None:
    """The digits are the shortest: powers of two and ten, their neighbours, short decimals."""
    numbers = [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 0.3, 1 / 3, 123456789.125]
    for exponent in range(-40, 41):
        for base in (2.0**exponent, 10.0**exponent, 1.5 * 10.0**exponent, 12345.0 * 2.0**exponent):
            numbers += [base, math.nextafter(base, 0), math.nextafter(base, math.inf), -base]
    table = Table(kinds=("int", "json"), name="doubles", table_id=9)
    log = Log().begin().table(table)
    for number in numbers:
        log.add(WRITE, rows_body(table, WRITE, image(table, [b"\0" * 4, encode_json(number)])))
    events, _ = assert_same(Case(block=log.commit().packets()))
    assert not is_refused(events)


def test_other_transactions_begin_behind_any_gtid() -> None:
    """Transactions begin with anonymous and old GTID events, and with a BEGIN without one."""
    for kind, body in (
        (EventKind.GTID, gtid_body(5)[:25]),
        (EventKind.ANONYMOUS_GTID, gtid_body(0)),
        (EventKind.QUERY, query_body("BEGIN")),
        (EventKind.QUERY, query_body("create table t (id int)")),
    ):
        log = Log().add(kind, body).add(EventKind.QUERY, query_body("COMMIT")).begin().commit()
        assert_same(Case(block=log.packets(), commit_limit=0))
