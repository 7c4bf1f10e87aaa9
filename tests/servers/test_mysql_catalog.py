"""Captured tables and their definitions, on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_tables import table_map
from penstock.codec.mysql.types import agrees
from penstock.engines.mysql.connect import Connection
from penstock.engines.mysql.source import definitions
from penstock.engines.mysql.source.catalog import (
    Exclusion,
    TableNotCapturable,
    captured_tables,
    open_catalog,
    survey,
)
from penstock.engines.mysql.source.client import DumpOptions, open_binlog
from penstock.engines.mysql.source.definitions import source_id_of
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName
from plugins.mysql import MySQLServer, database_of

pytestmark = pytest.mark.each_server

TABLE_MAP = 19

# Every type in the forms in which a column can be declared.
TYPES = [
    "tinyint", "tinyint unsigned", "smallint", "smallint unsigned", "mediumint",
    "mediumint unsigned", "int", "int unsigned zerofill", "bigint", "bigint unsigned", "boolean",
    "float", "float(7,3)", "float unsigned", "double", "double(12,4)", "double unsigned",
    "decimal(10,2)", "decimal(65,30)", "decimal(5)", "numeric", "bit", "bit(9)", "bit(64)", "year",
    "date", "time", "time(3)", "time(6)", "datetime", "datetime(1)", "datetime(6)",
    "timestamp null", "timestamp(4) null", "char", "char(7)", "char(200)", "varchar(3)",
    "varchar(300)", "varchar(20) character set latin1", "char(9) character set ucs2",
    "varchar(40) character set utf8 collate utf8_bin", "tinytext", "text", "mediumtext", "longtext",
    "text character set sjis", "binary", "binary(4)", "binary(16)", "varbinary(10)",
    "varbinary(400)", "tinyblob", "blob", "mediumblob", "longblob", "enum('a','b''c','d,e')",
    "enum('\\\\','x') character set latin1", "set('x','y','z')", "json", "geometry", "point",
    "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection",
]  # fmt: skip
MARIADB_TYPES = [
    "uuid", "inet6", "inet4", "varchar(100) compressed", "varchar(300) compressed",
    "blob compressed", "text compressed", "longtext compressed",
]  # fmt: skip


@pytest.fixture
def connection(mysql_url: str) -> Iterator[Connection]:
    """A catalogue connection."""
    with open_catalog(mysql_url) as opened:
        yield opened


@pytest.fixture
def make(mysql: MySQLServer, mysql_url: str) -> Callable[[str], None]:
    """Run DDL in the fresh database."""
    return lambda sql: (mysql.execute(sql, database_of(mysql_url)), None)[1]


@pytest.fixture
def read(connection: Connection, mysql_url: str) -> Callable[[str], TableDefinition]:
    """Reader of the definition of one table of the fresh database."""
    return lambda name: captured_tables(connection, [f"{database_of(mysql_url)}.{name}"])[0]


def columns(definition: TableDefinition) -> dict[str, ColumnDefinition]:
    """Return columns by name."""
    return {column.name: column for column in definition.columns}


# -- tables ------------------------------------------------------------------------------------


def test_patterns_take_tables_of_several_schemas(
    mysql: MySQLServer, mysql_url: str, connection: Connection, make: Callable[[str], None]
) -> None:
    """Globs, plain names and exclusions match; the server's and penstock's schemas are never
    included.
    """
    name = database_of(mysql_url)
    other = database_of(mysql.make_database("other"))
    make(f"create table a (id int primary key); create table `B.c` (id int); create view v as"
         f" select 1 as one; create table `{other}`.d (id int primary key)")  # fmt: skip
    try:
        found = survey(connection, [f"{name}.*", f"{other}.?", f"!{name}.a"])
        assert [table.name for table in found.tables] == [(other, "d"), (name, "B.c")]
        assert {(one.name.name, one.reason) for one in found.excluded} == {
            ("a", Exclusion.PATTERN),
            ("v", Exclusion.VIEW),
        }
        assert not {"mysql", "sys"} & {t.name.schema for t in survey(connection, ["*.*"]).tables}
        assert [t.name.name for t in captured_tables(connection, [f'{name}."B.c"'])] == ["B.c"]
    finally:
        mysql.execute(f"drop database `{other}`")


def test_a_named_table_must_be_there(
    mysql_url: str, connection: Connection, make: Callable[[str], None]
) -> None:
    """Case counts if the server says so; the hint names a table with other letters' case."""
    name = database_of(mysql_url)
    make("create table Orders (id int primary key)")
    with pytest.raises(TableNotCapturable, match=rf"there is {name}\.Orders"):
        captured_tables(connection, [f"{name}.orders"])
    with pytest.raises(TableNotCapturable, match="no table"):
        captured_tables(connection, [f"{name}.gone"])
    assert captured_tables(connection, [f"{name}.none*"]) == []


