-- Catalogue views over PostgreSQL's catalogue and the simulator's state.
create domain sim."sysname" as bpchar collate sim."default";
create domain sim."bit" as int2 check (value in (0, 1));
create domain sim."tinyint" as int2 check (value between 0 and 255);
create domain sim."nvarchar(60)" as bpchar collate sim."default" check (sim.utf16_length(value) <= 60);
create domain sim."nvarchar(max)" as bpchar collate sim."default";
create domain sim."nvarchar(1000)" as bpchar collate sim."default" check (sim.utf16_length(value) <= 1000);
create domain sim."nvarchar(4000)" as bpchar collate sim."default" check (sim.utf16_length(value) <= 4000);
create domain sim."char(2)" as bpchar collate sim."default" check (char_length(value) <= 2);
create domain sim."binary(8)" as bytea check (octet_length(value) <= 8);
create domain sim."binary(10)" as bytea check (octet_length(value) <= 10);
create domain sim."varbinary(10)" as bytea check (octet_length(value) <= 10);
create domain sim."varbinary(128)" as bytea check (octet_length(value) <= 128);
create domain sim."datetime" as timestamp(3);
create domain sim."sql_variant" as bpchar collate "C";

create table sim.system_types (name sim."sysname", system_type_id sim."tinyint", user_type_id int, max_length int2,
    "precision" sim."tinyint", scale sim."tinyint");

create function sim.type_name(type oid) returns text language sql stable as $$
    select case t.typname when 'int2' then 'smallint' when 'int4' then 'int' when 'int8' then 'bigint' when 'numeric' then 'decimal'
        when 'timestamp' then 'datetime2' when 'bpchar' then 'nvarchar' when 'text' then case t.typnamespace when 'sim'::regnamespace then 'text' else 'nvarchar' end when 'bytea' then 'varbinary'
        when 'float8' then 'float' when 'float4' then 'real' when 'name' then 'sysname' when 'bool' then 'bit' when 'uuid' then 'uniqueidentifier'
        when 'rowversion' then 'timestamp' else split_part(t.typname, '(', 1) end from pg_type t where t.oid = type $$;
create function sim.type_argument(type oid, modifier int, number int) returns int language sql stable as $$
    select case when t.typname = 'numeric' and modifier < 0 then case number when 1 then 38 else 0 end
        when t.typname = 'numeric' then case number when 1 then ((modifier - 4) >> 16) & 65535 else (modifier - 4) & 2047 end
        when t.typname in ('bpchar', 'text', 'bytea') and t.typnamespace <> 'sim'::regnamespace then -1
        when strpos(t.typname, '(') = 0 then null
        when split_part(split_part(t.typname, '(', 2), ',', number) = 'max)' then -1
        else nullif(regexp_replace(split_part(split_part(t.typname, '(', 2), ',', number), '\D', '', 'g'), '')::int end
      from pg_type t where t.oid = type $$;

create view sim.attributes as
select a.attrelid, a.attnum, a.attname, n.type_name, a.attnotnull, a.attidentity, a.attgenerated, a.atthasdef, a.attcollation,
    case when n.type_name in ('nvarchar', 'nchar') then case when x.first = -1 then -1 else 2 * x.first end
        when n.type_name in ('varchar', 'char', 'varbinary', 'binary') then x.first
        when n.type_name in ('decimal', 'numeric') then case when x.first <= 9 then 5 when x.first <= 19 then 9 when x.first <= 28 then 13 else 17 end
        when n.type_name = 'time' then case when x.first <= 2 then 3 when x.first <= 4 then 4 else 5 end
        when n.type_name = 'datetime2' then case when x.first <= 2 then 6 when x.first <= 4 then 7 else 8 end
        when n.type_name = 'datetimeoffset' then case when x.first <= 2 then 8 when x.first <= 4 then 9 else 10 end
        else s.max_length end::int2 as max_length,
    case when n.type_name in ('decimal', 'numeric') then x.first
        when n.type_name = 'time' then 8 + x.first + (x.first > 0)::int when n.type_name = 'datetime2' then 19 + x.first + (x.first > 0)::int
        when n.type_name = 'datetimeoffset' then 26 + x.first + (x.first > 0)::int else s."precision" end as number_precision,
    case when n.type_name in ('decimal', 'numeric') then x.second when n.type_name in ('time', 'datetime2', 'datetimeoffset') then x.first
        else s.scale end as scale,
    s.system_type_id, s.user_type_id, co.collation_name
