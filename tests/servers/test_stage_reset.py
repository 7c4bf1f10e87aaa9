"""`penstock reset` of changefeeds, as a user types it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.feeds.staging_database import at, batch, change
from harness.pipelines.pipeline import Ran, penstock
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.model import TableName
from penstock.ports.feeds import StagedTable, staging_at
from penstock.ports.target import TableRecord
from plugins.postgres import Server


class Feeds:
    """A staging database and a target, with a row that is staged and applied."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.staging, self.target = server.make_database("staging"), server.make_database("target")
        with psycopg.connect(self.target, autocommit=True) as sql:
            sql.execute("create table orders (id int primary key)")
            sql.execute("create table others (id int primary key)")
            sql.execute("insert into orders values (1)")
            sql.execute("insert into others values (1)")
            (database,) = sql.execute("select current_database()").fetchone() or ("",)
        self.table = StagedTable((database, "public"), "orders")
        self.path = folder / "feeds.toml"
        self.path.write_text(
            '[pipeline]\nname = "feeds"\ndirectory = "feeds"\n[stage]\n'
            f'[staging]\nurl = "{self.staging}"\n[target]\nurl = "{self.target}"\n'
        )
        database = staging_at(self.staging)
        database.create()
        with database.open_session() as session:
            session.stage({self.table: batch(change(3))})
            session.advance(self.table.group, "feed", at(5))
            session.mark_applied_through([self.table], at(5))
            session.commit(self.table.group, at(5))
        (folder / "feeds" / "groups" / "x").mkdir(parents=True)

    def reset(self, *more: str) -> Ran:
        """Run the command."""
        return penstock("reset", self.path, "--yes", *more)

    def read_marks(self) -> list[bool]:
        """Return for each staged row whether it is marked applied."""
        with psycopg.connect(self.staging) as sql:
            (name,) = sql.execute(
                "select quote_ident(table_name) from information_schema.tables "
                "where table_name like '%orders'"
            ).fetchone() or ("",)
            found = sql.execute(f"select applied from public.{name}".encode()).fetchall()
        return [bool(applied) for (applied,) in found]

    def rows(self, table: str) -> int:
        """Count the rows of a table of the target."""
        with psycopg.connect(self.target) as sql:
            (count,) = sql.execute(f"select count(*) from {table}".encode()).fetchone() or (0,)
        return int(count)


@pytest.fixture
def feeds(tmp_path: Path, postgres: Server) -> Iterator[Feeds]:
    """Feeds of a pipeline; both databases are dropped afterwards."""
    made = Feeds(tmp_path, postgres)
    yield made
    for url in (made.staging, made.target):
        postgres.drop_database(url)


def test_everything_staged_is_applied_again(feeds: Feeds) -> None:
    """The directory is deleted, rows stay on both sides; a second time there is no directory."""
    assert feeds.read_marks() == [True]
    done = feeds.reset()
    assert done.code == 0, done.err
    assert "all marks of what is applied of" in done.out
    assert f"penstock stage {feeds.path}" in done.out
    assert (feeds.read_marks(), feeds.rows("orders")) == ([False], 1)
    assert not (feeds.path.parent / "feeds").exists()
    assert feeds.reset().code == 0


def test_it_begins_with_nothing(feeds: Feeds) -> None:
    """Only the fed tables are emptied; then there is nothing to undo."""
    done = feeds.reset("--target")
    assert done.code == 0, done.err
    assert (feeds.read_marks(), feeds.rows("orders"), feeds.rows("others")) == ([], 0, 1)
    with staging_at(feeds.staging).open_session() as session:
        assert session.group_names() == ()


def test_tables_of_another_pipeline_stay(feeds: Feeds) -> None:
    """The other pipeline loads into the same target, created a table, and recorded it there."""
    others = TableName("public", "others")
    with psycopg.connect(feeds.target, autocommit=True) as sql:
        progress = PostgresProgress(sql)
        progress.ensure_tables()
        made = TableRecord(
            source=others, target=others, merge_name="others", made=True, columns=None
        )
        progress.write_tables([made])
    done = feeds.reset("--target")
    assert done.code == 0, done.err
    assert (feeds.rows("orders"), feeds.rows("others")) == (0, 1)
