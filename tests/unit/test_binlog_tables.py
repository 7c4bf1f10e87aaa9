"""TABLE_MAP events, and relations that are built from them or checked against them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.twins.binlog import DATA, file_events, recorded_files, recorded_tables
from harness.twins.binlog_events import KINDS, Table
from penstock.codec.mysql.binlog_cells import cells
from penstock.codec.mysql.binlog_outcome import BinlogBroken
from penstock.codec.mysql.binlog_tables import (
    ShapeMismatch,
    TableMap,
    TypeRefused,
    check_relation,
    relation_of,
    table_map,
)
from penstock.codec.mysql.types import parse_type
from penstock.model import Column, Identity, Relation

NAMES = sorted({path.name.removesuffix(".jsonl.xz") for path in DATA.glob("*.jsonl.xz")})
ALL = Table(kinds=tuple(KINDS), name="every")


def maps(name: str, full: bool = True) -> dict[str, TableMap]:
    """Return the last TABLE_MAP of each table of a recording, with names or without."""
    found = {}
    for _, data in recorded_files(name):
        events = file_events(data)
        size = 4 if events[0][-5] else 0
        for event in events:
            if event[4] == 19:
                body = event[19 : len(event) - size]
                table = table_map(body, is_mariadb=name.startswith("maria"))
                if table.has_names == full:
                    found[table.name] = table
    return found


@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_that_the_catalogue_prints(name: str) -> None:
    """Every recorded column has the catalogue's type, as far as the event tells it."""
    tables = recorded_tables(name)
    for table, one in maps(name).items():
        relation = relation_of(one, is_mariadb=name.startswith("maria"))
        if relation is None:
            assert table in ("own", "four", "oldtimes", "bins")
            continue
        if table not in tables or len(tables[table].columns) != len(relation.columns):
            continue
        for column, said in zip(relation.columns, tables[table].columns, strict=True):
            assert column.name == said["name"]
            assert column.nullable == (said["nullable"] == "YES")
            ours, theirs = parse_type(column.source_type), parse_type(said["type"])
            assert ours is not None
            assert theirs is not None
            if theirs.base in ("tinyint", "smallint", "mediumint", "int", "bigint", "year"):
                theirs = replace(theirs, arguments=())  # the display width
            if theirs.base in ("bit", "char") and not theirs.arguments:
                theirs = replace(theirs, arguments=(1,))
            assert ours == theirs, (table, column)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("full", [True, False])
def test_the_catalogues_definitions_fit_the_events(name: str, full: bool) -> None:
    """The definitions are parsed from the catalogue's texts, with and without metadata in the
    event.
    """
    tables = recorded_tables(name)
    for table, one in maps(name, full).items():
        if table not in tables or len(tables[table].columns) != len(one.columns):
            continue
        if table in ("went", "gone"):
            continue
        columns = tuple(
            Column(
                name=said["name"],
                source_type=said["type"],
                neutral="string",
                nullable=said["nullable"] == "YES",
            )
            for said in tables[table].columns
        )
        relation = Relation(schema="rec", name=table, columns=columns)
        check_relation(one, relation, tables[table].charsets)


def test_keys_come_with_full_metadata() -> None:
    """Keys are in key order; a table without a key has every column in its before images."""
    tables = maps("mysql-8.0")
    assert tables["twokey"].key == (1, 0)
    relation = relation_of(tables["nokey"], is_mariadb=False)
    assert relation is not None
    assert (relation.key, relation.before, relation.identity) == ((), (0, 1), Identity.FULL)
    assert maps("mysql-8.0", full=False)["ints"].key is None
    hidden = maps("mysql-9.7")["hidden"]
    assert [column.visible for column in hidden.columns] == [True, False, True]


def test_without_metadata_there_is_no_relation() -> None:
    """A name is never guessed."""
    for name in NAMES:
        for one in maps(name, full=False).values():
            assert relation_of(one, is_mariadb=name.startswith("maria")) is None