from pg_attribute a
join pg_class c on c.oid = a.attrelid and c.relkind in ('r', 'p', 'v')
join pg_namespace ns on ns.oid = c.relnamespace and ns.nspname not in ('pg_catalog', 'information_schema', 'sim', 'simfn', 'pg_toast')
cross join lateral (select sim.type_name(a.atttypid)) as n(type_name)
cross join lateral (select sim.type_argument(a.atttypid, a.atttypmod, 1), sim.type_argument(a.atttypid, a.atttypmod, 2)) as x(first, second)
left join sim.system_types s on s.name = n.type_name
left join sim.collations co on co.table_id = a.attrelid and co.column_number = a.attnum
where a.attnum > 0 and not a.attisdropped;

create view sys.schemas as
select n.nspname::text::sim."sysname" as name,
    case n.nspname when 'dbo' then 1 when 'guest' then 2 when 'INFORMATION_SCHEMA' then 3 when 'sys' then 4 else n.oid::int end as schema_id,
    1 as principal_id, n.nspname as raw_name, n.oid as raw_id
from pg_namespace n where (n.nspname !~ '^pg_' or n.nspname = current_setting('sim.temp_schema', true)) and n.nspname not in ('information_schema', 'sim', 'simfn', 'msdb');

create view sys.all_objects as
select c.relname::text::sim."sysname" as name, c.oid::int as object_id, s.schema_id, 0 as parent_object_id,
    (case c.relkind when 'v' then 'V' else 'U' end)::sim."char(2)" as type,
    (case c.relkind when 'v' then 'VIEW' else 'USER_TABLE' end)::sim."nvarchar(60)" as type_desc,
    coalesce(t.created, '2026-01-01'::timestamp)::sim."datetime" as create_date,
    coalesce(t.modified, '2026-01-01'::timestamp)::sim."datetime" as modify_date,
    (s.raw_name in ('cdc', 'sys'))::int::sim."bit" as is_ms_shipped
from pg_class c join sys.schemas s on s.raw_id = c.relnamespace left join sim.tables t on t.id = c.oid
where c.relkind in ('r', 'p', 'v')
union all
select k.conname::text::sim."sysname", k.oid::int, s.schema_id, k.conrelid::int,
    (case k.contype when 'p' then 'PK' when 'u' then 'UQ' when 'f' then 'F' else 'C' end)::sim."char(2)",
    (case k.contype when 'p' then 'PRIMARY_KEY_CONSTRAINT' when 'u' then 'UNIQUE_CONSTRAINT' when 'f' then 'FOREIGN_KEY_CONSTRAINT' else 'CHECK_CONSTRAINT' end)::sim."nvarchar(60)",
    '2026-01-01'::timestamp, '2026-01-01'::timestamp, 0::sim."bit"
from pg_constraint k join sys.schemas s on s.raw_id = k.connamespace where k.conrelid <> 0
union all
select p.proname::text::sim."sysname", p.oid::int, s.schema_id, 0, (case when p.proretset then 'IF' else 'FN' end)::sim."char(2)", 'SQL_SCALAR_FUNCTION'::sim."nvarchar(60)",
    '2026-01-01'::timestamp, '2026-01-01'::timestamp, 0::sim."bit"
from pg_proc p join sys.schemas s on s.raw_id = p.pronamespace;
create view sys.objects as select * from sys.all_objects where schema_id <> 4;
create view sys.system_objects as select * from sys.all_objects where schema_id = 4;
create view sys.views as select * from sys.objects where type = 'V';

create function sim.flag(id oid, name text) returns int language sql stable
    as $$ select coalesce((select (t.flags ->> $2)::int from sim.tables t where t.id = $1), 0) $$;
