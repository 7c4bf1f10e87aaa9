"""Each change of a table that sends no rows, and the action that follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from harness.servers.ddl_watch import (
    NOTHING,
    PUBLICATION,
    RELATION,
    SETUP,
    all_due,
    read_again,
    summary,
    watching,
)
from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.source import ddl_watch
from penstock.engines.postgres.source.catalog import (
    TableNotCapturable,
    captured_tables,
    open_catalog,
)
from penstock.engines.postgres.source.ddl_watch import (
    DdlWatch,
    Gone,
    RelationChanged,
    Reload,
    WatchState,
)
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.table_shape import ReloadReason
from penstock.model import TableName


@pytest.fixture
def database(source_url: str) -> Iterator[psycopg.Connection]:
    """Database with the tables above."""
    with open_catalog(source_url) as connection:
        connection.execute(SETUP)
        yield connection


CASES: list[tuple[str, list[tuple[str, str]]]] = [
    # Only the shape changes.
    ("alter table public.t add x int", RELATION),
    ("alter table public.t add x text default 'y' not null", RELATION),
    ("alter table public.t add x timestamptz default now()", RELATION),
    ("alter table public.t drop d", RELATION),
    # Generated columns: no row has them, only the shape.
    ("alter table public.t drop i cascade", RELATION),
    ("alter table public.t drop g", RELATION),
    ("alter table public.t drop g, add g int generated always as (i * 2) stored", RELATION),
    ("alter table public.t drop g, add g int", RELATION),
    ("alter table public.t add h int generated always as (i) stored", RELATION),
    ("alter table public.t alter v type varchar(9)", RELATION),
    ("alter table public.t alter v type text", RELATION),
    ("alter table public.t alter n type numeric(9,2)", RELATION),
    ("alter table public.t alter v set not null", RELATION),
    ("alter table public.t rename v to w", RELATION),
    ("alter table public.t replica identity full", RELATION),
    ("alter table public.t replica identity nothing", RELATION),
    ("alter table public.root replica identity nothing", RELATION),
    ("alter table public.one replica identity nothing", NOTHING),
    ("alter table public.t drop constraint t_pkey", RELATION),
    ("alter table public.root add x int default 3", RELATION),
    # Rows change and are not sent.
    ("alter table public.t add x float default random()", read_again(ReloadReason.REWRITTEN)),
    ("alter table public.t alter d type int using d + 1", read_again(ReloadReason.REWRITTEN)),
    ("alter table public.t alter n type numeric(6,1)", read_again(ReloadReason.REWRITTEN)),
    ("alter table public.t alter v type varchar(2)", read_again(ReloadReason.REWRITTEN)),
    ("alter table public.root alter w type int using w + 1", read_again(ReloadReason.REWRITTEN)),
    (
        "begin; alter table public.t drop d; alter table public.t add d int; commit",
        read_again(ReloadReason.COLUMN_REMADE),
    ),
    ("alter table public.t alter g drop expression", read_again(ReloadReason.COLUMN_UNGENERATED)),
    (
        "alter table public.root attach partition public.loose for values in (3)",
        read_again(ReloadReason.PARTITION_ATTACHED),
    ),
    (
        "alter table public.root detach partition public.one",
        read_again(ReloadReason.PARTITION_GONE),
    ),
    (
        "alter table public.root detach partition public.two",
        read_again(ReloadReason.PARTITION_GONE),
    ),
    ("drop table public.one", read_again(ReloadReason.PARTITION_GONE)),
    ("truncate public.two_a", read_again(ReloadReason.PARTITION_REWRITTEN)),
    (
        "begin; create table public.p3 (id int, v text, w int); "
        "insert into public.p3 values (4, 'lost'); "
        "alter table public.root attach partition public.p3 for values in (4); commit",
        read_again(ReloadReason.PARTITION_ATTACHED),
    ),
    (
        "begin; create table public.p3 (id int, v text, w int) partition by list (v); "
        "create table public.p3a partition of public.p3 default; "
        "insert into public.p3 values (4, 'lost'); "
        "alter table public.root attach partition public.p3 for values in (4); commit",
        read_again(ReloadReason.PARTITION_ATTACHED),
    ),
    (
        "begin; alter table public.root detach partition public.one; "
        "insert into public.one values (1, 'lost'); "
        "alter table public.root attach partition public.one for values in (1); commit",
        read_again(ReloadReason.PARTITION_ATTACHED),
    ),
    ("alter type public.mood rename value 'sad' to 'blue'", read_again(ReloadReason.LABEL_RENAMED)),
    # The change is sent, or has no consequence.
    ("alter type public.mood add value 'new' before 'glad'", NOTHING),
    ("alter type public.pair rename attribute a to z", NOTHING),
    ("alter type public.mood rename to humour", NOTHING),
    ("create domain public.more as public.mood", NOTHING),
    ("truncate public.t", NOTHING),
    ("vacuum full public.t", NOTHING),
    ("cluster public.t using t_pkey", NOTHING),
    ("alter table public.t set (fillfactor = 50)", NOTHING),
    ("create index on public.t (v)", NOTHING),
    ("alter table public.t alter d set default 5", NOTHING),
    ("update public.t set i = i + 1", NOTHING),
    ("create table public.three partition of public.root for values in (3)", NOTHING),
    (
        "create table public.three partition of public.root for values in (3); "
        "insert into public.root values (3, 'sent')",
        NOTHING,
    ),
    (
        "begin; create table public.p3 (id int, v text, w int); "
        "alter table public.root attach partition public.p3 for values in (3); "
        "insert into public.root values (3, 'sent'); commit",
        NOTHING,
    ),
    (
        "create table public.l (id int, v text, w int); "
        "alter table public.root attach partition public.l for values in (4)",
        NOTHING,
    ),
    ("create table public.unrelated (id int)", NOTHING),
    # The change cannot be replicated.
    # It keeps its old name in the log until the new one is captured.
    ("alter table public.t rename to u", NOTHING),
    ("alter schema public rename to pub", NOTHING),
    ('alter publication "Watched p" drop table public.t', [("StopPipeline", "TableNotPublished")]),
    ("alter table public.one set unlogged", [("StopPipeline", "ChangesNotLogged")]),
    (
        'begin; alter publication "Watched p" drop table public.t; '
        "alter table public.t set unlogged; commit",
        [("StopPipeline", "ChangesNotLogged")],
    ),
    ('drop publication "Watched p"', [("StopPipeline", "TableNotPublished")] * 4),
    (
        "alter publication \"Watched p\" set (publish = 'insert')",
        [("StopPipeline", "TableNotPublished")] * 4,
    ),
    (
        "alter table public.root replica identity full",
        [("StopPipeline", "PartitionIdentityDiffers")],
    ),
    (
        "alter table public.t drop constraint t_pkey, add primary key (id, g)",
        [("StopPipeline", "IdentityGenerated")],
    ),
    ("alter table public.quiet drop id", [("StopPipeline", "TableWithoutColumns")]),
    ("alter type public.pair add attribute c text", [("StopPipeline", "TypeAltered")]),
    ("alter type public.pair drop attribute b", [("StopPipeline", "TypeAltered")]),
    ("drop table public.t", [("Gone", "")]),
    (
        "begin; drop table public.t; create table public.t (id int primary key); commit",
        [("StopPipeline", "TableNotPublished")],
    ),
    (
        "begin; drop table public.t; create table public.t (id int primary key); "
        'alter publication "Watched p" add table public.t; commit',
        read_again(ReloadReason.MADE_ANEW),
    ),
    (
        'begin; alter publication "Watched p" drop table public.t; '
        'alter publication "Watched p" add table public.t; commit',
        read_again(ReloadReason.WAS_UNPUBLISHED),
    ),
]


@pytest.mark.parametrize(("ddl", "expected"), CASES, ids=[case[0][:60] for case in CASES])
def test_each_change_has_its_action(
    source_url: str, database: psycopg.Connection, ddl: str, expected: list[tuple[str, str]]
) -> None:
    """A change is noticed while watching, and after a stop during the change."""
    own, watch = watching(source_url, database)
    with own:
        assert watch.poll() == 0
        assert watch.changed
        state = watch.state()
        assert watch.poll() == 0
        for statement in ddl.split(";") if not ddl.startswith("begin") else [ddl]:
            database.execute(statement)
        watch.poll()
        found = summary(all_due(watch))
        assert found == expected
        once = ("TableRenamed", "TypeAltered")
        repeated = [t for t in found if t[0] == "StopPipeline" and t[1] not in once]
        assert watch.poll() == len(repeated)
    kept = msgspec.json.decode(msgspec.json.encode(state), type=WatchState)
    assert kept == state
    tables = captured_tables(database, ["public.*", "other.*"])
    tables = [table for table in tables if table.name.name in ("t", "root", "quiet", "typed")]
    with open_catalog(source_url) as again:
        late = DdlWatch(again, tables, publication=PUBLICATION, state=kept)
        late.poll()
        assert summary(all_due(late)) == found


@pytest.mark.server("postgres >= 17")
def test_another_expression_of_a_generated_column_is_a_change_of_shape(
    source_url: str, database: psycopg.Connection
) -> None:
    """No row is sent, and the target computes the values with the new expression."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute("alter table public.t alter g set expression as (i + 2)")
        watch.poll()
        assert summary(all_due(watch)) == RELATION
        state = watch.state()
    again, watch = watching(source_url, database, state)
    with again:
        assert watch.poll() == 0


