"""A session: options, transactions, and the run of a batch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sim_sqlserver import cdc, ddl_run, metadata, procedures, replies, rewrite, values
from sim_sqlserver.backend import Backend, is_rows
from sim_sqlserver.encode import Encoder, encoder
from sim_sqlserver.errors import STATEMENT_ONLY, TRANSACTION, SqlError
from sim_sqlserver.lexer import (
    BatchSyntaxError,
    Block,
    If,
    Node,
    Statement,
    Try,
    While,
    parse_batch,
)
from sim_sqlserver.metadata import Column
from sim_sqlserver.names import literal, quote_name
from sim_sqlserver.options import set_option
from sim_sqlserver.reply import Reply
from sim_sqlserver.results import describe, encode_rows, fit_columns, read_columns
from sim_sqlserver.sqltypes import SqlType, binary_domain, domain_statement, postgres_type
from sim_sqlserver.variables import Variable, split_declarations

if TYPE_CHECKING:
    from sim_sqlserver.state import DatabaseState, ServerState

_QUERIES = frozenset({"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE", "("})
_DDL = frozenset({"CREATE", "ALTER", "DROP", "TRUNCATE", "ENABLE", "DISABLE"})
_COMMANDS = {
    "select": replies.SELECT, "insert": replies.INSERT, "update": replies.UPDATE,
    "delete": replies.DELETE, "merge": replies.MERGE,
}  # fmt: skip


_SYSTEM = re.compile(r"\b(sys|msdb|information_schema)\s*\.", re.IGNORECASE)
_GAP = "\ue000"  # stands for the value to which a row appends
_NAMES = """
select nspname, nspname in ('sys', 'msdb') from pg_namespace
union select c.relname, n.nspname in ('sys', 'msdb')
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast', 'sim')
union select a.attname, n.nspname in ('sys', 'msdb')
  from pg_attribute a join pg_class c on c.oid = a.attrelid
  join pg_namespace n on n.oid = c.relnamespace
 where a.attnum > 0 and c.relkind in ('r', 'v', 'p')
   and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast', 'sim')
