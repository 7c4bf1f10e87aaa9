"""Operator's requests for single tables while a pipeline runs, and the answers of capture.

Two files below state/ are each replaced as a whole by one side alone: `wishes.json` by the
commands `penstock table ...`, `captured.json` by the extractor, which answers the requests that
concern it. The loader's answer is in the target (`load.table_sync`). A request says how a table
shall be, not what to do: it may be carried out twice, and an open request is found at the next
start. Not here: making requests (`control.pipeline.table_requests`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.model.table import TableName

REQUESTS_FILE = "wishes.json"
CAPTURED_FILE = "captured.json"


class Capture(StrEnum):
    """Decision whether a table's changes go into the log. Files keep the values."""

    FILE = "file"  # as the pipeline file says
    ADDED = "added"
    REMOVED = "removed"
    LEFT = "left"  # new, it matches a pattern, and it is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """Wanted state of one table.

    Attributes:
        capture_id: number of the last request that decided capture.
        copy_id: number of the last request to copy the table's rows again (add, resync); 0: none.
        replaces: rows that the target table holds before that copy may be deleted.
        paused: the table's changes wait in the log.
        resend_id: number of the last request to put the table's rows into the log again; 0: none.
        code: error code that says why the table is left out.
        error: message that says why.
        hint: next command.
    """

    table: TableName
    capture: Capture = Capture.FILE
    capture_id: int = 0
    copy_id: int = 0
    replaces: bool = False
    paused: bool = False
    resend_id: int = 0
    code: str = ""
    error: str = ""
    hint: str = ""

    @property
    def comes_with_copy(self) -> bool:
        """Return whether one request asked to copy the rows and to put them into the log."""
        return self.resend_id == self.copy_id != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequests:
    """All requests.

    Attributes:
        serial: number of the last request.
    """

    serial: int = 0
    tables: tuple[TableRequest, ...] = ()

    def of(self, table: TableName) -> TableRequest:
        """Return the request for a table; by default one that keeps to the pipeline file."""
        return next(
            (request for request in self.tables if request.table == table),
            TableRequest(table=table),
        )

    def with_request(self, request: TableRequest) -> TableRequests:
        """Return the requests with one more, which replaces an earlier one for its table."""
        others = tuple(other for other in self.tables if other.table != request.table)
        return replace(self, serial=self.serial + 1, tables=(*others, request))

    def without(self, table: TableName) -> TableRequests:
        """Return the requests without the one for this table."""
        return replace(
            self, tables=tuple(request for request in self.tables if request.table != table)
        )

    def list_copied(self) -> frozenset[TableName]:
        """Return the tables whose rows are copied by request, and not by the bulk load."""
        return frozenset(request.table for request in self.tables if request.copy_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureAnswer:
    """Answer of the extractor to a request about capture.

    Attributes:
        capture_id: number of the request.
        code: error code; empty if the request was carried out, like error and hint.
        error: why the request cannot be carried out.
        hint: next command.
    """

    table: TableName
    capture_id: int
    code: str = ""
    error: str = ""
    hint: str = ""

    @property
    def is_done(self) -> bool:
        """Return whether the request was carried out."""
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendAnswer:
    """Answer of the extractor to a request to send a table's rows again.

    All rows are in the log, or error says why not.
    """

    table: TableName
    resend_id: int
    code: str = ""
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureAnswers:
    """All answers, one of each kind per table."""

    tables: tuple[CaptureAnswer, ...] = ()
    resent: tuple[ResendAnswer, ...] = ()

    def of(self, table: TableName) -> CaptureAnswer | None:
        """Return the answer for a table, or None."""
        return next((answer for answer in self.tables if answer.table == table), None)

    def is_done(self, request: TableRequest) -> bool:
        """Return whether capture is as requested; true if the pipeline file decides."""
        answer = self.of(request.table)
        return request.capture_id == 0 or (
            answer is not None and answer.capture_id == request.capture_id and answer.is_done
        )

    def refuses(self, request: TableRequest) -> bool:
        """Return whether the extractor tried this request and cannot carry it out."""
        answer = self.of(request.table)
        return answer is not None and answer.capture_id == request.capture_id and not answer.is_done

    def with_answer(self, answer: CaptureAnswer) -> CaptureAnswers:
        """Return the answers with one more, which replaces the table's previous one."""
        others = tuple(other for other in self.tables if other.table != answer.table)
        return replace(self, tables=(*others, answer))

    def resend_of(self, request: TableRequest) -> ResendAnswer | None:
        """Return the answer to a request to send rows again; None if it is missing."""
        return next(
            (
                answer
                for answer in self.resent
                if answer.table == request.table and answer.resend_id == request.resend_id
            ),
            None,
        )

    def with_resend(self, answer: ResendAnswer) -> CaptureAnswers:
        """Return the answers with one more resend answer, in place of the table's previous one."""
        others = tuple(other for other in self.resent if other.table != answer.table)
        return replace(self, resent=(*others, answer))

    def open_resends(self, requests: Iterable[TableRequest]) -> list[TableRequest]:
        """Return the requests to send rows again that have no answer.

        Rows of a table that is not captured yet have to wait: changes made meanwhile would be
        missing after them.
        """
        return [
            request
            for request in requests
            if request.resend_id and self.resend_of(request) is None and self.is_done(request)
        ]

    def open(self, requests: Iterable[TableRequest]) -> list[TableRequest]:
        """Return the requests about capture that the extractor has not tried to carry out."""
        return [
            request
            for request in requests
            if request.capture_id
            and (
                (answer := self.of(request.table)) is None
                or answer.capture_id != request.capture_id
            )
        ]
