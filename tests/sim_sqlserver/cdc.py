"""Procedures of change data capture (reference, sections 1, 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim_sqlserver import ddl
from sim_sqlserver.errors import SqlError
from sim_sqlserver.metadata import Column
from sim_sqlserver.names import literal
from sim_sqlserver.procedures import INT, TEXT, Arguments, procedure
from sim_sqlserver.sqltypes import SqlType

if TYPE_CHECKING:
    from sim_sqlserver.session import Session

INSTANCES_MAX = 2
NAME_MAX = 100
BIGINT, BIT = SqlType("bigint"), SqlType("bit")
LSN = SqlType("binary", length=10)


def _text(value: Any) -> str:
    return literal(None if value is None else str(value))


def _need_owner(session: Session) -> None:
    if not session.rows("select sim.is_owner()")[0][0]:
        said = "The caller is not authorized to perform the requested action because they are not "
        raise SqlError(22904, said + "the database owner.")


def _need_cdc(session: Session) -> None:
    if not session.database.has_cdc:
        said = f"The database '{session.database.name}' is not enabled for Change Data Capture. "
        raise SqlError(22901, said + "Ensure that the correct database context is set and retry.")


@procedure("sp_cdc_enable_db")
def enable_db(session: Session, arguments: Arguments) -> None:
    """Enable capture for the database."""
    if not session.rows("select simfn.ms_is_srvrolemember('sysadmin')")[0][0]:
        raise SqlError(22902, "Caller is not authorized to initiate the requested action.")
    if session.database.has_cdc:
        return
    found = session.rows(
        "select is_accelerated_database_recovery_on from sys.databases where database_id = 5"
    )
    if found[0][0]:
        raise SqlError(
            22117, "Change data capture cannot be enabled with accelerated database recovery."
        )
    session.database.enable_cdc()


@procedure("rds_cdc_enable_db")
def rds_enable_db(session: Session, arguments: Arguments) -> None:
    """Enable capture as on RDS."""
    session.server.database(str(arguments.listed[0])).enable_cdc()


@procedure("sp_cdc_disable_db")
def disable_db(session: Session, arguments: Arguments) -> None:
    """Disable capture for the database; all instances go."""
    session.database.disable_cdc()


@procedure("sp_cdc_enable_table")
def enable_table(session: Session, arguments: Arguments) -> None:
    """Create a capture instance."""
    _need_owner(session)
    _need_cdc(session)
    schema, table = str(arguments.get(0, "source_schema")), str(arguments.get(1, "source_name"))
    try:
        number = ddl.table_id(session, (schema, table))
    except SqlError as error:
        said = f"Source table '{schema}.{table}' does not exist in the current database."
        raise SqlError(22931, said) from error
    if (
        len(arguments.listed) < 4
        and "role_name" not in arguments.named
        and len(arguments.listed) < 3
    ):
        said = "Procedure or function 'sp_cdc_enable_table' expects parameter '@role_name', which "
        raise SqlError(201, said + "was not supplied.", state=4)
    instance = (
        arguments.get(2, "capture_instance") if "capture_instance" in arguments.named else None
    )
    name = str(instance or f"{schema}_{table}")
    _check_instance(session, number, name, schema, table)
    net = arguments.named.get("supports_net_changes")
    has_key = bool(
        session.rows(f"select 1 from pg_index where indrelid = {number} and indisprimary")
    )
    index = arguments.named.get("index_name")
    if net and not (has_key or index):
        said = (
            "The parameter @supports_net_changes is set to 1, but the source table does not have "
        )
        raise SqlError(
            22939, said + "a primary key defined and no alternate unique index has been specified."
        )
    columns = arguments.named.get("captured_column_list")
    listed = "null"
    if columns:
        names = [part.strip().strip("[]").lower() for part in str(columns).split(",")]
        listed = f"array[{', '.join(literal(part) for part in names)}]"
    with session.statement(writes=False, needs_block=True):
        session.rows(
            f"select sim.enable_table({number}, {literal(name)}, "
            f"{_text(arguments.named.get('role_name'))}, "
            f"{int(has_key if net is None else bool(net))}, "
            f"{_text(index)}, {listed})"
        )
        session.has_ddl = True
    session.database.names_changed()
    session.info(f"Job 'cdc.{session.database.name}_capture' started successfully.")


def _check_instance(session: Session, number: int, name: str, schema: str, table: str) -> None:
    if len(name) > NAME_MAX:
        raise SqlError(22920, "The named capture instance is longer than 100 characters.")
    found = session.rows(
        f"select count(*) filter (where source_object_id = {number}), "
        f"count(*) filter (where lower(capture_instance::text) = lower({literal(name)})) "
        "from cdc.change_tables"
    )
    if found[0][1]:
        said = f"Could not create a capture instance because the capture instance name '{name}' "
        raise SqlError(22926, said + "already exists in the current database.")
    if found[0][0] >= INSTANCES_MAX:
        said = f"Two capture instances already exist for source table '{schema}.{table}'."
        raise SqlError(22962, said)
    flags = session.rows(
        f"select sim.flag({number}, 'is_memory_optimized'), sim.flag({number}, 'temporal_type'), "
        f"exists (select from sim.index_flags f join pg_index i on i.indexrelid = f.id "
        f"where i.indrelid = {number} and f.kind = 5)"
    )
    if flags[0][2]:
        said = "CREATE INDEX failed: change data capture cannot be enabled on a table with a "
        raise SqlError(35353, said + "clustered columnstore index.")
    if flags[0][0]:
        raise SqlError(12110, "Change data capture is not supported with memory optimized tables.")
    if flags[0][1] == 1:
        raise SqlError(13570, "Change data capture cannot be enabled on a history table.")


@procedure("sp_cdc_disable_table")
def disable_table(session: Session, arguments: Arguments) -> None:
    """Drop one capture instance of a table, or all."""
    _need_owner(session)
    _need_cdc(session)
    schema, table = str(arguments.get(0, "source_schema")), str(arguments.get(1, "source_name"))
    number = ddl.table_id(session, (schema, table))
    instance = str(arguments.get(2, "capture_instance"))
    condition = (
        ""
        if instance == "all"
        else f" and lower(capture_instance::text) = lower({literal(instance)})"
    )
    found = session.rows(
        f"select object_id from cdc.change_tables where source_object_id = {number}{condition}"
    )
    if not found:
        raise SqlError(22960, f"Change data capture instance '{instance}' has not been enabled.")
    with session.database.paused_capture(), session.statement(writes=False, needs_block=True):
        for (change_table,) in found:
            session.rows(f"select sim.disable_instance({change_table})")
        session.has_ddl = True
    session.database.names_changed()


@procedure("sp_cdc_help_jobs")
def help_jobs(session: Session, arguments: Arguments) -> None:
    """Return the jobs' parameters."""
    _need_cdc(session)
    columns = [
        Column("job_id", SqlType("uniqueidentifier")), Column("job_type", SqlType("nvarchar", 20)),
        Column("job_name", TEXT), Column("maxtrans", INT), Column("maxscans", INT),
        Column("continuous", BIT), Column("pollinginterval", BIGINT),
        Column("retention", BIGINT), Column("threshold", BIGINT),
    ]  # fmt: skip
    session.send_rows(
        columns,
        "select md5(job_type)::uuid, job_type, 'cdc.' || current_database() || '_' || job_type, "
        "maxtrans, maxscans, continuous, pollinginterval, retention, threshold from sim.cdc_jobs "
        "order by job_type",
    )


