"""Doctor's checks of the source server: versions, settings, roles, limits (PG01 to PG08, ...).

Not here: slot and publication (`slot_checks.py`), tables (`table_checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.postgres.checks.probe import SOURCE_CHECKS, Probe
from penstock.engines.postgres.connect import literal, quote, server_errors
from penstock.engines.postgres.source.heartbeat import PREFIX, SEND
from penstock.engines.postgres.source.slot import blockers
from penstock.engines.postgres.standby import NotAStandby, StandbyTooOld, check_standby
from penstock.model import PenstockError
from penstock.ports.checks import DOING, Finding, Severity, Side
from penstock.ports.config import HandoverMode
from penstock.ports.handover import read_handover

SIZE_UNITS = {"B": 1, "kB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
WAL_KEEP_BYTES_MIN = 2**30
SENDER_TIMEOUT_MS_MIN = 15_000
OLD_TRANSACTION_S = 300
SLOT_AGE_WARNING = 200_000_000
SLOT_AGE_ERROR = 1_000_000_000

OWN_SLOT = """
    select slot_name, plugin, database, slot_type, active, active_pid, wal_status, safe_wal_size,
           confirmed_flush_lsn::text,
           pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                                else pg_current_wal_lsn() end, restart_lsn) as retained_bytes
      from pg_replication_slots
     where slot_name = %(slot)s
"""


def finding(code: str, severity: Severity, what: str, why: str, command: str = "") -> Finding:
    """Return a finding on the source side."""
    return Finding(
        code=code, severity=severity, side=Side.SOURCE, what=what, why=why, command=command
    )


def own_slot(probe: Probe) -> dict[str, object] | None:
    """Return the pipeline's slot from pg_replication_slots, or None; it is read once."""
    if "slot" not in probe.memo:
        slot = probe.config.change_extractor.replication_slot
        rows = probe.rows(OWN_SLOT, slot=slot)
        probe.memo["slot"] = rows[0] if rows else None
    slot_row: dict[str, object] | None = probe.memo["slot"]
    return slot_row


def is_being_created(slot: dict[str, object]) -> bool:
    """Return whether another session creates the slot now, and waits for open transactions."""
    is_ours = slot["slot_type"] == "logical" and slot["plugin"] == "pgoutput"
    return is_ours and bool(slot["active"]) and slot["confirmed_flush_lsn"] is None


@SOURCE_CHECKS.check("PG01", "server version")
def server_version(probe: Probe) -> Iterator[Finding]:
    """Check that the server's version is 14 to 18."""
    if probe.version < 140000:
        yield finding(
            "PG01",
            Severity.ERROR,
            f"the source is PostgreSQL {probe.version // 10000}; 14 is the oldest supported",
            "older servers lack the replication protocol that penstock speaks",
        )
    elif probe.version >= 190000:
        yield finding(
            "PG01",
            Severity.WARNING,
            f"the source is PostgreSQL {probe.version // 10000}; 18 is the newest tested",
            "a newer server may send data that penstock does not know yet; penstock would stop, "
            "not skip it",
        )


@SOURCE_CHECKS.check("PG02", "wal_level", change_only=True)
def wal_level(probe: Probe) -> Iterator[Finding]:
    """Check that wal_level is logical, which logical decoding needs."""
    level = probe.setting("wal_level")
    if level != "logical":
        yield finding(
            "PG02",
            Severity.ERROR,
            f"wal_level of the source is {level}, it must be logical",
            "without it the server's log does not hold what logical replication needs",
            "alter system set wal_level = 'logical';  -- then restart the server",
        )


