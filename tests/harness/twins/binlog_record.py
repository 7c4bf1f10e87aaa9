"""Record binlog files of a running server, with the tables' content according to the server.

`python tests/harness/twins/binlog_record.py NAME --socket SOCKET --logs FOLDER [--out
tests/data/binlog]` runs the scenarios below through the `mariadb` command-line client as root
without password, copies the resulting binlog files to OUT/NAME.N.binlog.xz and writes
OUT/NAME.jsonl.xz: one line for each table with its columns, then its rows as SELECT prints them.
The tests decode the files and must get the same rows (tests/unit/test_binlog_recorded.py). They
need no server.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHARSETS = (  # noqa: SIM905
    "armscii8 ascii big5 cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 cp932 dec8 eucjpms euckr "
    "gb2312 gbk geostd8 greek hebrew hp8 keybcs2 koi8r koi8u latin1 latin2 latin5 latin7 macce "
    "macroman sjis swe7 tis620 ucs2 ujis utf16 utf16le utf32 utf8 utf8mb4"
).split()
SAMPLES = (
    "plain text 123 ~", "ÄÖÅ äöå é ß €", "Привет, мир", "Ελληνικά", "日本語テキスト①髙～",
    "한국어 똠방각하", "中文繁體碁銹 简体", "שלום", "ไทย", "Žluťoučký kůň", "𝄞 and ḿ", "\\\\ ''",
)  # fmt: skip
TEMPORALS = ("0000-00-00 00:00:00", "2024-02-29 12:34:56.789123", "9999-12-31 23:59:59.999999")


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server and its features."""

    socket: str
    version: str

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in self.version

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("-")[0].split("."))

    def run(self, sql: str) -> str:
        """Run statements; return rows with tabs between values."""
        command = ["mariadb", "--no-defaults", "-uroot", f"-S{self.socket}", "--batch", "--raw"]
        command += ["--skip-column-names", "--default-character-set=utf8mb4"]
        done = subprocess.run(command, input=sql.encode(), capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.decode()[-300:])
        return done.stdout.decode()


# --- scenarios: statements that fill schema `rec`


def numbers() -> list[str]:
    """Return statements for integers of all sizes, floats, decimals, bits, years."""
    sql = [
        "create table ints (id int primary key, ti tinyint, tu tinyint unsigned, si smallint, "
        "su smallint unsigned, mi mediumint, mu mediumint unsigned, i int, iu int unsigned, "
        "bi bigint, bu bigint unsigned, b bool, z int(6) zerofill)"
    ]
    low = "-128,0,-32768,0,-8388608,0,-2147483648,0,-9223372036854775808,0,-1,0"
    high = (
        "127,255,32767,65535,8388607,16777215,2147483647,4294967295,9223372036854775807,"
        "18446744073709551615,1,123456"
    )
    sql += [
        f"insert into ints values (1,{low}), (2,{high}), (3,{','.join(['null'] * 12)})",
        "insert into ints values (4,-1,1,-1,1,-1,1,-1,1,-1,1,0,7)",
        "create table nums (id int primary key, f float, d double, d1 decimal(10,4), "
        "d2 decimal(65,30), d3 decimal(38,10), d4 decimal(1,0), d5 decimal(18,9), d6 decimal(5,5), "
        "d7 decimal(10,2) unsigned, d8 decimal(39,0), b1 bit(1), b8 bit(8), b33 bit(33), "
        "b64 bit(64), y year)",
        "insert into nums values (1,1.5,-2.25,-1234.5678,-12345678901234567890123456789012345."
        "123456789012345678901234567890,-1234567890123456789012345678.0123456789,-9,"
        "-123456789.987654321,-0.12345,12345678.90,-123456789012345678901234567890123456789,"
        "b'1',b'10000001',b'100000000000000000000000000000001',18446744073709551615,2024)",
        "insert into nums values (2,16777217,1.7976931348623157e308,0,0,0,0,0,0,0,0,0,0,0,0,0)",
        "insert into nums values (3,3.4028234e38,5e-324,0.0001,0.000000000000000000000000000001,"
        "0.0000000001,9,0.000000001,0.99999,0.01,1,1,255,8589934591,1,1901)",
        "insert into nums values (4,-1.17549e-38,0.1,99999999/10000,99999999999999999999999999999"
        "999999.999999999999999999999999999999,9999999999999999999999999999.9999999999,1,"
        "999999999.999999999,0.5,99999999.99,999999999999999999999999999999999999999,1,127,"
        "4294967296,9223372036854775808,2155)",
        "insert into nums (id) values (5)",
    ]
    return sql