def test_names_that_the_catalogue_takes_for_equal(
    mysql_url: str, connection: Connection, make: Callable[[str], None]
) -> None:
    """Case and accents are ignored by information_schema; the tables are different ones."""
    make("create table item (id int primary key); create table Item (a int, b int);"
         " create table `ítem` (c int, d int, e int)")  # fmt: skip
    found = captured_tables(connection, [f"{database_of(mysql_url)}.*"])
    assert {table.name.name: len(table.columns) for table in found} == {
        "item": 1,
        "Item": 2,
        "ítem": 3,
    }


def test_tables_without_rights_are_not_seen(
    mysql: MySQLServer, mysql_url: str, make: Callable[[str], None]
) -> None:
    """Such tables seem to be missing: the hint names the GRANT."""
    name = database_of(mysql_url)
    make("create table a (id int primary key); create table b (id int primary key)")
    with mysql.role(f"select on `{name}`.a") as url, open_catalog(url) as poor:
        assert [t.name.name for t in captured_tables(poor, [f"{name}.*"])] == ["a"]
        with pytest.raises(TableNotCapturable) as caught:
            captured_tables(poor, [f"{name}.b"])
        assert "grant select" in caught.value.hint


@pytest.mark.server("mariadb")
def test_sequences_are_left_out(
    mysql_url: str, connection: Connection, make: Callable[[str], None]
) -> None:
    """Their numbers are not rows; the error for a named one says so."""
    make("create sequence s")
    name = database_of(mysql_url)
    assert [one.reason for one in survey(connection, [f"{name}.*"]).excluded] == [
        Exclusion.SEQUENCE
    ]
    with pytest.raises(TableNotCapturable, match="it is a sequence"):
        captured_tables(connection, [f"{name}.s"])


@pytest.mark.server("mysql")
def test_engines_that_keep_no_rows_are_left_out(
    mysql_url: str, connection: Connection, make: Callable[[str], None]
) -> None:
    """There would be no rows to load."""
    make("create table b (id int) engine = blackhole")
    (one,) = survey(connection, [f"{database_of(mysql_url)}.*"]).excluded
    assert (one.reason, one.detail) == (Exclusion.NOWHERE, "BLACKHOLE")


# -- columns -----------------------------------------------------------------------------------


def test_every_type_is_the_one_in_the_binlog(
    mysql: MySQLServer,
    mysql_url: str,
    make: Callable[[str], None],
    read: Callable[..., TableDefinition],
) -> None:
    """The definition matches the TABLE_MAP event, column by column, for every type."""
    types = TYPES + (MARIADB_TYPES if mysql.is_mariadb else [])
    listed = ", ".join(f"c{number} {text}" for number, text in enumerate(types))
    make(f"create table t (id int primary key, {listed})")
    start = BinlogPosition.at(*mysql.status())
    make("insert into t (id) values (1)")
    options = DumpOptions(server_id=4_000_000_001, is_bounded=True)
    with open_binlog(mysql.url(), position=start, options=options) as stream:
        (event,) = [
            event
            for event in stream.events()
            if event is not None and mysqlwire.event_head(event).kind == TABLE_MAP
        ]
    body = event[mysqlwire.EVENT_HEAD_BYTES : -4]
    wire = table_map(body, is_mariadb=mysql.is_mariadb).columns
    definition = read("t")
    assert [column.name for column in definition.columns] == [column.name for column in wire]
    for declared, known, sent in zip(["int", *types], definition.columns, wire, strict=True):
        assert agrees(sent, known.type_text, known.charset), (declared, known, sent)
        assert known.charset == ("" if known.collation is None else sent.charset), declared
        assert known.not_null is not sent.nullable


