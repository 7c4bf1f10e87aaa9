"""`penstock table add | remove | pause | resume | resync`: requests for single tables.

Each checks what can be known now, and writes a request (`pipeline/table_requests.py`). Not here:
carrying it out, and showing it (`table_list.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.control.doctor.doctor import examine
from penstock.control.doctor.plan import check as check_plan
from penstock.control.pipeline.config import need_target
from penstock.control.pipeline.running import processes
from penstock.control.pipeline.servers import followed_tables, is_followed, source_tables
from penstock.control.pipeline.table_requests import (
    make_add_request,
    put_request,
    read_answers,
    read_requests,
    requested_patterns,
)
from penstock.model import LOAD_AGAIN, PenstockError, TableDefinition, TableName
from penstock.model.patterns import Selection, as_pattern, parse_pattern
from penstock.model.table_requests import Capture, TableRequest, TableRequests
from penstock.ports.checks import Side, checks_of
from penstock.ports.config import Config
from penstock.ports.enabling import enable_capture, has_enabling


class TableNotTaken(PenstockError):
    """A request names a table that the pipeline does not have."""

    code = "CT60"
    retry = "never"


class TableTaken(PenstockError):
    """A table to be added is one of the pipeline's already."""

    code = "CT61"
    retry = "never"


class RequestRefused(PenstockError):
    """A table request cannot be carried out now."""

    code = "CT62"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTable:
    """Table for which a request was written.

    Attributes:
        is_running: Whether the pipeline runs, and carries the request out within a second or two;
            otherwise it does at its next start.
    """

    table: TableName
    is_running: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock table add --json` prints it."""
        return {"table": str(self.table), "asked": True, "running": self.is_running}


Ask = Callable[[Config, TableName], TableRequest]


def ask(config: Config, table: TableName, request: Ask) -> AskedTable:
    """Write a request for a table; `request` is one of the functions below, and its errors."""
    running = {process.name for process in processes(config) if process.pid}
    needed = {"extract", "load"} if config.has_target else {"extract"}
    request(config, table)
    return AskedTable(table=table, is_running=needed <= running)


def as_table_name(text: str) -> TableName:
    """Return the table that is written as `schema.table`. Raises TableNotTaken."""
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name:
        raise TableNotTaken(
            f"{text!r} is not schema.table", hint='Name a table such as "public.orders".'
        )
    return TableName(schema, name)


def add(config: Config, table: TableName, *, enables: bool = False) -> TableRequest:
    """Request that a table is captured, its rows copied, and its changes followed.

    enables: whether to let the source record its changes first. Raises TableTaken, RequestRefused,
    PreflightFailed, PlanRefused, the errors of reading the source's catalogue, and with `enables`
    those of `enable_capture`.
    """
    _check_requests(config)
    _check_mode(config)
    if enables:
        _check_enabling(config)
    selection = Selection.parse(_patterns(config))
    is_refused = read_answers(config).refuses(read_requests(config).of(table))
    if selection.takes(table) and not is_refused and _is_captured(config, table):
        raise TableTaken(
            f"{table} is one of this pipeline's tables already",
            hint=f"To copy its rows again: penstock table resync FILE {table}"
            if config.has_target
            else "Its changes are in the log from its first one on: penstock log cat FILE "
            f"--table {table}",
        )
    out = selection.excluded_by(table)
    if out is not None and not out.exact:
        raise RequestRefused(
            f"the pattern {out.text!r} of the pipeline file excludes {table}",
            hint="Remove the pattern from [source] tables; the other tables stay as they are.",
        )
    [definition] = check_capturable(config, [table], enables=enables)

    def change(last: TableRequest, number: int) -> TableRequest:
        replaces = last.capture is Capture.REMOVED
        return make_add_request(config, definition.name, number, replaces=replaces)

    return put_request(config, table, change)


def remove(config: Config, table: TableName) -> TableRequest:
    """Request that a table is no longer captured and applied; the target's table stays.

    Raises TableNotTaken, RequestRefused.
    """
    _check_requests(config)
    _check_mode(config)
    if read_requests(config).of(table) == TableRequest(table=table):
        _check_there(config, table)
    patterns = requested_patterns(
        _patterns(config),
        TableRequests(tables=(TableRequest(table=table, capture=Capture.REMOVED),)),
    )
    if all(parse_pattern(text).excludes for text in patterns):
        raise RequestRefused(
            f"{table} is the last table of this pipeline",
            hint="Add another one first, or stop the pipeline.",
        )
    return put_request(
        config,
        table,
        lambda _, number: TableRequest(table=table, capture=Capture.REMOVED, capture_id=number),
    )


def pause(config: Config, table: TableName) -> TableRequest:
    """Request that a table's changes wait in the log. Raises TableNotTaken, TargetMissing."""
    _need_target(config, "a table's changes wait in front of it")
    _check_mode(config)
    _check_there(config, table)
    return put_request(config, table, lambda last, _: replace(last, paused=True))


def resume(config: Config, table: TableName) -> TableRequest:
    """Request that waiting changes are applied in order. For a name without a table, forget its
    requests.

    Raises TableNotTaken, TargetMissing.
    """
    _need_target(config, "no table waits in front of it")
    _check_mode(config)
    if not read_requests(config).of(table).paused:
        _check_there(config, table)
    return put_request(config, table, lambda last, _: replace(last, paused=False))


def resync(config: Config, table: TableName) -> TableRequest:
    """Request that a table's rows are copied again, whatever the target holds.

    Raises TableNotTaken, TargetMissing.
    """
    _need_target(config, "a table's rows are copied into it")
    _check_requests(config)
    _check_mode(config)
    _check_there(config, table)
    if not _is_captured(config, table) and not _is_asked(config, table):
        raise TableNotTaken(
            f"{table} is not captured yet",
            hint=f"Add it: penstock table add {config.path.name} {table}",
        )
    return put_request(
        config, table, lambda last, number: replace(last, copy_id=number, replaces=True)
    )


def _need_target(config: Config, what: str) -> None:
    need_target(config, what, instead="See its tables with `penstock table ls FILE`")


def _check_mode(config: Config) -> None:
    if not config.pipeline.mode.has_change:
        raise RequestRefused(
            "this pipeline is of mode data: it follows no table",
            hint="Change [source] tables in the file, then run penstock run FILE again.",
        )


def _check_requests(config: Config) -> None:
    engine = config.source.engine
    if not engine.has_table_requests:
        name = config.path.name
        raise RequestRefused(
            f"a log of {engine.shown} has the tables that it began with: none is added, left out "
            "or copied again alone",
            hint=f"Change [source] tables in {name} and {LOAD_AGAIN.replace('FILE', name)}",
        )


def _check_enabling(config: Config) -> None:
    if not has_enabling(config):
        raise RequestRefused(
            "--enable is for a source that records the changes of enabled tables only, and "
            f"{config.source.engine.shown} is not one",
            hint="Run the command without --enable.",
        )


def _patterns(config: Config) -> tuple[str, ...]:
    """Return the patterns with all requests: a web server's configuration may be older."""
    return requested_patterns(config.source.tables, read_requests(config))


def _check_there(config: Config, table: TableName) -> None:
    """Raise TableNotTaken if the patterns do not match a table, or it does not exist."""
    hint = f"See which there are: penstock plan {config.path.name}"
    if not Selection.parse(_patterns(config)).takes(table):
        raise TableNotTaken(f"{table} is not one of this pipeline's tables", hint=hint)
    known = followed_tables(config)
    is_known = known is not None and known.has(table)
    # A pattern may match the name and the table be new, or the name may be misspelt.
    if not is_known and not _is_asked(config, table):
        if table in {one.name for one in source_tables(config)}:
            return
        raise TableNotTaken(f"there is no table {table} at the source", hint=hint)


def _is_asked(config: Config, table: TableName) -> bool:
    return read_requests(config).of(table).capture is Capture.ADDED


def _is_captured(config: Config, table: TableName) -> bool:
    """Return whether the pipeline captures a table; patterns that match its name are not enough."""
    return is_followed(config, table)


def check_capturable(
    config: Config, tables: Sequence[TableName], *, enables: bool = False
) -> list[TableDefinition]:
    """Return the definitions of tables that can be followed.

    enables: whether to let the source record their changes, if nothing else refuses them. Raises
    TableNotTaken, PreflightFailed, PlanRefused, the errors of reading the source's catalogue, and
    with `enables` those of `enable_capture`.
    """
    names = tuple(as_pattern(table) for table in tables)
    only = replace(config, source=replace(config.source, tables=names))
    found = source_tables(only)
    missing = sorted(set(tables) - {table.name for table in found})
    if missing:
        raise TableNotTaken(
            f"there is no table {missing[0]} at the source",
            hint="Write names as the catalogue has them: case counts.",
        )
    # Refused here: changes that a binlog would not contain, such as cascades of a foreign key;
    # tables that the source could no longer update once they are published; and types with a loss
    # without a choice, with which the pipeline would not start again.
    if enables:
        check_plan(only, whole=False)
        enable_capture(config, tables)
    checks = checks_of(config.source.url).CHECKS_OF_A_NEW_TABLE
    examine(only, only=checks, sides=(Side.SOURCE,)).require()
    check_plan(only, whole=False)
    return found