create view sys.tables as
select c.relname::text::sim."sysname" as name, c.oid::int as object_id, s.schema_id, null::int as principal_id, 0 as parent_object_id,
    'U '::sim."char(2)" as type, 'USER_TABLE'::sim."nvarchar(60)" as type_desc,
    coalesce(t.created, '2026-01-01'::timestamp)::sim."datetime" as create_date, coalesce(t.modified, '2026-01-01'::timestamp)::sim."datetime" as modify_date,
    (s.raw_name = 'cdc')::int::sim."bit" as is_ms_shipped, 0::sim."bit" as is_published, 0::sim."bit" as is_schema_published,
    sim.flag(c.oid, 'is_replicated')::sim."bit" as is_replicated,
    sim.is_tracked(c.oid)::sim."bit" as is_tracked_by_cdc,
    sim.flag(c.oid, 'temporal_type')::sim."tinyint" as temporal_type,
    (case sim.flag(c.oid, 'temporal_type') when 1 then 'HISTORY_TABLE' when 2 then 'SYSTEM_VERSIONED_TEMPORAL_TABLE' else 'NON_TEMPORAL_TABLE' end)::sim."nvarchar(60)" as temporal_type_desc,
    nullif(sim.flag(c.oid, 'history_table_id'), 0) as history_table_id,
    sim.flag(c.oid, 'is_memory_optimized')::sim."bit" as is_memory_optimized,
    sim.flag(c.oid, 'durability')::sim."tinyint" as durability, 'SCHEMA_AND_DATA'::sim."nvarchar(60)" as durability_desc,
    sim.flag(c.oid, 'is_external')::sim."bit" as is_external, sim.flag(c.oid, 'is_filetable')::sim."bit" as is_filetable,
    sim.flag(c.oid, 'is_node')::sim."bit" as is_node, sim.flag(c.oid, 'is_edge')::sim."bit" as is_edge,
    sim.flag(c.oid, 'ledger_type')::sim."tinyint" as ledger_type, 0::sim."bit" as has_replication_filter,
    0::sim."tinyint" as lock_escalation, 'TABLE'::sim."nvarchar(60)" as lock_escalation_desc, 0 as max_column_id_used, 0 as lob_data_space_id
from pg_class c join sys.schemas s on s.raw_id = c.relnamespace and s.raw_name <> 'sys'
left join sim.tables t on t.id = c.oid
-- Also in a snapshot the catalogue is that of now.
where c.relkind in ('r', 'p') and pg_table_is_visible(c.oid) is not null;

create view sys.all_columns as
select a.attrelid::int as object_id, a.attname::text::sim."sysname" as name, a.attnum::int as column_id,
    a.system_type_id, a.user_type_id, a.max_length, a.number_precision::sim."tinyint" as "precision", coalesce(a.scale, 0)::sim."tinyint" as scale,
    (case when a.type_name in ('char', 'varchar', 'nchar', 'nvarchar', 'text', 'ntext', 'sysname') then coalesce(a.collation_name, sim.setting('collation', 'SQL_Latin1_General_CP1_CI_AS')) end)::sim."sysname" as collation_name,
    (not a.attnotnull)::int::sim."bit" as is_nullable, 1::sim."bit" as is_ansi_padded, 0::sim."bit" as is_rowguidcol,
    (a.attidentity <> '')::int::sim."bit" as is_identity, (a.attgenerated <> '')::int::sim."bit" as is_computed,
    0::sim."bit" as is_filestream, 0::sim."bit" as is_replicated, 0::sim."bit" as is_xml_document, 0 as xml_collection_id,
    coalesce(d.flags & 1, 0)::sim."bit" as is_sparse, coalesce((d.flags >> 1) & 1, 0)::sim."bit" as is_column_set,
    coalesce((d.flags >> 2) & 1, 0)::sim."bit" as is_hidden, coalesce((d.flags >> 3) & 1, 0)::sim."bit" as is_masked,
    coalesce(d.generated_always_type, 0)::sim."tinyint" as generated_always_type, 'NOT_APPLICABLE'::sim."nvarchar(60)" as generated_always_type_desc,
    d.encryption_type, null::int as column_encryption_key_id,
    coalesce((select p.oid::int from pg_attrdef p where p.adrelid = a.attrelid and p.adnum = a.attnum and a.attgenerated = ''), 0) as default_object_id, 0 as rule_object_id
from sim.attributes a
left join sim.column_flags d on d.table_id = a.attrelid and d.column_number = a.attnum;
create view sys.columns as select c.* from sys.all_columns c join sys.all_objects o on o.object_id = c.object_id;
create view sys.computed_columns as
select c.*, sc.definition::sim."nvarchar(max)" as definition, sc.is_persisted::sim."bit" as is_persisted
from sys.columns c join sim.computed sc on sc.table_id = c.object_id::oid and sc.column_number = c.column_id;
create view sys.identity_columns as
select c.*, q.seqstart::numeric as seed_value, q.seqincrement::numeric as increment_value,
    pg_sequence_last_value(q.seqrelid)::numeric as last_value, 0::sim."bit" as is_not_for_replication
