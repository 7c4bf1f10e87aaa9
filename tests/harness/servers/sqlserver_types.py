"""Types of SQL Server with their extremes, as its driver returns them, and their way to a target.

No SQL Server prints these values: they follow the reference's section 7. Not here: the sides
(`types_across.py`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping as Namespace
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa

from harness.servers.types_across import MySQLSide, PostgresSide, Waiting
from penstock.codec.arrow_lines import copy_lines, text_of
from penstock.codec.errors import CellUnfit
from penstock.codec.image_cells import ImageCell, parse_template
from penstock.codec.row_images import text_of as image_text
from penstock.codec.server_pair import ServerPair
from penstock.codec.sqlserver.columns import SourceColumn, make_columns, select_expression
from penstock.codec.sqlserver.goals import Goal, reach
from penstock.codec.sqlserver.row_images import image_batch
from penstock.codec.types import (
    Choices,
    Engine,
    Mapping,
    Server,
    fill_template,
    map_column,
    prepare_values,
)
from penstock.codec.types.mapping import Kind
from penstock.engines.sqlserver.reading.read_plan import read_plan
from penstock.model import ColumnDefinition, TableName

SERVER = Server(engine=Engine.SQLSERVER, version=(16, 0, 4135, 4))
TEXT, BYTES = pa.large_string(), pa.large_binary()
POINT = "0101000000000000000000244000000000000 0F03F".replace(" ", "")
NINES = "9" * 38


class Values(NamedTuple):
    """Values of a type. arrow: type in the driver's record batch."""

    arrow: pa.DataType
    values: list[Any]