def test_a_truncate_of_the_whole_is_distinguished_from_one_of_its_parts(
    source_url: str, database: psycopg.Connection
) -> None:
    """TRUNCATE of a partitioned table is sent, of a partition it is not."""
    own, watch = watching(source_url, database)
    root = TableName("public", "root")
    with own:
        watch.poll()
        database.execute("truncate public.root")
        watch.poll()
        assert watch.pending_count == 1
        position = watch.next_position
        assert position is not None
        assert watch.due(position - 1) is None
        watch.saw_truncate(root, position - 100)
        assert watch.due(position) is None
        assert watch.pending_count == 0
        # The same again without such a message: both leaves were truncated individually.
        database.execute("truncate public.one, public.two_a")
        watch.poll()
        assert summary(all_due(watch)) == read_again(ReloadReason.PARTITION_REWRITTEN)
        # And one of them after the whole table: the files are of two transactions.
        database.execute("truncate public.root")
        database.execute("insert into public.root values (1, 'lost')")
        database.execute("truncate public.one")
        watch.poll()
        position = watch.next_position
        assert position is not None
        watch.saw_truncate(root, position - 100)
        assert summary(all_due(watch)) == read_again(ReloadReason.PARTITION_REWRITTEN)


def test_what_stopped_us_is_looked_at_again_after_a_restart(
    source_url: str, database: psycopg.Connection
) -> None:
    """The stop repeats until the cause is fixed; then the table is read again."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute('alter publication "Watched p" drop table public.t')
        watch.poll()
        assert summary(all_due(watch)) == [("StopPipeline", "TableNotPublished")]
        state = watch.state()
    own, watch = watching(source_url, database, state)
    with own:
        watch.poll()
        assert summary(all_due(watch)) == [("StopPipeline", "TableNotPublished")]
        state = watch.state()
    database.execute('alter publication "Watched p" add table public.t')
    own, watch = watching(source_url, database, state)
    with own:
        watch.poll()
        (action,) = all_due(watch)
        assert isinstance(action, Reload)
        assert action.reason is ReloadReason.WAS_UNPUBLISHED
        assert action.definition.name == TableName("public", "t")
        assert watch.poll() == 0


def test_partitions_made_later_have_an_identity_of_their_own(
    source_url: str, database: psycopg.Connection
) -> None:
    """Later partitions inherit no identity: their old images would lack columns silently."""
    for name in ("root", "one", "two_a"):
        database.execute(f"alter table public.{name} replica identity full")
    own, watch = watching(source_url, database)
    with own:
        assert watch.poll() == 0
        database.execute("create table public.three partition of public.root for values in (3)")
        watch.poll()
        assert summary(all_due(watch)) == [("StopPipeline", "PartitionIdentityDiffers")]
        state = watch.state()
    with pytest.raises(TableNotCapturable, match=r"partition whose replica identity .*three"):
        captured_tables(database, ["public.root"])
    own, watch = watching(source_url, database, state)
    with own:  # root is not among the captured tables now, but must not count as unwanted
        watch.poll()
        assert summary(all_due(watch)) == [("StopPipeline", "PartitionIdentityDiffers")]
        state = watch.state()
    database.execute("alter table public.three replica identity full")
    own, watch = watching(source_url, database, state)
    with own:
        watch.poll()
        assert summary(all_due(watch)) == read_again(ReloadReason.PARTITION_IDENTITY)


def test_a_generated_column_in_the_identity_is_mended_by_reading_again(
    source_url: str, database: psycopg.Connection
) -> None:
    """Rows changed meanwhile lack the column that identifies them."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute("alter table public.t drop constraint t_pkey, add primary key (id, g)")
        watch.poll()
        assert summary(all_due(watch)) == [("StopPipeline", "IdentityGenerated")]
        state = watch.state()
    database.execute("alter table public.t drop constraint t_pkey, add primary key (id)")
    own, watch = watching(source_url, database, state)
    with own:
        watch.poll()
        assert summary(all_due(watch)) == read_again(ReloadReason.GENERATED_IDENTITY)


