"""Rows that the target refuses because the source dropped a constraint: it is
removed, or reported.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import ITEM, TABLE, Start, insert
from penstock.model import Identity
from penstock.ports.target import ValueRefused

pytestmark = pytest.mark.usefixtures("rows_at_once")


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("key", ["primary key", ""])
def test_not_null_given_up_at_the_source(start: Start, log: LogMaker, made: bool, key: str) -> None:
    """A table that penstock created accepts the NULL; for another the error has the SQL."""
    shape = ITEM if key else replace(ITEM, key=(), identity=Identity.FULL, before=(0, 1, 2))
    target = start(f"create table public.t (id int {key}, name text not null, n int not null)")
    log.transaction(insert(shape, 1, "a", 1))
    log.close_segment()
    target.batch()
    target.rows(f"update wirekite.wirekite_table set made = {made} returning 1")
    log.transaction(insert(shape, 2, None, 2))
    log.close_segment()
    if not made:
        with pytest.raises(ValueRefused) as caught:
            target.batch()
        statement = 'alter table "public"."t" alter column "name" drop not null;'
        assert statement in caught.value.hint
        target.target.connection.execute(statement.encode())
    target.batch()
    assert target.rows("select * from public.t order by id") == [(1, "a", 1), (2, None, 2)]
    found = target.rows(
        "select attname from pg_attribute"
        " where attrelid = 'public.t'::regclass and attnotnull and attnum > 1"
    )
    assert found == [("n",)]


def test_a_check_that_the_source_does_not_have_is_named(start: Start, log: LogMaker) -> None:
    """The error has the statement that removes it."""
    target = start(TABLE + "; alter table public.t add constraint small check (n < 5)")
    log.transaction(insert(ITEM, 1, "a", 7))
    log.close_segment()
    with pytest.raises(ValueRefused) as caught:
        target.batch()
    assert 'alter table "public"."t" drop constraint "small";' in caught.value.hint
