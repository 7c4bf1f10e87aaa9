"""Trees of inheriting tables through a whole pipeline, into a target that has the same trees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.pipelines.end_to_end import Pair
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TREES = """
    create schema deep;
    create table bar (n int, t text);
    create table bar2 (m int) inherits (bar);
    create table deep.bar3 () inherits (bar2);
    create table loose (n int, t text, m int);
    alter table bar replica identity full;
    alter table bar2 replica identity full;
    alter table deep.bar3 replica identity full;
    alter table loose replica identity full;
    create table top (id int primary key, n int, t text, c int, e int);
    create table mid (primary key (id)) inherits (top);
    create table deep.low (primary key (id)) inherits (mid);
"""
TABLES = ("bar", "bar2", "loose", "top", "mid")
DEEP = ("bar3", "low")
ROWS = """
    insert into bar select i % 3, 'x' from generate_series(1, 9) as i;
    insert into bar2 select i % 3, 'x', 1 from generate_series(1, 9) as i;
    insert into deep.bar3 select i % 3, 'x', 1 from generate_series(1, 9) as i;
    insert into loose select i % 3, 'x', 1 from generate_series(1, 9) as i;
    insert into top select i, i, 'x' from generate_series(1, 9) as i;
    insert into mid select i, i, 'x' from generate_series(1, 9) as i;
    insert into deep.low select i, i, 'x' from generate_series(1, 9) as i;
"""


@pytest.fixture(scope="module")
def pair(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A running pipeline between two sides that have the trees."""
    made = Pair(tmp_path_factory.mktemp("inheritance"), postgres)
    try:
        made.run(TREES + ROWS)
        made.target.execute(TREES.encode())
        made.start()
        made.settle()
        yield made
    finally:
        made.close()


def check(pair: Pair) -> None:
    """Check that every table has its own rows on both sides."""
    pair.settle()
    wrong = [line for table in TABLES for line in pair.differences(table)]
    wrong += [line for table in DEEP for line in pair.differences(table, "deep")]
    assert not wrong, "\n".join(wrong[:20])


def test_every_table_has_its_own_rows(pair: Pair) -> None:
    """Rows stay separate after the bulk load, after changes of a table and a tree, and after
    TRUNCATE.
    """
    check(pair)
    pair.run("update only bar set t = 'y' where n = 0; delete from only bar where n = 1")
    pair.run("update only top set n = n + 1 where id < 4; delete from only top where id > 7")
    pair.run("update bar2 set m = 2 where n = 2; update top set id = id + 100 where id = 5")
    check(pair)
    pair.run("truncate only bar; truncate mid")
    check(pair)
    assert pair.target.execute("select count(*) from only bar2").fetchone() == (9,)
    assert pair.target.execute("select count(*) from deep.low").fetchone() == (0,)
    pair.run("truncate bar; truncate top")
    check(pair)
    pair.run(ROWS)
    check(pair)


def test_tables_join_a_tree_and_leave_it(pair: Pair) -> None:
    """No row moves by the source's ALTER TABLE ... INHERIT, and the target keeps its own trees."""
    pair.run("alter table loose inherit bar; update bar set t = 'joined' where n = 0")
    pair.run("alter table bar2 no inherit bar; update bar set t = 'left' where n = 1")
    pair.run("delete from only bar where n = 2; update bar2 set t = 'alone' where n = 2")
    check(pair)
    pair.run("truncate bar; update bar2 set m = 3 where n = 0")
    check(pair)
    pair.run("alter table bar2 inherit bar; alter table loose no inherit bar")
    pair.run("insert into loose values (1, 'again', 1); update bar set t = 'back' where n = 1")
    check(pair)


def test_columns_of_a_tree_change_with_its_lowest_table(pair: Pair) -> None:
    """All tables change at once, and the log reports the one whose row comes next."""
    rows = "where id in (2, 3)"
    for changed in (
        "add column f int; update deep.low set f = 1, c = 1, e = 1",
        "alter c type bigint; update deep.low set n = 8",
    ):
        pair.run(f"alter table top {changed} {rows}")
        # Rows that ALTER COLUMN TYPE rewrote are read again, and until then the table waits.
        pair.until_equal("low", schema="deep")
    pair.run("alter table top drop column e; alter table top rename c to d")
    pair.run(f"update deep.low set n = 9 {rows}")
    assert pair.process is not None
    # The parents are looked at every few seconds.
    pair.process.until(lambda: "c" not in columns(pair), "the parents' columns in the target")
    pair.until_equal(*TABLES)
    pair.until_equal(*DEEP, schema="deep")
    check(pair)


def columns(pair: Pair) -> set[str]:
    """Return the columns of the tree's lowest table in the target."""
    query = "select attname from pg_attribute where attrelid = 'deep.low'::regclass"
    return {name for (name,) in pair.target.execute(query).fetchall()}
