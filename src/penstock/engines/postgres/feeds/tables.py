"""The staging schema in PostgreSQL's dialect: the published tables, word by word where it can be.

STRING is text, BYTES bytea, INT bigint; virtual columns are generated ones. Text that is part of a
key has the collation "C": bytes decide, as in CockroachDB. Two things are PostgreSQL's own:

- The index of a mutation table has `key` alone. With `applied` stored in it, marking a row applied
  would write a new entry into every index: 10.5 us a row, where 2.5 us are enough without.
- For the same reason pages of mutation tables are not even half full: the marked version of a row,
  which is longer by its time, fits beside the first one, and no index needs to know.
"""

from __future__ import annotations

from types import MappingProxyType

from penstock.sql.staging_tables import StagingDialect

CHECKPOINTS = """
create table if not exists public.checkpoints (
  group_name        text collate "C" not null,
  source_hlc        decimal          not null,
  partition         text collate "C" not null,
  first_seen        timestamptz      not null default now(),
  target_applied_at timestamptz,
  source_nanos      int8 generated always as (floor(source_hlc)::int8) {kept},
  source_logical    int8 generated always as (((source_hlc-floor(source_hlc))*1e10)::int8) {kept},
  source_wall_time  timestamptz
                    generated always as (to_timestamp(floor(source_hlc)::float8 / 1e9)) {kept},
  primary key (group_name, source_hlc, partition)
);
create index if not exists checkpoints_group_name_target_applied_at_partition_idx
    on public.checkpoints (group_name, target_applied_at, partition)
"""
LEASES = """
create table if not exists public.leases (
  name     text      primary key,
  expires  timestamp not null,
  nonce    uuid      not null,
  hostname text      not null
)"""
MEMO = """
create table if not exists public.memo (
  key   text  primary key,
  value bytea not null
)"""
JWT_PUBLIC_KEYS = """
create table if not exists public.jwt_public_keys (
  id         uuid primary key default gen_random_uuid(),
  public_key text not null,
  active     bool not null default true
)"""
JWT_REVOKED_IDS = """
create table if not exists public.jwt_revoked_ids (
  id text primary key
)"""
MUTATIONS = """
create table {table} (
       nanos int8 not null,
     logical int8 not null,
         key text collate "C" not null,
         mut bytea not null,
      before bytea null,
     applied bool not null default false,
  applied_at timestamptz null,
    deletion bool not null default false,
 source_time timestamptz generated always as (to_timestamp(nanos::float8/1e9)) {kept},
  primary key (nanos, logical, key)
) with (fillfactor = 45)"""
RETIRE = """
with old as (
  select ctid as place
    from {table}
   where (nanos, logical) >= (%s, %s) and (nanos, logical) < (%s, %s) and applied
   order by nanos, logical
   limit %s
), gone as (
  delete from {table}
   where ctid = any(array(select place from old))
  returning nanos
)
select count(*), max(nanos) from gone
"""

DIALECT = StagingDialect(
    shown="PostgreSQL",
    server="PostgreSQL",
    tables=MappingProxyType(
        {
            "checkpoints": CHECKPOINTS,
            "leases": LEASES,
            "memo": MEMO,
            "jwt_public_keys": JWT_PUBLIC_KEYS,
            "jwt_revoked_ids": JWT_REVOKED_IDS,
        }
    ),
    mutations=MUTATIONS,
    mutation_index="create index {index} on {table} (key)",
    mutation_columns=MappingProxyType(
        {
            "before": "alter table {table} add column before bytea null",
            "applied": "alter table {table} add column applied bool not null default false",
            "applied_at": "alter table {table} add column applied_at timestamptz null",
            "deletion": "alter table {table} add column deletion bool",
        }
    ),
    retire=RETIRE,
    name_bytes_max=63,
    copies=True,
    size="""
select pg_relation_size(place) / current_setting('block_size')::int, pg_total_relation_size(place)
  from (select %s::regclass as place) named
""",
    sample="tablesample system ({percent}) repeatable (1)",
)
