"""Effects of a binlog's statements on the notes about captured tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.codec.mysql.binlog_tables import TableMap
from penstock.codec.mysql.types import TypeCode, WireColumn
from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.added_columns import Added, certain_value
from penstock.engines.mysql.source.ddl_text import effects_of
from penstock.engines.mysql.source.definitions import source_id_of
from penstock.engines.mysql.source.schema_history import SchemaHistory, StreamPlace
from penstock.engines.mysql.source.stored_values import ValueUnknown
from penstock.engines.mysql.source.unsupported import (
    RowsChangedUnseen,
    StatementLogged,
    TableMoved,
)
from penstock.model import (
    ColumnDefinition,
    Identity,
    MarkerKind,
    TableDefinition,
    TableName,
    UniqueKey,
)

NAME = TableName("shop", "t")
MARIA = ServerVersion.parse("10.11.19-MariaDB")
STRICT = 0x20_0000


def column(name: str, kind: str, neutral: str) -> ColumnDefinition:
    """Return a column as the catalogue has it."""
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
        """Return the definition."""
        return self.now

    def read_at(self, _: TableName, __: BinlogPosition) -> TableDefinition | None:
        """Return the definition."""
        return self.now

    def added_value(self, _: TableName, added: Added, __: Query) -> str | None:
        """Return NULL, an integer, or None if the value is not known."""
        if added.is_null:
            return None
        if (value := certain_value(added)) is None:
            raise ValueUnknown("no server was asked")
        return value


def build_table(*columns: tuple[str, str]) -> TableDefinition:
    """Return the table with other columns: names and types."""
    kinds = {"int": "int32", "bigint": "int64"}
    return replace(
        TABLE,
        columns=tuple(column(name, kind, kinds.get(kind, "string")) for name, kind in columns),
    )


def ids_after(statement: str, now: TableDefinition) -> list[tuple[str, int, str | None]]:
    """Return (name, identity, value of existing rows) of the columns after a statement."""
    relation = book_of(statement, now=now).refresh(NAME, place(20))
    assert relation is not None
    assert not relation.awaits_reload
    return [(one.name, one.id, one.missing) for one in relation.columns]


def place(at: int) -> StreamPlace:
    """Return a place of the stream."""
    return StreamPlace(since=at, behind=BinlogPosition.at("binlog.000001", at))


def unique_key(name: str, *columns: str) -> UniqueKey:
    """Return a unique key over whole columns."""
    return UniqueKey(name=name, columns=columns, definition="", is_constraint=False)


def book_of(
    *statements: str,
    engine: str = "InnoDB",
    now: TableDefinition = TABLE,
    begun: TableDefinition = TABLE,
) -> SchemaHistory:
    """Return a book that has seen these statements, each in a strict session.

    begun: the table before them. now: as the catalogue has it.
    """
    begun = replace(begun, engine=engine)
    book = SchemaHistory(Live(now), None, tables=[begun], begin=4, takes=lambda name: name == NAME)
    book.introduce([NAME], place(5))
    for at, text in enumerate(statements, 10):
        run(book, text, at)
    return book


def run(book: SchemaHistory, text: str, at: int) -> None:
    """Let a book see a statement of a strict session."""
    said = Query(text=text, raw=text.encode(), schema="shop", thread_id=1, error=0, sql_mode=STRICT)
    effects = effects_of(said, server=MARIA)
    if book.concerns(effects):
        book.apply(effects, said, place(at))


@pytest.mark.parametrize(
    ("statements", "lost"),
    [
        (["alter table t drop index U1"], [(2,)]),
        (["alter table t rename column v to w", "drop index u1 on t"], [(2,)]),
        (["alter table t drop index u2, drop key i"], [(1, 2)]),
        (["alter table t drop index i"], []),
    ],
)
def test_dropped_unique_keys_are_noted_with_their_columns(
    statements: list[str], lost: list[tuple[int, ...]]
) -> None:
    """The names of keys are those of the last definition, in which columns had other names."""
    keys = (unique_key("u1", "v"), unique_key("u2", "id", "v"))
    book = book_of(*statements, begun=replace(TABLE, unique_keys=keys))
    (notes,) = book.notes().tables
    assert notes.known_columns is not None
    assert list(notes.known_columns.lost_keys) == lost


def test_any_unique_key_may_be_dropped_if_no_definition_tells_its_name() -> None:
    """A key too many in the target refuses rows, a key too few does not."""
    book = book_of(begun=replace(TABLE, unique_keys=(unique_key("u1", "v"),)))
    (notes,) = book.notes().tables
    notes.definitions = {10: None}
    assert notes.find_unique_keys(["u9"]) == ((2,),)
    assert notes.find_unique_keys([]) == ()


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
    """Schema change tools copy with INSERT IGNORE: rows that a key refuses are lost silently."""
    book = book_of("create table _t_gho like t", statement, SWAP)
    book.refresh(NAME, place(20))
    assert list(book.awaiting()) == [NAME]
    again = ("drop table _t_gho", "create table _t_gho like t")
    assert not book_of("create table _t_gho like t", statement, *again, SWAP).awaiting()


def test_a_copy_whose_key_holds_the_old_one_has_all_rows() -> None:
    """Tables that are partitioned get such keys: the old key distinguished all rows."""
    assert not book_of(
        "alter table _t_gho drop primary key, add primary key (v, ID)", SWAP
    ).awaiting()


@pytest.mark.parametrize(("kind", "told"), [("varchar(8)", True), ("varchar(10)", False)])
def test_a_copys_values_may_have_been_cut(kind: str, told: bool) -> None:
    """A strict session does not help: IGNORE turns errors into warnings."""
    now = replace(TABLE, columns=(TABLE.columns[0], column("v", kind, "string")))
    book = book_of(f"alter table _t_gho modify v {kind}", SWAP, now=now)
    relation = book.refresh(NAME, place(20))
    assert relation is not None
    assert bool(relation.awaits_reload) is told
    assert bool(book.awaiting()) is told


def test_a_repair_may_leave_rows_out() -> None:
    """Engines that do not survive a crash lose rows; for others REPAIR does nothing."""
    assert not book_of("repair table t").awaiting()
    for engine in ("MyISAM", "Aria"):
        book = book_of("repair table t", engine=engine)
        assert book.awaiting() == {NAME: f"repair table, of engine {engine}"}


@pytest.mark.parametrize("statement", ["select `shop`.`f`()", "do f()"])
def test_a_function_that_wrote_as_text_may_have_written_anywhere(statement: str) -> None:
    """The function's call is in the log only because of its writes, and names no table."""
    with pytest.raises(StatementLogged, match="may have been changed by a function"):
        book_of(statement)


