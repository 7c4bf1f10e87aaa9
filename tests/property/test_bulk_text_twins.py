"""Rows and lines of bulk loads: twin and kernel are equal, and their lines can be read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.twins.examples import examples
from penstock.codec.errors import CellUnfit, TextBroken
from penstock.codec.lines import CellForm, LineCell, LineDialect, LineForm, TextCell
from penstock.codec.mysql import mysqltext
from penstock.codec.mysql._mysqltext import RowLines as CompiledRowLines
from penstock.codec.mysql.mysqltext import RowStop
from penstock.codec.postgres import copytext
from penstock.codec.postgres._copytext import LoadLines as CompiledLoadLines
from penstock.model import PenstockError

CHARSETS = ("latin1", "swe7", "cp1251", "sjis", "gb18030", "utf16", "utf32", "ucs2", "ujis")
FIRST_ROOM_BYTES = 256 * 1024  # of the kernels' lines
EOF = b"\xfe\x00\x00\x22\x00"
NASTY = st.lists(
    st.sampled_from(
        [b"\\", b"\n", b"\t", b"\r", b"\0", b"a" * 9, b"\xc3\xa9", b"\xff", b"N", b"\v"]
    )
).map(b"".join)
DATES = st.sampled_from(
    [b"0000-00-00", b"0000-01-01", b"2024-00-10", b"2024-02-00 00:00:00", b"0000-12-31 23:59:59.5",
     b"9999-12-31", b"", b"0", b"0000-", b"2023-02-29", b"2024-02-29 01:02:03", b"1900-02-29",
     b"2000-02-29", b"2024-04-31", b"2024-13-01"]
)  # fmt: skip


def lenenc(data: bytes) -> bytes:
    """Return bytes after their length."""
    size = len(data)
    if size < 0xFB:
        return bytes([size]) + data
    if size < 2**16:
        return b"\xfc" + size.to_bytes(2, "little") + data
    return b"\xfd" + size.to_bytes(3, "little") + data


def packet(payload: bytes, number: int = 0) -> bytes:
    """Return a payload as packets; one of 16 MB less one byte continues in the next."""
    out = b""
    while len(payload) >= 0xFFFFFF:
        out += b"\xff\xff\xff\0" + payload[:0xFFFFFF]
        payload = payload[0xFFFFFF:]
    return out + len(payload).to_bytes(3, "little") + bytes([number]) + payload


def row(cells: Sequence[bytes | None]) -> bytes:
    """Return a row as a packet."""
    return packet(b"".join(b"\xfb" if cell is None else lenenc(cell) for cell in cells))


def outcome(lines: Any, block: bytes, cuts: Sequence[int]) -> Any:
    """Return every visible result of a block that arrives in pieces."""
    out, at, states = b"", 0, []
    for end in sorted({min(cut, len(block)) for cut in cuts} | {len(block)}):
        try:
            at = lines.feed(block, min(at, end), end)
        except PenstockError as error:
            return out, lines.row_count, type(error), error.message, error.fields
        out += lines.take()
        states.append((at, getattr(lines, "stop", None), lines.row_count))
    return out, states, getattr(lines, "message", b"")


@st.composite
def text_cells(draw: st.DrawFn) -> tuple[list[TextCell], list[list[bytes | None]]]:
    """Return columns, and rows that mostly suit them."""
    cells = draw(
        st.lists(
            st.builds(
                TextCell,
                form=st.sampled_from(CellForm),
                charset=st.sampled_from(CHARSETS),
                zero_is_null=st.booleans(),
                remove_zero=st.booleans(),
            ),
            min_size=1,
            max_size=5,
        )
    )
    value = st.one_of(st.none(), st.binary(max_size=300), NASTY, DATES, st.just(b"plain"))
    count = draw(st.integers(0, 4))
    return cells, [[draw(value) for _ in cells] for _ in range(count)]


@examples(1)
@given(
    text_cells(),
    st.sampled_from(LineDialect),
    st.lists(st.integers(0, 3000)),
    st.booleans(),
    st.data(),
)
def test_rows_become_the_same_lines(
    given_cells: tuple[list[TextCell], list[list[bytes | None]]],
    dialect: LineDialect,
    cuts: list[int],
    broken: bool,
    data: st.DataObject,
) -> None:
    """Lines are equal for any cells, any cuts of the block, and wrong bytes in it."""
    cells, values = given_cells
    block = b"".join(map(row, values)) + packet(EOF)
    if broken:
        at = data.draw(st.integers(0, len(block) - 1))
        block = block[:at] + bytes([data.draw(st.integers(0, 255))]) + block[at + 1 :]
    twin = outcome(mysqltext.RowLines(cells, dialect), block, cuts)
    assert outcome(CompiledRowLines(cells, dialect), block, cuts) == twin


@examples(1)
@given(st.lists(st.lists(st.none() | st.binary(max_size=40), min_size=2, max_size=2)))
def test_lines_can_be_read_back(values: list[list[bytes | None]]) -> None:
    """Parsed by the rules of LOAD DATA, lines give the cells again."""
    lines = CompiledRowLines([TextCell(form=CellForm.RAW)] * 2, LineDialect.LOAD_DATA)
    block = b"".join(map(row, values)) + packet(EOF)
    assert lines.feed(block, 0, len(block)) == len(block)
    assert lines.stop is RowStop.END
    escapes = {ord("n"): b"\n", ord("t"): b"\t", ord("r"): b"\r", ord("0"): b"\0"}

    def read(cell: bytes) -> bytes | None:
        if cell == b"\\N":
            return None
        out, at = b"", 0
        while at < len(cell):
            if cell[at] == ord("\\"):
                at += 1
                out += escapes.get(cell[at], cell[at : at + 1])
            else:
                out += cell[at : at + 1]
            at += 1
        return out

    found = [[read(cell) for cell in line.split(b"\t")] for line in lines.take().split(b"\n")[:-1]]
    assert found == values


@pytest.mark.parametrize("make", [mysqltext.RowLines, CompiledRowLines])
def test_a_row_of_more_than_16_mb_is_joined(make: Any) -> None:
    """Pieces of a packet are one row; until the last is there, none is used."""
    wide = b"x" * 0xFFFFFF + b"\\" * 10
    payload = b"\xfe" + len(wide).to_bytes(8, "little") + wide + b"\x01y"
    block = packet(payload) + packet(EOF)
    lines = make([TextCell(form=CellForm.UTF8), TextCell(form=CellForm.PLAIN)], LineDialect.COPY)
    assert lines.feed(block, 0, 0xFFFFFF + 10) == 0
    assert lines.feed(block, 0, len(block)) == len(block)
    assert lines.take() == b"x" * 0xFFFFFF + b"\\\\" * 10 + b"\ty\n"
    assert lines.stop is RowStop.END


@pytest.mark.parametrize("make", [mysqltext.RowLines, CompiledRowLines])
@pytest.mark.parametrize(
    ("cell", "value", "copy", "load"),
    [
        (TextCell(form=CellForm.UTF8), "é\\\n\t".encode(), "é\\\\\\n\\t".encode(), None),
        (TextCell(form=CellForm.BYTES), b"\x00\xff", b"\\\\x00ff", b"\\0\xff"),
        (TextCell(form=CellForm.CHARSET, charset="latin1"), b"\x80\xe9", "€é".encode(), None),
        (TextCell(form=CellForm.CHARSET, charset="sjis"), b"\x81\x5f", b"\\\\", None),
        (TextCell(form=CellForm.CHARSET, charset="utf16"), b"\x00\t", b"\\t", None),
        (TextCell(form=CellForm.DATE), b"0000-02-03", b"0001-02-03 BC", b"0000-02-03"),
        (TextCell(form=CellForm.DATE), b"2024-02-00", b"2024-02-00", None),
        (TextCell(form=CellForm.DATE, zero_is_null=True), b"2024-02-00", b"\\N", None),
        (TextCell(form=CellForm.DATE, zero_is_null=True), b"2023-02-29 01:00:00", b"\\N", None),
        (TextCell(form=CellForm.DATE, zero_is_null=True), b"2024-02-29", b"2024-02-29", None),
        (TextCell(form=CellForm.UTF8, remove_zero=True), b"a\0b", b"ab", None),
        (TextCell(form=CellForm.UTF8), None, b"\\N", None),
        (TextCell(form=CellForm.PLAIN), b"", b"", None),
    ],
)
def test_what_is_written(
    make: Any, cell: TextCell, value: bytes | None, copy: bytes, load: bytes | None
) -> None:
    """Each form is tested in both dialects."""
    block = row([value]) + packet(EOF)
    for dialect, expected in (
        (LineDialect.COPY, copy),
        (LineDialect.LOAD_DATA, copy if load is None else load),
    ):
        lines = make([cell], dialect)
        lines.feed(block, 0, len(block))
        assert lines.take() == expected + b"\n"


@pytest.mark.parametrize("make", [mysqltext.RowLines, CompiledRowLines])
def test_what_has_no_text_is_refused(make: Any) -> None:
    """A zero character for PostgreSQL and invalid characters are named by row and column."""
    for cell, value in (
        (TextCell(form=CellForm.UTF8), b"a\0"),
        (TextCell(form=CellForm.CHARSET, charset="greek"), b"\xff"),
        (TextCell(form=CellForm.CHARSET, charset="utf16"), b"\xd8\x00"),
    ):
        lines = make([TextCell(form=CellForm.PLAIN), cell], LineDialect.COPY)
        block = row([b"1", b"fine".ljust(8)]) + row([b"2", value])
        with pytest.raises(CellUnfit) as caught:
            lines.feed(block, 0, len(block))
        assert (caught.value.fields["row"], caught.value.fields["column"]) == (2, 1)


# -- from PostgreSQL -------------------------------------------------------------------------------

COPY_CELLS = {
    LineForm.PLAIN: st.sampled_from([b"12", b"12:00:00", b""]),
    LineForm.TEXT: st.lists(
        st.sampled_from([b"\\\\", b"\\n", b"\\v", b"\\f", b"\\b", b"\\t", b"x" * 9, b"\xc3\xa9"])
    ).map(b"".join),
    LineForm.NUMBER: st.sampled_from([b"1", b"-1.50", b"NaN", b"-Infinity", b"1e-300"]),
    LineForm.DATE: st.sampled_from([b"2024-01-01", b"infinity", b"0001-01-01 BC", b"10000-01-01"]),
    LineForm.ZONED: st.sampled_from(
        [b"2024-01-01 00:00:00+00", b"-infinity", b"0044-03-15 12:00:00+00 BC", b"2024-01-01 00"]
    ),
    LineForm.BOOL: st.sampled_from([b"t", b"f", b"x"]),
    LineForm.BYTES: st.binary(max_size=40).map(lambda data: b"\\\\x" + data.hex().encode())
    | st.sampled_from([b"\\\\x0", b"\\\\xZZ", b""]),
}


# This is shorter than any text that PostgreSQL writes.
SHORT_CELLS = st.sampled_from([b"", b"-", b"x", b"Na", b"\xff", b"2024-"])


def copy_data(*lines: bytes) -> bytes:
    """Return lines as CopyData frames."""
    return b"".join(b"d" + (len(line) + 5).to_bytes(4, "big") + line + b"\n" for line in lines)


@st.composite
def draw_frames(draw: st.DrawFn) -> tuple[list[LineCell], bytes]:
    """Return columns, and frames of rows that mostly suit them."""
    cells = draw(
        st.lists(
            st.builds(LineCell, form=st.sampled_from(LineForm), unfit_is_null=st.booleans()),
            min_size=1,
            max_size=5,
        )
    )
    other = st.just(b"\\N") | (SHORT_CELLS if draw(st.booleans()) else st.nothing())
    lines = [
        b"\t".join(draw(COPY_CELLS[cell.form] | other) for cell in cells)
        for _ in range(draw(st.integers(0, 4)))
    ]
    return cells, copy_data(*lines) + b"c\0\0\0\x04"


@examples(1)
@given(draw_frames(), st.lists(st.integers(0, 600)), st.booleans(), st.data())
def test_lines_of_copy_become_the_same_lines(
    given_cells: tuple[list[LineCell], bytes], cuts: list[int], broken: bool, data: st.DataObject
) -> None:
    """Lines are equal for any cells, any cuts of the block, and wrong bytes in it."""
    cells, block = given_cells
    if broken:
        at = data.draw(st.integers(0, len(block) - 1))
        block = block[:at] + bytes([data.draw(st.integers(0, 255))]) + block[at + 1 :]
    twin = outcome(copytext.LoadLines(cells), block, cuts)
    assert outcome(CompiledLoadLines(cells), block, cuts) == twin


@examples(0.1)
@given(
    st.lists(
        st.builds(LineCell, form=st.sampled_from(LineForm), unfit_is_null=st.booleans()),
        min_size=1,
        max_size=3,
    ),
    st.integers(FIRST_ROOM_BYTES, 3 * FIRST_ROOM_BYTES),
    st.data(),
)
def test_frames_above_the_first_room_become_the_same_lines(
    cells: list[LineCell], size: int, data: st.DataObject
) -> None:
    """One frame has many lines: the kernel's buffer for it holds all of them."""
    line = b"\t".join(data.draw(COPY_CELLS[cell.form] | SHORT_CELLS) for cell in cells)
    block = copy_data(b"\n".join([line] * (size // (len(line) + 1) + 1)))
    twin = outcome(copytext.LoadLines(cells), block, [])
    assert outcome(CompiledLoadLines(cells), block, []) == twin


@pytest.mark.parametrize("make", [copytext.LoadLines, CompiledLoadLines])
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((LineForm.NUMBER, text) for text in (b"", b"-", b"x", b"Na", b"-x")),
        *((LineForm.DATE, text) for text in (b"", b"2", b"2024-", b"infinit")),
        *((LineForm.ZONED, text) for text in (b"", b"2", b"2024-+0", b"infinit")),
    ],
)
def test_a_cell_too_short_for_any_value_is_broken(
    make: Any, null: bool, form: LineForm, text: bytes
) -> None:
    """The cell does not become NULL, which is longer: lines fit because no cell grows."""
    lines = make([LineCell(form=form, unfit_is_null=null)])
    block = copy_data(b"\n".join([text] * 100_000))
    with pytest.raises(TextBroken):
        lines.feed(block, 0, len(block))


@pytest.mark.parametrize("make", [copytext.LoadLines, CompiledLoadLines])
def test_what_differs_between_copy_and_load_data(make: Any) -> None:
    """The differences are escapes, bytes, booleans, times in UTC, and which values become NULL."""
    forms = (LineForm.TEXT, LineForm.BYTES, LineForm.BOOL, LineForm.ZONED, LineForm.DATE)
    lines = make([LineCell(form=form, unfit_is_null=True) for form in forms])
    block = copy_data(
        b"a\\vb\\f\\\\n\t\\\\x005c0a41\tt\t2024-01-01 00:00:00.5+00\tinfinity",
        b"\\N\t\\N\tf\t\\N\t0044-03-15 BC",
    )
    assert lines.feed(block, 0, len(block)) == len(block)
    assert lines.take() == (
        b"a\vb\f\\\\n\t\\0\\\\\\nA\t1\t2024-01-01 00:00:00.5\t\\N\n\\N\t\\N\t0\t\\N\t\\N\n"
    )


@pytest.mark.parametrize("make", [copytext.LoadLines, CompiledLoadLines])
@pytest.mark.parametrize("line", [b"1", b"1\t2\t3", b"1\t2\t", b"", b"1\t2\n1"])
def test_a_line_that_has_not_its_cells_is_refused(make: Any, line: bytes) -> None:
    """A line with a cell too few or too many is refused.

    Otherwise it would take a cell of the next line, or shift all later cells.
    """
    lines = make([LineCell(form=LineForm.PLAIN)] * 2)
    with pytest.raises(PenstockError):
        lines.feed(copy_data(b"1\t2", line), 0, len(copy_data(b"1\t2", line)))