@SOURCE_CHECKS.check("PG03", "free replication slots", change_only=True)
def free_slots(probe: Probe) -> Iterator[Finding]:
    """Check that a slot is free unless ours exists. Verify needs one more for a moment."""
    most = int(probe.setting("max_replication_slots") or 0)
    free = most - int(probe.value("select count(*) from pg_replication_slots"))
    missing = own_slot(probe) is None
    fix = f"alter system set max_replication_slots = {most + 16};  -- then restart the server"
    if missing and free < 1:
        yield finding(
            "PG03",
            Severity.ERROR,
            f"no replication slot is free on the source: all {most} are in use",
            "the pipeline needs one of its own",
            fix,
        )
    elif free - missing < 1:
        yield finding(
            "PG03",
            Severity.WARNING,
            f"no second replication slot is free on the source ({most} in all)",
            "`penstock verify` and a bulk load begun again need a temporary one",
            fix,
        )


@SOURCE_CHECKS.check("PG04", "free WAL senders", change_only=True)
def free_senders(probe: Probe) -> Iterator[Finding]:
    """Check that two WAL senders are free: one for the stream, one to create a slot."""
    most = int(probe.setting("max_wal_senders") or 0)
    free = most - int(
        probe.value("select count(*) from pg_stat_activity where backend_type = 'walsender'")
    )
    slot = own_slot(probe)
    needed = 1 if slot and slot["active"] else 2
    if free < needed:
        yield finding(
            "PG04",
            Severity.ERROR,
            f"{max(free, 0)} of {most} WAL senders are free on the source, {needed} are needed",
            "the stream takes one; making a slot takes another for a moment",
            f"alter system set max_wal_senders = {most + 10};  -- then restart the server",
        )


@SOURCE_CHECKS.check("PG05", "REPLICATION privilege", change_only=True)
def replication_role(probe: Probe) -> Iterator[Finding]:
    """Check that the role has REPLICATION, or on Amazon RDS the role rds_replication."""
    may = probe.value(
        """
        select r.rolreplication
               or r.rolsuper
               or exists (select from pg_roles as g
                           where g.rolname in ('rds_replication', 'rds_superuser')
                             and pg_has_role(r.oid, g.oid, 'member'))
          from pg_roles as r
         where r.rolname = current_user
        """
    )
    if not may:
        yield finding(
            "PG05",
            Severity.ERROR,
            f"the role {probe.user} may not replicate from the source",
            "slots and the stream need the attribute REPLICATION",
            replication_grant(probe),
        )


def replication_grant(probe: Probe) -> str:
    """Return the statement that lets our role replicate."""
    return (
        f"alter role {quote(probe.user)} replication;  "
        f"-- on Amazon RDS: grant rds_replication to {quote(probe.user)};"
    )


@SOURCE_CHECKS.check("PG08", "standby", change_only=True)
def standby(probe: Probe) -> Iterator[Finding]:
    """Check that a source that is a standby is version 16 or later, and recommend the primary."""
    if not probe.value("select pg_is_in_recovery()"):
        return
    if probe.version < 160000:
        yield finding(
            "PG08",
            Severity.ERROR,
            f"the source is a standby of version {probe.version // 10000}",
            "logical decoding on a standby needs 16 or later",
            "point source.url at the primary",
        )
    else:
        yield finding(
            "PG08",
            Severity.WARNING,
            "the source is a standby",
            "a conflict with recovery can invalidate its slot, and promotion ends the stream; "
            "making a slot waits for the primary",
            "select pg_log_standby_snapshot();  -- on the primary, while the slot is being made",
        )


@SOURCE_CHECKS.check("PG35", "mode pause", change_only=True)
def pausable(probe: Probe) -> Iterator[Finding]:
    """Check that the source is a standby of version 16 or later, until a handover in mode pause is
    finished.
    """
    config = probe.config
    made = read_handover(config)
    if config.pipeline.handover is not HandoverMode.PAUSE or (made is not None and made.position):
        return
    try:
        check_standby(probe.connection)
    except (NotAStandby, StandbyTooOld) as error:
        yield finding("PG35", Severity.ERROR, error.message, "the handover is refused", error.hint)