def times() -> list[str]:
    """Return statements for dates and times with every number of digits, zero and
    impossible dates.
    """
    columns = ["id int primary key", "d date"]
    for digits in range(7):
        columns += [f"t{digits} time({digits})", f"dt{digits} datetime({digits})"]
        columns += [f"ts{digits} timestamp({digits}) null"]
    sql = [f"create table times ({', '.join(columns)})", "set sql_mode='ALLOW_INVALID_DATES'"]
    rows = [
        ("2024-02-29", "12:34:56.789123", "2024-02-29 12:34:56.789123"),
        ("0000-00-00", "-00:00:00.000001", "0000-00-00 00:00:00"),
        ("9999-12-31", "838:59:59", "9999-12-31 23:59:59"),
        ("1000-01-01", "-838:59:59", "1000-01-01 00:00:00"),
        ("2024-00-00", "-01:02:03.456", "2024-00-00 00:00:00"),
        ("2023-02-31", "24:00:00", "2023-02-31 10:11:12.5"),
        ("1969-12-31", "23:59:59.999999", "1969-12-31 23:59:59.999999"),
        ("0001-01-01", "00:00:00", "0001-01-01 00:00:00.1"),
    ]
    stamps = [
        "2024-02-29 12:34:56.789123", "0000-00-00 00:00:00", "2038-01-19 03:14:07",
        "1970-01-01 00:00:01", "2000-01-01 00:00:00.5", "2001-09-09 01:46:40",
        "1999-12-31 23:59:59", "2024-12-31 23:59:59.25",
    ]  # fmt: skip
    for number, ((day, time, moment), stamp) in enumerate(zip(rows, stamps, strict=True), 1):
        values = [str(number), f"'{day}'"]
        for _ in range(7):
            # Rounding up must not leave the range.
            values += [f"'{time}'", f"'{moment}'", f"'{stamp}'"]
        sql.append(f"insert into times values ({', '.join(values)})")
    sql.append("insert into times (id) values (99)")
    sql.append("set sql_mode=default")
    return sql


def texts(server: Server) -> list[str]:
    """Return statements for every character set, CHAR and VARCHAR around the lengths
    of each form.
    """
    sets = [name for name in CHARSETS if name != "gb18030"]
    if not server.is_mariadb:
        sets.append("gb18030")
    sql = []
    for name in sets:
        sql.append(
            f"create table cs_{name} (id int primary key, c char(20) character set {name}, "
            f"v varchar(40) character set {name}, t text character set {name})"
        )
        rows = ["(90, '', 'x  ', null)"]
        for number, sample in enumerate(SAMPLES):
            # Characters that the set lacks become question marks on input.
            text = f"convert('{sample}' using {name})"
            rows.append(f"({number}, {text}, {text}, {text})")
        sql.append(f"insert ignore into cs_{name} values {', '.join(rows)}")
    sql += [
        "create table lengths (id int primary key, c1 char(63), c2 char(64), c3 char(255), "
        "v1 varchar(63), v2 varchar(64), v3 varchar(2000), tt tinytext, tx text, mt mediumtext, "
        "lt longtext) character set utf8mb4",
        "insert into lengths values (1, repeat('é',63), repeat('日',64), repeat('𝄞',255), "
        "repeat('é',63), repeat('日',64), repeat('a',2000), repeat('x',255), repeat('y',700), "
        "repeat('z',300), repeat('w',300))",
        "insert into lengths values (2,'','','','','','','','','','')",
        "insert into lengths values (3,' a ','b  ','c',' d ','e  ','f','g','h','i','j')",
    ]
    return sql


