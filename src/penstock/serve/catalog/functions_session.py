"""Functions about the connection, the server and its log's position."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog import settings
from penstock.serve.catalog.functions import Context, function
from penstock.serve.catalog.names import path_of, search_path
from penstock.serve.catalog.types import json_of
from penstock.serve.hybrid import hybrid_time
from penstock.serve.settings import YUGABYTE

_ENCODINGS = {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}


@function("current_database() -> name")
@function("current_catalog() -> name")
def _database(context: Context) -> str:
    return context.database


@function("current_user() -> name")
@function("session_user() -> name")
@function("current_role() -> name")
@function("user() -> name")
def _user(context: Context) -> str:
    return context.session.user


@function("current_schema() -> name")
def _schema(context: Context) -> str | None:
    return next(iter(search_path(context)), None)


@function("current_schemas(bool) -> name[]")
def _schemas(context: Context, implicit: int) -> str:
    return json_of(path_of(context) if implicit else search_path(context))


@function("version() -> text")
def _version(context: Context) -> str:
    return f"PostgreSQL {context.facts.server_version} (penstock)"


@function("pg_backend_pid() -> int4")
def _pid(context: Context) -> int:
    return context.session.process_id


@function("pg_my_temp_schema() -> oid")
def _temporary_schema(_: Context) -> int:
    return 0


@function("pg_is_other_temp_schema(oid) -> bool")
@function("pg_is_in_recovery() -> bool")
def _no(_: Context, *_arguments: int) -> int:
    return 0


@function("pg_client_encoding() -> name")
def _client_encoding(_: Context) -> str:
    return "UTF8"


@function("pg_encoding_to_char(int4) -> name")
def _encoding_name(_: Context, number: int) -> str:
    if number not in _ENCODINGS:
        raise Refused("0A000", f"the encoding {number} is not known here")
    return _ENCODINGS[number]


@function("pg_char_to_encoding(name) -> int4")
def _encoding_number(_: Context, name: str) -> int:
    for number, known in _ENCODINGS.items():
        if known == name.upper().replace("-", ""):
            return number
    raise Refused("0A000", f"the encoding {name} is not known here")


@function("pg_tablespace_location(oid) -> text")
def _location(_: Context, _oid: int) -> str:
    return ""


@function("current_setting(text, bool?) -> text")
def _setting(context: Context, name: str, missing_ok: int = 0) -> str | None:
    try:
        return settings.current(context, name)
    except Refused as refused:
        if missing_ok and refused.sqlstate == "42704":
            return None
        raise


@function("set_config(text, text, bool) -> text", strict=False)
def _set_config(context: Context, name: str | None, value: str | None, local: int | None) -> str:
    if name is None:
        raise Refused("22004", "SET requires parameter name")
    return settings.set_value(context, name, value, local=bool(local))


@function("now() -> timestamptz")
@function("clock_timestamp() -> timestamptz")
@function("transaction_timestamp() -> timestamptz")
@function("statement_timestamp() -> timestamptz")
@function("current_timestamp() -> timestamptz")
def _now(_: Context) -> str:
    text = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{text}+00"


@function("current_date() -> date")
def _today(_: Context) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


@function("pg_current_wal_lsn() -> pg_lsn")
@function("pg_current_wal_flush_lsn() -> pg_lsn")
@function("pg_current_wal_insert_lsn() -> pg_lsn")
def _position(context: Context) -> int:
    return context.state.position()


@function("pg_last_wal_receive_lsn() -> pg_lsn")
@function("pg_last_wal_replay_lsn() -> pg_lsn")
def _no_position(_: Context) -> None:
    return None


@function("pg_wal_lsn_diff(pg_lsn, pg_lsn) -> numeric")
def _distance(_: Context, one: int, other: int) -> int:
    return one - other


@function(
    "pg_control_checkpoint() -> setof (checkpoint_lsn pg_lsn, redo_lsn pg_lsn, redo_wal_file text, "
    "timeline_id int4, prev_timeline_id int4, full_page_writes bool, next_xid text, next_oid oid, "
    "next_multixact_id xid, next_multi_offset xid, oldest_xid xid, oldest_xid_dbid oid, "
    "oldest_active_xid xid, oldest_multi_xid xid, oldest_multi_dbid oid, "
    "oldest_commit_ts_xid xid, newest_commit_ts_xid xid, checkpoint_time timestamptz)"
)
def _checkpoint(context: Context) -> list[list[Any]]:
    """Return the durable end; NULL for values that a log does not have."""
    position = context.state.position()
    file = f"{1:08X}{position >> 32:08X}{(position & 0xFFFFFFFF) >> 24:08X}"
    next_xid = f"0:{context.state.transaction_id()}"
    return [[position, position, file, 1, 1, 1, next_xid, *[None] * 10, _now(context)]]


@function("yb_get_current_hybrid_time_lsn() -> int8")
def _hybrid_time(context: Context) -> int:
    if context.dialect != YUGABYTE:
        raise Refused("42883", "function yb_get_current_hybrid_time_lsn() does not exist")
    return hybrid_time(context.state.now_us())


@function("pg_drop_replication_slot(name) -> void")
def _drop_slot(context: Context, name: str) -> str:
    return str(context.carry_out("pg_drop_replication_slot", name))


@function(
    "pg_create_logical_replication_slot(name, name, bool?, bool?) -> "
    "setof (slot_name name, lsn pg_lsn)",
    until=16,
)
@function(
    "pg_create_logical_replication_slot(name, name, bool?, bool?, bool?) -> "
    "setof (slot_name name, lsn pg_lsn)",
    since=17,
)
def _create_slot(
    context: Context, name: str, plugin: str, temporary: int = 0, two: int = 0, failover: int = 0
) -> list[Any]:
    key = ("pg_create_logical_replication_slot", name, plugin, temporary, two, failover)
    return [context.carry_out(*key)]


@function(
    "pg_create_physical_replication_slot(name, bool?, bool?) -> setof (slot_name name, lsn pg_lsn)"
)
def _create_physical_slot(_: Context, *_arguments: Any) -> list[Any]:
    raise Refused("0A000", "physical replication is not supported")


@function("pg_replication_slot_advance(name, pg_lsn) -> setof (slot_name name, end_lsn pg_lsn)")
def _advance_slot(context: Context, name: str, position: int) -> list[Any]:
    return [context.carry_out("pg_replication_slot_advance", name, position)]


@function("pg_terminate_backend(int4, int8?) -> bool")
def _terminate(context: Context, process_id: int, _timeout_ms: int = 0) -> int:
    return int(context.carry_out("pg_terminate_backend", process_id))


@function("pg_cancel_backend(int4) -> bool")
def _cancel(context: Context, process_id: int) -> int:
    return int(context.carry_out("pg_cancel_backend", process_id))


@function("pg_export_snapshot() -> text")
def _export_snapshot(context: Context) -> str:
    return str(context.carry_out("pg_export_snapshot"))


@function("txid_current() -> int8")
@function("pg_current_xact_id() -> xid8")
def _transaction(context: Context) -> int:
    return context.state.transaction_id()


@function("pg_current_xact_id_if_assigned() -> xid8")
@function("txid_current_if_assigned() -> int8")
def _no_transaction(_: Context) -> None:
    return None


def _declare_changes(name: str, kind: str, *, is_binary: bool, confirms: bool) -> None:
    """Declare one of the four functions that return a slot's changes as rows."""
    rows = f"setof (lsn pg_lsn, xid xid, data {kind})"

    @function(f"{name}(name, pg_lsn, int4) -> {rows}", strict=False)
    @function(f"{name}(name, pg_lsn, int4, variadic text[]) -> {rows}", strict=False)
    def _changes(
        context: Context, slot: str | None, upto: int | None, count: int | None, given: str = "[]"
    ) -> Any:
        if slot is None:
            raise Refused("22004", "slot name must not be null")
        options = tuple(json.loads(given))
        if None in options:
            raise Refused("22004", "array must not contain nulls")
        return context.carry_out(
            "changes of a slot", slot, upto, count, options, is_binary, confirms
        )


_declare_changes("pg_logical_slot_get_changes", "text", is_binary=False, confirms=True)
_declare_changes("pg_logical_slot_peek_changes", "text", is_binary=False, confirms=False)
_declare_changes("pg_logical_slot_get_binary_changes", "bytea", is_binary=True, confirms=True)
_declare_changes("pg_logical_slot_peek_binary_changes", "bytea", is_binary=True, confirms=False)
