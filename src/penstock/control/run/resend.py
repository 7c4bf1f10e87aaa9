"""`penstock resend`: the rows of tables are put into the change log again, in log order.

The extractor does it (the engines' `requests.py`), between two transactions and at a consistent
point: changes committed after that point follow these rows, with a higher gsn. This module writes
the request, and waits for its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.control.pipeline.running import processes
from penstock.control.pipeline.servers import is_followed, source_tables
from penstock.control.pipeline.table_requests import put_request, read_answers
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.request_files import (
    ResendCancelled,
    ResendRefused,
    table_not_captured,
    table_unknown,
)
from penstock.model import PenstockError, TableName
from penstock.model.table_requests import TableRequest
from penstock.ports.config import Config

CHECK_S = 0.2
GONE_S_MAX = 30.0  # a supervisor restarts an ended extractor within that time


class ResendFailed(PenstockError):
    """The extractor refused or failed to put a table's rows into the log again; it says why."""

    code = "CT78"
    retry = "operator"


def resend(config: Config, tables: Sequence[TableName], *, clock: Clock = REAL_CLOCK) -> None:
    """Put the rows of these tables into the log again; return when they are durable there.

    Raises ResendRefused, ResendCancelled, ResendFailed, RequestsBusy, and the errors of reading the
    source's catalogue. Nothing is requested unless all tables can be sent.
    """
    if not tables:
        raise ResendRefused(
            "no table is named",
            hint="Name them: penstock resend FILE --tables public.item,public.sale",
        )
    _check_tables(config, tables)
    if not _extracts(config):
        raise _node_failed(config)
    requests = [
        put_request(config, table, lambda last, number: replace(last, resend_id=number))
        for table in dict.fromkeys(tables)
    ]
    _wait(config, requests, clock)


def _check_tables(config: Config, tables: Sequence[TableName]) -> None:
    there = {definition.name for definition in source_tables(config)}
    everything = replace(config, source=replace(config.source, tables=("*.*",)))
    missing = [table for table in tables if table not in there]
    if missing and missing[0] not in {one.name for one in source_tables(everything)}:
        raise table_unknown(missing[0])
    captured = (table for table in tables if table in there and is_followed(config, table))
    lacking = sorted(set(tables) - set(captured))
    if lacking:
        raise table_not_captured(lacking[0], config.path.stem)


def _wait(config: Config, requests: Sequence[TableRequest], clock: Clock) -> None:
    """Wait until all requests are answered; withdraw unanswered ones if the extractor has ended."""
    seen_s = clock.monotonic_s()
    while True:
        answers = read_answers(config)
        found = {request.table: answers.resend_of(request) for request in requests}
        for answer in found.values():
            if answer is not None and answer.error:
                raise ResendFailed(answer.error, hint=answer.hint, table=str(answer.table))
        if all(found.values()):
            return
        if _extracts(config):
            seen_s = clock.monotonic_s()
        elif clock.monotonic_s() - seen_s > GONE_S_MAX:
            for request in requests:
                put_request(config, request.table, lambda last, _: replace(last, resend_id=0))
            raise _node_failed(config)
        clock.sleep(CHECK_S)


def _extracts(config: Config) -> bool:
    return any(process.name == "extract" and process.pid for process in processes(config))


def _node_failed(config: Config) -> ResendCancelled:
    return ResendCancelled(
        f"the resend was cancelled: no extractor of pipeline {config.path.stem} runs",
        hint=f"The extractor does it, and none runs: penstock run {config.path.name}; then give "
        "the same command again.",
    )