def test_a_table_captured_later_is_read(source_url: str, database: psycopg.Connection) -> None:
    """The table was created and published without a watch: its earlier rows were not sent."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        state = watch.state()
    database.execute("create table public.new (id int)")
    database.execute('alter publication "Watched p" add table public.new')
    own, watch = watching(source_url, database, state)
    with own:
        watch.poll()
        (action,) = all_due(watch)
    assert isinstance(action, Reload)
    assert (str(action.table), action.reason) == ("public.new", ReloadReason.NEW)


def test_a_table_no_longer_wanted_is_forgotten(
    source_url: str, database: psycopg.Connection
) -> None:
    """The table still exists, but is not in the configuration."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        state = watch.state()
    tables = captured_tables(database, ["public.t"])
    database.execute("alter table public.quiet add x int")
    database.execute("alter type public.mood rename value 'sad' to 'blue'")
    with open_catalog(source_url) as own:
        watch = DdlWatch(own, tables, publication=PUBLICATION, state=state)
        assert watch.poll() == 0
        assert [shape.name.name for shape in watch.state().shapes].count("root") == 1
        database.execute("alter table public.root add x int")
        assert watch.poll() == 0
        assert {shape.name.name for shape in watch.state().shapes} == {"t"}


@pytest.mark.parametrize(
    "change", ["quiet drop id", "one set unlogged", "one replica identity using index one_id"]
)
def test_what_cannot_be_replicated_is_forgotten_once_it_is_not_wanted(
    source_url: str, database: psycopg.Connection, change: str
) -> None:
    """The table stops every start until then, even if the captured tables lack it."""
    database.execute("alter table public.one alter id set not null")
    database.execute("create unique index one_id on public.one (id)")
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute(f"alter table public.{change}".encode())
        watch.poll()
        assert summary(all_due(watch))[0][0] == "StopPipeline"
        state = watch.state()
    tables = captured_tables(database, ["public.*", "!public.loose"])
    assert len(tables) == 3
    kept = {table.name for table in tables}
    for takes, expected in ((lambda _: True, 1), (kept.__contains__, 0)):
        with open_catalog(source_url) as own:
            watch = DdlWatch(own, tables, publication=PUBLICATION, state=state, takes=takes)
            watch.poll()
            assert len(all_due(watch)) == expected
            state = watch.state()
    assert state.names == kept


