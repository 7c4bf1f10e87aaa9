"""Rare but legal cases, from MySQL and MariaDB through the log into a second database.

The log is applied as by the loader; then both databases are compared, cell by cell, as the server
prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.extract import log_changes
from harness.pipelines.mysql_extract import sql
from harness.pipelines.mysql_pipe import Pipe
from penstock.model import PenstockError
from plugins.mysql import MySQLServer, database_of

LOOSE = "set sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'"


class Odd(Pipe):
    """A pipe whose tables a test creates alike in both databases."""

    def make(self, *tables: str) -> None:
        """Create the tables at both ends; then the log begins."""
        for url in (self.source, self.target):
            for statement in tables:
                sql(self.server, url, statement)
        self.extract()

    def session(self, *statements: str) -> None:
        """Run statements in one session of the source."""
        database = database_of(self.source)
        with self.server.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def contents(self, url: str) -> dict[str, list[tuple[object, ...]]]:
        """Return all rows of all tables, ordered by their text."""
        database = database_of(url)
        names = self.server.execute(
            "select table_name, column_name, data_type from information_schema.columns"
            " where table_schema = %s order by 1, 2",
            parameters=(database,),
        )
        columns: dict[str, list[str]] = {}
        for table, column, kind in names:
            name = "`" + column.replace("`", "``") + "`"
            if kind.lower() in ("bit", "float", "double"):
                name = f"cast({name} * 1e0 as char)" if kind != "bit" else f"{name} + 0"
            elif kind.lower() in ("json", "uuid", "inet4", "inet6"):
                name = f"cast({name} as char)"
            columns.setdefault(table, []).append(f"hex(concat({name}))")
        return {
            table: sorted(
                self.server.execute(
                    f"select {', '.join(parts)} from `{table.replace('`', '``')}`", database
                ),
                key=repr,
            )
            for table, parts in columns.items()
        }

    def check(self) -> None:
        """Extract, apply and compare."""
        self.extract()
        self.load()
        source, target = self.contents(self.source), self.contents(self.target)
        assert source.keys() == target.keys()
        for table, rows in source.items():
            assert target[table] == rows, table


@pytest.fixture
def odd(mysql: MySQLServer, tmp_path: Path) -> Iterator[Odd]:
    """Two empty databases."""
    mysql.execute("drop database if exists wirekite")
    urls = [mysql.make_database(name) for name in ("source", "target")]
    yield Odd(mysql, urls[0], urls[1], tmp_path)
    for url in urls:
        mysql.drop_database(url)


@pytest.fixture(params=["FULL", pytest.param("none", marks=pytest.mark.long)])
def metadata(mysql: MySQLServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Setting of metadata: the log has names, or only the catalogue does."""
    least = "'NO_LOG'" if mysql.is_mariadb else "'MINIMAL'"
    with mysql.globals(binlog_row_metadata="'FULL'" if request.param == "FULL" else least):
        yield request.param


CHARSETS = {
    "sjis": ("'表十ソ'", "'ﾃｽﾄ'"),
    "cp932": ("'①表'", "'ｱ'"),
    "gbk": ("'誠中'", "'丂'"),
    "gb18030": ("'中😀'", "'€'"),
    "big5": ("'功蓋'", "'許'"),
    "euckr": ("'한글'", "'가'"),
    "ujis": ("'表示'", "'ｱ'"),
    "utf16": ("'表😀'", "'a'"),
    "utf16le": ("'表😀'", "'a'"),
    "utf32": ("'表😀'", "'a'"),
    "ucs2": ("'表é'", "'a'"),
    "latin1": ("'ä€ß'", "'a'"),
    "cp1251": ("'Жук'", "'a'"),
    "utf8": ("'表é'", "'a'"),
    "ascii": ("'ab'", "'a'"),
}