def bytes_and_members() -> list[str]:
    """Return statements for binary types, ENUM and SET of all sizes."""
    many = ",".join(f"'m{index}'" for index in range(300))
    sets = {
        f"s{size}": ",".join(f"'{size}_{index}'" for index in range(size))
        for size in (1, 9, 17, 25, 33, 64)
    }
    columns = ", ".join(f"{name} set({members})" for name, members in sets.items())
    return [
        "create table bins (id int primary key, b4 binary(4), b255 binary(255), vb varbinary(10), "
        "vb2 varbinary(300), tb tinyblob, bl blob, mb mediumblob, lb longblob)",
        "insert into bins values (1, x'41000000', x'00', x'4100', repeat(x'ff',300), x'00', "
        "repeat(x'80',300), x'0102', x'')",
        "insert into bins values (2, x'', x'', x'', x'', x'', x'', x'', x'')",
        "insert into bins values (3, x'00000041', repeat(x'20',255), x'2020', x'20', x'2000', "
        "x'0020', x'ff', x'fe')",
        "create table members (id int primary key, e enum('a','b','it''s','c,d','я'), "
        f"e2 enum({many}), el enum('ö','ü') character set latin1, {columns})",
        "insert into members values (1,'a','m0','ö','1_0','9_8','17_16','25_24','33_32','64_63')",
        "insert into members values (2,'it''s','m299','ü','','9_0,9_8','17_0,17_9','25_1',"
        "'33_0,33_1','64_0,64_31,64_32,64_63')",
        "insert into members (id) values (3)",
        "insert ignore into members (id, e, e2) values (4, 'nothing', 'none')",
        "insert into members (id, e) values (5, 'я'), (6, 'c,d')",
    ]


def documents() -> list[str]:
    """Return statements for JSON of all kinds, MySQL only."""
    docs = [
        "'null'", "'true'", "'{}'", "'[]'", "'\"\"'", "'0'", "'-1'", "'32768'", "'-32769'",
        "'4294967296'", "'18446744073709551615'", "'1.0'", "'1e20'", "'1e-7'", "'1e15'", "'1e14'",
        "'123456789.125'", "'5e-324'", "'-0.0'", "'1.7976931348623157e308'", "'0.1'",
        "'3.141592653589793'", "'1e-14'", "'1e-15'", "'2.5e-15'", "'1e16'", "'0.30000000000000004'",
        "'{\"b\": [1, 2, {\"c\": null}], \"a\": \"x\", "
        "\"aa\": {\"é\": \"日本 \\\\u0001\\\\t\\\\\"\"}}'",
        "json_object('d', cast('2024-02-29' as date), 't', cast('-12:34:56.5' as time(6)), "
        "'dt', cast('2024-02-29 01:02:03.000004' as datetime(6)), "
        "'n', cast(-12.340 as decimal(9,3)), "
        "'b', x'00ff10', 'big', cast(123456789012345678901234567890.12 as decimal(65,30)))",
        "json_array(repeat('long ', 60), repeat('é', 100))",
        "cast(concat('[', repeat('{\"k\": [1, 2.5, \"s\"]}, ', 150), '1]') as json)",
        "cast(concat('[\"', repeat('0123456789', 7000), '\", 70000, -70000, 3]') as json)",
    ]  # fmt: skip
    sql = ["create table docs (id int primary key, j json)"]
    sql += [f"insert into docs values ({number}, {doc})" for number, doc in enumerate(docs, 1)]
    sql += [
        "insert into docs values (100, null)",
        "update docs set j = json_set(j, '$.b[1]', 'changed') where id = 28",
        "create table part (id int primary key, j json, other int, k json)",
        'insert into part values (1, \'{"a": 1, "b": [1, 2, 3], "long": '
        '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}\', 0, \'{"k": "0123456789012345"}\')',
        "set binlog_row_value_options = 'PARTIAL_JSON'",
        "update part set j = json_set(j, '$.a', 2)",
        "update part set j = json_remove(j, '$.b[0]'), other = 1",
        "update part set j = json_replace(j, '$.long', 'short'), k = json_set(k, '$.k', 'v')",
        "update part set j = json_set(j, '$.\"two words\"', cast('[1]' as json), '$.b[5]', 9)",
        "update part set other = 2",
        "update part set j = json_array_insert(j, '$.b[0]', 1.5)",
        "set binlog_row_value_options = ''",
        "update part set j = json_set(j, '$.a', 'whole')",
    ]
    return sql


