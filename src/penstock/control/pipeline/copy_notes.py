"""Reports of the load process about the copies of single tables; for displays only.

Not here: making the copies (`run/table_copy.py`), which needs Spark.
"""

from __future__ import annotations

import msgspec

from penstock.host.files import REAL_FILES, Files
from penstock.model import TableName
from penstock.ports.config import Config

NOTES_NAME = "copies.json"


class CopyNote(msgspec.Struct, frozen=True, kw_only=True):
    """Report about a copy. code, error, hint: why it is stopped; empty if it is not."""

    table: TableName
    copy_id: int
    position: str = ""
    code: str = ""
    error: str = ""
    hint: str = ""


def read_notes(config: Config, files: Files = REAL_FILES) -> list[CopyNote]:
    """Return the last reports. Empty if no load process has run."""
    path = config.layout.run / NOTES_NAME
    if not files.exists(path):
        return []
    return msgspec.json.decode(files.read_whole(path), type=list[CopyNote])


def write_notes(config: Config, notes: list[CopyNote]) -> None:
    """Replace the reports."""
    REAL_FILES.make_directory(config.layout.run)
    REAL_FILES.replace(config.layout.run / NOTES_NAME, msgspec.json.encode(notes))
