"""Mutations into PostgreSQL row by row: the part `row_apply`; see `ports/row_apply.py`.

A batch travels as one JSON text, and the server itself gives its values the columns' types, as it
does for texts that a client sends: what does not fit is refused, nothing is cut short.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
    statement,
)
from penstock.engines.postgres.source.catalog import captured_tables
from penstock.engines.postgres.target.progress import PostgresProgress
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
    absent_required,
    as_document,
    by_columns,
    by_key,
    fields_of,
    key_columns,
    lenient,
    show_row,
)

APPLICATION_NAME = "penstock stage"
LOCK_TIMEOUT = "60s"
FOREIGN_KEY = "23503"
PLACE = quote("penstock place")
_GEOMETRY = re.compile(r"(?:(.*)\.)?\"?(geometry|geography)\"?(?:\(.*\))?", re.DOTALL)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
Connection = psycopg.Connection[Any]


class PostgresRowTarget(RowTarget):
    """The port `ports.row_apply.RowTarget`."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def open_session(self) -> Iterator[RowSession]:
        options = {**EXACT_TEXT_SETTINGS, "lock_timeout": LOCK_TIMEOUT}
        connection = connect(self._url, application_name=APPLICATION_NAME, options=options)
        with connection:
            yield PostgresRowSession(connection)


