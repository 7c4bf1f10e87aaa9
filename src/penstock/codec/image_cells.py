"""Cells of the images by which rows are compared, where penstock itself prints the texts. Pure.

A text template names the kind, as `codec.types.mapping.Form` returns it, or a choice:
`case when always then ROUNDED_30 {} else NUMBER {} end`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.types.from_sqlserver import ROUNDED, WITHOUT_NUL
from penstock.codec.types.mapping import Kind

EMPTY_AS_NULL = "EMPTY_AS_NULL"
"""Change of texts and bytes that are compared with a target that has NULL for an empty one."""
UNFIT_AS_NULL = "UNFIT_AS_NULL"
"""Change of values that are compared with a target that has NULL for one it cannot hold."""
_NUL = "\0"
_NULLED = re.compile(r"case when empty then null else (.*) end", re.DOTALL)
_CHOSEN = re.compile(r"case when \w+ then (\w+) \{\} else .* end", re.DOTALL)
_LAST = re.compile(r"\b([A-Z_]+) \{\}(?: end)*\Z")


class ImageCell(NamedTuple):
    """Column of an image.

    Attributes:
        name: of the column.
        kind: name of a Kind.
        is_any, is_long, is_bytes: as in `ports.verify.ComparedCell`.
        change: WITHOUT_NUL, EMPTY_AS_NULL, UNFIT_AS_NULL, or ROUNDED with a scale; empty for none.
    """

    name: str
    kind: str
    is_any: bool
    is_long: bool
    is_bytes: bool
    change: str = ""


def parse_template(text: str) -> tuple[str, str]:
    """Return the kind's name and the change of a template.

    A choice whose condition is a server's stays with the kind of the other values.
    """
    if nulled := _NULLED.fullmatch(text):
        return parse_template(nulled[1])[0], EMPTY_AS_NULL
    match = _CHOSEN.fullmatch(text)
    word = match[1] if match is not None else text.partition(" ")[0]
    if word == WITHOUT_NUL:
        return Kind.TEXT.name, word
    if word.startswith(ROUNDED):
        return Kind.NUMBER.name, word
    if word == "case" and (last := _LAST.search(text)):
        return last[1], UNFIT_AS_NULL if " then null else " in text else ""
    return word, ""


def change_texts(values: Any, change: str) -> Any:
    """Return texts or bytes with a change that is one of them; others are left as they are."""
    if change == WITHOUT_NUL:
        return pc.replace_substring(values, _NUL, "")
    if change != EMPTY_AS_NULL:
        return values
    is_empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), False)
    return pc.if_else(is_empty, pa.scalar(None, values.type), values)