@pytest.mark.long
def test_character_sets_as_values_and_as_keys(odd: Odd, metadata: str) -> None:
    """Rows are found by keys in every character set, and are changed in it."""
    known = {row[0] for row in odd.server.execute("show character set")}
    charsets = {name: values for name, values in CHARSETS.items() if name in known}
    if metadata == "none":  # the catalogue has a question mark for a label of four bytes
        charsets = {
            name: (first.replace("😀", "語"), second) for name, (first, second) in charsets.items()
        }
    odd.make(
        *(
            f"create table in_{name} (k varchar(20) character set {name} primary key,"
            f" v varchar(20) character set {name}, t text character set {name},"
            f" e enum({first}, {second}) character set {name})"
            for name, (first, second) in charsets.items()
        )
    )
    for name, (first, second) in charsets.items():
        odd.run(
            f"insert into in_{name} values ({first}, {second}, {first}, {second}),"
            f" ({second}, {first}, {second}, {first}), ('gone', 'x', null, null);;"
            f"update in_{name} set v = {first}, e = {first} where k = {first};;"
            f"update in_{name} set k = concat(k, 'z') where k = {second};;"
            f"delete from in_{name} where k = 'gone'"
        )
    odd.check()


def test_values_at_the_edge_of_their_types(odd: Odd, metadata: str) -> None:
    """Values that strict mode would refuse are included: zero dates, the empty label."""
    members = ",".join(f"'m{number}'" for number in range(64))
    hidden = "h int invisible default 3," if odd.server.is_mariadb else ""
    odd.make(
        "create table edges (id bigint unsigned primary key, b64 bit(64), b1 bit(1),"
        " n decimal(65,30), y year, t time(6), d date, dt datetime(6), ts timestamp(6) null,"
        f" e enum('a','b'), e2 enum('','b'), s set({members}), {hidden} f float, r double,"
        " bi binary(5), vb varbinary(5), g1 int as (y + 1) stored, g2 varchar(9) as"
        " (concat('v', e)) virtual, j json)"
    )
    values = "(id, b64, b1, n, y, t, d, dt, ts, e, e2, s, f, r, bi, vb, j)"
    every = "','".join(["m" + str(number) for number in range(64)]).replace("','", ",")
    odd.session(
        LOOSE,
        "set time_zone = '+00:00'",
        f"insert into edges {values} values (18446744073709551615, ~0, 1, "
        f"-{'9' * 35}.{'9' * 30}, 0, '-838:59:58.999999', '0000-00-00', '0000-00-00', "
        f"'2038-01-19 03:14:07.999999', 'nonsense', '', '{every}', -0.0, -0.0, x'00', x'00', '[]')",
        f"insert into edges {values} values (0, 0, 0, {'9' * 35}.{'9' * 30}, 2155, "
        "'838:59:59', '2024-02-31', '9999-12-31 23:59:59.999999', 0, 0, 'b', '', 3.4028234e38, "
        "5e-324, x'4100', x'4100', '{\"a\": 18446744073709551615}')",
        f"insert into edges {values} values (9223372036854775808, 9223372036854775808, 0, "
        "0.000000000000000000000000000001, 1901, '-00:00:00.000001', '0000-01-00', "
        "'2024-00-00 01:02:03', '1970-01-01 00:00:01', 'b', 0, 'm63', 1e-45, "
        "1.7976931348623157e308, x'', x'', 'null')",
        "update edges set e = 0, d = '0000-00-00' where id = 9223372036854775808",
        "update edges set id = id - 1 where id = 18446744073709551615",
        "update edges set s = 'm0,m63', y = y + 0 where id = 0",
    )
    odd.check()


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["enum('a','b')", "enum('a','b') character set utf16", "enum('0','1')"]
)
def test_the_value_0_of_an_enum_as_a_key(odd: Odd, kind: str) -> None:
    """Rows are found by it alone, with other columns and without a key."""
    odd.make(
        f"create table alone (e {kind} primary key, v int, b text)",
        f"create table beside (e {kind}, n int, v int, b text, primary key (e, n))",
        f"create table free (e {kind}, v int, b text)",
    )

    def check() -> None:
        odd.check()
        for table in ("alone", "beside", "free"):
            read = f"select e + 0, v from {table} order by 1, 2"
            source, target = (
                odd.server.execute(read, database_of(url)) for url in (odd.source, odd.target)
            )
            assert source == target, table

    for image, every in (("FULL", ("alone", "beside", "free")), ("MINIMAL", ("alone", "beside"))):
        loose = ("set sql_mode = ''", f"set binlog_row_image = '{image}'")
        odd.session(
            *loose,
            *(f"delete from {table}" for table in every),
            "insert into alone values (0, 1, 'x'), (1, 2, 'y')",
            "insert into beside values (0, 1, 1, 'x'), (0, 2, 2, 'y'), (1, 1, 3, 'z')",
            *(
                f"insert into {table} values (0, 1, 'x'), (0, 1, 'x'), (1, 1, 'z'), (null, 1, 'z')"
                for table in every
                if table == "free"
            ),
        )
        check()
        for change in (
            "update {} set v = 10 where e + 0 = 0",
            "update {} set e = 2 where e + 0 = 0",  # unsent values stay with the row
            "update {} set e = 0 where e + 0 = 2",
            "delete from {} where e + 0 = 0",
        ):
            odd.session(*loose, *(change.format(table) for table in every))
            check()


