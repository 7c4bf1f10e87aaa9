"""Tables as a publication sends them: columns, rows, operations; and values of any source."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from harness.pipelines.log import Change, batch_of, number_rows
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.types.served import Unservable, served_column
from penstock.model import Column, Identity, Op, Relation
from penstock.serve.catalog.publications import (
    Publication,
    PublishedTable,
    find_published,
)
from penstock.serve.forms import PgOutput
from penstock.serve.row_filter import row_filter
from penstock.serve.tables import TableView, served_relation


def column(name: str, source_type: str, neutral: str) -> Column:
    """Return a column."""
    return Column(name=name, source_type=source_type, neutral=neutral)


ITEM = Relation(
    schema="public",
    name="item",
    columns=(
        column("id", "integer", "int32"),
        column("note", "text", "string"),
        column("price", "numeric(12,2)", "decimal(12,2)"),
    ),
    key=(0,),
    before=(0,),
    source_id=1,
)
WHOLE = Relation(
    schema="public",
    name="item",
    columns=ITEM.columns,
    key=(0,),
    before=(0, 1, 2),
    identity=Identity.FULL,
    source_id=1,
)


KINDS = Relation(
    schema="public",
    name="kinds",
    columns=(*ITEM.columns, column("ok", "boolean", "bool")),
    key=(0,),
    before=(0,),
)


def view(relation: Relation, *, engine: str = "postgresql", **table: Any) -> TableView:
    """Return how a publication of this one table sends it."""
    publication = Publication(
        name="p",
        oid=1,
        owner="r",
        tables=(PublishedTable(schema="public", name="item", **table),),
        actions=table.pop("actions", ("insert", "update", "delete", "truncate")),
    )
    what = find_published([publication], "public", "item")
    assert what is not None
    return TableView(relation, served_relation(relation, engine), what, PgOutput())


def rows(relation: Relation, *changes: tuple[Op, Any, Any]) -> pa.RecordBatch:
    """Return a batch of these changes."""
    made = [Change(relation=relation, op=op, after=new, before=old) for op, old, new in changes]
    return batch_of(relation, number_rows([made])[0]).batch


def read_rows(batch: pa.RecordBatch) -> list[tuple[str, Any, Any]]:
    """Return letter, old and new image of each row."""
    return [
        (
            chr(row["op"]),
            None if row["before"] is None else tuple(row["before"].values()),
            None if row["after"] is None else tuple(row["after"].values()),
        )
        for row in batch.select(["op", "before", "after"]).to_pylist()
    ]


A, B = (1, "a", Decimal("1.00")), (2, "b", Decimal("20.00"))


def test_everything_is_passed_on_as_it_is() -> None:
    """No copy is made if nothing is left out."""
    batch = rows(ITEM, (Op.INSERT, None, A))
    assert view(ITEM).rows(batch) is batch


def test_a_column_list() -> None:
    """Only these are sent, in the table's order; operations that need the identity must have it."""
    some = view(ITEM, columns=("price", "id"))
    assert [one.name for one in some.relation.columns] == ["id", "price"]
    batch = rows(ITEM, (Op.INSERT, None, A), (Op.UPDATE, (9,), B), (Op.DELETE, (1,), None))
    assert read_rows(some.rows(batch)) == [
        ("I", None, (1, Decimal("1.00"))),
        ("U", (9,), (2, Decimal("20.00"))),
        ("D", (1,), None),
    ]
    without = view(ITEM, columns=("price",))
    assert read_rows(without.rows(rows(ITEM, (Op.INSERT, None, A)))) == [("I", None, (A[2],))]
    with pytest.raises(Refused, match="leaves out"):
        without.rows(rows(ITEM, (Op.DELETE, (1,), None)))
    with pytest.raises(Refused, match="does not exist"):
        view(ITEM, columns=("colour",))


def test_absent_columns_move_with_their_columns() -> None:
    """The last of three columns is absent; of two columns it is the second."""
    change = Change(relation=ITEM, op=Op.UPDATE, after=(1, "a", None), before=None, absent=b"\x04")
    batch = batch_of(ITEM, number_rows([[change]])[0]).batch
    found = view(ITEM, columns=("id", "price")).rows(batch)
    assert found.column("absent").to_pylist() == [b"\x02"]
    found = view(ITEM, columns=("id", "note")).rows(batch)
    assert found.column("absent").to_pylist() == [None]


def test_a_row_filter_moves_rows_in_and_out() -> None:
    """The server does the same: an update that moves a row is an insert or a delete."""
    dear = view(WHOLE, row_filter="price > 10")
    batch = rows(
        WHOLE,
        (Op.INSERT, None, A),
        (Op.INSERT, None, B),
        (Op.UPDATE, A, B),
        (Op.UPDATE, B, A),
        (Op.UPDATE, B, B),
        (Op.UPDATE, A, A),
        (Op.DELETE, A, None),
        (Op.DELETE, B, None),
    )
    assert read_rows(dear.rows(batch)) == [
        ("I", None, B),
        ("I", A, B),
        ("D", B, A),
        ("U", B, B),
        ("D", B, None),
    ]


