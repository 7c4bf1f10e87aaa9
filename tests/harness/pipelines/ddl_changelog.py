"""FlexCDC beside random histories, and the comparison of a changelog with its table."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from harness.pipelines.ddl_child import Child
from harness.pipelines.ddl_processes import Mark, Processes
from harness.pipelines.ddl_script import Statement, Step
from harness.pipelines.ddl_sides import (
    Row,
    Side,
    kind_of_value,
    neutral_row,
    show_row,
    without_zero_dates,
)
from harness.pipelines.ddl_types import POSTGRES
from penstock.consume.flexcdc.captured import changelog_name
from penstock.control.consumers.flexcdc import setup
from penstock.model import TableName
from penstock.model.sections import ChangelogNames

DATABASE = "flexviews"
NAMES = ChangelogNames.PLAIN  # with these, errors name the history
SECTION = {
    "auto_changelog": True,
    "sleep_maximum": 0.5,
    "database": DATABASE,
    "changelog_names": str(NAMES),
}
GSN, DML = "fv$gsn", "dml_type"


class Changelogs(Processes):
    """FlexCDC that follows a pipeline's log, its changelogs in the target's server."""

    name = "flexcdc"

    def __init__(self, file: Path, target: Side, dice: random.Random) -> None:
        """Set up FlexCDC; file is that of the pipeline, whose log has not begun."""
        words = ("flexcdc", "--ini", str(file), "run")
        super().__init__([Child("flexcdc", file, words)], dice)
        self._target = target
        setup(file, force=False)

    def finish(self) -> None:
        """Do nothing, as there is nothing more to start."""

    def has_passed(self, fence: str, number: int) -> bool:
        """Return whether a row of the table of fences has an image."""
        return self._gsn_of(Mark(fence, number)) is not None

    def differences(self, source: Side, schema: str, table: str, mark: Mark | None) -> list[str]:
        """Return the differences of the changelog from the source."""
        return changelog_differences(
            source, self._target, schema, table, since=self._gsn_of(mark) if mark else None
        )

    def _gsn_of(self, mark: Mark) -> int | None:
        """Return the number of the image of a row of the table of fences; None if there is none."""
        fence, number = mark.fence, mark.number
        log = changelog_of(*fence.split("."))
        name = f'"{GSN}"' if self._target.kind == POSTGRES else f"`{GSN}`"
        try:
            found = self._target.run(f"select {name} from {DATABASE}.{log} where id = {number}")
        except (psycopg.Error, pymysql.Error):
            return None
        return int(found[0][0]) if found else None


def changelog_of(schema: str, table: str) -> str:
    """Return the name of a table's changelog."""
    return changelog_name(TableName(schema, table), NAMES)


def changelog_differences(
    source: Side, target: Side, schema: str, table: str, *, since: int | None
) -> list[str]:
    """Return differences of keys' last images from the source, if a user can expect equality.

    The last image of a key says whether the row exists, and has its values if it followed the last
    DDL that concerns the table. Once the table was emptied, or sent again, all rows have images.
    Only tables whose key is one column are compared: no history replaces the first one.

    since: the number of an image after that DDL; None: there was none.
    """
    ours, log = source.facts(schema, table), changelog_of(schema, table)
    if ours is None or len(ours.key) != 1:
        return []
    ours = ours.without_unsent()
    theirs = target.facts(DATABASE, log)
    (key,) = ours.key
    if theirs is None or key not in theirs.types:
        return []
    kinds = {
        name: _shared_kind(source, of, target, theirs.types.get(name))
        for name, of in ours.types.items()
    }
    place = list(kinds).index(key)
    mine = source.texts(schema, table, kinds)
    if target.kind == POSTGRES != source.kind:
        mine = [without_zero_dates(kinds, row) for row in mine]
    rows = {row[place]: row for row in (neutral_row(list(kinds.values()), one) for one in mine)}
    shared = {name: kind for name, kind in kinds.items() if name in theirs.types}
    images = read_images(target, log, shared)
    emptied = max((gsn for gsn, dml, _ in images if dml == 0), default=None)
    last: dict[Any, tuple[int, int, Row]] = {}
    at = list(shared).index(key)
    for gsn, dml, row in images:
        if dml == 0 or (emptied is not None and gsn <= emptied):
            continue
        if row[at] is None:
            return []  # the key had another name
        last[row[at]] = (gsn, dml, row)
    found = [] if emptied is None else [f"lacks {key}={one!r}" for one in rows.keys() - last.keys()]
    for value, (gsn, dml, row) in last.items():
        if (dml > 0) != (value in rows):
            found.append(f"{'has' if dml > 0 else 'lacks'} {key}={value!r} (image {gsn})")
        elif dml > 0 and (since is None or gsn > since):
            found += _value_differences(kinds, shared, rows[value], row)
    return [f"flexcdc: {table}: {line}" for line in sorted(found)[:8]]


def _shared_kind(source: Side, of_type: str, target: Side, kept: str | None) -> str:
    """Return the rule for values of a column; a changelog keeps a wider type that it once had.

    kept: the changelog's type, None if it has no such column.
    """
    kind = "int" if of_type.endswith("posint") else kind_of_value(source.kind, of_type)
    wider = kind if kept is None else kind_of_value(target.kind, kept)
    return wider if (kind, wider) == ("int", "decimal") else kind


def read_images(target: Side, log: str, kinds: dict[str, str]) -> list[tuple[int, int, Row]]:
    """Return number, kind and row of each image, in order; the old row first for one number."""
    read = target.texts(DATABASE, log, {GSN: "int", DML: "int", **kinds})
    images = [
        (
            int(str(gsn)),
            int(str(dml)),
            neutral_row(list(kinds.values()), _without_zeros(kinds, row)),
        )
        for gsn, dml, *row in read
    ]
    return sorted(images, key=lambda image: image[:2])


def _without_zeros(kinds: dict[str, str], row: Sequence[Any]) -> Row:
    """Return a row whose truth values have no digits, as a column that was a decimal keeps them."""
    return tuple(
        re.sub(r"\.0+$", "", value) if kind == "bool" and isinstance(value, str) else value
        for kind, value in zip(kinds.values(), row, strict=True)
    )


def _value_differences(
    kinds: dict[str, str], shared: dict[str, str], ours: Row, theirs: Row
) -> list[str]:
    if len(shared) < len(kinds):
        return [f"columns {sorted(kinds)} became {sorted(shared)}"]
    if ours == theirs:
        return []
    return [f"lacks {show_row(kinds, ours)}", f"has {show_row(shared, theirs)}"]


# -- complete old rows


def with_full_images(step: Step) -> Step:
    """Return a step of PostgreSQL whose tables send complete old rows."""
    statements: list[Statement] = []
    for one in step.statements:
        actions = tuple(a.replace("identity default", "identity full") for a in one.actions)
        head = one.head.replace("identity default", "identity full")
        statements.append(Statement(head, actions))
        words = head.partition("(")[0].split(" ", 2)
        if words[:2] == ["create", "table"]:
            name = words[2].strip()
            statements.append(Statement(f"alter table {name} replica identity full"))
    return replace(step, statements=tuple(statements))