@SOURCE_CHECKS.check("PG36", "heartbeats", change_only=True)
def heartbeats(probe: Probe) -> Iterator[Finding]:
    """Check, if heartbeatSeconds is set, that a heartbeat can be written. It is rolled back."""
    if not probe.config.change_extractor.heartbeat_seconds:
        return
    try:
        with server_errors(DOING), probe.connection.transaction(force_rollback=True):
            probe.connection.execute(SEND, (PREFIX, "doctor"))
    except PenstockError as error:
        yield finding(
            "PG36",
            Severity.WARNING,
            f"heartbeats cannot be written: {error.message}",
            "without them, an idle path is not measured; changes flow nevertheless",
            "set heartbeatSeconds = 0, or point source.url at a primary where the role may execute "
            "pg_logical_emit_message",
        )


@SOURCE_CHECKS.check("PG18", "long-running transactions", change_only=True)
def old_transactions(probe: Probe) -> Iterator[Finding]:
    """Report old transactions: creating a slot waits for every transaction that writes, prepared
    ones included.
    """
    slot = own_slot(probe)
    if slot is not None and is_being_created(slot):
        yield from _waited_for(probe, slot)
    if slot is not None:
        return
    why = "making the slot waits until it ends, in any database of the server"
    for row in probe.rows(
        """
        select pid, datname, state, extract(epoch from now() - xact_start)::int as age_s
          from pg_stat_activity
         where backend_xid is not null
           and xact_start <= now() - %(age_s)s * interval '1 s'
           and pid <> pg_backend_pid()
         order by xact_start
         limit 20
        """,
        age_s=OLD_TRANSACTION_S,
    ):
        yield finding(
            "PG18",
            Severity.WARNING,
            f"a transaction in {row['datname']} is open for {row['age_s']} s "
            f"(pid {row['pid']}, {row['state']})",
            why,
            f"select pg_terminate_backend({row['pid']});",
        )
    for row in probe.rows(
        """
        select gid, database, extract(epoch from now() - prepared)::int as age_s
          from pg_prepared_xacts
         where prepared <= now() - %(age_s)s * interval '1 s'
         order by prepared
         limit 20
        """,
        age_s=OLD_TRANSACTION_S,
    ):
        yield finding(
            "PG18",
            Severity.WARNING,
            f"the prepared transaction {row['gid']} in {row['database']} is open for "
            f"{row['age_s']} s",
            why,
            f"rollback prepared {literal(row['gid'])};  -- in database {row['database']}",
        )


def _waited_for(probe: Probe, slot: dict[str, object]) -> Iterator[Finding]:
    """Name the transactions that the slot waits for, which is being created now."""
    for one in blockers(probe.config.source.url):
        if one.pid != slot["active_pid"]:
            yield finding(
                "PG18",
                Severity.WARNING,
                f"the slot {slot['slot_name']} is being created, and waits for {one.what}",
                "no change is extracted, and no row is copied, until it has ended",
                one.sql,
            )


@SOURCE_CHECKS.check("PG19", "slot age", change_only=True)
def slot_age(probe: Probe) -> Iterator[Finding]:
    """Report abandoned slots: they keep vacuum from cleaning the catalogue, in the end up to
    wraparound.
    """
    for row in probe.rows(
        """
        select slot_name, age(catalog_xmin) as age
          from pg_replication_slots
         where age(catalog_xmin) > %(most)s
         order by slot_name
        """,
        most=SLOT_AGE_WARNING,
    ):
        yield finding(
            "PG19",
            Severity.ERROR if row["age"] > SLOT_AGE_ERROR else Severity.WARNING,
            f"the slot {row['slot_name']} holds back the catalogue by {row['age']} transactions",
            "vacuum cannot remove newer dead rows; past two thousand million transactions the "
            "server stops writing",
            "select slot_name, plugin, database, active from pg_replication_slots where slot_name "
            f"= {literal(row['slot_name'])};  -- its owner lets it go on, or drops it",
        )