@procedure("sp_cdc_change_job")
def change_job(session: Session, arguments: Arguments) -> None:
    """Change parameters of a job."""
    job = str(arguments.get(0, "job_type"))
    names = ("maxtrans", "maxscans", "continuous", "pollinginterval", "retention", "threshold")
    for name in names:
        if name in arguments.named:
            session.rows(
                f"update sim.cdc_jobs set {name} = {int(arguments.named[name])} "
                f"where job_type = {literal(job)}"
            )
    if job == "capture" and "maxtrans" in arguments.named:
        session.database.set("maxtrans", str(arguments.named["maxtrans"]))


@procedure("sp_cdc_add_job")
def add_job(session: Session, arguments: Arguments) -> None:
    """Create a job again, after a fail-over."""
    job = str(arguments.get(0, "job_type"))
    row = (
        "'capture', 500, 10, 1, 5, 0, 0"
        if job == "capture"
        else "'cleanup', 0, 0, 0, 0, 4320, 5000"
    )
    session.rows(f"insert into sim.cdc_jobs values ({row}) on conflict do nothing")
    if job == "capture":
        session.database.set("capture", "1")


@procedure("sp_cdc_drop_job")
def drop_job(session: Session, arguments: Arguments) -> None:
    """Drop a job."""
    job = str(arguments.get(0, "job_type"))
    session.rows(f"delete from sim.cdc_jobs where job_type = {literal(job)}")
    if job == "capture":
        session.database.set("capture", "0")


