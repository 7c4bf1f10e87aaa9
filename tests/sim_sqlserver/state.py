"""State that the sessions of a server share: databases, logins, known texts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from sim_sqlserver import replies, setup
from sim_sqlserver.backend import Backend
from sim_sqlserver.capture import Capture, drop_slot, make_slot
from sim_sqlserver.ddl import qualify
from sim_sqlserver.ddl_parse import Name, Reader
from sim_sqlserver.errors import ConnectionDropped, SqlError
from sim_sqlserver.lexer import tokenize
from sim_sqlserver.metadata import Column
from sim_sqlserver.names import NameBook, literal, quote_name
from sim_sqlserver.results import ColumnTypes, Rows, read_columns
from sim_sqlserver.rewrite import Rewritten, rewrite
from sim_sqlserver.texts import KnownTexts

if TYPE_CHECKING:
    from sim_sqlserver.session import Session

SYSTEM_DATABASES = frozenset({"", "master", "tempdb", "msdb", "model"})
REWRITTEN_MAX = 4000
TESTS = "tests"  # login with the rights of sa; texts of tests... are not recorded nor refused


class DatabaseState:
    """State of a database.

    Attributes:
        name: PostgreSQL's name of the database.
        has_cdc: Whether change data capture is enabled.
        has_snapshots: Whether snapshot isolation is allowed.
        altered: Tables that DDL has changed, with the number of the change.
    """

    def __init__(self, server: ServerState, name: str) -> None:
        self.server, self.name = server, name
        self.names = NameBook()
        self.types = ColumnTypes()
        self.domains: set[str] = set()
        self.altered: dict[str, int] = {}
        self.altered_count = 0
        self.has_cdc = self.has_snapshots = False
        self._rewritten: dict[tuple[str, int], Rewritten] = {}
        self._columns: dict[tuple[str, int], tuple[int, list[Column]]] = {}
        self._lock = threading.Lock()
        self._capture: Capture | None = None
        with psycopg.connect(server.dsn, dbname=name, autocommit=True) as connection:
            setup.prepare(connection)
            found = connection.execute(
                "select typname from pg_type where typnamespace = 'sim'::regnamespace "
                "and typtype = 'd'"
            )
            self.domains = {str(row[0]) for row in found}
            self.refresh(lambda statement: connection.execute(statement.encode()).fetchall())
        if self.has_cdc:
            self._capture = Capture(server.dsn, name)

    def refresh(self, rows: Rows) -> None:
        """Read the settings again."""
        found: dict[str, str] = dict(rows("select name, value from sim.settings"))
        self.has_cdc = found.get("is_cdc_enabled") == "1"
        self.has_snapshots = found.get("snapshot_isolation_state") == "1"

    def names_changed(self) -> None:
        """Forget names and types, because DDL has run."""
        self.names.note_change()
        with self._lock:
            self._rewritten.clear()
            self._columns.clear()

    def note_altered(self, statement: str) -> None:
        """Note a table that DDL has changed: older snapshots cannot read it any more."""
        tokens = tokenize(statement)[2:]
        words = [t.identifier.lower() for t in tokens if t.kind in ("word", "name")]
        name = next((w for w in words if w not in ("if", "exists", "dbo")), "")
        self.altered_count += 1
        self.altered[name] = self.altered_count

    def check_snapshot(self, text: str, since: int) -> None:
        """Raise SqlError 3961 if a query names a table that was altered after its snapshot.

        Args:
            text: T-SQL.
            since: Number of alterations when the snapshot began.
        """
        later = {name for name, number in self.altered.items() if number > since}
        if later and later & _tables_of(text):
            said = f"Snapshot isolation transaction failed in database '{self.name}' because the "
            said += "object accessed by the statement has been modified by a DDL statement in "
            said += "another concurrent transaction since the start of this transaction."
            raise SqlError(3961, said)

    def add_domain(self, name: str, statement: str) -> None:
        """Create a domain outside of any transaction."""
        with self._lock:
            if name in self.domains:
                return
            with (
                psycopg.connect(self.server.dsn, dbname=self.name, autocommit=True) as connection,
                suppress(psycopg.errors.DuplicateObject),
            ):
                connection.execute(statement.encode())
            self.domains.add(name)

    def rewritten(
        self,
        text: str,
        spelling: Callable[[str], str],
        columns: Callable[[str, str], list[str]],
    ) -> Rewritten:
        """Return a query's PostgreSQL form; it is kept until names change."""
        key = (text, self.names.version)
        found = self._rewritten.get(key)
        if found is None:
            found = rewrite(text, spelling, columns, self.name)
            with self._lock:
                if len(self._rewritten) >= REWRITTEN_MAX:
                    self._rewritten.clear()
                self._rewritten[key] = found
        return found

    def columns_of(self, table: str, rows: Rows) -> list[Column]:
        """Return the columns of a table, by its quoted name."""
        return self._table(table, rows)[1]

    def _table(self, table: str, rows: Rows) -> tuple[int, list[Column]]:
        key = (table, self.names.version)
        found = self._columns.get(key)
        if found is None:
            number = rows(f"select to_regclass({literal(table)})::oid::int")[0][0]
            columns = [column for _, column in read_columns(number, rows)] if number else []
            found = (number or 0, columns)
            if not table.startswith('"#') and found[0]:
                with self._lock:
                    self._columns[key] = found
        return found

    def table_number(self, session: Session, table: tuple[str, str]) -> int:
        """Return a table's object id."""
        schema, name = table
        text = (
            quote_name(name)
            if name.startswith("#")
            else f"{quote_name(schema or 'dbo')}.{quote_name(name)}"
        )
        return self._table(text, session.rows)[0]

    def table_text(self, session: Session, name: str) -> str:
        """Return a table's quoted name for one written in T-SQL."""
        return qualify(session, Reader(name, tokenize(name)).name())

    def check_read(self, session: Session) -> None:
        """Raise SqlError 3952 for a read in a snapshot that the database does not allow."""
        if session.options.get("isolation") == "SNAPSHOT" and not self.has_snapshots:
            said = "Snapshot isolation transaction failed accessing database "
            said += f"'{self.name}' because snapshot isolation is not allowed in this database."
            raise SqlError(3952, said)

    def set(self, name: str, value: str) -> None:
        """Set a property of the database."""
        with psycopg.connect(self.server.dsn, dbname=self.name, autocommit=True) as connection:
            connection.execute(
                "insert into sim.settings values (%s, %s) on conflict (name) do update "
                "set value = excluded.value",
                (name, value),
            )
            self.refresh(lambda statement: rows_of(connection, statement))

    # --- change data capture ----------------------------------------------------------------------

    def enable_cdc(self) -> None:
        """Create what capture needs, and start it."""
        make_slot(self.server.dsn, self.name)
        self._execute("select sim.enable_cdc()")
        self.names_changed()
        self._capture = Capture(self.server.dsn, self.name)

    def disable_cdc(self) -> None:
        """Stop capture and drop its tables."""
        if self._capture is not None:
            self._capture.stop()
            self._capture = None
        self._execute("select sim.disable_cdc()")
        drop_slot(self.server.dsn, self.name)
        self.names_changed()

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.server.dsn, dbname=self.name, autocommit=True) as connection:
            connection.execute("set search_path = dbo, simfn, sys, pg_catalog")
            connection.execute(statement.encode())
            self.refresh(lambda text: rows_of(connection, text))

    @contextmanager
    def paused_capture(self) -> Iterator[None]:
        """Let no scan run in a with block."""
        with self._capture.lock if self._capture is not None else nullcontext():
            yield

    def scan(self) -> int:
        """Capture at once; return the number of transactions."""
        if self._capture is None:
            return 0
        with self._capture.lock:
            return self._capture.scan(is_forced=True)

    def drop(self) -> None:
        """Drop the database with its slots."""
        if self._capture is not None:
            self._capture.stop()
            self._capture = None
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
                "where database = %s",
                (self.name,),
            )
            statement = sql.SQL("drop database if exists {} with (force)")
            connection.execute(statement.format(sql.Identifier(self.name)))

    # --- change data capture: what it forbids and notes ------------------------------------------

    def check_truncate(self, session: Session, number: int, shown: str) -> None:
        """Raise SqlError 4711 if a table is captured."""
        if self.has_cdc and session.rows(f"select sim.is_tracked({number})")[0][0]:
            said = f"Cannot truncate table '{shown}' because it is published for replication or "
            raise SqlError(4711, said + "enabled for Change Data Capture.")

    def check_rename(self, session: Session, number: int, column: str) -> None:
        """Raise SqlError 4928 if a column is captured."""
        if (
            self.has_cdc
            and session.rows(f"select sim.is_captured({number}, {literal(column)})")[0][0]
        ):
            said = f"Cannot alter column '{column}' because it is 'REPLICATED'."
            raise SqlError(4928, said)

    def check_alter(self, session: Session, name: Name, reader: Reader) -> None:
        """Raise SqlError for an ALTER TABLE that capture forbids."""

    def check_drop(self, session: Session, name: Name) -> None:
        """Drop the capture instances of a table that is dropped."""
        if self.has_cdc:
            shown = literal(qualify(session, name))
            session.rows(f"select sim.forget_table(to_regclass({shown}))")

    def note_ddl(self, session: Session, name: Name, text: str) -> None:
        """Let the log tell of DDL on a captured table."""
        if self.has_cdc:
            shown = literal(qualify(session, name))
            session.rows(f"select sim.note_ddl(to_regclass({shown}), {literal(text)})")


