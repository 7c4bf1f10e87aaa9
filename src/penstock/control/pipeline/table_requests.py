"""Requests for single tables: `state/wishes.json`, and the extractor's answers beside it.

A request is written under a lock into the file, which is replaced whole, and is carried out by the
extract and the load process within a second, or at their next start. Not here: the commands
that ask (`tables/table_commands.py`), and the processes' work (the engines' `captures.py`,
`penstock.load.table_sync`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from penstock.host.files import REAL_FILES, DirectoryLock, DirectoryLocked, Files
from penstock.host.state_file import StateFile
from penstock.model import PenstockError, TableName
from penstock.model.patterns import as_pattern, parse_pattern
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    Capture,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.config import Config

LOCK = "WISHES.LOCK"
LOCK_WAIT_S = 10.0
LOCK_CHECK_S = 0.05


class RequestsBusy(PenstockError):
    """Another command writes requests for too long."""

    code = "CT63"
    retry = "backoff"


def _requests_file(config: Config, files: Files = REAL_FILES) -> StateFile[TableRequests]:
    return StateFile(config.layout.state / REQUESTS_FILE, TableRequests, files=files)


def read_requests(config: Config, files: Files = REAL_FILES) -> TableRequests:
    """Return the requests for the tables of a pipeline. Raises CheckpointCorrupt."""
    return _requests_file(config, files).load() or TableRequests()


def read_answers(config: Config, files: Files = REAL_FILES) -> CaptureAnswers:
    """Return the extractor's answers to the requests. Raises CheckpointCorrupt."""
    path = config.layout.state / CAPTURED_FILE
    return StateFile(path, CaptureAnswers, files=files).load() or CaptureAnswers()


def removed_tables(config: Config) -> frozenset[TableName]:
    """Return the tables that were removed by request, and are not captured any more."""
    requests = [one for one in read_requests(config).tables if one.capture is Capture.REMOVED]
    answers = read_answers(config) if requests else CaptureAnswers()
    return frozenset(one.table for one in requests if answers.is_done(one))


def put_request(
    config: Config, table: TableName, change: Callable[[TableRequest, int], TableRequest]
) -> TableRequest:
    """Replace a table's request; change gets the last one and the new number.

    Raises RequestsBusy.
    """
    with _lock(config):
        requests = read_requests(config)
        last = requests.of(table)
        request = change(last, requests.serial + 1)
        if request == TableRequest(table=table):
            if request != last:
                _requests_file(config).save(requests.without(table))
        elif request != last:
            _requests_file(config).save(requests.with_request(request))
        return request


def forget_request(config: Config, table: TableName) -> None:
    """Forget the request for this table. Raises RequestsBusy."""
    with _lock(config):
        requests = read_requests(config)
        if requests.without(table) != requests:
            _requests_file(config).save(requests.without(table))


@contextmanager
def _lock(config: Config) -> Iterator[None]:
    REAL_FILES.make_directory(config.layout.state)
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            lock = DirectoryLock(config.layout.state, LOCK)
            break
        except DirectoryLocked as error:
            if time.monotonic() > deadline_s:
                raise RequestsBusy(
                    f"another command changes the tables of {config.path.name}: {error.message}",
                    hint="Run the same command again.",
                ) from error
            time.sleep(LOCK_CHECK_S)
    try:
        yield
    finally:
        lock.release()


def requested_patterns(patterns: tuple[str, ...], requests: TableRequests) -> tuple[str, ...]:
    """Return the patterns of the pipeline file, with the tables added and removed since."""
    for request in sorted(requests.tables, key=lambda one: one.table):
        name = as_pattern(request.table)
        if request.capture is Capture.ADDED:
            kept = [text for text in patterns if not _is_alone(text, request.table, excludes=True)]
            # As a pattern of its own, the table would have to exist for good.
            taken = any(
                not one.excludes and one.matches(request.table) for one in map(parse_pattern, kept)
            )
            patterns = tuple(kept) if taken else (*kept, name)
        elif request.capture in (Capture.REMOVED, Capture.LEFT):
            kept = [text for text in patterns if not _is_alone(text, request.table, excludes=False)]
            patterns = (*kept, f"!{name}")
    return tuple(dict.fromkeys(patterns))


def _is_alone(text: str, table: TableName, *, excludes: bool) -> bool:
    """Return whether a pattern names just this table, and excludes or includes it."""
    pattern = parse_pattern(text)
    return pattern.exact and pattern.excludes is excludes and pattern.matches(table)


def with_requests(config: Config) -> Config:
    """Return the configuration with the tables that `penstock table` added and removed."""
    requests = read_requests(config)
    if not any(request.capture is not Capture.FILE for request in requests.tables):
        return config
    tables = requested_patterns(config.source.tables, requests)
    return replace(config, source=replace(config.source, tables=tables))
