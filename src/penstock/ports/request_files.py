"""Requests about capture as an engine reads them, and its answers as it keeps them."""

from __future__ import annotations

import structlog

from penstock.model import PenstockError
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    CaptureAnswer,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.source import StateFiles

logger = structlog.get_logger()


class RequestFiles:
    """The two state files. Used by the extractor's thread."""

    def __init__(self, state: StateFiles) -> None:
        """Nothing is read yet."""
        self._state = state

    def read(self) -> tuple[TableRequests, CaptureAnswers]:
        """The requests, and the answers to them. Raises CheckpointCorrupt."""
        requests = self._state.load(REQUESTS_FILE, TableRequests) or TableRequests()
        return requests, self._state.load(CAPTURED_FILE, CaptureAnswers) or CaptureAnswers()

    def answer(self, request: TableRequest, error: PenstockError | None) -> None:
        """Keep the answer to a request; error: why it is refused."""
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
