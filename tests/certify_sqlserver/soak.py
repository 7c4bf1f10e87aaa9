"""The soak: a pipeline between two databases of the server, with changes and kills for minutes.

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
from certify_sqlserver.case import NO_COUNT
from certify_sqlserver.server import DATABASE, STATEMENT_TIMEOUT_S, TARGET, Server
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.source.instances import enable_text

TABLES = {
    "soak_item": "id int NOT NULL PRIMARY KEY, n int, name nvarchar(40), body nvarchar(max)",
    "soak_bag": "a int, v varchar(40)",
}
COLUMNS = {"soak_item": "id, n, name, body", "soak_bag": "a, v"}
EQUAL_WITHIN_S = 300.0
KEYS = 2000


class Writer:
    """Changes of the soak's tables, by a seed."""

    def __init__(self, session: Connection, seed: int) -> None:
        self._session, self._random = session, random.Random(seed)
        self.count = 0

    def write(self) -> None:
        """Run one transaction."""
        key, other = self._random.randrange(KEYS), self._random.randrange(KEYS)
        number = self._random.randrange(50)
        texts = self._random.choice(
            (
                (f"DELETE FROM dbo.soak_item WHERE id = {key}",
                 f"INSERT INTO dbo.soak_item VALUES ({key}, {number}, N'ä {number}', NULL)"),
                (f"UPDATE dbo.soak_item SET n = n + 1 WHERE id BETWEEN {key} AND {key + 20}",),
                (f"UPDATE dbo.soak_item SET body = REPLICATE(CONVERT(nvarchar(max), N'x'), "
                 f"{number * 400}) WHERE id = {key}",),
                (f"DELETE FROM dbo.soak_item WHERE id = {other}",
                 f"UPDATE dbo.soak_item SET id = {other} WHERE id = {key}"),
                (f"INSERT INTO dbo.soak_bag VALUES ({number}, 'x'), ({number}, 'x'), "
                 f"({number}, NULL)",),
                (f"UPDATE dbo.soak_bag SET v = 'of {key}' WHERE a = {number}",),
                (f"DELETE FROM dbo.soak_bag WHERE a = {number}",),
                (f"DELETE FROM dbo.soak_item WHERE id > {KEYS - 20}",),
            )
        )  # fmt: skip
        self._session.execute(f"BEGIN TRAN; {'; '.join(texts)}; COMMIT")
        self.count += 1


def rows_of(session: Connection, table: str) -> list[tuple[Any, ...]]:
    """Return a table's rows, in order; none if it does not exist yet."""
    if not session.execute("SELECT name FROM sys.tables WHERE name = ?", table):
        return []
    return sorted(session.execute(f"SELECT {COLUMNS[table]} FROM dbo.{table}"), key=repr)


def run_soak(
    server: Server, folder: Path, *, seconds: float, seed: int = 1, say: Callable[[str], None]
) -> SoakResult:
    """Run the soak."""
    result = SoakResult()
    began = time.monotonic()
    with (
        connect(server.url_of(DATABASE), timeout_s=STATEMENT_TIMEOUT_S) as source,
        connect(server.url_of(TARGET), timeout_s=STATEMENT_TIMEOUT_S) as target,
    ):
        for session in (source, target):
            session.run("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
            session.run(NO_COUNT)
        for table, columns in TABLES.items():
            source.execute(f"CREATE TABLE dbo.{table} ({columns})")
            source.execute(enable_text("dbo", table))
        writer = Writer(source, seed)
        for _ in range(100):
            writer.write()
        path = write_pipeline(
            folder,
            server.url_of(DATABASE),
            server.url_of(TARGET),
            name="certify",
            directory="certify",
            tables=[f"dbo.{table}" for table in TABLES],
            sections={"changeExtractor": LIVELY, "spark": {"master": "local[2]"}},
        )
        try:
            _soak(path, writer, source, target, result, seconds=seconds, say=say)
        except AssertionError as error:
            result.problem = str(error) or repr(error)
        finally:
            end_processes(path)
        result.rows = sum(len(rows_of(source, table)) for table in TABLES)
    result.statements, result.seconds = writer.count, time.monotonic() - began
    return result


def _soak(
    path: Path,
    writer: Writer,
    source: Connection,
    target: Connection,
    result: SoakResult,
    *,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    def is_equal() -> bool:
        time.sleep(0.5)
        return all(rows_of(source, table) == rows_of(target, table) for table in TABLES)

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
