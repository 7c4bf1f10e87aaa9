"""A value that a target's text form cannot hold, whichever engine writes it."""

from __future__ import annotations

from penstock.model import PenstockError


class CellUnfit(PenstockError):
    """A value cannot be written for the target: it has no such text, or not in this encoding.

    fields: row, counted from 1 within the chunk, column, counted from 0, and reason.
    """

    code = "DC71"
    retry = "operator"