@pytest.mark.parametrize(
    ("declared", "neutral"),
    [
        ("tinyint unsigned", "int16"),
        ("int unsigned", "uint32"),
        ("bigint unsigned", "uint64"),
        ("decimal(38,4)", "decimal(38,4)"),
        ("decimal(65,30)", "string"),
        ("timestamp null", "timestamptz"),
        ("datetime(6)", "timestamp"),
        ("time", "time"),
        ("year", "int16"),
        ("bit(5)", "uint64"),
        ("varbinary(5)", "binary"),
        ("json", "string"),
        ("enum('a')", "string"),
    ],
)
def test_how_values_are_kept(
    make: Callable[[str], None], read: Callable[[str], TableDefinition], declared: str, neutral: str
) -> None:
    """The decoder's own table of types decides how values are kept."""
    make(f"create table t (id int primary key, c {declared})")
    assert columns(read("t"))["c"].neutral == neutral


def test_json_is_distinguished_from_long_text(
    mysql: MySQLServer, make: Callable[[str], None], read: Callable[[str], TableDefinition]
) -> None:
    """MariaDB's JSON is LONGTEXT with a check; another check does not make text JSON."""
    make("create table t (id int primary key, j json, l longtext)")
    found = columns(read("t"))
    assert found["j"].type_text == "json"
    assert found["j"].base_type == ("longtext" if mysql.is_mariadb else "json")
    assert found["l"].type_text == "longtext"
    if mysql.is_mariadb:
        make("create table u (id int primary key, l longtext check (json_valid(l) or l = ''))")
        assert columns(read("u"))["l"].type_text == "longtext"


DEFAULTS = {
    "a": "int default 5", "b": "int not null default -1", "c": "varchar(20) default 'it''s \\\\ x'",
    "d": "varchar(20) default ''", "e": "varchar(20)", "f": "varchar(20) not null",
    "g": "datetime default current_timestamp",
    "h": "timestamp(3) not null default current_timestamp(3) on update current_timestamp(3)",
    "i": "bit(4) default b'101'", "j": "decimal(5,2) default 1.50",
    "k": "date default '2024-02-29'",
    "l": "varchar(30) default 'CURRENT_TIMESTAMP'", "m": "enum('a','b') default 'b'",
    "n": "varchar(9) default 'NULL'", "o": "binary(2) default 'ab'", "p": "float default 1e10",
    "q": "time default '-10:00:00'", "r": "set('x','y') default 'x,y'", "s": "year default 2020",
    "t": "varchar(40) default (concat('a', 'b''c'))", "u": "boolean default true",
    "v": "varchar(9) default 'b''1'''", "w": "varchar(9) character set latin1 default 'ä'",
}  # fmt: skip


def test_defaults_are_sql(
    mysql: MySQLServer,
    mysql_url: str,
    make: Callable[[str], None],
    read: Callable[..., TableDefinition],
) -> None:
    """A table created from the definition has the same defaults, whatever they contain."""
    listed = ", ".join(f"{name} {text}" for name, text in DEFAULTS.items())
    make(f"create table t (id int primary key, {listed})")
    definition = read("t")
    made = []
    for column in definition.columns[1:]:
        charset = f" character set {column.charset}" if column.charset else ""
        null = " not null" if column.not_null else " null"
        default = column.default
        if column.name == "t" and not mysql.is_mariadb:
            default = f"({default})"
        clause = f" default {default}" if default is not None else ""
        made.append(f"`{column.name}` {column.type_text}{charset}{null}{clause}")
    make(f"create table t2 (id int primary key, {', '.join(made)})")
    compared = (
        "select column_name, column_default, is_nullable, column_type from"
        " information_schema.columns where table_schema = database() and table_name = '{}'"
        " order by ordinal_position"
    )
    name = database_of(mysql_url)
    assert mysql.execute(compared.format("t2"), name) == mysql.execute(compared.format("t"), name)


