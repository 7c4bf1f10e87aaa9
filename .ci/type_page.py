"""Write docs/types.md from the table of types: `make type-page`."""

from pathlib import Path

from penstock.codec.mysql.types import neutral_type
from penstock.codec.oracle.types import neutral_type as oracle_neutral_type
from penstock.codec.sqlserver.types import neutral_type as sqlserver_neutral_type
from penstock.codec.types import LOSSES, Engine, Mapping, Server, map_column
from penstock.codec.types.mysql_text import by_bytes
from penstock.codec.types.source_type import builtin_types
from penstock.codec.types.to_sqlserver import COLLATION
from penstock.model import ColumnDefinition

ROOT = Path(__file__).resolve().parents[1]
SERVERS = {
    Engine.POSTGRESQL: Server(engine=Engine.POSTGRESQL, version=(18,)),
    Engine.MYSQL: Server(engine=Engine.MYSQL, version=(8, 4, 0)),
    Engine.MARIADB: Server(engine=Engine.MARIADB, version=(11, 4, 0)),
    Engine.SQLSERVER: Server(engine=Engine.SQLSERVER, version=(16,)),
    Engine.ORACLE: Server(engine=Engine.ORACLE, version=(19,)),
    Engine.IGNITE: Server(engine=Engine.IGNITE, version=(2,)),
}
# Both formats have the same types; the page has them once.
LAKE = Server(engine=Engine.DELTA, version=(4, 4, 0))
LAKES = "Delta Lake and Iceberg"
# Spelling of types that are not one word; the first one stands for the name.
SPELLINGS: dict[Engine, dict[str, tuple[str, ...]]] = {
    Engine.POSTGRESQL: {
        "numeric": ("numeric(12,2)", "numeric"),
        "varchar": ("character varying(100)",),
        "char": ("character(10)",),
        "bit": ("bit(8)",),
        "varbit": ("bit varying(8)",),
        "time": ("time(3) without time zone",),
        "timetz": ("time with time zone",),
        "timestamp": ("timestamp(3) without time zone",),
        "timestamptz": ("timestamp with time zone",),
    },
    Engine.MYSQL: {
        "tinyint": ("tinyint", "tinyint unsigned"),
        "smallint": ("smallint", "smallint unsigned"),
        "mediumint": ("mediumint", "mediumint unsigned"),
        "int": ("int", "int unsigned"),
        "bigint": ("bigint", "bigint unsigned"),
        "decimal": ("decimal(12,2)",),
        "bit": ("bit(8)",),
        "time": ("time(3)",),
        "datetime": ("datetime(3)",),
        "timestamp": ("timestamp(3)",),
        "char": ("char(10)",),
        "varchar": ("varchar(100)",),
        "binary": ("binary(10)",),
        "varbinary": ("varbinary(100)",),
        "enum": ("enum('a','b')",),
        "set": ("set('a','b')",),
    },
    Engine.SQLSERVER: {
        "decimal": ("decimal(12,2)", "decimal(38,38)"),
        "char": ("char(10)",),
        "varchar": ("varchar(100)", "varchar(max)"),
        "nchar": ("nchar(10)",),
        "nvarchar": ("nvarchar(100)", "nvarchar(max)"),
        "binary": ("binary(10)",),
        "varbinary": ("varbinary(100)", "varbinary(max)"),
        "time": ("time(3)", "time(7)"),
        "datetime2": ("datetime2(3)", "datetime2(7)"),
        "datetimeoffset": ("datetimeoffset(3)", "datetimeoffset(7)"),
    },
    Engine.ORACLE: {
        "number": (
            "NUMBER(4)",
            "NUMBER(9)",
            "NUMBER(18)",
            "NUMBER(12,2)",
            "NUMBER(3,5)",
            "NUMBER(5,-2)",
            "NUMBER(*,0)",
            "NUMBER",
        ),
        "float": ("FLOAT(126)",),
        "char": ("CHAR(10)",),
        "varchar2": ("VARCHAR2(100)",),
        "nchar": ("NCHAR(10)",),
        "nvarchar2": ("NVARCHAR2(100)",),
        "raw": ("RAW(100)",),
        "timestamp": ("TIMESTAMP(6)", "TIMESTAMP(9)"),
        "timestamptz": ("TIMESTAMP(6) WITH TIME ZONE", "TIMESTAMP(9) WITH TIME ZONE"),
        "timestamp with local time zone": ("TIMESTAMP(6) WITH LOCAL TIME ZONE",),
        "interval year to month": ("INTERVAL YEAR(2) TO MONTH",),
        "interval day to second": ("INTERVAL DAY(2) TO SECOND(6)",),
    },
    Engine.IGNITE: {
        "decimal": ("decimal(12,2)", "decimal"),
        "varchar": ("varchar(100)", "varchar"),
    },
}
SPELLINGS[Engine.MARIADB] = SPELLINGS[Engine.MYSQL] | {
    "decimal": ("decimal(12,2)", "decimal(65,38)")
}
MORE = {Engine.POSTGRESQL: ("any_type[]", "an enum", "a composite type", "a type of an extension")}
BY_BYTES = {by_bytes(server).sql for server in SERVERS.values() if server.engine.is_mysql} | {
    COLLATION
}
HEAD = """\
# Types across engines

Between servers of one engine every column keeps its type. Between engines a column gets the type
below. A type without a counterpart in the target is stored as the text that the source prints,
which is exact. `penstock plan shop.toml` shows it for your own tables before anything runs.
`make type-page` writes this page from the table in `penstock.codec.types`, and the tests try every
row of it on real servers, with the values at the edges of each type. The rows of SQL Server are
tried with Microsoft's driver on penstock's own server of its protocol: no SQL Server was run. The
rows of Oracle are rules alone: no values of an Oracle server were loaded.

## Possible losses, and your choices

Nothing is lost unless you choose it. If the target's type cannot hold every value, the plan
names the loss, and the pipeline does not start before you have chosen what to do:

```toml
[target.types]
"*" = "error"                              # every loss: stop before the value is written
"zero dates" = "null"                      # this loss, in all columns
"datetime zero dates" = "text"             # in all columns of a type
"shop.orders.placed zero dates" = "error"  # in one column
```

The most specific entry counts. A misspelt key is refused, with the nearest valid one. A load into a
lake starts without choices and stops at the first value that a column cannot hold.

"""
BETWEEN = """\

## Names

Names are always quoted, so reserved words can be used. A schema of PostgreSQL is a database of
MySQL and MariaDB, and a schema of SQL Server; `[target.map]` gives it another name. PostgreSQL
allows 63 bytes in a name, MySQL and MariaDB 64 characters, SQL Server 128, a lake 200 bytes. A
longer name is refused, or shortened with `"long names" = "shorten"`: it becomes the name's
beginning and eight digits of a hash of the whole name, the same on every run.
Two tables or columns that would have the same name in the target are refused, with their names:
names of columns that differ only in case are equal in MySQL, MariaDB, SQL Server and lakes, and so
are names of tables of SQL Server, and of MySQL and MariaDB if `lower_case_table_names` is not 0.

## Keys and rows

An index of MySQL or MariaDB holds 3,072 bytes, one of PostgreSQL 2,704, one of SQL Server 900. A
text column in a key that has no length, or a greater one, becomes a `varchar` of the length that
fits (`long keys`); a longer value is refused, never cut. A row of MySQL or MariaDB holds 65,535
bytes in addition to blobs and long texts: if the columns need more, the longest `varchar` columns
become `longtext`.

Text from PostgreSQL is compared by its bytes in MySQL and MariaDB, as it is there: in utf8mb4,
under a collation that ends in `_bin` (`by bytes` below). MySQL before 8.0.17 has no such collation
in which blanks at the end count (`blanks in keys`), and SQL Server has none. Between MySQL and
MariaDB a collation that the target does not have is replaced by one that compares bytes.

## When two values are equal

Two values are equal if the servers compute equal texts from them. The last column
below describes this text if it is not the type's usual one. The sign of a zero is not compared, nor
are blanks at the end of PostgreSQL's `character(n)`, which have no meaning.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, _losses(), BETWEEN]
    for source in SERVERS.values():
        for target in SERVERS.values():
            if source is not target and target.engine.is_target:
                parts.append(_pair(source, target))
        parts.append(_pair(source, LAKE))
    return "\n".join(parts).rstrip() + "\n"


def _losses() -> str:
    lines = ["| loss | which values | choices |", "|---|---|---|"]
    for loss in LOSSES.values():
        choices = "; ".join(f"`{name}`: {meaning}" for name, meaning in loss.choices.items())
        lines.append(f"| {loss.name} | {loss.what} | {choices} |")
    return "\n".join(lines) + "\n"


def _examples(engine: Engine) -> list[str]:
    spelled = SPELLINGS[engine]
    names = sorted(builtin_types(engine), key=_order)
    return [text for name in names for text in spelled.get(name, (name,))] + list(
        MORE.get(engine, ())
    )


_RANKS = ("bool", "tinyint", "smallint", "mediumint", "int", "integer", "bigint", "oid", "xid",
          "real", "float", "double", "decimal", "numeric", "bit", "year", "date", "time",
          "datetime", "timestamp", "char", "varchar", "text", "bytea", "binary")  # fmt: skip


def _order(name: str) -> tuple[int, str]:
    rank = next((n for n, prefix in enumerate(_RANKS) if name == prefix), len(_RANKS))
    return rank, name


def _mapping(text: str, source: Server, target: Server) -> Mapping:
    neutral = neutral_type(text) if source.engine.is_mysql else "string"
    if source.engine is Engine.SQLSERVER:
        neutral = sqlserver_neutral_type(text)
    if source.engine is Engine.ORACLE:
        text = text if text.isupper() else text.upper()
        neutral = oracle_neutral_type(text)
    column = ColumnDefinition(name="v", type_text=text, type_oid=0, typmod=-1, neutral=neutral)
    return map_column(column, source, target)


def _pair(source: Server, target: Server) -> str:
    """Return the section of one pair of engines; types with the same translation share a line."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for text in _examples(source.engine):
        shown = _mapping(text, source, target)
        losses = ", ".join(loss.name for loss in shown.losses)
        held = f"`{shown.target_type}`"
        for collation in BY_BYTES:
            held = held.replace(f" {collation}`", "` by bytes")
        fate = (held, losses, shown.note, shown.equal.name)
        if shown.refused:
            fate = ("refused", "", shown.refused, "")
        elif shown.target_type == text:
            fate = ("the same", losses, shown.note, "")
        rows.setdefault(fate, []).append(
            f"`{text}`" if not text.startswith(("a ", "an ")) else text
        )
    label = LAKES if target.engine.is_lake else target.engine.label
    version = f"As of {source}." if target.engine.is_lake else f"As of {source} and {target}."
    lines = [
        f"## {source.engine.label} to {label}",
        "",
        version,
        "",
        f"| {source.engine.label} | {label} | may be lost | note | compared as |",
        "|---|---|---|---|---|",
    ]
    for (held, losses, note, compared), types in rows.items():
        lines.append(f"| {', '.join(types)} | {held} | {losses} | {note} | {compared} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    (ROOT / "docs" / "types.md").write_text(page())


if __name__ == "__main__":
    main()