def test_actions_wait_for_the_stream(source_url: str, database: psycopg.Connection) -> None:
    """Actions have a position after their change, come in order, and are settled one by one."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute("alter table public.t add x int")
        committed = database.execute("select pg_current_wal_insert_lsn()").fetchone()
        watch.poll()
        first = watch.state()
        database.execute("alter table public.t add y int")
        watch.poll()
        assert watch.pending_count == 2
        assert committed is not None
        position = watch.next_position
        assert position is not None
        assert position >= Lsn.parse(committed[0]).ordinal - 40
        assert watch.due(position - 1) is None
        one = watch.due(position)
        assert isinstance(one, RelationChanged)
        assert [c.name for c in one.definition.columns][-1] == "x"
        assert watch.due(position) is one
        watch.settle(one)
        with pytest.raises(ValueError, match="in their order"):
            watch.settle(one)
        half = watch.state()
        two = watch.due(2**64 - 1)
        assert isinstance(two, RelationChanged)
        assert [c.name for c in two.definition.columns][-2:] == ["x", "y"]
    # A restart with either state finds the remaining actions again.
    for state, columns in ((first, 6), (half, 7)):
        assert len(next(s for s in state.shapes if s.name.name == "t").attributes) == columns
        own, late = watching(source_url, database, state)
        with own:
            late.poll()
            assert summary(all_due(late)) == RELATION


def test_a_dropped_table_that_comes_back_is_noticed(
    source_url: str, database: psycopg.Connection
) -> None:
    """The table did not exist between two looks."""
    own, watch = watching(source_url, database)
    with own:
        watch.poll()
        database.execute("drop table public.t")
        watch.poll()
        (gone,) = all_due(watch)
        assert isinstance(gone, Gone)
        assert watch.poll() == 0
        database.execute("create table public.t (other text)")
        database.execute('alter publication "Watched p" add table public.t')
        watch.poll()
        (back,) = all_due(watch)
        assert isinstance(back, Reload)
        assert [c.name for c in back.definition.columns] == ["other"]


def test_looking_does_not_wait_for_a_change_in_progress(
    source_url: str, database: psycopg.Connection
) -> None:
    """An ALTER TABLE may run for hours; keepalives must continue."""
    own, watch = watching(source_url, database)
    with own, open_catalog(source_url) as other:
        watch.poll()
        own.execute("set statement_timeout = '5s'")
        with other.transaction():
            other.execute("alter table public.t add x int")
            other.execute("lock table public.root, public.quiet")
            assert watch.poll() == 0
        assert watch.poll() == 1
        # A new partition that must be examined, and is locked.
        database.execute("alter table public.root attach partition public.loose for values in (3)")
        with other.transaction():
            other.execute("lock table public.loose")
            assert watch.poll() == 0
        watch.poll()
        assert ("Reload", "PARTITION_ATTACHED") in summary(all_due(watch))


class Counting:
    """A connection that counts the statements sent through it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.count = 0

    def execute(self, *given: Any, **named: Any) -> Any:
        """Count the statement and execute it."""
        self.count += 1
        return self._connection.execute(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_thousand_tables_take_no_more_statements_than_ten(
    source_url: str, database: psycopg.Connection
) -> None:
    """A look takes a fixed number of statements, however many tables there are."""
    database.execute('drop publication "Watched p"')
    database.execute(
        'create publication "Watched p" for all tables with (publish_via_partition_root = true)'
    )
    counts = []
    for first, last in ((1, 10), (11, 1000)):
        database.execute(
            f"do $$ begin for i in {first}..{last} loop execute format('create table "
            "public.many_%s (id int primary key, a text, b int, c date, d numeric)', i); "
            "end loop; end $$"
        )
        own, watch = watching(source_url, database)
        with own:
            watch.poll()
            counting: Any = Counting(own)
            watch.connection = counting
            assert watch.poll() == 0
            database.execute("alter table public.many_5 add e int")
            assert watch.poll() == 1
            counts.append(counting.count)
            database.execute("alter table public.many_5 drop e")
    assert counts[1] == counts[0]


def test_a_table_that_changes_during_the_first_look_is_left_to_the_next(
    database: psycopg.Connection, source_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are accepted as they are; its changes since the definition are read again."""
    read = definitions_of
    numbers = iter(range(ddl_watch.ATTEMPTS_MAX))

    def meddle(*given: Any, **named: Any) -> Any:
        found = read(*given, **named)
        with psycopg.connect(source_url, autocommit=True) as other:
            other.execute(f"alter table public.t add z{next(numbers)} int")
        return found

    monkeypatch.setattr(ddl_watch, "definitions_of", meddle)
    own, watch = watching(source_url, database)
    with own:
        assert watch.poll() == 0
        monkeypatch.undo()
        state = watch.state()
        accepted = {shape.name for shape in state.shapes}
        assert TableName("public", "t") not in accepted
        assert TableName("public", "root") in accepted
        assert TableName("public", "t") in state.names
        watch.poll()
        actions = all_due(watch)
        assert summary(actions) == read_again(ReloadReason.REWRITTEN)
        assert [action.table.name for action in actions] == ["t"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select 1", NOTHING),
        ("alter table public.t rename v to w", RELATION),
        ("alter table public.t drop d", RELATION),
        ("alter table public.t alter v set not null", RELATION),
        ("alter table public.t drop constraint t_pkey", RELATION),
        ("alter table public.t add x int default 3", read_again(ReloadReason.REWRITTEN)),
        ("alter table public.t alter d type text", read_again(ReloadReason.REWRITTEN)),
        (
            f"drop table public.t; create table public.t (id int primary key);"
            f' alter publication "{PUBLICATION}" add table public.t',
            read_again(ReloadReason.NEW),
        ),
    ],
)
def test_what_changed_before_the_first_look_is_told(
    database: psycopg.Connection,
    source_url: str,
    statement: str,
    expected: list[tuple[str, str]],
) -> None:
    """The bulk load may have read the definition that the extractor began with."""
    own, watch = watching(source_url, database)
    with own:
        database.execute(statement)
        watch.poll()
        # Otherwise the table counts as new, and its rows are copied a second time.
        assert watch.changed
        assert TableName("public", "t") in watch.state().names
        assert summary(all_due(watch)) == expected