"""


_PROCEDURES_OF_CAPTURE = cdc  # importing the module registers its procedures


class BatchEnd(Exception):
    """The batch ends here: RETURN, or an error that ends it."""


class LoopEnd(Exception):
    """BREAK (is_break) or CONTINUE."""

    def __init__(self, *, is_break: bool) -> None:
        super().__init__()
        self.is_break = is_break


class Session:
    """A login's session.

    Attributes:
        trancount: Open BEGIN TRANSACTION statements.
        variables: Variables of the running batch, by lower-case name.
        reply: Answer to the running request.
    """

    def __init__(self, server: ServerState, database: DatabaseState, spid: int, login: str) -> None:
        self.server, self.database, self.spid, self.login = server, database, spid, login
        self.backend = Backend(server.dsn, database.name, spid)
        self.options: dict[str, str] = {}
        self.trancount = 0
        self.rowcount = 0
        self.variables: dict[str, Variable] = {}
        self.last_error: SqlError | None = None
        self.error_number = 0
        self.is_doomed = False
        self.try_depth = 0
        self.has_ddl = False
        self.identity_table = 0
        self.bulk: Any = None
        self.reply: Reply | None = None
        self.return_status = 0
        self.transaction_number = 0
        self.app = self.host = self.running = ""
        self.is_read_only = self._is_snapshot = False
        self._altered_before = 0
        self._has_savepoint = False
        self.outputs: list[tuple[int, str, SqlType, Any]] = []
        self._prepared: dict[int, tuple[str, str]] = {}

    def open(self) -> None:
        """Set the connection's properties."""
        settings = {
            "search_path": "dbo, simfn, sys, pg_catalog",
            "sim.login": self.login,
            "sim.app": self.app,
            "sim.host": self.host,
            "sim.read_only": str(int(self.is_read_only)),
            "datestyle": "ISO, YMD",
            "timezone": "UTC",
            "extra_float_digits": "3",
            "client_min_messages": "error",
            "bytea_output": "hex",
            "default_transaction_isolation": "read committed",
        }
        for name, value in settings.items():
            quoted_value = value if name == "search_path" else literal(value)
            self.backend.run(f"set {name} = {quoted_value}")
        self.backend.run(
            "insert into sim.sessions select "
            + ", ".join(
                (
                    str(self.spid),
                    "pg_backend_pid()",
                    literal(self.login),
                    literal(self.host),
                    literal(self.app),
                    "clock_timestamp() at time zone 'utc'",
                    "current_database()",
                )
            )
        )

    def close(self) -> None:
        """End the session; a running statement is cancelled, an open transaction rolled back."""
        try:
            self.backend.cancel()
            if self.backend.is_in_transaction:
                self.backend.run("rollback")
            self.backend.run("delete from sim.sessions where pid = pg_backend_pid()")
        finally:
            self.backend.close()

    def reset(self) -> None:
        """Bring the session back to its state after the login (sp_reset_connection)."""
        if self.trancount:
            self.rollback_all()
        self.options.clear()
        self.identity_table = 0
        self.backend.run("set lock_timeout = 0; discard temp")
        self.backend.run("select pg_advisory_unlock_all()")

    def prepare(self, text: str, declared: str) -> int:
        """Keep a text with the declarations of its parameters; return its handle."""
        handle = len(self._prepared) + 1
        while handle in self._prepared:
            handle += 1
        self._prepared[handle] = (text, declared)
        return handle

    def find_prepared(self, handle: Any) -> tuple[str, str]:
        """Return a prepared text; raises SqlError 8179."""
        found = self._prepared.get(handle)
        if found is None:
            raise SqlError(8179, f"Could not find prepared statement with handle {handle}.")
        return found

    def unprepare(self, handle: Any) -> None:
        """Forget a prepared text."""
        self._prepared.pop(handle, None)

    # --- what DDL needs ---------------------------------------------------------------------------

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a PostgreSQL statement."""
        return self.backend.texts(statement)

    def spelling(self, name: str) -> str:
        """Return the existing spelling of a name."""
        return self.database.names.spelling(name, self.load_names)

    def _system_spelling(self, name: str) -> str:
        return self.database.names.spelling(name, self.load_names, is_system=True)

    def load_names(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of tables, columns and schemas; and whether they are the system's."""
        return iter(self.backend.texts(_NAMES))

    def rewritten(self, text: str) -> rewrite.Rewritten:
        """Return a query's PostgreSQL form."""
        is_system = bool(_SYSTEM.search(text))
        spelling = self._system_spelling if is_system else self.spelling
        if "#" in text:  # the columns of a temporary table are the session's own
            return rewrite.rewrite(text, spelling, self._column_names, self.database.name)
        return self.database.rewritten(text, spelling, self._column_names)

    def _column_names(self, schema: str, table: str) -> list[str]:
        return [column.name for column in self.columns_of(schema, table)]

    def expression(self, text: str, *, table: int = 0, is_condition: bool = False) -> str:
        """Return a T-SQL expression over a table's columns as PostgreSQL's."""
        query = f"SELECT 1 WHERE {text}" if is_condition else f"SELECT {text}"
        names = [column.name for _, column in read_columns(table, self.rows)] if table else []
        found = rewrite.rewrite(
            query, self.spelling, self._column_names, self.database.name, scope=names
        )
        done = self.fill(found.sql)
        return done.partition(" WHERE ")[2] if is_condition else done.removeprefix("SELECT ")

    def need_type(self, sql_type: SqlType, *, is_binary: bool = False) -> str:
        """Return the PostgreSQL type of columns; create its domain if it is not there.

        A text in a binary collation has a domain of its own: PostgreSQL's checks of foreign keys
        compare with the collation of the domain, whatever that of the column is.
        """
        text = postgres_type(sql_type)
        if not text.startswith('sim."'):
            return text
        name, statement = sql_type.text, domain_statement(sql_type)
        if is_binary and sql_type.is_text and 'collate sim."default"' in statement:
            name, statement = binary_domain(name, statement)
        if name not in self.database.domains:
            self.database.add_domain(name, statement)
        return f'sim."{name}"'

    def fill(self, statement: str) -> str:
        """Return a statement with values instead of its marks."""
        return rewrite.MARK.sub(lambda match: values.of_mark(self, *match.groups()), statement)

    def columns_of(self, schema: str, table: str) -> list[Column]:
        """Return a table's columns; empty if there is none."""
        name = (
            quote_name(table)
            if table.startswith("#")
            else f"{quote_name(schema or 'dbo')}.{quote_name(table)}"
        )
        return self.database.columns_of(name, self.rows)

    # --- batches ----------------------------------------------------------------------------------

    def run_batch(self, text: str, reply: Reply) -> None:
        """Run a batch and add its answer."""
        self.reply = reply
        self.try_depth = 0
        self.running = text
        try:
            self._run_checked(text)
        finally:
            self.running = ""

    def _run_checked(self, text: str) -> None:
        try:
            nodes = parse_batch(text)
        except BatchSyntaxError as error:
            self.report(SqlError(102, f"Incorrect syntax: {error}", severity=15))
            return
        try:
            for node in nodes:
                self.run_node(node)
        except (BatchEnd, LoopEnd):
            pass
        if self.is_doomed:
            said = "Uncommittable transaction is detected at the end of the batch. The transaction "
            self.report(SqlError(3998, said + "is rolled back."))
            self.rollback_all()

    def run_call(self, name: str, arguments: procedures.Arguments, reply: Reply) -> None:
        """Run a procedure that a client calls."""
        self.reply = reply
        self.try_depth = 0
        with suppress(BatchEnd):
            self._guard(lambda: procedures.call(self, name, arguments))

    def run_nested(self, text: str) -> None:
        """Run a text inside a batch: EXEC of a text, sp_executesql."""
        try:
            nodes = parse_batch(text)
        except BatchSyntaxError as error:
            raise SqlError(102, f"Incorrect syntax: {error}", severity=15) from error
        for node in nodes:
            self.run_node(node)

    def run_node(self, node: Node) -> None:
        """Run a statement or a piece of control flow."""
        if isinstance(node, Block):
            for part in node.body:
                self.run_node(part)
        elif isinstance(node, If):
            if self._guard(lambda: self.condition(node.condition)):
                self.run_node(node.then)
            elif node.otherwise is not None:
                self.run_node(node.otherwise)
        elif isinstance(node, While):
            self._loop(node)
        elif isinstance(node, Try):
            self._try(node)
        else:
            self._guard(lambda: self.run_statement(node))

    def _loop(self, node: While) -> None:
        while self._guard(lambda: self.condition(node.condition)):
            try:
                self.run_node(node.body)
            except LoopEnd as end:
                if end.is_break:
                    return

    def _try(self, node: Try) -> None:
        self.try_depth += 1
        before = self.last_error
        try:
            try:
                self.run_node(node.body)
            finally:
                self.try_depth -= 1
        except SqlError as error:
            if error.severity >= 20:
                raise
            self.last_error = error
            self.run_node(node.handler)
            self.last_error = before

    def _guard(self, action: Callable[[], Any]) -> Any:
        """Run an action; report its error, or raise it to TRY."""
        try:
            result = action()
        except SqlError as error:
            self.settle_error(error)
            if self.try_depth:
                raise
            self.report(error)
            is_statement_only = error.number in STATEMENT_ONLY and not self._is_on("xact_abort")
            if is_statement_only or error.severity <= 10:
                return False
            raise BatchEnd from error
        self.error_number = 0
        return result

    def settle_error(self, error: SqlError) -> None:
        """Undo what an error undoes."""
        self.error_number = error.number
        self.rowcount = 0
        if not self.trancount:
            if self.backend.is_in_transaction:
                self.backend.run("rollback")
        elif error.number in TRANSACTION:
            self.rollback_all()
        elif self._is_on("xact_abort") and not getattr(error, "is_raised", False):
            if self.try_depth:
                self._back_to_savepoint()
                self.is_doomed = True
            else:
                self.rollback_all()
        else:
            self._back_to_savepoint()
        self._name_key(error)

    def _name_key(self, error: SqlError) -> None:
        """Complete the message of a violated key."""
        if not error.constraint or self.backend.has_failed:
            return
        schema, _, name = error.constraint.partition(".")
        found = self.rows(
            f"select 1 from pg_constraint where conname = {literal(name)} and contype = 'p' "
            f"and connamespace = {literal(quote_name(schema))}::regnamespace"
        )
        if found:
            error.is_primary_key()

    def _back_to_savepoint(self) -> None:
        if self._has_savepoint:
            self.backend.run("rollback to savepoint sim$statement")
        elif self.backend.has_failed:
            self.rollback_all()

    def report(self, error: SqlError) -> None:
        """Send an error."""
        assert self.reply is not None
        self.reply.error(error)
        self.reply.add_done(replies.ERROR, 0, 0)

    def info(self, said: str, number: int = 0) -> None:
        """Send a message that does not count as an error."""
        assert self.reply is not None
        message = SqlError(number, said, severity=0)
        self.reply.add(replies.message(message, is_info=True))

    def _is_on(self, option: str) -> bool:
        return self.options.get(option, "OFF") == "ON"

    # --- transactions -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction, or count one more."""
        if self.trancount == 0:
            level = self.options.get("isolation", "READ COMMITTED")
            if level == "SNAPSHOT" and not self.database.has_snapshots:
                self.database.refresh(self.rows)
            names = {"SNAPSHOT": "repeatable read", "SERIALIZABLE": "serializable"}
            isolation = names.get(level, "read committed")
            if self.is_read_only:
                isolation = "repeatable read"
            self._is_snapshot = isolation == "repeatable read"
            self._altered_before = self.database.altered_count
            self.backend.run(f"begin isolation level {isolation}")
            self._has_savepoint = False
            self.transaction_number = self.server.next_transaction()
            if self.reply is not None:
                self.reply.add(self._transaction_change(8))
        self.trancount += 1

    def commit(self) -> None:
        """Commit the innermost transaction; the outermost is made durable."""
        if self.trancount == 0:
            raise SqlError(
                3902, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION."
            )
        if self.is_doomed:
            said = "The current transaction cannot be committed and cannot support operations that "
            raise SqlError(3930, said + "write to the log file. Roll back the transaction.")
        if self.trancount == 1:
            self.trancount = 0
            try:
                self.backend.run("commit")
            finally:
                self._note_end(9)
        else:
            self.trancount -= 1

    def rollback_all(self) -> None:
        """Roll the whole transaction back."""
        self.backend.run("rollback")
        self.trancount = 0
        self.is_doomed = False
        self._note_end(10)

    def _note_end(self, kind: int) -> None:
        self._has_savepoint = False
        if self.has_ddl:
            self.database.names_changed()
            self.has_ddl = False
        self.server.release_locks(self)
        if self.reply is not None:
            self.reply.add(self._transaction_change(kind))

    def _transaction_change(self, kind: int) -> bytes:
        number = b"\x08" + self.transaction_number.to_bytes(8, "little")
        return replies.env_change(kind, *((number, b"\0") if kind == 8 else (b"\0", number)))

    @contextmanager
    def statement(self, *, writes: bool, needs_block: bool = False) -> Iterator[None]:
        """Run a statement in the transaction; a failed one is undone alone."""
        if writes and self.is_read_only:
            said = f'Failed to update database "{self.database.name}" because the database is '
            raise SqlError(3906, said + "read-only.")
        if writes and self.is_doomed:
            said = "The current transaction cannot be committed and cannot support operations that "
            raise SqlError(3930, said + "write to the log file. Roll back the transaction.")
        if not self.trancount and self._is_on("implicit_transactions"):
            self.begin()
        if self.trancount:
            release = "release savepoint sim$statement; " if self._has_savepoint else ""
            self.backend.run(f"{release}savepoint sim$statement")
            self._has_savepoint = True
            self._mark_statement(writes)
            yield
            return
        if not (needs_block or (writes and self.database.has_cdc)):
            yield
            return
        self.backend.run("begin")
        try:
            self._mark_statement(writes)
            yield
        except BaseException:
            if self.backend.is_in_transaction:
                self.backend.run("rollback")
            raise
        self.backend.run("commit")

    def _mark_statement(self, writes: bool) -> None:
        """Let the log of PostgreSQL tell where a statement begins."""
        if writes and self.database.has_cdc:
            self.backend.run("select sim.mark_statement()")

    # --- statements -------------------------------------------------------------------------------

    def run_statement(self, statement: Statement) -> None:
        """Run one statement; raises SqlError."""
        head = statement.head
        self.server.check_failure(self, statement.text)
        if head == "UPDATE" and statement.tokens[1].upper == "STATISTICS":
            return
        if head == "INSERT" and statement.tokens[1].upper == "BULK":
            procedures.begin_bulk(self, statement)
        elif head == "INSERT" and any(t.upper in ("EXEC", "EXECUTE") for t in statement.tokens):
            raise SqlError(102, "The simulator does not know INSERT .. EXEC.", severity=15)
        elif head in _QUERIES:
            self.query(statement.text)
        elif head in ("EXEC", "EXECUTE"):
            procedures.execute(self, statement.tokens[1:])
        elif head == "SET":
            self._set(statement)
        elif head == "DECLARE":
            self._declare(statement)
        elif head in _DDL:
            ddl_run.run(self, statement)
        elif head in _SIMPLE:
            _SIMPLE[head](self, statement)
        else:
            procedures.execute(self, statement.tokens)

    def _declare(self, statement: Statement) -> None:
        for (name, sql_type, _), value in split_declarations(statement.tokens[1:]):
            self.variables[name] = Variable(sql_type)
            if value:
                self.variables[name].value = self.evaluate(_text(value), sql_type)

    def _set(self, statement: Statement) -> None:
        tokens = statement.tokens
        if tokens[1].kind == "variable":
            variable = self._variable(tokens[1].text)
            variable.value = self.evaluate(_text(tokens[3:]), variable.type)
        else:
            set_option(self, tokens[1:])

    def _variable(self, text: str) -> Variable:
        found = self.variables.get(text.lstrip("@").lower())
        if found is None:
            raise SqlError(137, f'Must declare the scalar variable "{text}".', severity=15)
        return found

    def evaluate(self, text: str, sql_type: SqlType | None = None) -> Any:
        """Return the value of an expression as it would be decoded from a client."""
        done = self.rewritten(f"SELECT {text}")
        with self.statement(writes=False):
            found = self.rows(self.fill(done.sql))
        return values.as_value(found[0][0] if found else None, sql_type)

    def condition(self, text: str) -> bool:
        """Return whether a condition is true."""
        done = self.rewritten(f"SELECT 1 WHERE {text}")
        with self.statement(writes=False):
            return bool(self.rows(self.fill(done.sql)))

    def query(self, text: str) -> None:
        """Run a query or change, and send its rows or their number."""
        done = self.rewritten(text)
        if done.kind == "select":
            self.database.check_read(self)
            if self.trancount and self._is_snapshot:
                self.database.check_snapshot(text, self._altered_before)
        values.check_change(self, done)
        sql = self.fill(values.with_columns(self, done))
        if done.targets:
            self._assign(done)
            return
        if done.into is not None:
            ddl_run.select_into(self, done, sql)
            return
        writes = done.kind != "select"
        if self._is_on("fmtonly") and not writes:
            sql = f"select * from ({sql}) as x limit 0"
        with self.statement(writes=writes, needs_block=bool(done.locks)):
            values.take_locks(self, done)
            rows = self._send(done, values.with_row_locks(done, sql))
            values.after_change(self, done)
        if self.trancount and self._is_snapshot and not writes and not done.locks:
            # A snapshot keeps no lock on what it has read, which PostgreSQL would.
            self.backend.run("rollback to savepoint sim$statement")
        self.rowcount = rows
        assert self.reply is not None
        if done.kind != "select" and self._is_on("nocount"):
            self.reply.add_done(0, _COMMANDS.get(done.kind, 0), 0)
        else:
            self.reply.add_done(replies.COUNT, _COMMANDS.get(done.kind, replies.SELECT), rows)

    def _assign(self, done: rewrite.Rewritten) -> None:
        """Run `SELECT @x = ..`; an expression may append to its own variable in each row."""
        own = [name for name in done.targets if f'"ms$v${name}"' in done.sql]
        with self.statement(writes=False):
            found = self.rows(self.fill(done.sql))
            if own and found:
                self._append(done, own[0])
                self.rowcount = len(found)
                return
        self.rowcount = len(found)
        if found:
            for name, value in zip(done.targets, found[-1], strict=True):
                variable = self._variable(name)
                variable.value = values.as_value(value, variable.type)

    def _append(self, done: rewrite.Rewritten, name: str) -> None:
        variable, place = self._variable(name), done.targets.index(name)
        before = variable.value
        variable.value = None
        firsts = [row[place] for row in self.rows(self.fill(done.sql))]
        variable.value = _GAP
        others = [row[place] for row in self.rows(self.fill(done.sql))]
        value = before
        for first, other in zip(firsts, others, strict=True):
            value = first if value is None else str(other).replace(_GAP, str(value))
        variable.value = value

    def _send(self, done: rewrite.Rewritten, sql: str) -> int:
        """Send the rows of a statement; return how many rows it had or changed."""
        assert self.reply is not None
        described: list[tuple[Column, Encoder]] | None = None
        if done.kind == "select" or done.has_output:
            shape = self.backend.prepare(sql)
            guid = self.database.types.guid(self.rows)
            described = describe(shape, done.types, done.unnamed, self.find_column, guid)
        encoders: list[Encoder] | None = None
        rows = changed = 0
        for result in self.backend.stream(sql):
            if described is None:
                changed = result.command_tuples or 0
                continue
            if encoders is None:
                described = fit_columns(described, result)
                encoders = [encode for _, encode in described]
                self.reply.add(metadata.column_metadata([column for column, _ in described]))
            if result.ntuples:
                self.reply.add(encode_rows(result, encoders))
                rows += result.ntuples
        return changed if described is None else rows

    def find_column(self, table: int, number: int) -> Column | None:
        """Return a relation's column; None if it has none of this number."""
        return self.database.types.find(table, number, self.database.names.version, self.rows)

    def send_rows(self, columns: list[Column], sql: str) -> None:
        """Send the rows of a PostgreSQL statement with these columns."""
        assert self.reply is not None
        encoders = None
        rows = 0
        for result in self.backend.stream(sql):
            if not is_rows(result):
                continue
            if encoders is None:
                encoders = [encoder(c.type, result.ftype(p)) for p, c in enumerate(columns)]
                self.reply.add(metadata.column_metadata(columns))
            self.reply.add(encode_rows(result, encoders))
            rows += result.ntuples
        self.reply.add_done(replies.COUNT, replies.SELECT, rows)


