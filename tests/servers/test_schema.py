"""Target tables created from definitions, or checked against them, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect
from penstock.engines.postgres.target import schema
from penstock.engines.postgres.target.alter import Alterer
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.reshape import TYPES
from penstock.engines.postgres.target.target import (
    TargetTable,
    map_namespaces,
    read_target_tables,
    same_type,
)
from penstock.model import (
    Column,
    ColumnDefinition,
    ForeignKey,
    Relation,
    TableDefinition,
    TableName,
    TypeDefinition,
    UniqueKey,
)
from penstock.ports.target import (
    ShapeNotApplicable,
    TableRecord,
    TargetDdlFailed,
    TargetShapeDiffers,
    TargetTypeMissing,
)
from penstock.sql.shape_changes import shape_changes, shape_of

SHOP = {"public": "Shop Ä"}


@pytest.fixture
def target(target_url: str) -> Iterator[psycopg.Connection]:
    """A connection to a fresh target."""
    with connect(target_url, application_name="test", options=EXACT_TEXT_SETTINGS) as connection:
        yield connection


def column(name: str, type_text: str, **more: object) -> ColumnDefinition:
    """Return a column as the catalogue has it."""
    return ColumnDefinition(name=name, type_text=type_text, type_oid=0, typmod=-1, **more)  # type: ignore[arg-type]


def definition(name: str, *columns: ColumnDefinition, **more: object) -> TableDefinition:
    """Return a table in schema public."""
    return TableDefinition(
        name=TableName("public", name),
        source_id=1,
        columns=columns,
        **more,  # type: ignore[arg-type]
    )


MOOD = TypeDefinition(
    schema="public",
    name="mood",
    kind="e",
    create_sql="create type public.mood as enum ('so.so', 'public.ok')",
)
CUSTOMER = definition(
    "customer",
    column("id", "bigint", not_null=True, identity_kind="a"),
    column("serial", "integer", default="nextval('public.customer_serial_seq'::regclass)"),
    column("mood", "public.mood", default="'so.so'::public.mood"),
    column("moods", "public.mood[]"),
    column("price", "numeric(12,2)", not_null=True),
    column("taxed", "numeric", generated="s", default="(price * 1.2)"),
    column("note", "text", collation='pg_catalog."C"'),
    column("days", "interval day to second(3)"),
    primary_key=("id",),
    unique_keys=(
        UniqueKey(
            name="customer_note_key",
            columns=("note",),
            definition="CREATE UNIQUE INDEX customer_note_key ON public.customer"
            " USING btree (note)",
            is_constraint=True,
            deferrable=True,
        ),
    ),
    indexes=(
        "CREATE INDEX customer_mood ON ONLY public.customer USING btree (mood)"
        " WHERE (mood = 'public.ok'::public.mood)",
    ),
    types=(MOOD,),
)
ORDER = definition(
    "Order",
    column("id", "uuid", not_null=True),
    column("customer", "bigint"),
    primary_key=("id",),
    foreign_keys=(
        ForeignKey(
            name="Order_customer_fkey",
            columns=("customer",),
            target=TableName("public", "customer"),
            target_columns=("id",),
            definition="FOREIGN KEY (customer) REFERENCES public.customer(id) ON DELETE CASCADE",
        ),
    ),
)


def test_tables_are_made_in_the_mapped_schema(target: psycopg.Connection) -> None:
    """Tables have types, identities, generated columns, defaults, sequences and all keys."""
    created = schema.create_tables(target, [CUSTOMER, ORDER], SHOP)
    assert created.notes == []
    assert PostgresProgress(target).made_tables() == set(created.made)
    for table in (CUSTOMER, ORDER):
        schema.add_keys(target, table, SHOP)
        assert schema.add_keys(target, table, SHOP) == []
    assert schema.add_foreign_keys(target, [CUSTOMER, ORDER], SHOP) == []
    assert schema.add_foreign_keys(target, [CUSTOMER, ORDER], SHOP) == []
    name = TableName("Shop Ä", "customer")
    found = read_target_tables(target, [name])[name]
    kinds = {c.name: c.type_text for c in found.columns}
    assert kinds["mood"] == '"Shop Ä".mood'
    assert kinds["days"] == "interval day to second(3)"
    assert found.columns[0].identity == "a"
    assert found.column("taxed").generated  # type: ignore[union-attr]
    assert [(i.primary, i.immediate) for i in found.unique] == [(True, True), (False, False)]
    (key,) = found.children
    assert key.deferrable
    assert key.on_delete == "c"
    target.execute('insert into "Shop Ä".customer (price) values (2)')
    row = target.execute('select serial, mood, taxed from "Shop Ä".customer').fetchone()
    assert row is not None
    assert (row[0], row[1], str(row[2])) == (1, "so.so", "2.400")


def test_an_index_whose_name_is_taken_gets_another(target: psycopg.Connection) -> None:
    """A copy of the table has them that has the table's previous name."""
    target.execute("create table public.earlier (note text unique, mood text)")
    target.execute("alter index public.earlier_note_key rename to customer_note_key")
    target.execute("create index customer_mood on public.earlier (mood)")
    schema.create_tables(target, [CUSTOMER], {})
    made = schema.add_keys(target, CUSTOMER, {})
    assert made == ["primary key", "customer_customer_note_key", "customer_customer_mood"]
    assert schema.add_keys(target, CUSTOMER, {}) == []
    found = read_target_tables(target, [TableName("public", "customer")])
    assert len(found[TableName("public", "customer")].unique) == 2