class PostgresRowSession(RowSession):
    """The port `ports.row_apply.RowSession`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._progress = PostgresProgress(connection)

    def tables(self, group: Group) -> Mapping[str, TableDefinition]:
        pattern = as_pattern(TableName(group[-1], "x")).removesuffix("x") + "*"
        found = captured_tables(self._connection, [pattern])
        return {one.name.name: one for one in found if one.name.schema == group[-1]}

    @contextmanager
    def exclusive(self, tables: Collection[StagedTable]) -> Iterator[None]:
        names = sorted(f"penstock row apply {table}" for table in tables)
        held: list[str] = []
        try:
            for name in names:
                self._run("select pg_advisory_lock(hashtextextended(%s, 0))", (name,))
                held.append(name)
            yield
        finally:
            for name in held:
                if not self._connection.broken:
                    self._run("select pg_advisory_unlock(hashtextextended(%s, 0))", (name,))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _typed_errors("applying rows"), self._connection.transaction():
            commit_durably(self._connection, once=True)
            yield

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
            for some in documents.chunks(rules.row_limit):
                rows = _Rows(table, rules, some)
                if rules.has_conditions:
                    conflicts += self._find_refused(rows)
                    refused = {id(one.mutation) for one in conflicts}
                    kept = [n for n, one in enumerate(some.mutations) if id(one) not in refused]
                    rows = _Rows(table, rules, some.only(kept))
                if rows.documents.rows:
                    self._check_written(rows)
        places = {id(mutation): place for place, mutation in enumerate(mutations)}
        return sorted(conflicts, key=lambda one: places[id(one.mutation)])

    def delete(self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]) -> int:
        count = 0
        for some in by_key(table, mutations).chunks(rules.row_limit):
            rows = _Rows(table, rules, some)
            sql = f"delete from {rows.name} as t using {rows.source} as r where {rows.same_key}"
            with _typed_errors(f"deleting from {table.name}"):
                count += self._run_rows(sql, rows).rowcount
        return count

    def add_dead_letters(self, table: TableDefinition, letters: Sequence[DeadLetter]) -> None:
        types = {column.name: column.type_text for column in table.columns}
        names = ("dlq_name", "source_nanos", "source_logical", "data_after", "data_before")
        values = ", ".join(f"%s::{types[name]}".replace("%s", "\0") for name in names)
        sql = f"insert into {quote(*table.name)} ({', '.join(map(quote, names))}) values ({values})"
        sql = sql.replace("%", "%%").replace("\0", "%s")
        with _typed_errors(f"writing to {table.name}"):
            for one in letters:
                images = ((image or b"null").decode() for image in (one.after, one.before))
                parameters = (one.queue, str(one.time.nanos), str(one.time.logical), *images)
                self._connection.execute(statement(sql), parameters)

    def query(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with _typed_errors("a statement of the user's module"):
            found = self._connection.execute(statement(sql), parameters or None)
            return found.fetchall() if found.description is not None else []

    def quote(self, *names: str) -> str:
        return quote(*names)

    # --- upserts ----------------------------------------------------------------------------------

    def _check_written(self, rows: _Rows) -> None:
        with _typed_errors(f"writing to {rows.table.name}"):
            done = self._run_rows(rows.upsert, rows).rowcount
        if rows.rules.cas and done != len(rows.documents.rows):
            # The row did not exist when the others were locked: another client inserted it.
            raise StatementInterrupted(
                f"rows of {rows.table.name} were written by another client meanwhile",
                hint="penstock retries automatically.",
            )

    def _find_refused(self, rows: _Rows) -> list[Conflict]:
        """Return the rows that may not be written, and lock the rows that they would replace."""
        mutations = rows.documents.mutations
        in_time, greater = rows.in_time, rows.greater
        with _typed_errors(f"comparing with {rows.table.name}"):
            late = set()
            if in_time:
                sql = (
                    f"select r.{PLACE} from {rows.source} as r where not coalesce({in_time}, false)"
                )
                late = {place for (place,) in self._run_rows(sql, rows).fetchall()}
            conditions = " and ".join(one for one in (in_time, greater) if one)
            sql = (
                f"select r.{PLACE}, coalesce({conditions}, false) from {rows.source} as r"
                f" join {rows.name} as t on {rows.same_key} order by 1 for update of t"
            )
            there = dict(self._run_rows(sql, rows).fetchall())
            lost = sorted(late | {place for place, wins in there.items() if not wins})
            return [
                self._conflict(rows, place)
                if rows.rules.wants_target and place in there
                else Conflict(mutation=mutations[place - 1])
                for place in lost
            ]

    def _conflict(self, rows: _Rows, place: int) -> Conflict:
        """Return a refused row with the row that is there, spelt alike."""
        mutation = rows.documents.mutations[place - 1]
        table, extras = rows.table, rows.rules.extras
        one = _Rows(table, rows.rules, rows.documents.only([place - 1]))
        columns = [column for column in table.columns if not column.generated]
        sql = (
            f"select {_as_json('t', columns)} from {one.source} as r"
            f" join {one.name} as t on {one.same_key}"
        )
        target = self._run_rows(sql, one).fetchone()
        assert target is not None
        assert mutation.after is not None
        return Conflict(
            mutation=mutation,
            target=show_row(_FIELDS.decode(target[0]), {}, extras),
            proposed=self._canonical(table, rows.rules, mutation, mutation.after),
            before=None
            if mutation.before is None
            else self._canonical(table, rows.rules, mutation, mutation.before),
        )

    def _canonical(
        self, table: TableDefinition, rules: RowRules, mutation: Mutation, document: bytes
    ) -> bytes:
        mapped, others = lenient(table, rules, fields_of(table, mutation, document))
        columns = tuple(column for column in table.columns if column.name in mapped)
        documents = Documents(
            columns=columns, properties=tuple(column.name for column in columns), rows=[mapped]
        )
        one = _Rows(table, rules, documents)
        found: Fields = {}
        if columns:
            row = self._run_rows(f"select {_as_json('r', columns)} from {one.source} as r", one)
            found = _FIELDS.decode(row.fetchall()[0][0])
        return show_row(found, others, rules.extras)

    # --- statements -------------------------------------------------------------------------------

    def _run_rows(self, sql: str, rows: _Rows) -> psycopg.Cursor[Any]:
        text = sql.replace("%", "%%").replace(_Rows.JSON, "%s")
        data = b"[" + b",".join(map(as_document, rows.documents.rows)) + b"]"
        parameters = [data.decode()] * sql.count(_Rows.JSON)
        return self._connection.execute(statement(text), parameters)

    def _run(self, sql: str, parameters: Sequence[Any]) -> None:
        with server_errors("locking tables"):
            self._connection.execute(statement(sql), parameters)


class _Rows:
    """Pieces of statements about rows: r is a new row, t the row of the table."""

    JSON = "\0json\0"

    def __init__(self, table: TableDefinition, rules: RowRules, documents: Documents) -> None:
        self.table, self.rules, self.documents = table, rules, documents
        self.name = quote(*table.name)
        self.same_key = " and ".join(
            f"t.{quote(column.name)} = r.{quote(column.name)}" for column in key_columns(table)
        )

    @property
    def source(self) -> str:
        """A subquery of the rows, numbered from 1, with the table's names and types."""
        pairs = list(zip(self.documents.columns, self.documents.properties, strict=True))
        typed = ", ".join(f"{quote(name)} {_received_type(column)}" for column, name in pairs)
        names = ", ".join(quote(name) for _, name in pairs)
        values = ", ".join(
            f"{self._value(column, quote(name))} as {quote(column.name)}" for column, name in pairs
        )
        return (
            f"(select {values}, {PLACE} from rows from ("
            f"json_to_recordset({self.JSON}::json) as ({typed})) with ordinality"
            f" as raw ({names}, {PLACE}))"
        )

    def _value(self, column: ColumnDefinition, received: str) -> str:
        geometry = _GEOMETRY.fullmatch(column.type_text)
        if geometry is not None:
            schema = f"{geometry[1]}." if geometry[1] else ""
            cast = f"::{schema}geography" if geometry[2] == "geography" else ""
            received = f"{schema}st_geomfromgeojson({received}::text){cast}"
        expression = self.rules.exprs.get(column.name)
        return received if expression is None else expression.replace(VALUE, f"({received})")

    @property
    def in_time(self) -> str:
        """The condition of deadlines, if there are any."""
        return " and ".join(
            f"r.{quote(name)} > now() - make_interval(secs => {seconds!r})"
            for name, seconds in self.rules.deadlines.items()
        )

    @property
    def greater(self) -> str:
        """Condition of compare-and-set; empty if there is none."""
        return self._greater("r")

    def _greater(self, row: str) -> str:
        if not self.rules.cas:
            return ""
        proposed = ", ".join(
            f"{row}.{quote(name)}" if name in self.documents.names else "null"
            for name in self.rules.cas
        )
        there = ", ".join(f"t.{quote(name)}" for name in self.rules.cas)
        return f"row({proposed}) > row({there})"

    @property
    def upsert(self) -> str:
        """Insert the rows, or update existing ones with them."""
        columns = self.documents.columns
        required = absent_required(self.table, self.documents)
        names = ", ".join(quote(column.name) for column in (*columns, *required))
        values = ", ".join(
            (
                *(f"r.{quote(column.name)}" for column in columns),
                *(f"t.{quote(column.name)}" for column in required),
            )
        )
        joined = f" left join {self.name} as t on {self.same_key}" if required else ""
        key = ", ".join(map(quote, self.table.primary_key))
        changes = ", ".join(
            f"{quote(column.name)} = excluded.{quote(column.name)}"
            for column in columns
            if column.name not in self.table.primary_key and column.identity_kind != "a"
        )
        if not changes:
            action = "do nothing"
        else:
            action = f"do update set {changes}"
            if self.rules.cas:
                action += f" where {self._greater('excluded')}"
        return (
            f"insert into {self.name} as t ({names}) overriding system value"
            f" select {values} from {self.source} as r{joined} order by r.{PLACE}"
            f" on conflict ({key}) {action}"
        )


def _received_type(column: ColumnDefinition) -> str:
    """Return the type as which JSON's value is read: the column's, with length and precision."""
    return "json" if _GEOMETRY.fullmatch(column.type_text) else column.type_text


def _as_json(row: str, columns: Sequence[ColumnDefinition]) -> str:
    """Return a row's JSON, with its times as changefeeds write them."""
    parts = []
    for column in columns:
        value = f"{row}.{quote(column.name)}"
        if column.base_type.startswith("timestamp") and column.base_type.endswith("with time zone"):
            text = f"to_char({value} at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
            value = (
                f"case when isfinite({value}) then rtrim(rtrim({text}, '0'), '.') || 'Z'"
                f" else {value}::text end"
            )
        parts.append(f"{value} as {quote(column.name)}")
    return f"(select row_to_json(one)::text from (select {', '.join(parts)}) as one)"


@contextmanager
def _typed_errors(doing: str) -> Iterator[None]:
    try:
        with server_errors(doing):
            yield
    except StatementFailed as error:
        if error.fields.get("sqlstate") == FOREIGN_KEY:
            raise reference_missing(error.message, **error.fields) from error
        raise