def _tables_of(text: str) -> set[str]:
    """Return the names of a query's tables, in lower case and without their schemas."""
    tokens = tokenize(text)
    found = set()
    for before, token, after in zip(tokens, tokens[1:], (*tokens[2:], None), strict=False):
        begins = before.text == "." or before.upper in ("FROM", "JOIN")
        if begins and (after is None or after.text != "."):
            found.add(token.identifier.lower())
    return found


class ServerState:
    """State of the server.

    Attributes:
        dsn: PostgreSQL server.
        logins: Passwords by login.
        sessions: Running sessions by number.
        texts: Texts that clients other than tests may send.
    """

    def __init__(self, dsn: str, password: str, texts: KnownTexts) -> None:
        self.dsn = dsn
        self.logins = {"sa": password, TESTS: password}
        self.sessions: dict[int, Session] = {}
        self._databases: dict[str, DatabaseState] = {}
        self._lock = threading.RLock()
        self._spids = itertools.count(51)
        self._transactions = itertools.count(1)
        self.texts = texts
        self._failures: list[list[Any]] = []
        self.closers: dict[int, Callable[[], None]] = {}

    def next_spid(self) -> int:
        """Return a session's number."""
        return next(self._spids)

    def next_transaction(self) -> int:
        """Return a transaction's number."""
        return next(self._transactions)

    def database(self, name: str) -> DatabaseState:
        """Return a database; raises SqlError 4060."""
        with self._lock:
            wanted = "master" if name.lower() in SYSTEM_DATABASES else name
            found = self._databases.get(wanted.lower())
            if found is None:
                actual = self._find(wanted)
                if actual is None and wanted == "master":
                    setup.make_database(self.dsn, "master")
                    actual = "master"
                if actual is None:
                    said = (
                        f'Cannot open database "{name}" requested by the login. The login failed.'
                    )
                    raise SqlError(4060, said, severity=11)
                found = self._databases[wanted.lower()] = DatabaseState(self, actual)
            return found

    def _find(self, name: str) -> str | None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(
                "select datname from pg_database where lower(datname) = lower(%s) "
                "and not datistemplate",
                (name,),
            ).fetchone()
        return None if row is None else str(row[0])

    def create_database(self, name: str) -> None:
        """Create a database."""
        if self._find(name) is not None:
            raise SqlError(1801, f"Database '{name}' already exists. Choose a different name.")
        setup.make_database(self.dsn, name)

    def forget_database(self, name: str) -> None:
        """Forget the state of a database that was dropped."""
        with self._lock:
            self._databases.pop(name.lower(), None)

    def check_text(self, session: Session, text: str) -> None:
        """Record a text of a client; raises SqlError 50001 if it must be known and is not."""
        if not session.login.startswith(TESTS):
            self.texts.check(text)

    def use(self, session: Session, name: str) -> None:
        """Let a session continue in another database."""
        state = self.database(name)
        old = session.database
        watch, client = session.backend.watch, session.backend.client
        session.close()
        session.database = state
        session.backend = Backend(self.dsn, state.name, session.spid)
        session.backend.watch, session.backend.client = watch, client
        session.open()
        assert session.reply is not None
        change = replies.env_change(1, replies.b_text(name), replies.b_text(old.name))
        session.reply.add(change)

    def release_locks(self, session: Session) -> None:
        """End what a transaction holds beside PostgreSQL's locks: nothing yet."""

    def kill_others(self, session: Session) -> None:
        """End all other sessions of a database."""
        for spid, other in list(self.sessions.items()):
            if other is not session and other.database is session.database:
                self.closers[spid]()

    def count_running(self, session: Session, text: str) -> int:
        """Return how many other sessions of a database run a request that contains a text."""
        return sum(
            other is not session and other.database is session.database and text in other.running
            for other in list(self.sessions.values())
        )

    def fail_next(self, database: str, number: int, like: str, times: int, after: int) -> None:
        """Note a failure of coming statements."""
        with self._lock:
            self._failures.append([database, number, like, times, after])

    def check_failure(self, session: Session, text: str) -> None:
        """Raise SqlError, or cut the connection, for a text that shall fail."""
        if not self._failures:
            return
        with self._lock:
            for failure in self._failures:
                database, number, like, times, after = failure
                if database != session.database.name or like not in text:
                    continue
                if after > 0:
                    failure[4] -= 1
                    return
                failure[3] -= 1
                if times <= 1:
                    self._failures.remove(failure)
                if number == 0:
                    raise ConnectionDropped
                raise SqlError(number, "made by sim.fail_next", severity=13)

    def kill(self, spid: int) -> None:
        """End a session without an answer; raises SqlError 6106."""
        closer = self.closers.get(spid)
        if closer is None:
            raise SqlError(6106, f"Process ID {spid} is not an active process ID.")
        closer()


def rows_of(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    return connection.execute(statement.encode()).fetchall()
