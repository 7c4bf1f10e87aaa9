"""The database under certification, and the schemas that are created in it.

Every schema has a mark, a table that only this tool creates. A schema without it is never used and
never dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from penstock.engines.oracle.connect import Connection, connect, connect_root, quote
from penstock.engines.oracle.url import OracleUrl, check_url
from penstock.host.errors import StatementFailed
from penstock.model import PenstockError

SCHEMA = "PENSTOCK_CERTIFY"
TARGET = "PENSTOCK_CERTIFY_TARGET"
MARK = "PENSTOCK_CERTIFY_MADE"
ALREADY_THERE = 1920  # number of the error
STATEMENT_TIMEOUT_S = 300.0

VERSION = "SELECT VERSION, EDITION FROM V$INSTANCE"
DATABASE = (
    "SELECT LOG_MODE, SUPPLEMENTAL_LOG_DATA_MIN, FORCE_LOGGING, CDB, DATABASE_ROLE FROM V$DATABASE"
)
CHARACTER_SET = "SELECT VALUE FROM NLS_DATABASE_PARAMETERS WHERE PARAMETER = 'NLS_CHARACTERSET'"
THREADS = "SELECT COUNT(*) FROM V$THREAD WHERE STATUS = 'OPEN'"


class SchemaTaken(PenstockError):
    """A schema of the tool's name exists that the tool did not create."""

    code = "CERTIFY1"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of the database. threads: open redo threads, more than one in a cluster."""

    version: str
    edition: str
    log_mode: str
    supplemental: str
    force_logging: str
    is_container: bool
    role: str
    character_set: str
    threads: int

    @property
    def lacks(self) -> str:
        """Return why redo cannot be mined, or an empty text."""
        if self.log_mode != "ARCHIVELOG":
            return f"the database is in {self.log_mode} mode"
        if self.supplemental not in ("YES", "IMPLICIT"):
            return "ALTER DATABASE ADD SUPPLEMENTAL LOG DATA was not run"
        return ""


class Server:
    """A database, by the URL that the user gave.

    Attributes:
        url: The URL; of the root with `pdb` for a container database.
        schemas: Those that were created and not dropped yet.
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        self.url = url
        self.schemas: list[str] = []

    @property
    def container(self) -> str:
        """Return the pluggable database of the tables; empty without one."""
        return OracleUrl.parse(self.url).pdb or ""

    def open(self) -> Connection:
        """Open a session of the container that has the tables."""
        return connect(self.url, timeout_s=STATEMENT_TIMEOUT_S)

    def open_root(self) -> Connection:
        """Open a session that mines."""
        return connect_root(self.url, timeout_s=STATEMENT_TIMEOUT_S)

    def facts(self) -> Facts:
        """Ask for version and settings. Raises the errors of connecting."""
        with self.open_root() as session:
            ((version, edition),) = session.execute(VERSION)
            ((log_mode, supplemental, forced, cdb, role),) = session.execute(DATABASE)
            ((character_set,),) = session.execute(CHARACTER_SET)
            ((threads,),) = session.execute(THREADS)
        return Facts(
            version=str(version),
            edition=str(edition),
            log_mode=str(log_mode),
            supplemental=str(supplemental),
            force_logging=str(forced),
            is_container=cdb == "YES",
            role=str(role),
            character_set=str(character_set),
            threads=int(threads),
        )

    def create(self, schema: str) -> None:
        """Create a schema with the mark; one that an interrupted run left is dropped first.

        Raises SchemaTaken, PrivilegeMissing.
        """
        password = f"P{secrets.token_hex(12)}"
        text = f'CREATE USER {schema} IDENTIFIED BY "{password}" ACCOUNT LOCK'
        with self.open() as session:
            try:
                session.run(text)
            except StatementFailed as error:
                if error.fields.get("errno") != ALREADY_THERE:
                    raise
                self._check_made(session, schema)
                session.run(f"DROP USER {schema} CASCADE")
                session.run(text)
            self.schemas.append(schema)
            session.run(f"GRANT UNLIMITED TABLESPACE TO {schema}")
            session.run(f"CREATE TABLE {quote(schema, MARK)} (made_at DATE NOT NULL)")

    def _check_made(self, session: Connection, schema: str) -> None:
        """Raise SchemaTaken for a schema without the mark."""
        marks = "SELECT TABLE_NAME FROM ALL_TABLES WHERE OWNER = :owner AND TABLE_NAME = :name"
        if not session.execute(marks, owner=schema, name=MARK):
            raise SchemaTaken(
                f"the database has a schema {schema} that this tool did not create",
                hint=f"Drop it, if nothing needs it: DROP USER {schema} CASCADE;",
            )

    def drop_all(self, say: Callable[[str], None]) -> list[str]:
        """Drop what was created; return what could not be dropped."""
        left: list[str] = []
        for schema in reversed(self.schemas[:]):
            try:
                with self.open() as session:
                    session.run(f"DROP USER {schema} CASCADE")
                self.schemas.remove(schema)
            except PenstockError as error:
                left.append(schema)
                say(f"could not drop {schema}: {error.message}")
        return left
