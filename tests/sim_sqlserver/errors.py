"""Errors with SQL Server's number, state and severity, and PostgreSQL's errors in these numbers."""

from __future__ import annotations

import re
from typing import Any

# Errors that end a statement only; other errors also end the batch.
STATEMENT_ONLY = frozenset(
    {515, 544, 547, 1222, 1505, 1750, 2601, 2627, 2628, 220, 242, 8115, 8134, 8152, 313}
    | {8101, 3701, 3902, 3903, 2714, 1913}
)
# Errors that roll the transaction back, whatever XACT_ABORT says.
TRANSACTION = frozenset({1205, 3960})
CUSTOM = "MSSQL"  # SQLSTATE of the functions of setup.sql; DETAIL has number, state and severity


class SqlError(Exception):
    """Error as SQL Server sends it.

    Attributes:
        number: Number of the message.
        severity: Class, 11 to 25; 20 and above end the connection.
        state: State of the message.
    """

    def __init__(self, number: int, message: str, *, severity: int = 16, state: int = 1) -> None:
        super().__init__(message)
        self.number, self.severity, self.state = number, severity, state
        self.line = 1
        self.procedure = ""
        self.constraint = ""  # name of a violated key, whose kind is not known yet

    def is_primary_key(self) -> None:
        """Let the message say that the key is the primary one."""
        said = str(self).replace("UNIQUE KEY", "PRIMARY KEY", 1)
        self.args = (said,)


class ConnectionDropped(Exception):
    """The session is killed: the socket closes without an answer."""


_BY_STATE = {
    "40P01": 1205,
    "55P03": 1222,
    "40001": 3960,
    "42P01": 208,
    "42703": 207,
    "42883": 195,
    "42601": 102,
    "22012": 8134,
    "42P07": 2714,
    "42710": 2714,
    "42501": 229,
    "3F000": 2760,
    "42701": 2705,
    "22P02": 245,
    "22003": 8115,
    "22001": 2628,
    "22007": 241,
    "22008": 242,
    "21000": 512,
    "42P06": 2714,
    "42704": 3701,
    "42804": 206,
    "22021": 2628,
    "57014": 3617,
    "57P01": 596,
    "53300": 17809,
    "3D000": 911,
    "55000": 3732,
    "2BP01": 3726,
    "21S01": 213,
}
_DEADLOCK = (
    "Transaction (Process ID {spid}) was deadlocked on lock resources with another process "
    "and has been chosen as the deadlock victim. Rerun the transaction."
)


def from_postgres(diag: dict[str, str], spid: int) -> SqlError:
    """Return the error for a result of PostgreSQL.

    Args:
        diag: Fields sqlstate, message, detail, table, column, constraint, schema, type.
        spid: Number of the session.
    """
    state = diag.get("sqlstate", "")
    said = diag.get("message", "")
    if state == CUSTOM:
        number, error_state, severity = (int(part) for part in diag["detail"].split(","))
        return SqlError(number, said, severity=severity, state=error_state)
    if state in ("23505", "23503", "23514", "23502"):
        return _constraint(state, diag)
    number = _BY_STATE.get(state, 50_000)
    if number == 1205:
        return SqlError(1205, _DEADLOCK.format(spid=spid), severity=13, state=51)
    if number == 1222:
        return SqlError(1222, "Lock request time out period exceeded.", state=45)
    if number == 208:
        name = re.search(r'"(.+)"', said)
        named = name.group(1) if name else said
        return SqlError(208, f"Invalid object name '{named}'.")
    if number == 207:
        name = re.search(r'"?([^" ]+)"? (of relation .* )?does not exist', said)
        column = name.group(1).rpartition(".")[2] if name else said
        return SqlError(207, f"Invalid column name '{column}'.")
    if number == 8115:
        return SqlError(8115, f"Arithmetic overflow error converting expression ({said}).")
    if number == 3960:
        return SqlError(
            3960,
            "Snapshot isolation transaction aborted due to update conflict. Retry the transaction "
            "or change the isolation level for the update/delete statement.",
        )
    return SqlError(number, f"{said} ({state})")


def _constraint(state: str, diag: dict[str, str]) -> SqlError:
    name, schema, table = (diag.get(key, "") for key in ("constraint", "schema", "table"))
    detail = diag.get("detail", "")
    if state == "23505":
        values = re.search(r"=\((.*)\) already", detail)
        key = f" The duplicate key value is ({values.group(1)})." if values else ""
        if name.startswith("ix$"):
            what = f"Cannot insert duplicate key row in object '{schema}.{table}' with unique index"
            return SqlError(2601, f"{what} '{name.removeprefix('ix$')}'.{key}", severity=14)
        what = f"Violation of UNIQUE KEY constraint '{name}'. Cannot insert duplicate key in object"
        error = SqlError(2627, f"{what} '{schema}.{table}'.{key}", severity=14)
        error.constraint = f"{schema}.{name}"
        return error
    if state == "23502":
        what = f"Cannot insert the value NULL into column '{diag.get('column')}', table"
        return SqlError(515, f"{what} '{schema}.{table}'; column does not allow nulls.", state=2)
    if diag.get("type"):
        return _domain(diag["type"])
    kind = "FOREIGN KEY" if state == "23503" else "CHECK"
    if "still referenced" in detail:
        kind = "REFERENCE"
    what = f'The statement conflicted with the {kind} constraint "{name}". The conflict occurred in'
    return SqlError(547, f'{what} table "{schema}.{table}".', state=0)


def _domain(name: str) -> SqlError:
    if name.partition("(")[0] in ("varchar", "nvarchar", "char", "nchar", "varbinary", "binary"):
        return SqlError(2628, f"String or binary data would be truncated in a column {name}.")
    if name in ("tinyint", "smallmoney"):
        return SqlError(220, f"Arithmetic overflow error for data type {name}.", state=2)
    return SqlError(8115, f"Arithmetic overflow error converting expression to data type {name}.")


def diagnostics(result: Any) -> dict[str, str]:
    """Return the fields of a failed result of libpq."""
    from psycopg.pq import DiagnosticField as Field

    fields = {
        "sqlstate": Field.SQLSTATE,
        "message": Field.MESSAGE_PRIMARY,
        "detail": Field.MESSAGE_DETAIL,
        "schema": Field.SCHEMA_NAME,
        "table": Field.TABLE_NAME,
        "column": Field.COLUMN_NAME,
        "constraint": Field.CONSTRAINT_NAME,
        "type": Field.DATATYPE_NAME,
    }
    read = {name: result.error_field(field) for name, field in fields.items()}
    return {name: value.decode() for name, value in read.items() if value}
