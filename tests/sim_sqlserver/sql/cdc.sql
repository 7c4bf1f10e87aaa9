-- Change data capture: LSNs, functions, and the schema cdc, which sim.enable_cdc() creates.
create function sim.lsn_bytes(place numeric) returns bytea language sql immutable strict as $$
    select int4send((39 + div(place, 268435456))::bigint::int) || int4send((div(place, 256) % 1048576)::int) || int2send((place % 256)::int::int2) $$;
create function sim.lsn(place pg_lsn) returns bytea language sql immutable strict as $$ select sim.lsn_bytes(place - '0/0'::pg_lsn) $$;
create function sim.lsn_text(value bytea) returns text language sql immutable strict as $$
    select encode(substring(value from 1 for 4), 'hex') || ':' || encode(substring(value from 5 for 4), 'hex') || ':' || encode(substring(value from 9 for 2), 'hex') $$;
create function sim.lsn_numeric(value bytea) returns numeric language sql immutable strict as $$
    select (('x' || encode(substring(value from 1 for 4), 'hex'))::bit(32)::bigint::numeric * 1000000000000000
        + ('x' || encode(substring(value from 5 for 4), 'hex'))::bit(32)::bigint::numeric * 100000
        + ('x' || encode(substring(value from 9 for 2), 'hex'))::bit(16)::int)::numeric(25,0) $$;
create function sim.lsn_add(value bytea, step int) returns bytea language plpgsql immutable strict as $$
declare place int := 9;
begin
    while place >= 0 loop
        if (step > 0 and get_byte(value, place) < 255) or (step < 0 and get_byte(value, place) > 0) then
            return set_byte(value, place, get_byte(value, place) + step);
        end if;
        value := set_byte(value, place, case when step > 0 then 0 else 255 end);
        place := place - 1;
    end loop;
    return value;
end $$;

create function sim.is_captured(id int, col text) returns int language plpgsql stable as $$
begin
    if to_regclass('cdc.change_tables') is null then return 0; end if;
    return (exists (select from cdc.change_tables t join cdc.captured_columns c on c.object_id = t.object_id where t.source_object_id = id and c.column_name = col))::int;
end $$;
create function sim.may_read(role text) returns boolean language sql stable as $$ select role is null or sim.is_owner() or simfn.ms_is_member(role) = 1 $$;

create function sys.fn_cdc_get_max_lsn() returns bytea language plpgsql volatile as $$
begin
    if to_regclass('cdc.lsn_time_mapping') is null then return null; end if;
    return (select m.start_lsn from cdc.lsn_time_mapping m order by m.start_lsn desc limit 1);
end $$;
create function sys.fn_cdc_get_min_lsn(instance text) returns bytea language plpgsql volatile as $$
begin
    if to_regclass('cdc.change_tables') is null then return decode('00000000000000000000', 'hex'); end if;
    return coalesce((select t.start_lsn from cdc.change_tables t where lower(t.capture_instance::text) = lower(instance) and sim.may_read(t.role_name::text)), decode('00000000000000000000', 'hex'));
end $$;
create function sys.fn_cdc_increment_lsn(value bytea) returns bytea language sql immutable strict as 'select sim.lsn_add($1, 1)';
create function sys.fn_cdc_decrement_lsn(value bytea) returns bytea language sql immutable strict as 'select sim.lsn_add($1, -1)';
create function sys.fn_cdc_map_lsn_to_time(value bytea) returns timestamp language plpgsql stable as $$
begin return (select m.tran_end_time from cdc.lsn_time_mapping m where m.start_lsn = value); end $$;
create function sys.fn_cdc_map_time_to_lsn(kind text, moment timestamp) returns bytea language plpgsql stable as $$
begin
    return case lower(kind)
        when 'largest less than' then (select max(m.start_lsn::bytea) from cdc.lsn_time_mapping m where m.tran_end_time < moment)
        when 'largest less than or equal' then (select max(m.start_lsn::bytea) from cdc.lsn_time_mapping m where m.tran_end_time <= moment)
        when 'smallest greater than' then (select min(m.start_lsn::bytea) from cdc.lsn_time_mapping m where m.tran_end_time > moment)
        when 'smallest greater than or equal' then (select min(m.start_lsn::bytea) from cdc.lsn_time_mapping m where m.tran_end_time >= moment) end;
end $$;
create function sys.fn_cdc_is_bit_set(place int, mask bytea) returns int language sql immutable strict as $$
    select case when place < 1 or place > 8 * octet_length(mask) then 0 else (get_byte(mask, octet_length(mask) - 1 - (place - 1) / 8) >> ((place - 1) % 8)) & 1 end $$;
