"""Columns of MySQL and MariaDB with every attribute that changes the output of SHOW CREATE TABLE.

`harness.servers.mysql_types` has the types alone; here are their attributes: a column's definition
without its name, which is @v inside it, and SQL of its values. Tables have many columns each, as a
table takes a server longer than a column.
"""

from __future__ import annotations

from harness.servers.mysql_types import LOOSE_JSON, NUL_TEXTS, ZERO_DATES, values_for
from plugins.mysql import MySQLServer, database_of

_INTS = {"tinyint": 3, "smallint": 5, "mediumint": 7, "int": 10, "bigint": 19}
_TEXTS = ("char(9)", "varchar(9)", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("varbinary(99)", "tinyblob", "blob", "mediumblob", "longblob")
_WORDS = ["''", "'a'", "'Grüße'", "'a\\\\b'", "'x\\ty\\nz'"]
_COLUMNS_EACH = 20
_SINGLE = ("latin1", "latin2", "cp1251", "koi8r", "greek", "hebrew", "swe7", "ascii", "keybcs2")
_WIDE = ("utf8mb4", "utf8mb3", "ucs2", "utf16", "utf16le", "utf32", "gbk", "sjis", "big5", "ujis")
_GENERATED = {
    "int": "id * 2 - 5",
    "decimal(12,3)": "id / 8",
    "double": "id * 1e0 / 3",
    "varchar(20)": "concat('n', id)",
    "varchar(20) character set latin1": "concat('ü', id)",
    "date": "date '2024-02-28' + interval id day",
    "datetime(3)": "timestamp '2024-02-28 10:11:12.5' + interval id hour",
    "varbinary(9)": "char(id)",
    "bit(9)": "id",
    "json": "json_array(id, 'a')",
    "enum('x','y')": "if(id > 1, 'y', 'x')",
    "set('','x','y')": "'x,y'",
    "year": "2000 + id",
}


def _numbers() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for base, digits in _INTS.items():
        for width in (1, digits, digits + 3):
            found[f"{base}({width})"] = ["-7", "0", "127"]
        found[f"{base}(2) unsigned"] = ["0", "127"]
        found[f"{base} zerofill"] = ["7", "0", "127"]
        found[f"{base}({digits + 5}) unsigned zerofill"] = ["7", "0"]
    for base in ("float", "double"):
        for shape in ("(7,3)", "(10,5)", "(5,0)", "(30,20)"):
            found[f"{base}{shape}"] = ["1.125", "-0.1", "0", "null"]
        found[f"{base}(12,4) unsigned zerofill"] = ["1.5", "0.0001", "0"]
        found[f"{base} unsigned"] = ["1.5", "1e20", "0.1"]
        found[f"{base} zerofill"] = ["1.5", "1e20", "0.1"]
    for number in (1, 5, 24, 25, 53):
        found[f"float({number})"] = ["0.1", "16777217", "-1.5e-7"]
    for shape in ("(1,0)", "(5)", "(5,5)", "(30,29)", "(65,30) unsigned", "(65,0) zerofill"):
        found[f"decimal{shape}"] = ["0", "0.1"]
    found |= {f"decimal({n},2) unsigned zerofill": ["1.5", "0"] for n in (5, 38, 39, 65)}
    found |= {f"bit({n})": ["b'1'", "b'0'"] for n in (1, 7, 8, 33, 63)}
    return found | {
        "bool": ["true", "false", "-7"],
        "year(4)": ["0", "1970", "2069", "'05'", "2155"],
    }


def _texts() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for charset in _SINGLE:
        found[f"varchar(9) character set {charset}"] = ["''", "'abc'", "'a\\tb'", "null"]
    found["varchar(9) character set latin1 collate latin1_bin"] = ["'äö€'", "x'8081'"]
    found["varchar(9) character set cp1251 collate cp1251_bulgarian_ci"] = ["'Бл'"]
    found["varchar(9) character set swe7 collate swe7_bin"] = ["'Äö'"]
    for base in _TEXTS:
        found |= {f"{base} character set {charset}": _WORDS[:4] for charset in ("latin1", "gbk")}
        found[f"{base} binary"] = _WORDS
        # Bytes under another name.
        found[f"{base} character set binary"] = ["x'00ff41'", "''", "'a'"]
        found[f"{base} ascii"] = ["'a'", "''"]
    for charset in _WIDE:
        found[f"varchar(9) character set {charset}"] = ["'表'", "''", "'a'"]
        found[f"enum('a','表') character set {charset}"] = ["'a'", "'表'"]
        found[f"set('a','表') character set {charset}"] = ["'a'", "'a,表'", "''"]
    found |= {"national varchar(9)": _WORDS, "nchar(9)": _WORDS, "char byte": ["x'ff'"]}
    found |= {"binary(3)": ["x'41'", "x'410000'", "''"], "binary(0)": ["''"], "char(0)": ["''"]}
    return found


def _members() -> dict[str, list[str]]:
    many = ",".join(f"'m{n}'" for n in range(64))
    return {
        "enum('')": ["''", "null"],
        "enum('a','','b')": ["''", "'a'", "'b'", "1", "2"],
        "enum('1','0','2')": ["'1'", "1", "2", "3"],
        "enum('a ','b\\\\c','d\\'e','f,g','(h)')": ["1", "2", "3", "4", "5"],
        "enum('a','B') character set latin1 collate latin1_bin": ["'a'", "'B'"],
        "enum('ä','b') character set latin1": ["1", "2"],
        "enum('a','b') character set binary": ["1", "2", "null"],
        "set('a','b') character set binary": ["0", "1", "2", "3"],
        "set('ä','b') character set latin1": ["0", "1", "2", "3"],
        "set('','a','b')": [str(n) for n in range(8)],
        "set('a','','b')": [str(n) for n in range(8)],
        "set('a','b','')": [str(n) for n in range(8)],
        "set('')": ["0", "1"],
        "set('1','2','4')": ["0", "1", "4", "'4'", "7"],
        f"set({many})": ["0", "1", "9223372036854775808", "18446744073709551615"],
    }


def _times() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for digits in range(7):
        found[f"time({digits})"] = ["'-01:02:03.456789'", "'00:00:00'", "'-838:59:59'"]
        found[f"datetime({digits})"] = ["'2024-02-29 01:02:03.456789'", "'0000-00-00'"]
        found[f"timestamp({digits}) null"] = ["'2024-02-29 01:02:03.456789'", "'0000-00-00'"]
    return found | {
        "timestamp not null default current_timestamp on update current_timestamp": [
            "'2024-02-29 01:02:03'"
        ],
        "datetime(6) default now(6) on update now(6)": ["'2024-02-29 01:02:03.1'"],
        "date not null": ["'2024-02-29'"],
    }


def _mariadb() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {
        f"{base} compressed character set {charset}": ["''", "'a'", "repeat('ö', 9)"]
        for base in ("varchar(300)", *_TEXTS[2:])
        for charset in ("latin1", "utf8mb4", "ucs2")
    }
    found |= {f"{base} compressed": ["x''", "x'00ff41'"] for base in _BYTES}
    found |= {
        f"longtext{more} check (json_valid(@v))": ["'[1]'", '\'{"a": "b"}\'', "'1'"]
        for more in (
            "",
            " character set latin1",
            " character set utf8mb4 collate utf8mb4_general_ci",
            " compressed",
        )
    }
    return found | {
        "year(2)": ["99", "'05'", "2000", "1970", "2069", "1960", "2155"],
        "int invisible": ["5", "null"],
        "varchar(9) invisible default 'x'": ["'y'"],
        "int without system versioning": ["5"],
        "inet6": ["'::'", "'::1'", "'::ffff:1.2.3.4'"],
        "text check (@v <> 'b')": ["'a'"],
        "point ref_system_id=101": ["st_geomfromtext('point(1 2)')"],
    }


def _mysql() -> dict[str, list[str]]:
    return {
        "point srid 4326": ["st_geomfromtext('point(1 2)', 4326)"],
        "geometry not null srid 0": ["st_geomfromtext('point(1 2)')"],
        "int storage disk column_format dynamic": ["5"],
        "json not null": ["'[1, 2.50]'"],
        "varchar(20) character set utf8mb4 collate utf8mb4_0900_as_cs": _WORDS,
    }


def generated_columns() -> dict[str, list[str]]:
    """Return columns that the server computes: their values are `default`."""
    return {
        f"{base} generated always as ({expression}) {kept}": ["default", "default"]
        for base, expression in _GENERATED.items()
        for kept in ("virtual", "stored")
    }


def columns_for(*, is_mariadb: bool) -> dict[str, list[str]]:
    """Return every column that a server of this kind accepts, with its values."""
    found = dict(values_for(is_mariadb))
    for more in (ZERO_DATES, NUL_TEXTS, LOOSE_JSON if is_mariadb else {}):
        for name, values in more.items():
            found[name] = [*found[name], *values]
    own = _mariadb() if is_mariadb else _mysql()
    for more in (_numbers(), _texts(), _members(), _times(), generated_columns(), own):
        for name, values in more.items():
            found[name] = [*found.get(name, []), *values]
    return found


class ManyColumns:
    """Tables of a database that have these columns between them.

    Attributes:
        names: Definition of each (table, column).
    """

    def __init__(self, server: MySQLServer, url: str, columns: dict[str, list[str]]) -> None:
        """Create the tables, without rows."""
        self.server = server
        self.database = database_of(url)
        self.names: dict[tuple[str, str], str] = {}
        self._values: dict[str, list[list[str]]] = {}
        listed = list(columns.items())
        for start in range(0, len(listed), _COLUMNS_EACH):
            table, parts = f"t{start // _COLUMNS_EACH}", ["id int primary key"]
            for place, (column, values) in enumerate(listed[start : start + _COLUMNS_EACH]):
                self.names[table, f"v{place}"] = column
                self._values.setdefault(table, []).append(values)
                parts.append(f"v{place} {column.replace('@v', f'v{place}')}")
            server.execute(f"create table {table} ({', '.join(parts)})", self.database)

    def fill(self) -> None:
        """Insert each value at least once, and set each once more by an UPDATE."""
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("set sql_mode = 'ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION'")
            cursor.execute("set time_zone = '+00:00'")
            for table, columns in self._values.items():
                names = ", ".join(f"v{place}" for place in range(len(columns)))
                for number in range(max(map(len, columns))):
                    row = ", ".join(values[number % len(values)] for values in columns)
                    cursor.execute(f"insert into {table} (id, {names}) values ({number}, {row})")
                cursor.execute(f"update {table} set id = id + 100 order by id desc")
