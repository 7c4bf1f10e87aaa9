"""Comparison of tables on both sides: columns, key, NULLs allowed, and rows by neutral rules.

The source's type determines the kind of a value, and both servers are asked for its text; penstock
takes no part.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import psycopg

from harness.pipelines.ddl_types import ORACLE, POSTGRES, SQLSERVER

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a table.

    Attributes:
        types: of each column.
        key: columns of its primary key.
        nullable: columns that may be NULL.
        unsent: generated columns whose values the server's log lacks.
    """

    types: Mapping[str, str]
    key: frozenset[str]
    nullable: frozenset[str]
    unsent: frozenset[str] = frozenset()

    def without_unsent(self) -> Facts:
        """Return the facts that hold for a copy whose server does not compute these columns."""
        kept = {name: kind for name, kind in self.types.items() if name not in self.unsent}
        key = self.key if self.key <= kept.keys() else frozenset[str]()
        return replace(self, types=kept, nullable=self.nullable - self.unsent, key=key)


class Side(Protocol):
    """A database as a test sees it."""

    kind: str

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        ...

    def tables(self, schema: str) -> list[str]:
        """Return the names of the tables of a schema."""
        ...

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts about a table; None if there is none."""
        ...

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows as text. columns: kind of value by column."""
        ...


class PostgresSide:
    """A PostgreSQL database."""

    kind = POSTGRES

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        for setting in ("timezone = 'UTC'", "extra_float_digits = 3", "datestyle = 'ISO'"):
            self.run(f"set {setting}")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        cursor = self.connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    def tables(self, schema: str) -> list[str]:
        """Return the names of the tables of a schema."""
        text = f"select tablename from pg_tables where schemaname = '{schema}' order by 1"
        return [row[0] for row in self.run(text)]

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts about a table; None if there is none."""
        name = f"'{schema}' and c.relname = '{_literal(table)}'"
        rows = self.run(
            f"""
            select a.attname, format_type(a.atttypid, a.atttypmod), not a.attnotnull,
                   coalesce(a.attnum = any (i.indkey), false), a.attgenerated <> ''
              from pg_class c
              join pg_namespace n on n.oid = c.relnamespace
              left join pg_attribute a
                on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
              left join pg_index i on i.indrelid = c.oid and i.indisprimary
             where n.nspname = {name} and c.relkind = 'r'
            """
        )
        if not rows:
            return None
        rows = [row for row in rows if row[0] is not None]
        return Facts(
            types={row[0]: row[1] for row in rows},
            key=frozenset(row[0] for row in rows if row[3]),
            nullable=frozenset(row[0] for row in rows if row[2]),
            unsent=frozenset(row[0] for row in rows if row[4]),
        )

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows as text. columns: kind of value by column."""
        facts = self.facts(schema, table)
        assert facts is not None
        listed = ", ".join(self._show_column(name, facts.types[name]) for name in columns)
        return self.run(f'select {listed} from "{schema}".{_quote(table)}')

    @staticmethod
    def _show_column(name: str, of_type: str) -> str:
        if of_type.startswith("interval("):
            return f"(extract(epoch from {_quote(name)}) * 1000000)::bigint::text || ' us'"
        # A cast to text differs from the server's print in some types: it adds /32 to an address.
        return f"case when {_quote(name)} is not null then format('%s', {_quote(name)}) end"


class MySQLSide:
    """A MySQL or MariaDB server."""

    def __init__(self, server: Any) -> None:
        """Connect to a server of `plugins.mysql`."""
        self.kind: str = server.kind
        self.connection = server.connect()
        self.run("set time_zone = '+00:00', sql_mode = ''")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def tables(self, schema: str) -> list[str]:
        """Return the names of the tables of a schema."""
        text = f"select table_name from information_schema.tables where table_schema = '{schema}'"
        return [row[0] for row in self.run(text)]

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts about a table; None if there is none."""
        rows = self.run(
            "select column_name, column_type, is_nullable, column_key"
            f" from information_schema.columns where table_schema = '{schema}'"
            f" and cast(table_name as binary) = cast('{_literal(table)}' as binary)"
        )
        if not rows:
            return None
        return Facts(
            types={row[0]: _text(row[1]) for row in rows},
            key=frozenset(row[0] for row in rows if row[3] == "PRI")
            if self._has_primary(schema, table)
            else frozenset(),
            nullable=frozenset(row[0] for row in rows if row[2] == "YES"),
        )

    def _has_primary(self, schema: str, table: str) -> bool:
        """Return whether there is a primary key; a unique key of NOT NULL columns counts as PRI,
        too.
        """
        return bool(
            self.run(
                "select 1 from information_schema.statistics where index_name = 'PRIMARY'"
                f" and table_schema = '{schema}' and table_name = '{_literal(table)}' limit 1"
            )
        )

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows as text. columns: kind of value by column."""
        facts = self.facts(schema, table)
        assert facts is not None
        listed = ", ".join(self._show_column(name, facts.types[name]) for name in columns)
        return self.run(f"select {listed} from `{schema}`.`{table.replace('`', '``')}`")

    @staticmethod
    def _show_column(name: str, of_type: str) -> str:
        quoted = "`" + name.replace("`", "``") + "`"
        if "binary" in of_type or "blob" in of_type:
            return f"concat('\\\\x', lower(hex({quoted})))"
        if of_type.startswith("bit"):
            return f"bin({quoted} + 0)"
        if of_type.startswith("float"):
            return f"cast({quoted} + 0e0 as char)"
        return f"convert(cast({quoted} as char) using utf8mb4)"