def body_of(text: str = "int") -> TableMap:
    """Return a table of one column of this kind."""
    return table_map(Table(kinds=(text,), name="t").body(), is_mariadb=False)


def bind_column(source_type: str, **more: object) -> Relation:
    """Return a relation of one column."""
    column = Column(name="c0", source_type=source_type, neutral="string", **more)  # type: ignore[arg-type]
    return Relation(schema="rec", name="t", columns=(column,))


@pytest.mark.parametrize("kind", ["enum", "set"])
def test_members_in_bytes_are_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CHARACTER SET binary: the labels are decoded as they were created."""
    monkeypatch.setitem(KINDS, "bytes", replace(KINDS[kind], collation=63))
    monkeypatch.setattr("harness.twins.binlog_events.UTF8", 63)
    (column,) = body_of("bytes").columns
    assert column.charset == "binary"
    assert column.labels == ("", "a", "größe")


@pytest.mark.parametrize(
    ("kind", "source_type"),
    [
        ("int", "bigint"),
        ("int", "int unsigned"),
        ("int unsigned", "int"),
        ("varchar(60)", "varchar(61)"),
        ("varchar(60)", "char(60)"),
        ("varchar(60)", "varbinary(240)"),
        ("varchar(300) latin1", "varchar(75)"),
        ("blob", "text"),
        ("blob", "mediumblob"),
        ("time(3)", "time"),
        ("datetime(2)", "datetime(3)"),
        ("decimal(10,4)", "decimal(10,3)"),
        ("decimal(10,4)", "decimal"),
        ("bit(9)", "bit(8)"),
        ("enum", "enum('a')"),
        ("enum", "set('','a','größe')"),
        ("date", "datetime"),
        ("json", "longtext"),
        ("geometry", "json"),
        ("float", "double"),
        ("double", "float"),
        ("year", "tinyint"),
        ("int", "not a type ("),
    ],
)
def test_another_type_is_a_mismatch(kind: str, source_type: str) -> None:
    """Types, lengths, digits, signs and members must be the same."""
    with pytest.raises(ShapeMismatch) as caught:
        check_relation(body_of(kind), bind_column(source_type))
    assert caught.value.fields == {"table": "rec.t", "column": "c0"}


def test_other_names_and_counts_are_a_mismatch() -> None:
    """A different nullability is a mismatch too."""
    table = body_of()
    good = bind_column("int(11)")
    check_relation(table, good)
    broken = [
        replace(good, name="other"),
        replace(good, columns=good.columns * 2),
        replace(good, columns=(replace(good.columns[0], name="d"),)),
        bind_column("int", nullable=False),
    ]
    for relation in broken:
        with pytest.raises(ShapeMismatch):
            check_relation(table, relation)


def test_neutral_types_that_cannot_hold_the_values_are_refused() -> None:
    """Text is allowed if the server's text is exact, bool for tinyint."""
    good = replace(
        bind_column("int"), columns=(Column(name="c0", source_type="int", neutral="int32"),)
    )
    assert len(cells(body_of(), good)) == 1
    assert len(cells(body_of(), bind_column("int"))) == 1
    for neutral in ("int16", "bool", "binary", "float64"):
        column = Column(name="c0", source_type="int", neutral=neutral)
        with pytest.raises(ShapeMismatch, match="cannot be kept"):
            cells(body_of(), replace(good, columns=(column,)))
    with pytest.raises(ShapeMismatch, match="cannot be kept"):
        cells(body_of("double"), bind_column("double"))


def test_a_character_set_must_be_known() -> None:
    """The event or the caller tells it."""
    body = Table(kinds=("varchar(60)",), name="t").body()
    without = body[: body.index(b"\3\1\x2d")]  # cuts off the names too
    table = table_map(without, is_mariadb=False)
    relation = bind_column("varchar(60)")
    with pytest.raises(ShapeMismatch, match="character set"):
        cells(table, relation)
    assert cells(table, relation, ["utf8mb4"])[0].charset == "utf8mb4"
    assert cells(table, bind_column("varchar(80)"), ["utf8"])[0].charset == "utf8mb3"


