"""Sessions of the simulated database: they run the texts that clients send."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim_oracle import changes, definitions
from sim_oracle.columns import Column
from sim_oracle.constraints import check_changes
from sim_oracle.conversions import convert_value
from sim_oracle.database import Database
from sim_oracle.ddl_text import Words
from sim_oracle.errors import Blocked, OraError
from sim_oracle.grammar import Token, bind_names, tokenize
from sim_oracle.literals import Nls
from sim_oracle.mining import CONSTANTS, MiningSession
from sim_oracle.query import OutputColumn, Reader
from sim_oracle.tables import Table
from sim_oracle.texts import KnownTexts
from sim_oracle.transactions import Done, Transaction
from sim_oracle.views import ROOT, Context

KNOWN_TEXTS = Path(__file__).parents[1] / "data" / "oracle_known_texts.sql"
ALL_PRIVILEGES = frozenset(
    [
        "CREATE SESSION",
        "SET CONTAINER",
        "LOGMINING",
        "EXECUTE_CATALOG_ROLE",
        "SELECT ANY TRANSACTION",
        "SELECT ANY DICTIONARY",
        "SELECT ANY TABLE",
        "FLASHBACK ANY TABLE",
        "ALTER SYSTEM",
        "CREATE USER",
        "DROP USER",
        "CREATE TABLE",
        "CREATE ANY TABLE",
        "ALTER ANY TABLE",
        "DROP ANY TABLE",
        "LOCK ANY TABLE",
        "INSERT ANY TABLE",
        "UPDATE ANY TABLE",
        "DELETE ANY TABLE",
        "CREATE ANY INDEX",
        "DROP ANY INDEX",
        "UNLIMITED TABLESPACE",
    ]
)
_NLS_FIELDS = {
    "NLS_DATE_FORMAT": "date",
    "NLS_TIMESTAMP_FORMAT": "timestamp",
    "NLS_TIMESTAMP_TZ_FORMAT": "timestamp_tz",
    "NLS_NUMERIC_CHARACTERS": "numeric",
}
_SETTINGS = frozenset(
    [
        "TIME_ZONE",
        "CONTAINER",
        "CURRENT_SCHEMA",
        "NLS_CALENDAR",
        "NLS_LANGUAGE",
        "NLS_TERRITORY",
        "NLS_SORT",
        "NLS_COMP",
        "STATISTICS_LEVEL",
        "ISOLATION_LEVEL",
        "DDL_LOCK_TIMEOUT",
        "CONSTRAINTS",
        "NLS_LENGTH_SEMANTICS",
        "NLS_DUAL_CURRENCY",
        "NLS_CURRENCY",
        "PLSQL_WARNINGS",
        "OPTIMIZER_MODE",
        "COMMIT_WRITE",
    ]
)
_ZONE = re.compile(r"([+-]?)(\d{1,2}):(\d{2})\Z")
TEST_USER = "TESTS"  # user of the tests themselves, who may send any text
_WAIT_S = 0.01
_FOREVER_CODE = 60  # of a wait that the model's limit ends
_DDL = frozenset(
    ["CREATE", "DROP", "TRUNCATE", "ALTER", "GRANT", "REVOKE", "COMMENT", "RENAME", "PURGE"]
)
_FOR_UPDATE = re.compile(r"(?i)\bFOR\s+UPDATE\b")
CUT = 0  # number of an injected failure that ends the connection


@dataclass(slots=True)
class Failure:
    """A failure that the next statements meet.

    Attributes:
        code: Number of the error; CUT ends the connection.
        like: Part of the text.
        times: How many statements still fail.
        after: How many statements succeed before.
        at_fetch: Whether fetches fail in place of executions.
    """

    code: int
    like: str
    times: int = 1
    after: int = 0
    at_fetch: bool = False


@dataclass(slots=True)
class Server:
    """A database behind a listener.

    Attributes:
        database: The model.
        users: Passwords by user.
        services: Container by service name.
        texts: Known texts.
        on_statement: Called with each text before it runs.
        on_fetch: Called with the text of a result before rows are fetched.
        failures: Failures that statements meet.
        statements: Texts that ran.
        is_down: Whether nothing listens.
        lock_timeout_s: How long a change waits for another session before it is a deadlock.
        delays: Milliseconds that statements with a text take, which call_timeout sees.
        sessions: Sessions by SID.
    """

    database: Database
    users: dict[str, str] = field(
        default_factory=lambda: {"c##penstock": "secret", TEST_USER.lower(): "secret"}
    )
    services: dict[str, str] = field(default_factory=dict)
    texts: KnownTexts = field(default_factory=lambda: KnownTexts(KNOWN_TEXTS))
    on_statement: Callable[[str], None] = lambda _: None
    on_fetch: Callable[[str], None] = lambda _: None
    failures: list[Failure] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    is_down: bool = False
    delays: dict[str, int] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    lock_timeout_s: float = 5.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if not self.services:
            self.services = {self.database.name: ROOT}
            self.services |= {name.lower(): name for name in self.database.pdbs}

    def fail_next(
        self, code: int, like: str, *, times: int = 1, after: int = 0, at_fetch: bool = False
    ) -> None:
        """Let statements whose text has a part fail."""
        self.failures.append(Failure(code, like, times, after, at_fetch))

    def meet(self, text: str, *, at_fetch: bool = False) -> None:
        """Raise the failure that a statement meets, if any."""
        for failure in self.failures:
            if failure.at_fetch is not at_fetch or failure.like.upper() not in text.upper():
                continue
            if failure.after > 0:
                failure.after -= 1
            elif failure.times > 0:
                failure.times -= 1
                code = failure.code or 3113
                raise OraError(code, text="injected failure")


@dataclass(slots=True)
class Outcome:
    """Result of a statement.

    Attributes:
        columns: Columns of a query; None of other statements.
        rows: Rows of a query.
        count: Changed rows.
        check: Called before each fetch; raises OraError.
    """

    columns: list[OutputColumn] | None = None
    rows: Iterator[tuple[Any, ...]] | None = None
    count: int = 0
    check: Callable[[], None] = lambda: None


class Session:
    """A session of a server.

    Attributes:
        container: Current container.
        transaction: Open transaction; None between transactions.
        mining: Its LogMiner session.
        nls: Settings on which texts depend.
        schema: Schema of names without one.
        sid: Number of the session.
        deferred: Constraints that this transaction defers; None defers all deferrable ones.
        read_scn: SCN that all queries of a READ ONLY or SERIALIZABLE transaction see.
        is_read_only: Whether the transaction may not change rows.
        is_killed: Whether another session ended this one.
        is_waiting: Whether its statement waits for a lock.
        is_running: Whether a statement runs or waits.
        is_cancelled: Whether another thread cancelled the statement that runs.
        module: MODULE of V$SESSION.
    """

    def __init__(self, server: Server, user: str, container: str) -> None:
        self.server = server
        self.database = server.database
        self.user = user.upper()
        self.schema = self.user
        self.container = container
        self.transaction: Transaction | None = None
        self.mining = MiningSession(self.database)
        self.nls = Nls()
        self.parameters = {"NLS_LANGUAGE": "AMERICAN", "NLS_TERRITORY": "AMERICA"}
        self.deferred: dict[str, bool] = {}
        self.read_scn: int | None = None
        self.is_read_only = False
        self.is_serializable = False
        self.is_killed = False
        self.is_waiting = False
        self.is_running = False
        self.is_cancelled = False
        self.ddl_lock_timeout_s = 0
        self.module: str | None = None
        self.last_text = ""
        self.sid = next(n for n in itertools.count(101) if n not in server.sessions)
        self.serial = 1000 + self.sid
        server.sessions[self.sid] = self
        self.database.users.add(self.user)
        self._store_nls()

    @property
    def privileges(self) -> frozenset[str]:
        """Return the privileges of the user."""
        grants = self.database.settings.grants
        return ALL_PRIVILEGES if grants is None else grants

    def context(self) -> Context:
        """Return what views show to this session."""
        return Context(
            self.database,
            self.container,
            self.user,
            self.nls,
            self.privileges,
            lambda: self.mining.contents(self.nls),
            self._mined_files,
            self.parameters,
            self,
        )

    def _mined_files(self) -> list[tuple[Any, ...]]:
        return [
            (one.name, one.log.thread, one.log.sequence, one.log.first_scn, one.log.next_scn)
            for one in self.mining.files
        ]

    def find_table(self, owner: str, name: str, action: str = "SELECT") -> Table:
        """Return a table of the current container; raises OraError 942 or 1031."""
        table = self.database.table(owner, name, self.container)
        if owner == self.user or self.database.settings.grants is None:
            return table
        if not self._may(action, owner, name):
            raise OraError(1031 if self._may("SELECT", owner, name) else 942)
        return table

    def _may(self, action: str, owner: str, name: str) -> bool:
        return bool(self.privileges & {f"{action} ANY TABLE", f"{action} ON {owner}.{name}"})

    def find_table_of(self, name: tuple[str, str], privilege: str = "") -> Table:
        """Return a table by owner, which may be empty, and name, for a DDL statement."""
        table = self.find_table(name[0] or self.schema, name[1])
        if privilege and table.version.owner != self.user:
            self.require(privilege)
        return table

    def require(self, privilege: str) -> None:
        """Raise OraError 1031 if the user lacks a privilege."""
        if self.database.settings.grants is not None and privilege not in self.privileges:
            raise OraError(1031)

    def lock_for_ddl(self, table: Table) -> None:
        """Raise OraError 54 if the table is in use; Blocked if DDL_LOCK_TIMEOUT lets it wait."""
        if table.locks or table.table_locks:
            if self.ddl_lock_timeout_s:
                raise Blocked(table.name)
            raise OraError(54)

    def value_of(self, column: Column) -> Any:
        """Return the value of a column's default, in the form that the model has for the column."""
        return convert_value(column, changes.evaluate(self, column.default or "NULL"), self.nls)

    # ------------------------------------------------------------------ statements

    def execute(self, text: str, binds: dict[str, Any]) -> Outcome:
        """Run a statement with its binds, by name in upper case."""
        self._announce(text, binds)
        return self._run(text, binds)

    def execute_many(
        self, text: str, rows: Iterable[dict[str, Any]], *, saves_exceptions: bool = False
    ) -> tuple[list[int], list[tuple[int, OraError]]]:
        """Run a statement for many rows in one round trip.

        Returns:
            Changed rows of each row, and the rows that failed with their errors. Without
            `saves_exceptions` the first failed row ends the work; the ones before it stay.
        """
        counts: list[int] = []
        failed: list[tuple[int, OraError]] = []
        is_first = True
        for number, binds in enumerate(rows):
            if is_first:
                self._announce(text, binds)
                is_first = False
            try:
                counts.append(self._run(text, binds).count)
            except OraError as error:
                failed.append((number, error))
                if not saves_exceptions:
                    break
                counts.append(0)
        return counts, failed

    def _announce(self, text: str, binds: dict[str, Any]) -> None:
        with self.server.lock:
            if self.is_killed:
                raise OraError(28)
            if self.user != TEST_USER:
                self.server.texts.check(text)
                self.server.on_statement(text)
                self.server.statements.append(text)
            self.server.meet(text)
            self.last_text = text
            if len(binds) < len(bind_names(text)):
                raise OraError(1008)

    def _run(self, text: str, binds: dict[str, Any]) -> Outcome:
        words = _words_of(text)
        limit_s, code = self._patience(words)
        end = time.monotonic() + limit_s
        self.is_running, self.is_cancelled = True, False
        try:
            while True:
                if self.is_cancelled:
                    raise OraError(1013)
                with self.server.lock:
                    if self.is_killed:
                        raise OraError(28)
                    mark = len(self.transaction.changes) if self.transaction else 0
                    try:
                        return self._finish(self._dispatch(text, words, binds), mark)
                    except OraError:
                        self._undo_statement(mark)
                        raise
                    except Blocked as blocked:
                        self._undo_statement(mark)
                        if time.monotonic() >= end:
                            raise OraError(code) from blocked
                        self.is_waiting = True
                time.sleep(_WAIT_S)
        finally:
            self.is_waiting = self.is_running = False

    def cancel(self) -> None:
        """End the statement that another thread runs, if any: its error is ORA-01013."""
        if self.is_running:
            self.is_cancelled = True

    def _patience(self, words: Sequence[str]) -> tuple[float, int]:
        """Return how many seconds a statement waits for locks, and the code of its error then."""
        if words[0] in ("SELECT", "LOCK", "WITH"):
            tail = list(words[-3:])
            if tail[-1] == "NOWAIT":
                return 0.0, 54
            if len(tail) > 1 and tail[-2] == "WAIT":
                return float(tail[-1]), 30006
        if words[0] in ("CREATE", "DROP", "TRUNCATE", "ALTER") and words[1:2] != ("SESSION",):
            return float(self.ddl_lock_timeout_s), 54
        return self.server.lock_timeout_s, _FOREVER_CODE

    def _finish(self, outcome: Outcome, mark: int) -> Outcome:
        """Check the constraints that are due at the end of a statement."""
        if self.transaction is not None and len(self.transaction.changes) > mark:
            if self.is_read_only:
                raise OraError(1456)
            changed = self.transaction.changes[mark:]
            check_changes(self.transaction, changed, self._deferred_names(changed))
            changes.check_conditions(self, self.transaction.changes[mark:])
        return outcome

    def _deferred_names(self, changed: Sequence[Done]) -> frozenset[str]:
        tables = {done.table for done in changed}
        listed = [one for table in tables for one in table.constraints.values()]
        listed += [one for table in tables for _, one in table.children()]
        default = self.deferred.get("ALL")
        out = set()
        for one in listed:
            is_deferred = one.is_deferred if default is None else default
            is_deferred = self.deferred.get(one.name, is_deferred)
            if one.is_deferrable and is_deferred:
                out.add(one.name)
        return frozenset(out)

    def _undo_statement(self, mark: int) -> None:
        """Undo what a failed statement changed."""
        if self.transaction is not None and len(self.transaction.changes) > mark:
            self.transaction.undo_to(mark)

    def _dispatch(self, text: str, words: Sequence[str], binds: dict[str, Any]) -> Outcome:
        first = words[0]
        if first in ("SELECT", "WITH", "("):
            return self._query(text, binds)
        if first in ("INSERT", "UPDATE", "DELETE", "MERGE"):
            return Outcome(count=changes.run(self, text, binds))
        if first in ("BEGIN", "DECLARE", "CALL"):
            self._block(text, binds)
        elif words[:2] == ("ALTER", "SESSION"):
            self._alter_session(list(tokenize(text))[3:])
        elif words[:2] == ("ALTER", "SYSTEM"):
            self._alter_system(words, text)
        elif first == "COMMIT":
            self.commit()
        elif first == "ROLLBACK":
            self._rollback(words)
        elif first == "SAVEPOINT":
            self.begin().savepoint(words[1])
        elif first == "SET":
            self._set_transaction(words)
        elif first == "LOCK":
            self._lock_table(text)
        elif first in _DDL:
            self.commit()
            definitions.run(self, text)
        else:
            raise OraError(900)
        return Outcome()

    def _set_transaction(self, words: Sequence[str]) -> None:
        if words[1] in ("CONSTRAINT", "CONSTRAINTS"):
            if words[-1] not in ("DEFERRED", "IMMEDIATE"):
                raise OraError(900)
            for name in words[2:-1]:
                if name != ",":
                    self.deferred[name.strip('"')] = words[-1] == "DEFERRED"
            if words[-1] == "IMMEDIATE" and self.transaction is not None:
                changed = self.transaction.changes
                check_changes(self.transaction, changed, self._deferred_names(changed))
            return
        if words[1] != "TRANSACTION":
            raise OraError(900)
        if self.transaction is not None and self.transaction.start_scn:
            raise OraError(1453, text="SET TRANSACTION must be first statement of transaction")
        self.is_read_only = words[2:4] == ("READ", "ONLY")
        self.is_serializable = words[-1] == "SERIALIZABLE"
        if self.is_read_only or self.is_serializable:
            self.read_scn = self.database.read_scn()

    def _lock_table(self, text: str) -> None:
        words = Words(text)
        words.expect("LOCK", "TABLE")
        table = self.find_table_of(words.full_name(), "LOCK ANY TABLE")
        words.expect("IN")
        mode = []
        while words.peek() != "MODE":
            mode.append(words.take().text.upper())
        self.begin().lock_table(table, " ".join(mode))

    def _query(self, text: str, binds: dict[str, Any]) -> Outcome:
        mines = "V$LOGMNR_CONTENTS" in text.upper().replace("V_$", "V$")
        if " OF SCN" in text.upper() and "FLASHBACK ANY TABLE" not in self.privileges:
            raise OraError(1031)
        if _FOR_UPDATE.search(text):
            changes.lock_rows(self, text, binds)
        reader = Reader(
            self.context(), self.find_table, self.schema, self.transaction, self.read_scn
        )
        result = reader.run(text, binds)

        def check() -> None:
            with self.server.lock:
                self.server.on_fetch(text)
                self.server.meet(text, at_fetch=True)
                if mines:
                    self.mining.check_readable()

        return Outcome(result.columns, result.rows, check=check)

    def begin(self) -> Transaction:
        """Return the open transaction; begin one if there is none."""
        if self.transaction is None:
            self.transaction = self.database.begin(user=self.user, container=self.container)
        return self.transaction

    def commit(self) -> None:
        """Commit the open transaction; raises OraError 2091 if a deferred constraint fails."""
        with self.server.lock:
            if self.transaction is not None:
                try:
                    check_changes(self.transaction, self.transaction.changes, None)
                except (OraError, Blocked) as error:
                    self.rollback()
                    cause = str(error) if isinstance(error, OraError) else "a row is locked"
                    raise OraError(2091, text=f"transaction rolled back\n{cause}") from error
                self.transaction.commit()
            self._end_transaction()

    def _end_transaction(self) -> None:
        self.transaction = None
        self.deferred = {}
        self.read_scn, self.is_read_only, self.is_serializable = None, False, False

    def rollback(self) -> None:
        """Roll the open transaction back."""
        with self.server.lock:
            if self.transaction is not None:
                self.transaction.rollback()
            self._end_transaction()

    def _rollback(self, words: Sequence[str]) -> None:
        if "TO" in words:
            if self.transaction is None:
                raise OraError(1086, words[-1])
            self.transaction.rollback_to(words[-1])
        else:
            self.rollback()

    # ------------------------------------------------------------------ settings

    def _store_nls(self) -> None:
        for name, attribute in _NLS_FIELDS.items():
            self.parameters[name] = getattr(self.nls, attribute)

    def _alter_session(self, tokens: list[Token]) -> None:
        if [one.text.upper() for one in tokens[:3]] == ["ROW", "ARCHIVAL", "VISIBILITY"]:
            return  # rows of the model are never archived
        for name, sign, value in zip(tokens[::3], tokens[1::3], tokens[2::3], strict=False):
            if sign.text != "=":
                raise OraError(900)
            text = value.text[1:-1].replace("''", "'") if value.kind == "text" else value.text
            self._set(name.text.upper(), text.strip('"'))

    def _set(self, name: str, value: str) -> None:
        if name in _NLS_FIELDS:
            changed: dict[str, Any] = {_NLS_FIELDS[name]: value}
            self.nls = replace(self.nls, **changed)
            self._store_nls()
        elif name == "CONTAINER":
            self._set_container(value)
        elif name == "TIME_ZONE":
            match = _ZONE.match("00:00" if value.upper() == "UTC" else value)
            if match is None:
                raise OraError(1882, text="timezone region not found")
            minutes = int(match[2]) * 60 + int(match[3])
            self.nls = replace(self.nls, zone_minutes=-minutes if match[1] == "-" else minutes)
        elif name == "CURRENT_SCHEMA":
            self.schema = value
        elif name == "DDL_LOCK_TIMEOUT":
            self.ddl_lock_timeout_s = int(value)
        elif name in ("CONSTRAINT", "CONSTRAINTS"):
            self.deferred["ALL"] = value.upper() == "DEFERRED"
        elif name == "ISOLATION_LEVEL":
            self.is_serializable = value.upper() == "SERIALIZABLE"
        elif name not in _SETTINGS:
            raise OraError(2248, text="invalid option for ALTER SESSION")

    def _set_container(self, value: str) -> None:
        if "SET CONTAINER" not in self.privileges:
            raise OraError(1031)
        name = value.upper()
        if name != ROOT and name not in self.database.pdbs:
            raise OraError(65011, name)
        if self.transaction is not None:
            raise OraError(65023, text="active transaction exists in container")
        self.container = name

    def _alter_system(self, words: Sequence[str], text: str) -> None:
        if words[2:4] == ("KILL", "SESSION") or words[2:4] == ("DISCONNECT", "SESSION"):
            self._kill(text)
            return
        if words[2:] not in (("ARCHIVE", "LOG", "CURRENT"), ("SWITCH", "LOGFILE")):
            raise OraError(900, text="the simulator knows ARCHIVE LOG CURRENT and SWITCH LOGFILE")
        self._switch_logs(waits=words[2] == "ARCHIVE")

    def _kill(self, text: str) -> None:
        self.require("ALTER SYSTEM")
        match = re.search(r"'(\d+)\s*,\s*(\d+)", text)
        session = None if match is None else self.server.sessions.get(int(match[1]))
        if match is None or session is None or session.serial != int(match[2]):
            raise OraError(30, text="User session ID does not exist.")
        session.is_killed = True
        session.rollback()

    def _switch_logs(self, *, waits: bool) -> None:
        if "ALTER SYSTEM" not in self.privileges:
            raise OraError(1031)
        if self.container != ROOT and self.database.settings.is_cdb:
            raise OraError(65040)
        if self.database.settings.log_mode != "ARCHIVELOG":
            raise OraError(258, text="manual archiving in NOARCHIVELOG mode must identify log")
        if waits:
            self.database.archive_current()
        else:
            self.database.switch()

    # ------------------------------------------------------------------ PL/SQL

    def _block(self, text: str, binds: dict[str, Any]) -> None:
        tokens = list(tokenize(text))
        at = next((n for n, one in enumerate(tokens) if one.text.upper() == "BEGIN"), -1) + 1
        if tokens[0].text.upper() == "CALL":
            at = 1
        while at < len(tokens) and tokens[at].text.upper() not in ("END", "EXCEPTION"):
            name = ""
            while at < len(tokens) and tokens[at].text not in ("(", ";"):
                name += tokens[at].text.upper()
                at += 1
            arguments: list[list[Token]] = []
            if at < len(tokens) and tokens[at].text == "(":
                arguments, at = _arguments(tokens, at + 1)
            if at < len(tokens) and tokens[at].text == ";":
                at += 1
            named, plain = _evaluate(arguments, binds)
            self.call(name, plain, named)

    def call(self, name: str, plain: list[Any], named: dict[str, Any]) -> None:
        """Call a procedure by name in upper case."""
        package, _, procedure = name.rpartition(".")
        package = package.removeprefix("SYS.")
        if package == "DBMS_LOGMNR":
            self._call_mining(procedure, plain, named)
        elif name.removeprefix("SYS.") == "DBMS_LOGMNR_D.BUILD":
            self.database.build_dictionary()
        elif name == "RDSADMIN.RDSADMIN_UTIL.SWITCH_LOGFILE":
            self.database.switch()
        elif name.removeprefix("SYS.") == "DBMS_APPLICATION_INFO.SET_MODULE":
            self.module = _bind_arguments(plain, named, ("MODULE_NAME", "ACTION_NAME"))[
                "MODULE_NAME"
            ]
        elif name.removeprefix("SYS.") == "DBMS_STATS.GATHER_TABLE_STATS":
            names = ("OWNNAME", "TABNAME", "PARTNAME", "ESTIMATE_PERCENT")
            values = _bind_arguments(plain, named, names)
            table = self.find_table(values["OWNNAME"], values["TABNAME"])
            table.analyzed_rows = sum(1 for _ in table.at(self.database.scn))
        elif name == "EXECUTE IMMEDIATE":
            self._dispatch(plain[0], _words_of(plain[0]), {})
        else:
            raise OraError(6550, text=f"PLS-00201: identifier '{name}' must be declared")

    def _call_mining(self, procedure: str, plain: list[Any], named: dict[str, Any]) -> None:
        grants = self.privileges
        if not grants & {"EXECUTE_CATALOG_ROLE", "EXECUTE ON DBMS_LOGMNR"}:
            raise OraError(6550, text="PLS-00201: identifier 'DBMS_LOGMNR' must be declared")
        is_in_pdb = self.database.settings.is_cdb and self.container != ROOT
        if procedure in ("ADD_LOGFILE", "REMOVE_LOGFILE"):
            values = _bind_arguments(plain, named, ("LOGFILENAME", "OPTIONS"))
            default = CONSTANTS["ADDFILE" if procedure == "ADD_LOGFILE" else "REMOVEFILE"]
            option = int(values.get("OPTIONS") or default)
            self.mining.add_file(str(values["LOGFILENAME"]), option, is_in_pdb=is_in_pdb)
        elif procedure == "START_LOGMNR":
            names = ("STARTSCN", "ENDSCN", "STARTTIME", "ENDTIME", "DICTFILENAME", "OPTIONS")
            values = _bind_arguments(plain, named, names)
            if "LOGMINING" not in grants:
                raise OraError(1031)
            start, end = int(values.get("STARTSCN") or 0), int(values.get("ENDSCN") or 0)
            self.mining.start(start, end, int(values.get("OPTIONS") or 0))
        elif procedure == "END_LOGMNR":
            self.mining.end()
        else:
            raise OraError(6550, text=f"PLS-00302: component '{procedure}' must be declared")

    def load(
        self, schema: str, name: str, columns: list[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Load rows by the direct path, which commits; raises OraError 54 for a used table.

        Unique indexes are checked at the end, as SQL*Loader has it: duplicates make them unusable.
        """
        with self.server.lock:
            if self.is_killed:
                raise OraError(28)
            self.server.statements.append(f"DIRECT PATH LOAD {schema}.{name}")
            self.server.meet("DIRECT PATH LOAD")
            table = self.find_table(schema, name, "INSERT")
            known = {column.name for column in table.version.columns}
            for column in columns:
                if column not in known:
                    raise OraError(904, f'"{column}"')
            self.commit()
            if table.locks or table.table_locks:
                raise OraError(54)
            if any(one.is_enabled for one in table.triggers.values()):
                raise OraError(26086, text="direct path does not support triggers")
            mark = 0
            try:
                for row in rows:
                    values = dict(zip(columns, row, strict=True))
                    self.begin().insert(table, changes.with_defaults(self, table, values),
                                        direct=True)  # fmt: skip
                if self.transaction is not None:
                    check_changes(self.transaction, self.transaction.changes, None)
            except OraError:
                self._undo_statement(mark)
                self.rollback()
                raise
            self.commit()

    def close(self) -> None:
        """End the session; its transaction is rolled back."""
        self.rollback()
        self.server.sessions.pop(self.sid, None)
        self.mining = MiningSession(self.database)


@lru_cache(maxsize=4096)
def _words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text in upper case; quoted names and literals as they are."""
    return tuple(
        token.text if token.kind in ("name", "text") else token.text.upper()
        for token in tokenize(text.strip().rstrip(";"))
    )


def _arguments(tokens: list[Token], at: int) -> tuple[list[list[Token]], int]:
    """Return the arguments of a call from behind its bracket, and the place after it."""
    out: list[list[Token]] = [[]]
    depth = 0
    while at < len(tokens):
        text = tokens[at].text
        if text == ")" and depth == 0:
            return [one for one in out if one], at + 1
        depth += {"(": 1, ")": -1}.get(text, 0)
        if text == "," and depth == 0:
            out.append([])
        else:
            out[-1].append(tokens[at])
        at += 1
    raise OraError(6550, text="PLS-00103: end of text in a call")


def _evaluate(
    arguments: list[list[Token]], binds: dict[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    named: dict[str, Any] = {}
    plain: list[Any] = []
    for tokens in arguments:
        if len(tokens) > 2 and tokens[1].text == "=>":
            named[tokens[0].text.upper()] = _value(tokens[2:], binds)
        else:
            plain.append(_value(tokens, binds))
    return named, plain


def _value(tokens: list[Token], binds: dict[str, Any]) -> Any:
    """Return the value of an expression: a sum of constants, numbers and binds, or a literal."""
    total: Any = None
    sign = 1
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.text in ("+", "-"):
            sign = -1 if token.text == "-" else 1
            at += 1
            continue
        name = token.text.upper()
        if name in ("SYS", "DBMS_LOGMNR", "DBMS_LOGMNR_D"):
            at += 2  # the name and its dot
            continue
        if token.kind == "bind":
            value = binds[name[1:]]
        elif token.kind == "text":
            value = token.text[1:-1].replace("''", "'")
        elif token.kind == "number":
            value = int(token.text)
        elif name in CONSTANTS:
            value = CONSTANTS[name]
        elif name == "STORE_IN_REDO_LOGS":
            value = 0
        elif name in ("TRUE", "FALSE", "NULL"):
            value = {"TRUE": True, "FALSE": False, "NULL": None}[name]
        else:
            raise OraError(6550, text=f"PLS-00201: identifier '{name}' must be declared")
        total = value if total is None else total + sign * value
        at += 1
    return total


def _bind_arguments(
    plain: list[Any], named: dict[str, Any], names: tuple[str, ...]
) -> dict[str, Any]:
    values = dict(zip(names, plain, strict=False))
    unknown = named.keys() - set(names)
    if unknown or len(plain) > len(names):
        raise OraError(6550, text="PLS-00306: wrong number or types of arguments in call")
    return values | named
