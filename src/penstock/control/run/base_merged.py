"""The base of a merged log: the fold of the merged log itself, from its first transaction on.

The merged log has the rows of its logs' bases (`merge/beginning.py`), so nothing is read from
servers: a table is in the base, without files, as soon as a closed segment knows it, and compaction
does the rest. Not here: the times of this (`base_keeper.py`).
"""

from __future__ import annotations

from dataclasses import replace

from penstock.base.manifest import BaseTable, Manifest
from penstock.control.pipeline.servers import base_place
from penstock.host.state_file import StateFile
from penstock.load.base import BaseHole
from penstock.log.layout import list_segments
from penstock.log.segment import open_segment
from penstock.log.state import LogState
from penstock.merge.state import STATE_FILE, MergeState
from penstock.model import TableName
from penstock.ports.config import Config


def add_tables(config: Config, manifest: Manifest, log: LogState, seen: set[int]) -> Manifest:
    """Return the base with the tables that closed segments know; itself if none is new.

    seen: numbers of examined segments; new ones are added. Before the logs are of one moment
    the base has no tables.
    """
    if not manifest.tables and not _is_settled(config, log):
        return manifest
    place = base_place(config)
    known = {table.table for table in manifest.tables}
    added: list[BaseTable] = []
    for file in list_segments(place.links, place.extension):
        if file.number in seen or file.number < manifest.segment:
            continue
        with open_segment(file.path, extension=place.extension) as segment:
            for totals in segment.tables:
                name = TableName(totals.schema, totals.name)
                if name not in known:
                    known.add(name)
                    relation = segment.relation(totals.id)
                    added.append(
                        BaseTable(schema=name.schema, name=name.name, relations=(relation,))
                    )
        seen.add(file.number)
    if not added:
        return manifest
    tables = (*manifest.tables, *added)
    return replace(manifest, number=manifest.number + 1, tables=tables)


def _is_settled(config: Config, log: LogState) -> bool:
    """Return whether the closed segments reach the point where the states of the begin are one."""
    entries = StateFile(config.layout.state / STATE_FILE, list[MergeState]).load() or []
    return any(one.has_base and not one.settles_us and one.trx <= log.end.trx for one in entries)


def hole_in_merged(config: Config, error: BaseHole) -> BaseHole:
    """Return the same error with another hint: nothing else has what a merged log has lost."""
    return BaseHole(
        error.message,
        hint="A merged log is read from its beginning. Begin again: give the merge another name in "
        f"[pipeline] of {config.path.name}, and a directory of its own.",
        **error.fields,
    )
