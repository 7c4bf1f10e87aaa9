"""Apply partial JSON updates: a stored list of changes, applied to the previous document.

With binlog_row_value_options=PARTIAL_JSON an update contains, instead of a document, what was
replaced, inserted and removed in it, each with a path.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from penstock.codec.mysql.binary_json import parse_json
from penstock.codec.mysql.malformed import Malformed
from penstock.model.whole_number import parse_whole

_LEG = re.compile(r'\s*(?:\.\s*(?:"((?:[^"\\]|\\.)*)"|([^\s."\[\]*]+))|\[\s*([0-9]{1,10})\s*\])')

Leg = str | int


class DiffKind(IntEnum):
    """Kind of one change."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """One change. path: member names and array positions from the document's root."""

    kind: DiffKind
    path: tuple[Leg, ...]
    value: Any = None


def parse_path(text: str) -> tuple[Leg, ...]:
    """Return the steps of `$.name[3]."other name"`. Raises Malformed; wildcards are
    never stored.
    """
    if not text.startswith("$"):
        raise Malformed
    legs: list[Leg] = []
    at = 1
    while text[at:].strip():
        match = _LEG.match(text, at)
        if match is None:
            raise Malformed
        quoted, plain, index = match.groups()
        if index is not None:
            number = parse_whole(index, 2**32 - 1)
            if number is None:
                raise Malformed
            legs.append(number)
        elif quoted is not None:
            try:
                legs.append(json.loads(f'"{quoted}"', strict=False))
            except ValueError as error:
                raise Malformed from error
        else:
            legs.append(plain)
        at = match.end()
    return tuple(legs)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded number and where it ends."""
    if at >= len(data):
        raise Malformed
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None or at + 1 + size > len(data):
        raise Malformed
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _length(data, at)
    if at + length > len(data):
        raise Malformed
    return data[at : at + length], at + length


def parse_diffs(data: bytes) -> tuple[Diff, ...]:
    """Return the changes of one column, in order. Raises Malformed."""
    diffs = []
    at = 0
    while at < len(data):
        if data[at] > DiffKind.REMOVE:
            raise Malformed
        kind = DiffKind(data[at])
        path, at = _piece(data, at + 1)
        value = None
        if kind is not DiffKind.REMOVE:
            document, at = _piece(data, at)
            value = parse_json(document)
        try:
            steps = parse_path(path.decode())
        except UnicodeDecodeError as error:
            raise Malformed from error
        diffs.append(Diff(kind=kind, path=steps, value=value))
    return tuple(diffs)


def apply_diffs(document: Any, diffs: tuple[Diff, ...]) -> Any:
    """Return a document after changes; the given document stays unchanged.

    Raises Malformed if a change does not fit, because it was made for another document.
    """
    root = [deepcopy(document)]  # so that the root is an element like any other
    for diff in diffs:
        _apply(root, diff)
    return root[0]


def _apply(root: list[Any], diff: Diff) -> None:
    parent: Any = root
    last: Leg = 0
    for leg in diff.path:
        parent = _element(parent, last)
        last = leg
    if isinstance(last, int):
        _apply_in_array(parent, last, diff)
    elif isinstance(parent, dict):
        if (last in parent) == (diff.kind is DiffKind.INSERT):
            raise Malformed
        if diff.kind is DiffKind.REMOVE:
            del parent[last]
        else:
            parent[last] = diff.value
    else:
        raise Malformed


def _apply_in_array(parent: Any, index: int, diff: Diff) -> None:
    if not isinstance(parent, list):
        # The server takes a value that is not an array for an array of one.
        raise Malformed
    if diff.kind is DiffKind.INSERT:
        parent.insert(index, diff.value)  # behind the end: at the end, as the server does
    elif index >= len(parent):
        raise Malformed
    elif diff.kind is DiffKind.REPLACE:
        parent[index] = diff.value
    else:
        del parent[index]


def _element(parent: Any, leg: Leg) -> Any:
    if isinstance(leg, int):
        if isinstance(parent, list) and leg < len(parent):
            return parent[leg]
        raise Malformed
    if isinstance(parent, dict) and leg in parent:
        return parent[leg]
    raise Malformed