create function sys.fn_cdc_get_column_ordinal(instance text, col text) returns int language plpgsql stable as $$
begin
    return (select c.column_ordinal from cdc.captured_columns c join cdc.change_tables t on t.object_id = c.object_id where t.capture_instance::text = instance and c.column_name::text = col);
end $$;
create function sys.fn_cdc_has_column_changed(instance text, col text, mask bytea) returns int language sql stable as $$ select sys.fn_cdc_is_bit_set(sys.fn_cdc_get_column_ordinal(instance, col), mask) $$;
create function sim.check_range(instance text, low bytea, high bytea) returns boolean language plpgsql volatile as $$
begin
    if low is null or high is null or low > high or low < sys.fn_cdc_get_min_lsn(instance) or sys.fn_cdc_get_max_lsn() is null
        or high > sys.fn_cdc_get_max_lsn() or sys.fn_cdc_get_min_lsn(instance) = decode('00000000000000000000', 'hex') then
        return sim.fail(313, 'An insufficient number of arguments were supplied for the procedure or function cdc.fn_cdc_get_all_changes_ ... .', 3);
    end if;
    return true;
end $$;
create function sys.fn_dblog(low text, high text) returns table ("Current LSN" sim."nvarchar(60)", "Operation" sim."nvarchar(60)", "Context" sim."nvarchar(60)", "Transaction ID" sim."nvarchar(60)") language sql volatile as $$
    select sim.lsn_text(sim.lsn(pg_current_wal_insert_lsn()))::bpchar, 'LOP_COMMIT_XACT'::bpchar, 'LCX_NULL'::bpchar, '0000:0000051a'::bpchar $$;

create view sys.dm_cdc_log_scan_sessions as
select session_id, start_time::sim."datetime" as start_time, end_time::sim."datetime" as end_time, duration, scan_phase::sim."nvarchar(60)" as scan_phase, error_count,
    start_lsn::sim."nvarchar(60)" as start_lsn, current_lsn::sim."nvarchar(60)" as current_lsn, end_lsn::sim."nvarchar(60)" as end_lsn, tran_count, command_count, latency, empty_scan_count,
    last_commit_lsn::sim."nvarchar(60)" as last_commit_lsn, last_commit_time::sim."datetime" as last_commit_time, last_commit_cdc_lsn::sim."nvarchar(60)" as last_commit_cdc_lsn,
    last_commit_cdc_time::sim."datetime" as last_commit_cdc_time, log_record_count, failed_sessions_count
from sim.scan_sessions where sim.setting('is_secondary', '0') = '0';
create view sys.dm_cdc_errors as
select session_id, phase_number, entry_time::sim."datetime" as entry_time, error_number, error_severity, error_state, error_message::sim."nvarchar(1000)" as error_message,
    start_lsn::sim."nvarchar(60)" as start_lsn, begin_lsn::sim."nvarchar(60)" as begin_lsn, sequence_value::sim."nvarchar(60)" as sequence_value from sim.cdc_errors;
create view sys.dm_server_services as
select 'SQL Server (MSSQLSERVER)'::sim."nvarchar(60)" as servicename, 4 as status, 'Running'::sim."nvarchar(60)" as status_desc, 2 as startup_type where sim.setting('engineedition', '3') <> '5'
union all select 'SQL Server Agent (MSSQLSERVER)', case sim.setting('agent', '1') when '1' then 4 else 1 end, case sim.setting('agent', '1') when '1' then 'Running' else 'Stopped' end, 2 where sim.setting('engineedition', '3') <> '5';
create view msdb.cdc_jobs as
select 5 as database_id, job_type::sim."nvarchar(60)" as job_type, md5(job_type)::uuid::sim.uniqueidentifier as job_id, maxtrans, maxscans, (continuous)::int2::sim."bit" as continuous, pollinginterval, retention, threshold from sim.cdc_jobs;
create view sys.dm_hadr_database_replica_states as
select 5 as database_id, 1::sim."bit" as is_local, (1 - sim.setting('is_secondary', '0')::int)::int2::sim."bit" as is_primary_replica, 'SYNCHRONIZED'::sim."nvarchar(60)" as synchronization_state_desc,
    sim.lsn_numeric(sim.lsn(pg_current_wal_insert_lsn()))::numeric(25,0) as last_commit_lsn, sim.lsn_numeric(sim.lsn(pg_current_wal_insert_lsn()))::numeric(25,0) as last_hardened_lsn,
    sim.lsn_numeric(sim.lsn(pg_current_wal_insert_lsn()))::numeric(25,0) as end_of_log_lsn, (clock_timestamp() at time zone 'utc')::sim."datetime" as last_commit_time
