"""Sessions of the simulated database: they run the texts that clients send."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sim_oracle import changes
from sim_oracle.database import Database
from sim_oracle.errors import Blocked, OraError
from sim_oracle.grammar import Token, bind_names, tokenize
from sim_oracle.literals import Nls
from sim_oracle.mining import CONSTANTS, MiningSession
from sim_oracle.query import OutputColumn, Reader
from sim_oracle.tables import Table
from sim_oracle.texts import KnownTexts
from sim_oracle.transactions import Transaction
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
    ]
)
_ZONE = re.compile(r"([+-]?)(\d{1,2}):(\d{2})\Z")
_WAIT_S = 0.01
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
    """

    database: Database
    users: dict[str, str] = field(default_factory=lambda: {"c##penstock": "secret"})
    services: dict[str, str] = field(default_factory=dict)
    texts: KnownTexts = field(default_factory=lambda: KnownTexts(KNOWN_TEXTS))
    on_statement: Callable[[str], None] = lambda _: None
    on_fetch: Callable[[str], None] = lambda _: None
    failures: list[Failure] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    is_down: bool = False
    delays: dict[str, int] = field(default_factory=dict)
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
        )

    def _mined_files(self) -> list[tuple[Any, ...]]:
        return [
            (one.name, one.log.thread, one.log.sequence, one.log.first_scn, one.log.next_scn)
            for one in self.mining.files
        ]

    def find_table(self, owner: str, name: str) -> Table:
        """Return a table of the current container; raises OraError 942."""
        table = self.database.table(owner, name, self.container)
        if owner != self.user and "SELECT ANY TABLE" not in self.privileges:
            grant = f"SELECT ON {owner}.{name}"
            if grant not in self.privileges:
                raise OraError(942)
        return table

    # ------------------------------------------------------------------ statements

    def execute(self, text: str, binds: dict[str, Any]) -> Outcome:
        """Run a statement with its binds, by name in upper case."""
        with self.server.lock:
            self.server.texts.check(text)
            self.server.on_statement(text)
            self.server.statements.append(text)
            self.server.meet(text)
            if len(binds) < len(bind_names(text)):
                raise OraError(1008)
        words = [token.text.upper() for token in tokenize(text)]
        end = time.monotonic() + self.server.lock_timeout_s
        while True:
            with self.server.lock:
                mark = len(self.transaction.changes) if self.transaction else 0
                try:
                    return self._dispatch(text, words, binds)
                except OraError:
                    self._undo_statement(mark)
                    raise
                except Blocked as blocked:
                    self._undo_statement(mark)
                    if time.monotonic() >= end:
                        raise OraError(60) from blocked
            time.sleep(_WAIT_S)

    def _undo_statement(self, mark: int) -> None:
        """Undo what a failed statement changed."""
        if self.transaction is not None and len(self.transaction.changes) > mark:
            self.transaction.undo_to(mark)

    def _dispatch(self, text: str, words: list[str], binds: dict[str, Any]) -> Outcome:
        first = words[0]
        if first in ("SELECT", "WITH"):
            return self._query(text, binds)
        if first in ("INSERT", "UPDATE", "DELETE", "MERGE"):
            return Outcome(count=changes.run(self, text, binds))
        if first in ("BEGIN", "DECLARE", "CALL"):
            self._block(text, binds)
        elif words[:2] == ["ALTER", "SESSION"]:
            self._alter_session(list(tokenize(text))[3:])
        elif words[:2] == ["ALTER", "SYSTEM"]:
            self._alter_system(words)
        elif first == "COMMIT":
            self.commit()
        elif first == "ROLLBACK":
            self._rollback(words)
        elif first == "SAVEPOINT":
            self.begin().savepoint(words[1])
        elif words[:2] in (["SET", "TRANSACTION"], ["LOCK", "TABLE"], ["SET", "CONSTRAINTS"]):
            pass
        elif first in ("CREATE", "DROP", "TRUNCATE", "ALTER"):
            self.commit()
            changes.run_ddl(self, text)
        else:
            raise OraError(900)
        return Outcome()

    def _query(self, text: str, binds: dict[str, Any]) -> Outcome:
        mines = "V$LOGMNR_CONTENTS" in text.upper().replace("V_$", "V$")
        if " OF SCN" in text.upper() and "FLASHBACK ANY TABLE" not in self.privileges:
            raise OraError(1031)
        reader = Reader(self.context(), self.find_table, self.schema, self.transaction)
        result = reader.run(text, binds)
        if "FOR UPDATE" in text.upper():
            changes.lock_rows(self, text, binds)

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
        """Commit the open transaction."""
        with self.server.lock:
            if self.transaction is not None:
                self.transaction.commit()
                self.transaction = None

    def rollback(self) -> None:
        """Roll the open transaction back."""
        with self.server.lock:
            if self.transaction is not None:
                self.transaction.rollback()
                self.transaction = None

    def _rollback(self, words: list[str]) -> None:
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

    def _alter_system(self, words: list[str]) -> None:
        if words[2:] not in (["ARCHIVE", "LOG", "CURRENT"], ["SWITCH", "LOGFILE"]):
            raise OraError(900, text="the simulator knows ARCHIVE LOG CURRENT and SWITCH LOGFILE")
        self._switch_logs(waits=words[2] == "ARCHIVE")

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
        """Load rows by the direct path, which commits; raises OraError 54 for a used table."""
        with self.server.lock:
            self.server.meet("DIRECT PATH LOAD")
            table = self.find_table(schema, name)
            self.commit()
            if table.locks:
                raise OraError(54)
            transaction = self.begin()
            for row in rows:
                values = dict(zip(columns, row, strict=True))
                transaction.insert(table, values, direct=True)
            self.commit()

    def close(self) -> None:
        """End the session; its transaction is rolled back."""
        self.rollback()
        self.mining = MiningSession(self.database)


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
