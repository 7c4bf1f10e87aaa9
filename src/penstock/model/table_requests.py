"""The operator's requests for single tables while a pipeline runs, and capture's answers.

Two files below state/, each replaced whole by one side alone: `wishes.json` by the commands
`penstock table ...`, `captured.json` by the extractor, which answers the requests that concern it.
The loader's answer is in the target (`ports.table_sync`). A request says how a table shall be, not
what to do: it may be carried out twice, and one that was not carried out yet is found at the next
start. Not here: making requests (`control.table_requests`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.model.table import TableName

REQUESTS_FILE = "wishes.json"
CAPTURED_FILE = "captured.json"


class Capture(StrEnum):
    """Whether a table's changes go into the log. Values are kept in files."""

    FILE = "file"  # as the pipeline file says
    ADDED = "added"
    REMOVED = "removed"
    LEFT = "left"  # new, a pattern takes it in, and it is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """How one table shall be.

    capture_id: number of the request that decided capture last. copy_id: number of the last request
    to have the table's rows copied again (add, resync); 0: none. replaces: rows that the target
    table holds before that copy may go. paused: its changes wait in the log. resend_id: number of
    the last request to put its rows into the log again; 0: none. code, error, hint: why it is left
    out.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequests:
    """All requests. serial: the number of the last one."""

    serial: int = 0
    tables: tuple[TableRequest, ...] = ()

    def of(self, table: TableName) -> TableRequest:
        """The request for a table; without one, that it be as the file says."""
        return next(
            (request for request in self.tables if request.table == table),
            TableRequest(table=table),
        )

    def with_request(self, request: TableRequest) -> TableRequests:
        """One more request, in place of what was asked for its table before."""
        others = tuple(other for other in self.tables if other.table != request.table)
        return replace(self, serial=self.serial + 1, tables=(*others, request))

    def without(self, table: TableName) -> TableRequests:
        """Remove the request for this table."""
        return replace(
            self, tables=tuple(request for request in self.tables if request.table != table)
        )

    def copied(self) -> frozenset[TableName]:
        """Tables whose rows are copied by request, and not by the bulk load."""
        return frozenset(request.table for request in self.tables if request.copy_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureAnswer:
    """What the extractor made of a request. capture_id: of the request.

    error: why it cannot be carried out (code, sentence, next command); all empty when it was.
    """

    table: TableName
    capture_id: int
    code: str = ""
    error: str = ""
    hint: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the request was carried out."""
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendAnswer:
    """What the extractor made of a request to send a table's rows again: all are in the log, or
    error says why not.
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
        """The answer for a table, or None."""
        return next((answer for answer in self.tables if answer.table == table), None)

    def is_done(self, request: TableRequest) -> bool:
        """Whether capture is as requested; always so for what the file says."""
        answer = self.of(request.table)
        return request.capture_id == 0 or (
            answer is not None and answer.capture_id == request.capture_id and answer.is_done
        )

    def refuses(self, request: TableRequest) -> bool:
        """Whether this request was tried and cannot be carried out."""
        answer = self.of(request.table)
        return answer is not None and answer.capture_id == request.capture_id and not answer.is_done

    def with_answer(self, answer: CaptureAnswer) -> CaptureAnswers:
        """One more answer, in place of the table's before."""
        others = tuple(other for other in self.tables if other.table != answer.table)
        return replace(self, tables=(*others, answer))

    def resend_of(self, request: TableRequest) -> ResendAnswer | None:
        """The answer to a request to send rows again; None: none yet, or nothing was asked."""
        return next(
            (
                answer
                for answer in self.resent
                if answer.table == request.table and answer.resend_id == request.resend_id
            ),
            None,
        )

    def with_resend(self, answer: ResendAnswer) -> CaptureAnswers:
        """One more answer to such a request, in place of the table's before."""
        others = tuple(other for other in self.resent if other.table != answer.table)
        return replace(self, resent=(*others, answer))

    def open_resends(self, requests: Iterable[TableRequest]) -> list[TableRequest]:
        """Requests to send rows again that are not answered."""
        return [
            request for request in requests if request.resend_id and self.resend_of(request) is None
        ]

    def open(self, requests: Iterable[TableRequest]) -> list[TableRequest]:
        """Requests about capture that nobody has tried to carry out."""
        return [
            request
            for request in requests
            if request.capture_id
            and (
                (answer := self.of(request.table)) is None
                or answer.capture_id != request.capture_id
            )
        ]