def shapes() -> list[str]:
    """Return statements for geometry."""
    made = [
        "point(1.5, -2)", "linestring(point(0,0), point(1,1))",
        "st_geomfromtext('polygon((0 0,4 0,4 4,0 4,0 0))')",
        "st_geomfromtext('multipoint(1 1, 2 2)')",
        "st_geomfromtext('geometrycollection(point(1 2), linestring(0 0, 1 1))')",
        "st_geomfromtext('point(10 20)', 4326)", "null",
    ]  # fmt: skip
    sql = ["create table geo (id int primary key, g geometry, v varchar(9), p point)"]
    for number, one in enumerate(made, 1):
        sql.append(f"insert into geo values ({number}, {one}, 'x', null)")
    sql.append("update geo set p = point(7, 8) where id < 3")
    return sql


def images(server: Server) -> list[str]:
    """Return statements for row images of all kinds, keys that change, tables without a key."""
    sql = [
        "create table img (id int primary key, a int default 5, b text, c varchar(20), d blob, "
        "n int not null)",
        "create table nokey (a int, b varchar(10))",
        "create table twokey (a int, b varchar(10) character set latin1, c int, v text, "
        "primary key (b, a))",
    ]
    modes = ["FULL", "MINIMAL", "NOBLOB"]
    if server.is_mariadb and server.number >= (11, 4):
        modes.append("FULL_NODUP")
    for number, mode in enumerate(modes):
        first = number * 10
        sql += [
            f"set session binlog_row_image = '{mode}'",
            f"insert into img values ({first + 1},1,'text','c1',x'01',1), "
            f"({first + 2},2,'other','c2',x'02',2), ({first + 3},null,null,null,null,3)",
            f"update img set a = a + 1 where id between {first} and {first + 9}",
            f"update img set b = 'new text' where id = {first + 1}",
            f"update img set id = id + 5, c = null where id = {first + 2}",
            f"delete from img where id = {first + 3}",
            "insert into nokey values (1, 'x'), (1, 'x'), (2, null)",
            "update nokey set b = 'y' where a = 1 limit 1",
            "delete from nokey where a = 2",
            f"insert into twokey values ({first}, 'ö', 1, 'v'), ({first + 1}, 'ü', 2, 'w')",
            f"update twokey set c = 9 where a = {first}",
            f"update twokey set b = 'ß' where a = {first + 1}",
        ]
    sql.append("set session binlog_row_image = 'FULL'")
    return sql


def transactions(server: Server) -> list[str]:
    """Return statements with savepoints, rollbacks, XA, DDL and non-transactional engines."""
    sql = [
        "create table acc (id int primary key, n int)",
        "create table mem (id int primary key, n int) engine=MyISAM",
        "begin", "insert into acc values (1, 1)", "savepoint s1", "insert into acc values (2, 2)",
        "rollback to s1", "insert into acc values (3, 3)", "insert into nokey values (7,'s')",
        "commit",
        "begin", "insert into acc values (4, 4)", "rollback",
        "insert into mem values (1, 1), (2, 2)", "update mem set n = 5 where id = 1",
        "xa start 'one','b',3", "insert into acc values (10, 10)", "xa end 'one','b',3",
        "xa commit 'one','b',3 one phase",
        "xa start 'two'", "insert into acc values (11, 11)", "xa end 'two'", "xa prepare 'two'",
        "xa commit 'two'",
        "xa start 'three'", "insert into acc values (12, 12)", "xa end 'three'",
        "xa prepare 'three'", "xa rollback 'three'",
        "create table gone (id int primary key, v varchar(5))", "insert into gone values (1, 'a')",
        "truncate gone", "insert into gone values (2, 'b')",
        "alter table gone add column w int default 4 first", "insert into gone values (5, 3, 'c')",
        "alter table gone rename column v to renamed", "insert into gone values (6, 4, 'd')",
        "rename table gone to went", "insert into went values (7, 5, 'e')",
        "update acc, nokey set acc.n = 100, nokey.b = 'multi' where acc.id = 3 and nokey.a = 7",
        "analyze table acc",
    ]  # fmt: skip
    if server.is_mariadb or server.number >= (8, 0, 21):
        sql += ["create table copied as select * from acc"]
    return sql