@procedure("sp_cdc_start_job")
def start_job(session: Session, arguments: Arguments) -> None:
    """Start the capture job."""
    if str(arguments.get(0, "job_type", "capture")) == "capture":
        session.database.set("capture", "1")


@procedure("sp_cdc_stop_job")
def stop_job(session: Session, arguments: Arguments) -> None:
    """Stop the capture job."""
    if str(arguments.get(0, "job_type", "capture")) == "capture":
        session.database.set("capture", "0")


@procedure("sp_cdc_scan")
def scan(session: Session, arguments: Arguments) -> None:
    """Capture at once what is committed."""
    session.database.scan()


@procedure("sp_cdc_cleanup_change_table")
def cleanup(session: Session, arguments: Arguments) -> None:
    """Remove the rows of an instance below a low water mark."""
    mark = arguments.get(1, "low_water_mark")
    low = "sys.fn_cdc_get_max_lsn()" if mark is None else f"'\\x{bytes(mark).hex()}'::bytea"
    with session.statement(writes=False, needs_block=True):
        session.rows(f"select sim.clean_up({low})")


@procedure("sp_cdc_help_change_data_capture")
def help_instances(session: Session, arguments: Arguments) -> None:
    """Return the capture instances."""
    _need_cdc(session)
    columns = [
        Column("source_schema", TEXT), Column("source_table", TEXT),
        Column("capture_instance", TEXT), Column("object_id", INT),
        Column("source_object_id", INT), Column("start_lsn", LSN), Column("end_lsn", LSN),
        Column("supports_net_changes", BIT), Column("has_drop_pending", BIT),
        Column("role_name", TEXT), Column("index_name", TEXT), Column("filegroup_name", TEXT),
        Column("create_date", SqlType("datetime")),
        Column("index_column_list", SqlType("nvarchar", -1)),
        Column("captured_column_list", SqlType("nvarchar", -1)),
    ]  # fmt: skip
    session.send_rows(
        columns,
        "select s.name, o.name, t.capture_instance, t.object_id, t.source_object_id, t.start_lsn, "
        "t.end_lsn, t.supports_net_changes, t.has_drop_pending, t.role_name, t.index_name, "
        "t.filegroup_name, t.create_date, "
        "(select string_agg(simfn.ms_quotename(i.column_name::text), ', ' "
        "order by index_ordinal) from cdc.index_columns i where i.object_id = t.object_id), "
        "(select string_agg(simfn.ms_quotename(c.column_name::text), ', ' order by column_ordinal) "
        "from cdc.captured_columns c where c.object_id = t.object_id) from cdc.change_tables t "
        "join sys.tables o on o.object_id = t.source_object_id "
        "join sys.schemas s on s.schema_id = o.schema_id",
    )


@procedure("sp_cdc_get_ddl_history")
def ddl_history(session: Session, arguments: Arguments) -> None:
    """Return the DDL of an instance's table."""
    _need_cdc(session)
    instance = str(arguments.get(0, "capture_instance"))
    columns = [
        Column("source_schema", TEXT), Column("source_table", TEXT),
        Column("capture_instance", TEXT), Column("required_column_update", BIT),
        Column("ddl_command", SqlType("nvarchar", -1)), Column("ddl_lsn", LSN),
        Column("ddl_time", SqlType("datetime")),
    ]  # fmt: skip
    session.send_rows(
        columns,
        "select s.name, o.name, t.capture_instance, h.required_column_update, h.ddl_command, "
        "h.ddl_lsn, "
        "h.ddl_time from cdc.ddl_history h join cdc.change_tables t on t.object_id = h.object_id "
        "join sys.tables o on o.object_id = t.source_object_id join sys.schemas s on "
        f"s.schema_id = o.schema_id where t.capture_instance::text = {literal(instance)} "
        "order by h.ddl_lsn",
    )