def test_a_renamed_column_keeps_its_identity() -> None:
    """Columns that swap names keep theirs, and so does one that takes a dropped one's name."""
    renamed = build_table(("id", "int"), ("w", "varchar(9)"))
    assert ids_after("alter table t rename column v to w", renamed) == [
        ("id", 1, None),
        ("w", 2, None),
    ]
    swapped = build_table(("v", "int"), ("id", "varchar(9)"))
    swap = "alter table t rename column id to v, rename column v to id"
    assert ids_after(swap, swapped) == [("v", 1, None), ("id", 2, None)]


def test_a_column_dropped_and_added_again_is_another_one() -> None:
    """Both have one type and are in one statement: existing rows have the default."""
    now = build_table(("id", "int"), ("v", "int"))
    assert ids_after("alter table t drop column v, add column v int default 3", now) == [
        ("id", 1, None),
        ("v", 3, "3"),
    ]


def test_a_column_tells_since_when_it_has_had_its_names() -> None:
    """A table without rows has them, too: a copy of it may be from any time in between."""
    book = book_of(
        "alter table t rename column v to w",
        "alter table t drop column id, add column c int",
        "alter table t rename column w to v, rename column c to w",
        now=replace(
            build_table(("v", "varchar(9)"), ("w", "int")), identity=Identity.FULL, primary_key=()
        ),
    )
    relation = book.refresh(NAME, place(20))
    assert relation is not None
    assert relation.since == 20
    assert [column.names for column in relation.columns] == [
        ((0, "v"), (10, "w"), (12, "v")),
        ((11, "c"), (12, "w")),
    ]
    v, w = relation.columns
    assert [v.name_at(at) for at in (4, 10, 11, 12)] == ["v", "w", "w", "v"]
    assert [w.name_at(at) for at in (4, 10, 11, 12)] == [None, None, "c", "w"]


def test_a_table_that_was_altered_while_the_log_began_awaits_a_reload() -> None:
    """The catalogue is later than the place where the log begins."""
    book = SchemaHistory(
        Live(TABLE), None, tables=[TABLE], begin=4, takes=lambda _: True, altered=[NAME]
    )
    assert "was altered" in book.awaiting()[NAME]
    assert book.introduce([NAME], place(5)) == []


