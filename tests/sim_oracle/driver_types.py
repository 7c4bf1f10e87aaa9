"""Types, values and data frames of the fake driver."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from sim_oracle.cells import Lob, Months, RowIdText
from sim_oracle.columns import NanoTime
from sim_oracle.driver_errors import raise_driver
from sim_oracle.query import OutputColumn


class DbType:
    """A type of the database."""

    def __init__(self, name: str, size: int = 0) -> None:
        self.name = name
        self.default_size = size

    def __repr__(self) -> str:
        return f"<DbType {self.name}>"

    def __str__(self) -> str:
        return self.name


class ApiType:
    """A type of PEP 249: equal to its types of the database."""

    def __init__(self, name: str, *types: DbType) -> None:
        self.name = name
        self.dbtypes = types

    def __eq__(self, other: object) -> bool:
        return other in self.dbtypes if isinstance(other, DbType) else self is other

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<ApiType {self.name}>"


DB_TYPE_NUMBER = DbType("DB_TYPE_NUMBER", 22)
DB_TYPE_BINARY_DOUBLE = DbType("DB_TYPE_BINARY_DOUBLE", 8)
DB_TYPE_BINARY_FLOAT = DbType("DB_TYPE_BINARY_FLOAT", 4)
DB_TYPE_VARCHAR = DbType("DB_TYPE_VARCHAR", 4000)
DB_TYPE_NVARCHAR = DbType("DB_TYPE_NVARCHAR", 4000)
DB_TYPE_CHAR = DbType("DB_TYPE_CHAR", 2000)
DB_TYPE_NCHAR = DbType("DB_TYPE_NCHAR", 2000)
DB_TYPE_LONG = DbType("DB_TYPE_LONG")
DB_TYPE_RAW = DbType("DB_TYPE_RAW", 2000)
DB_TYPE_LONG_RAW = DbType("DB_TYPE_LONG_RAW")
DB_TYPE_DATE = DbType("DB_TYPE_DATE", 7)
DB_TYPE_TIMESTAMP = DbType("DB_TYPE_TIMESTAMP", 11)
DB_TYPE_TIMESTAMP_TZ = DbType("DB_TYPE_TIMESTAMP_TZ", 13)
DB_TYPE_TIMESTAMP_LTZ = DbType("DB_TYPE_TIMESTAMP_LTZ", 11)
DB_TYPE_INTERVAL_DS = DbType("DB_TYPE_INTERVAL_DS", 11)
DB_TYPE_INTERVAL_YM = DbType("DB_TYPE_INTERVAL_YM", 5)
DB_TYPE_CLOB = DbType("DB_TYPE_CLOB", 112)
DB_TYPE_NCLOB = DbType("DB_TYPE_NCLOB", 112)
DB_TYPE_BLOB = DbType("DB_TYPE_BLOB", 112)
DB_TYPE_ROWID = DbType("DB_TYPE_ROWID", 18)
DB_TYPE_UROWID = DbType("DB_TYPE_UROWID")
DB_TYPE_JSON = DbType("DB_TYPE_JSON")
DB_TYPE_BOOLEAN = DbType("DB_TYPE_BOOLEAN", 4)
DB_TYPE_XMLTYPE = DbType("DB_TYPE_XMLTYPE")
NUMBER = ApiType("NUMBER", DB_TYPE_NUMBER, DB_TYPE_BINARY_DOUBLE, DB_TYPE_BINARY_FLOAT)
STRING = ApiType("STRING", DB_TYPE_VARCHAR, DB_TYPE_NVARCHAR, DB_TYPE_CHAR, DB_TYPE_NCHAR)
BINARY = ApiType("BINARY", DB_TYPE_RAW, DB_TYPE_LONG_RAW)
DATETIME = ApiType(
    "DATETIME", DB_TYPE_DATE, DB_TYPE_TIMESTAMP, DB_TYPE_TIMESTAMP_TZ, DB_TYPE_TIMESTAMP_LTZ
)
ROWID = ApiType("ROWID", DB_TYPE_ROWID, DB_TYPE_UROWID)
_OF_KINDS = {
    "NUMBER": DB_TYPE_NUMBER,
    "FLOAT": DB_TYPE_NUMBER,
    "BINARY_FLOAT": DB_TYPE_BINARY_FLOAT,
    "BINARY_DOUBLE": DB_TYPE_BINARY_DOUBLE,
    "VARCHAR2": DB_TYPE_VARCHAR,
    "NVARCHAR2": DB_TYPE_NVARCHAR,
    "CHAR": DB_TYPE_CHAR,
    "NCHAR": DB_TYPE_NCHAR,
    "LONG": DB_TYPE_LONG,
    "RAW": DB_TYPE_RAW,
    "LONG RAW": DB_TYPE_LONG_RAW,
    "DATE": DB_TYPE_DATE,
    "TIMESTAMP": DB_TYPE_TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": DB_TYPE_TIMESTAMP_TZ,
    "TIMESTAMP WITH LOCAL TIME ZONE": DB_TYPE_TIMESTAMP_LTZ,
    "INTERVAL DAY TO SECOND": DB_TYPE_INTERVAL_DS,
    "INTERVAL YEAR TO MONTH": DB_TYPE_INTERVAL_YM,
    "CLOB": DB_TYPE_CLOB,
    "NCLOB": DB_TYPE_NCLOB,
    "BLOB": DB_TYPE_BLOB,
    "ROWID": DB_TYPE_ROWID,
    "UROWID": DB_TYPE_UROWID,
    "JSON": DB_TYPE_JSON,
    "BOOLEAN": DB_TYPE_BOOLEAN,
    "XMLTYPE": DB_TYPE_XMLTYPE,
}
# Types whose values a cursor fetches as they are.
PLAIN_TYPES = frozenset({DB_TYPE_VARCHAR, DB_TYPE_NVARCHAR, DB_TYPE_CHAR, DB_TYPE_NCHAR})
LOB_TYPES = {"CLOB": DB_TYPE_CLOB, "NCLOB": DB_TYPE_NCLOB, "BLOB": DB_TYPE_BLOB}


class IntervalYM(NamedTuple):
    """An interval of years and months."""

    years: int = 0
    months: int = 0


class FetchInfo(NamedTuple):
    """Description of a fetched column, which is a tuple as PEP 249 has it."""

    name: str
    type_code: DbType
    display_size: int | None
    internal_size: int | None
    precision: int | None
    scale: int | None
    null_ok: bool


def describe(output: OutputColumn, samples: Sequence[Any]) -> FetchInfo:
    """Return the description of a column from its declaration or from values."""
    column = output.column
    if column is not None:
        kind = _OF_KINDS.get(column.kind, DB_TYPE_VARCHAR)
        precision, scale = column.precision, column.scale
        if kind is DB_TYPE_NUMBER:
            precision = precision or (38 if scale is not None else 0)
            scale = -127 if scale is None else scale
        return FetchInfo(
            output.name, kind, column.length, column.length, precision, scale, column.is_nullable
        )
    if output.is_row_id:
        return FetchInfo(output.name, DB_TYPE_ROWID, 18, 18, None, None, True)
    kind = next((_type_of(one) for one in samples if one is not None), DB_TYPE_VARCHAR)
    is_number = kind is DB_TYPE_NUMBER
    return FetchInfo(
        output.name, kind, None, None, 0 if is_number else None, -127 if is_number else None, True
    )


def _type_of(value: Any) -> DbType:
    if isinstance(value, bytes):
        return DB_TYPE_RAW
    if isinstance(value, RowIdText):
        return DB_TYPE_ROWID
    if isinstance(value, Lob):
        return LOB_TYPES[value.kind]
    if isinstance(value, datetime | NanoTime):
        return DB_TYPE_DATE
    if isinstance(value, timedelta):
        return DB_TYPE_INTERVAL_DS
    return DB_TYPE_NUMBER if isinstance(value, int | float | Decimal) else DB_TYPE_VARCHAR


def to_python(value: Any, info: FetchInfo, *, decimals: bool, zone_minutes: int) -> Any:
    """Return what a cursor fetches for a value other than a LOB."""
    if value is None:
        return None
    if (
        value.__class__ is int
        and not decimals
        and info.scale in (0, -127)
        and not (info.scale and info.precision)
    ):
        return value
    if info.type_code is DB_TYPE_NUMBER:
        if decimals:
            return Decimal(str(value)) if isinstance(value, float) else Decimal(value)
        # Only columns that may have a fraction yield floats.
        is_whole = info.scale == 0 or (info.scale == -127 and not info.precision)
        if is_whole and value == int(value):
            return int(value)
        return float(value)
    if isinstance(value, NanoTime):
        value = value.time
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value
        if info.type_code is DB_TYPE_TIMESTAMP_LTZ:
            value = value - (value.utcoffset() or timedelta()) + timedelta(minutes=zone_minutes)
        return value.replace(tzinfo=None)  # the zone is lost
    if isinstance(value, Months):
        sign = -1 if value.count < 0 else 1
        years, months = divmod(abs(value.count), 12)
        return IntervalYM(sign * years, sign * months)
    if isinstance(value, RowIdText):
        return str(value)
    return value


def arrow_type(info: FetchInfo, *, decimals: bool) -> pa.DataType:  # noqa: C901 - a table
    """Return the Arrow type of a fetched column, as the driver's page on data frames says."""
    kind, precision, scale = info.type_code, info.precision or 0, info.scale
    if kind is DB_TYPE_NUMBER:
        if precision and scale is not None and scale >= 0:
            if decimals:
                return pa.decimal128(precision, scale)
            if scale == 0 and precision <= 18:
                return pa.int64()
        return pa.float64()
    if kind is DB_TYPE_BINARY_FLOAT:
        return pa.float32()
    if kind is DB_TYPE_BINARY_DOUBLE:
        return pa.float64()
    if kind is DB_TYPE_DATE:
        return pa.timestamp("s")
    if kind in (DB_TYPE_TIMESTAMP, DB_TYPE_TIMESTAMP_TZ, DB_TYPE_TIMESTAMP_LTZ):
        digits = 6 if scale is None else scale
        unit = "s" if digits == 0 else "ms" if digits <= 3 else "us" if digits <= 6 else "ns"
        return pa.timestamp(unit)
    if kind in (DB_TYPE_RAW, DB_TYPE_LONG_RAW, DB_TYPE_BLOB):
        return pa.large_binary()
    if kind in (DB_TYPE_ROWID, DB_TYPE_UROWID, DB_TYPE_XMLTYPE, DB_TYPE_JSON):
        raise_driver(3030, kind.name)
    if kind is DB_TYPE_INTERVAL_DS:
        return pa.month_day_nano_interval()
    if kind is DB_TYPE_INTERVAL_YM:
        return pa.month_day_nano_interval()
    return pa.large_string()


