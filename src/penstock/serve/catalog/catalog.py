"""The catalogue: one for a server, asked by all of its connections. Synchronous.

```python
catalog = Catalog(saved, database="shop", users=["repl"], state=server, version=15)
catalog.set_relations(relations)
for statement in split(text):
    answer = catalog.answer(statement, session)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Relation
from penstock.serve.catalog import settings
from penstock.serve.catalog.answers import Answer, AnswerColumn, AsksServer, ServerState, Session
from penstock.serve.catalog.binder import Binder, finish_columns
from penstock.serve.catalog.facts import VERSIONS, facts_of
from penstock.serve.catalog.functions import Context
from penstock.serve.catalog.grammar import Statement, parse_query, split
from penstock.serve.catalog.masked import mask_reason, mask_sql
from penstock.serve.catalog.model import Model
from penstock.serve.catalog.names import path_of, print_reg, read_reg, schema_names
from penstock.serve.catalog.publication_ddl import change_publication, is_publication_ddl
from penstock.serve.catalog.rows import Rows
from penstock.serve.catalog.scope import Bound, Scope
from penstock.serve.catalog.statements import allowed_when_failed, no_statement, plain
from penstock.serve.catalog.store import Store
from penstock.serve.catalog.tables import TableRead
from penstock.serve.catalog.types import RECORD, TEXT, Types, print_record, print_value, read_value
from penstock.serve.running import Prepared as PreparedPort
from penstock.serve.saved_state import SavedState

_log = structlog.get_logger(__name__)
_PREPARED_MAX = 512
_QUERIES = ("SELECT", "VALUES", "WITH", "TABLE", "(")
_WITHOUT = {"pg_index": ("indclass",)}  # columns that rows of initially empty tables lack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Bound query.

    Attributes:
        fields: for each column the types of its fields if it is a record, else none.
        parameters: types by number.
    """

    sql: str
    columns: tuple[AnswerColumn, ...]
    fields: tuple[tuple[int, ...], ...]
    reads: frozenset[str]
    parameters: dict[int, int]


class Prepared(PreparedPort):
    """Statement that has been parsed.

    Attributes:
        columns: None if it has no rows.
        parameters: a type for each of $1, $2, ...
    """

    def __init__(
        self,
        catalog: Catalog,
        statement: Statement | None,
        columns: tuple[AnswerColumn, ...] | None,
        parameters: Sequence[int],
    ) -> None:
        """Set the statement; None for an empty query."""
        self._catalog, self._statement = catalog, statement
        self.columns, self.parameters = columns, tuple(parameters)

    def run(self, values: Sequence[str | None], session: Session) -> Answer:
        """Return the answer for these texts of the parameters. Raises Refused."""
        if self._statement is None:
            return Answer(tag="")
        if len(values) != len(self.parameters):
            raise Refused(
                "08P01",
                f"bind message supplies {len(values)} parameters, but prepared statement requires "
                f"{len(self.parameters)}",
            )
        return self._catalog.answer(
            self._statement, session, values=values, parameters=self.parameters
        )


