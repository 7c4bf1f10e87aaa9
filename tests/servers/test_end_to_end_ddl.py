"""Tables are altered while the pipeline runs, and while it is stopped: both sides end equal.

The server sends no rows for some changes; a look at the catalogue every ten seconds notices them,
so all tables are altered at once and one wait serves all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness.pipelines.end_to_end import Pair
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Per table: the alteration.
CHANGES = {
    "add_plain": "alter table {t} add column x text",
    "add_constant": "alter table {t} add column x int default 7",
    "add_constant_not_null": "alter table {t} add column x text not null default 'it''s \\x'",
    "add_now": "alter table {t} add column x timestamptz default now()",
    "add_volatile": "alter table {t} add column x double precision default random()",
    "add_identity": "alter table {t} add column x int generated always as identity",
    "add_enum": "alter table {t} add column x {t}_mood default 'b', add y {t}_mood[]",
    "add_two": "alter table {t} add column x int default 1, add column y numeric(5,2) default 2.5",
    "add_and_set": "alter table {t} add column x int; update {t} set x = n where id > 5",
    "add_changed_default": "alter table {t} add column x int default 1;"
    " alter table {t} alter x set default 2",
    "add_then_drop": "alter table {t} add column x int default 1; alter table {t} drop column x",
    "drop_column": "alter table {t} drop column n",
    "drop_and_add": "alter table {t} drop column n;"
    " alter table {t} add column n text default 'new'",
    "widen_int": "alter table {t} alter n type bigint",
    "widen_key": "alter table {t} alter id type bigint",
    "widen_varchar": "alter table {t} alter v type varchar(50)",
    "varchar_to_text": "alter table {t} alter v type text",
    "widen_numeric": "alter table {t} alter c type numeric(20,2)",
    "narrow_numeric": "alter table {t} alter c type numeric(10,1)",
    "using": "alter table {t} alter n type text using 'n' || n",
    "using_same_type": "alter table {t} alter n type int using n * 10",
    "rename_column": "alter table {t} rename column n to m",
    "rename_two": "alter table {t} rename column n to m; alter table {t} rename column v to n",
    "swap_names": "alter table {t} rename column v to x; alter table {t} rename column t to v;"
    " alter table {t} rename column x to t",
    "rename_key": "alter table {t} rename column id to key",
    "set_identity_full": "alter table {t} replica identity full",
    "not_null": "alter table {t} alter n set not null; alter table {t} alter t set not null",
    "drop_not_null": "alter table {t} alter v drop not null;"
    " update {t} set v = null where id in (1, 9)",
    "clustered": "vacuum full {t}",
}
COLUMNS = "id int primary key, n int, v varchar(10) not null, t text, c numeric(10,2)"
ROWS = "select g, g, 'v' || g, repeat('t', g), g / 3.0 from generate_series({0}, {1}) as g"


def table_names() -> list[str]:
    """Return a table for each change with rows written around it, and one without."""
    return [f"{name}_{kind}" for name in CHANGES for kind in ("busy", "quiet")]


def alter(pair: Pair, table: str) -> None:
    """Carry out the change, between other changes in a busy table."""
    name, _, kind = table.rpartition("_")
    if kind == "busy":
        pair.run(f"update {table} set t = 'before' where id = 1; delete from {table} where id = 2")
        pair.run(f"insert into {table} {ROWS.format(50, 52)}")
    sql = CHANGES[name].format(t=table)
    make_type(pair, name, table)
    pair.run(sql)
    if kind == "busy":
        write(pair, table)


def make_type(pair: Pair, name: str, table: str) -> None:
    """Create a type that the change needs on both sides: penstock does not create types of new
    columns.
    """
    if name == "add_enum":
        for side in (pair.source, pair.target):
            side.execute(f"create type public.{table}_mood as enum ('a', 'b')".encode())


def write(pair: Pair, table: str) -> None:
    """Change rows, whatever shape the table has now."""
    row = pair.source.execute(
        """
        select (select attname from pg_attribute
                 where attrelid = i.indrelid and attnum = i.indkey[0])
          from pg_index as i
         where i.indrelid = %s::regclass and i.indisprimary
        """,
        (table,),
    ).fetchone()
    assert row is not None
    key = row[0]
    others = [
        name
        for (name,) in pair.source.execute(
            """
            select attname from pg_attribute
             where attrelid = %s::regclass and attnum > 0 and not attisdropped
               and attname <> %s and attidentity = '' and attgenerated = ''
            """,
            (table, key),
        ).fetchall()
    ]
    listed = ", ".join(others)
    pair.run(f"update {table} set c = c + 1 where {key} in (3, 4)")
    pair.run(f"delete from {table} where {key} in (5, 51)")
    pair.run(f"update {table} set {key} = {key} + 1000 where {key} = 6")
    pair.run(
        f"insert into {table} ({key}, {listed}) select {key} + 2000, {listed} from {table}"
        f" where {key} in (7, 8)"
    )


@pytest.fixture(scope="module")
def pair(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair with all tables altered: half while the pipeline runs, half while it is stopped."""
    made = Pair(tmp_path_factory.mktemp("ddl"), postgres)
    try:
        for table in [*table_names(), *(f"still_{name}" for name in table_names())]:
            made.run(f"create table {table} ({COLUMNS})")
            made.run(f"insert into {table} {ROWS.format(1, 10)}")
        made.run(
            "create table ungenerated"
            " (id int primary key, n int, g int generated always as (n * 2) stored);"
            "insert into ungenerated (id, n) select g, g from generate_series(1, 5) as g"
        )
        made.start()
        made.settle()
        for table in table_names():
            alter(made, table)
        made.settle()
        wait_for_looks(made, table_names())
        made.stop()
        for table in table_names():
            alter_still(made, table)
        made.start()
        made.settle()
        wait_for_looks(made, [f"still_{table}" for table in table_names()])
        yield made
    finally:
        made.close()


