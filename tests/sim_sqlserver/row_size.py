"""Size of a row, which has to fit a page of 8,060 bytes outside of large values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_sqlserver.errors import SqlError
from sim_sqlserver.names import quote_name
from sim_sqlserver.sqltypes import FIXED_LENGTHS, LARGE, SqlType, parse_type

if TYPE_CHECKING:
    from sim_sqlserver.ddl import Database

_ROW_BYTES_MAX = 8060
_POINTER_BYTES = 24  # of a value that is stored outside of its row
_FIXED = frozenset(FIXED_LENGTHS) - {*LARGE, "sql_variant", "hierarchyid", "sysname"} | {
    "char",
    "nchar",
    "binary",
    "decimal",
    "numeric",
    "date",
    "time",
    "datetime2",
    "datetimeoffset",
}


def check_of(database: Database, number: int) -> list[str]:
    """Return the check of a table's rows for its trigger; empty if all rows fit.

    Raises SqlError 1701 if no row fits.
    """
    return _check(*_row_columns(database, number))


def _check(table: str, columns: list[tuple[str, SqlType]]) -> list[str]:
    """Return the check that a row fits a page, of a table whose rows may be too long.

    The server moves long values of variable length out of the row; fixed ones and short ones stay.
    """
    fixed = sum(kind.bytes_length for _, kind in columns if kind.name in _FIXED)
    variable = [(name, kind) for name, kind in columns if kind.name not in _FIXED]
    overhead = 6 + (len(columns) + 7) // 8 + (2 + 2 * len(variable) if variable else 0)
    most = [
        _POINTER_BYTES if kind.is_max else min(kind.bytes_length, _POINTER_BYTES)
        for _, kind in variable
    ]
    if fixed + overhead > _ROW_BYTES_MAX:
        said = f"Creating or altering table '{table}' failed because the minimum row size would be "
        said += (
            f"{fixed + overhead}, including {overhead} bytes of internal overhead. This exceeds "
        )
        raise SqlError(1701, said + "the maximum allowable table row size of 8060 bytes.")
    if fixed + overhead + sum(most) <= _ROW_BYTES_MAX:
        return []
    sizes = [f"least({_bytes_of(name, kind)}, {_POINTER_BYTES})" for name, kind in variable]
    return [f"perform sim.check_row({' + '.join([str(fixed + overhead), *sizes])});"]


def _bytes_of(name: str, sql_type: SqlType) -> str:
    column = f"new.{quote_name(name)}"
    if sql_type.name in ("nvarchar", "ntext", "sysname"):
        return f"coalesce(2 * sim.utf16_length({column}), 0)"
    return f"coalesce(octet_length({column}), 0)"


def _row_columns(database: Database, number: int) -> tuple[str, list[tuple[str, SqlType]]]:
    """Return a table's name, and its stored columns with their types."""
    found = database.rows(
        "select c.relname, a.attname, case when t.typtype = 'd' then t.typname::text "
        "else format_type(a.atttypid, a.atttypmod) end from pg_attribute a "
        "join pg_type t on t.oid = a.atttypid join pg_class c on c.oid = a.attrelid "
        f"where a.attrelid = {number} and a.attnum > 0 and not a.attisdropped "
        "and a.attgenerated = '' order by a.attnum"
    )
    columns = [(str(name), _stored_type(str(kind))) for _, name, kind in found]
    return str(found[0][0]) if found else "", columns


def _stored_type(text: str) -> SqlType:
    """Return the type of a column, from PostgreSQL's name of it."""
    plain = {"integer": "int", "numeric": "decimal"}
    name, _, rest = text.replace("sim.", "").partition("(")
    return parse_type(plain.get(name, name) + ("(" + rest if rest else ""))