# --- switches for tests ---------------------------------------------------------------------------


@procedure("sim.set")
def set_property(session: Session, arguments: Arguments) -> None:
    """Set a property of the database: lag_s, poll_s, idle_s, agent, capture, maxtrans, hadr, .."""
    session.database.set(str(arguments.listed[0]), str(arguments.listed[1]))


@procedure("sim.set_lag")
def set_lag(session: Session, arguments: Arguments) -> None:
    """Let capture be so many seconds behind."""
    session.database.set("lag_s", str(arguments.listed[0]))


@procedure("sim.stop_agent")
def stop_agent(session: Session, arguments: Arguments) -> None:
    """Stop the Agent, and capture with it."""
    session.database.set("agent", "0")


@procedure("sim.start_agent")
def start_agent(session: Session, arguments: Arguments) -> None:
    """Start the Agent."""
    session.database.set("agent", "1")


@procedure("sim.clean_up")
def clean_up(session: Session, arguments: Arguments) -> None:
    """Remove all change rows older than so many seconds; 0 keeps those of the newest commit."""
    seconds = float(arguments.listed[0] if arguments.listed else 0)
    found = session.rows(
        "select min(start_lsn::bytea) from cdc.lsn_time_mapping where tran_end_time >= "
        f"(select max(tran_end_time) from cdc.lsn_time_mapping) - interval '{seconds} seconds'"
    )
    if found[0][0] is not None:
        session.rows(f"select sim.clean_up('\\x{bytes(found[0][0]).hex()}'::bytea)")


@procedure("sim.empty_log")
def empty_log(session: Session, arguments: Arguments) -> None:
    """Remove all change rows and times: an idle database, whose highest LSN is NULL."""
    session.database.set("idle_s", "1000000")
    session.rows("select sim.clean_up(sys.fn_cdc_get_max_lsn()); ")
    session.rows("select sim.clean_up(sys.fn_cdc_increment_lsn(sys.fn_cdc_get_max_lsn()))")


@procedure("sim.fail_over")
def fail_over(session: Session, arguments: Arguments) -> None:
    """End all other sessions and stop capture; forget the newest so many captured commits."""
    lost = int(arguments.listed[0]) if arguments.listed else 0
    with session.database.paused_capture():
        session.database.set("capture", "0")
        session.rows("delete from sim.cdc_jobs")
        if lost:
            session.rows(f"select sim.lose({lost})")
    session.server.kill_others(session)


@procedure("sim.set_table")
def set_table(session: Session, arguments: Arguments) -> None:
    """Set a property of a table: is_memory_optimized, temporal_type, .."""
    name, flag, value = arguments.listed[:3]
    schema, _, table = str(name).rpartition(".")
    number = ddl.table_id(session, (schema, table))
    session.rows(
        f"update sim.tables set flags = flags || jsonb_build_object({_text(flag)}, {int(value)}) "
        f"where id = {number}"
    )


@procedure("sim.fail_next")
def fail_next(session: Session, arguments: Arguments) -> None:
    """Let the next statements that contain a text fail.

    @number: error number, 0 to cut the connection; @like: the text; @times: how often; @after: how
    many such statements succeed before.
    """
    session.server.fail_next(
        session.database.name,
        int(arguments.get(0, "number")),
        str(arguments.get(1, "like", "")),
        int(arguments.get(2, "times", 1)),
        int(arguments.get(3, "after", 0)),
    )


@procedure("sim.hide_command_id")
def hide_command_id(session: Session, arguments: Arguments) -> None:
    """Drop __$command_id from a change table, as on builds before its introduction."""
    with session.database.paused_capture():
        name = literal(f'cdc."{arguments.listed[0]}_CT"')
        session.rows(f"select sim.hide_command_id({name}::regclass)")
    session.database.names_changed()


@procedure("sim.count_sessions")
def count_sessions(session: Session, arguments: Arguments) -> None:
    """Return how many other sessions run a statement that contains a text."""
    count = session.server.count_running(session, str(arguments.listed[0]))
    session.send_rows([Column("running", INT)], f"select {count}")