def _text(tokens: Any) -> str:
    return " ".join(token.text for token in tokens)


def _transaction(session: Session, statement: Statement) -> None:
    words = [token.upper for token in statement.tokens]
    if statement.head == "BEGIN":
        session.begin()
    elif statement.head == "COMMIT":
        session.commit()
    elif statement.head == "SAVE":
        session.backend.run(f"savepoint {quote_name('t$' + statement.tokens[2].identifier)}")
        session._has_savepoint = False
    elif len(words) > 2 and words[1] in ("TRAN", "TRANSACTION"):
        name = statement.tokens[2].identifier
        session.backend.run(f"rollback to savepoint {quote_name('t$' + name)}")
        session._has_savepoint = False
    elif session.trancount == 0:
        raise SqlError(
            3903, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION."
        )
    else:
        session.rollback_all()


def _print(session: Session, statement: Statement) -> None:
    session.info(str(session.evaluate(_text(statement.tokens[1:]))))


def _throw(session: Session, statement: Statement) -> None:
    if len(statement.tokens) == 1:
        if session.last_error is None:
            raise SqlError(10704, "To rethrow an error, THROW must be inside a CATCH block.")
        raise session.last_error
    values_ = [session.evaluate(_text(part)) for part in _arguments(statement.tokens[1:])]
    raise SqlError(int(values_[0]), str(values_[1]), state=int(values_[2]))