from sys.columns c
join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = c.object_id::oid and d.refobjsubid = c.column_id and d.classid = 'pg_class'::regclass and d.deptype = 'i'
join pg_sequence q on q.seqrelid = d.objid;
create view sys.types as
select name, system_type_id, user_type_id, 4 as schema_id, max_length, "precision", scale,
    (case when name in ('char', 'varchar', 'nchar', 'nvarchar', 'text', 'ntext', 'sysname') then 'SQL_Latin1_General_CP1_CI_AS' end)::sim."sysname" as collation_name,
    1::sim."bit" as is_nullable, 0::sim."bit" as is_user_defined, (system_type_id = 240)::int::sim."bit" as is_assembly_type, 0::sim."bit" as is_table_type
from sim.system_types;

create function sim.index_name(raw name) returns text language sql immutable as $$ select regexp_replace(raw::text, '^ix\$(.*)\$\d+$', '\1') $$;
create view sim.index_list as
select i.*, case when i.indisclustered then 1 else 1 + row_number() over (partition by i.indrelid, i.indisclustered order by i.indexrelid) end::int as number,
    k.contype, k.conname
from pg_index i
join pg_class c on c.oid = i.indrelid join sys.schemas s on s.raw_id = c.relnamespace
left join pg_constraint k on k.conindid = i.indexrelid and k.contype in ('p', 'u') and k.conrelid = i.indrelid;
create view sys.indexes as
select i.indrelid::int as object_id, sim.index_name(c.relname)::sim."sysname" as name, i.number as index_id,
    (case when f.kind is not null then f.kind when i.indisclustered then 1 else 2 end)::sim."tinyint" as type,
    (case when f.kind = 5 then 'CLUSTERED COLUMNSTORE' when f.kind = 6 then 'NONCLUSTERED COLUMNSTORE' when i.indisclustered then 'CLUSTERED' else 'NONCLUSTERED' end)::sim."nvarchar(60)" as type_desc,
    i.indisunique::int::sim."bit" as is_unique, 1 as data_space_id, 0::sim."bit" as ignore_dup_key, i.indisprimary::int::sim."bit" as is_primary_key,
    coalesce(i.contype = 'u', false)::int::sim."bit" as is_unique_constraint, 0::sim."tinyint" as fill_factor, 0::sim."bit" as is_padded,
    coalesce(f.is_disabled, 0)::sim."bit" as is_disabled, 0::sim."bit" as is_hypothetical, 1::sim."bit" as allow_row_locks, 1::sim."bit" as allow_page_locks,
    (i.indpred is not null)::int::sim."bit" as has_filter, f.filter::sim."nvarchar(max)" as filter_definition
from sim.index_list i join pg_class c on c.oid = i.indexrelid left join sim.index_flags f on f.id = i.indexrelid
union all
select t.object_id, null, 0, 0::sim."tinyint", 'HEAP'::sim."nvarchar(60)", 0::sim."bit", 1, 0::sim."bit", 0::sim."bit", 0::sim."bit", 0::sim."tinyint", 0::sim."bit", 0::sim."bit", 0::sim."bit", 1::sim."bit", 1::sim."bit", 0::sim."bit", null
from sys.tables t where not exists (select from pg_index i where i.indrelid = t.object_id::oid and i.indisclustered);
create view sys.index_columns as
select i.indrelid::int as object_id, i.number as index_id, k.place::int as index_column_id, k.attnum::int as column_id,
    (case when k.place <= i.indnkeyatts then k.place else 0 end)::sim."tinyint" as key_ordinal, 0::sim."tinyint" as partition_ordinal,
    (case when k.place <= i.indnkeyatts then i.indoption[k.place - 1] & 1 else 0 end)::sim."bit" as is_descending_key,
    (k.place > i.indnkeyatts)::int::sim."bit" as is_included_column
from sim.index_list i cross join lateral unnest(i.indkey) with ordinality as k(attnum, place);
create view sys.key_constraints as
select i.conname::text::sim."sysname" as name, k.oid::int as object_id, s.schema_id, i.indrelid::int as parent_object_id,
    (case i.contype when 'p' then 'PK' else 'UQ' end)::sim."char(2)" as type,
    (case i.contype when 'p' then 'PRIMARY_KEY_CONSTRAINT' else 'UNIQUE_CONSTRAINT' end)::sim."nvarchar(60)" as type_desc,
    i.number as unique_index_id, (i.conname ~ '__[0-9A-F]{8,}$')::int::sim."bit" as is_system_named, 1::sim."bit" as is_enforced
