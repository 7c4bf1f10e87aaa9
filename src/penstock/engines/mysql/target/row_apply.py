"""Mutations into MySQL and MariaDB row by row: the part `row_apply`; see `ports/row_apply.py`.

Plain rows are written by one statement. Rows that are compared with existing ones (compare-and-set,
deadlines, other unique keys, on which ON DUPLICATE KEY UPDATE would change the wrong row) go
through a temporary table with the types of the target's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from pymysql.cursors import Cursor

from penstock.engines.mysql.connect import Connection, connect, quote, run, server_errors, value
from penstock.engines.mysql.source.catalog import captured_tables
from penstock.engines.mysql.target.progress import MySQLProgress
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.ports.feeds import Group, Mutation, StagedTable
from penstock.ports.row_apply import (
    Conflict,
    DeadLetter,
    RowRules,
    RowSession,
    RowTarget,
    reference_missing,
)
from penstock.ports.target import Applied
from penstock.sql.row_documents import (
    VALUE,
    Documents,
    Fields,
    by_columns,
    by_key,
    fields_of,
    key_columns,
    lenient,
    show_row,
    unfit,
)

Convert = Callable[[bytes], Any]
"""From a JSON value that is not null to what the driver writes as a literal."""

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
GEOMETRIES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geomcollection",
        "geometrycollection",
    }
)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_BITS = re.compile(r"[01]*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)


def data_type(column: ColumnDefinition) -> str:
    """Return the bare type, for example `int` of `int(10) unsigned`."""
    return column.type_text.partition("(")[0].split()[0].lower()


def converter(table: TableDefinition, column: ColumnDefinition) -> Convert:
    """Return the converter of a column's values, which raises ValueUnfit."""
    kind = data_type(column)
    convert: Convert = _text
    if kind in INTEGERS:
        convert = _integer
    elif kind in BYTES:
        convert = _uuid_or_bytes if column.type_text.lower() == "binary(16)" else _bytes
    elif kind == "bit":
        convert = _bits
    elif kind == "json" or kind in GEOMETRIES:
        convert = bytes.decode
    elif kind in ("datetime", "timestamp"):
        convert = _moment
    elif kind in ("decimal", "float", "double"):
        convert = _number

    def check(raw: bytes) -> Any:
        try:
            return convert(raw)
        except (ValueError, ArithmeticError) as error:
            raise unfit(table, column) from error

    return check


