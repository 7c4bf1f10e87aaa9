"""Merge tables of PostgreSQL hold jsonb as jsonb: it is parsed while staging, not
while applying.
"""

from __future__ import annotations

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import Start, delete, insert, update
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.model import Identity, Relation

pytestmark = pytest.mark.usefixtures("rows_at_once")

TEXTS = ['{"a": [1, null, "ß"], "b": 1.10}', "null", '"tab\\t"', "1.500", "[]", '{"": {}}']


def documents(
    kind: str = "jsonb", *, key: tuple[int, ...] = (0,), identity: Identity = Identity.DEFAULT
) -> Relation:
    """Return a table of an id and a document."""
    return relation(("id", "integer", "int32"), ("v", kind, "string"), key=key, identity=identity)


def test_it_waits_as_jsonb(start: Start, log: LogMaker) -> None:
    """Only jsonb is held so: json may hold what jsonb refuses, and keeps its blanks."""
    target = start("create table public.t (id int primary key, v jsonb)")
    log.transaction(insert(documents(), 1, TEXTS[0]))
    log.close_segment()
    target.batch()
    waits = "select format_type(atttypid, -1) from pg_attribute where attname = 'v' and attrelid ="
    assert target.rows(f"{waits} 'wirekite.t_wkm'::regclass") == [("jsonb",)]
    assert [sql for name, sql in MergeLayout(documents("json")).sql_columns if name == "v"] == [
        "text"
    ]


@pytest.mark.parametrize("kind", ["jsonb", "json", "text", "character varying(60)", "public.doc"])
@pytest.mark.parametrize("keyed", [True, False])
def test_values_are_the_sources(start: Start, log: LogMaker, kind: str, *, keyed: bool) -> None:
    """Values equal the source's in columns of other types, with and without a key, for every
    operation.
    """
    target = start(
        "create domain public.doc as jsonb;"
        f" create table public.t (id int {'primary key' if keyed else ''}, v {kind})"
    )
    shape = documents() if keyed else documents(key=(), identity=Identity.FULL)
    some = [*TEXTS, None]
    log.transaction(*[insert(shape, n, text) for n, text in enumerate(some)])
    log.close_segment()
    target.batch()
    look = "select id, v::text from public.t order by id"
    assert target.rows(look) == list(enumerate(some))
    turned = [*reversed(some)]
    log.transaction(
        *[update(shape, n, turned[n], old=(n, some[n])) for n in range(1, len(some))],
        delete(shape, 0, some[0]),
    )
    log.close_segment()
    target.batch()
    assert target.rows(look) == list(enumerate(turned))[1:]


def test_a_key_of_jsonb(start: Start, log: LogMaker) -> None:
    """Rows change their key and keep an unsent column."""
    target = start("create table public.t (v jsonb primary key, big jsonb, n int)")
    shape = relation(
        ("v", "jsonb", "string"), ("big", "jsonb", "string"), ("n", "integer", "int32")
    )
    log.transaction(*[insert(shape, text, TEXTS[0], 1) for text in TEXTS[:4]])
    log.close_segment()
    target.batch()
    log.transaction(
        update(shape, TEXTS[1], None, 2, absent=(1,)),
        update(shape, TEXTS[4], None, 3, old=(TEXTS[2], None, None), absent=(1,)),
        delete(shape, TEXTS[3], None, None),
    )
    log.close_segment()
    target.batch()
    assert sorted(target.rows("select v::text, big::text, n from public.t")) == sorted(
        [(TEXTS[0], TEXTS[0], 1), (TEXTS[1], TEXTS[0], 2), (TEXTS[4], TEXTS[0], 3)]
    )


def test_a_merge_table_of_an_earlier_version(start: Start, log: LogMaker) -> None:
    """The table has the column as text, and is recreated."""
    target = start("create table public.t (id int primary key, v jsonb)")
    shape = documents()
    log.transaction(insert(shape, 1, TEXTS[0]))
    log.close_segment()
    target.batch()
    target.target.connection.execute("alter table wirekite.t_wkm alter v type text")
    log.transaction(insert(shape, 2, TEXTS[3]))
    log.close_segment()
    again = start("select 1")
    again.batch()
    assert again.rows("select id, v::text from public.t order by id") == [
        (1, TEXTS[0]),
        (2, TEXTS[3]),
    ]