from sim.index_list i join pg_constraint k on k.conindid = i.indexrelid and k.contype in ('p', 'u')
join pg_class c on c.oid = i.indrelid join sys.schemas s on s.raw_id = c.relnamespace;
create function sim.action_number(code text) returns int language sql immutable as $$ select case code when 'c' then 1 when 'n' then 2 when 'd' then 3 else 0 end $$;
create function sim.action_name(code text) returns text language sql immutable as $$ select case code when 'c' then 'CASCADE' when 'n' then 'SET_NULL' when 'd' then 'SET_DEFAULT' else 'NO_ACTION' end $$;
create view sim.foreign_list as
select k.conname::text as name, k.oid::int as id, k.conrelid, k.confrelid, k.conkey::int[] as conkey, k.confkey::int[] as confkey,
    k.confdeltype::text as deletes, k.confupdtype::text as updates, 0 as is_disabled,
    (not k.convalidated or exists (select from sim.untrusted u where u.table_id = k.conrelid and u.name = k.conname))::int as is_not_trusted
from pg_constraint k where k.contype = 'f'
union all
select d.name, (d.details ->> 'id')::int, d.table_id, (d.details ->> 'confrelid')::oid,
    array(select jsonb_array_elements_text(d.details -> 'conkey')::int), array(select jsonb_array_elements_text(d.details -> 'confkey')::int),
    d.details ->> 'deletes', d.details ->> 'updates', 1, 1
from sim.disabled d where d.kind = 'f';
create view sys.foreign_keys as
select k.name::sim."sysname" as name, k.id as object_id, s.schema_id, k.conrelid::int as parent_object_id, 'F '::sim."char(2)" as type,
    'FOREIGN_KEY_CONSTRAINT'::sim."nvarchar(60)" as type_desc, k.confrelid::int as referenced_object_id,
    coalesce((select l.number from sim.index_list l where l.indrelid = k.confrelid and l.indisunique and
        (select array_agg(a::int order by a) from unnest(l.indkey) as a) = (select array_agg(a order by a) from unnest(k.confkey) as a) limit 1), 1) as key_index_id,
    k.is_disabled::sim."bit" as is_disabled, k.is_not_trusted::sim."bit" as is_not_trusted, 0::sim."bit" as is_not_for_replication,
    sim.action_number(k.deletes)::sim."tinyint" as delete_referential_action, sim.action_name(k.deletes)::sim."nvarchar(60)" as delete_referential_action_desc,
    sim.action_number(k.updates)::sim."tinyint" as update_referential_action, sim.action_name(k.updates)::sim."nvarchar(60)" as update_referential_action_desc,
    0::sim."bit" as is_system_named, 0::sim."bit" as is_ms_shipped
from sim.foreign_list k join pg_class c on c.oid = k.conrelid join sys.schemas s on s.raw_id = c.relnamespace;
create view sys.foreign_key_columns as
select k.id as constraint_object_id, p.place::int as constraint_column_id, k.conrelid::int as parent_object_id, k.conkey[p.place] as parent_column_id,
    k.confrelid::int as referenced_object_id, k.confkey[p.place] as referenced_column_id
from sim.foreign_list k cross join lateral generate_subscripts(k.conkey, 1) as p(place);
create view sys.default_constraints as
select d.name::sim."sysname" as name, a.oid::int as object_id, s.schema_id, d.table_id::int as parent_object_id, 'D '::sim."char(2)" as type,
    'DEFAULT_CONSTRAINT'::sim."nvarchar(60)" as type_desc, d.column_number as parent_column_id, d.definition::sim."nvarchar(max)" as definition,
    (d.name ~ '__[0-9A-F]{8,}$')::int::sim."bit" as is_system_named
from sim.defaults d join pg_attrdef a on a.adrelid = d.table_id and a.adnum = d.column_number
join pg_class c on c.oid = d.table_id join sys.schemas s on s.raw_id = c.relnamespace;
create view sys.check_constraints as
select d.name::sim."sysname" as name, coalesce(k.oid::int, 0) as object_id, s.schema_id, d.table_id::int as parent_object_id, 'C '::sim."char(2)" as type,
    'CHECK_CONSTRAINT'::sim."nvarchar(60)" as type_desc, d.definition::sim."nvarchar(max)" as definition, d.column_number as parent_column_id,
    (k.oid is null)::int::sim."bit" as is_disabled, (k.oid is null or not k.convalidated or exists (select from sim.untrusted u where u.table_id = d.table_id and u.name = d.name))::int::sim."bit" as is_not_trusted,
    0::sim."bit" as is_system_named
