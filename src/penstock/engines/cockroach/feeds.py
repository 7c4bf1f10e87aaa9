"""CockroachDB as a staging database: the published DDL, word for word.

It speaks PostgreSQL's protocol, so the statements are run by that engine's part `staging`. No test
runs them on a server of CockroachDB: a contract test compares the texts with the published ones.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from penstock.ports.feeds import StagingDatabase, StagingDialect
from penstock.ports.registry import PartName, engine_with_types

_SCHEME = "cockroachdb://"

CHECKPOINTS = """
CREATE TABLE IF NOT EXISTS public.checkpoints
(
  group_name        STRING      NOT NULL,
  source_hlc        DECIMAL     NOT NULL,
  partition         STRING      NOT NULL,
  first_seen        TIMESTAMPTZ NOT NULL DEFAULT now(),
  target_applied_at TIMESTAMPTZ,
  source_nanos      INT8        AS (floor(source_hlc)::INT8) VIRTUAL,
  source_logical    INT8        AS (((source_hlc-floor(source_hlc))*1e10)::INT8) VIRTUAL,
  source_wall_time  TIMESTAMPTZ AS (to_timestamp(floor(source_hlc)::FLOAT8 / 1e9)) VIRTUAL,
  PRIMARY KEY (group_name, source_hlc, partition),
  INDEX (group_name, target_applied_at, partition)
)"""
LEASES = """
CREATE TABLE IF NOT EXISTS public.leases
(
  name     STRING    PRIMARY KEY,
  expires  TIMESTAMP NOT NULL,
  nonce    UUID      NOT NULL,
  hostname STRING    NOT NULL
)"""
MEMO = """
CREATE TABLE IF NOT EXISTS public.memo
(
  key   STRING PRIMARY KEY,
  value BYTES  NOT NULL
)"""
JWT_PUBLIC_KEYS = """
CREATE TABLE IF NOT EXISTS public.jwt_public_keys
(
  id         UUID   PRIMARY KEY DEFAULT gen_random_uuid(),
  public_key STRING NOT NULL,
  active     BOOL   NOT NULL DEFAULT true
)"""
JWT_REVOKED_IDS = """
CREATE TABLE IF NOT EXISTS public.jwt_revoked_ids
(
  id STRING PRIMARY KEY
)"""
MUTATIONS = """
CREATE TABLE IF NOT EXISTS {table}
(
       nanos INT NOT NULL,
     logical INT NOT NULL,
         key STRING NOT NULL,
         mut BYTES NOT NULL,
      before BYTES NULL,
     applied BOOL NOT NULL DEFAULT false,
  applied_at TIMESTAMPTZ NULL,
    deletion BOOL NOT NULL DEFAULT false,
 source_time TIMESTAMPTZ AS (to_timestamp(nanos::float/1e9)) VIRTUAL,
  PRIMARY KEY (nanos, logical, key),
  INDEX {index} (key) STORING (applied),
  FAMILY cold (mut, before, deletion),
  FAMILY hot (applied, applied_at)
)"""
RETIRE = """
with retired as (
  delete from {table}
   where (nanos, logical) >= (%s, %s) and (nanos, logical) < (%s, %s) and applied
   order by nanos, logical
   limit %s
  returning nanos, logical
)
select count(*), max(nanos) from retired
"""

DIALECT = StagingDialect(
    shown="CockroachDB",
    server="CockroachDB",
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
    mutation_index="CREATE INDEX IF NOT EXISTS {index} ON {table} (key) STORING (applied)",
    mutation_columns=MappingProxyType(
        {
            "before": "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS before BYTES NULL",
            "applied": "ALTER TABLE {table}"
            " ADD COLUMN IF NOT EXISTS applied BOOL NOT NULL DEFAULT false",
            "applied_at": "ALTER TABLE {table}"
            " ADD COLUMN IF NOT EXISTS applied_at TIMESTAMPTZ NULL",
            "deletion": "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS deletion BOOL",
        }
    ),
    retire=RETIRE,
    name_bytes_max=128,
    copies=False,
    operator_statements=MappingProxyType(
        {
            "ALTER DATABASE {database} CONFIGURE ZONE USING gc.ttlseconds=300;": "staging is a "
            "queue, which leaves many tombstones; by default the server keeps them for hours"
        }
    ),
)


# Only this part of that engine has a dialect.
_STAGING_PART: PartName[Callable[..., StagingDatabase]] = PartName("staging")


def staging(url: str) -> StagingDatabase:
    """Return the staging database at a URL with the scheme cockroachdb."""
    runs = engine_with_types("postgresql").part(_STAGING_PART)
    return runs(url.replace(_SCHEME, "postgresql://", 1), dialect=DIALECT)
