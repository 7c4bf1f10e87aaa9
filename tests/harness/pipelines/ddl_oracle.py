"""Oracle's model in random histories: its database as a test sees it.

A table logs all columns once it is created. Not here: the statements of a history
(`ddl_oracle_author.py`).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from harness.pipelines.ddl_sides import Facts, Row
from harness.pipelines.ddl_types import ORACLE
from harness.servers.oracle_place import PDB
from penstock.codec.oracle.types import catalogue_type
from sim_oracle import oracledb
from sim_oracle.session import TEST_USER

_CREATED = re.compile(r'create\s+table\s+((?:"[^"]+"\.)?"[^"]+")')
Error = oracledb.Error


class OracleSide:
    """A pluggable database of the model."""

    kind = ORACLE

    def __init__(self, url: str) -> None:
        address = urlsplit(url).netloc.rpartition("@")[2]
        self.connection = oracledb.connect(f"{address}/{PDB}", user=TEST_USER, password="secret")
        self._is_inside = False

    def enter(self, schema: str) -> None:
        """Let names without a schema be of this one."""
        self.connection.current_schema = schema

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows. Columns of a new table are logged."""
        if sql == "begin":
            self._is_inside = True
            return []
        cursor = self.connection.cursor()
        cursor.execute(sql, fetch_lobs=False)
        found = [] if cursor.description is None else list(cursor.fetchall())
        created = _CREATED.match(sql)
        if created is not None:
            cursor.execute(f"ALTER TABLE {created[1]} ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS")
        if sql in ("commit", "rollback"):
            self._is_inside = False
        elif not self._is_inside:
            self.connection.commit()
        return found

    def tables(self, schema: str) -> list[str]:
        """Return the names of the tables of a schema."""
        rows = self.run(f"SELECT TABLE_NAME FROM ALL_TABLES WHERE OWNER = '{schema}'")
        return sorted(name for (name,) in rows)

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts about a table; None if there is none."""
        name = table.replace("'", "''")
        where = f"OWNER = '{schema}' AND TABLE_NAME = '{name}'"
        rows = self.run(
            "SELECT COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE, CHAR_LENGTH, "
            f"CHAR_USED, NULLABLE FROM ALL_TAB_COLS WHERE {where} AND HIDDEN_COLUMN = 'NO'"
        )
        if not rows:
            return None
        keys = self.run(
            "SELECT C.COLUMN_NAME FROM ALL_CONSTRAINTS K JOIN ALL_CONS_COLUMNS C "
            "ON C.OWNER = K.OWNER AND C.CONSTRAINT_NAME = K.CONSTRAINT_NAME "
            f"WHERE K.CONSTRAINT_TYPE = 'P' AND K.OWNER = '{schema}' AND K.TABLE_NAME = '{name}'"
        )
        return Facts(
            types={
                row[0]: catalogue_type(
                    row[1], row[2], row[3], row[4],
                    characters=row[5] or 0, is_in_characters=row[6] == "C",
                ).text.lower()
                for row in rows
            },
            key=frozenset(name for (name,) in keys),
            nullable=frozenset(row[0] for row in rows if row[7] == "Y"),
        )  # fmt: skip

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows as text. columns: kind of value by column."""
        listed = ", ".join(f'"{name}"' for name in columns)
        rows = self.run(f'SELECT {listed} FROM "{schema}"."{table}"')
        return [tuple(map(_show, row, columns.values())) for row in rows]

    def close(self) -> None:
        """Close the session."""
        with suppress(Error):
            self.connection.close()


def _show(value: Any, kind: str) -> str | None:
    """Return a value of the driver as text. kind: by which rule it is compared."""
    if value is None:
        return None
    if isinstance(value, int) and kind == "bits":
        return f"{value:b}"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "+00"
        bare = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return bare.isoformat(" ", "microseconds") + zone
    return repr(value) if isinstance(value, float) else str(value)
