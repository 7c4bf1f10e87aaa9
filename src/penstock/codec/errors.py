"""Errors in bytes and values, shared by all engines."""

from __future__ import annotations

from penstock.model import PenstockError


class CellUnfit(PenstockError):
    """A value cannot be written for the target, which lacks such a text or encoding.

    fields: row, counted from 1 within the chunk, column, counted from 0, and reason.
    """

    code = "DC71"
    retry = "operator"


class DecodeError(PenstockError):
    """Bytes from a server that break its protocol; nothing is skipped or guessed.

    `offset` is the place in the block (or message body) that was given; `fields` also has
    `table`, `column` or `source_id` where known. Never holds row values.
    """

    code = "DC01"
    retry = "operator"

    @property
    def offset(self) -> int:
        """Byte offset in the bytes that were given to the decoder."""
        return int(self.fields["offset"])


class TextBroken(PenstockError):
    """A server sent a row for a bulk load that breaks its protocol."""

    code = "DC70"
    retry = "backoff"


def unfit(row: int, column: int, reason: str) -> CellUnfit:
    """Return the error for a value that cannot be written."""
    return CellUnfit(
        f"row {row}, column {column + 1} of a chunk: {reason}",
        hint="Change the value in the source, or leave the table out of [source] tables.",
        row=row,
        column=column,
        reason=reason,
    )
