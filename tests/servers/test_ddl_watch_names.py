"""Captured tables that are renamed: they are followed, or the pipeline stops until it is undone."""

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
from penstock.engines.postgres.source.ddl_watch import (
    DdlWatch,
    Gone,
    Reload,
    StopPipeline,
    WatchState,
)
from penstock.engines.postgres.source.table_shape import ReloadReason
from penstock.model import TableName


@pytest.fixture
def database(source_url: str) -> Iterator[psycopg.Connection]:
    """Database with the tables above."""
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


def not_taken(name: TableName) -> bool:
    """Return whether a name belongs to a table that may not be followed."""
    return str(name) not in ("public.u", "public.x") and name.schema == "public"


@pytest.mark.parametrize("case", ["one table", "a schema"])
def test_a_name_that_is_not_captured_stops_the_pipeline_until_it_is_undone(
    source_url: str, database: psycopg.Connection, case: str
) -> None:
    """The next start continues as the hint says, and notices other changes."""
    own, watch = watching(source_url, database, takes_renamed=not_taken)
    with own:
        watch.poll()
        do, undo = RENAMES[case]
        database.execute(do.encode())
        watch.poll()
        action = watch.due(2**64 - 1)
        assert isinstance(action, StopPipeline)
        watch.settle(action)
        state = watch.state()
    database.execute(undo.encode())
    database.execute("alter table public.t add more int")
    state = msgspec.json.decode(msgspec.json.encode(state), type=WatchState)
    tables = captured_tables(database, ["public.*", "!*.loose"])
    with open_catalog(source_url) as own:
        watch = DdlWatch(own, tables, publication=PUBLICATION, state=state)
        watch.poll()
        assert summary(all_due(watch)) == RELATION
        assert watch.poll() == 0
        names = watch.state().names
        assert sorted(map(str, names)) == sorted(str(table.name) for table in tables)


def test_a_new_name_is_followed_when_it_is_captured(
    source_url: str, database: psycopg.Connection
) -> None:
    """The old name is kept until then: the log has each change under one of them."""
    own, watch = watching(source_url, database)
    new = TableName("public", "u")
    with own:
        watch.poll()
        database.execute("alter table public.t rename to u")
        watch.poll()
        assert summary(all_due(watch)) == NOTHING
        assert TableName("public", "t") in watch.state().names
        (oid,) = database.execute("select 'public.u'::regclass::oid::int8").fetchall()[0]
        watch.admit(new, oid)
        watch.poll()
        (gone,) = all_due(watch)
        assert isinstance(gone, Gone)
        assert gone.renamed is not None
        assert (str(gone.table), gone.renamed.name) == ("public.t", new)
        assert watch.follows(new)
        assert TableName("public", "t") in watch.state().gone
        assert watch.poll() == 0
        # The table with the old name is followed, whichever it is.
        database.execute("alter table public.quiet rename to t")
        watch.poll()
        kinds = [(str(action.table), type(action)) for action in all_due(watch)]
        assert kinds == [("public.quiet", Gone), ("public.t", Reload)]


def test_a_new_name_that_nobody_asks_for_is_read_at_once(
    source_url: str, database: psycopg.Connection
) -> None:
    """No rows are copied without a target: the log has them again under the new name."""
    own, watch = watching(source_url, database, reads_renamed=True)
    with own:
        watch.poll()
        database.execute("alter table public.t rename to u")
        watch.poll()
        gone, reload = all_due(watch)
        assert isinstance(gone, Gone)
        assert isinstance(reload, Reload)
        assert (str(gone.table), str(reload.table)) == ("public.t", "public.u")
        assert watch.poll() == 0


RENAME = "alter table public.t rename to u"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_rename_before_the_first_look_is_told(
    source_url: str, database: psycopg.Connection, is_restarted: bool
) -> None:
    """The log may have rows under the old name, until the new one is captured."""
    old, new = TableName("public", "t"), TableName("public", "u")
    own, watch = watching(source_url, database)
    with own:
        database.execute(RENAME)
        watch.poll()
        assert summary(all_due(watch)) == NOTHING
        assert old in watch.state().names - set(watch.state().gone)
        if is_restarted:
            own, watch = watching(source_url, database, watch.state())
        else:
            (oid,) = database.execute("select 'public.u'::regclass::oid::int8").fetchall()[0]
            watch.admit(new, oid)
    with own if is_restarted else open_catalog(source_url) as watch.connection:
        watch.poll()
        gone = [action for action in all_due(watch) if isinstance(action, Gone)]
        assert [action.table for action in gone] == [old]
        assert old in watch.state().gone
        assert watch.follows(new)
        assert watch.poll() == 0


def test_a_table_that_is_dropped_before_the_first_look_is_told(
    source_url: str, database: psycopg.Connection
) -> None:
    """The log may have rows of it."""
    own, watch = watching(source_url, database)
    with own:
        database.execute("drop table public.t")
        watch.poll()
        (gone,) = all_due(watch)
        assert isinstance(gone, Gone)
        assert (str(gone.table), gone.renamed) == ("public.t", None)
        assert TableName("public", "t") in watch.state().gone
        assert watch.poll() == 0


def test_a_rename_before_the_first_look_is_read_at_once_or_refused(
    source_url: str, database: psycopg.Connection
) -> None:
    """A rename has the same consequences before the first look as after it."""
    own, watch = watching(source_url, database, reads_renamed=True)
    with own:
        database.execute(RENAME)
        watch.poll()
        gone, reload = all_due(watch)
        assert isinstance(gone, Gone)
        assert isinstance(reload, Reload)
        assert (str(gone.table), str(reload.table)) == ("public.t", "public.u")
        database.execute("alter table public.u rename to t")
    own, watch = watching(source_url, database, takes_renamed=not_taken)
    with own:
        database.execute(RENAME)
        watch.poll()
        action = watch.due(2**64 - 1)
        assert isinstance(action, StopPipeline)
        assert "public.t is named public.u now" in action.error.message


def test_two_tables_that_swap_their_names_are_read_again(
    source_url: str, database: psycopg.Connection
) -> None:
    """Each name now has another table's rows."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute(RENAMES["two tables"][0].encode())
        watch.poll()
        actions = all_due(watch)
        assert {str(action.table) for action in actions} == {"public.t", "public.quiet"}
        reasons = {action.reason for action in actions if isinstance(action, Reload)}
        assert reasons == {ReloadReason.MADE_ANEW}


def test_a_renamed_table_that_is_taken_out_is_forgotten(
    source_url: str, database: psycopg.Connection
) -> None:
    """The pipeline is stopped by a renamed table until that is excluded."""
    own, watch = watching(source_url, database, takes_renamed=not_taken)
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
                takes_renamed=not_taken,
            )
            watch.poll()
            assert [t for t in summary(all_due(watch)) if t[0] == "StopPipeline"] == expected
            state = watch.state()
    assert not {TableName("public", "t"), TableName("public", "u")} & state.names