def test_a_row_filter_over_columns_that_do_not_identify() -> None:
    """Only inserts can be decided."""
    dear = view(ITEM, row_filter="price > 10")
    assert read_rows(dear.rows(rows(ITEM, (Op.INSERT, None, A), (Op.INSERT, None, B)))) == [
        ("I", None, B)
    ]
    with pytest.raises(Refused, match="identify"):
        dear.rows(rows(ITEM, (Op.UPDATE, (2,), B)))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("id = 1", [True, False, False]),
        ("id <> 1", [False, True, False]),
        ("1 < id", [False, True, False]),
        ("id between 1 and 2", [True, True, False]),
        ("id in (2, 3)", [False, True, False]),
        ("note = 'a' or price >= 20", [True, True, False]),
        ("not (note = 'a')", [False, True, False]),
        ("note is null", [False, False, True]),
        ("note is not null and (price < 1.5)", [True, False, False]),
        ("note like 'b%'", [False, True, False]),
        ("price = 20.00", [False, True, False]),
        ("id > -5", [True, True, False]),
        ("ok", [True, False, False]),
        ("ok is not true", [False, True, True]),
        ("note not like 'b%'", [True, False, False]),
        ("id not in (2, 3)", [True, False, False]),
        ("id not between 2 and 3", [True, False, False]),
        ("id is distinct from 1", [False, True, True]),
        ("id is not distinct from null", [False, False, True]),
        ("id = '2'", [False, True, False]),
        ("id = null", [False, False, False]),
    ],
)
def test_conditions(text: str, kept: list[bool]) -> None:
    """NULL is neither true nor false."""
    columns = {
        "id": pa.array([1, 2, None], pa.int32()),
        "note": pa.array(["a", "b", None]),
        "price": pa.array([Decimal("1.00"), Decimal("20.00"), None], pa.decimal128(12, 2)),
        "ok": pa.array([True, False, None]),
    }
    assert row_filter(text, KINDS).keeps(columns).to_pylist() == kept


@pytest.mark.parametrize(
    "text",
    [
        "lower(note) = 'a'",
        "id + 1 = 2",
        "a.b.c()",
        "id",
        "note > 'a'",
        "id = any(array[1])",
        "id between symmetric 2 and 1",
        "note like 'a' escape 'x'",
        "colour = 1",
        "id = 'x'",
        "1 = 1",
        "note ilike 'a'",
    ],
)
def test_conditions_that_are_refused(text: str) -> None:
    """The filter guesses nothing."""
    columns = {"id": pa.array([1], pa.int32()), "note": pa.array(["a"])}
    with pytest.raises(Refused):
        row_filter(text, KINDS).keeps(columns)


def test_values_whose_text_says_less_than_the_server_compares() -> None:
    """A number that is kept as text is not compared as text."""
    odd = Relation(
        schema="public",
        name="item",
        columns=(column("id", "numeric", "string"),),
        key=(0,),
        before=(0,),
        source_id=1,
    )
    with pytest.raises(Refused, match="not compared"):
        view(odd, row_filter="id = '1'")


@pytest.mark.parametrize(
    ("printed", "neutral", "announced", "values", "texts"),
    [
        ("bit(5)", "uint64", "bit(5)", [5, None, 31], ["00101", None, "11111"]),
        ("datetime(3)", "string", "timestamp(3) without time zone",
         ["0000-03-01 10:00:00.500", None], ["0001-03-01 10:00:00.500 BC", None]),
        ("timestamp", "string", "timestamp(0) with time zone",
         ["2024-01-01 10:00:00"], ["2024-01-01 10:00:00+00"]),
        ("point", "string", "bytea", ["0101AF", None], ["\\x0101af", None]),
        ("varchar(9)", "string", "character varying(9)", ["a", None], ["a", None]),
    ],
)  # fmt: skip
def test_values_of_another_engine(
    printed: str, neutral: str, announced: str, values: list[Any], texts: list[Any]
) -> None:
    """Values have PostgreSQL's type, and are printed as PostgreSQL does."""
    found = served_column(column("c", printed, neutral), "mysql")
    assert found.column.source_type == announced
    kind = {"uint64": pa.uint64(), "string": pa.string()}[neutral]
    assert found.convert is not None
    assert found.convert(pa.array(values, kind)).to_pylist() == texts


@pytest.mark.parametrize(
    ("printed", "value"),
    [("date", "0000-00-00"), ("datetime", "2023-02-29 00:00:00"), ("varchar(9)", "a\0b")],
)
def test_values_that_no_client_could_take(printed: str, value: str) -> None:
    """Such values end the stream, by name, and are never changed."""
    found = served_column(column("c", printed, "string"), "mariadb")
    assert found.convert is not None
    with pytest.raises(Unservable, match="c holds"):
        found.convert(pa.array([value]))


def test_an_engine_that_the_table_of_types_does_not_know() -> None:
    """Neutral types are enough."""
    found = served_column(column("c", "java.util.UUID", "uuid"), "ignite")
    assert (found.column.source_type, found.convert) == ("uuid", None)
    found = served_column(column("c", "X", "decimal(9,3)"), "ignite")
    assert found.column.source_type == "numeric(9,3)"
