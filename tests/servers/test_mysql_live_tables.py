"""Tables according to the catalogue, and whether that holds at an earlier position."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.pipelines.mysql_extract import sql
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source import live_tables
from penstock.engines.mysql.source.client import BinlogConnection, open_binlog
from penstock.engines.mysql.source.live_tables import LiveTables
from penstock.model import TableName
from plugins.mysql import MySQLServer, database_of


@pytest.fixture
def live(mysql_url: str) -> Iterator[LiveTables]:
    """Catalogue of the server."""
    tables = LiveTables(mysql_url, fold=False)
    yield tables
    tables.close()


def place(server: MySQLServer) -> BinlogPosition:
    """Return the end of the binlog."""
    return BinlogPosition.at(*server.status())


def test_a_definition_holds_where_no_statement_on_the_table_lies_between(
    mysql: MySQLServer, mysql_url: str, live: LiveTables
) -> None:
    """A definition holds per table, at each position, even after an earlier read ahead."""
    name = database_of(mysql_url)
    sql(mysql, mysql_url, "create table a (id int primary key);; create table b (id int)")
    first = place(mysql)
    sql(mysql, mysql_url, "insert into a values (1);; alter table b add c int")
    second = place(mysql)
    sql(mysql, mysql_url, "insert into a values (2);; insert into b values (1, 2)")

    def holds(table: str, at: BinlogPosition) -> bool:
        return live.read_at(TableName(name, table), at) is not None

    assert [holds("a", first), holds("b", first), holds("b", second)] == [True, False, True]
    sql(mysql, mysql_url, "flush binary logs;; alter table a add d int")
    third = place(mysql)
    assert [holds("a", first), holds("a", second), holds("a", third)] == [False, False, True]
    assert [holds("b", first), holds("b", second), holds("b", third)] == [False, True, True]


def test_the_binlog_is_read_ahead_once_for_all_tables(
    mysql: MySQLServer, mysql_url: str, live: LiveTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the binlog that one look has read is not read again, however many
    tables there are.
    """
    name = database_of(mysql_url)
    for number in range(5):
        sql(mysql, mysql_url, f"create table t{number} (id int primary key)")
    begin = place(mysql)
    sql(mysql, mysql_url, "insert into t1 values (1)")
    opened: list[BinlogPosition] = []
    opening = open_binlog

    def note_opening(url: str, *, position: BinlogPosition, options: object) -> BinlogConnection:
        opened.append(position)
        return opening(url, position=position, options=options)  # type: ignore[arg-type]

    monkeypatch.setattr(live_tables, "open_binlog", note_opening)
    for number in range(5):
        assert live.read_at(TableName(name, f"t{number}"), begin) is not None
    assert opened == [begin]
    end = place(mysql)
    sql(mysql, mysql_url, "insert into t1 values (2)")
    assert live.read_at(TableName(name, "t1"), begin) is not None
    assert opened == [begin, end]
