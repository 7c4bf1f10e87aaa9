"""Definitions of the state tables in schema `wirekite`; words in braces are a dialect's types.

`wirekite_progress` and `wirekite_action` are document 000's, with the choices it leaves open made
as ARCHITECTURE.md says. The other tables are our own: `wirekite_log` binds the target to one change
log and stores how far it is applied, `wirekite_staged` the same for each log that instances share,
`wirekite_table` the shapes of captured tables as applied, `wirekite_apart` the tables with a table
sync (`load/table_sync.py`), `wirekite_merge` a stamp for each merge table if the engine has no
better place, `bulk_table` the tables that the bulk load has begun and finished.
"""

from __future__ import annotations

from penstock.ports.target import SCHEMA
from penstock.sql.state_dialect import StateDialect

_APPLIED = """
        applied_segment  bigint default -1 not null,
        applied_gsn      bigint default 0 not null,
        applied_trx      bigint default 0 not null,
        applied_position {position} default 0 not null,
        applied_commit   {moment} null"""

TABLES = {
    "wirekite_progress": """
        source       varchar(256) not null,
        target       varchar(256) not null,
        operation    varchar(2) not null,
        transmission varchar(1) not null,
        mark         varchar(64) null,
        table_name   varchar(256) null,
        start_time   {start_time},
        finish_time  {finish_time},
        restarts     int default 0 not null,
        primary key (source, target)""",
    "wirekite_action": """
        action {action}""",
    "wirekite_log": f"""
        only_row         {{only_row}},
        log_id           {{log_id}} not null,{_APPLIED}""",
    "wirekite_staged": f"""
        log_id           {{log_id}} primary key,{_APPLIED},
        holder           {{holder}},
        taken_over       {{moment}} null""",
    "wirekite_table": """
        source_schema {name} not null,
        source_name   {name} not null,
        target_schema {name} not null,
        target_name   {name} not null,
        merge_name    {name} not null unique,
        made          {flag} not null,
        columns       {long_text} null,
        primary key (source_schema, source_name)""",
    "wirekite_apart": """
        source_schema    {name} not null,
        source_name      {name} not null,
        state            varchar(16) not null,
        copy_id          bigint not null,
        start_position   {position} not null,
        applied_segment  bigint not null,
        applied_gsn      bigint not null,
        applied_trx      bigint not null,
        applied_position {position} not null,
        since            {moment} not null,
        primary key (source_schema, source_name)""",
    "wirekite_merge": """
        merge_name {name} not null primary key,
        stamp      bigint not null,
        shape      {long_text} not null""",
    "bulk_table": """
        source_schema {name} not null,
        source_name   {name} not null,
        {plan}        varchar(64) not null,
        position      varchar(256) not null,
        row_count     bigint null,
        start_time    {moment} not null,
        finish_time   {moment} null,
        primary key (source_schema, source_name)""",
}


def create_text(name: str, dialect: StateDialect) -> str:
    """Return the statement that creates a state table."""
    columns = TABLES[name].format_map(dialect.types)
    return f"{dialect.create_table} {SCHEMA}.{name} ({columns}\n    ){dialect.table_options}"
