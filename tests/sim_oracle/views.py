"""V$ views: instance, redo logs, transactions, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sim_oracle.database import Database
from sim_oracle.literals import Nls
from sim_oracle.redo import BLOCK_BYTES, LOG_BYTES, OPEN_END

ROOT = "CDB$ROOT"


@dataclass(slots=True)
class Context:
    """A session for which a view is read.

    Attributes:
        container: Current container of the session.
        user: Name of its user.
        nls: Its settings.
        privileges: Its privileges.
        mining: Returns the rows of V$LOGMNR_CONTENTS.
        mined_files: Returns name and sequence of the files of the LogMiner session.
        parameters: NLS parameters by name.
        session: Session of the simulator; None without one.
    """

    database: Database
    container: str
    user: str
    nls: Nls
    privileges: frozenset[str]
    mining: Callable[[], Iterable[tuple[Any, ...]]]
    mined_files: Callable[[], Iterable[tuple[Any, ...]]]
    parameters: dict[str, str] = field(default_factory=dict)
    session: Any = None

    @property
    def is_root(self) -> bool:
        """Return whether the session is at the root."""
        return self.container == ROOT


Rows = Iterable[tuple[Any, ...]]
View = tuple[tuple[str, ...], Callable[[Context], Rows]]


def _database(context: Context) -> Rows:
    database = context.database
    settings, incarnation = database.settings, database.logs.incarnation
    yield (
        database.dbid,
        database.name,
        database.name,
        database.read_scn(),
        incarnation.scn,
        incarnation.time,
        settings.log_mode,
        settings.minimal_logging,
        settings.all_logging,
        settings.all_logging,
        settings.force_logging,
        "YES" if settings.is_cdb else "NO",
        settings.role,
        settings.open_mode,
        incarnation.number,
        "Linux x86 64-bit",
        max(one.checkpoint_scn for one in database.logs.threads.values()) or database.first_scn,
    )


def _log(context: Context) -> Rows:
    logs = context.database.logs
    for group in logs.groups.values():
        log = group.log
        if log is None:
            yield (group.number, group.thread, 0, LOG_BYTES, BLOCK_BYTES, len(group.members), "NO",
                   "UNUSED", 0, None, 0, None)  # fmt: skip
            continue
        yield (
            group.number,
            group.thread,
            log.sequence,
            LOG_BYTES,
            BLOCK_BYTES,
            len(group.members),
            "YES" if log.is_archived else "NO",
            logs.status_of(group),
            log.first_scn,
            log.first_time,
            OPEN_END if log.next_scn is None else log.next_scn,
            log.next_time,
        )


def _log_file(context: Context) -> Rows:
    for group in context.database.logs.groups.values():
        for member in group.members:
            status = None if group.is_readable else "INVALID"
            yield group.number, status, "ONLINE", member, "NO"


def _archived_log(context: Context) -> Rows:
    logs = context.database.logs
    for number, copy in enumerate(logs.archives(), 1):
        log = copy.log
        incarnation = logs.incarnations[log.incarnation - 1]
        yield (
            number,
            copy.name,
            copy.destination,
            log.thread,
            log.sequence,
            incarnation.scn,
            incarnation.time,
            incarnation.number,
            log.first_scn,
            log.first_time,
            OPEN_END if log.next_scn is None else log.next_scn,
            log.next_time,
            log.block,
            BLOCK_BYTES,
            "ARCH",
            "ARCH",
            "YES",
            "YES" if copy.is_standby else "NO",
            "YES" if copy.status == "D" else "NO",
            copy.status,
            "YES" if copy.is_standby else "NO",
            "YES" if log.has_dictionary else "NO",
            "YES" if log.has_dictionary else "NO",
            copy.time,
        )


def _destinations(context: Context) -> Rows:
    for number, is_standby in context.database.logs.destinations.items():
        kind = "PHYSICAL" if is_standby else "LOCAL"
        place = f"/arch{number}"
        yield number, f"LOG_ARCHIVE_DEST_{number}", "VALID", kind, place, "", "IDLE"


def _thread(context: Context) -> Rows:
    context.database.tick()  # later commits have a higher SCN than the ones that are shown
    context.database.beat_if_due()
    for thread in context.database.logs.threads.values():
        yield (
            thread.number,
            thread.status,
            thread.enabled,
            len(thread.groups),
            f"{context.database.name}{thread.number}",
            thread.current.number if thread.current else 0,
            thread.log.sequence,
            thread.enable_scn,
            thread.checkpoint_scn or thread.log.first_scn,
            thread.last_scn,
            context.database.time_of(thread.last_scn),
        )


def _transactions(context: Context) -> Iterable[tuple[Any, ...]]:
    for transaction in context.database.open.values():
        if transaction.start_scn:
            xid = transaction.xid
            yield (
                transaction.thread,
                xid.usn,
                xid.slot,
                xid.sequence,
                xid.raw,
                "ACTIVE",
                context.database.time_of(transaction.start_scn),
                transaction.start_scn,
                len(transaction.changes),
                1,
            )


def _transactions_of_one(context: Context) -> Rows:
    # A session is at the first instance; V$ shows its own transactions only.
    return [row[1:] for row in _transactions(context) if row[0] == 1]


def _incarnations(context: Context) -> Rows:
    incarnations = context.database.logs.incarnations
    for one in incarnations:
        previous = incarnations[one.number - 2] if one.number > 1 else None
        yield (
            one.number,
            one.scn,
            one.time,
            previous.scn if previous else 0,
            previous.time if previous else None,
            "CURRENT" if one is incarnations[-1] else "PARENT",
            one.number * 100,
            one.number - 1,
        )


def _data_files(context: Context) -> Rows:
    database = context.database
    scn = database.unrecoverable_scn
    time = database.time_of(scn) if scn else None
    yield 7, f"/oradata/{database.name}/users01.dbf", "ONLINE", 4, scn, time, 3


def _parameters(context: Context) -> Rows:
    for number, (name, value) in enumerate(context.database.settings.parameters.items(), 1):
        yield number, name, value, value, 3, "TRUE"


def _instance(context: Context) -> Rows:
    name = context.database.name
    version = context.database.settings.version
    yield 1, f"{name}1", "db1", version, version, "OPEN", 1, "PRIMARY_INSTANCE", "EE"


def _instances(context: Context) -> Rows:
    for thread in context.database.logs.threads.values():
        if thread.status == "OPEN":
            yield (thread.number, *next(iter(_instance(context))))


def _nls(context: Context) -> Rows:
    return list(context.parameters.items())


def _nls_database(context: Context) -> Rows:
    yield "NLS_CHARACTERSET", context.database.settings.character_set
    yield "NLS_NCHAR_CHARACTERSET", "AL16UTF16"
    yield "NLS_LANGUAGE", "AMERICAN"


def _privileges(context: Context) -> Rows:
    return [(one,) for one in sorted(context.privileges)]


def _containers(context: Context) -> Rows:
    yield 1, ROOT, "READ WRITE", "NO", context.database.dbid
    for number, name in enumerate(context.database.pdbs, 3):
        yield number, name, "READ WRITE", "NO", context.database.dbid + number


def _pdbs(context: Context) -> Rows:
    return [row for row in _containers(context) if row[1] != ROOT]


def _sessions(context: Context) -> Rows:
    if context.session is None:
        return
    for sid, one in sorted(context.session.server.sessions.items()):
        is_active = one is context.session or one.is_waiting
        yield (
            1, sid, one.serial, one.user, "KILLED" if one.is_killed else
            "ACTIVE" if is_active else "INACTIVE", "python", one.module, one.last_text[:64],
            None, "enq: TX - row lock contention" if one.is_waiting else None,
        )  # fmt: skip


def _versions(context: Context) -> Rows:
    number = context.database.settings.version
    yield f"Oracle Database {number.split('.')[0]} Enterprise Edition", number, number


def _products(context: Context) -> Rows:
    number = context.database.settings.version
    yield "Oracle Database ", number, number, "Production"


def _archive_destinations(context: Context) -> Rows:
    for number, is_standby in context.database.logs.destinations.items():
        target = "STANDBY" if is_standby else "PRIMARY"
        yield number, f"LOG_ARCHIVE_DEST_{number}", "VALID", target, f"/arch{number}"


def _log_history(context: Context) -> Rows:
    for number, log in enumerate(context.database.logs.logs, 1):
        if log.next_scn is not None:
            yield number, log.thread, log.sequence, log.first_scn, log.first_time, log.next_scn


def _undo_statistics(context: Context) -> Rows:
    retention = int(context.database.settings.parameters.get("undo_retention", "900"))
    yield context.database.now, context.database.now, retention, 0, 0, 120


def _properties(context: Context) -> Rows:
    yield "DEFAULT_PERMANENT_TABLESPACE", "USERS"
    yield "LOCAL_UNDO_ENABLED", "TRUE"
    yield "NLS_CHARACTERSET", context.database.settings.character_set


_SESSION = (
    "SID",
    "SERIAL#",
    "USERNAME",
    "STATUS",
    "PROGRAM",
    "MODULE",
    "SQL_TEXT",
    "BLOCKING_SESSION",
    "EVENT",
)
_TRANSACTION = (
    "XIDUSN",
    "XIDSLOT",
    "XIDSQN",
    "XID",
    "STATUS",
    "START_DATE",
    "START_SCN",
    "USED_UREC",
    "USED_UBLK",
)
_INSTANCE = (
    "INSTANCE_NUMBER",
    "INSTANCE_NAME",
    "HOST_NAME",
    "VERSION",
    "VERSION_FULL",
    "STATUS",
    "THREAD#",
    "INSTANCE_ROLE",
    "EDITION",
)
VIEWS: dict[str, View] = {
    "V$DATABASE": (
        (
            "DBID",
            "NAME",
            "DB_UNIQUE_NAME",
            "CURRENT_SCN",
            "RESETLOGS_CHANGE#",
            "RESETLOGS_TIME",
            "LOG_MODE",
            "SUPPLEMENTAL_LOG_DATA_MIN",
            "SUPPLEMENTAL_LOG_DATA_ALL",
            "SUPPLEMENTAL_LOG_DATA_PK",
            "FORCE_LOGGING",
            "CDB",
            "DATABASE_ROLE",
            "OPEN_MODE",
            "LAST_OPEN_INCARNATION#",
            "PLATFORM_NAME",
            "CHECKPOINT_CHANGE#",
        ),
        _database,
    ),
    "V$LOG": (
        (
            "GROUP#",
            "THREAD#",
            "SEQUENCE#",
            "BYTES",
            "BLOCKSIZE",
            "MEMBERS",
            "ARCHIVED",
            "STATUS",
            "FIRST_CHANGE#",
            "FIRST_TIME",
            "NEXT_CHANGE#",
            "NEXT_TIME",
        ),
        _log,
    ),
    "V$LOGFILE": (("GROUP#", "STATUS", "TYPE", "MEMBER", "IS_RECOVERY_DEST_FILE"), _log_file),
    "V$ARCHIVED_LOG": (
        (
            "RECID",
            "NAME",
            "DEST_ID",
            "THREAD#",
            "SEQUENCE#",
            "RESETLOGS_CHANGE#",
            "RESETLOGS_TIME",
            "RESETLOGS_ID",
            "FIRST_CHANGE#",
            "FIRST_TIME",
            "NEXT_CHANGE#",
            "NEXT_TIME",
            "BLOCKS",
            "BLOCK_SIZE",
            "CREATOR",
            "REGISTRAR",
            "ARCHIVED",
            "APPLIED",
            "DELETED",
            "STATUS",
            "STANDBY_DEST",
            "DICTIONARY_BEGIN",
            "DICTIONARY_END",
            "COMPLETION_TIME",
        ),
        _archived_log,
    ),
    "V$ARCHIVE_DEST_STATUS": (
        ("DEST_ID", "DEST_NAME", "STATUS", "TYPE", "DESTINATION", "ERROR", "RECOVERY_MODE"),
        _destinations,
    ),
    "V$THREAD": (
        (
            "THREAD#",
            "STATUS",
            "ENABLED",
            "GROUPS",
            "INSTANCE",
            "CURRENT_GROUP#",
            "SEQUENCE#",
            "ENABLE_CHANGE#",
            "CHECKPOINT_CHANGE#",
            "LAST_REDO_CHANGE#",
            "LAST_REDO_TIME",
        ),
        _thread,
    ),
    "V$TRANSACTION": (_TRANSACTION, _transactions_of_one),
    "GV$TRANSACTION": (("INST_ID", *_TRANSACTION), _transactions),
    "V$DATABASE_INCARNATION": (
        (
            "INCARNATION#",
            "RESETLOGS_CHANGE#",
            "RESETLOGS_TIME",
            "PRIOR_RESETLOGS_CHANGE#",
            "PRIOR_RESETLOGS_TIME",
            "STATUS",
            "RESETLOGS_ID",
            "PRIOR_INCARNATION#",
        ),
        _incarnations,
    ),
    "V$DATAFILE": (
        (
            "FILE#",
            "NAME",
            "STATUS",
            "TS#",
            "UNRECOVERABLE_CHANGE#",
            "UNRECOVERABLE_TIME",
            "CON_ID",
        ),
        _data_files,
    ),
    "V$PARAMETER": (
        ("NUM", "NAME", "VALUE", "DISPLAY_VALUE", "TYPE", "ISDEFAULT"),
        _parameters,
    ),
    "V$INSTANCE": (_INSTANCE, _instance),
    "GV$INSTANCE": (("INST_ID", *_INSTANCE), _instances),
    "V$NLS_PARAMETERS": (("PARAMETER", "VALUE"), _nls),
    "NLS_SESSION_PARAMETERS": (("PARAMETER", "VALUE"), _nls),
    "NLS_DATABASE_PARAMETERS": (("PARAMETER", "VALUE"), _nls_database),
    "SESSION_PRIVS": (("PRIVILEGE",), _privileges),
    "SESSION_ROLES": (("ROLE",), lambda _: [("EXECUTE_CATALOG_ROLE",)]),
    "V$CONTAINERS": (("CON_ID", "NAME", "OPEN_MODE", "RESTRICTED", "DBID"), _containers),
    "V$PDBS": (("CON_ID", "NAME", "OPEN_MODE", "RESTRICTED", "DBID"), _pdbs),
    "V$LOGMNR_LOGS": (
        ("FILENAME", "THREAD_ID", "THREAD_SQN", "LOW_SCN", "NEXT_SCN"),
        lambda context: context.mined_files(),
    ),
    "V$SESSION": (_SESSION, lambda context: [row[1:] for row in _sessions(context)]),
    "GV$SESSION": (("INST_ID", *_SESSION), _sessions),
    "V$VERSION": (("BANNER", "BANNER_FULL", "BANNER_LEGACY"), _versions),
    "PRODUCT_COMPONENT_VERSION": (("PRODUCT", "VERSION", "VERSION_FULL", "STATUS"), _products),
    "V$ARCHIVE_DEST": (
        ("DEST_ID", "DEST_NAME", "STATUS", "TARGET", "DESTINATION"),
        _archive_destinations,
    ),
    "V$LOG_HISTORY": (
        ("RECID", "THREAD#", "SEQUENCE#", "FIRST_CHANGE#", "FIRST_TIME", "NEXT_CHANGE#"),
        _log_history,
    ),
    "V$UNDOSTAT": (
        (
            "BEGIN_TIME",
            "END_TIME",
            "TUNED_UNDORETENTION",
            "SSOLDERRCNT",
            "NOSPACEERRCNT",
            "MAXQUERYLEN",
        ),
        _undo_statistics,
    ),
    "DATABASE_PROPERTIES": (("PROPERTY_NAME", "PROPERTY_VALUE"), _properties),
    "DUAL": (("DUMMY",), lambda _: [("X",)]),
}