def test_a_table_whose_capture_begins_is_known_from_there_on() -> None:
    """A rename before its first row is reported as a rename."""
    book = SchemaHistory(Live(TABLE), None, tables=[], begin=4, takes=lambda _: True)
    book.ask(NAME, captured=True)
    assert book.take_asked(BinlogPosition.at("binlog.000001", 8))
    text = "alter table t rename column v to w"
    said = Query(text=text, raw=text.encode(), schema="shop", thread_id=1, error=0, sql_mode=STRICT)
    book.apply(effects_of(said, server=MARIA), said, place(10))
    known = book.notes().tables[0].known_columns
    assert known is not None
    assert [(one.id, one.name, one.names) for one in known.columns] == [
        (1, "id", ()),
        (2, "w", ((0, "v"), (10, "w"))),
    ]


def test_another_case_of_a_name_is_a_rename() -> None:
    """MODIFY has the name in another case: the server uses the new spelling."""
    now = build_table(("id", "int"), ("V", "varchar(9)"))
    assert ids_after("alter table t modify V varchar(9)", now)[1] == ("V", 2, None)


@pytest.mark.parametrize(
    ("statement", "columns", "reason"),
    [
        ("alter table t modify v int", (("id", "int"), ("v", "int")), "column v became int"),
        ("alter table t add c uuid default uuid()", (), "column c was added"),
        ("alter table t add c varchar(9) default 'x'", (), "the server does not tell"),
        ("alter table t drop column v", (), "no statement in the binlog added column v"),
        ("alter table t drop partition p", (), "drop partition"),
        ("frobnicate table t", (), "not understood"),
        (
            "alter table t convert to character set latin1",
            (("id", "int"), ("v", "varchar(9)")),
            "convert to character set latin1",
        ),
    ],
)
def test_a_table_whose_rows_are_not_known_awaits_a_reload(
    statement: str, columns: tuple[tuple[str, str], ...], reason: str
) -> None:
    """The table is not refused: its shape says so, and after a new read its rows are known."""
    now = build_table(*(columns or (("id", "int"), ("v", "varchar(9)"), ("c", "int"))))
    book = book_of(statement, now=now)
    relation = book.refresh(NAME, place(20))
    assert relation is not None
    assert reason in relation.awaits_reload
    assert reason in book.awaiting()[NAME]
    again = book.read_again(now, place(30))
    assert again.awaits_reload == ""
    assert again.version > relation.version
    assert not book.awaiting()


class Ahead(Live):
    """A catalogue that has a later definition than the stream."""

    def read_at(self, _: TableName, __: BinlogPosition) -> TableDefinition | None:
        """Return None: the definition at the place is not known."""
        return None


def text_column(name: str, charset: str) -> ColumnDefinition:
    """Return a text of a character set as the catalogue has it."""
    collation = f"{charset}_general_ci"
    return replace(column(name, "varchar(9)", "string"), charset=charset, collation=collation)


@pytest.mark.parametrize("length", [9, 10])
def test_letters_may_be_lost_though_the_catalogue_has_their_new_character_set(length: int) -> None:
    """The first row of an added column is decoded when the next statement is in the catalogue."""
    utf8mb4, text = 45, TypeCode.VARCHAR
    key = replace(column("id", "int", "int32"), not_null=True)
    begun = replace(TABLE, columns=(key, text_column("v", "utf8mb4")))
    added = replace(text_column("w", "latin1"), type_text=f"varchar({length})")
    now = replace(TABLE, columns=(*begun.columns, replace(added, base_type=added.type_text)))
    book = SchemaHistory(Ahead(now), None, tables=[begun], begin=4, takes=lambda name: name == NAME)
    book.introduce([NAME], place(5))
    wires = (
        WireColumn(code=TypeCode.LONG, nullable=False, unsigned=False, name="id"),
        WireColumn(code=text, size=36, collation=utf8mb4, name="v"),
        WireColumn(code=text, size=36, collation=utf8mb4, name="w"),
    )
    rows = TableMap(
        table_id=1,
        schema="shop",
        name="t",
        columns=wires,
        key=(0,),
        key_prefixes=(0,),
        flags=0,
        body=b"",
    )
    run(book, "alter table t add column w varchar(9) character set utf8mb4", 10)
    relation = book.resolve(rows, place(11), is_mariadb=True).relation
    assert relation is not None
    assert [one.collation for one in relation.columns] == [
        "",
        "utf8mb4_general_ci",
        "utf8mb4_bin",
    ]
    assert not relation.awaits_reload
    run(book, f"alter table t modify w varchar({length}) character set latin1", 12)
    book._live = Live(now)
    after = book.refresh(NAME, place(20))
    assert after is not None
    assert after.awaits_reload.startswith("a statement did: convert")


