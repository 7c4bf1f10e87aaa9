"""Captured tables that get another name: the pipeline stops, and goes on either way."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import psycopg
import pytest

from harness.servers.ddl_watch import (
    NOTHING,
    PUBLICATION,
    RELATION,
    SETUP,
    all_due,
    summary,
    watching,
)
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.ddl_watch import DdlWatch, StopPipeline, WatchState
from penstock.model import TableName


@pytest.fixture
def database(source_url: str) -> Iterator[psycopg.Connection]:
    """The tables above."""
    with open_catalog(source_url) as connection:
        connection.execute(SETUP)
        yield connection


RENAMES = {
    "one table": ("alter table public.t rename to u", "alter table public.u rename to t"),
    "two tables": (
        "alter table public.t rename to x; alter table public.quiet rename to t;"
        " alter table public.x rename to quiet",
    )
    * 2,
    "a schema": ("alter schema public rename to pub", "alter schema pub rename to public"),
}


@pytest.mark.parametrize("case", RENAMES)
@pytest.mark.parametrize("undone", [True, False])
def test_a_name_that_stopped_us_is_undone_or_followed(
    source_url: str, database: psycopg.Connection, case: str, undone: bool
) -> None:
    """As the hint says: either way the next start goes on, and notices what else has changed."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        do, undo = RENAMES[case]
        database.execute(do.encode())
        watch.poll()
        action = watch.due(2**64 - 1)
        assert isinstance(action, StopPipeline)
        watch.settle(action)
        assert watch.changed
        state = watch.state()
    if undone:
        database.execute(undo.encode())
    (table,) = database.execute(
        "select oid::regclass::text from pg_class"
        " where relname in ('quiet', 't', 'u') order by relname = 'quiet' desc, 1 limit 1"
    ).fetchall()[0]
    database.execute(f"alter table {table} add more int".encode())
    state = msgspec.json.decode(msgspec.json.encode(state), type=WatchState)
    tables = captured_tables(database, ["public.*", "pub.*", "!*.loose"])
    with open_catalog(source_url) as own:
        watch = DdlWatch(own, tables, publication=PUBLICATION, state=state)
        watch.poll()
        assert summary(all_due(watch)) == RELATION
        assert watch.poll() == 0
        state = watch.state()
        assert state.renamed == ()
        assert sorted(map(str, state.names)) == sorted(str(table.name) for table in tables)


def test_a_renamed_table_that_is_taken_out_is_forgotten(
    source_url: str, database: psycopg.Connection
) -> None:
    """It stops the pipeline until then, under its old name too."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute("alter table public.t rename to u")
        watch.poll()
        assert summary(all_due(watch)) == [("StopPipeline", "TableRenamed")]
        state = watch.state()
    for patterns, expected in (
        (["public.*", "!public.loose", "!public.u"], [("StopPipeline", "TableRenamed")]),
        (["public.*", "!public.loose", "!public.u", "!public.t"], NOTHING),
    ):
        tables = captured_tables(database, patterns)
        takes = {"public.loose": False, "public.t": len(patterns) == 3, "public.u": False}
        with open_catalog(source_url) as own:
            watch = DdlWatch(
                own,
                tables,
                publication=PUBLICATION,
                state=state,
                takes=lambda name, takes=takes: takes.get(str(name), True),
            )
            watch.poll()
            assert [t for t in summary(all_due(watch)) if t[0] == "StopPipeline"] == expected
            state = watch.state()
    assert not {TableName("public", "t"), TableName("public", "u")} & state.names