class Catalog:
    """Answers statements. Raises Refused with the SQLSTATE; the query is then logged."""

    def __init__(
        self,
        saved: SavedState,
        *,
        database: str,
        users: Sequence[str],
        state: ServerState,
        version: int = 15,
        dialect: str = "postgres",
        held: Mapping[str, str] | None = None,
    ) -> None:
        """Read the saved state.

        Args:
            saved: of the server, with the catalogue's part.
            database: name of the database.
            users: names of the users.
            state: the server's state.
            version: the claimed version, 14 to 18.
            dialect: postgres or yugabyte.
            held: the server's own settings by name, such as max_replication_slots.
        """
        if version not in VERSIONS:
            raise ValueError(f"no facts of version {version}")
        facts = facts_of(version)
        types = Types(facts)
        self.model = Model(saved, users)
        no_session = Session(user=users[0] if users else "", database=database)
        self._context = Context(
            facts=facts,
            types=types,
            model=self.model,
            state=state,
            session=no_session,
            database=database,
            dialect=dialect,
            held=held or {},
        )
        types.where = lambda: (schema_names(self._context), path_of(self._context))
        self._rows = Rows(facts, types, self.model, database, dialect=dialect)
        self._store = Store(self._context)
        self._moment = self._rows.of_moment(state)
        self._plans: dict[Any, _Plan] = {}
        self._shown: Any = None  # the publications that the tables show
        self._make_tables()
        self.set_relations(())

    def _make_tables(self) -> None:
        facts, store = self._context.facts, self._store
        fixed = self._rows.list_fixed()
        of_model = self._rows.of_model() | self._rows.publications(())
        for (schema, name), relation in facts.relations.items():
            if schema != "pg_catalog":
                continue
            if name in fixed or name in of_model or name in self._moment or name == "pg_settings":
                columns = [column.name for column in relation.columns]
                if name == "pg_replication_slots":
                    columns += ["yb_stream_id", "yb_restart_commit_ht", "yb_lsn_type"]
                store.create(name, columns, fixed.get(name, ()))
                store.hold(name, self._list_columns(name, columns, fixed))

    @staticmethod
    def _list_columns(
        name: str, columns: Sequence[str], fixed: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> Iterable[str]:
        """Return the columns that the rows of a table have."""
        if fixed.get(name):
            return [column for column in columns if column in fixed[name][0]]
        return [column for column in columns if column not in _WITHOUT.get(name, ())]

    # -- contents -----------------------------------------------------------------------------

    def set_relations(self, relations: Iterable[Relation]) -> None:
        """Set the tables, in their newest versions. Raises DiskFull, FileFailed."""
        self.model.set_relations(relations)
        self._fill()

    def _fill(self) -> None:
        self._shown = None
        self._context.types.set_row_types(self._rows.row_types())
        for name, rows in self._rows.of_model().items():
            if name in self._store.held:
                self._store.replace(name, rows)
        self.model.save_oids()

    def _show_publications(self) -> None:
        """Let the tables of publications show the session's view."""
        session, model = self._context.session, self.model
        shown = (tuple(model.publications.current().items()), tuple(session.pending))
        if shown == self._shown:
            return
        found = self._rows.publications(self._context.publications().values())
        for name, rows in found.items():
            if name in self._store.held:
                self._store.replace(name, rows)
        self._shown = shown
        model.save_oids()

    def reports(self, session: Session) -> dict[str, str]:
        """Return the values of ParameterStatus for a new client."""
        self._context.session = session
        known = (name for name in settings.REPORTED if name != "in_hot_standby")
        return {name: settings.current(self._context, name) for name in known}

    def set_startup(self, session: Session, options: Mapping[str, str]) -> None:
        """Apply settings of a client's start-up packet. Raises Refused."""
        self._context.session = session
        for name, value in options.items():
            settings.set_value(self._context, name, value)
        self._context.reports.clear()

    # -- answers ------------------------------------------------------------------------------

    def answer(
        self,
        statement: Statement | str,
        session: Session,
        *,
        values: Sequence[str | None] = (),
        parameters: Sequence[int] = (),
    ) -> Answer:
        """Return the answer to one statement. Raises Refused; the transaction has failed then."""
        text = statement if isinstance(statement, str) else statement.text
        try:
            one = _single(statement) if isinstance(statement, str) else statement
            if one is None:
                return Answer(tag="")
            return self._answer(one, session, values, parameters)
        except Refused as refused:
            self._log_refused(refused, text, session)
            raise

    @staticmethod
    def _log_refused(refused: Refused, text: str, session: Session) -> None:
        if isinstance(refused, TableRead | AsksServer):
            return  # answered elsewhere
        if session.transaction == "T":
            session.transaction = "E"
        _log.warning(
            "query refused",
            sqlstate=refused.sqlstate,
            message=mask_reason(refused),
            query=mask_sql(text),
        )

    def _answer(
        self,
        statement: Statement,
        session: Session,
        values: Sequence[str | None],
        parameters: Sequence[int],
    ) -> Answer:
        context = self._context
        context.session = session
        context.reports.clear()
        if session.transaction == "E" and not (allowed_when_failed(statement)):
            raise Refused(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
            )
        first = statement.words(1)[0]
        if first in _QUERIES:
            return self._query(statement, values, parameters)
        if is_publication_ddl(statement):
            return Answer(tag=change_publication(context, statement))
        found = plain(context, statement)
        if found is not None:
            return replace(found, reports=dict(context.reports))
        raise no_statement(statement)

    def prepare(self, sql: str, session: Session, parameters: Sequence[int] = ()) -> Prepared:
        """Parse one statement; `parameters` are types that the client gives, 0 if open."""
        try:
            statement = _single(sql)
            if statement is None:
                return Prepared(self, None, None, ())
            self._context.session = session
            first = statement.words(1)[0]
            if first == "SHOW":
                shown = self._answer(statement, session, (), ())
                return Prepared(self, statement, shown.columns, ())
            if first not in _QUERIES:
                return Prepared(self, statement, None, ())
            plan = self._plan(statement.text, parameters)
            count = max([*plan.parameters, len(parameters)], default=0)
            oids = [plan.parameters.get(number, TEXT) for number in range(1, count + 1)]
            return Prepared(self, statement, plan.columns, oids)
        except Refused as refused:
            self._log_refused(refused, sql, session)
            raise

    def _query(
        self,
        statement: Statement,
        values: Sequence[str | None],
        parameters: Sequence[int],
    ) -> Answer:
        context = self._context
        plan = self._plan(statement.text, parameters)
        seen, kept = context.session.carried_out, {}
        for name in plan.reads:
            if name.startswith("pg_publication"):
                self._show_publications()
            elif name in self._moment:
                kept[name] = seen.get(("rows", name)) or list(self._moment[name]())
                self._store.replace(name, kept[name])
            elif name == "pg_settings":
                self._store.replace(name, settings.all_rows(context))
        types = context.types
        given = {
            f"p{number}": None
            if value is None
            else read_value(types, oid, value, lambda kind, name: read_reg(context, kind, name))
            for number, (oid, value) in enumerate(zip(parameters, values, strict=True), 1)
        }
        try:
            found = self._store.run(plan.sql, given)
        except AsksServer:
            # Run again after that is carried out, the query sees the same state.
            seen |= {("rows", name): rows for name, rows in kept.items()}
            raise

        def reg(kind: int, oid: int) -> str:
            return print_reg(context, kind, oid)

        def print_cell(column: AnswerColumn, fields: tuple[int, ...], cell: Any) -> str | None:
            if fields and column.type_oid == RECORD and cell is not None:
                return print_record(types, fields, cell, reg)
            return print_value(types, column.type_oid, cell, reg)

        kinds = list(zip(plan.columns, plan.fields, strict=True))
        rows = [
            tuple(print_cell(*kind, cell) for kind, cell in zip(kinds, row, strict=True))
            for row in found
        ]
        reports, context.reports = context.reports, {}
        return Answer(tag=f"SELECT {len(rows)}", columns=plan.columns, rows=rows, reports=reports)

    def _plan(self, text: str, parameters: Sequence[int]) -> _Plan:
        context = self._context
        key = (text, tuple(parameters), context.session.settings.get("search_path"))
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        known = {number: oid for number, oid in enumerate(parameters, 1) if oid}
        binder = Binder(context, self._store, known)
        try:
            query = binder.query(parse_query(text), Scope())
        except RecursionError:
            raise Refused("54001", "stack depth limit exceeded") from None
        for number in binder.seen_parameters:
            known.setdefault(number, TEXT)
        plan = _Plan(
            sql=query.sql,
            columns=tuple(self._column(bound) for bound in finish_columns(query.columns)),
            fields=tuple(tuple(oid for _, oid in bound.fields) for bound in query.columns),
            reads=frozenset(binder.reads),
            parameters=known,
        )
        if len(self._plans) >= _PREPARED_MAX:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _column(self, bound: Bound) -> AnswerColumn:
        oid, typmod = self._context.types.base_of(bound.type, bound.typmod)
        kind = self._context.types.of(oid)
        return AnswerColumn(
            name=bound.name,
            type_oid=oid,
            type_size=kind.size,
            typmod=typmod,
            table_oid=bound.origin[0],
            number=bound.origin[1],
        )


def _single(sql: str) -> Statement | None:
    statements = split(sql)
    if len(statements) > 1:
        raise Refused("42601", "cannot insert multiple commands into a prepared statement")
    return statements[0] if statements else None


__all__ = ["Catalog", "Prepared", "split"]
