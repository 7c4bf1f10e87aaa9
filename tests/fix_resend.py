"""A consumer's view of a table from the log's events, and requests to send rows again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fix_extract import segments_of
from penstock.consume import events_of
from penstock.host import checkpoint
from penstock.model import MarkerKind, TableName
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    CaptureAnswers,
    ResendAnswer,
    TableRequest,
    TableRequests,
)


class View:
    """Rows by key, as a consumer keeps them: a table that is sent again is forgotten first."""

    def __init__(self, table: str) -> None:
        """Nothing is read yet."""
        self.table = table
        self.rows: dict[Any, dict[str, Any]] = {}
        self.versions: dict[Any, int] = {}
        self.resent: list[int] = []
        self.reloads = 0

    def read(self, directory: Path) -> View:
        """The whole log of a pipeline, of closed segments."""
        with segments_of(directory) as segments:
            for segment in segments:
                for piece in events_of(
                    segment, takes=lambda _: True, gsn_after=0, keep_binary=False
                ):
                    self._emptied(piece.markers_before)
                    for event in piece.events:
                        if event.table == self.table:
                            self._take(event)
        return self

    def _emptied(self, markers: Any) -> None:
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
    """Request that the rows of these tables be sent again."""
    requests = TableRequests(
        serial=number,
        tables=tuple(
            TableRequest(table=TableName(*name.split(".")), resend_id=number) for name in names
        ),
    )
    (directory / "state").mkdir(exist_ok=True)
    checkpoint.save(directory / "state" / REQUESTS_FILE, requests)


def answers(directory: Path) -> dict[str, ResendAnswer]:
    """What the extractor answered, by table."""
    found = checkpoint.load(directory / "state" / CAPTURED_FILE, CaptureAnswers)
    return {str(answer.table): answer for answer in (found or CaptureAnswers()).resent}