def _text(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()


def _number(raw: bytes) -> str:
    return {b"true": "1", b"false": "0"}.get(raw) or _text(raw)


def _integer(raw: bytes) -> int:
    text = _number(raw)
    if _INTEGER.fullmatch(text):
        return int(text)
    number = Decimal(text)  # 1.00 is an integer; the server would round 1.5
    if number != number.to_integral_value():
        raise ValueError(text)
    return int(number)


def _bytes(raw: bytes) -> bytes:
    text = _text(raw)
    if not raw.startswith(b'"') or not text.startswith("\\x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _uuid_or_bytes(raw: bytes) -> bytes:
    text = _text(raw)
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else _bytes(raw)


def _bits(raw: bytes) -> int:
    text = _number(raw)
    if not raw.startswith(b'"'):
        return int(text)
    if not _BITS.fullmatch(text):
        raise ValueError(text)
    return int(text or "0", 2)


def _moment(raw: bytes) -> str:
    text = _text(raw)
    match = _MOMENT.fullmatch(text)
    if match is None:
        return text
    day, time, zone = match.groups()
    if zone in (None, "Z"):
        return f"{day} {time}"
    found = datetime.fromisoformat(f"{day} {time}{zone}").astimezone(UTC)
    return found.replace(tzinfo=None).isoformat(" ")


APPLICATION_NAME = "penstock stage"
LOCK_TIMEOUT_S = 60
FOREIGN_KEYS = frozenset({1216, 1217, 1451, 1452})
STATEMENT_ROWS = 1_000
PLACE = quote("penstock place")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class MySQLRowTarget(RowTarget):
    """Implementation of the port `ports.row_apply.RowTarget`."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def open_session(self) -> Iterator[RowSession]:
        connection = connect(self._url, application_name=APPLICATION_NAME, found_rows=True)
        try:
            yield MySQLRowSession(connection)
        finally:
            connection.close()


class MySQLRowSession(RowSession):
    """Implementation of the port `ports.row_apply.RowSession`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._progress = MySQLProgress(connection)
        self._scratch: dict[tuple[TableName, tuple[ColumnDefinition, ...]], str] = {}

    def tables(self, group: Group) -> Mapping[str, TableDefinition]:
        pattern = as_pattern(TableName(group[-1], "x")).removesuffix("x") + "*"
        found = captured_tables(self._connection, [pattern])
        return {one.name.name: one for one in found if one.name.schema == group[-1]}

    @contextmanager
    def exclusive(self, tables: Collection[StagedTable]) -> Iterator[None]:
        # A lock's name has at most 64 characters.
        names = sorted(
            f"penstock {hashlib.blake2b(str(one).encode(), digest_size=20).hexdigest()}"
            for one in tables
        )
        held: list[str] = []
        try:
            for name in names:
                sql = "select get_lock(%s, %s)"
                if not value(self._connection, sql, (name, LOCK_TIMEOUT_S), doing="locking tables"):
                    raise StatementInterrupted(
                        f"locking tables: held by another for {LOCK_TIMEOUT_S} s",
                        hint="penstock retries automatically.",
                    )
                held.append(name)
            yield
        finally:
            for name in held:
                if self._connection.open:
                    value(
                        self._connection,
                        "select release_lock(%s)",
                        (name,),
                        doing="unlocking tables",
                    )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with server_errors("applying rows"):
            self._connection.begin()
        try:
            yield
            with _convert_errors("applying rows"):
                self._connection.commit()
        except BaseException:
            if self._connection.open:
                with server_errors("applying rows"):
                    self._connection.rollback()
            raise

    def read_position(self, log_id: str) -> Applied:
        self._progress.ensure_shared(log_id)
        return self._progress.read_applied(log_id)

    def locked_position(self, log_id: str, *, is_shared: bool = False) -> Applied:
        return self._progress.read_applied(log_id, lock="share" if is_shared else "update")

    def advance(self, log_id: str, *, before: Applied, after: Applied) -> None:
        self._progress.advance(log_id=log_id, before=before, after=after)

    def upsert(
        self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]
    ) -> list[Conflict]:
        rules.check(table)
        conflicts: list[Conflict] = []
        for documents in by_columns(table, rules, mutations):
            is_plain = not (rules.has_conditions or rules.exprs or _may_hit_others(table))
            for some in documents.chunks(min(rules.row_limit, STATEMENT_ROWS)):
                with _convert_errors(f"writing to {table.name}"):
                    if is_plain and _gives_all(table, some):
                        self._upsert_plainly(table, some)
                    else:
                        conflicts += self._upsert_compared(table, rules, some)
        places = {id(mutation): place for place, mutation in enumerate(mutations)}
        return sorted(conflicts, key=lambda one: places[id(one.mutation)])

    def delete(self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]) -> int:
        count = 0
        for some in by_key(table, mutations).chunks(min(rules.row_limit, STATEMENT_ROWS)):
            with _convert_errors(f"deleting from {table.name}"):
                scratch = self._fill_scratch(table, rules, some)
                count += self._run(
                    f"delete t from {quote(*table.name)} as t join {scratch} as r"
                    f" on {_same_key(table)}"
                )
        return count

    def add_dead_letters(self, table: TableDefinition, letters: Sequence[DeadLetter]) -> None:
        names = ("dlq_name", "source_nanos", "source_logical", "data_after", "data_before")
        sql = (
            f"insert into {_escape(quote(*table.name))} ({', '.join(map(quote, names))})"
            f" values ({', '.join(['%s'] * len(names))})"
        )
        with _convert_errors(f"writing to {table.name}"):
            for one in letters:
                images = [(image or b"null").decode() for image in (one.after, one.before)]
                self._run(sql, [one.queue, one.time.nanos, one.time.logical, *images])

    def query(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with _convert_errors("a statement of the user's module"):
            return self._rows(sql, list(parameters) or None)

    def quote(self, *names: str) -> str:
        return quote(*names)

    # --- upserts ----------------------------------------------------------------------------------

    def _upsert_plainly(self, table: TableDefinition, documents: Documents) -> None:
        changes = ", ".join(
            f"{quote(name)} = values({quote(name)})"
            for name in documents.names
            if name not in table.primary_key
        )
        key = quote(table.primary_key[0])
        self._run(
            f"insert into {_escape(quote(*table.name))} "
            f"({_escape(', '.join(map(quote, documents.names)))}) values {_marks(documents)}"
            f" on duplicate key update {_escape(changes or f'{key} = {key}')}",
            _values(table, documents),
        )

    def _upsert_compared(
        self, table: TableDefinition, rules: RowRules, documents: Documents
    ) -> list[Conflict]:
        scratch = self._fill_scratch(table, rules, documents)
        name, same_key = quote(*table.name), _same_key(table)
        conflicts: list[Conflict] = []
        if rules.has_conditions:
            conflicts = self._refuse(table, rules, documents, scratch)
        changes = [one for one in documents.names if one not in table.primary_key]
        if changes:
            pairs = ", ".join(f"t.{quote(one)} = r.{quote(one)}" for one in changes)
            self._run(f"update {name} as t join {scratch} as r on {same_key} set {pairs}")
        names = ", ".join(map(quote, documents.names))
        values = ", ".join(f"r.{quote(one)}" for one in documents.names)
        absent = (
            f"from {scratch} as r left join {name} as t on {same_key}"
            f" where t.{quote(table.primary_key[0])} is null"
        )
        # MariaDB refuses an insert without a required column, even if it inserts no rows.
        if self._rows(f"select 1 {absent} limit 1"):
            self._run(f"insert into {name} ({names}) select {values} {absent} order by r.{PLACE}")
        return conflicts

    def _refuse(
        self, table: TableDefinition, rules: RowRules, documents: Documents, scratch: str
    ) -> list[Conflict]:
        """Remove the rows that may not be written; lock the rows that they would replace."""
        in_time = " and ".join(
            f"r.{quote(name)} > now(6) - interval {seconds!r} second"
            for name, seconds in rules.deadlines.items()
        )
        late: set[int] = set()
        if in_time:
            sql = f"select {PLACE} from {scratch} as r where not coalesce({in_time}, 0)"
            late = {place for (place,) in self._rows(sql)}
        greater = _greater(rules, documents)
        conditions = " and ".join(one for one in (in_time, greater) if one)
        there = dict(
            self._rows(
                f"select r.{PLACE}, coalesce({conditions}, 0) from {scratch} as r"
                f" join {quote(*table.name)} as t on {_same_key(table)} order by 1 for update"
            )
        )
        lost = sorted(late | {place for place, wins in there.items() if not wins})
        targets = {
            place: self._rows(
                f"select {_as_json('t', [c for c in table.columns if not c.generated])}"
                f" from {scratch} as r join {quote(*table.name)} as t on {_same_key(table)}"
                f" where r.{PLACE} = {place}"
            )[0][0]
            for place in lost
            if rules.wants_target and place in there
        }
        if lost:
            self._run(f"delete from {scratch} where {PLACE} in ({', '.join(map(str, lost))})")
        mutations = [documents.mutations[place] for place in lost]
        found = [
            self._conflict(table, rules, mutation, targets[place])
            if place in targets
            else Conflict(mutation=mutation)
            for place, mutation in zip(lost, mutations, strict=True)
        ]
        if targets:  # the temporary table was used for these
            self._fill_scratch(table, rules, documents.without(lost))
        return found

    def _conflict(
        self, table: TableDefinition, rules: RowRules, mutation: Mutation, target: str
    ) -> Conflict:
        assert mutation.after is not None
        return Conflict(
            mutation=mutation,
            target=show_row(_FIELDS.decode(target.encode()), {}, rules.extras),
            proposed=self._canonical(table, rules, mutation, mutation.after),
            before=None
            if mutation.before is None
            else self._canonical(table, rules, mutation, mutation.before),
        )

    def _canonical(
        self, table: TableDefinition, rules: RowRules, mutation: Mutation, document: bytes
    ) -> bytes:
        mapped, others = lenient(table, rules, fields_of(table, mutation, document))
        columns = tuple(column for column in table.columns if column.name in mapped)
        found: Fields = {}
        if columns:
            names = tuple(column.name for column in columns)
            documents = Documents(columns=columns, properties=names, rows=[mapped])
            scratch = self._fill_scratch(table, rules, documents)
            text = self._rows(f"select {_as_json('r', columns)} from {scratch} as r")[0][0]
            found = _FIELDS.decode(text.encode())
        return show_row(found, others, rules.extras)

    # --- the temporary table ----------------------------------------------------------------------

    def _fill_scratch(self, table: TableDefinition, rules: RowRules, documents: Documents) -> str:
        """Return the name of a temporary table with exactly these rows, numbered from 0."""
        columns = documents.columns
        name = self._scratch.get((table.name, columns))
        if name is None:
            number = len(self._scratch)
            name = quote(table.name.schema, f"penstock rows {number}")
            made = ", ".join(f"{quote(column.name)} {_type(column)} null" for column in columns)
            self._run(f"create temporary table {name} ({PLACE} int primary key, {made})")
            self._scratch[table.name, columns] = name
        self._run(f"delete from {name}")
        if not documents.rows:
            return name
        marks = _marks(documents, numbered=True)
        names = ", ".join((PLACE, *map(quote, documents.names)))
        self._run(
            f"insert into {_escape(name)} ({_escape(names)}) values {marks}",
            _values(table, documents, numbered=True),
        )
        changes = ", ".join(
            f"{quote(column)} = {rules.exprs[column].replace(VALUE, quote(column))}"
            for column in documents.names
            if column in rules.exprs
        )
        if changes:
            self._run(f"update {name} set {changes}")
        return name

    def _run(self, sql: str, parameters: Sequence[Any] | None = None) -> int:
        return run(self._connection, sql, parameters, doing="applying rows")

    def _rows(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with server_errors("applying rows"), self._connection.cursor(Cursor) as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())


def _may_hit_others(table: TableDefinition) -> bool:
    """Return whether a row could be a duplicate of a row with another key."""
    return bool(table.unique_keys)


def _gives_all(table: TableDefinition, documents: Documents) -> bool:
    """Return whether an insert has all required columns."""
    written = set(documents.names)
    return all(
        column.name in written
        or column.generated
        or column.identity_kind
        or not column.not_null
        or column.default is not None
        for column in table.columns
    )


def _same_key(table: TableDefinition) -> str:
    return " and ".join(
        f"t.{quote(column.name)} = r.{quote(column.name)}" for column in key_columns(table)
    )


def _greater(rules: RowRules, documents: Documents) -> str:
    if not rules.cas:
        return ""
    proposed = ", ".join(
        f"r.{quote(name)}" if name in documents.names else "null" for name in rules.cas
    )
    there = ", ".join(f"t.{quote(name)}" for name in rules.cas)
    return f"({proposed}) > ({there})"


def _type(column: ColumnDefinition) -> str:
    """Return a column's type for a temporary table."""
    return (
        f"{column.type_text} collate {column.collation}" if column.collation else column.type_text
    )


def _escape(sql: str) -> str:
    """Escape SQL without parameters, for a statement that has some."""
    return sql.replace("%", "%%")


def _marks(documents: Documents, *, numbered: bool = False) -> str:
    marks = [
        "st_geomfromgeojson(%s)" if data_type(column) in GEOMETRIES else "%s"
        for column in documents.columns
    ]
    one = f"({', '.join(['%s'] * numbered + marks)})"
    return ", ".join([one] * len(documents.rows))


def _values(table: TableDefinition, documents: Documents, *, numbered: bool = False) -> list[Any]:
    columns = [
        (name, converter(table, column))
        for name, column in zip(documents.properties, documents.columns, strict=True)
    ]
    found: list[Any] = []
    for place, row in enumerate(documents.rows):
        if numbered:
            found.append(place)
        for name, convert in columns:
            raw = bytes(row[name])
            found.append(None if raw == b"null" else convert(raw))
    return found


def _as_json(row: str, columns: Sequence[ColumnDefinition]) -> str:
    """Return SQL of a row's JSON, with values as changefeeds write them if possible."""
    parts = []
    for column in columns:
        shown_value = f"{row}.{quote(column.name)}"
        kind = data_type(column)
        if kind in BYTES:
            shown_value = f"concat('\\\\x', lower(hex({shown_value})))"
        elif kind == "bit":
            width = int(column.type_text.partition("(")[2].rstrip(")") or 1)
            shown_value = f"lpad(bin({shown_value} + 0), {width}, '0')"
        elif kind in ("datetime", "timestamp"):
            text = f"date_format({shown_value}, '%Y-%m-%dT%H:%i:%s.%f')"
            zone = "Z" if kind == "timestamp" else ""
            shown_value = (
                f"concat(trim(trailing '.' from trim(trailing '0' from {text})), '{zone}')"
            )
        elif kind in GEOMETRIES:
            shown_value = f"st_asgeojson({shown_value})"
        elif kind == "json":
            shown_value = f"json_extract({shown_value}, '$')"
        parts.append(f"'{column.name.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'")
        parts.append(shown_value)
    return f"json_object({', '.join(parts)})"


@contextmanager
def _convert_errors(doing: str) -> Iterator[None]:
    """Prefix errors of the server with the work; convert foreign key errors to their own type."""
    try:
        yield
    except StatementFailed as error:
        number = error.fields.get("errno")
        message = f"{doing}: {error.message.partition(': ')[2]}"
        if number in FOREIGN_KEYS:
            raise reference_missing(message, **error.fields) from error
        raise StatementFailed(message, hint=error.hint, **error.fields) from error