def test_a_table_that_is_there_is_checked_and_left_alone(target: psycopg.Connection) -> None:
    """All columns that differ are named, and nothing is created."""
    target.execute("create table public.customer (id bigint, price numeric(10,2), extra int)")
    with pytest.raises(TargetShapeDiffers) as caught:
        schema.create_tables(target, [ORDER, CUSTOMER], {})
    for part in ("serial is missing", "price is numeric(10,2), expected numeric(12,2)"):
        assert part in caught.value.message
    assert "extra" not in caught.value.message
    tables = target.execute("select tablename from pg_tables where schemaname = 'public'")
    assert tables.fetchall() == [("customer",)]


def test_same_shape_is_accepted_and_recorded(target: psycopg.Connection) -> None:
    """An existing table of the right shape is not marked as created by penstock."""
    target.execute('create table public."Order" (id uuid primary key, customer bigint, own text)')
    created = schema.create_tables(target, [ORDER], {})
    assert created.found == [TableName("public", "Order")]
    record = PostgresProgress(target).read_tables()[TableName("public", "Order")]
    assert not record.made
    assert record.columns == (("id", "uuid"), ("customer", "bigint"))


def test_unknown_type_is_refused_by_name(target: psycopg.Connection) -> None:
    """The type's extension is missing in the target; no table is left."""
    table = definition("place", column("at", "public.geometry(Point,4326)"))
    with pytest.raises(TargetTypeMissing) as caught:
        schema.create_tables(target, [ORDER, table], {})
    assert "public.geometry(Point,4326)" in caught.value.message
    assert PostgresProgress(target).made_tables() == set()


@pytest.mark.parametrize(
    ("is_key", "over"),
    [(True, "(public.folded(id))"), (False, "(id) WHERE (public.folded(id) > 3)")],
    ids=["unique", "partial"],
)
def test_an_index_on_a_function_that_the_target_lacks(
    target: psycopg.Connection, is_key: bool, over: str
) -> None:
    """The index is refused before the first row, nothing is created; the hint prints
    the function.
    """
    kind = "UNIQUE INDEX" if is_key else "INDEX"
    sql = f"CREATE {kind} odd ON public.t USING btree {over}"
    key = UniqueKey(name="odd", columns=(), definition=sql, is_constraint=False, is_whole=False)
    more = {"unique_keys": (key,)} if is_key else {"indexes": (sql,)}
    table = definition("t", column("id", "integer"), **more)
    with pytest.raises(TargetDdlFailed, match=r"adding index odd of public\.t: function") as caught:
        schema.create_tables(target, [ORDER, table], {})
    assert target.execute(
        "select count(*) from pg_tables where schemaname = 'public'"
    ).fetchone() == (0,)
    target.execute(
        "create function public.folded(int) returns int language sql immutable as 'select $1 + 1'"
    )
    asked = caught.value.hint.partition("run: ")[2]
    (shown,) = target.execute(asked.encode()).fetchall()
    assert "select $1 + 1" in shown[0]
    schema.create_tables(target, [ORDER, table], {})
    assert target.execute("select 1 from pg_indexes where indexname = 'odd'").fetchone() is None
    assert schema.add_keys(target, table, {}) == ["odd"]


def test_a_default_that_fails_is_a_note(target: psycopg.Connection) -> None:
    """Rows carry every value, so a missing function must not stop the load."""
    table = definition("a", column("b", "text", default="public.no_such()"))
    created = schema.create_tables(target, [table], {})
    assert len(created.notes) == 1
    assert "public.a.b has no default" in created.notes[0]