def maria(server: Server) -> list[str]:
    """Return statements for features that only MariaDB has."""
    sql = [
        "create table own (id int primary key, u uuid, i6 inet6, j json, "
        "cv varchar(200) compressed, ct text compressed, cb blob compressed, "
        "cl varchar(3000) compressed character set latin1)",
        "insert into own values (1, '123e4567-e89b-12d3-a456-426655440000', '2001:db8::ff00:42', "
        "'{\"a\" :1}', 'short', repeat('text ', 100), repeat(x'00ff', 200), repeat('ö', 3000))",
        "insert into own values (2, '00000000-0000-0000-0000-000000000000', '::', '[]', '', '', "
        "x'', '')",
        "insert into own values (3, 'ffffffff-ffff-4fff-8fff-ffffffff0000', '::ffff:1.2.3.4', "
        "null, repeat('z', 200), 'x', x'01', 'y'), (4, null, '1::', null, null, null, null, null)",
        "insert into own (id, i6) values (5, 'fe80::1'), (6, '::1.2.3.4'), (7, '1:0:0:2::3')",
    ]
    if server.number >= (10, 10):
        sql += [
            "create table four (id int primary key, i4 inet4)",
            "insert into four values (1, '192.168.1.0'), (2, '0.0.0.0'), (3, null)",
        ]
    sql += ["set global mysql56_temporal_format = off"]
    columns = ["id int primary key"]
    for digits in range(7):
        columns += [f"t{digits} time({digits})", f"dt{digits} datetime({digits})"]
        columns += [f"ts{digits} timestamp({digits}) null"]
    sql += [f"create table oldtimes ({', '.join(columns)})", "set sql_mode=''"]
    for number, (time, moment, stamp) in enumerate(
        (
            ("12:34:56.789123", "2024-02-29 12:34:56.789123", "2024-02-29 12:34:56.789123"),
            ("-838:59:59", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
            ("-00:00:00.000001", "9999-12-31 23:59:59", "2038-01-19 03:14:07"),
            ("838:59:58.5", "1000-01-01 00:00:00.000001", "1970-01-01 00:00:01"),
        ),
        1,
    ):
        values = [str(number)] + [f"'{time}', '{moment}', '{stamp}'"] * 7
        sql.append(f"insert into oldtimes values ({', '.join(values)})")
    sql += [
        "set sql_mode=default",
        "set global mysql56_temporal_format = on",
        "set global log_bin_compress = on",
        "set global log_bin_compress_min_len = 10",
        "create table packed (id int primary key, t text)",
        "insert into packed values (1, repeat('packed ', 50)), (2, repeat('b', 300))",
        "update packed set t = concat(t, '!')",
        "delete from packed where id = 2",
        "alter table packed comment 'a comment that is long enough to be compressed as well'",
        "set global log_bin_compress = off",
    ]
    return sql


def newer_mysql() -> list[str]:
    """Return statements for compressed transactions, tagged ids, hidden columns."""
    uuid = "11111111-2222-3333-4444-555555555555"
    return [
        "create table zipped (id int primary key, t text, j json)",
        "set session binlog_transaction_compression = on",
        "begin",
        "insert into zipped values (1, repeat('zip ', 100), '{\"a\": 1}')",
        "insert into zipped values (2, repeat('zap ', 100), '[1, 2, 3]'), (3, null, null)",
        "update zipped set t = 'short' where id = 1",
        "insert into acc values (50, 50)",
        "commit",
        "set session binlog_transaction_compression = off",
        f"set gtid_next = '{uuid}:some_tag:7'",
        "insert into acc values (60, 60)",
        f"set gtid_next = '{uuid}:5'",
        "insert into acc values (61, 61)",
        "set gtid_next = 'automatic'",
        "create table hidden (id int primary key, h int invisible default 3, v int)",
        "insert into hidden (id, v) values (1, 1)",
        "insert into hidden (id, h, v) values (2, 2, 2)",
    ]


def bare(server: Server) -> list[str]:
    """Return statements that write rows again without names, signs, members, checksums in the
    binlog.
    """
    tables = "ints nums times bins members lengths img acc mem geo cs_latin1 cs_gbk cs_utf8mb4"
    tables += " own four oldtimes packed" if server.is_mariadb else " docs part"
    least = "NO_LOG" if server.is_mariadb else "MINIMAL"
    sql = [f"set global binlog_row_metadata = {least}", "set global binlog_checksum = NONE"]
    sql += [f"update {table} set id = id + 100" for table in tables.split()]
    sql += ["update nokey set b = 'bare'", "set global binlog_checksum = CRC32"]
    return [*sql, "set global binlog_row_metadata = FULL"]


# --- the server's output


EXPRESSIONS = {
    "float": "cast({0} + 0e0 as char)",
    "double": "cast({0} + 0e0 as char)",
    "bit": "cast({0} + 0 as char)",
    "json": "convert(cast({0} as char) using utf8mb4)",
}
BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
SHAPES = {"geometry", "point"}
TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}


