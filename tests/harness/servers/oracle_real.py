"""A real Oracle database in place of the model, for the suites that a user runs on it.

Each place is a schema of its own. Not here: which tests are run (`certify_oracle/suites.py`).
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from typing import Any

from harness.servers.oracle_place import in_its_words, split
from penstock.engines.oracle.connect import connect, connect_root

URL_VARIABLE = "PENSTOCK_TEST_ORACLE_URL"
PREFIX = "PENSTOCK_CONFORM"
_numbers = itertools.count(1)
_CREATE = re.compile(r'\s*CREATE TABLE "(\w+)"')
_RUNNING = (
    "SELECT COUNT(*) FROM V$SESSION S JOIN V$SQL Q ON Q.SQL_ID = S.SQL_ID "
    "WHERE S.STATUS = 'ACTIVE' AND INSTR(Q.SQL_TEXT, :1) > 0"
)


class RealOraclePlace:
    """Schema of a real database; a `Place`."""

    unsent = ""

    def __init__(self, url: str) -> None:
        self.url = url
        self.namespace = f"{PREFIX}_{os.getpid()}_{next(_numbers)}"
        self._session = connect(url)
        password = f"P{secrets.token_hex(12)}"
        self._session.run(f'CREATE USER {self.namespace} IDENTIFIED BY "{password}" ACCOUNT LOCK')
        self._session.run(f"GRANT UNLIMITED TABLESPACE TO {self.namespace}")
        self._session.run(f"ALTER SESSION SET CURRENT_SCHEMA = {self.namespace}")

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a transaction; return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            for part in split(statement):
                for text in in_its_words(part):
                    rows = self._run_one(text)
            self._session.commit()
        return rows

    def _run_one(self, text: str) -> list[tuple[Any, ...]]:
        rows = self._session.execute(text)
        created = _CREATE.match(text)
        if created is not None:
            logged = f'ALTER TABLE "{created[1]}" ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS'
            self._session.run(logged)
        return rows

    def make_keyless(self, table: str, columns: str) -> None:
        """Create a table without a key."""
        self.run(f"create table {table} ({columns})")

    def make_wide(self, table: str) -> None:
        """Create the table with a CLOB, which is absent where it did not change."""
        self.run(f"create table {table} (id int primary key, n int, big text)")

    def forget_log(self) -> None:
        """Skip the test: the archives of a real database are not removed."""
        import pytest

        pytest.skip("archived logs of a real database are not removed")

    def truncate(self, table: str) -> None:
        """Truncate a table."""
        self.run(f"truncate table {table}")

    def count_rows(self, table: str) -> None:
        """Gather the statistics of a table."""
        block = "BEGIN DBMS_STATS.GATHER_TABLE_STATS(:1, :2); END;"
        self._session.run(block, self.namespace, table)

    def is_running(self, text: str) -> bool:
        """Return whether another session runs a statement that contains this text."""
        with connect_root(self.url) as root:
            return bool(root.execute(_RUNNING, text)[0][0])

    def forget_penstock(self) -> None:
        """Drop the user that has what penstock keeps here."""
        found = self._session.execute("SELECT 1 FROM ALL_USERS WHERE USERNAME = 'WIREKITE'")
        if found:
            self._session.run("DROP USER WIREKITE CASCADE")

    def drop(self) -> None:
        """Drop the schema."""
        self._session.rollback()
        self._session.run(f"DROP USER {self.namespace} CASCADE")
        self._session.close()
