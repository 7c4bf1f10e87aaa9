"""Wishes about capture as an engine reads them, and its answers as it keeps them.

Not here: carrying them out (the engines' `captures.py`).
"""

from __future__ import annotations

import structlog

from penstock.model import PenstockError
from penstock.model.wishes import (
    CAPTURED_FILE,
    WISHES_FILE,
    CaptureAnswer,
    CaptureAnswers,
    TableWish,
    TableWishes,
)
from penstock.ports.source import StateFiles

logger = structlog.get_logger()


class WishFiles:
    """The two state files. Used by the extractor's thread."""

    def __init__(self, state: StateFiles) -> None:
        """Nothing is read yet."""
        self._state = state

    def read(self) -> tuple[TableWishes, CaptureAnswers]:
        """What is wished, and what was made of it. Raises CheckpointCorrupt."""
        wishes = self._state.load(WISHES_FILE, TableWishes) or TableWishes()
        return wishes, self._state.load(CAPTURED_FILE, CaptureAnswers) or CaptureAnswers()

    def answer(self, wish: TableWish, error: PenstockError | None) -> None:
        """Keep what was made of a wish; error: what stands against it."""
        said = CaptureAnswer(table=wish.table, capture_id=wish.capture_id)
        if error is not None:
            said = CaptureAnswer(
                table=wish.table,
                capture_id=wish.capture_id,
                code=error.code,
                error=error.message,
                hint=error.hint,
            )
            logger.warning("wish refused", table=str(wish.table), error=error.message)
        else:
            logger.info("wish carried out", table=str(wish.table), capture=str(wish.capture))
        _, answers = self.read()
        self._state.save(CAPTURED_FILE, answers.with_answer(said))