class DataFrame:
    """A data frame of the driver, which other libraries read through Arrow's stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def column_arrays(self) -> list[pa.ChunkedArray]:
        """Return the columns."""
        return list(self._table.columns)

    def column_names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._table.column_names)

    def get_column(self, i: int) -> pa.ChunkedArray:
        """Return a column by place."""
        return self._table.column(i)

    def get_column_by_name(self, name: str) -> pa.ChunkedArray:
        """Return a column by name."""
        return self._table.column(name)

    def num_columns(self) -> int:
        """Return the number of columns."""
        return int(self._table.num_columns)

    def num_rows(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)


def make_frame(
    infos: Sequence[FetchInfo],
    rows: Sequence[tuple[Any, ...]],
    *,
    decimals: bool,
    zone_minutes: int,
    requested: pa.Schema | None,
) -> DataFrame:
    """Return a data frame of raw rows."""
    arrays, fields = [], []
    for place, info in enumerate(infos):
        kind = arrow_type(info, decimals=decimals)
        values = [_to_arrow(row[place], info, kind, zone_minutes) for row in rows]
        array = pa.array(values, kind)
        if requested is not None:
            array = array.cast(requested.field(place).type)
        arrays.append(array)
        name = info.name if requested is None else requested.field(place).name
        fields.append(pa.field(name, array.type))
    return DataFrame(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))


def _to_arrow(value: Any, info: FetchInfo, kind: pa.DataType, zone_minutes: int) -> Any:
    if value is None:
        return None
    if isinstance(value, Lob):
        return value.data
    if isinstance(value, NanoTime) and kind == pa.timestamp("ns"):
        whole = value.time.replace(tzinfo=None)
        return pa.scalar(whole, pa.timestamp("us")).value * 1000 + value.nanos
    if isinstance(value, Months):
        return pa.MonthDayNano([value.count, 0, 0])
    if isinstance(value, timedelta):
        nanos = (value.seconds * 10**6 + value.microseconds) * 1000
        return pa.MonthDayNano([0, value.days, nanos])
    decimals = pa.types.is_decimal(kind)
    return to_python(value, info, decimals=decimals, zone_minutes=zone_minutes)