@SOURCE_CHECKS.check("PG23", "encoding")
def encoding(probe: Probe) -> Iterator[Finding]:
    """Report a SQL_ASCII database: it may hold bytes that are not valid text."""
    name = probe.value(
        """
        select pg_encoding_to_char(encoding)
          from pg_database
         where datname = current_database()
        """
    )
    if name == "SQL_ASCII":
        yield finding(
            "PG23",
            Severity.WARNING,
            "the source database has the encoding SQL_ASCII",
            "the server does not convert it; bytes that are not UTF-8 stop the pipeline",
            "select datname, pg_encoding_to_char(encoding) from pg_database;  "
            "-- dump it and restore it into a UTF8 database",
        )


def size_bytes(text: str) -> int:
    """Return a size such as `50GB` in bytes. As in WAL settings a bare number counts megabytes, and
    -1 stays -1.
    """
    digits = text.rstrip("kMGTB")
    unit = text[len(digits) :]
    return int(digits) if int(digits) < 0 else int(digits) * SIZE_UNITS[unit or "MB"]


@SOURCE_CHECKS.check("PG25", "WAL kept for slots", change_only=True)
def wal_keep_size(probe: Probe) -> Iterator[Finding]:
    """Check max_slot_wal_keep_size: without a limit a stopped pipeline fills the disk, with a small
    one it loses its position.
    """
    text = probe.setting("max_slot_wal_keep_size") or "-1"
    fix = "alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf();"
    if size_bytes(text) < 0:
        yield finding(
            "PG25",
            Severity.WARNING,
            "max_slot_wal_keep_size of the source is -1: no limit",
            "a pipeline that is stopped for long fills the server's disk",
            fix,
        )
    elif size_bytes(text) < WAL_KEEP_BYTES_MIN:
        yield finding(
            "PG25",
            Severity.WARNING,
            f"max_slot_wal_keep_size of the source is {text}",
            "a short stop of the pipeline can lose the slot; then everything is loaded again",
            fix,
        )


@SOURCE_CHECKS.check("PG26", "replication timeouts", change_only=True)
def sender_timeouts(probe: Probe) -> Iterator[Finding]:
    """Report a short wal_sender_timeout, which cuts the stream, and an
    idle_replication_slot_timeout, which invalidates the slot.
    """
    timeout = int(
        probe.value("select setting::int from pg_settings where name = 'wal_sender_timeout'")
    )
    if 0 < timeout < SENDER_TIMEOUT_MS_MIN:
        yield finding(
            "PG26",
            Severity.WARNING,
            f"wal_sender_timeout of the source is {timeout} ms",
            "a short interruption of network or disk ends the stream",
            "alter system set wal_sender_timeout = '60s'; select pg_reload_conf();",
        )
    idle = probe.value(
        """
        select setting::int
          from pg_settings
         where name = 'idle_replication_slot_timeout'
        """
    )
    if idle:
        shown = probe.setting("idle_replication_slot_timeout")
        yield finding(
            "PG26",
            Severity.WARNING,
            f"idle_replication_slot_timeout of the source is {shown}",
            "a pipeline stopped for longer loses its slot and has to load everything again",
            "alter system set idle_replication_slot_timeout = '0'; select pg_reload_conf();",
        )


@SOURCE_CHECKS.check("PG29", "role settings")
def role_settings(probe: Probe) -> Iterator[Finding]:
    """Report settings of role or database that change the text of values. We override them."""
    for row in probe.rows(
        """
        select coalesce(d.datname, 'all databases') as place, setting
          from pg_db_role_setting as s
          cross join unnest(s.setconfig) as setting
          left join pg_database as d on d.oid = s.setdatabase
         where s.setrole in (0, (select oid from pg_roles where rolname = current_user))
           and (d.datname is null or d.datname = current_database())
           and setting ~* '^(datestyle|intervalstyle|timezone|search_path|extra_float_digits'
                       '|bytea_output|lc_monetary|row_security|[a-z_]*timeout)='
         order by 1, 2
        """
    ):
        yield finding(
            "PG29",
            Severity.WARNING,
            f"{row['setting']} is set for {probe.user} in {row['place']}",
            "penstock sets its own on every connection, so that values keep their exact text; "
            "other tools with this role may see other text",
        )
