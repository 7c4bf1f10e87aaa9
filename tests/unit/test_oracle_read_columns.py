"""Columns of Oracle's rows: what is selected, and that the values are those that the log has."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.oracle.moments import microseconds_of, parse_moment
from penstock.codec.oracle.read_columns import (
    CellBroken,
    MadeColumns,
    ReadColumn,
    make_columns,
    select_expression,
)
from penstock.codec.oracle.redo_outcome import RedoRow, Stop
from penstock.codec.oracle.sql_redo import Decoder
from penstock.model import Column, Relation

TEXT, BYTES = pa.large_string(), pa.large_binary()


def make(type_text: str, values: list[Any], kind: pa.DataType, neutral: str = "") -> MadeColumns:
    """Return the columns of one column's values; of a LOB they are pairs."""
    column = ReadColumn.of("V", type_text, neutral)
    if not column.is_lob:
        return make_columns(pa.record_batch({"V": pa.array(values, kind)}), [column])
    given = pa.array([one for one, _ in values], kind)
    there = pa.array([flag for _, flag in values], pa.int64())
    return make_columns(pa.record_batch({"V": given, "F": there}), [column])


def read_log(type_text: str, literal: str) -> Any:
    """Return the value that the log has for a literal of LogMiner."""
    column = ReadColumn.of("V", type_text)
    made = Column(name="V", source_type=type_text, neutral=column.neutral)
    while True:
        relation = Relation(schema="S", name="T", columns=(made,))
        decoder = Decoder()
        decoder.bind(1, relation)
        text = f'insert into "S"."T"("V") values ({literal})'
        decoder.decode([RedoRow(1, text, 1, "00", "0x1")], trx=1)
        if decoder.stop is not Stop.WIDEN:
            break
        made = made.as_text()
    (rows,) = decoder.take()
    return rows.batch.column("after").field(0), made.neutral


