"""Doctor's checks of slot, publication and the replication connection (PG06 to PG13, ...)."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.postgres.checks.probe import SOURCE_CHECKS, Probe
from penstock.engines.postgres.checks.server import (
    finding,
    is_being_created,
    own_slot,
    replication_grant,
)
from penstock.engines.postgres.connect import literal, quote
from penstock.engines.postgres.extraction import read_identity
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import (
    APPLICATION_NAME,
    PositionAhead,
    SlotInUse,
    check_not_ahead,
    list_published,
)
from penstock.engines.postgres.source.slot_owner import (
    SlotOfAnother,
    SlotThereBefore,
    check_adoptable,
    own_names_hint,
    slot_of_another,
    slot_owner,
    slot_there_before,
)
from penstock.engines.postgres.source.source_engine import STREAM_FILE
from penstock.engines.postgres.source.source_identity import (
    ServerIdentity,
    SourceReplaced,
    TimelineForked,
    checked_server,
)
from penstock.engines.postgres.standby import PublicationOnPrimary, check_publication_there
from penstock.host.errors import LoginRefused, PrivilegeMissing
from penstock.host.state_file import StateFile
from penstock.model import LOAD_AGAIN, PenstockError, TableName
from penstock.model.words import count_words
from penstock.ports.checks import Finding, Severity, fix_of
from penstock.ports.config import Mode
from penstock.ports.handover import read_handover
from penstock.ports.identity import check_identity, stored_identity


def _slot(probe: Probe) -> str:
    return probe.config.change_extractor.replication_slot


def _load_again(probe: Probe) -> str:
    """Return the commands where changes are lost for good."""
    return LOAD_AGAIN.replace("FILE", probe.config.path.name)


def _publication(probe: Probe) -> str:
    return probe.config.change_extractor.publication


def _tables(probe: Probe) -> str:
    return list_published(table.name for table in probe.tables) or "only ..."


def create_publication(probe: Probe) -> str:
    """Return the statement for an administrator if we may not create the publication ourselves."""
    return (
        f"create publication {quote(_publication(probe))} for table {_tables(probe)} "
        "with (publish_via_partition_root = true);"
    )


@SOURCE_CHECKS.check("PG06", "replication connection", change_only=True)
def replication_connection(probe: Probe) -> Iterator[Finding]:
    """Open a replication connection and identify the system: a pooler or pg_hba.conf may prevent
    that.
    """
    try:
        with open_replication(
            probe.config.source.url, application_name="penstock doctor"
        ) as replication:
            rows = replication.query("IDENTIFY_SYSTEM", doing="asking the source who it is")
    except PenstockError as error:
        yield finding(
            "PG06",
            Severity.ERROR,
            f"no replication connection to the source: {error.message}",
            "changes come over one; a connection pooler does not support it",
            _replication_fix(probe, error),
        )
        return
    system_id = rows[0]["systemid"] if rows else None
    if system_id != probe.database[0]:
        yield finding(
            "PG06",
            Severity.ERROR,
            f"the replication connection reaches another server ({system_id}) than SQL does "
            f"({probe.database[0]})",
            "a balancer sends them to different servers",
            "name one server directly in source.url",
        )


def _replication_fix(probe: Probe, error: PenstockError) -> str:
    """Return the fix of the reason for which the server refuses the connection."""
    if isinstance(error, PrivilegeMissing):
        return replication_grant(probe)
    if isinstance(error, LoginRefused):
        return (
            f"hostssl {probe.connection.info.dbname} {probe.user} ADDRESS/32 scram-sha-256  "
            "# in pg_hba.conf, then: select pg_reload_conf();"
        )
    return fix_of(error, "name the server itself in source.url, not a pooler before it")


@SOURCE_CHECKS.check("PG07", "same source as before")
def same_source(probe: Probe) -> Iterator[Finding]:
    """Check that the directory belongs to this pipeline, server, timeline, database and slot."""
    stored = stored_identity(probe.config)
    now = read_identity(probe.connection, probe.config)
    try:
        check_identity(probe.config, stored, now)
    except PenstockError as error:
        yield finding(
            "PG07",
            Severity.ERROR,
            error.message,
            "positions of one source mean nothing in another; changes would be missed or mixed",
            fix_of(error),
        )
        return
    position = probe.examined.log_end()
    if probe.config.pipeline.mode.has_change and position:
        yield from _has_ours(probe, position)


def _has_ours(probe: Probe, position: int) -> Iterator[Finding]:
    """Check, after a promotion or with an older copy, that the server has all that the log has."""
    known = StateFile(probe.config.layout.state / STREAM_FILE, ServerIdentity).load()
    try:
        with open_replication(
            probe.config.source.url, application_name="penstock doctor"
        ) as replication:
            checked_server(replication, known, position)
            check_not_ahead(replication, position)
    except (SourceReplaced, TimelineForked, PositionAhead) as error:
        yield finding(
            "PG07",
            Severity.ERROR,
            error.message,
            "positions mean something else there; changes would be missed or mixed",
            fix_of(error),
        )


@SOURCE_CHECKS.check("PG09", "slot belongs to this pipeline", change_only=True)
def slot_kind(probe: Probe) -> Iterator[Finding]:
    """Check that the slot with this name is a logical pgoutput slot of this database and this
    pipeline.
    """
    slot = own_slot(probe)
    if slot is None or is_being_created(slot):
        return
    two_phase = probe.value(
        "select two_phase from pg_replication_slots where slot_name = %(slot)s", slot=_slot(probe)
    )
    database = probe.connection.info.dbname
    wrong = {
        "type": (slot["slot_type"], "logical"),
        "plugin": (slot["plugin"], "pgoutput"),
        "database": (slot["database"], database),
        "two_phase": (two_phase, False),
    }
    is_ours = True
    for name, (actual, expected) in wrong.items():
        if actual != expected and (actual is not None or name == "plugin"):
            is_ours = False
            yield finding(
                "PG09",
                Severity.ERROR,
                f"the slot {_slot(probe)} has {name} {actual}, expected {expected}",
                "it belongs to something else, or was created in another way",
                own_names_hint(probe.connection, _slot(probe), _publication(probe)),
            )
    if is_ours:
        yield from _slot_of_another(probe)


def _slot_of_another(probe: Probe) -> Iterator[Finding]:
    """Report an owner for which `ensure_slot`, the handover or the engine would refuse the slot."""
    config, slot, publication = probe.config, _slot(probe), _publication(probe)
    try:
        known = slot_owner(probe.connection, publication, slot)
        if known is not None and known.log_id != probe.examined.log_id():
            raise slot_of_another(
                probe.connection, known, publication, slot, pipeline=config.pipeline.name
            )
        if not probe.examined.pipeline.log_position():
            check_adoptable(probe.connection, publication, slot)
            if config.pipeline.mode is Mode.DATA_CHANGE and read_handover(config) is None:
                raise slot_there_before(probe.connection, publication, slot)
    except (SlotOfAnother, SlotInUse, SlotThereBefore) as error:
        yield finding(
            "PG09",
            Severity.ERROR,
            error.message,
            "a slot gives each change to one reader only",
            error.hint.replace("FILE", config.path.name),
        )


@SOURCE_CHECKS.check("PG10", "slot state", change_only=True)
def slot_state(probe: Probe) -> Iterator[Finding]:
    """Check that the slot exists once a log has begun, has all the WAL it needs, and has one reader
    only.
    """
    slot = own_slot(probe)
    if slot is None:
        if probe.examined.log_end():
            yield finding(
                "PG10",
                Severity.ERROR,
                f"the source has no slot {_slot(probe)}, from which this pipeline's log goes on",
                "the server kept nothing for it: the changes since the end of the log are gone",
                _load_again(probe),
            )
        return
    status = slot["wal_status"]
    keep = "alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf();"
    if status == "lost":
        yield finding(
            "PG10",
            Severity.ERROR,
            f"the slot {_slot(probe)} is lost: the server removed WAL that it still needed",
            "the changes in between are gone",
            _load_again(probe),
        )
    elif status == "unreserved":
        yield finding(
            "PG10",
            Severity.ERROR,
            f"the slot {_slot(probe)} is about to be lost: it is over max_slot_wal_keep_size",
            "the next checkpoint removes WAL that it needs",
            keep,
        )
    elif status == "extended":
        yield finding(
            "PG10",
            Severity.WARNING,
            f"the slot {_slot(probe)} keeps {slot['retained_bytes']} bytes of WAL, more than "
            "max_wal_size",
            "the pipeline is behind, and the server's disk fills",
            keep,
        )
    if slot["active"] and not is_being_created(slot):
        yield from _other_reader(probe, slot["active_pid"])


def _other_reader(probe: Probe, pid: object) -> Iterator[Finding]:
    rows = probe.rows(
        "select application_name, client_addr::text as address from pg_stat_activity "
        "where pid = %(pid)s",
        pid=pid,
    )
    name = rows[0]["application_name"] if rows else "unknown"
    if name == APPLICATION_NAME and probe.examined.extracts():
        return
    yield finding(
        "PG10",
        Severity.WARNING,
        f"the slot {_slot(probe)} is being read by {name or 'a nameless program'} (pid {pid})",
        "only one reader may use a slot",
        f"select pg_terminate_backend({pid});",
    )


@SOURCE_CHECKS.check("PG11", "publication", change_only=True)
def publication(probe: Probe) -> Iterator[Finding]:
    """Check that the publication publishes all four kinds of change, and partitions under their
    root.
    """
    rows = probe.rows(
        "select * from pg_publication where pubname = %(name)s", name=_publication(probe)
    )
    if not rows:
        if own_slot(probe) is None:
            yield from _can_create_publication(probe)
        return
    lacking = [
        what for what in ("insert", "update", "delete", "truncate") if not rows[0][f"pub{what}"]
    ]
    partitioned = any(table.partition_leaves for table in probe.tables)
    fix = (
        f"alter publication {quote(_publication(probe))} set "
        "(publish = 'insert, update, delete, truncate', publish_via_partition_root = true);"
    )
    if lacking:
        yield finding(
            "PG11",
            Severity.ERROR,
            f"the publication {_publication(probe)} does not publish {', '.join(lacking)}",
            "such changes would never arrive",
            fix,
        )
    if not rows[0]["pubviaroot"] and partitioned:
        yield finding(
            "PG11",
            Severity.ERROR,
            f"the publication {_publication(probe)} does not publish partitions under their root",
            "their rows would arrive under the partitions' names",
            fix,
        )


def _can_create_publication(probe: Probe) -> Iterator[Finding]:
    try:
        check_publication_there(
            probe.connection, _publication(probe), [table.name for table in probe.tables]
        )
    except PublicationOnPrimary as error:
        yield finding(
            "PG11", Severity.ERROR, error.message, "changes come by publication", fix_of(error)
        )
        return
    yield from _may_create_publication(probe)


def _may_create_publication(probe: Probe) -> Iterator[Finding]:
    """Check that the user may create the publication, which takes CREATE on the database and
    ownership of its tables.
    """
    superuser = probe.value("select rolsuper from pg_roles where rolname = current_user")
    if superuser:
        return
    create = probe.value("select has_database_privilege(current_database(), 'create')")
    foreign = probe.rows(
        """
        select c.oid::regclass::text as name
          from pg_class as c
         where c.oid = any(%(ids)s)
           and not pg_has_role(c.relowner, 'usage')
         order by 1
        """,
        ids=[table.source_id for table in probe.tables],
    )
    if create and not foreign:
        return
    lack = (
        f"{probe.user} does not own {foreign[0]['name']}"
        if foreign
        else (f"{probe.user} does not have CREATE on the database")
    )
    yield finding(
        "PG11",
        Severity.ERROR,
        f"there is no publication {_publication(probe)} on the source, and {lack}",
        "making one takes CREATE on the database and the ownership of each table",
        f"{create_publication(probe)}  -- as an administrator",
    )


@SOURCE_CHECKS.check("PG13", "tables in the publication", change_only=True)
def published_tables(probe: Probe) -> Iterator[Finding]:
    """Check that each captured table is in the publication, if there is one."""
    if not probe.value(
        "select true from pg_publication where pubname = %(name)s", name=_publication(probe)
    ):
        return
    there = {
        TableName(row["schemaname"], row["tablename"])
        for row in probe.rows(
            "select schemaname, tablename from pg_publication_tables where pubname = %(name)s",
            name=_publication(probe),
        )
    }
    added = probe.examined.copied()  # the extractor publishes them, or says why not
    for table in probe.examined.known(probe.tables):  # what is new is asked for at the start
        if table.name not in there and table.name not in added:
            yield finding(
                "PG13",
                Severity.ERROR,
                f"{table.name} is not in the publication {_publication(probe)}",
                "its changes would not arrive; once it is, the next run loads it and follows it",
                f"alter publication {quote(_publication(probe))} add table "
                f"{list_published([table.name])};",
            )


@SOURCE_CHECKS.check("PG17", "row filters and column lists", change_only=True)
def publication_filters(probe: Probe) -> Iterator[Finding]:
    """Report row filters and column lists, which hide rows or columns from the stream."""
    if probe.version < 150000:
        return
    for row in probe.rows(
        """
        select r.prrelid::regclass::text as name,
               pg_get_expr(r.prqual, r.prrelid) as row_filter,
               r.prattrs is not null as has_columns
          from pg_publication_rel as r
          join pg_publication as p on p.oid = r.prpubid
         where p.pubname = %(name)s
           and (r.prqual is not null or r.prattrs is not null)
         order by 1
        """,
        name=_publication(probe),
    ):
        what = "a column list" if row["has_columns"] else f"a row filter {row['row_filter']}"
        yield finding(
            "PG17",
            Severity.WARNING,
            f"the publication {_publication(probe)} has {what} on {row['name']}",
            "the stream holds less than the table, so source and target differ",
            f"alter publication {quote(_publication(probe))} set table {_tables(probe)};",
        )


@SOURCE_CHECKS.check("PG20", "spilling", change_only=True)
def spilling(probe: Probe) -> Iterator[Finding]:
    """Report a slot whose large transactions spill to disk at the server, which slows it down."""
    for row in probe.rows(
        "select spill_txns, spill_bytes from pg_stat_replication_slots "
        "where slot_name = %(slot)s and spill_bytes > 0",
        slot=_slot(probe),
    ):
        yield finding(
            "PG20",
            Severity.WARNING,
            "spilled to the server's disk for this slot: "
            f"{count_words(row['spill_txns'], 'transaction')}, "
            f"{count_words(row['spill_bytes'], 'byte')}",
            "that slows decoding down",
            f"alter role {quote(probe.user)} set logical_decoding_work_mem = '512MB';",
        )


@SOURCE_CHECKS.check("PG27", "slot failover", change_only=True)
def failover(probe: Probe) -> Iterator[Finding]:
    """Report a slot that does not follow a promotion, which is possible since version 17, or that
    is invalidated.
    """
    if probe.version < 170000 or own_slot(probe) is None:
        return
    row = probe.rows(
        "select failover, invalidation_reason from pg_replication_slots where slot_name = %(slot)s",
        slot=_slot(probe),
    )[0]
    if row["invalidation_reason"] is not None:
        yield finding(
            "PG27",
            Severity.ERROR,
            f"the server invalidated the slot {_slot(probe)}: {row['invalidation_reason']}",
            "the changes since then are gone",
            _load_again(probe),
        )
    standby = probe.value(
        "select true from pg_replication_slots where slot_type = 'physical' limit 1"
    )
    if standby and not row["failover"]:
        yield finding(
            "PG27",
            Severity.WARNING,
            f"the source has a standby, and the slot {_slot(probe)} does not fail over to it",
            "after a promotion the slot is gone and everything is loaded again",
            f"ALTER_REPLICATION_SLOT {_slot(probe)} (FAILOVER true)  "
            "-- in psql 'replication=database ...', with the pipeline stopped",
        )


@SOURCE_CHECKS.check("PG28", "synchronized_standby_slots", change_only=True)
def synchronized_standbys(probe: Probe) -> Iterator[Finding]:
    """Warn if there are failover slots and the primary may send changes before its standby has
    received them.
    """
    if probe.version < 170000 or probe.setting("synchronized_standby_slots"):
        return
    physical = probe.value(
        "select min(slot_name) from pg_replication_slots where slot_type = 'physical'"
    )
    failover_slot = probe.value("select true from pg_replication_slots where failover limit 1")
    if physical and failover_slot:
        yield finding(
            "PG28",
            Severity.WARNING,
            "synchronized_standby_slots of the source is empty",
            "the stream may run ahead of the standby: after a promotion rows are there twice",
            f"alter system set synchronized_standby_slots = {literal(physical)}; "
            "select pg_reload_conf();",
        )


@SOURCE_CHECKS.check("PG31", "publication exists", change_only=True)
def publication_gone(probe: Probe) -> Iterator[Finding]:
    """Report a slot whose publication is missing: rows are lost, and PostgreSQL 18 only warns, in
    the server's own log.
    """
    slot = own_slot(probe)
    if slot is None or probe.value(
        "select true from pg_publication where pubname = %(name)s", name=_publication(probe)
    ):
        return
    yield finding(
        "PG31",
        Severity.ERROR,
        f"the slot {_slot(probe)} is there, the publication {_publication(probe)} is not",
        "changes since the slot was created would be lost; a publication created now does not "
        "bring them back",
        _load_again(probe),
    )