where sim.setting('hadr', '0') = '1';
create view sys.dm_hadr_availability_replica_states as select 1::sim."bit" as is_local, (case sim.setting('is_secondary', '0') when '1' then 2 else 1 end)::sim."tinyint" as role,
    (case sim.setting('is_secondary', '0') when '1' then 'SECONDARY' else 'PRIMARY' end)::sim."nvarchar(60)" as role_desc where sim.setting('hadr', '0') = '1';
create function sys.fn_hadr_is_primary_replica(db text) returns int language sql stable as $$ select case when sim.setting('hadr', '0') = '1' then 1 - sim.setting('is_secondary', '0')::int end $$;

create table sim.cdc_dropped (object_id int, column_ordinal int, primary key (object_id, column_ordinal));
create table sim.capture_state (place pg_lsn not null);

create function sim.enable_cdc() returns void language plpgsql as $$
begin
    create schema cdc;
    create table cdc.change_tables (object_id int not null primary key, version int, source_object_id int, capture_instance sim."sysname" not null unique, start_lsn sim."binary(10)", end_lsn sim."binary(10)",
        supports_net_changes sim."bit", has_drop_pending sim."bit", role_name sim."sysname", index_name sim."sysname", filegroup_name sim."sysname", create_date sim."datetime", partition_switch sim."bit");
    create table cdc.captured_columns (object_id int not null, column_name sim."sysname" not null, column_id int, column_type sim."sysname" not null, column_ordinal int not null, is_computed sim."bit", masking_function sim."nvarchar(4000)", primary key (object_id, column_ordinal));
    create table cdc.index_columns (object_id int not null, column_name sim."sysname" not null, index_ordinal sim."tinyint" not null, column_id int not null, primary key (object_id, index_ordinal));
    create table cdc.lsn_time_mapping (start_lsn sim."binary(10)" not null primary key, tran_begin_time sim."datetime", tran_end_time sim."datetime", tran_id sim."varbinary(10)", tran_begin_lsn sim."binary(10)");
    create index on cdc.lsn_time_mapping (tran_end_time);
    create table cdc.ddl_history (source_object_id int, object_id int, required_column_update sim."bit", ddl_command sim."nvarchar(max)", ddl_lsn sim."binary(10)", ddl_time sim."datetime");
    create publication sim_cdc;
    delete from sim.capture_state;
    insert into sim.capture_state values (pg_current_wal_insert_lsn());
    insert into sim.settings values ('is_cdc_enabled', '1') on conflict (name) do update set value = '1';
end $$;
create function sim.disable_cdc() returns void language plpgsql as $$
begin
    drop publication sim_cdc;
    drop schema cdc cascade;
    truncate sim.cdc_jobs, sim.cdc_dropped;
    update sim.settings set value = '0' where name = 'is_cdc_enabled';
end $$;
create function sim.type_spelling(type oid, modifier int) returns text language sql stable as $$
    select case when t.typname = 'rowversion' then 'sim."binary(8)"' else format_type(type, modifier) end from pg_type t where t.oid = type $$;

