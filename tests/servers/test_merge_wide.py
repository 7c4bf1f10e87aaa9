"""Tables with so many columns that a merge table's row would not fit on a page:
values in arrays.
"""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import Start, delete, insert, update
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.model import Identity, Relation
from penstock.ports.target import ValueRefused

pytestmark = pytest.mark.usefixtures("rows_at_once")

Shape = tuple[tuple[str, str], ...]
# Type in source and target, and how the log keeps it.
MIXED: Shape = (
    ("numeric", "string"),
    ("integer", "int32"),
    ("text", "string"),
    ("numeric(12,2)", "decimal(12,2)"),
    ("boolean", "bool"),
    ("uuid", "uuid"),
    ("timestamp with time zone", "timestamptz"),
    ("bytea", "binary"),
    ("bigint", "int64"),
    ("jsonb", "string"),
    ("date", "date"),
    ("double precision", "float64"),
    ("numeric(5,4)", "decimal(5,4)"),
    ("integer[]", "string"),
    ("time without time zone", "time"),
    ("smallint", "int16"),
    ("real", "float32"),
    ("oid", "uint32"),
    ("timestamp without time zone", "timestamp"),
)


def wide(kinds: Shape, count: int, *, keyed: bool = True) -> Relation:
    """Return a relation of a key, `count` columns of these kinds in turn, and a text column at the
    end.
    """
    columns = [(f"c{i}", *kinds[i % len(kinds)]) for i in range(count)]
    return relation(
        ("id", "integer", "int32"),
        *columns,
        ("doc", "text", "string"),
        key=(0,) if keyed else (),
        identity=Identity.DEFAULT if keyed else Identity.FULL,
    )


def create(shape: Relation, more: str = "") -> str:
    """Return the statement that creates its table."""
    columns = ", ".join(f'"{c.name}" {c.source_type}' for c in shape.columns)
    key = ", primary key (id)" if shape.key else ""
    return f"create table public.t ({columns}{key}{more})"


def value(kind: str, seed: int) -> Any:
    """Return a value of a kind in the log's form; often null, so that a row fits into the base
    table.
    """
    if seed % 5 in (1, 3):
        return None
    return {
        "numeric": f"{seed}.{seed % 7}{seed}",
        "integer": -seed,
        "text": f'{seed}, "é" {{}} \\ NULL',
        "numeric(12,2)": Decimal(seed) / 4,
        "boolean": seed % 2 == 0,
        "uuid": uuid.UUID(int=seed).bytes,
        "timestamp with time zone": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        + dt.timedelta(seconds=seed),
        "bytea": bytes([seed % 256, 0, 92]),
        "bigint": seed * 2**33,
        "jsonb": f'{{"a": {seed}}}',
        "date": dt.date(2024, 1, 1) + dt.timedelta(days=seed),
        "double precision": seed / 3,
        "numeric(5,4)": Decimal(seed % 9) / 10_000,
        "integer[]": f"{{{seed},NULL}}",
        "time without time zone": dt.time(seed % 24, seed % 60, 1, seed),
        "smallint": seed,
        "real": seed / 2,
        "oid": 2**31 + seed,
        "timestamp without time zone": dt.datetime(2024, 1, 1) + dt.timedelta(seconds=seed),  # noqa: DTZ001 - the type has no zone
    }[kind]


def row(shape: Relation, number: int, doc: str | None) -> tuple[Any, ...]:
    """Return a row of this key; number also selects its values."""
    middle = [value(c.source_type, number + i) for i, c in enumerate(shape.columns[1:-1])]
    return (number, *middle, doc)


def read_rows(target: Applying, shape: Relation) -> dict[int, tuple[Any, ...]]:
    """Return the target's rows by key, in the log's forms."""
    columns = []
    for column in shape.columns:
        name = f'"{column.name}"'
        columns.append(f"{name}::text" if column.neutral in ("string", "uint32") else name)
    # A select has at most 1,664 columns, and a row that fits into a page.
    rows = target.target.connection.cursor().execute(f"select {', '.join(columns)} from public.t")
    found = {}
    for values in rows.fetchall():
        image = [
            v.bytes if isinstance(v, uuid.UUID) else int(v) if c.neutral == "uint32" and v else v
            for v, c in zip(values, shape.columns, strict=True)
        ]
        found[image[0]] = tuple(image)
    return found