from sim.checks d join pg_class c on c.oid = d.table_id join sys.schemas s on s.raw_id = c.relnamespace
left join pg_constraint k on k.conrelid = d.table_id and k.conname = d.name;
create view sys.triggers as
select t.name::sim."sysname" as name, t.id as object_id, 1::sim."tinyint" as parent_class, 'OBJECT_OR_COLUMN'::sim."nvarchar(60)" as parent_class_desc,
    t.table_id::int as parent_id, 'TR'::sim."char(2)" as type, 'SQL_TRIGGER'::sim."nvarchar(60)" as type_desc, 0::sim."bit" as is_ms_shipped,
    t.is_disabled::sim."bit" as is_disabled, 0::sim."bit" as is_not_for_replication, 0::sim."bit" as is_instead_of_trigger
from sim.triggers t join pg_class c on c.oid = t.table_id;
create view sys.sql_modules as
select t.id as object_id, t.definition::sim."nvarchar(max)" as definition from sim.triggers t
union all select m.id::int, m.definition from sim.modules m;
create function sim.row_count(id oid) returns bigint language plpgsql stable as $$
declare out bigint; begin execute format('select count(*) from %s', id::regclass) into out; return out; end $$;
create view sys.partitions as
select (i.object_id::bigint * 10 + i.index_id) as partition_id, i.object_id, i.index_id, 1 as partition_number, (i.object_id::bigint * 10 + i.index_id) as hobt_id,
    sim.row_count(i.object_id::oid) as rows, 0::sim."tinyint" as data_compression, 'NONE'::sim."nvarchar(60)" as data_compression_desc
from sys.indexes i;
create view sys.dm_db_partition_stats as
select p.partition_id, p.object_id, p.index_id, p.partition_number, p.rows as row_count,
    (pg_relation_size(p.object_id::oid) / 8192)::bigint as in_row_data_page_count, (pg_total_relation_size(p.object_id::oid) / 8192)::bigint as used_page_count,
    (pg_total_relation_size(p.object_id::oid) / 8192)::bigint as reserved_page_count, 0::bigint as lob_used_page_count
from sys.partitions p;
create view sys.allocation_units as
select partition_id as allocation_unit_id, 1::sim."tinyint" as type, partition_id as container_id, used_page_count as total_pages, used_page_count as used_pages, used_page_count as data_pages from sys.dm_db_partition_stats;

create view sys.databases as
select current_database()::text::sim."sysname" as name, 5 as database_id, null::int as source_database_id, '2026-01-01'::timestamp::sim."datetime" as create_date,
    sim.setting('is_cdc_enabled', '0')::int::sim."bit" as is_cdc_enabled,
    sim.setting('snapshot_isolation_state', '0')::int::sim."tinyint" as snapshot_isolation_state,
    (case sim.setting('snapshot_isolation_state', '0') when '1' then 'ON' else 'OFF' end)::sim."nvarchar(60)" as snapshot_isolation_state_desc,
    sim.setting('is_read_committed_snapshot_on', '0')::int::sim."bit" as is_read_committed_snapshot_on,
    sim.setting('collation', 'SQL_Latin1_General_CP1_CI_AS')::sim."sysname" as collation_name,
    (case sim.setting('recovery_model', 'FULL') when 'FULL' then 1 when 'BULK_LOGGED' then 2 else 3 end)::sim."tinyint" as recovery_model,
    sim.setting('recovery_model', 'FULL')::sim."nvarchar(60)" as recovery_model_desc,
    sim.setting('log_reuse_wait_desc', 'NOTHING')::sim."nvarchar(60)" as log_reuse_wait_desc,
    (case sim.setting('log_reuse_wait_desc', 'NOTHING') when 'REPLICATION' then 6 else 0 end)::sim."tinyint" as log_reuse_wait,
    sim.setting('compatibility_level', '160')::int::sim."tinyint" as compatibility_level, 0::sim."tinyint" as state, 'ONLINE'::sim."nvarchar(60)" as state_desc,
    sim.setting('is_read_only', '0')::int::sim."bit" as is_read_only, 0::sim."tinyint" as user_access, 'MULTI_USER'::sim."nvarchar(60)" as user_access_desc,
    sim.setting('is_accelerated_database_recovery_on', '0')::int::sim."bit" as is_accelerated_database_recovery_on,
    sim.setting('delayed_durability_desc', 'DISABLED')::sim."nvarchar(60)" as delayed_durability_desc,
    0::sim."bit" as is_published, 0::sim."bit" as is_auto_close_on, 0::sim."bit" as is_encrypted, null::sim."nvarchar(60)" as group_database_id, null::sim."nvarchar(60)" as replica_id,
    0::sim."bit" as is_memory_optimized_elevate_to_snapshot_on, 0::sim."bit" as is_recursive_triggers_on, '\x01'::bytea as owner_sid,
    sim.setting('service_broker_guid', (select md5(d.oid::text)::uuid::text from pg_database d where d.datname = current_database()))::uuid::sim.uniqueidentifier as service_broker_guid
