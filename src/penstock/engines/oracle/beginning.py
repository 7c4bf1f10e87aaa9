"""Find where a new log begins: the source's SCN, as Wirekite's guide does.

A snapshot as of the SCN `scn` has every transaction that was committed up to it. Transactions that
were open then have rows in older redo, so three things are read in this order: an SCN, the open
transactions of all instances, and the SCN of the snapshot. A transaction that commits after the
snapshot was open at the second step, or began after the first. Then the logs are switched, so that
the redo up to the position is archived. Follows the reference, sections 2 and 1b.17.
"""

from __future__ import annotations

import msgspec
import structlog

from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.errors import (
    ArchivingOff,
    DatabaseClosed,
    DatabaseNotPrimary,
    MiningOutsideRoot,
    SupplementalLoggingOff,
)
from penstock.engines.oracle.reading.statements import CURRENT_SCN
from penstock.engines.oracle.url import ROOT
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.host.state_file import StateFile
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.identity import unreadable

BEGINNING_FILE = "oracle_beginning.json"

DATABASE = (
    "SELECT DBID, NAME, RESETLOGS_CHANGE#, RESETLOGS_TIME, LOG_MODE, SUPPLEMENTAL_LOG_DATA_MIN, "
    "SUPPLEMENTAL_LOG_DATA_ALL, FORCE_LOGGING, CDB, DATABASE_ROLE, OPEN_MODE FROM V$DATABASE"
)
CONTAINER = "SELECT SYS_CONTEXT('USERENV', 'CON_NAME') FROM DUAL"
PDB_MODE = "SELECT OPEN_MODE FROM V$PDBS WHERE NAME = :name"
OPEN_TRANSACTIONS = "SELECT XIDUSN, XIDSLOT, XIDSQN, START_SCN FROM GV$TRANSACTION"
SWITCH = "ALTER SYSTEM ARCHIVE LOG CURRENT"
SWITCH_ON_RDS = "BEGIN rdsadmin.rdsadmin_util.switch_logfile; END;"

ARCHIVING_SQL = "SHUTDOWN IMMEDIATE; STARTUP MOUNT; ALTER DATABASE ARCHIVELOG; ALTER DATABASE OPEN;"
ARCHIVING_HINT = (
    f"Run as SYSDBA, which restarts the database: {ARCHIVING_SQL} "
    "On Amazon RDS, set the backup retention period above 0 days."
)
LOGS_ALL, LOGS_KEY = "ALL COLUMN LOGGING", "PRIMARY KEY LOGGING"
LOG_GROUPS = (
    "SELECT OWNER, TABLE_NAME, LOG_GROUP_TYPE FROM ALL_LOG_GROUPS WHERE LOG_GROUP_TYPE IN "
    f"('{LOGS_ALL}', '{LOGS_KEY}')"
)
LOGGING_SQL = "ALTER DATABASE ADD SUPPLEMENTAL LOG DATA;"
LOGGING_HINT = (
    f"Run at the root, as a DBA: {LOGGING_SQL} On Amazon RDS: BEGIN "
    "rdsadmin.rdsadmin_util.alter_supplemental_logging('ADD'); END;"
)
_LOGGED = ("YES", "IMPLICIT")
_ALREADY_SWITCHED = 258  # NOARCHIVELOG

logger = structlog.get_logger(__name__)


def log_columns_text(table: TableName) -> str:
    """Return the statement after which the redo has all columns of a table."""
    return f"ALTER TABLE {quote(*table)} ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS"


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A database as V$DATABASE has it.

    Attributes:
        logs_minimal: Supplemental logging that LogMiner needs is on.
        logs_all: All columns of all tables are logged.
        is_forced: Nothing can be loaded without redo.
    """

    dbid: int
    name: str
    resetlogs_scn: int
    log_mode: str
    logs_minimal: bool
    logs_all: bool
    is_forced: bool
    is_container: bool
    role: str
    open_mode: str


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that was open before the snapshot.

    Attributes:
        segment: XIDUSN.
        slot: XIDSLOT.
        sequence: XIDSQN.
        start_scn: SCN from which its redo is; that of the first look if the server has none yet.
    """

    segment: int
    slot: int
    sequence: int
    start_scn: int


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """Begin of a log; the file keeps it, so that a second attempt begins at the same place.

    Attributes:
        scn: Transactions that commit after it are in the log, the others in the snapshot.
        first_scn: An SCN that was read before the open transactions.
        transactions: Those that were open after `first_scn` and before `scn`.
    """

    scn: int
    first_scn: int
    transactions: tuple[OpenTransaction, ...] = ()

    @property
    def low_scn(self) -> int:
        """Return the SCN from which redo has to be read."""
        return min([self.first_scn, *(one.start_scn for one in self.transactions)])


