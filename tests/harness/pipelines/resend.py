"""A consumer's view of a table from the log's events, exact texts, and requests to resend."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.pipelines.extract import segments_of
from penstock.codec.exact_text import exact_texts
from penstock.consume import events_of
from penstock.host.state_file import StateFile
from penstock.log import Segment
from penstock.model import MarkerKind, Op, TableName
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    CaptureAnswers,
    ResendAnswer,
    TableRequest,
    TableRequests,
)

Texts = dict[str, dict[Any, dict[str, Any]]]


def texts_of(segments: Iterable[Segment]) -> Texts:
    """Return by table and id the last row's columns as exact texts."""
    found: Texts = {}
    for segment in segments:
        for rows in segment.rows():
            table = found.setdefault(rows.relation.name, {})
            columns = {
                column.name: exact_texts(rows.batch.column("after").field(at), column.neutral)
                for at, column in enumerate(rows.relation.columns)
            }
            before = rows.batch.column("before").to_pylist()
            for row, op in enumerate(rows.batch.column("op").to_pylist()):
                if before[row] is not None:
                    table.pop(str(before[row]["id"]), None)
                if op != Op.DELETE:
                    table[columns["id"][row]] = {
                        name: texts[row] for name, texts in columns.items()
                    }
    return found


def unequal(changed: Texts, read: Texts, names: dict[tuple[str, str], str]) -> dict[str, Any]:
    """Return the differences, by the column's definition."""
    assert {name: rows.keys() for name, rows in changed.items()} == {
        name: rows.keys() for name, rows in read.items()
    }
    return {
        names[table, column]: (value, read[table][key][column])
        for table, rows in changed.items()
        for key, row in rows.items()
        for column, value in row.items()
        if column != "id" and value != read[table][key][column]
    }


class View:
    """A consumer's rows by key: the rows of a table that is resent are dropped first."""

    def __init__(self, table: str) -> None:
        """Begin without rows."""
        self.table = table
        self.rows: dict[Any, dict[str, Any]] = {}
        self.versions: dict[Any, int] = {}
        self.resent: list[int] = []
        self.reloads = 0

    def read(self, directory: Path) -> View:
        """Read the whole log of a pipeline, of closed segments."""
        with segments_of(directory) as segments:
            for segment in segments:
                for piece in events_of(
                    segment, takes=lambda _: True, gsn_after=0, keep_binary=False
                ):
                    self._clear_rows(piece.markers_before)
                    for event in piece.events:
                        if event.table == self.table:
                            self._take(event)
        return self

    def _clear_rows(self, markers: Any) -> None:
        for marker in markers:
            if self.table in {".".join(table) for table in marker.tables}:
                self.rows.clear()
                self.reloads += marker.kind is MarkerKind.RELOAD

    def _take(self, event: Any) -> None:
        assert event.version > self.versions.get(event.key, 0), "a later event has a higher version"
        self.versions[event.key] = event.version
        if event.resent:
            assert event.op == "I"
            self.resent.append(event.gsn)
        if event.value is None:
            self.rows.pop(event.key, None)
        else:
            self.rows[event.key] = {**self.rows.get(event.key, {}), **event.value}


def ask(directory: Path, *names: str, number: int = 1) -> None:
    """Request that the rows of these tables be resent."""
    requests = TableRequests(
        serial=number,
        tables=tuple(
            TableRequest(table=TableName(*name.split(".")), resend_id=number) for name in names
        ),
    )
    (directory / "state").mkdir(exist_ok=True)
    StateFile(directory / "state" / REQUESTS_FILE, TableRequests).save(requests)


def answers(directory: Path) -> dict[str, ResendAnswer]:
    """Return the extractor's answers, by table."""
    found = StateFile(directory / "state" / CAPTURED_FILE, CaptureAnswers).load()
    return {str(answer.table): answer for answer in (found or CaptureAnswers()).resent}