union all
select v.name::sim."sysname", v.id, null, '2026-01-01'::timestamp, 0, 0, 'ON', 0, 'SQL_Latin1_General_CP1_CI_AS', 3, 'SIMPLE', 'NOTHING', 0, 160, 0, 'ONLINE', 0, 0, 'MULTI_USER', 0, 'DISABLED', 0, 0, 0, null, null, 0, 0, '\x01', md5(v.name)::uuid
from (values ('master', 1), ('tempdb', 2), ('model', 3), ('msdb', 4)) as v(name, id);
create table sim.configurations (configuration_id int, name text, value int, value_in_use int);
insert into sim.configurations values (1536, 'max text repl size (B)', 65536, 65536), (115, 'nested triggers', 1, 1), (1544, 'max server memory (MB)', 2147483647, 2147483647);
create view sys.configurations as select configuration_id, name::sim."nvarchar(60)" as name, value::text::sim."sql_variant" as value, value_in_use::text::sim."sql_variant" as value_in_use,
    name::sim."nvarchar(60)" as description from sim.configurations;
create view sys.database_principals as
select 'dbo'::sim."sysname" as name, 1 as principal_id, 'S'::sim."char(2)" as type, 'SQL_USER'::sim."nvarchar(60)" as type_desc
union all select 'db_owner', 16384, 'R', 'DATABASE_ROLE' union all select distinct r.login, 100, 'S', 'SQL_USER' from sim.rights r
union all select distinct r.name, 200, 'R', 'DATABASE_ROLE' from sim.rights r where kind = 'role' and r.name <> 'db_owner';
create view sys.server_principals as select 'sa'::sim."sysname" as name, 1 as principal_id, 'S'::sim."char(2)" as type;
create view sys.extended_properties as select 0::sim."tinyint" as class, 0 as major_id, 0 as minor_id, ''::sim."sysname" as name, ''::sim."sql_variant" as value where false;
create view sys.sequences as select ''::sim."sysname" as name, 0 as object_id, 0 as schema_id where false;
create view sys.sysobjects as select name, object_id as id, type as xtype, parent_object_id as parent_obj from sys.objects;
create view sys.sysindexes as select i.object_id as id, i.index_id as indid, i.name, sim.row_count(i.object_id::oid) as rows, sim.row_count(i.object_id::oid) as rowcnt from sys.indexes i;
create view sys.change_tracking_databases as select 0 as database_id where false;
create view sys.change_tracking_tables as select 0 as object_id, 0::bigint as min_valid_version where false;
create view sys.xml_indexes as select 0 as object_id, ''::sim."sysname" as name, 0 as index_id where false;
create view sys.periods as select 0 as object_id, 0 as start_column_id, 0 as end_column_id where false;
create view sys.column_master_keys as select ''::sim."sysname" as name where false;
create view sys.masked_columns as select * from sys.columns where is_masked = 1;
create view sys.synonyms as select ''::sim."sysname" as name, 0 as object_id, 0 as schema_id, ''::sim."nvarchar(1000)" as base_object_name where false;
create view sys.stats as select 0 as object_id, ''::sim."sysname" as name, 0 as stats_id where false;
create view sys.dm_db_log_space_usage as select 5 as database_id, 104857600::bigint as total_log_size_in_bytes, 1048576::bigint as used_log_space_in_bytes,
    sim.setting('used_log_percent', '1')::float4 as used_log_space_in_percent;
create view sys.database_files as select 1 as file_id, 0::sim."tinyint" as type, 'ROWS'::sim."nvarchar(60)" as type_desc, 'data'::sim."sysname" as name, 12800 as size, -1 as max_size, 8192 as growth
    union all select 2, 1, 'LOG', 'log', 12800, -1, 8192;
