"""Kind of a DDL statement of a captured table: what it means for the rows that the log has. Pure.

LogMiner shows a statement as it was typed, often with a semicolon; a table that goes to the recycle
bin has ` AS "BIN$.."` behind it. The table is that of the row, so its name is not read here.
"""

from __future__ import annotations

import re
from enum import Enum


class Ddl(Enum):
    """Kind of a statement."""

    TRUNCATE = "all rows are gone"
    DROP = "the table is gone, or has another name"
    UNLOGGED = "rows come or go without redo"
    OTHER = "at most the columns change"


_SPACE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)+"
_NAME = r'(?:"[^"]+"|[^\s".;]+)'
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_START = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
_TRUNCATE = re.compile(rf"{_START}truncate{_SPACE}table\b", re.IGNORECASE | re.DOTALL)
_DROP = re.compile(rf"{_START}drop{_SPACE}table\b", re.IGNORECASE | re.DOTALL)
_RENAME = re.compile(rf"{_START}rename{_SPACE}", re.IGNORECASE | re.DOTALL)
_ALTER = re.compile(
    rf"{_START}alter{_SPACE}table{_SPACE}{_TABLE}{_SPACE}(?P<action>.*)", re.IGNORECASE | re.DOTALL
)
_RENAME_TO = re.compile(rf"rename{_SPACE}to\b", re.IGNORECASE | re.DOTALL)
_PARTITION = re.compile(
    rf"(?:truncate|drop|exchange){_SPACE}(?:sub)?partition", re.IGNORECASE | re.DOTALL
)


def kind_of_ddl(text: str) -> Ddl:
    """Return what a statement of a user means for the table of its row."""
    if _TRUNCATE.match(text):
        return Ddl.TRUNCATE
    if _DROP.match(text) or _RENAME.match(text):
        return Ddl.DROP
    match = _ALTER.match(text)
    if match is None:
        return Ddl.OTHER
    action = match["action"]
    if _RENAME_TO.match(action):
        return Ddl.DROP
    return Ddl.UNLOGGED if _PARTITION.match(action) else Ddl.OTHER