def test_statements_that_are_noted_already_are_not_noted_twice() -> None:
    """A stream that begins further back repeats them: identities stay as the log has them."""
    book = book_of("alter table t drop column v, add column v int")
    text = "alter table t drop column v, add column v int"
    said = Query(text=text, raw=text.encode(), schema="shop", thread_id=1, error=0, sql_mode=STRICT)
    before = book.notes().tables[0].known_columns
    book.apply(effects_of(said, server=MARIA), said, place(10))
    assert book.notes().tables[0].known_columns == before
    book.rewind(10)
    book.apply(effects_of(said, server=MARIA), said, place(10))
    after = book.notes().tables[0].known_columns
    assert after is not None
    assert [one.id for one in after.columns] == [1, 4]


def test_a_cascade_of_a_foreign_key_still_stops_by_name() -> None:
    """Rows change from then on without an event: reading the table once would not help."""
    with pytest.raises(RowsChangedUnseen, match="foreign key"):
        book_of("alter table t add foreign key (v) references u (id) on delete cascade")


def test_a_temporary_table_that_is_renamed_is_not_the_captured_one() -> None:
    """MariaDB logs the statement; the captured table is still there."""
    assert not book_of("rename table t to t2").awaiting()


class Named(Live):
    """A catalogue with tables of these names."""

    def __init__(self, *names: str) -> None:
        """Give all tables the same columns."""
        super().__init__(TABLE)
        self._names = names

    def read_at(self, name: TableName, at: BinlogPosition) -> TableDefinition | None:
        """Return the table, or None."""
        return super().read_at(name, at) if name.name in self._names else None


def renaming(
    statement: str, *names: str, takes: Callable[[TableName], bool] = lambda _: True
) -> tuple[SchemaHistory, list[tuple[MarkerKind, list[str]]]]:
    """Return a book of t and u after a statement that left these tables, and its markers."""
    tables = [TABLE, replace(TABLE, name=TableName("shop", "u"))]
    book = SchemaHistory(
        Named(*names),
        None,
        tables=tables,
        begin=4,
        takes=lambda _: False,
        takes_renamed=takes,
    )
    said = Query(
        text=statement,
        raw=statement.encode(),
        schema="shop",
        thread_id=1,
        error=0,
        sql_mode=STRICT,
    )
    marks = book.apply(effects_of(said, server=MARIA), said, place(10))
    return book, [(kind, [table.name for table in tables]) for kind, tables, _ in marks]


def test_a_renamed_table_is_gone_under_its_old_name() -> None:
    """The new name is not captured before it is requested."""
    book, marks = renaming("rename table t to w", "w", "u")
    assert marks == [(MarkerKind.DDL, ["t"])]
    assert not book.awaiting()
    assert book.version_of(TableName("shop", "w")) is None


def test_a_name_that_has_another_tables_rows_awaits_a_reload() -> None:
    """Both names do if two tables swap them."""
    book, marks = renaming("rename table t to x, u to t, x to u", "t", "u")
    assert (marks, {name.name for name in book.awaiting()}) == ([], {"t", "u"})
    book, marks = renaming("rename table u to old, t to u", "u", "old")
    assert (marks, {name.name for name in book.awaiting()}) == ([(MarkerKind.DDL, ["t"])], {"u"})


def test_a_new_name_that_is_not_captured_stops_by_name() -> None:
    """The table's rows would be missed; the hint says what to do."""
    with pytest.raises(TableMoved, match=r"renamed to shop\.w") as caught:
        renaming("rename table t to w", "w", "u", takes=lambda name: name.name != "w")
    assert "'shop.w'" in caught.value.hint


def test_a_recreated_column_of_another_type_is_another_column() -> None:
    """A target could not convert its values, and need not: no row is left."""
    for kind, numbers in (("varchar(20)", [1, 2]), ("year", [1, 3])):
        now = build_table(("id", "int"), ("v", kind))
        book = book_of("drop table t", "create table t (id int primary key, v int)", now=now)
        relation = book.refresh(NAME, place(20))
        assert relation is not None
        assert [one.id for one in relation.columns] == numbers, kind