def describe(server: Server, table: str) -> list[dict[str, str]]:
    """Return the columns in order, as the catalogue has them."""
    lines = server.run(
        "select column_name, data_type, hex(column_type), is_nullable, "
        "coalesce(character_set_name, ''), column_key from information_schema.columns "
        f"where table_schema = 'rec' and table_name = '{table}' order by ordinal_position"
    )
    columns = []
    for line in lines.splitlines():
        name, kind, full, nullable, charset, key = line.split("\t")
        columns.append(
            {
                "name": name,
                "kind": kind.lower(),
                "type": bytes.fromhex(full).decode(),
                "nullable": nullable,
                "charset": charset,
                "key": key,
            }
        )
    return columns


def select(server: Server, table: str, columns: list[dict[str, str]]) -> list[list[str | None]]:
    """Return all rows; text as text, bytes in hexadecimal digits."""
    parts = []
    for column in columns:
        name = f"`{column['name']}`"
        if column["kind"] in BYTES | SHAPES:
            parts.append(f"hex({name})")
        elif column["kind"] in TEXTS:
            parts.append(f"hex(convert({name} using utf8mb4))")
        else:
            form = EXPRESSIONS.get(column["kind"], "cast({0} as char)").format(name)
            parts.append(f"hex({form})")
    out = server.run(f"set time_zone='+00:00'; select {', '.join(parts)} from rec.`{table}`")
    rows: list[list[str | None]] = []
    for line in out.splitlines():
        row: list[str | None] = []
        for value, column in zip(line.split("\t"), columns, strict=True):
            if value == "NULL":
                row.append(None)
            elif column["kind"] in BYTES | SHAPES:
                row.append(value)
            else:
                row.append(bytes.fromhex(value).decode())
        rows.append(row)
    return rows


def main() -> None:
    """Run all scenarios and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--logs", type=Path, required=True, help="folder of the binlog files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "data" / "binlog")
    flags = parser.parse_args()
    version = Server(socket=flags.socket, version="").run("select version()").strip()
    server = Server(socket=flags.socket, version=version)
    server.run("drop database if exists rec")
    newer = not server.is_mariadb and server.number >= (8, 2)
    server.run("reset binary logs and gtids" if newer else "reset master")
    setup = ["set time_zone='+00:00'", "create database rec character set utf8mb4", "use rec"]
    first = numbers() + times() + bytes_and_members() + images(server)
    second = shapes() + transactions(server)
    second += maria(server) if server.is_mariadb else documents()
    if newer:
        second += newer_mysql()
    if not server.is_mariadb:
        setup.append("set binlog_rows_query_log_events = on")
    statements = [*setup, *first, "flush binary logs", *second, "flush binary logs"]
    statements += ["set sql_mode='ALLOW_INVALID_DATES'", *texts(server), *bare(server)]
    server.run(";\n".join(statements) + ";\n")
    flags.out.mkdir(parents=True, exist_ok=True)
    files = sorted(flags.logs.glob("*.[0-9][0-9][0-9][0-9][0-9][0-9]"))
    server.run("flush binary logs")
    for number, path in enumerate(files[:-1], 1):  # the last one is empty
        packed = lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        (flags.out / f"{flags.name}.{number:06d}.binlog.xz").write_bytes(packed)
    tables = server.run(
        "select table_name from information_schema.tables where table_schema = 'rec' order by 1"
    ).split()
    with lzma.open(flags.out / f"{flags.name}.jsonl.xz", "wt", encoding="utf-8") as file:
        for table in tables:
            columns = describe(server, table)
            file.write(json.dumps({"table": table, "columns": columns}) + "\n")
            for row in select(server, table, columns):
                file.write(json.dumps({"row": row}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
