"""The target's table that a topic or a path names; the target's tables are kept for a minute."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.codec.changefeed import PayloadInvalid
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.staging import Group, StagedTable, TargetCatalog, group_name

KEPT_S = 60.0
ASKED_AGAIN_S = 1.0  # shortest time between questions about a missing table
PARTS_MAX = 3
_NO_TABLES = "the target has no such schema, or none of its tables"
_HINT = (
    "Create it in the target, or make the feed without it; the path of the feed's URL names the "
    "target's database and schema."
)
_PART = re.compile(r'"(?:[^"]|"")*"|[^."]*')


class TableUnknown(PenstockError):
    """A changefeed sends a table that the target does not have."""

    code = "ST08"


@dataclass(frozen=True, slots=True)
class _Known:
    tables: Mapping[str, tuple[str, ...]]
    folded: Mapping[str, str]
    read_s: float


class TargetTables:
    """Tables of each target schema, as the target last reported. Any thread may ask."""

    def __init__(
        self,
        catalog: TargetCatalog,
        clock: Clock = REAL_CLOCK,
        *,
        is_source: Callable[[Group, str], bool] = lambda _group, _name: False,
    ) -> None:
        """Prepare. is_source: whether a name's mutations go to other tables: it need not exist."""
        self._is_source = is_source
        self.catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Group, _Known] = {}

    def find_table(self, group: Group, name: str) -> StagedTable:
        """Return the table of this name: exact, or differing in case. Raises TableUnknown."""
        if not name:
            raise PayloadInvalid(
                "table name is empty: a line without topic",
                hint="Let the feed post to the schema, or give the table's name in the path.",
            )
        known = self._of(group, KEPT_S)
        if name not in known.tables and name.lower() not in known.folded:
            known = self._of(group, ASKED_AGAIN_S)
        found = name if name in known.tables else known.folded.get(name.lower())
        if found is None and self._is_source(group, name):
            return StagedTable(group, name)
        if found is None:
            schema = group_name(group)
            what = "" if known.tables else f": {_NO_TABLES}"
            raise TableUnknown(
                f"unknown table {schema}.{name}{what}",
                hint=_HINT,
                table=f"{schema}.{name}",
            )
        return StagedTable(group, found)

    def check_group(self, group: Group) -> None:
        """Raise TableUnknown if the target has no table in a schema."""
        if not (self._of(group, KEPT_S).tables or self._of(group, ASKED_AGAIN_S).tables):
            raise TableUnknown(
                f"unknown schema {group_name(group)}: {_NO_TABLES}",
                hint=_HINT,
                schema=group_name(group),
            )

    def key_columns(self, table: StagedTable) -> tuple[str, ...]:
        """Return the columns of a table's primary key."""
        return self._of(table.group, KEPT_S).tables.get(table.name, ())

    def of_topic(self, group: Group, topic: str) -> StagedTable:
        """Return the table that a topic names; its database and schema are those of the path.

        Raises TableUnknown, PayloadInvalid.
        """
        if topic in self._of(group, KEPT_S).tables:
            return StagedTable(group, topic)
        return self.find_table(group, relative_name(topic))

    def _of(self, group: Group, kept_s: float) -> _Known:
        with self._lock:
            known = self._known.get(group)
            if known is not None and self._clock.monotonic_s() - known.read_s < kept_s:
                return known
            tables = self.catalog.keys(group)
            folded: dict[str, str] = {}
            for name in sorted(tables):
                # Two names that differ only in case are found only exactly.
                folded[name.lower()] = "" if name.lower() in folded else name
            known = _Known(
                tables, {k: v for k, v in folded.items() if v}, self._clock.monotonic_s()
            )
            if tables or group in self._known:  # made-up paths are not remembered
                self._known[group] = known
            return known


def relative_name(topic: str) -> str:
    """Return the last of one to three parts, each perhaps in quotes. Raises PayloadInvalid."""
    parts: list[str] = []
    place = 0
    while True:
        match = _PART.match(topic, place)
        text = match[0] if match is not None else ""
        parts.append(text[1:-1].replace('""', '"') if text.startswith('"') else text)
        place += len(text)
        if place == len(topic):
            break
        if topic[place] != "." or len(parts) == PARTS_MAX:
            raise PayloadInvalid(
                f"could not decode payload: topic {topic!r} is not the name of a table",
                hint="Name the topic like the table, or [database.][schema.]table.",
            )
        place += 1
    return parts[-1]
