"""The soak: a pipeline between two schemas of the database, with changes and kills for minutes.

Rows are compared by statements of this module and by `penstock verify`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from certify.kills import KILL_EVERY_S, end_processes, kill_one
from certify.report import SoakResult
from certify_oracle.server import SCHEMA, STATEMENT_TIMEOUT_S, TARGET, Server
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.engines.oracle.connect import Connection, connect

TABLES = {
    "SOAK_ITEM": "id NUMBER(10) PRIMARY KEY, n NUMBER(10), name VARCHAR2(40 CHAR), body CLOB",
    "SOAK_BAG": "a NUMBER(10), v VARCHAR2(40)",
}
COLUMNS = {"SOAK_ITEM": "id, n, name, body", "SOAK_BAG": "a, v"}
EQUAL_WITHIN_S = 300.0
KEYS = 2000


class Writer:
    """Changes of the soak's tables, by a seed."""

    def __init__(self, session: Connection, seed: int) -> None:
        self._session, self._random = session, random.Random(seed)
        self.count = 0

    def write(self) -> None:
        """Run one transaction, or roll one back."""
        key, other = self._random.randrange(KEYS), self._random.randrange(KEYS)
        number = self._random.randrange(50)
        texts = self._random.choice(
            (
                (f"DELETE FROM soak_item WHERE id = {key}",
                 f"INSERT INTO soak_item VALUES ({key}, {number}, 'ä {number}', NULL)"),
                (f"UPDATE soak_item SET n = n + 1 WHERE id BETWEEN {key} AND {key + 20}",),
                (f"UPDATE soak_item SET body = TO_CLOB(RPAD('x', {number * 40 + 1}, 'y')) "
                 f"WHERE id = {key}",),
                (f"DELETE FROM soak_item WHERE id = {other}",
                 f"UPDATE soak_item SET id = {other} WHERE id = {key}"),
                (f"INSERT INTO soak_bag VALUES ({number}, 'x')",
                 f"INSERT INTO soak_bag VALUES ({number}, 'x')"),
                (f"UPDATE soak_bag SET v = 'of {key}' WHERE a = {number}",),
                (f"DELETE FROM soak_bag WHERE a = {number}",),
                ("SAVEPOINT here", f"DELETE FROM soak_item WHERE id > {key}",
                 "ROLLBACK TO SAVEPOINT here", f"DELETE FROM soak_item WHERE id > {KEYS - 20}"),
            )
        )  # fmt: skip
        for text in texts:
            self._session.run(text)
        if self._random.random() < 0.1:
            self._session.rollback()
        else:
            self._session.commit()
        self.count += 1


def rows_of(session: Connection, schema: str, table: str) -> list[tuple[Any, ...]]:
    """Return a table's rows, in order; none if it does not exist yet."""
    there = "SELECT TABLE_NAME FROM ALL_TABLES WHERE OWNER = :owner AND TABLE_NAME = :name"
    if not session.execute(there, owner=schema, name=table):
        return []
    return sorted(session.execute(f"SELECT {COLUMNS[table]} FROM {schema}.{table}"), key=repr)


def run_soak(
    server: Server, folder: Path, *, seconds: float, seed: int = 1, say: Callable[[str], None]
) -> SoakResult:
    """Run the soak."""
    result = SoakResult()
    began = time.monotonic()
    with connect(server.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
        session.run(f"ALTER SESSION SET CURRENT_SCHEMA = {SCHEMA}")
        for table, columns in TABLES.items():
            session.run(f"CREATE TABLE {SCHEMA}.{table} ({columns})")
            session.run(f"ALTER TABLE {SCHEMA}.{table} ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS")
        writer = Writer(session, seed)
        for _ in range(100):
            writer.write()
        path = write_pipeline(
            folder,
            server.url,
            server.url,
            name="certify",
            directory="certify",
            tables=[f"{SCHEMA}.{table}" for table in TABLES],
            sections={
                "changeExtractor": LIVELY,
                "spark": {"master": "local[2]"},
                "target.map": {SCHEMA: TARGET},
                "target.types": {"empty values": "error"},
            },
        )
        try:
            _soak(path, writer, session, result, seconds=seconds, say=say)
        except AssertionError as error:
            result.problem = str(error) or repr(error)
        finally:
            end_processes(path)
        result.rows = sum(len(rows_of(session, SCHEMA, table)) for table in TABLES)
    result.statements, result.seconds = writer.count, time.monotonic() - began
    return result


def _soak(
    path: Path,
    writer: Writer,
    session: Connection,
    result: SoakResult,
    *,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    def is_equal() -> bool:
        time.sleep(0.5)
        return all(
            rows_of(session, SCHEMA, table) == rows_of(session, TARGET, table) for table in TABLES
        )

    with Process(path) as run:
        run.until(is_equal, "existing rows are copied", EQUAL_WITHIN_S)
        end = time.monotonic() + seconds
        kill_at = time.monotonic() + min(KILL_EVERY_S, seconds / 3)
        while time.monotonic() < end:
            writer.write()
            if time.monotonic() > kill_at:
                result.kills += kill_one(path, result.kills)
                run.until(is_equal, "rows are equal after a kill", EQUAL_WITHIN_S)
                kill_at = time.monotonic() + min(KILL_EVERY_S, seconds / 3)
                say(f"soak: {result.kills} kills, {writer.count} transactions, rows are equal")
        run.until(is_equal, "rows are equal in the end", EQUAL_WITHIN_S)
        ran = penstock("verify", path, "--json", timeout_s=EQUAL_WITHIN_S)
        assert ran.code == 0, f"penstock verify: {ran.out} {ran.err}"
        run.stop()