def read_database(session: Connection) -> DatabaseFacts:
    """Return the database of a session."""
    ((dbid, name, resetlogs, _, mode, minimal, all_, forced, cdb, role, open_mode),) = (
        session.execute(DATABASE)
    )
    return DatabaseFacts(
        dbid=int(dbid),
        name=str(name),
        resetlogs_scn=int(resetlogs),
        log_mode=str(mode),
        logs_minimal=minimal in _LOGGED,
        logs_all=all_ == "YES",
        is_forced=forced == "YES",
        is_container=cdb == "YES",
        role=str(role),
        open_mode=str(open_mode),
    )


def check_database(session: Connection, pdb: str = "") -> DatabaseFacts:
    """Return the database, if its changes can be mined.

    Args:
        session: A session for mining.
        pdb: The pluggable database of the tables, in upper case; empty without one.

    Raises DatabaseNotPrimary, MiningOutsideRoot, ArchivingOff, SupplementalLoggingOff,
    DatabaseClosed.
    """
    found = read_database(session)
    if found.role != "PRIMARY":
        raise DatabaseNotPrimary(
            f"the database {found.name} is a {found.role}: penstock mines the primary only",
            hint="Name the primary database in [source] url.",
        )
    if found.is_container and (container := read_container(session)) != ROOT:
        raise MiningOutsideRoot(
            f"the service of [source] url is in the pluggable database {container}: logs can be "
            f"added to LogMiner at {ROOT} only",
            hint=f"Name the root's service and ?pdb={container} in [source] url, with a common "
            "user (C##...). Where there is no such user, as in an Autonomous Database and on "
            'Amazon RDS with containers, use mode = "data".',
        )
    if found.log_mode != "ARCHIVELOG":
        raise ArchivingOff(
            f"the database {found.name} is in {found.log_mode} mode: its redo is overwritten",
            hint=ARCHIVING_HINT,
        )
    if not found.logs_minimal:
        raise SupplementalLoggingOff(
            f"the database {found.name} has no supplemental logging: changes lack their keys",
            hint=LOGGING_HINT,
        )
    if pdb and (mode := read_pdb_mode(session, pdb)) not in (None, "READ WRITE"):
        raise DatabaseClosed(
            f"the pluggable database {pdb} is {mode or 'not visible to this user'}",
            hint=f"Run at the root, as a DBA: ALTER PLUGGABLE DATABASE {pdb} OPEN; "
            "ALTER PLUGGABLE DATABASE ALL SAVE STATE;",
        )
    return found


def read_container(session: Connection) -> str:
    """Return the name of a session's container."""
    ((name,),) = session.execute(CONTAINER)
    return str(name)


def read_pdb_mode(session: Connection, pdb: str) -> str | None:
    """Return OPEN_MODE of a pluggable database; empty if there is none of the name.

    Returns None if the user may not ask.
    """
    try:
        found = session.execute(PDB_MODE, name=pdb)
    except PrivilegeMissing:
        return None
    return str(found[0][0]) if found else ""


def read_scn(session: Connection) -> int:
    """Return the present SCN of the database."""
    ((scn,),) = session.execute(CURRENT_SCN)
    return int(scn)


def take_beginning(session: Connection) -> Beginning:
    """Return where a log begins if it begins now. session: one for mining."""
    first = read_scn(session)
    found = tuple(
        OpenTransaction(
            segment=int(segment),
            slot=int(slot),
            sequence=int(sequence),
            start_scn=int(start or 0) or first,
        )
        for segment, slot, sequence, start in session.execute(OPEN_TRANSACTIONS)
    )
    return Beginning(scn=read_scn(session), first_scn=first, transactions=found)


def switch_log(session: Connection) -> str:
    """Switch the logs of all threads, and return how, in words.

    Without the right, mining continues on the online logs. Raises ArchivingOff.
    """
    try:
        session.run(SWITCH)
    except (PrivilegeMissing, StatementFailed) as error:
        if error.fields.get("errno") == _ALREADY_SWITCHED:
            raise ArchivingOff(error.message, hint=ARCHIVING_HINT) from error
        reason = error.message
    else:
        return "all redo up to it is archived"
    try:
        session.run(SWITCH_ON_RDS)
    except (PrivilegeMissing, StatementFailed):
        logger.warning("the logs were not switched", reason=reason)
        return "without a log switch, for which the user lacks ALTER SYSTEM"
    return "the logs were switched by rdsadmin"


def load_beginning(config: Config) -> Beginning:
    """Return the beginning that a handover has noted. Raises CheckpointCorrupt, StateUnreadable."""
    path = config.layout.state / BEGINNING_FILE
    found = StateFile(path, Beginning).load()
    if found is None:
        raise unreadable(path, FileNotFoundError("there is none, and the handover noted one"))
    return found


def save_beginning(config: Config, beginning: Beginning) -> None:
    """Note a beginning, durably."""
    StateFile(config.layout.state / BEGINNING_FILE, Beginning).save(beginning)