@pytest.mark.parametrize(
    ("type_text", "kind", "given", "literal"),
    [
        ("NUMBER(4,0)", pa.decimal128(4, 0), Decimal(-9999), "'-9999'"),
        ("NUMBER(9,0)", pa.decimal128(9, 0), Decimal(7), "'7'"),
        ("NUMBER(18,0)", pa.decimal128(18, 0), Decimal(10**18 - 1), f"'{10**18 - 1}'"),
        ("NUMBER(38,0)", pa.decimal128(38, 0), Decimal(10**38 - 1), f"'{10**38 - 1}'"),
        ("NUMBER(12,2)", pa.decimal128(12, 2), Decimal("-0.75"), "'-.75'"),
        ("NUMBER(5,-2)", TEXT, "1234500", "'1234500'"),
        ("NUMBER(3,5)", TEXT, ".00123", "'.00123'"),
        ("NUMBER", TEXT, "1.5", "'1.5'"),
        ("NUMBER", TEXT, "-.000001", "'-.000001'"),
        ("NUMBER", TEXT, "1E+100", "'1E+100'"),
        ("NUMBER", TEXT, "~", "'~'"),
        ("NUMBER(*,0)", TEXT, "12", "'12'"),
        ("NUMBER(*,0)", TEXT, f"{10**39}", f"'{10**39}'"),
        ("FLOAT(126)", TEXT, "3.25", "'3.25'"),
        ("BINARY_DOUBLE", pa.float64(), 1.5, "'1.5E+000'"),
        ("BINARY_FLOAT", pa.float32(), -0.25, "'-2.5E-001'"),
        ("BINARY_DOUBLE", pa.float64(), float("inf"), "'Inf'"),
        ("VARCHAR2(9)", TEXT, "it's", "'it''s'"),
        ("CHAR(3)", TEXT, "a  ", "'a  '"),
        ("NVARCHAR2(9)", TEXT, "é𝄞", r"UNISTR('\00E9\D834\DD1E')"),
        ("RAW(4)", BYTES, b"\0\xff", "HEXTORAW('00ff')"),
        ("DATE", TEXT, " 2026-02-28 13:45:59", _date := "TO_DATE('2026-02-28 13:45:59', "
         "'YYYY-MM-DD HH24:MI:SS')"),
        ("DATE", TEXT, "-0044-03-15 00:00:00", _date.replace("2026-02-28 13:45:59",
         "-0044-03-15 00:00:00").replace("YYYY", "SYYYY")),
        ("DATE", TEXT, " 1500-02-29 00:00:00", _date.replace("2026-02-28 13:45:59",
         "1500-02-29 00:00:00")),
        ("DATE", TEXT, " 9999-12-31 23:59:59", _date.replace("2026-02-28 13:45:59",
         "9999-12-31 23:59:59")),
        ("DATE", TEXT, " 0001-01-01 00:00:00", _date.replace("2026-02-28 13:45:59",
         "0001-01-01 00:00:00")),
        ("DATE", TEXT, " 0000-01-01 00:00:00", _date.replace("2026-02-28 13:45:59",
         "0000-01-01 00:00:00")),
        ("TIMESTAMP(6)", TEXT, " 2026-03-29 01:30:00.123456",
         "TO_TIMESTAMP('2026-03-29 01:30:00.123456000')"),
        ("TIMESTAMP(9)", TEXT, " 2026-03-29 01:30:00.123456000",
         "TO_TIMESTAMP('2026-03-29 01:30:00.123456000')"),
        ("TIMESTAMP(9)", TEXT, " 2026-03-29 01:30:00.123456789",
         "TO_TIMESTAMP('2026-03-29 01:30:00.123456789')"),
        ("TIMESTAMP(6) WITH TIME ZONE", TEXT, " 2026-03-29 01:30:00.500000000 +05:30",
         "TO_TIMESTAMP_TZ('2026-03-29 01:30:00.500000000 +05:30')"),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", TEXT, " 2026-10-25 02:30:00.250000",
         "TO_TIMESTAMP_TZ('2026-10-25 02:30:00.250000000')"),
        ("TIMESTAMP(9) WITH LOCAL TIME ZONE", TEXT, " 2026-10-25 02:30:00.250000001",
         "TO_TIMESTAMP_TZ('2026-10-25 02:30:00.250000001')"),
        ("INTERVAL YEAR(2) TO MONTH", TEXT, "-12-03", "TO_YMINTERVAL('-12-03')"),
        ("INTERVAL DAY(2) TO SECOND(6)", TEXT, "+05 04:03:02.123456",
         "TO_DSINTERVAL('+00005 04:03:02.123456')"),
        ("ROWID", TEXT, "AAAR3sAAEAAAACXAAA", "'AAAR3sAAEAAAACXAAA'"),
    ],
)  # fmt: skip
def test_values_are_those_of_the_log(
    type_text: str, kind: pa.DataType, given: Any, literal: str
) -> None:
    """A value cannot depend on the path by which it arrives, nor can its column's type."""
    logged, neutral = read_log(type_text, literal)
    made = make(type_text, [given, None], kind)
    assert made.columns[0].neutral == neutral
    assert made.as_text == ((0,) if neutral != ReadColumn.of("V", type_text).neutral else ())
    assert made.arrays[0].slice(0, 1).equals(logged)
    assert made.arrays[0][1].as_py() is None


@pytest.mark.parametrize(("base", "kind"), [("CLOB", TEXT), ("NCLOB", TEXT), ("BLOB", BYTES)])
def test_an_empty_lob_is_not_null(base: str, kind: pa.DataType) -> None:
    """The driver returns NULL for both; the second expression distinguishes them."""
    empty: Any = b"" if base == "BLOB" else ""
    full: Any = b"ab" if base == "BLOB" else "ab"
    made = make(base, [(None, 1), (None, 0), (full, 1), (empty, 1)], kind)
    assert made.arrays[0].to_pylist() == [empty, None, full, empty]
    assert make(base, [(None, 1), (None, 1)], kind).arrays[0].to_pylist() == [empty, empty]