def test_many_columns_and_names_of_all_letters(odd: Odd, metadata: str) -> None:
    """There are over 255 columns; names have quotes, dots, backticks, percent, reserved words."""
    columns = ", ".join(f"c{number} varchar(3)" for number in range(600))
    odd_name = "`we\"ird.ta``ble %s 表'`"
    odd.make(
        f"create table wide (id int primary key, {columns})",
        f'create table {odd_name} (`i d` int, `a.b` text, `c``d` int, `select` int, `"q"` int, '
        "`%s %(x)s` int, `été` int, `@v1` int, primary key (`i d`, `select`))",
    )
    odd.run(
        "insert into wide (id, c0, c255, c256, c599) values (1, 'a', 'b', 'c', 'd'), (2, '', null,"
        " 'x', '');; update wide set c300 = 'u', c0 = null where id = 1;;"
        f"insert into {odd_name} values (1, 'a', 2, 3, 4, 5, 6, 7), (2, '', 2, 3, 4, 5, 6, 7);;"
        f"update {odd_name} set `a.b` = 'it''s', `select` = 9 where `i d` = 1;;"
        f"delete from {odd_name} where `i d` = 2"
    )
    odd.check()


def test_images_and_shapes_that_change_together(odd: Odd) -> None:
    """MINIMAL and NOBLOB rows come before and after an ALTER, in one batch and one by one."""
    odd.make(
        "create table t (id int primary key, a int not null, b text, c varchar(10), d blob)",
        "create table u (k varchar(5) primary key, j json, v int)",
    )
    full = "insert into t (id, a, b, c, d) values ({0}, {0}, 'text {0}', 'c', x'00ff')"
    odd.session(*(full.format(number) for number in range(1, 9)))
    odd.session("insert into u values ('a', '{\"x\": 1}', 1), ('b', '[1]', 2)")
    odd.check()
    odd.session(
        "set binlog_row_image = 'MINIMAL'",
        "update t set a = 10 where id = 1",
        "update t set b = 'new' where id = 1",
        "alter table t add column e int not null default 7",
        "update t set e = 8 where id = 2",
        "update t set c = 'moved', id = 20 where id = 3",
        "set binlog_row_image = 'NOBLOB'",
        "update t set a = 11 where id = 4",
        "alter table t drop column c, add column f varchar(5) first",
        "update t set f = 'f' where id = 1",
        "update t set d = x'01', id = 21 where id = 20",
        "delete from t where id = 5",
        "set binlog_row_image = 'MINIMAL'",
        "update t set b = concat(b, '!') where id > 6",
        "delete from t where id = 6",
        "update u set j = '[2]' where k = 'b'",
        "update u set v = 5",
        "update u set k = 'z' where k = 'a'",
    )
    odd.check()