SHAPES = [
    pytest.param(wide((("numeric", "string"),), 998), True, id="numeric"),
    pytest.param(wide(MIXED, 998), True, id="mixed"),
    pytest.param(wide((("integer", "int32"),), 1_588), False, id="int1590"),
    pytest.param(wide((("integer", "int32"),), 1_598), True, id="int1600"),
    pytest.param(wide((("text", "string"),), 380), True, id="text"),
]


@pytest.mark.parametrize(("shape", "packed"), SHAPES)
@pytest.mark.parametrize("more", ["", ", unique (doc)"])
def test_many_columns(
    start: Start, log: LogMaker, shape: Relation, packed: bool, more: str
) -> None:
    """Rows are inserted, updated with and without unsent columns, moved to other keys, deleted."""
    assert MergeLayout(shape).is_packed is packed
    target = start(create(shape, more))
    last = len(shape.columns) - 1
    log.transaction(*[insert(shape, *row(shape, n, f"{n}" * 2500)) for n in range(1, 8)])
    log.close_segment()
    target.batch()
    expected = {n: row(shape, n, f"{n}" * 2500) for n in range(1, 8)}
    assert read_rows(target, shape) == expected

    def old(number: int) -> tuple[Any, ...]:
        return (number, *[None] * last)

    unsent = tuple(
        i for i, c in enumerate(shape.columns) if i == last or (i > 9 and c.source_type == "text")
    )
    changed = row(shape, 100, None)
    log.transaction(
        update(shape, 1, *changed[1:], absent=unsent),
        update(shape, 20, *changed[1:], old=old(2), absent=unsent),
        update(shape, 3, *row(shape, 33, "three")[1:]),
        delete(shape, *old(4)),
        insert(shape, *row(shape, 50, "fifty")),
        delete(shape, *old(5)),
    )
    log.close_segment()
    target.batch()

    def merge_row(number: int, before: int) -> tuple[Any, ...]:
        return tuple(
            number if i == 0 else expected[before][i] if i in unsent else changed[i]
            for i in range(last + 1)
        )

    assert read_rows(target, shape) == {
        1: merge_row(1, 1),
        20: merge_row(20, 2),
        3: (3, *row(shape, 33, "three")[1:]),
        6: expected[6],
        7: expected[7],
        50: row(shape, 50, "fifty"),
    }


@pytest.mark.parametrize("kinds", [MIXED, (("numeric", "string"),)], ids=["mixed", "numeric"])
def test_many_columns_without_a_key(start: Start, log: LogMaker, kinds: Shape) -> None:
    """Rows are counted by the text of all their columns."""
    shape = wide(kinds, 998, keyed=False)
    target = start(create(shape))
    one, two = row(shape, 1, "one"), row(shape, 2, None)
    log.transaction(*[insert(shape, *one) for _ in range(3)], insert(shape, *two))
    log.close_segment()
    target.batch()
    count = "select id, count(*) from public.t group by id order by id"
    assert target.rows(count) == [(1, 3), (2, 1)]
    assert read_rows(target, shape) == {1: one, 2: two}
    three = (3, *one[1:])
    log.transaction(delete(shape, *one), update(shape, *three, old=one), delete(shape, *two))
    log.close_segment()
    target.batch()
    assert target.rows(count) == [(1, 1), (3, 1)]
    assert read_rows(target, shape) == {1: one, 3: three}


def test_labels_and_names_in_many_columns(start: Start, log: LogMaker) -> None:
    """Values that the target must be given are found in the arrays, too."""
    kinds: Shape = (("numeric", "string"), ("public.mood", "string"), ("public.mood[]", "string"))
    shape = relation(
        ("id", "integer", "int32"),
        *[(f"c{i}", *kinds[i % 3]) for i in range(600)],
        ("r", "regclass", "string"),
    )
    target = start("create type public.mood as enum ('a'); " + create(shape))
    middle = [("1.5", f"new {i}", f'{{"newer {i}"}}')[i % 3] for i in range(600)]
    log.transaction(insert(shape, 1, *middle, "pg_class"))
    log.close_segment()
    target.batch()
    assert target.rows("select c598::text, c599::text, r::text from public.t") == [
        ("new 598", '{"newer 599"}', "pg_class")
    ]
    log.transaction(update(shape, 1, *middle, "public.absent"))
    log.close_segment()
    with pytest.raises(ValueRefused) as caught:
        target.batch()
    shown = caught.value.hint.partition("select ")[2].partition(";")[0]
    assert target.rows("select " + shown) == [("public.absent",)]
