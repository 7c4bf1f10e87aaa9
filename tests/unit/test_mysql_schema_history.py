"""What statements in a binlog make of the notes on captured tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.engines.mysql.source.ddl_text import effects_of
from penstock.engines.mysql.source.definitions import source_id_of
from penstock.engines.mysql.source.schema_history import SchemaHistory, StreamPlace
from penstock.engines.mysql.source.unsupported import RowsChangedUnseen, StatementLogged
from penstock.engines.mysql.version import ServerVersion
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName

NAME = TableName("shop", "t")
MARIA = ServerVersion.parse("10.11.19-MariaDB")
STRICT = 0x20_0000


def column(name: str, kind: str, neutral: str) -> ColumnDefinition:
    """A column as the catalogue has it."""
    return ColumnDefinition(
        name=name, type_text=kind, type_oid=0, typmod=-1, base_type=kind, neutral=neutral
    )


TABLE = TableDefinition(
    name=NAME,
    source_id=source_id_of(NAME),
    columns=(column("id", "int", "int32"), column("v", "varchar(9)", "string")),
    primary_key=("id",),
    identity=Identity.DEFAULT,
    identity_columns=("id",),
    engine="InnoDB",
)


class Live:
    """A catalogue that has one definition."""

    def __init__(self, now: TableDefinition) -> None:
        self.now = now

    def read(self, _: TableName) -> TableDefinition | None:
        """What it has."""
        return self.now

    def read_at(self, _: TableName, __: BinlogPosition) -> TableDefinition | None:
        """What it has."""
        return self.now


def place(at: int) -> StreamPlace:
    """A place of the stream."""
    return StreamPlace(since=at, behind=BinlogPosition.at("binlog.000001", at))


def book_of(
    *statements: str, engine: str = "InnoDB", now: TableDefinition = TABLE
) -> SchemaHistory:
    """A book that has seen these statements, each in a strict session."""
    begun = replace(TABLE, engine=engine)
    book = SchemaHistory(Live(now), None, tables=[begun], begin=4, takes=lambda name: name == NAME)
    book.introduced([NAME], place(5))
    for at, text in enumerate(statements, 10):
        said = Query(
            text=text, raw=text.encode(), schema="shop", thread_id=1, error=0, sql_mode=STRICT
        )
        effects = effects_of(said, server=MARIA)
        if book.concerns(effects):
            book.apply(effects, said, place(at))
    return book


SWAP = "rename table t to _t_del, _t_gho to t"


@pytest.mark.parametrize(
    "statement",
    [
        "alter table _t_gho add unique (v)",
        "create unique index k on _t_gho (v)",
        "alter table _t_gho add check (v > 0)",
        "alter table _t_gho drop primary key, add primary key (v)",
        "alter table _t_gho modify v varchar(9) character set latin1",
        "alter table _t_gho partition by range (id) (partition p values less than (5))",
    ],
)
def test_a_copy_that_may_be_without_rows_takes_no_tables_place(statement: str) -> None:
    """Tools for schema changes copy with INSERT IGNORE: what a key refuses is gone, unsaid."""
    with pytest.raises(RowsChangedUnseen, match=r"t changed, .* replaced by a copy with"):
        book_of("create table _t_gho like t", statement, SWAP)
    again = ("drop table _t_gho", "create table _t_gho like t")
    assert book_of("create table _t_gho like t", statement, *again, SWAP)


def test_a_copy_whose_key_holds_the_old_one_has_all_rows() -> None:
    """As tables get them that are divided: the old key told all rows apart."""
    assert book_of("alter table _t_gho drop primary key, add primary key (v, ID)", SWAP)


@pytest.mark.parametrize(("kind", "told"), [("varchar(8)", True), ("varchar(10)", False)])
def test_a_copys_values_may_have_been_cut(kind: str, told: bool) -> None:
    """However strict the session is: IGNORE makes warnings of errors."""
    now = replace(TABLE, columns=(TABLE.columns[0], column("v", kind, "string")))
    book = book_of(f"alter table _t_gho modify v {kind}", SWAP, now=now)
    if told:
        with pytest.raises(RowsChangedUnseen, match="column v became"):
            book.refreshed(NAME, place(20))
    else:
        assert book.refreshed(NAME, place(20)) is not None


def test_a_repair_may_leave_rows_out() -> None:
    """Of engines that do not survive a crash; to others REPAIR does nothing."""
    assert book_of("repair table t")
    for engine in ("MyISAM", "Aria"):
        with pytest.raises(RowsChangedUnseen, match=f"repair table, of engine {engine}"):
            book_of("repair table t", engine=engine)


@pytest.mark.parametrize("statement", ["select `shop`.`f`()", "do f()"])
def test_a_function_that_wrote_as_text_may_have_written_anywhere(statement: str) -> None:
    """Its call is in the log for that alone, and names no table."""
    with pytest.raises(StatementLogged, match="may have been changed by a function"):
        book_of(statement)