@pytest.mark.server("mysql")
def test_parts_of_json_without_whole_rows_stop_by_name(odd: Odd) -> None:
    """Parts are merged with FULL images; without them the rest of the value is unknown."""
    long = '{"a": 1, "b": "' + "x" * 60 + '"}'
    odd.make("create table t (id int primary key, j json)")
    odd.run(f"insert into t values (1, '{long}')")
    partial = "set binlog_row_value_options = 'PARTIAL_JSON'"
    odd.session(partial, "update t set j = json_set(j, '$.a', 2)")
    odd.check()
    odd.session(
        partial, "set binlog_row_image = 'MINIMAL'", "update t set j = json_set(j, '$.a', 3)"
    )
    with pytest.raises(PenstockError) as caught:
        odd.extract()
    assert caught.value.code.startswith("DC")
    assert "j" in caught.value.message


def test_one_statement_about_several_tables(odd: Odd) -> None:
    """One DROP has captured and uncaptured ones; uncaptured ones are swapped; an
    ALTER has clauses.
    """
    made = "create table {} (id int primary key, v int)"
    odd.make(*(made.format(name) for name in ("a", "b", "keep")))
    elsewhere = odd.server.make_database("elsewhere")
    other = database_of(elsewhere)
    for name in ("x", "y", "z"):
        odd.server.execute(made.format(name), other)
    odd.run(
        f"insert into a values (1, 1);; insert into b values (1, 1);;"
        f"insert into {other}.x values (1, 1);;"
        f"rename table {other}.x to {other}.tmp, {other}.y to {other}.x, {other}.tmp to {other}.y;;"
        f"drop table {other}.x, a;; insert into keep values (1, 1);;"
        f"update keep, b, {other}.y set keep.v = 2, b.v = 3, {other}.y.v = 4;;"
        "create table a (id int primary key, v int);; insert into a values (5, 5);;"
        f"truncate table {other}.z;; truncate table b;; insert into b values (7, 7)"
    )
    odd.check()
    odd.server.drop_database(elsewhere)


def test_captured_tables_that_change_places_are_read_again(odd: Odd) -> None:
    """Three renames are in one statement: each name then has other rows."""
    made = "create table {} (id int primary key, v int)"
    odd.make(made.format("a"), made.format("b"))
    odd.run("insert into a values (1, 1);; rename table a to tmp, b to a, tmp to b")
    odd.extract()
    # The row is inserted, and read again under the other name.
    assert [c.after for c in log_changes(odd.config.directory)] == [{"id": 1, "v": 1}] * 2


UNCAPTURED = """
    create view v1 as select * from {0}.t;; alter view v1 as select 1 as t;; drop view v1;;
    create procedure p() begin update {0}.t set v = 0 where id = -1; delete from u; end;;
    create function f() returns int deterministic return 1;; drop function f;;
    create trigger tr before insert on u for each row begin set new.v = 1; set new.v = 2; end;;
    create table u2 like u;; create index i on u (v);; drop index i on u;;
    alter table u add column `{0}.t` int, rename to u3;; alter table u3 rename u;;
    create event ev on schedule every 1 day do begin delete from {0}.t; end;; drop event ev;;
    create table parts (id int) partition by hash (id) partitions 3;;
    alter table parts coalesce partition 1;; alter table parts truncate partition p0;;
    alter table u modify v bigint comment 'alter table {0}.t drop column v; -- ';;
    alter table u change v `t` int;; alter table u order by `t`;; alter table u engine = MyISAM;;
    alter table u convert to character set latin1;; optimize table u;; analyze table u;;
    create temporary table tt (id int); insert into tt values (1); drop temporary table tt;;
    create table par (id int primary key);; create table chi (id int primary key, p int,
        foreign key (p) references par (id) on delete cascade);; insert into par values (1);;
    insert into chi values (1, 1);; delete from par;; lock tables u write;; unlock tables;;
    /* a */ create /* b */ table -- c
        u4 (id int) # d
    ;; call p();; drop procedure p;; truncate u2;; rename table u2 to u5, u5 to u2;;
    drop table if exists u, u2, u4, parts, chi, par, never;; flush tables
"""


