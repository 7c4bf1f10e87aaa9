"""Changes that a copied table already has in part: it was copied at several moments, without a
lock.
"""

from __future__ import annotations

import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import ITEM, TABLE, Start, delete, insert
from penstock.model import TableName
from plugins.mysql_loader import ITEMS, MyStart

T = TableName(ITEM.schema, ITEM.name)
COPIED = "insert into {} values (1, 'copied', 1)"


def ended_without_them(log: LogMaker) -> None:
    """Write a row that the copy read in between, one that it did not, and one that stays."""
    log.transaction(insert(ITEM, 1, "copied", 1), insert(ITEM, 2, "never", 1))
    log.transaction(delete(ITEM, 1, None, None), delete(ITEM, 2, None, None))
    log.transaction(insert(ITEM, 3, "stays", 1))
    log.close_segment()


@pytest.mark.usefixtures("rows_at_once")
def test_a_row_that_was_copied_between_its_insert_and_its_delete_goes(
    start: Start, log: LogMaker
) -> None:
    """The copy's moment is inside the batch, which ends without the row."""
    target = start(f"{TABLE}; {COPIED.format('public.t')}", settled={T: 1_500})
    ended_without_them(log)
    target.batch()
    assert target.rows("select id from public.t") == [(3,)]


def test_so_it_does_in_mysql_and_mariadb(my_start: MyStart, log: LogMaker) -> None:
    """Lines are used: events of the binlog would be refused, and staged again as lines."""
    ddl = f"{ITEMS}; {COPIED.format('t')}"
    target = my_start(ddl, settled={T: 1_500}, unsure=frozenset({T}))
    ended_without_them(log)
    target.batch()
    assert target.rows("select id from t") == [(3,)]
