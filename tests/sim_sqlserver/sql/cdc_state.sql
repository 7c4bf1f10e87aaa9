-- State of change data capture; the schema cdc itself is created by sp_cdc_enable_db.
create table sim.cdc_jobs (job_type text primary key, maxtrans int, maxscans int, continuous int, pollinginterval bigint, retention bigint, threshold bigint);
create table sim.column_flags (table_id oid, column_number int, flags int default 0, generated_always_type int, encryption_type int, primary key (table_id, column_number));
create table sim.index_flags (id oid primary key, kind int, is_disabled int default 0, filter text);
create table sim.scan_sessions (session_id int generated always as identity, start_time timestamp, end_time timestamp, duration int, scan_phase text, error_count int default 0,
    start_lsn text, current_lsn text, end_lsn text, tran_count bigint default 0, command_count bigint default 0, latency int default 0, empty_scan_count int default 0,
    last_commit_lsn text, last_commit_time timestamp, last_commit_cdc_lsn text, last_commit_cdc_time timestamp, log_record_count bigint default 0, failed_sessions_count int default 0);
create table sim.cdc_errors (session_id int, phase_number int, entry_time timestamp, error_number int, error_severity int, error_state int, error_message text, start_lsn text, begin_lsn text, sequence_value text);
create function sim.is_tracked(id oid) returns int language plpgsql stable as $$
begin
    if to_regclass('cdc.change_tables') is null then return 0; end if;
    return (exists (select from cdc.change_tables c where c.source_object_id = id::int))::int;
end $$;
create table sim.rights (login text, kind text, name text, primary key (login, kind, name));
