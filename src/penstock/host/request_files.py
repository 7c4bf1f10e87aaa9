"""Requests about capture as an engine reads them, and its answers as it keeps them."""

from __future__ import annotations

from dataclasses import replace

import structlog

from penstock.host.state_file import StateFiles
from penstock.model import PenstockError, TableName
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    CaptureAnswer,
    CaptureAnswers,
    ResendAnswer,
    TableRequest,
    TableRequests,
)

logger = structlog.get_logger()


class ResendRefused(PenstockError):
    """Rows of a table cannot be put into the log again: it does not exist, or is not captured."""

    code = "PS20"
    retry = "never"


class ResendCancelled(PenstockError):
    """Rows of a table were not put into the log again: something changed meanwhile."""

    code = "PS21"
    retry = "operator"


class RequestFiles:
    """The two state files of requests and answers. The extractor's thread uses them."""

    def __init__(self, state: StateFiles) -> None:
        """Keep the state's folder; read nothing yet."""
        self._state = state

    def read(self) -> tuple[TableRequests, CaptureAnswers]:
        """Return the requests, and the answers to them. Raises CheckpointCorrupt."""
        requests = self._state.load(REQUESTS_FILE, TableRequests) or TableRequests()
        return requests, self._state.load(CAPTURED_FILE, CaptureAnswers) or CaptureAnswers()

    def answer(self, request: TableRequest, error: PenstockError | None) -> None:
        """Store the answer to a request. error: why the request is refused."""
        said = CaptureAnswer(table=request.table, capture_id=request.capture_id)
        if error is not None:
            said = CaptureAnswer(
                table=request.table,
                capture_id=request.capture_id,
                code=error.code,
                error=error.message,
                hint=error.hint,
            )
            logger.warning("table request refused", table=str(request.table), error=error.message)
        else:
            logger.info(
                "table request carried out", table=str(request.table), capture=str(request.capture)
            )
        _, answers = self.read()
        self._state.save(CAPTURED_FILE, answers.with_answer(said))

    def answer_resend(self, request: TableRequest, error: PenstockError | None) -> None:
        """Keep the answer to a request to send rows again; error: why they are not in the log.

        A request that came with a copy stays open if the rows can be read later: no operator waits
        for it who would repeat it.
        """
        is_passing = isinstance(error, ResendCancelled) or (error and error.retry == "backoff")
        if error is not None and request.comes_with_copy and is_passing:
            logger.info("rows will be sent later", table=str(request.table), error=error.message)
            return
        said = ResendAnswer(table=request.table, resend_id=request.resend_id)
        if error is not None:
            said = replace(said, code=error.code, error=error.message, hint=error.hint)
            logger.warning("rows not sent again", table=str(request.table), error=error.message)
        else:
            logger.info("rows sent again", table=str(request.table))
        _, answers = self.read()
        self._state.save(CAPTURED_FILE, answers.with_resend(said))


def resend_cancelled(table: TableName, start: int, current: int) -> ResendCancelled:
    """Return the error for a table that changed its shape or place meanwhile. Numbers: versions."""
    return ResendCancelled(
        f"the resend was cancelled: {table} changed its shape or its place while its rows were "
        f"read, from version {start} to {current}",
        hint=f"Give the same command again for {table}: its rows come in the new shape.",
        table=str(table),
    )


def table_unknown(table: TableName) -> ResendRefused:
    """Return the error for a table that does not exist."""
    return ResendRefused(
        f"there is no table {table}",
        hint="Write names as schema.table, as the catalogue has them; penstock plan FILE lists "
        "those of the pipeline.",
        table=str(table),
    )


def table_not_captured(table: TableName, reader: str) -> ResendRefused:
    """Return the error for a table that is not captured. reader: the pipeline's way of reading."""
    return ResendRefused(
        f"{table} is not captured by {reader}: the change log has none of its changes",
        hint=f"Have it captured first: penstock table add FILE {table}",
        table=str(table),
    )