create table sim.sessions (session_id int, pid int, login text, host text, program text, began timestamp, database text, pool int default 0, primary key (pid, session_id));
create view sys.dm_exec_sessions as
select s.session_id::int2 as session_id, s.began::sim."datetime" as login_time, s.host::sim."sysname" as host_name, s.program::sim."sysname" as program_name,
    s.login::sim."sysname" as login_name, s.login::sim."sysname" as original_login_name, (case when a.state = 'active' then 'running' else 'sleeping' end)::sim."nvarchar(60)" as status, 5::int2 as database_id,
    1::sim."bit" as is_user_process, (a.xact_start is not null)::int as open_transaction_count, 2::int2 as transaction_isolation_level,
    (a.state_change at time zone 'utc')::sim."datetime" as last_request_start_time, (a.state_change at time zone 'utc')::sim."datetime" as last_request_end_time, a.backend_start as raw_start
from sim.sessions s join pg_stat_activity a on a.pid = s.pid;
create view sys.dm_exec_connections as select session_id as session_id, 'TSQL'::sim."nvarchar(60)" as protocol_type, 'FALSE'::sim."nvarchar(60)" as encrypt_option, 'TCP'::sim."nvarchar(60)" as net_transport from sys.dm_exec_sessions;
create view sys.dm_exec_requests as
select s.session_id::int2 as session_id, (a.query_start at time zone 'utc')::sim."datetime" as start_time, 'running'::sim."nvarchar(60)" as status, 'SELECT'::sim."nvarchar(60)" as command,
    5::int2 as database_id, a.pid as sql_handle, coalesce((select b.session_id from sim.sessions b where b.pid = any (pg_blocking_pids(a.pid)) limit 1), 0)::int2 as blocking_session_id,
    (case when a.wait_event_type = 'Lock' then 'LCK_M_X' end)::sim."nvarchar(60)" as wait_type, (extract(epoch from clock_timestamp() - a.query_start) * 1000)::int as total_elapsed_time
from sim.sessions s join pg_stat_activity a on a.pid = s.pid and a.state = 'active';
create function sys.dm_exec_sql_text(handle int) returns table (dbid int2, objectid int, number int2, encrypted sim."bit", text sim."nvarchar(max)") language sql stable
    as $$ select 5::int2, null::int, null::int2, 0::int2, a.query::bpchar from pg_stat_activity a where a.pid = $1 $$;
create view sys.dm_tran_session_transactions as select session_id, session_id::bigint as transaction_id, 1::sim."bit" as is_user_transaction, open_transaction_count from sys.dm_exec_sessions where open_transaction_count > 0;
create view sys.dm_tran_database_transactions as select session_id::bigint as transaction_id, 5 as database_id, login_time as database_transaction_begin_time from sys.dm_exec_sessions where open_transaction_count > 0;
create view sys.dm_tran_active_transactions as select session_id::bigint as transaction_id, 'user_transaction'::sim."nvarchar(60)" as name, login_time as transaction_begin_time, 1 as transaction_type, 2 as transaction_state from sys.dm_exec_sessions where open_transaction_count > 0;
create view sys.dm_tran_active_snapshot_database_transactions as select session_id::bigint as transaction_id, session_id, 0::bigint as elapsed_time_seconds from sys.dm_exec_sessions where false;
create view sys.dm_tran_locks as
select s.session_id as request_session_id, 5 as resource_database_id, 'OBJECT'::sim."nvarchar(60)" as resource_type, l.relation::bigint as resource_associated_entity_id,
    l.mode::sim."nvarchar(60)" as request_mode, (case when l.granted then 'GRANT' else 'WAIT' end)::sim."nvarchar(60)" as request_status
from pg_locks l join sim.sessions s on s.pid = l.pid where l.relation is not null;
create view sys.dm_os_sys_info as select (pg_postmaster_start_time() at time zone 'utc')::sim."datetime" as sqlserver_start_time, 2 as cpu_count;
create function sys.fn_my_permissions(securable text, class text) returns table (entity_name sim."sysname", subentity_name sim."sysname", permission_name sim."nvarchar(60)") language sql stable as $$
    select 'database'::bpchar, ''::bpchar, p::bpchar from unnest(case when sim.is_owner() then array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'ALTER', 'CONTROL', 'CREATE TABLE', 'CREATE SCHEMA', 'VIEW DATABASE STATE', 'VIEW SERVER STATE'] else array(select upper(r.name) from sim.rights r where r.login = current_setting('sim.login', true) and kind = 'permission') end) as p $$;
create view msdb.sysjobs as select 'cdc.' || current_database() || '_' || j.job_type as name, j.job_type as job_id, 1::sim."bit" as enabled from sim.cdc_jobs j;
