"""Bulk loads into MySQL and MariaDB: from PostgreSQL, and from each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.bulk import run
from harness.pipelines.mysql_bulk import between, fill_orders, load
from penstock.load.ledger import TargetHoldsRows, read_ledger
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.target import TargetShapeDiffers
from plugins.mysql import MySQLServer, database_of, running

pytestmark = pytest.mark.spark


@pytest.fixture
def landing(mysql: MySQLServer) -> Iterator[str]:
    """A database to load into; it and penstock's own database are dropped afterwards."""
    url = mysql.make_database("landing")
    yield url
    mysql.drop_database(url)
    mysql.execute("drop database if exists wirekite; drop database if exists public")


@pytest.fixture(params=["by file", "by insert"])
def way(mysql: MySQLServer, request: pytest.FixtureRequest) -> Iterator[None]:
    """Setting of the target: it accepts LOAD DATA LOCAL, or it does not."""
    with mysql.globals(local_infile="1" if request.param == "by file" else "0"):
        yield


@pytest.mark.usefixtures("way")
def test_postgresql_into_mysql(
    mysql: MySQLServer, landing: str, source_url: str, tmp_path: Path, spark: Session
) -> None:
    """Every kind of value, several chunks and keys arrive, and progress rows in the target."""
    run(
        source_url,
        "create table public.t (id bigint primary key, b boolean, n numeric(20,5), r real, "
        "d double precision, t text, v varchar(40) unique, c character(5), y bytea, j jsonb, "
        "u uuid, da date, ts timestamp(3), tz timestamptz, ti time, bi bit(5), a int[])",
        "insert into public.t values (0, true, -123.45600, 16777217, 0.1, e'tab\\t nl\\n bs\\\\ "
        "vt\\u000b ff\\u000c é𝄞', 'x  ', 'ab', '\\x00ff5c0a09', '{\"a\": [1, null]}', "
        "'123e4567-e89b-12d3-a456-426655440000', '2024-02-29', '2024-02-29 12:34:56.789', "
        "'2024-02-29 12:34:56.789123+02', '23:59:59.999999', B'10101', '{1,null,3}'), "
        "(2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, "
        "null, null), (3, false, 0, -0.0, '-1e-300', '', '', '', '', '[]', "
        "'00000000-0000-0000-0000-000000000000', '0001-01-01', '9999-12-31 23:59:59.999', "
        "'1970-01-01 00:00:00+00', '00:00', B'00000', '{}')",
        "create table public.ids as select format('12345678-9abc-%sdef-%s123-456789abcdef', "
        "to_hex(v), to_hex(n))::uuid as u from generate_series(0, 15) v, generate_series(0, 15) n",
        "create table public.orders as select i as id, repeat(md5(i::text), 3) as note, "
        "i / 7.0 as total from generate_series(1, 60000) as i",
    )
    config = between(source_url, landing, tmp_path, tables="public.*", more="")
    result = load(config, spark)
    assert result.rows[TableName("public", "orders")] == 60_000
    assert result.rows[TableName("public", "t")] == 3
    got = mysql.execute(
        "select id, b, n, r, d, hex(t), v, c, hex(y), j, u, da, ts, tz, ti, bi + 0, a"
        " from public.t order by id"
    )
    text = "tab\t nl\n bs\\ vt\x0b ff\x0c é𝄞".encode().hex().upper()
    assert str(got[0][2]) == "-123.45600"
    assert got[0][4:8] == (0.1, text, "x  ", "ab")
    assert got[0][8:10] == ("00FF5C0A09", '{"a": [1, null]}')
    assert str(got[0][10]) == "123e4567-e89b-12d3-a456-426655440000"
    assert [str(value) for value in got[0][11:14]] == [
        "2024-02-29", "2024-02-29 12:34:56.789000", "2024-02-29 10:34:56.789123"
    ]  # fmt: skip
    assert got[0][15:] == (21, "{1,NULL,3}")
    assert set(got[1][1:]) == {None}
    assert got[2][4] == -1e-300
    assert str(got[2][12]) == "9999-12-31 23:59:59.999000"
    uuids = [f"12345678-9abc-{v:x}def-{n:x}123-456789abcdef" for v in range(16) for n in range(16)]
    assert mysql.execute("select cast(u as char) from public.ids order by 1") == [
        (text,) for text in uuids
    ]
    sums = mysql.execute("select count(*), sum(id), sum(total) from public.orders")[0]
    assert sums[:2] == (60_000, 60_000 * 60_001 // 2)
    done = mysql.execute(
        "select count(*), count(finish_time), sum(mark) from wirekite.wirekite_progress"
        " where operation = 'DL' and table_name = 'public.orders'"
    )[0]
    assert done[0] == done[1] > 1
    assert done[2] == 60_000
    keys = mysql.execute(
        "select count(distinct index_name) from information_schema.statistics"
        " where table_schema = 'public' and table_name = 't'"
    )
    assert keys[0][0] == 2


@pytest.mark.usefixtures("way")
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("charset", ["ascii", "latin1", "utf8mb3"])
def test_text_is_not_written_into_a_column_of_another_character_set(
    mysql: MySQLServer, landing: str, source_url: str, tmp_path: Path, spark: Session, charset: str
) -> None:
    """The server stores the bytes as they are: they would be other characters there."""
    run(source_url, "create table public.s (id int primary key, v varchar(9))",
        "insert into public.s values (1, 'é')")  # fmt: skip
    name = database_of(landing)
    mysql.execute(
        f"create table s (id int primary key, v varchar(9) character set {charset})", name
    )
    more = f'[target.map]\npublic = "{name}"'
    config = between(source_url, landing, tmp_path, tables="public.*", more=more)
    if charset == "utf8mb3":
        load(config, spark)
        assert mysql.execute("select v from s", name) == [("é",)]
        return
    with pytest.raises(TargetShapeDiffers, match=f"v is in character set {charset}"):
        load(config, spark)
    assert mysql.execute("select * from s", name) == []


def test_an_infinity_is_refused_by_name(
    landing: str, source_url: str, tmp_path: Path, spark: Session
) -> None:
    """A value that MySQL cannot hold stops the load, and the error names the column."""
    run(
        source_url,
        "create table public.t (id int primary key, d date)",
        "insert into public.t values (1, 'infinity')",
    )
    config = between(source_url, landing, tmp_path, tables="public.*")
    with pytest.raises(Exception, match=r"column d of public\.t .*no place for"):
        load(config, spark)


@pytest.mark.usefixtures("way")
def test_mysql_into_mysql(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path, spark: Session
) -> None:
    """The same engine keeps all types, character sets and keys; a second run does nothing."""
    name = database_of(mysql_url)
    fill_orders(mysql, name)
    mysql.execute(
        "create table t (id int unsigned auto_increment primary key, l varchar(20) "
        "character set latin1 collate latin1_german1_ci, g char(9) character set gbk, "
        "u varchar(9) character set utf16, e enum('a','ä') character set latin1, s set('x','y'), "
        "b bit(12), f float, d double, n decimal(65,30), bl blob, bi binary(4), j json, "
        "geo geometry, y year, da datetime(6), ti time(3), z int(6) zerofill, "
        "gen int generated always as (y + 1) virtual, unique key (l, u));"
        "set sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';"
        "insert into t (id, l, g, u, e, s, b, f, d, n, bl, bi, j, geo, y, da, ti, z) values "
        "(0, 'ÄÖ\\t\\\\', '中文', '𝄞\\n', 'ä', 'x,y', 4095, 16777217, 0.1, "
        "-12345678901234567890123456789012345.123456789012345678901234567890, x'00090a0d5c', "
        "x'41', '{\"a\": 1}', point(1, 2), 2024, '2024-02-31 01:02:03.4', '-838:59:59', 42), "
        "(7, null, null, null, null, null, null, null, null, null, null, null, null, null, null, "
        "null, null, null), (8, '', '', '', 'a', '', 0, -0e0, 5e-324, 0, '', '', '[]', null, 0, "
        "'0000-00-00', '00:00:00.001', 0)",
        name,
    )
    file = between(mysql_url, landing, tmp_path, more="").path
    file.write_text(
        file.read_text().replace(
            "[dataLoader]", f'[target.map]\n{name} = "{database_of(landing)}"\n[dataLoader]'
        )
    )
    from penstock.control.pipeline.config import load_config

    config = load_config(file)
    result = load(config, spark)
    assert result.rows == {TableName(name, "orders"): 60_000, TableName(name, "t"): 3}
    assert len(read_ledger(config.layout.state).plans[0].chunks) > 4
    for table in ("orders", "t"):
        sums = [
            mysql.execute(f"checksum table `{schema}`.{table} extended")[0][1]
            for schema in (name, database_of(landing))
        ]
        assert sums[0] == sums[1] is not None, table
    columns = (
        "select column_name, column_type, is_nullable, collation_name, generation_expression"
        " from information_schema.columns where table_schema = '{}' and table_name = 't'"
        " order by ordinal_position"
    )
    assert mysql.execute(columns.format(name)) == mysql.execute(
        columns.format(database_of(landing))
    )
    mysql.execute("insert into t (id) values (100)", name)
    assert load(config, spark).rows == result.rows
    assert mysql.value("select count(*) from t", database_of(landing)) == 3


def test_rows_of_others_are_left_alone(
    mysql: MySQLServer, landing: str, source_url: str, tmp_path: Path, spark: Session
) -> None:
    """A target table with rows that penstock did not write is refused and unchanged."""
    run(source_url, "create table public.t (id int primary key)")
    mysql.execute(
        "create database public; create table public.t (id int primary key);"
        "insert into public.t values (5)"
    )
    config = between(source_url, landing, tmp_path, tables="public.*")
    with pytest.raises(TargetHoldsRows):
        load(config, spark)
    assert mysql.execute("select * from public.t") == [(5,)]


def test_mariadb_into_mysql_and_back(tmp_path: Path, spark: Session) -> None:
    """Text, numbers and times arrive unchanged between the two families."""
    with running("mariadb") as one, running("mysql") as other:
        for source, target, number in ((one, other, 1), (other, one, 2)):
            source.execute(
                f"create database shop{number}; create table shop{number}.t (id int primary key, "
                "t text character set latin1, j json, d datetime(3), b bit(9), y year, "
                "e enum('a','b'), g geometry, m mediumblob);"
                f"insert into shop{number}.t values (1, 'é', '{{\"a\": 1}}', "
                "'2024-01-02 03:04:05.678', 300, 1999, 'b', linestring(point(0,0), point(1,1)), "
                "x'00ff0a'), (2, null, null, null, null, null, null, null, null)"
            )
            folder = tmp_path / str(number)
            folder.mkdir()
            url = target.make_database("any")
            config = between(source.url(f"shop{number}"), url, folder)
            load(config, spark)
            query = (
                "select id, hex(convert(t using utf8mb4)), json_extract(j, '$.a') + 0, "
                "cast(d as char), b + 0, y + 0, e, st_astext(g), hex(m) "
                f"from shop{number}.t order by id"
            )
            assert target.execute(query) == source.execute(query)