def alter_still(pair: Pair, table: str) -> None:
    """Alter the twin that is altered while the pipeline is stopped."""
    name, _, kind = table.rpartition("_")
    twin = f"still_{table}"
    if kind == "busy":
        write(pair, twin)
    make_type(pair, name, twin)
    pair.run(CHANGES[name].format(t=twin))
    if kind == "busy":
        pair.run(f"update {twin} set c = c + 2")


def wait_for_looks(pair: Pair, tables: list[str], within_s: float = 60) -> None:
    """Wait until all are equal, or so long that each table's own test reports the difference."""
    assert pair.process is not None
    deadline = time.monotonic() + within_s
    while pair.process.running and time.monotonic() < deadline:
        if not any(pair.differences(table) for table in tables):
            return
        time.sleep(1)


@pytest.mark.parametrize("table", table_names())
def test_altered_while_running(pair: Pair, table: str) -> None:
    """The target's table gets the same columns, of the same types, and the same rows."""
    assert pair.process is not None
    assert pair.process.running, pair.process.err
    assert pair.differences(table) == []


@pytest.mark.parametrize("table", [f"still_{name}" for name in table_names()])
def test_altered_while_stopped(pair: Pair, table: str) -> None:
    """The next start notices alterations made while the pipeline was stopped."""
    assert pair.process is not None
    assert pair.process.running, pair.process.err
    assert pair.differences(table) == []


def test_a_column_that_is_no_longer_generated(pair: Pair) -> None:
    """The column becomes an ordinary one in the target too, and its values are replicated."""
    pair.run("update ungenerated set n = 10 where id = 1")
    pair.check("ungenerated")
    pair.run("alter table ungenerated alter g drop expression")
    pair.run("update ungenerated set g = 77, n = 3 where id = 2")
    pair.until_equal("ungenerated")
    pair.run("update ungenerated set g = 78 where id = 3; insert into ungenerated values (9, 9, 9)")
    pair.check("ungenerated")


def test_a_type_that_the_target_lacks(pair: Pair) -> None:
    """The type is created there, as the bulk load does."""
    pair.run("create type strange as (a int, b text)")
    pair.run("alter table fence add column s strange")
    pair.run("insert into fence values (-1, '(1,x)')")
    pair.check("fence")


def test_a_generated_column(pair: Pair) -> None:
    """The target computes it as the source does; it is dropped with the column that
    it depends on.
    """
    pair.run("alter table fence add column n int, add column g int")
    pair.run("insert into fence (id, n, g) values (-2, 20, 1)")
    pair.run("alter table fence drop column g, add column g int generated always as (n * 2) stored")
    pair.until_equal("fence")
    pair.run("update fence set n = 30 where id = -2; alter table fence rename column g to h")
    pair.until_equal("fence")
    pair.run("alter table fence drop column h, add column h int generated always as (n + 1) stored")
    pair.until_equal("fence")
    computed = "select h from fence where id = -2"
    assert pair.target.execute(computed).fetchall() == [(31,)]
    pair.run("alter table fence drop column n cascade; insert into fence (id) values (-3)")
    pair.check("fence")