def test_members_that_the_catalogue_cannot_print_are_not_guessed() -> None:
    """The catalogue prints a question mark for each character that utf8mb3 lacks: only the event
    tells.
    """
    table = body_of("enum")
    told = replace(table, columns=(replace(table.columns[0], labels=("?", "a")),))
    assert cells(told, bind_column("enum('?','a')"))[0].labels == ("?", "a")
    silent = replace(table, columns=(replace(table.columns[0], labels=None),))
    assert cells(silent, bind_column("enum('','a')"))[0].labels == ("", "a")
    with pytest.raises(ShapeMismatch, match="question mark") as caught:
        cells(silent, bind_column("enum('?','a')"))
    assert caught.value.fields == {"table": "rec.t", "column": "c0"}


def test_vectors_and_unknown_collations_are_refused_by_name() -> None:
    """Types that no known server has are refused too."""
    vector = Table(kinds=("geometry",), name="t").body().replace(b"\1\xff\1\4", b"\1\xf2\1\4")
    for body, match in (
        (vector + b"\x0d\1\3", "vector"),
        (
            Table(kinds=("varchar(60)",)).body().replace(b"\3\1\x2d", b"\3\3\xfc\xff\x7f"),
            "collation",
        ),
    ):
        table = table_map(body, is_mariadb=False)
        table = replace(
            table,
            columns=tuple(
                replace(one, name="c0", collation=one.collation or 63) if one.code == 242 else one
                for one in table.columns
            ),
        )
        with pytest.raises(TypeRefused, match=match) as caught:
            relation_of(table, is_mariadb=False)
        assert caught.value.fields["column"] == "c0"
    with pytest.raises(TypeRefused, match="type 20"):
        table_map(Table(kinds=("date",)).body().replace(b"\1\x0a\0", b"\1\x14\0"), is_mariadb=False)


def test_mariadbs_hidden_types_need_the_catalogue() -> None:
    """UUID and INET look like BINARY, and old time types do not tell their digits."""
    for kind in ("binary(4)", "old time", "old datetime", "old timestamp"):
        table = table_map(Table(kinds=(kind,)).body(), is_mariadb=True)
        assert relation_of(table, is_mariadb=True) is None
        assert relation_of(table, is_mariadb=False) is not None


def test_every_cut_of_a_map_is_read_or_refused() -> None:
    """The optional fields may be missing, all others must be there."""
    body = ALL.body()
    assert table_map(body, is_mariadb=False).has_names
    for end in range(len(body)):
        try:
            table_map(body[:end], is_mariadb=False)
        except (BinlogBroken, TypeRefused):
            continue


def _signs(bits: int, version: str, *, is_mariadb: bool = False) -> list[bool | None]:
    """Return what a table of an int, a year and a smallint tells about their signs."""
    head = bytes.fromhex("010000000000" + "0100" + "016400" + "017400" + "03" + "030d02" + "00")
    body = head + b"\x07" + bytes([1, 1, bits])
    found = table_map(body, is_mariadb=is_mariadb, server_version=version)
    return [column.unsigned for column in found.columns]


def test_old_servers_spend_no_bit_of_signedness_on_a_year() -> None:
    """8.0.15 omits YEAR, 8.0.29 and MariaDB do not; in between only what is certain is told."""
    assert _signs(0b01000000, "8.0.15") == [False, True, True]
    assert _signs(0b01000000, "8.0.29-log") == [False, True, False]
    assert _signs(0b01100000, "9.7.4") == [False, True, True]
    assert _signs(0b01100000, "", is_mariadb=True) == [False, True, True]
    assert _signs(0b01000000, "8.0.20") == [False, True, None]
    assert _signs(0b01100000, "8.0.20") == [False, True, True]
    assert _signs(0b10000000, "8.0.20") == [True, True, False]