def _moments(*texts: str) -> list[int]:
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone
    us = dt.timedelta(microseconds=1)
    return [(dt.datetime.fromisoformat(text) - epoch) // us for text in texts]


TYPES: dict[str, Values] = {
    "bit": Values(pa.bool_(), [True, False]),
    "tinyint": Values(pa.uint8(), [0, 255]),
    "smallint": Values(pa.int16(), [-32768, 32767]),
    "int": Values(pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": Values(pa.int64(), [-(2**63), 2**63 - 1]),
    "decimal(12,2)": Values(pa.decimal128(12, 2), [Decimal("-9999999999.99"), Decimal("0.10")]),
    "decimal(38,0)": Values(pa.decimal128(38, 0), [Decimal(NINES), Decimal(f"-{NINES}")]),
    "decimal(38,10)": Values(
        pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal(0)]
    ),
    "decimal(38,38)": Values(
        pa.decimal128(38, 38),
        [Decimal("0.1"), Decimal(f"0.{NINES}"), Decimal(f"-0.{'0' * 37}1")],
    ),
    "money": Values(
        pa.decimal128(19, 4), [Decimal("922337203685477.5807"), Decimal("-922337203685477.5808")]
    ),
    "smallmoney": Values(pa.decimal128(10, 4), [Decimal("-214748.3648"), Decimal("214748.3647")]),
    "real": Values(
        pa.float32(), [3.4028234663852886e38, -1.1754943508222875e-38, 0.1, 0.0, 16777216.0]
    ),
    "float": Values(
        pa.float64(),
        [1.7976931348623157e308, 2.2250738585072014e-308, -0.1, 0.0, 9007199254740993.0, 1e22],
    ),
    "date": Values(pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1582, 10, 10)]),
    "time(0)": Values(pa.time64("ns"), [0, 86_399_000_000_000]),
    "time(3)": Values(pa.time64("ns"), [86_399_999_000_000, 500_000_000]),
    "time(7)": Values(
        pa.time64("ns"), [86_399_999_999_900, 0, 36_000_123_456_500, 36_000_123_456_000]
    ),
    "datetime": Values(
        pa.timestamp("us"), _moments("1753-01-01", "9999-12-31T23:59:59.997", "2026-03-04T05:06:07")
    ),
    "smalldatetime": Values(pa.timestamp("us"), _moments("1900-01-01", "2079-06-06T23:59:00")),
    "datetime2(3)": Values(pa.timestamp("us"), _moments("0001-01-01", "9999-12-31T23:59:59.999")),
    "datetime2(7)": Values(
        TEXT,
        [
            "0001-01-01T00:00:00",
            "2026-03-04T05:06:07.123456",
            "2026-03-04T05:06:07.1234565",
            "2026-03-04T05:06:07.1234575",
            "9998-12-31T23:59:59.9999999",
        ],
    ),
    "datetimeoffset(0)": Values(
        TEXT,
        ["0001-01-01T14:00:00+14:00", "9999-12-31T09:59:59-14:00", "2026-03-04T05:06:07+00:00"],
    ),
    "datetimeoffset(7)": Values(
        TEXT,
        [
            "2026-03-04T05:06:07.1234567+05:30",
            "2026-03-04T05:06:07.1234565+00:00",
            "2026-03-04T05:06:07.5+00:00",
            "1999-12-31T23:59:59.9999999-00:30",
        ],
    ),
    "char(4)": Values(TEXT, ["ab  ", "    "]),
    "nchar(4)": Values(TEXT, ["é😀 ", "ÅÅÅÅ"]),
    "varchar(50)": Values(TEXT, ["", 'it\'s, "ok"\\\t\n\r', "trailing  ", "x" * 50]),
    "varchar(max)": Values(TEXT, ["long " * 4000]),
    "nvarchar(50)": Values(TEXT, ["你好😀", "a\0b"]),
    "nvarchar(max)": Values(TEXT, ["\\N", "é" * 10_000]),
    "text": Values(TEXT, ["a"]),
    "ntext": Values(TEXT, ["ß"]),
    "xml": Values(TEXT, ['<a b="1">&lt;</a>']),
    "json": Values(TEXT, ['{"a": 1.0, "b": "é"}']),
    "binary(4)": Values(BYTES, [b"\1\2\0\0", bytes(4)]),
    "varbinary(8)": Values(BYTES, [b"", b"\xff\0\\\t\n"]),
    "varbinary(max)": Values(BYTES, [bytes(range(256)) * 40]),
    "image": Values(BYTES, [b"\x89PNG"]),
    "rowversion": Values(BYTES, [bytes(6) + b"\7\xd1"]),
    "uniqueidentifier": Values(TEXT, ["6F9619FF-8B86-D011-B42D-00C04FC964FF"]),
    "sql_variant": Values(TEXT, ["int:5", "nvarchar:5", "datetime2:2026-03-04T05:06:07.1234567"]),
    "hierarchyid": Values(TEXT, ["/", "/1/2.1/"]),
    "geometry": Values(TEXT, [f"0:{POINT}", f"4326:{POINT}"]),
    "geography": Values(TEXT, [f"4326:{POINT}"]),
}
FINE = frozenset(("time(7)", "datetime2(7)", "datetimeoffset(7)"))
WITH_OFFSET = frozenset(("datetimeoffset(0)", "datetimeoffset(7)"))


def definition(type_text: str) -> ColumnDefinition:
    """Return a column v of this type."""
    column = SourceColumn.of("v", type_text)
    return ColumnDefinition(
        name="v", type_text=column.kind.text, type_oid=0, typmod=-1, neutral=column.neutral
    )


def driver_batch(type_text: str) -> pa.RecordBatch:
    """Return the values of a type, and a NULL, as the driver returns them."""
    arrow, values = TYPES[type_text]
    return pa.record_batch({"v": pa.array([*values, None], arrow)})


@dataclass
class Carried:
    """Results of a column's values, by their number.

    Attributes:
        source: texts of the source that are compared.
        change: texts in the target of values that came as changes.
        bulk: texts in the target of values that came by the bulk load.
        errors: reasons why a change was not written.
        bulk_error: reason why the bulk load stopped; empty if it did not.
    """

    mapping: Mapping
    source: list[str | None]
    change: dict[int, str | None]
    bulk: dict[int, str | None]
    errors: dict[int, str]
    bulk_error: str = ""


