"""Tables of the target that others inherit from: each statement affects one table's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import Start, delete, insert, update
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.slot import ensure_publication
from penstock.engines.postgres.source.snapshot import lock_tables
from penstock.engines.postgres.target.bulk import begin_afresh, is_empty
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.repair import PostgresRepair
from penstock.engines.postgres.verify import read_parts
from penstock.host.errors import StatementInterrupted
from penstock.model import Identity, MarkerKind, Relation, TableName
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.ports.bulk import TablePlan
from penstock.ports.target import ShapeNotApplicable

# Three levels, the lowest in another schema; equal rows on each, as nothing forbids them.
TREE = """
    create schema deep;
    create table public.top (id int {key}, n int {unique}, doc text);
    create table public.mid (own int {more}) inherits (public.top);
    create table deep.low ({low}) inherits (public.mid);
    insert into public.top values (1, 1, 'x'), (2, 2, 'x'), (3, 3, 'x');
    insert into public.mid values (1, 1, 'x', 1), (2, 2, 'x', 1), (3, 3, 'x', 1);
    insert into deep.low values (1, 1, 'x', 1), (2, 2, 'x', 1), (3, 3, 'x', 1);
"""
NAMES = ("public.top", "public.mid", "deep.low")
SHAPE = (("id", "integer", "int32"), ("n", "integer", "int32"), ("doc", "text", "string"))
OWN = (*SHAPE, ("own", "integer", "int32"))


def tree(kind: str) -> str:
    """Return DDL of the tree: keyed, with another unique column, deferrable, or without a key."""
    if kind == "keyless":
        return TREE.format(key="", unique="", more="", low="")
    key = "primary key deferrable" if kind == "deferrable" else "primary key"
    more = ", primary key (id)" if kind != "deferrable" else ", primary key (id) deferrable"
    unique = "unique" if kind == "unique" else ""
    return TREE.format(key=key, unique=unique, more=more, low=more.removeprefix(", "))


def shapes(kind: str) -> list[Relation]:
    """Return the relations of the three tables."""
    key, identity = ((), Identity.FULL) if kind == "keyless" else ((0,), Identity.DEFAULT)
    return [
        relation(*columns, key=key, identity=identity, schema=schema, name=name)
        for schema, name, columns in (
            ("public", "top", SHAPE),
            ("public", "mid", OWN),
            ("deep", "low", OWN),
        )
    ]


def own_rows(url: str) -> list[list[tuple[int, ...]]]:
    """Return each table's own (id, n), in order."""
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"select id, n from only {name} order by 1, 2".encode()).fetchall()
            for name in NAMES
        ]


@pytest.mark.usefixtures("rows_at_once")
@pytest.mark.parametrize("poor", [False, True])
@pytest.mark.parametrize("kind", ["keyed", "unique", "deferrable", "keyless"])
def test_changes_of_a_parent_leave_its_children(
    start: Start, log: LogMaker, target_url: str, kind: str, poor: bool
) -> None:
    """Updates, deletes, changed keys and unsent columns on the upper two levels leave the lowest
    alone.
    """
    target = start(tree(kind), poor=poor)
    top, mid, _ = shapes(kind)
    for shape, own in ((top, ()), (mid, (1,))):
        log.transaction(
            update(shape, 1, 10, "x", *own, old=(1, 1, "x", *own)),
            delete(shape, 2, 2, "x", *own),
            update(shape, 4, 3, "x", *own, old=(3, 3, "x", *own)),
        )
        if kind != "keyless":
            log.transaction(update(shape, 5, 3, None, *own, old=(4, None, None), absent=(2,)))
    log.close_segment()
    target.batch()
    moved = 4 if kind == "keyless" else 5
    assert own_rows(target_url) == [
        [(1, 10), (moved, 3)],
        [(1, 10), (moved, 3)],
        [(1, 1), (2, 2), (3, 3)],
    ]
    assert target.rows("select count(*) from public.top where doc is null") == [(0,)]


@pytest.mark.parametrize("hung", [False, True])
@pytest.mark.parametrize("emptied", [["top"], ["mid"], ["top", "mid", "low"]])
def test_truncate_empties_what_the_source_names(
    start: Start, log: LogMaker, target_url: str, emptied: Sequence[str], hung: bool
) -> None:
    """TRUNCATE ONLY empties only the parent, TRUNCATE its children too."""
    ddl = tree("keyed")
    if hung:  # then rows are removed by DELETE
        ddl += "create table public.hung (t int references public.top, m int references public.mid)"
    target = start(ddl)
    names = [TableName("deep" if name == "low" else "public", name) for name in emptied]
    log.transaction((MarkerKind.TRUNCATE, names))
    log.close_segment()
    target.batch()
    left = [0 if name.rpartition(".")[2] in emptied else 3 for name in NAMES]
    assert [len(rows) for rows in own_rows(target_url)] == left


def test_a_table_read_again_keeps_its_childrens_rows(
    start: Start, log: LogMaker, target_url: str
) -> None:
    """Rows are replaced one by one if columns of the target are kept."""
    policies = Policies(kinds={ChangeKind.DROP_COLUMN: Policy.LENIENT})
    target = start(tree("keyed"), policies=policies)
    top = shapes("keyed")[0]
    log.transaction(insert(top, 9, 9, "x"), relations=[top])
    log.close_segment()
    target.batch()
    log.transaction((MarkerKind.RELOAD, [TableName("public", "top")]), insert(top, 1, 7, "y"))
    log.close_segment()
    target.batch()
    assert [len(rows) for rows in own_rows(target_url)] == [1, 3, 3]