create function sim.enable_table(source int, instance text, role text, net int, index_name text, columns text[]) returns void language plpgsql as $$
declare ct int; listed text; name text;
begin
    select string_agg(format('%I %s%s', a.attname, sim.type_spelling(a.atttypid, a.atttypmod),
            case when a.attcollation <> 0 then ' collate ' || (select quote_ident(n.nspname) || '.' || quote_ident(l.collname) from pg_collation l join pg_namespace n on n.oid = l.collnamespace where l.oid = a.attcollation) else '' end), ', ' order by a.attnum)
      into listed from pg_attribute a where a.attrelid = source::oid and a.attnum > 0 and not a.attisdropped and (columns is null or lower(a.attname) = any (columns));
    name := instance || '_CT';
    execute format('create table cdc.%I ("__$start_lsn" sim."binary(10)" not null, "__$end_lsn" sim."binary(10)", "__$seqval" sim."binary(10)" not null, "__$operation" int not null, "__$update_mask" sim."varbinary(128)", %s, "__$command_id" int)', name, listed);
    execute format('create index %I on cdc.%I ("__$start_lsn", "__$command_id", "__$seqval", "__$operation")', left(instance, 40) || '_CT_clustered_idx', name);
    ct := format('cdc.%I', name)::regclass::oid::int;
    insert into sim.tables (id) values (ct::oid);
    insert into sim.collations select ct::oid, b.attnum, co.collation_name from sim.collations co join pg_attribute a on a.attrelid = co.table_id and a.attnum = co.column_number
        join pg_attribute b on b.attrelid = ct::oid and b.attname = a.attname where co.table_id = source::oid;
    execute format('alter table %s replica identity full', source::oid::regclass);
    if not exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid where p.pubname = 'sim_cdc' and r.prrelid = source::oid) then
        execute format('alter publication sim_cdc add table %s', source::oid::regclass);
    end if;
    insert into cdc.change_tables values (ct, 0, source, instance, sim.lsn(pg_current_wal_insert_lsn()), null, net, 0, role, index_name, null, sim.store_datetime(clock_timestamp() at time zone 'utc'), 1);
    insert into cdc.captured_columns select ct, a.attname, a.attnum, sim.type_name(a.atttypid), row_number() over (order by a.attnum), (a.attgenerated <> '')::int, null
        from pg_attribute a where a.attrelid = source::oid and a.attnum > 0 and not a.attisdropped and (columns is null or lower(a.attname) = any (columns));
    insert into cdc.index_columns select ct, a.attname, k.place, a.attnum from pg_index i cross join lateral unnest(i.indkey) with ordinality as k(attnum, place)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum join pg_class c on c.oid = i.indexrelid
        where i.indrelid = source::oid and k.place <= i.indnkeyatts and case when index_name is null then i.indisprimary else lower(sim.index_name(c.relname)) = lower(index_name) end;
    if not exists (select from sim.cdc_jobs) then
        insert into sim.cdc_jobs values ('capture', 500, 10, 1, 5, 0, 0), ('cleanup', 0, 0, 0, 0, 4320, 5000);
    end if;
end $$;
create function sim.disable_instance(ct int) returns void language plpgsql as $$
declare source int;
begin
    select source_object_id into source from cdc.change_tables where object_id = ct;
    execute format('drop table %s', ct::oid::regclass);
    delete from cdc.change_tables where object_id = ct;
    delete from cdc.captured_columns where object_id = ct;
    delete from cdc.index_columns where object_id = ct;
    delete from cdc.ddl_history where object_id = ct and sim.setting('keep_ddl_history', '0') = '0';
    delete from sim.cdc_dropped where object_id = ct;
    delete from sim.tables where id = ct::oid;
    if not exists (select from cdc.change_tables where source_object_id = source) and exists (select from pg_class where oid = source::oid) then
        execute format('alter publication sim_cdc drop table %s', source::oid::regclass);
    end if;
end $$;
create function sim.forget_table(id regclass) returns void language plpgsql as $$
declare ct int;
begin
    for ct in select object_id from cdc.change_tables where source_object_id = id::oid::int loop perform sim.disable_instance(ct); end loop;
end $$;
create function sim.note_ddl(id regclass, command text) returns void language plpgsql as $$
begin
    if id is not null and sim.is_tracked(id::oid) = 1 then
        perform pg_logical_emit_message(true, 'sim_ddl', json_build_object('table', id::oid::int, 'command', command, 'time', to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS'),
            'columns', (select json_object_agg(a.attnum, json_build_array(a.attname, sim.type_spelling(a.atttypid, a.atttypmod))) from pg_attribute a where a.attrelid = id and a.attnum > 0 and not a.attisdropped))::text);
    end if;
end $$;
create function sim.clean_up(low bytea) returns void language plpgsql as $$
declare t record;
begin
    update cdc.change_tables set start_lsn = low where start_lsn < low;
    for t in select object_id from cdc.change_tables loop
        execute format('delete from %s where "__$start_lsn" < $1', t.object_id::oid::regclass) using low;
    end loop;
    delete from cdc.lsn_time_mapping where start_lsn < low;
end $$;
create function sim.lose(commits int) returns void language plpgsql as $$
declare low bytea; t record;
begin
    select min(x.start_lsn::bytea) into low from (select m.start_lsn from cdc.lsn_time_mapping m where m.tran_id <> '\x00'::bytea order by m.start_lsn desc limit commits) as x;
    for t in select object_id from cdc.change_tables loop
        execute format('delete from %s where "__$start_lsn" >= $1', t.object_id::oid::regclass) using low;
    end loop;
    delete from cdc.lsn_time_mapping where start_lsn >= low;
end $$;
create function sim.hide_command_id(ct regclass) returns void language plpgsql as $$
begin execute format('alter table %s drop column "__$command_id"', ct); end $$;