def test_what_is_selected() -> None:
    """Values that the driver's Arrow would change are printed by the server."""
    shown = {
        "NUMBER(10,0)": '"V"',
        "NUMBER(38,10)": '"V"',
        "NUMBER": "TO_CHAR(\"V\", 'TM9')",
        "NUMBER(*,0)": "TO_CHAR(\"V\", 'TM9')",
        "NUMBER(5,-2)": "TO_CHAR(\"V\", 'TM9')",
        "NUMBER(3,5)": "TO_CHAR(\"V\", 'TM9')",
        "FLOAT(126)": "TO_CHAR(\"V\", 'TM9')",
        "DATE": "TO_CHAR(\"V\", 'SYYYY-MM-DD HH24:MI:SS')",
        "TIMESTAMP(3)": "TO_CHAR(\"V\", 'SYYYY-MM-DD HH24:MI:SS.FF6')",
        "TIMESTAMP(7)": "TO_CHAR(\"V\", 'SYYYY-MM-DD HH24:MI:SS.FF9')",
        "TIMESTAMP(6) WITH TIME ZONE": "TO_CHAR(\"V\", 'SYYYY-MM-DD HH24:MI:SS.FF6 TZH:TZM')",
        "INTERVAL YEAR(2) TO MONTH": 'TO_CHAR("V")',
        "CLOB": '"V", CASE WHEN "V" IS NULL THEN 0 ELSE 1 END',
        "ROWID": 'ROWIDTOCHAR("V")',
        "UROWID(100)": 'CAST("V" AS VARCHAR2(4000))',
        "RAW(9)": '"V"',
    }
    for type_text, expected in shown.items():
        assert select_expression(ReadColumn.of("V", type_text)) == expected


def test_a_column_that_became_text_stays_so() -> None:
    """Later batches of it are read as text, whatever the driver returns."""
    made = make("TIMESTAMP(9)", [" 2026-03-29 01:30:00.120000000"], TEXT, neutral="string")
    assert made.arrays[0].to_pylist() == ["2026-03-29 01:30:00.12"]
    assert make("NUMBER(9,2)", [Decimal("1.50")], pa.decimal128(9, 2), "string").arrays[
        0
    ].to_pylist() == ["1.5"]
    assert make("BINARY_DOUBLE", [1.5, float("nan")], pa.float64(), "string").arrays[
        0
    ].to_pylist() == ["1.5", "NaN"]


def test_a_value_of_another_form_is_an_error() -> None:
    """Never guess it; the message has the column and not the value."""
    for type_text, text in (("DATE", "28-FEB-26"), ("NUMBER", "1,5"), ("DATE", " 2026-02-30 0")):
        with pytest.raises(CellBroken, match="column V") as error:
            make(type_text, [text], TEXT)
        assert text not in str(error.value)
    with pytest.raises(ValueError, match="columns"):
        make_columns(pa.record_batch({"A": [1], "B": [2]}), [ReadColumn.of("A", "NUMBER(9,0)")])


@given(
    st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)),  # noqa: DTZ001
    st.sampled_from(["TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP(6) WITH LOCAL TIME ZONE", "DATE"]),
)
def test_whole_batches_are_read_as_single_values_are(time: datetime, type_text: str) -> None:
    """Arrow reads the texts of a batch as `parse_moment` does, in every year of both calendars."""
    digits = "" if type_text == "DATE" else f".{time.microsecond:06}"
    nanos = "000" if type_text == "TIMESTAMP(9)" else ""
    text = f" {time.year:04}-{time:%m-%d %H:%M:%S}{digits}{nanos}"
    moment = parse_moment(text.encode())
    together = make(type_text, [text, " 2026-01-01 00:00:00" + digits + nanos], TEXT)
    assert together.arrays[0][0].value == microseconds_of(moment)
    alone = make(type_text, [text, "-0044-03-15 00:00:00" + digits + nanos], TEXT)
    assert alone.arrays[0][0] == together.arrays[0][0]
