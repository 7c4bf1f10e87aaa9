"""Fixtures of the tests that apply batches to a target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import POOR, Start
from penstock.engines.postgres.target import apply
from penstock.load import job
from plugins.postgres import Server


@pytest.fixture(params=["few", "many"])
def rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Treatment of every merge table as one of few rows, or of many, whose statements differ."""
    if request.param == "many":
        monkeypatch.setattr(apply, "MANY_ROWS", 0)
        monkeypatch.setattr(apply, "ANALYZE_ROWS_MIN", 0)
        monkeypatch.setattr(job, "CACHE_BYTES_MAX", 0)  # frames are read twice, rows not ordered
    return str(request.param)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogMaker]:
    """An empty change log."""
    maker = LogMaker(tmp_path / "log")
    yield maker
    maker.writer.close()


@pytest.fixture
def start(target_url: str, log: LogMaker, postgres: Server) -> Iterator[Start]:
    """Create tables and a loader; poor: as a role that may not set session_replication_role."""
    opened: list[Applying] = []
    database = target_url.rpartition("/")[2]

    def begin(ddl: str, *, poor: bool = False, **more: Any) -> Applying:
        with psycopg.connect(target_url, autocommit=True) as connection:
            connection.execute(ddl)  # type: ignore[arg-type]
        url = target_url
        if poor:
            postgres.execute(f"drop owned by {POOR}", database)
            postgres.execute(
                f"grant create on database {database} to {POOR};"
                f"grant select, insert, update, delete, truncate on all tables in schema public"
                f" to {POOR}; grant usage on schema public to {POOR}",
                database,
            )
            url = postgres.url(database, POOR, "p")
        opened.append(Applying(url, log.directory, **more))
        return opened[-1]

    postgres.execute(
        f"do $$ begin if to_regrole('{POOR}') is null then create role {POOR} login password 'p';"
        " end if; end $$"
    )
    yield begin
    for one in opened:
        one.close()