def source_texts(type_text: str, mapping: Mapping) -> list[str | None]:
    """Return the texts by which the source's values are compared."""
    kind, change = parse_template(mapping.equal.source)
    cell = ImageCell("v", kind, is_any=False, is_long=False, is_bytes=False, change=change)
    made = image_batch(driver_batch(type_text), [SourceColumn.of("v", type_text)], [cell])
    return list(image_text(made.column(0), Kind[kind]).to_pylist())


def carry(
    type_text: str,
    target: PostgresSide | MySQLSide,
    into: str,
    choices: Choices,
) -> Carried:
    """Copy values by the table's rules: as changes into table `into`, in bulk into `into`_bulk."""
    column = definition(type_text)
    plain = map_column(column, SERVER, target.server, choices=choices)
    target.make(into, plain.target_type)
    target.make(f"{into}_bulk", plain.target_type)
    errors = _write_changes(column, target, into, choices)
    bulk_error = _write_bulk(column, target, f"{into}_bulk", plain)
    return Carried(
        mapping=plain,
        source=source_texts(type_text, plain),
        change=target.texts(into, plain.equal.target),
        bulk=target.texts(f"{into}_bulk", plain.equal.target),
        errors=errors,
        bulk_error=bulk_error,
    )


def _write_changes(
    column: ColumnDefinition, target: PostgresSide | MySQLSide, into: str, choices: Choices
) -> dict[int, str]:
    errors = {}
    batch = driver_batch(column.type_text)
    for number in range(batch.num_rows):  # each alone: only some values turn the column into text
        made = make_columns(batch.slice(number, 1), [SourceColumn.from_column(column)])
        held = replace(column, neutral=made.columns[0].neutral)
        mapping = map_column(held, SERVER, target.server, choices=choices)
        values = prepare_values(made.arrays[0], mapping.write.prepare)
        waiting = Waiting(held.neutral, _stage(values, held.neutral))
        expression = "null"  # a template over it is typed only in a merge table
        if waiting.value is not None:
            expression = fill_template(mapping.write.sql, target.operand(waiting, held))
        if error := target.put(into, number, expression):
            errors[number] = error
    return errors


def _stage(values: Any, neutral: str) -> str | bytes | None:
    """Return a value as a merge table holds it: bytes, or Arrow's text."""
    if not values[0].is_valid:
        return None
    if neutral == "binary":
        return bytes(values[0].as_py())
    if neutral == "uuid":
        return str(UUID(bytes=values[0].as_py()))
    return bytes(text_of(values)[0].as_py()).decode()


def _write_bulk(
    column: ColumnDefinition, target: PostgresSide | MySQLSide, into: str, mapping: Mapping
) -> str:
    """Write the values as lines do; return the error that stopped them."""
    servers = ServerPair(source=SERVER, target=target.server)
    plan = read_plan([column], {"v": mapping}, servers)
    assert plan.expressions == (select_expression(SourceColumn.from_column(column)),)
    goal = msgspec.json.decode(plan.goals[0], type=Goal)
    batch = driver_batch(column.type_text)
    try:
        values = reach(batch.column(0), goal)
    except CellUnfit as error:
        return error.message
    if isinstance(target, PostgresSide):
        numbers = pa.array(range(batch.num_rows), pa.int32())
        lines = copy_lines([numbers, values], ["int32", goal.neutral])
        with target.connection.cursor().copy(f"copy public.{into} from stdin".encode()) as copy:
            copy.write(lines)
        return ""
    texts = text_of(values).to_pylist()
    for number, text in enumerate(texts):
        shown = "null" if text is None else f"x'{bytes(text).hex()}'"
        if text is not None and not pa.types.is_binary(values.type):
            shown = f"convert(_utf8mb4 {shown} using utf8mb4)"
        if error := target.put(into, number, fill_template(plan.templates[0], shown)):
            return error
    return ""


def choices_of(chosen: Namespace[str, str], table: TableName | None = None) -> Choices:
    """Return choices by loss."""
    del table
    return Choices(by_scope={(loss, ""): choice for loss, choice in chosen.items()})