class ServedLog:
    """The tables of a log, as `penstock serve` folds them from the base and later changes."""

    def __init__(self, port: int, password: str) -> None:
        self._connection = psycopg.connect(
            host="127.0.0.1",
            port=port,
            user="repl",
            password=password,
            dbname="shop",
            autocommit=True,
        )

    def rows(self, schema: str, table: str) -> tuple[list[str], list[Row]]:
        """Return the names of a table's columns, and its rows as text. Raises psycopg.Error."""
        query = f'select * from "{schema}".{_quote(table)}'
        result = self._connection.pgconn.exec_(query.encode())
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        places = range(result.nfields)
        rows = [
            tuple(_decode(result.get_value(row, place)) for place in places)
            for row in range(result.ntuples)
        ]
        return [(result.fname(place) or b"").decode() for place in places], rows

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _literal(name: str) -> str:
    return name.replace("'", "''")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -- values by neutral rules


def _moment(text: str) -> str:
    found = re.fullmatch(r"(\S+ \d\d:\d\d:\d\d)(\.\d+)?(\+00)?", text)
    if found is None:
        return text
    return (found[1] + (found[2] or "").rstrip("0").rstrip(".")).removesuffix(" 00:00:00")


def _time_us(text: str) -> str:
    if text.endswith(" us"):
        return text
    found = re.fullmatch(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?", text)
    if found is None:
        return text
    seconds = (int(found[2]) * 60 + int(found[3])) * 60 + int(found[4])
    us = seconds * 1_000_000 + int((found[5] or "").ljust(6, "0"))
    return f"{-us if found[1] else us} us"


def _json(text: str) -> str:
    return json.dumps(json.loads(text, parse_float=lambda n: f"float {Decimal(n)}"), sort_keys=True)


def _decimal(text: str) -> str:
    number = Decimal(text)
    return format(number.normalize() + 0, "f")


RULES: dict[str, Callable[[str], str]] = {
    "int": lambda text: str(int(text)),
    "decimal": _decimal,
    "real": lambda text: repr(struct.unpack("f", struct.pack("f", float(text)))[0]),
    "double": lambda text: repr(float(text)),
    "bool": lambda text: {"t": "1", "true": "1", "f": "0", "false": "0"}.get(text, text),
    "text": lambda text: text,
    "padded": lambda text: text.rstrip(" "),
    "bytes": lambda text: text,
    "uuid": lambda text: text.lower(),
    "moment": _moment,
    "time": _time_us,
    "bits": lambda text: str(int(text, 2)),
    "json": _json,
}
_POSTGRES_KINDS = (
    (r"smallint|integer|bigint|oid", "int"),
    (r"numeric", "decimal"),
    (r"real", "real"),
    (r"double", "double"),
    (r"boolean", "bool"),
    (r"character\(", "padded"),
    (r"bytea", "bytes"),
    (r"time(\(\d\))? without", "time"),
    (r"timestamp|date$", "moment"),
    (r"bit\(", "bits"),
    (r"jsonb?$", "json"),
)
_MYSQL_KINDS = (
    (r"tinyint|smallint|mediumint|int|bigint|year", "int"),
    (r"decimal", "decimal"),
    (r"float", "real"),
    (r"double", "double"),
    (r"char\(", "padded"),
    (r"(var)?binary|\w*blob", "bytes"),
    (r"datetime|timestamp|date", "moment"),
    (r"time", "time"),
    (r"bit", "bits"),
    (r"json", "json"),
)
_SQLSERVER_KINDS = (
    (r"tinyint|smallint|int|bigint", "int"),
    (r"decimal|numeric|(small)?money", "decimal"),
    (r"real", "real"),
    (r"float", "double"),
    (r"bit", "bool"),
    (r"n?char\(", "padded"),
    (r"(var)?binary", "bytes"),
    (r"datetime|smalldatetime|date", "moment"),
    (r"time", "time"),
    (r"uniqueidentifier", "uuid"),
)
_ORACLE_KINDS = (
    (r"number|float", "decimal"),
    (r"binary_float", "real"),
    (r"binary_double", "double"),
    (r"n?char\(", "padded"),
    (r"raw|blob", "bytes"),
    (r"timestamp|date", "moment"),
)
_KINDS = {POSTGRES: _POSTGRES_KINDS, SQLSERVER: _SQLSERVER_KINDS, ORACLE: _ORACLE_KINDS}


def kind_of_value(source: str, of_type: str) -> str:
    """Return the rule by which values of a type of the source are compared."""
    for pattern, kind in _KINDS.get(source, _MYSQL_KINDS):
        if re.match(pattern, of_type):
            return kind
    return "text"


def neutral(kind: str, text: str | None) -> str | None:
    """Return a value in the compared form; one that is not of its kind is marked and unchanged."""
    if text is None:
        return None
    try:
        return RULES[kind](text)
    except (ValueError, InvalidOperation):
        return f"not {kind}: {text}"


def neutral_row(kinds: Sequence[str], row: Row) -> Row:
    """Return a row in the compared form."""
    return tuple(neutral(kind, value) for kind, value in zip(kinds, row, strict=True))


def show_row(names: Iterable[str], row: Row) -> str:
    """Return the text of a row for messages."""
    return ", ".join(f"{n}={v!r:.40}" for n, v in zip(names, row, strict=True))


def differences(
    source: Side, target: Side, schema: str, target_schema: str, table: str
) -> list[str]:
    """Return the differences of a table's copy; empty when it is equal."""
    ours, theirs = source.facts(schema, table), target.facts(target_schema, table)
    if ours is None:
        return []
    if theirs is None:
        return [f"{table}: no such table in the target"]
    if source.kind != target.kind:
        ours = ours.without_unsent()
    found = []
    if set(ours.types) != set(theirs.types):
        return [f"{table}: columns {sorted(ours.types)} became {sorted(theirs.types)}"]
    # A server sends no generated columns: a copy may lack a key with one (docs/schema-changes.md).
    is_untold = bool(ours.key & ours.unsent) and not theirs.key
    if ours.key and ours.key != theirs.key and not is_untold:
        found.append(f"{table}: key {sorted(ours.key)} became {sorted(theirs.key)}")
    if ours.nullable - theirs.nullable:
        found.append(f"{table}: NOT NULL in the target only: {ours.nullable - theirs.nullable}")
    kinds = {name: kind_of_value(source.kind, of) for name, of in ours.types.items()}
    if kinds:
        mine = source.texts(schema, table, kinds)
        if target.kind != source.kind and target.kind in (POSTGRES, SQLSERVER, ORACLE):
            mine = [without_zero_dates(kinds, row) for row in mine]
        if target.kind == ORACLE:  # it has no empty texts
            mine = [tuple(None if one in ("", "\\x") else one for one in row) for row in mine]
        found += _row_differences(table, kinds, mine, target.texts(target_schema, table, kinds))
    return found


def without_zero_dates(kinds: Mapping[str, str], row: Row) -> Row:
    """Return a row with NULL for days that PostgreSQL does not have, as the pipeline file says."""
    pairs = zip(kinds.values(), row, strict=True)
    return tuple(
        None if kind == "moment" and value and value.startswith("0000-00-00") else value
        for kind, value in pairs
    )


def base_differences(
    source: Side,
    served: ServedLog,
    schema: str,
    table: str,
    name: str = "base",
    *,
    has_zero_dates: bool = True,
) -> list[str]:
    """Return the differences of a folded log from the source; empty when it is equal.

    has_zero_dates: the pipeline file does not choose NULL for them.
    """
    ours = source.facts(schema, table)
    if ours is None or not ours.without_unsent().types:
        return []
    ours = ours.without_unsent()
    try:
        names, rows = served.rows(schema, table)
    except psycopg.Error as error:
        # PostgreSQL's protocol has no such day: the pipeline file has to choose a value.
        is_refused = "a day that no calendar has" in str(error)
        return [] if is_refused else [f"{name}: {table}: error {error}"]
    if set(names) != set(ours.types):
        return [f"{name}: {table}: columns {sorted(ours.types)} became {sorted(names)}"]
    kinds = {name: kind_of_value(source.kind, ours.types[name]) for name in names}
    mine = source.texts(schema, table, kinds)
    if not has_zero_dates:
        mine = [without_zero_dates(kinds, row) for row in mine]
    return _row_differences(f"{name}: {table}", kinds, mine, rows)


def _row_differences(
    table: str, kinds: Mapping[str, str], ours: list[Row], theirs: list[Row]
) -> list[str]:
    mine, copied = _count_rows(ours, kinds), _count_rows(theirs, kinds)
    found = []
    for word, rows in (("lacks", mine - copied), ("has", copied - mine)):
        for row in list(rows.elements())[:4]:
            found.append(f"{table}: {word} {show_row(kinds, row)}")
    return found


def _count_rows(rows: list[Row], kinds: Mapping[str, str]) -> Counter[Row]:
    how = list(kinds.values())
    return Counter(neutral_row(how, row) for row in rows)
