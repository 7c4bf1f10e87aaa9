"""Database of the simulated Oracle, as a `Place` of the suites that run on every engine.

The model is in the process of the test. Other processes reach it on a port; while a place exists,
those that this process starts have the fake driver on their path. Statements of the suites are
rewritten: unquoted names become quoted ones in lower case, and types and lists of rows become
Oracle's.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa

from sim_oracle import oracledb
from sim_oracle.database import Database
from sim_oracle.driver_servers import listen_for_others
from sim_oracle.grammar import Token, tokenize
from sim_oracle.session import KNOWN_TEXTS, TEST_USER, Server
from sim_oracle.tables import Table
from sim_oracle.texts import KnownTexts

PDB = "SHOPPDB"
SCHEMA = "SHOP"
LOCK_WAIT_S = 20.0
_TESTS = Path(__file__).parents[2]
SUITE_TEXTS = _TESTS / "data" / "oracle_suite_texts.sql"  # of suites, in penstock's sessions
_RECORD = os.environ.get("PENSTOCK_TEST_ORACLE_RECORD")
_TYPES = {
    "INT": "NUMBER(10)",
    "INTEGER": "NUMBER(10)",
    "BIGINT": "NUMBER(19)",
    "SMALLINT": "NUMBER(5)",
    "TEXT": "CLOB",
    "BOOLEAN": "NUMBER(1)",
    "NUMERIC": "NUMBER",
    "TIMESTAMP": "TIMESTAMP(6)",
}
_WORDS = frozenset(
    """
    SELECT FROM WHERE AND OR NOT NULL IS IN AS ON ORDER BY GROUP HAVING DISTINCT UNION ALL CREATE
    TABLE PRIMARY KEY INSERT INTO VALUES UPDATE SET DELETE ALTER ADD DROP COLUMN RENAME TO MODIFY
    TRUNCATE CONSTRAINT UNIQUE FOREIGN REFERENCES INDEX COMMIT ROLLBACK SAVEPOINT DEFAULT CASE WHEN
    THEN ELSE END LIKE BETWEEN EXISTS COUNT SUM MAX MIN AVG NUMBER VARCHAR2 CHAR CLOB BLOB RAW DATE
    TIMESTAMP BINARY_DOUBLE WITH TIME ZONE CASCADE CONSTRAINTS PURGE DUAL ROWID ASC DESC JOIN LEFT
    ANALYZE CHECK BYTE LOCAL INTERVAL BEGIN MOD SUBSTR
    """.split()  # noqa: SIM905 - one list of words
)
_LONG_LIST = re.compile(r"\s*insert\s+into\s+(\w+)\s+values\s+(.*)\Z", re.IGNORECASE | re.DOTALL)
_ROWS = re.compile(r"\(((?:[^()']|'[^']*')*)\)")
_LITERAL = re.compile(r"null|-?\d+|'[^']*'", re.IGNORECASE)
ARRAY_MIN = 20  # rows
_CREATE = re.compile(r'\s*CREATE TABLE "(\w+)"')


class OraclePlace:
    """Database of a simulated Oracle; a `Place`. Tables log all columns once they are created."""

    namespace = SCHEMA
    unsent = ""

    def __init__(self, **options: Any) -> None:
        self.database = Database("ORCL", pdbs=[PDB], **options)
        self.database.settings.beat_s = 0.05
        record = None if _RECORD is None else Path(_RECORD)
        strict = (KNOWN_TEXTS, SUITE_TEXTS) if record is None else None
        texts = KnownTexts(strict, record)
        self.server = Server(self.database, texts=texts, lock_timeout_s=LOCK_WAIT_S)
        self._listening = listen_for_others(self.server)
        self.address = self._listening.address
        self.url = self.url_of("c##penstock")
        self._replaced = {"oracledb": sys.modules.get("oracledb")}
        sys.modules["oracledb"] = oracledb
        self._path = os.environ.get("PYTHONPATH")
        paths = (str(_TESTS / "sim_oracle" / "driver_path"), str(_TESTS))
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [self._path])])
        self._connection = self.connect()

    def url_of(self, user: str) -> str:
        """Return the URL of the root, with the PDB whose tables are captured."""
        return f"oracle://{quote(user, safe='')}:secret@{self.address}/ORCL?pdb={PDB}"

    def connect(self) -> oracledb.Connection:
        """Return a connection to the PDB, in whose session any text is known."""
        service = f"{self.address}/{PDB}"
        connection = oracledb.connect(service, user=TEST_USER, password="secret")
        connection.current_schema = SCHEMA
        return connection

    def table(self, name: str) -> Table:
        """Return a table of the model."""
        return self.database.table(SCHEMA, name)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a transaction; return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            for part in split(statement):
                if self._insert_literals(part):
                    continue
                for text in in_its_words(part):
                    rows = self.run_unchanged(text)
                    self._log_columns(text)
            self._connection.commit()
        return rows

    def run_unchanged(self, text: str) -> list[tuple[Any, ...]]:
        """Run one statement as it is; return its rows."""
        cursor = self._connection.cursor()
        rows: list[tuple[Any, ...]] = []
        if cursor.execute(text, fetch_lobs=False) is not None:
            rows = cursor.fetchall()
        return rows

    def _log_columns(self, text: str) -> None:
        created = _CREATE.match(text)
        if created is not None:
            logged = f'ALTER TABLE "{created[1]}" ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS'
            self._connection.cursor().execute(logged)

    def _insert_literals(self, text: str) -> bool:
        """Insert a long list of rows of literals as an array; return whether it was one."""
        match = _LONG_LIST.match(text)
        rows = [] if match is None else list(_ROWS.findall(match[2]))
        if match is None or len(rows) < ARRAY_MIN:
            return False
        values = [tuple(map(_value_of, _LITERAL.findall(row))) for row in rows]
        marks = ", ".join(f":{number}" for number in range(1, len(values[0]) + 1))
        statement = f'INSERT INTO "{match[1].lower()}" VALUES ({marks})'
        self._connection.cursor().executemany(statement, values)
        return True

    def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Insert rows into a table whose columns they name, and commit."""
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        marks = ", ".join(f":{number}" for number in range(1, rows.num_columns + 1))
        text = f'INSERT INTO "{table}" ({names}) VALUES ({marks})'
        self._connection.cursor().executemany(text, rows)
        self._connection.commit()

    def make_keyless(self, table: str, columns: str) -> None:
        """Create a table without a key."""
        self.run(f"create table {table} ({columns})")

    def make_wide(self, table: str) -> None:
        """Create the table with a CLOB, which is absent where it did not change."""
        self.run(f"create table {table} (id int primary key, n int, big text)")

    def forget_log(self) -> None:
        """Switch all logs until none of the old ones is online, and remove the archives."""
        for _ in range(4):
            self.database.archive_current()
        for thread in self.database.logs.threads.values():
            self.database.logs.purge(thread.log.first_scn, "delete")

    def truncate(self, table: str) -> None:
        """Truncate a table."""
        self.run(f"truncate table {table}")

    def count_rows(self, table: str) -> None:
        """Gather the statistics of a table."""
        block = "BEGIN DBMS_STATS.GATHER_TABLE_STATS(:owner, :name); END;"
        self._connection.cursor().execute(block, {"owner": SCHEMA, "name": table})

    def is_running(self, text: str) -> bool:
        """Return whether another session waits in a statement that contains this text."""
        others = [one for one in self.server.sessions.values() if one.user != TEST_USER]
        return any(one.is_running and text in one.last_text for one in others)

    def crash(self) -> None:
        """End all sessions, roll their transactions back, and let nothing connect until start()."""
        self.server.is_down = True
        self._listening.sever()
        with self.server.lock:
            for session in list(self.server.sessions.values()):
                session.rollback()
                session.is_killed = True

    def start(self) -> None:
        """Let clients connect again."""
        self.server.is_down = False
        self._connection = self.connect()

    def forget_penstock(self) -> None:
        """Drop the user that has what penstock keeps here."""
        if "WIREKITE" in self.database.users:
            self.run_unchanged("DROP USER WIREKITE CASCADE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Stop listening, and let the driver be what it was."""
        with suppress(oracledb.Error):  # a crash has ended it
            self._connection.close()
        self._listening.close()
        if self._path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = self._path
        for name, module in self._replaced.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def _value_of(literal: str) -> int | str | None:
    if literal.lower() == "null":
        return None
    return literal[1:-1] if literal.startswith("'") else int(literal)


def split(text: str) -> list[str]:
    """Return the statements of a text, which semicolons separate."""
    parts: list[list[str]] = [[]]
    for token in tokenize(text):
        if token.text == ";":
            parts.append([])
        else:
            parts[-1].append(token.text)
    return [" ".join(part) for part in parts if part]


def in_its_words(statement: str) -> list[str]:
    """Return Oracle's statements for one of the suites: none for a begin."""
    tokens = list(tokenize(statement))
    first = tokens[0].text.upper()
    if first in ("BEGIN", "ANALYZE"):
        return []
    is_ddl = first in ("CREATE", "ALTER")
    out: list[str] = []
    for place, token in enumerate(tokens):
        word = token.text.upper()
        following = tokens[place + 1].text if place + 1 < len(tokens) else ""
        if is_ddl and word == "COLUMN" and out[-1:] == ["ADD"]:
            continue
        if token.kind != "word":
            out.append(token.text)
        elif is_ddl and word == "VARCHAR":
            out.append("VARCHAR2")
        elif is_ddl and word == "DOUBLE":
            out.append("BINARY_DOUBLE")
        elif is_ddl and word == "PRECISION":
            continue
        elif is_ddl and word in _TYPES:
            out.append("NUMBER" if following == "(" else _TYPES[word])
        elif word in _WORDS or (following == "(" and first == "SELECT"):
            out.append(word)
        else:
            out.append(f'"{token.text.lower()}"')
    return _rows_one_by_one(list(tokenize(" ".join(out)))) if first == "INSERT" else [" ".join(out)]


def _rows_one_by_one(tokens: list[Token]) -> list[str]:
    """Return an INSERT for each row of a list of rows, which older releases do not have."""
    texts = [token.text for token in tokens]
    if "VALUES" not in texts:
        return [" ".join(texts)]
    at = texts.index("VALUES") + 1
    head, rest = texts[:at], texts[at:]
    rows: list[list[str]] = []
    depth = 0
    for text in rest:
        if text == "(" and depth == 0:
            rows.append([])
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth or text == ")":
            rows[-1].append(text)
    return [" ".join(itertools.chain(head, row)) for row in rows]