def test_generated_invisible_and_counted_columns(
    mysql: MySQLServer,
    mysql_url: str,
    make: Callable[[str], None],
    read: Callable[..., TableDefinition],
) -> None:
    """Generated columns have their expression, counters their kind."""
    make(
        "create table t (id bigint unsigned auto_increment primary key, a int,"
        " v int generated always as (a + 1) virtual, s varchar(9) as (concat(a, 'x''y')) stored)"
    )
    found = columns(read("t"))
    assert found["id"].identity_kind == "d"
    assert (found["a"].generated, found["v"].generated, found["s"].generated) == ("", "v", "s")
    make(f"create table u (id int primary key, a int, v int as ({found['v'].default}) virtual,"
         f" s varchar(9) as ({found['s'].default}) stored)")  # fmt: skip
    make("insert into u (id, a) values (1, 5)")
    make("insert into t (a) values (5)")
    assert mysql.execute("select s from t union select s from u", database_of(mysql_url)) == [
        ("5x'y",)
    ]
    if mysql.is_mariadb:
        make("create table i (id int primary key, h int invisible)")
        assert columns(read("i"))["h"].is_invisible


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "identity", "identity_columns"),
    [
        ("a int, b int, primary key (b, a)", Identity.DEFAULT, ("b", "a")),
        ("a int not null, b int not null, c int not null unique, unique (a, b)",
         Identity.INDEX, ("c",)),
        ("a int not null, b int not null, c int unique, unique k (b, a)", Identity.INDEX,
         ("b", "a")),
        ("a int unique, b int, c int", Identity.FULL, ("a", "b", "c")),
        ("a int, b int as (a + 1) virtual, c int", Identity.FULL, ("a", "c")),
        ("a varchar(50) not null, b int, c int, unique (a(5))", Identity.FULL, ("a", "b", "c")),
        ("a varchar(50) not null, b int, c int, primary key (a(5))", Identity.FULL,
         ("a", "b", "c")),
    ],
)  # fmt: skip
def test_what_identifies_rows(
    make: Callable[[str], None],
    read: Callable[[str], TableDefinition],
    ddl: str,
    identity: Identity,
    identity_columns: tuple[str, ...],
) -> None:
    """The primary key identifies rows, then a unique key without NULLs and prefixes, else the whole
    row.
    """
    make(f"create table t ({ddl})")
    definition = read("t")
    assert definition.identity is identity
    assert definition.identity_columns == identity_columns


def test_keys_and_indexes(
    mysql: MySQLServer, make: Callable[[str], None], read: Callable[[str], TableDefinition]
) -> None:
    """Prefixes are kept; the rest is given as in CREATE TABLE, and creates the same again."""
    expression = "" if mysql.is_mariadb else ", unique key fn ((a + 1))"
    make(
        "create table t (a int not null, b varchar(50) not null, c text, g geometry not null"
        + (", d int" if mysql.is_mariadb else " srid 0, d int")
        + ", primary key (b(9), a), unique key u (a, b(5)), key k (c(7)), spatial key s (g),"
        f" fulltext key f (c), unique key w (d){''})"
    )
    if expression and mysql.version.mysql(8, 0, 13):
        make(f"alter table t add {expression.removeprefix(', ')}")
    definition = read("t")
    assert (definition.primary_key, definition.primary_key_prefixes) == (("b", "a"), (9, 0))
    unique = {key.name: key for key in definition.unique_keys}
    assert (unique["u"].columns, unique["u"].prefixes) == (("a", "b"), (0, 5))
    assert (unique["w"].columns, unique["w"].prefixes) == (("d",), ())
    assert "fn" not in unique, "a key over an expression tells no column"
    made = [key.definition for key in definition.unique_keys] + list(definition.indexes)
    srid = "" if mysql.is_mariadb else " srid 0"
    make(f"create table t2 (a int not null, b varchar(50) not null, c text, d int,"
         f" g geometry not null{srid}, primary key (b(9), a), {', '.join(made)})")  # fmt: skip
    again = read("t2")
    assert (again.unique_keys, again.indexes) == (definition.unique_keys, definition.indexes)