def _arguments(tokens: Any) -> Any:
    from sim_sqlserver.variables import split_at_commas

    return split_at_commas(tuple(tokens))


def _raiserror(session: Session, statement: Statement) -> None:
    inner = statement.tokens[2:]
    closing = max(place for place, token in enumerate(inner) if token.text == ")")
    parts = [session.evaluate(_text(part)) for part in _arguments(inner[:closing])]
    said = str(parts[0])
    for argument in parts[3:]:
        for form in ("%s", "%d", "%i"):
            if form in said:
                said = said.replace(form, str(argument), 1)
                break
    severity = int(parts[1])
    if severity <= 10:
        session.info(said, 50_000)
        return
    error = SqlError(50_000, said, severity=severity, state=max(int(parts[2]), 1))
    error.is_raised = True  # type: ignore[attr-defined]
    raise error


def _use(session: Session, statement: Statement) -> None:
    session.server.use(session, statement.tokens[1].identifier)


def _wait(session: Session, statement: Statement) -> None:
    text = statement.tokens[2].literal
    hours, minutes, seconds = text.split(":")
    end = time.monotonic() + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    while (left := end - time.monotonic()) > 0:
        for _ in session.backend.stream(f"select pg_sleep({min(left, 0.5)})"):
            pass


def _return(session: Session, statement: Statement) -> None:
    if len(statement.tokens) > 1:
        session.return_status = int(session.evaluate(_text(statement.tokens[1:])))
    raise BatchEnd


def _loop_end(session: Session, statement: Statement) -> None:
    raise LoopEnd(is_break=statement.head == "BREAK")


def _ignore(session: Session, statement: Statement) -> None:
    assert session.reply is not None
    session.reply.add_done(0, 0, 0)


def _kill(session: Session, statement: Statement) -> None:
    session.server.kill(int(statement.tokens[1].text))


_SIMPLE: dict[str, Callable[[Session, Statement], None]] = {
    "BEGIN": _transaction, "COMMIT": _transaction, "ROLLBACK": _transaction, "SAVE": _transaction,
    "PRINT": _print, "THROW": _throw, "RAISERROR": _raiserror, "USE": _use, "WAITFOR": _wait,
    "RETURN": _return, "BREAK": _loop_end, "CONTINUE": _loop_end, "CHECKPOINT": _ignore,
    "GRANT": ddl_run.grant, "REVOKE": ddl_run.grant, "DENY": ddl_run.grant, "KILL": _kill,
}  # fmt: skip
