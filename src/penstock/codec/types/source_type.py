"""Parse column types of sources: the spelling of PostgreSQL, MySQL, SQL Server, Oracle and Ignite.

An `Engine` with its version, a `Server`, is the side of a pipeline that has a type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from penstock.codec.mysql.types import parse_type
from penstock.codec.oracle.types import BUILTIN_NAMES as ORACLE_BUILTIN
from penstock.codec.oracle.types import parse_type as parse_oracle_type
from penstock.codec.sqlserver.types import BUILTIN as SQLSERVER_BUILTIN
from penstock.codec.sqlserver.types import parse_type as parse_sqlserver_type
from penstock.model import Column, ColumnDefinition


class Engine(StrEnum):
    """Engines whose types are known. `ports.registry.types_at` finds the one that a URL names."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"
    SQLSERVER = "sqlserver"
    ORACLE = "oracle"
    IGNITE = "ignite"
    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def label(self) -> str:
        """Name for people."""
        return _LABELS[self]

    @property
    def is_mysql(self) -> bool:
        """Return whether the engine is MySQL or MariaDB."""
        return self in (Engine.MYSQL, Engine.MARIADB)

    @property
    def is_lake(self) -> bool:
        """Return whether tables are files in a lake."""
        return self in (Engine.DELTA, Engine.ICEBERG)

    @property
    def is_target(self) -> bool:
        """Return whether it can be a target."""
        return self is not Engine.IGNITE