def plan(name: str) -> TablePlan:
    """Return a plan of one table that begins from the start."""
    table = TableName(*name.split("."))
    return TablePlan(
        source=table,
        target=table,
        columns=("id",),
        binary=False,
        position="0/1",
        snapshot_id="",
        snapshot_text="",
        chunks=(),
    )


@pytest.mark.parametrize("hung", [False, True])
def test_loading_a_parent_afresh_leaves_its_children(target_url: str, hung: bool) -> None:
    """A parent without rows of its own is empty, whatever its children have."""
    with connect(target_url, application_name="test") as connection:
        PostgresProgress(connection).ensure_tables()
        PostgresProgress(connection).ensure_marks()
        connection.execute(tree("keyed").encode())
        if hung:
            connection.execute("create table public.hung (t int references public.top)")
        begin_afresh(connection, [plan("public.top")])
        counts = [
            connection.execute(f"select count(*) from only {name}".encode()).fetchone()
            for name in NAMES
        ]
        assert counts == [(0,), (3,), (3,)]
        assert is_empty(connection, TableName("public", "top"))
        connection.execute("create table public.parts (id int) partition by range (id)")
        connection.execute("create table public.part partition of public.parts default")
        connection.execute("insert into public.parts values (1)")
        assert not is_empty(connection, TableName("public", "parts"))
        begin_afresh(connection, [plan("public.parts")])
        assert is_empty(connection, TableName("public", "parts"))


def test_a_repair_deletes_rows_of_one_table(target_url: str) -> None:
    """The repair of a parent is like that of a table without children."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(tree("keyed").encode())
    repair = PostgresRepair(target_url, None, {})
    try:
        with repair.transaction():
            assert repair.delete(TableName("public", "top"), "id = 1") == 1
    finally:
        repair.close()


def test_the_publication_has_the_wanted_tables_alone(source_url: str, tmp_path: Path) -> None:
    """A child that is not wanted is not published with its parent."""
    with connect(source_url, application_name="test") as connection:
        connection.execute(tree("keyed").encode())
        ensure_publication(connection, "only_top", [TableName("public", "top")])
        rows = connection.execute(
            "select tablename from pg_publication_tables where pubname = 'only_top'"
        ).fetchall()
        assert rows == [("top",)]


def test_an_inherited_column_changes_with_its_tree(start: Start, log: LogMaker) -> None:
    """The log may report the child first: lossless changes are made, others are refused."""
    target = start(
        "create table public.top (id int primary key, n int, gone int default 7);"
        "create table public.mid (primary key (id)) inherits (public.top)"
    )
    names = (("id", "integer", "int32"), ("n", "integer", "int32"))
    wide = (("id", "integer", "int32"), ("n", "bigint", "int64"))
    narrow = (("id", "integer", "int32"), ("n", "smallint", "int16"))
    first, second, third = (
        relation(*columns, name="mid", version=version)
        for version, columns in enumerate(
            ((*names, ("gone", "integer", "int32")), wide, narrow), start=1
        )
    )
    log.transaction(insert(first, 1, 1, 1), relations=[first])
    log.transaction(insert(second, 2, 2**40), relations=[second])
    log.close_segment()
    target.batch()
    assert target.rows("select id, n, gone from public.mid order by 1") == [
        (1, 1, 1),
        (2, 2**40, 7),
    ]
    columns = "select attname, atttypid::regtype::text from pg_attribute where attnum > 1"
    assert target.rows(f"{columns} and attrelid = 'public.top'::regclass order by 1") == [
        ("gone", "integer"),
        ("n", "bigint"),
    ]
    log.transaction(insert(third, 3, 3), relations=[third])
    log.close_segment()
    with pytest.raises(ShapeNotApplicable, match=r"inherits the column from public\.top"):
        target.batch()


def test_a_locked_child_holds_up_nobody_who_reads_its_parent(target_url: str) -> None:
    """A copy of the parent and verify do not wait; a partitioned table is locked with its
    partitions.
    """
    top, parts = TableName("public", "top"), TableName("public", "parts")
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(tree("keyed").encode())
        connection.execute("create table public.parts (id int) partition by range (id)")
        connection.execute("create table public.part partition of public.parts default")
    with open_catalog(target_url) as catalog:
        by_name = {one.name: one for one in captured_tables(catalog, ["public.*"])}
    with (
        psycopg.connect(target_url) as altering,
        psycopg.connect(target_url) as reading,
    ):
        altering.execute("lock table public.mid, public.part in access exclusive mode")
        lock_tables(reading, [by_name[top]], timeout_s=1)
        reading.execute("set local lock_timeout = '1s'")
        found, _ = read_parts(reading, top, "source")
        assert [part.relation for part in found] == [top]
        with pytest.raises(StatementInterrupted), reading.transaction():
            lock_tables(reading, [by_name[parts]], timeout_s=1)
        reading.execute("set local lock_timeout = '1s'")
        with pytest.raises(StatementInterrupted):
            read_parts(reading, parts, "source")