def test_nothing_in_other_databases_stops_the_pipeline(odd: Odd) -> None:
    """Statements of every kind are ignored, even those that mention a captured table."""
    odd.make("create table t (id int primary key, v int)")
    elsewhere = odd.server.make_database("elsewhere")
    sql(odd.server, elsewhere, "create table u (id int primary key, v int)")
    sql(odd.server, elsewhere, UNCAPTURED.format(database_of(odd.source)))
    if odd.server.is_mariadb:
        sql(
            odd.server,
            elsewhere,
            "create sequence sq;; select nextval(sq);; create or replace table w (id int);;"
            "create table hist (id int) with system versioning;; insert into hist values (1);;"
            "update hist set id = 2;; alter table w add column if not exists x int",
        )
    odd.server.execute("create user odd_one; grant all on *.* to odd_one; drop user odd_one")
    odd.server.drop_database(elsewhere)
    odd.run("insert into t values (1, 1)")
    odd.check()


@pytest.mark.long
def test_rows_over_16_mb_without_checksums_over_several_files(odd: Odd) -> None:
    """Packets have several pieces, the log has no checksums, and files end in between."""
    server = odd.server
    odd.make("create table t (id int primary key, b longblob)")
    with server.globals(max_allowed_packet=str(64 * 2**20)):
        odd.session(
            "insert into t values (1, repeat(x'00ff5c27', 4500000))",
            "set global binlog_checksum = 'NONE'",
            "insert into t values (2, repeat('a', 16777200)), (3, 'small')",
            "flush binary logs",
            "update t set b = concat(b, 'x') where id = 1",
            "set global binlog_checksum = 'CRC32'",
            "delete from t where id = 2",
        )
        odd.extract()
        odd.load()
    for url in (odd.source, odd.target):
        found = server.execute(
            "select id, length(b), sha2(b, 256) from t order by id", database_of(url)
        )
        assert [row[:2] for row in found] == [(1, 18_000_001), (3, 5)]
    sums = [
        server.execute("select sha2(b, 256) from t", database_of(u))
        for u in (odd.source, odd.target)
    ]
    assert sums[0] == sums[1]


@pytest.mark.server("mariadb")
def test_compressed_events_of_all_images_around_statements(odd: Odd) -> None:
    """MariaDB's compressed events have incomplete rows and a compressed ALTER."""
    with odd.server.globals(log_bin_compress="1", log_bin_compress_min_len="10"):
        odd.make(
            "create table t (id int primary key, u uuid, i inet6, c varchar(500) compressed, "
            "b blob compressed, v int)"
        )
        odd.session(
            "insert into t values (1, '00112233-4455-6677-8899-aabbccddee00', '::1', "
            "repeat('long ', 90), repeat(x'00ff', 300), 1), (2, null, null, '', '', 2)",
            "set binlog_row_image = 'MINIMAL'",
            "update t set c = repeat('other ', 80) where id = 1",
            "alter table t add column w varchar(300) compressed default 'a default of some length',"
            " comment 'a statement that is long enough to be compressed itself'",
            "update t set u = '00000000-0000-0000-0000-000000000000' where id = 2",
            "set binlog_row_image = 'NOBLOB'",
            "update t set i = '2001:db8::', w = 'x' where id = 2",
            "delete from t where id = 1",
        )
        odd.check()