_LABELS = {
    Engine.POSTGRESQL: "PostgreSQL",
    Engine.MYSQL: "MySQL",
    Engine.MARIADB: "MariaDB",
    Engine.SQLSERVER: "SQL Server",
    Engine.ORACLE: "Oracle",
    Engine.IGNITE: "Apache Ignite",
    Engine.DELTA: "Delta Lake",
    Engine.ICEBERG: "Apache Iceberg",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An engine and its version: (18,) for PostgreSQL, (8, 0, 15), (10, 11, 19)."""

    engine: Engine
    version: tuple[int, ...]

    @classmethod
    def from_log(cls, engine: str) -> Self:
        """Return a server of an engine as a log names it, of no version; empty is PostgreSQL."""
        return cls(engine=Engine(engine or Engine.POSTGRESQL), version=())

    def mysql(self, *version: int) -> bool:
        """Return whether it is MySQL of this version or newer."""
        return self.engine is Engine.MYSQL and self.version >= version

    def mariadb(self, *version: int) -> bool:
        """Return whether it is MariaDB of this version or newer."""
        return self.engine is Engine.MARIADB and self.version >= version

    def __str__(self) -> str:
        """Return text like `MySQL 8.0.15`."""
        return f"{self.engine.label} {'.'.join(map(str, self.version))}"


_POSTGRES = re.compile(
    r"(?P<base>[^(\[]+?)\s*(?:\((?P<inside>[^()]*)\))?\s*(?P<zone>with(?:out)? time zone)?"
    r"(?P<array>(?:\[\])+)?",
    re.DOTALL,
)
# What format_type() spells out, by the name that everybody writes; and what is one word there.
ALIASES = {
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "character varying": "varchar",
    "character": "char",
    "bpchar": "char",
    "bit varying": "varbit",
    "double precision": "double precision",
}
POSTGRES_BUILTIN = frozenset(
    (
        "boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric", "money",
        "oid", "xid", "cid", "xid8", "text", "varchar", "char", "name", '"char"', "bytea", "date",
        "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "json", "jsonb", "xml",
        "jsonpath", "bit", "varbit", "inet", "cidr", "macaddr", "macaddr8", "point", "line", "lseg",
        "box", "path", "polygon", "circle", "tsvector", "tsquery", "pg_lsn", "pg_snapshot",
        "txid_snapshot", "tid", "int4range", "int8range", "numrange", "tsrange", "tstzrange",
        "daterange", "int4multirange", "int8multirange", "nummultirange", "tsmultirange",
        "tstzmultirange", "datemultirange", "int2vector", "oidvector", "refcursor", "regclass",
        "regcollation", "regconfig", "regdatabase", "regdictionary", "regnamespace", "regoper",
        "regoperator", "regproc", "regprocedure", "regrole", "regtype",
    )
)  # fmt: skip
MYSQL_BUILTIN = frozenset(
    (
        "tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "bit",
        "year", "date", "time", "datetime", "timestamp", "char", "varchar", "tinytext", "text",
        "mediumtext", "longtext", "binary", "varbinary", "tinyblob", "blob", "mediumblob",
        "longblob", "enum", "set", "json", "geometry", "point", "linestring", "polygon",
        "multipoint", "multilinestring", "multipolygon", "geometrycollection", "vector",
    )
)  # fmt: skip
IGNITE_BUILTIN = frozenset(
    (
        "boolean", "tinyint", "smallint", "int", "bigint", "real", "double", "decimal", "varchar",
        "uuid", "binary", "date", "time", "timestamp", "enum", "object", "other",
    )
)  # fmt: skip
MARIADB_ONLY = frozenset(("uuid", "inet4", "inet6"))
GEOMETRIES = frozenset(
    (
        "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
        "multipolygon", "geometrycollection",
    )
)  # fmt: skip


def builtin_types(engine: Engine) -> frozenset[str]:
    """Return the names of an engine's own types, as `SourceType.base` has them."""
    if engine is Engine.POSTGRESQL:
        return POSTGRES_BUILTIN
    if engine is Engine.IGNITE:
        return IGNITE_BUILTIN
    if engine is Engine.SQLSERVER:
        return SQLSERVER_BUILTIN
    if engine is Engine.ORACLE:
        return ORACLE_BUILTIN
    return MYSQL_BUILTIN | (MARIADB_ONLY if engine is Engine.MARIADB else frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """A column's type at the source.

    Attributes:
        text: as the source prints it.
        base: name alone, `timestamptz` for `timestamp with time zone`; for a domain the name of its
            base type.
        arguments: numbers in parentheses.
        neutral: neutral type in the log.
        is_array: whether it is an array of `base` (PostgreSQL).
        charset, collation: those of MySQL's text, empty if unknown.
        is_compressed: whether it is MariaDB's COMPRESSED.
    """

    engine: Engine
    text: str
    base: str
    arguments: tuple[int, ...] = ()
    neutral: str = "string"
    unsigned: bool = False
    zerofill: bool = False
    is_compressed: bool = False
    is_array: bool = False
    is_enum: bool = False
    charset: str = ""
    collation: str = ""

    @classmethod
    def of(cls, column: ColumnDefinition | Column, engine: Engine) -> Self:
        """Return the type of a column from a catalogue or the log."""
        if isinstance(column, Column):
            printed, charset, collation = column.source_type, "", ""
        else:
            printed, charset = column.type_text, column.charset
            collation = column.collation or ""
        if engine is Engine.POSTGRESQL:
            return cls.postgres(printed, column.neutral, base_type=column.base_type)
        if engine is Engine.SQLSERVER:
            text = column.base_type or printed
            return cls.sqlserver(text, column.neutral, collation=collation)
        if engine is Engine.ORACLE:
            return cls.oracle(column.base_type or printed, column.neutral)
        if engine is Engine.IGNITE:
            return replace(cls.postgres(printed, column.neutral), engine=engine)
        kind = cls.mysql(printed, column.neutral, engine, charset=charset, collation=collation)
        stored = parse_type(column.base_type or printed)
        return replace(kind, is_compressed=stored is not None and stored.compressed)

    @classmethod
    def postgres(cls, text: str, neutral: str, *, base_type: str = "") -> Self:
        """Return a type from the text of format_type(). base_type: the base type of a domain."""
        match = _POSTGRES.fullmatch(base_type or text)
        if match is None:
            return cls(engine=Engine.POSTGRESQL, text=text, base=text, neutral=neutral)
        words = f"{match['base'].strip()} {match['zone'] or ''}".strip()
        inside = match["inside"] or ""
        numbers = tuple(int(n) for n in re.findall(r"-?\d+", inside))
        base = ALIASES.get(words, words)
        if words.startswith("interval"):
            base = "interval"
        return cls(
            engine=Engine.POSTGRESQL,
            text=text,
            base=base,
            arguments=numbers,
            neutral=neutral,
            is_array=match["array"] is not None,
        )

    @classmethod
    def mysql(
        cls, text: str, neutral: str, engine: Engine, *, charset: str = "", collation: str = ""
    ) -> Self:
        """Return a type from the text in information_schema."""
        parsed = parse_type(text)
        if parsed is None:
            return cls(engine=engine, text=text, base=text.split("(")[0].lower(), neutral=neutral)
        return cls(
            engine=engine,
            text=text,
            base=parsed.base,
            arguments=parsed.arguments,
            neutral=neutral,
            unsigned=parsed.unsigned,
            zerofill="zerofill" in text.lower() and parsed.base not in ("enum", "set"),
            charset=charset,
            collation=collation,
        )

    @classmethod
    def sqlserver(cls, text: str, neutral: str, *, collation: str = "") -> Self:
        """Return a type from the text of T-SQL."""
        kind = parse_sqlserver_type(text)
        return cls(
            engine=Engine.SQLSERVER,
            text=kind.text,
            base=kind.base,
            arguments=kind.arguments,
            neutral=neutral,
            collation=collation,
        )

    @classmethod
    def oracle(cls, text: str, neutral: str) -> Self:
        """Return a type from the text of Oracle's SQL."""
        kind = parse_oracle_type(text)
        return cls(
            engine=Engine.ORACLE,
            text=kind.text,
            base=kind.name,
            arguments=kind.arguments,
            neutral=neutral,
        )

    @property
    def is_builtin(self) -> bool:
        """Return whether it is one of the engine's own types, and not an array."""
        return self.base in builtin_types(self.engine) and not self.is_array

    @property
    def length(self) -> int | None:
        """First number in parentheses; None if there is none."""
        return self.arguments[0] if self.arguments else None

    @property
    def is_short_year(self) -> bool:
        """Return whether it is MariaDB's YEAR(2), which holds a year and prints two digits."""
        return self.base == "year" and self.length == 2

    @property
    def decimal(self) -> tuple[int, int]:
        """Precision and scale of MySQL's DECIMAL."""
        precision, scale = (*(self.arguments or (10,)), 0)[:2]
        return precision, scale

    @property
    def fraction(self) -> int:
        """Digits after the second that a time may have."""
        if self.engine is Engine.POSTGRESQL:
            return 6 if not self.arguments else self.arguments[0]
        return self.arguments[0] if self.arguments else 0


# Conditions over a column of the source for values that some targets do not have.

# PostgreSQL.
STORED_NOT_A_NUMBER = "{}::text in ('NaN', 'Infinity', '-Infinity')"
STORED_OUT_OF_RANGE = {
    "date": "({} < date '0001-01-01' or {} >= date '10000-01-01')",
    "timestamp": "({} < timestamp '0001-01-01 00:00:00' or {} >= timestamp '10000-01-01 00:00:00')",
    "timestamptz": "({} < timestamp with time zone '0001-01-01 00:00:00+00'"
    " or {} >= timestamp with time zone '10000-01-01 00:00:00+00')",
}
# MySQL and MariaDB.
STORED_YEAR_ZERO = "left(cast({} as char), 4) = '0000'"