def test_foreign_key_to_a_table_not_captured_is_a_note(target: psycopg.Connection) -> None:
    """The key cannot be created, but the table is loaded."""
    schema.create_tables(target, [ORDER], {})
    (note,) = schema.add_foreign_keys(target, [ORDER], {})
    assert "public.customer is not captured" in note


def carry(
    target: psycopg.Connection,
    old: tuple[tuple[str, str], ...] | None,
    relation: Relation,
    table: TargetTable,
) -> list[str]:
    """Alter a table from an old shape to the relation's, and return the statements."""
    record = TableRecord(
        source=table.name, target=table.name, merge_name="m", made=False, columns=old
    )
    alterer = Alterer(record=record, relation=relation, table=table, namespaces={}, emptied=False)
    alterer.check()
    done = []
    for change in shape_changes(record, relation, TYPES):
        for step in alterer.evolve(change):
            target.execute(step.sql.encode())
            done.append(step.sql)
    return done


def test_an_identity_column_gets_a_type_that_cannot_count(target: psycopg.Connection) -> None:
    """The server refuses another type than a whole number as long as the column is an identity."""
    target.execute(
        "create table public.t (a int primary key, b int generated by default as identity)"
    )
    target.execute("insert into public.t values (1, 2)")
    relation = Relation(
        schema="public",
        name="t",
        columns=(
            Column(name="a", source_type="integer", neutral="int32"),
            Column(name="b", source_type="text", neutral="string"),
        ),
        key=(0,),
    )
    name = TableName("public", "t")
    table = read_target_tables(target, [name])[name]
    carry(target, (("a", "integer"), ("b", "integer")), relation, table)
    assert target.execute("select a, b from public.t").fetchone() == (1, "2")
    assert read_target_tables(target, [name])[name].columns[1].identity == ""


def test_relation_changes_become_alterations(target: psycopg.Connection) -> None:
    """Columns are added with old rows' value, dropped and widened; a repeat does nothing."""
    target.execute("create table public.t (a int primary key, b int, gone text, own text)")
    target.execute("insert into public.t values (1, 2, 'x', 'y')")
    old = (("a", "integer"), ("b", "integer"), ("gone", "text"))
    relation = Relation(
        schema="public",
        name="t",
        columns=(
            Column(name="a", source_type="integer", neutral="int32"),
            Column(name="b", source_type="bigint", neutral="int64"),
            Column(name="c", source_type="text", neutral="string", missing="it's", nullable=False),
            Column(name="d", source_type="boolean", neutral="bool"),
        ),
        key=(0,),
    )
    name = TableName("public", "t")
    table = read_target_tables(target, [name])[name]
    assert carry(target, old, relation, table) != []
    row = target.execute("select a, b, c, d, own from public.t").fetchone()
    assert row == (1, 2, "it's", None, "y")
    table = read_target_tables(target, [name])[name]
    assert [c.type_text for c in table.columns] == ["integer", "bigint", "text", "text", "boolean"]
    assert carry(target, old, relation, table) == []
    assert carry(target, shape_of(relation), relation, table) == []


def test_a_column_the_target_lost_is_not_made_up(target: psycopg.Connection) -> None:
    """The log does not call the column new, so its old values are unknown: the load stops."""
    target.execute("create table public.t (a int primary key)")
    relation = Relation(
        schema="public",
        name="t",
        columns=(
            Column(name="a", source_type="integer", neutral="int32"),
            Column(name="b", source_type="integer", neutral="int32"),
        ),
        key=(0,),
    )
    name = TableName("public", "t")
    table = read_target_tables(target, [name])[name]
    for old in (None, shape_of(relation)):
        with pytest.raises(ShapeNotApplicable):
            carry(target, old, relation, table)


def test_namespaces_are_mapped_outside_literals_only() -> None:
    """Schema positions change; strings, columns and other names do not."""
    names = {"public": "shop", "Odd.One": "x"}
    cases = {
        "public.mood[]": '"shop".mood[]',
        '"Odd.One"."T y"(3)': '"x"."T y"(3)',
        "CHECK ((t.public = 'public.x'::public.d))": "CHECK ((t.public = 'public.x'::\"shop\".d))",
        "numeric(12,2)": "numeric(12,2)",
        "E'a\\'public.b' || public.f(1.5)": "E'a\\'public.b' || \"shop\".f(1.5)",
    }
    for before, after in cases.items():
        assert map_namespaces(before, names) == after
    assert same_type('"shop".mood', "shop.mood")
    assert not same_type('"char"', "char")
