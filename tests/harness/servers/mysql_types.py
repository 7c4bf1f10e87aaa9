"""Every type that a column of MySQL or MariaDB can have, with its edges as SQL."""

from __future__ import annotations

NINES = "9" * 65
FRACTION = "9" * 35 + "." + "9" * 30
VALUES: dict[str, list[str]] = {
    "tinyint": ["-128", "127", "0"],
    "tinyint unsigned": ["0", "255"],
    "tinyint(1)": ["-128", "1", "0"],
    "tinyint(3) unsigned zerofill": ["7"],
    "smallint": ["-32768", "32767"],
    "smallint unsigned": ["65535"],
    "mediumint": ["-8388608", "8388607"],
    "mediumint unsigned": ["16777215"],
    "int": ["-2147483648", "2147483647"],
    "int unsigned": ["4294967295"],
    "int(8) unsigned zerofill": ["42"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "bigint unsigned": ["18446744073709551615", "0"],
    "float": ["0.1", "-0.0", "16777217", "3.4028234e38", "-1.17549435e-38", "1e-45", "1e15"],
    "double": [
        "0.1", "-0.0e0", "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324",
        "123456789012345678", "1e21", "0.30000000000000004", "5.684341886080802e-14",
        "9007199254740993", "-4.5e-5", "1e22", "1e23", "8", "-0.5", "1.9999999999999998",
    ],
    "float(7,3)": ["1234.567"],
    "double(10,2)": ["12345678.91"],
    "decimal(10,0)": ["-9999999999"],
    "decimal(12,2)": ["0", "-1.5", "9999999999.99"],
    "decimal(38,30)": ["12345678." + "9" * 30],
    "decimal(65,0)": [NINES, "-" + NINES],
    "decimal(65,30)": [FRACTION, "0.1", "-0.000000000000000000000000000001"],
    "decimal(8,3) unsigned zerofill": ["1.5"],
    "bit": ["b'1'", "b'0'"],
    "bit(9)": ["b'010101010'"],
    "bit(64)": ["18446744073709551615", "9223372036854775808", "9223372036854775807", "0"],
    "year": ["0000", "1901", "2155"],
    "date": ["'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'0000-03-15'", "'1582-10-10'"],
    "time": ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'24:00:00'", "'23:59:59'"],
    "time(6)": ["'-00:00:00.000001'", "'-838:59:58.999999'", "'12:34:56.100000'"],
    "time(3)": ["'-01:00:00.5'"],
    "datetime": ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-03-15 01:02:03'"],
    "datetime(3)": ["'2024-02-29 12:34:56.120'", "'2024-02-29 12:34:50'"],
    "datetime(6)": ["'9999-12-31 23:59:59.999999'", "'0001-01-01 00:00:00.1'"],
    "timestamp": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"],
    "timestamp(6)": ["'2038-01-19 03:14:07.999999'", "'2000-01-01 00:00:00.1'"],
    "char(10)": ["''", "'abc'", "'ä表😀'", "'a\\tb'"],
    "char(0)": ["''"],
    "char(5) character set latin1": ["'äö€'"],
    "varchar(10)": ["''", "'abc  '", "'Größe 表 😀'", "'\\\\N'", "'\\n\\r'"],
    "varchar(10) character set latin1 collate latin1_german1_ci": ["'äß€'"],
    "varchar(10) character set utf16": ["'表😀'"],
    "varchar(10) character set sjis": ["'表'"],
    "tinytext": ["'x'"],
    "text": ["''", "repeat('ä', 20000)"],
    "mediumtext": ["repeat('x', 70000)"],
    "longtext": ["'quote '' and \\\\ back'"],
    "binary(4)": ["x'41000000'", "x'00000000'", "x'ff00ff20'"],
    "varbinary(10)": ["x''", "x'4100'", "x'00ff'"],
    "tinyblob": ["x'00'"],
    "blob": ["x'deadbeef'", "''"],
    "mediumblob": ["x'5c00'"],
    "longblob": ["repeat(x'ff00', 40000)"],
    "enum('a','it''s','b,c')": ["'a'", "'it''s'", "'b,c'"],
    "set('a','it''s','z')": ["''", "'a,z'", "'a,it''s,z'"],
    "json": [
        "'{\"b\": 1, \"aa\": [1, null, true], \"a\": \"\\\\u00e9\\\\n\"}'", "'1.0'", "'\"x\"'",
        "'null'", "'18446744073709551615'", "'1e100'", "'\"\\\\u0000\"'",
    ],
    "geometry": [
        "st_geomfromtext('point(1.5 -2)')", "st_geomfromtext('linestring(0 0,1 1)', 4326)",
    ],
    "point": ["st_geomfromtext('point(1 2)', 4326)"],
    "linestring": ["st_geomfromtext('linestring(0 0,1 1)')"],
    "polygon": ["st_geomfromtext('polygon((0 0,1 0,1 1,0 0))')"],
    "multipoint": ["st_geomfromtext('multipoint(0 0,1 1)')"],
    "multilinestring": ["st_geomfromtext('multilinestring((0 0,1 1))')"],
    "multipolygon": ["st_geomfromtext('multipolygon(((0 0,1 0,1 1,0 0)))')"],
    "geometrycollection": ["st_geomfromtext('geometrycollection(point(0 0),linestring(0 0,1 1))')"],
}  # fmt: skip
MARIADB_VALUES: dict[str, list[str]] = {
    "uuid": ["'00112233-4455-6677-8899-aabbccddeeff'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
    "inet4": ["'0.0.0.0'", "'255.1.2.3'"],
    "inet6": ["'::'", "'2001:db8::1'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'1::'"],
    "varchar(100) compressed": ["repeat('ab', 40)"],
    "blob compressed": ["repeat(x'00ff', 1000)"],
    "decimal(65,38)": ["0." + "1" * 38],
    "varchar(10) character set utf8mb4 collate utf8mb4_nopad_bin": ["'a '"],
}
# Values that PostgreSQL cannot hold.
ZERO_DATES: dict[str, list[str]] = {
    "date": ["'0000-00-00'", "'2024-00-10'", "'2024-02-31'", "'2023-02-29'"],
    "datetime(3)": ["'0000-00-00'", "'2024-10-00 01:02:03'", "'2024-04-31'"],
    "timestamp(6)": ["'0000-00-00'"],
}
NUL_TEXTS: dict[str, list[str]] = {
    "varchar(10)": ["'a\\0b'"],
    "text": ["'\\0'"],
    "char(10)": ["'\\0a'"],
}


def values_for(is_mariadb: bool) -> dict[str, list[str]]:
    """Return the values by type that a server holds, all of which other engines hold, too."""
    return VALUES | (MARIADB_VALUES if is_mariadb else {})


# Texts that only MariaDB accepts as JSON.
LOOSE_JSON = {"json": ["'1.'", "'\"\\\\x41\"'"]}
