"""Values and checks of queries and changes: globals, identity columns, locks."""

from __future__ import annotations

import datetime
import re
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sim_sqlserver.errors import SqlError
from sim_sqlserver.metadata import Column
from sim_sqlserver.names import literal, quote_name
from sim_sqlserver.sqltypes import MAX, SqlType
from sim_sqlserver.variables import value_text

if TYPE_CHECKING:
    from sim_sqlserver.rewrite import Rewritten
    from sim_sqlserver.session import Session

VERSION_TEXT = (
    "Microsoft SQL Server 2022 (RTM-CU14) (KB5038325) - 16.0.4120.1 (X64) "
    "Simulated by the tests of penstock"
)
_TARGET = re.compile(
    r'((?:WITH .*? )?INSERT INTO (?:"(?:[^"]|"")*"\.)?"(?:[^"]|"")*")( .*)\Z', re.S
)


def of_mark(session: Session, kind: str, name: str) -> str:
    """Return the value of a variable or global as part of a PostgreSQL statement."""
    if kind == "v":
        variable = session.variables.get(name)
        if variable is None:
            raise SqlError(137, f'Must declare the scalar variable "@{name}".', severity=15)
        return variable.text()
    error = session.last_error
    texts = {
        "version": VERSION_TEXT, "servername": "SIMULATED", "language": "us_english",
        "error_message": str(error) if error else None,
        "error_procedure": None,
    }  # fmt: skip
    if name in texts:
        return literal(texts[name])
    if name in ("identity",):
        return "simfn.ms_scope_identity()"
    numbers = {
        "rowcount": session.rowcount, "trancount": session.trancount, "spid": session.spid,
        "error": session.error_number, "microsoftversion": 0x10001018, "max_precision": 38,
        "lock_timeout": int(session.options.get("lock_timeout", "-1")), "nestlevel": 0,
        "options": 5496, "procid": 0, "datefirst": 7, "textsize": 2147483647,
        "error_number": error.number if error else None,
        "error_severity": error.severity if error else None,
        "error_state": error.state if error else None, "error_line": 1 if error else None,
        "fetch_status": -1, "connections": 1, "cursor_rows": 0,
    }  # fmt: skip
    if name not in numbers:
        raise SqlError(137, f'Must declare the scalar variable "@@{name}".', severity=15)
    return value_text(numbers[name], SqlType("int"))


def as_value(value: Any, sql_type: SqlType | None) -> Any:
    """Return a value that psycopg read as one that a client would have sent."""
    if value is None:
        return None
    if isinstance(value, memoryview | bytearray):
        value = bytes(value)
    if isinstance(value, datetime.datetime):
        value = value.isoformat(sep="T", timespec="microseconds") + "0"
    elif isinstance(value, datetime.date | datetime.time):
        value = value.isoformat()
    elif isinstance(value, uuid.UUID):
        value = str(value)
    elif isinstance(value, bool):
        value = int(value)
    return _fit_value(value, sql_type) if sql_type is not None else value


def _fit_value(value: Any, sql_type: SqlType) -> Any:
    name = sql_type.name
    if name in ("int", "bigint", "smallint", "tinyint") and not isinstance(value, bytes):
        return int(value)
    if name in ("varchar", "nvarchar", "char", "nchar", "sysname"):
        text = value if isinstance(value, str) else str(value)
        return text if sql_type.length in (MAX, 0) else text[: sql_type.length]
    if name in ("decimal", "numeric", "money"):
        return Decimal(str(value))
    if name in ("varbinary", "binary") and isinstance(value, int):
        return value.to_bytes(max(sql_type.length, 4), "big", signed=True)
    if name == "binary":
        return bytes(value)[: sql_type.length].ljust(sql_type.length, b"\0")
    return value


# --- changes --------------------------------------------------------------------------------------


def _target_columns(session: Session, done: Rewritten) -> list[Column]:
    if done.table is None:
        return []
    return session.columns_of(*done.table)


def check_change(session: Session, done: Rewritten) -> None:
    """Raise SqlError 544 or 8102 for a value of an identity column that must not be given."""
    if done.kind not in ("insert",) or done.table is None or done.columns is None:
        return
    identity = [c.name for c in _target_columns(session, done) if c.is_identity]
    names = {name.lower() for name in done.columns}
    is_given = any(name.lower() in names for name in identity)
    if not identity:
        return
    number = session.database.table_number(session, done.table)
    is_on = session.identity_table == number
    if is_given and not is_on:
        said = "Cannot insert explicit value for identity column in table "
        said += f"'{done.table[1]}' when IDENTITY_INSERT is set to OFF."
        raise SqlError(544, said)
    if is_on and not is_given:
        said = "Explicit value must be specified for identity column in table "
        raise SqlError(545, f"{said}'{done.table[1]}' when IDENTITY_INSERT is set to ON.")


def with_columns(session: Session, done: Rewritten) -> str:
    """Return an INSERT without a list of columns with that of those that take values."""
    if done.kind != "insert" or done.columns is not None or " DEFAULT VALUES" in done.sql:
        return done.sql
    columns = _target_columns(session, done)
    if not any(c.is_identity or c.is_computed for c in columns):
        return done.sql
    number = session.database.table_number(session, done.table or ("", ""))
    if any(c.is_identity for c in columns) and session.identity_table == number:
        said = "An explicit value for the identity column can only be specified when a column list "
        raise SqlError(8101, said + "is used and IDENTITY_INSERT is ON.")
    names = ", ".join(quote_name(c.name) for c in columns if not (c.is_identity or c.is_computed))
    match = _TARGET.match(done.sql)
    assert match is not None, done.sql
    return f"{match.group(1)} ({names}){match.group(2)}"


def after_change(session: Session, done: Rewritten) -> None:
    """Let the identity go on after values that were given."""
    if done.kind != "insert" or done.table is None:
        return
    if session.identity_table:
        session.rows(f"select sim.bump_identity({session.identity_table})")
    elif any(c.is_identity for c in _target_columns(session, done)):
        session.rows(
            "select set_config('sim.identity', sim.last_identity("
            f"{session.database.table_number(session, done.table)}), false)"
        )


def take_locks(session: Session, done: Rewritten) -> None:
    """Lock the tables that hints lock; a readable secondary ignores them."""
    if session.is_read_only:
        return
    for name, hints in done.locks:
        mode = ""
        if "TABLOCKX" in hints or ({"TABLOCK", "XLOCK"} <= hints):
            mode = "access exclusive"
        elif "TABLOCK" in hints and hints & {"HOLDLOCK", "SERIALIZABLE", "REPEATABLEREAD"}:
            mode = "share"
        if mode and session.trancount:
            session.backend.run(
                f"lock table {session.database.table_text(session, name)} in {mode} mode"
            )


def with_row_locks(done: Rewritten, sql: str) -> str:
    """Return a query that locks its rows if a hint wants that."""
    hints = frozenset().union(*(found for _, found in done.locks)) if done.locks else frozenset()
    if done.kind != "select" or not done.can_lock_rows or not hints & {"UPDLOCK", "XLOCK"}:
        return sql
    ending = " skip locked" if "READPAST" in hints else " nowait" if "NOWAIT" in hints else ""
    return f"{sql} for update{ending}"