def test_foreign_keys_and_their_rules(
    mysql_url: str, make: Callable[[str], None], read: Callable[[str], TableDefinition]
) -> None:
    """Columns are in the key's order, rules by name: rows that a cascade changes are not logged."""
    make("create table p (a int, b int, primary key (a, b))")
    make("create table t (id int primary key, x int, y int, constraint fk foreign key (x, y)"
         " references p (a, b) on delete cascade on update set null)")  # fmt: skip
    (key,) = read("t").foreign_keys
    name = database_of(mysql_url)
    assert (key.name, key.columns, key.target_columns) == ("fk", ("x", "y"), ("a", "b"))
    assert key.target == TableName(name, "p")
    assert (key.on_delete, key.on_update) == ("CASCADE", "SET NULL")
    make("create table u (id int primary key, x int, y int)")
    make(f"alter table u add constraint fk2 {key.definition}")
    (again,) = read("u").foreign_keys
    assert again.definition == key.definition


# -- tables ------------------------------------------------------------------------------------


def test_engine_partitions_sizes_and_statement(
    mysql: MySQLServer, mysql_url: str, connection: Connection, make: Callable[[str], None]
) -> None:
    """The definition has further facts that a target or planner needs."""
    make("create table p (id int primary key) partition by range (id)"
         " (partition a values less than (10), partition b values less than maxvalue)")  # fmt: skip
    make("create table m (id int primary key) engine = myisam")
    make("insert into p values (1), (20); analyze table p")
    name = database_of(mysql_url)
    found = captured_tables(connection, [f"{name}.*"], with_create_sql=True)
    by_name = {definition.name.name: definition for definition in found}
    assert (by_name["p"].is_partitioned, by_name["m"].is_partitioned) == (True, False)
    assert (by_name["p"].engine, by_name["m"].engine) == ("InnoDB", "MyISAM")
    assert by_name["p"].create_sql.startswith("CREATE TABLE `p`")
    assert by_name["p"].size_bytes > 0
    assert by_name["p"].row_estimate == 2


def test_source_ids_are_made_from_names(
    make: Callable[[str], None], read: Callable[[str], TableDefinition]
) -> None:
    """The id is the same every time, and differs for `a`.`b` and `ab`."""
    make("create table t (id int primary key)")
    assert read("t").source_id == read("t").source_id == source_id_of(read("t").name)
    assert source_id_of(TableName("a", "bc")) != source_id_of(TableName("ab", "c"))
    assert 0 < source_id_of(TableName("a", "b")) < 2**48


@pytest.mark.server("mariadb")
def test_versioned_tables(
    mysql: MySQLServer,
    mysql_url: str,
    make: Callable[[str], None],
    read: Callable[..., TableDefinition],
) -> None:
    """Their rows in the binlog include the two columns of the period, named or not."""
    make("create table t (id int primary key, x int) with system versioning")
    make("create table n (id int primary key, a timestamp(6) generated always as row start,"
         " b timestamp(6) generated always as row end, period for system_time (a, b))"
         " with system versioning")  # fmt: skip
    start = BinlogPosition.at(*mysql.status())
    make("insert into t values (1, 1); insert into n (id) values (1)")
    options = DumpOptions(server_id=4_000_000_001, is_bounded=True)
    with open_binlog(mysql.url(), position=start, options=options) as stream:
        maps = {
            sent.name: sent
            for event in stream.events()
            if event is not None and mysqlwire.event_head(event).kind == TABLE_MAP
            for sent in [table_map(event[mysqlwire.EVENT_HEAD_BYTES : -4], is_mariadb=True)]
        }
    for name in ("t", "n"):
        definition = read(name)
        assert definition.is_versioned
        assert [c.name for c in definition.columns] == [c.name for c in maps[name].columns]
        assert [c.name for c in definition.columns if c.generated] == (
            ["row_start", "row_end"] if name == "t" else ["a", "b"]
        )


def test_a_table_that_is_dropped_while_it_is_read_is_left_out(
    connection: Connection,
    make: Callable[[str], None],
    mysql_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tool's copy comes and goes at any time; the others are read."""
    make("create table kept (id int primary key)")
    make("create table _kept_gho (id int primary key)")
    read_sql = definitions._create_sql

    def drop_first(at: Connection, name: TableName) -> str:
        if name.name == "_kept_gho":
            make("drop table _kept_gho")
        return read_sql(at, name)

    monkeypatch.setattr(definitions, "_create_sql", drop_first)
    tables = captured_tables(connection, [f"{database_of(mysql_url)}.*"], with_create_sql=True)
    assert [table.name.name for table in tables] == ["kept"]
