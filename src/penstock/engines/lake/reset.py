"""Things of a pipeline in a lake, and their removal: the part `leftovers`.

These are the folder of penstock's state, the table of batches and, on request, tables. The table of
batches and the folder are removed last, so that a reset that was cut short can be repeated. Not
here: the decision to remove them (`penstock.control.run.reset`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import Catalogue, Commit, LakeFormat, LakeTable, Mark
from penstock.engines.lake.history_shape import history_name, is_history
from penstock.engines.lake.known_tables import decode_record
from penstock.engines.lake.own_java import keep_java
from penstock.engines.lake.state import LakeState
from penstock.engines.lake.storage import Folder, file_system, path_in
from penstock.engines.lake.url import parse_url
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.ports.reset import Leftovers, TargetReset, names_of

_DROP, _EMPTY, _FOLDER = "drop table ", "delete from ", "rm -r "
_NAME = re.compile(r"`((?:[^`]|``)*)`\.`((?:[^`]|``)*)`\Z")


class LakeReset(TargetReset):
    """Removal of a pipeline's things in a lake."""

    def __init__(self, table_format: LakeFormat) -> None:
        """Keep the format."""
        self._format = table_format

    def leftovers(self, url: str, /, *, tables: Collection[TableName] | None) -> Leftovers:
        """Return what the lake holds of a pipeline. Without tables no JVM is needed."""
        lake = parse_url(url)
        folder = Folder(lake.state, lake.s3)
        log = LakeState(folder).read_log()
        has_state = next(iter(folder.names()), None) is not None
        removals: list[Removal] = []
        if tables is not None:
            remembered = {row.target for row in LakeState(folder).read_records().values()}
            removals += _removals_of(self._catalogue(url), {*tables, *remembered})
            removals += self._remove_histories(url, {*tables, *remembered})
        if has_state:
            removals.append(
                Removal(
                    what=f"penstock's state in {lake.state}, and the table {BATCHES}",
                    statements=(_DROP + _quote(BATCHES), _FOLDER + lake.state),
                )
            )
        return Leftovers(log_id="" if log is None else log.log_id, removals=tuple(removals))

    def _remove_histories(self, url: str, tables: Collection[TableName]) -> Iterator[Removal]:
        """Yield how histories of these tables are removed."""
        catalogue = self._catalogue(url)
        found = [
            name
            for name in sorted(map(history_name, tables))
            if (table := catalogue.find(name)) is not None
            and is_history(table.snapshot(refresh=True).record)
        ]
        if found:
            yield Removal(
                what=f"histories of tables: {names_of(found)}",
                statements=tuple(_DROP + _quote(name) for name in found),
            )

    def plan_emptying(self, url: str, tables: Collection[TableName], /) -> tuple[Removal, ...]:
        catalogue = self._catalogue(url)
        there = [table for name in sorted(set(tables)) if (table := catalogue.find(name))]
        return tuple(_emptying([table.name for table in there]))

    def remove(self, url: str, removal: Removal, /) -> None:
        lake = parse_url(url)
        statements = list(removal.statements)
        if any(not one.startswith(_FOLDER) for one in statements):
            catalogue = self._catalogue(url)
            for statement in statements:
                _run(catalogue, statement)
        if any(one.startswith(_FOLDER) for one in statements):
            storage = file_system(lake.state, lake.s3)
            storage.delete_dir_contents(path_in(lake.state), missing_dir_ok=True)
            if lake.is_local:
                storage.delete_dir(path_in(lake.state))

    def _catalogue(self, url: str) -> Catalogue:
        return self._format.open(url, keep_java(url, parse_url(url).class_path), {})


def _removals_of(catalogue: Catalogue, names: Collection[TableName]) -> Iterator[Removal]:
    """Yield how existing tables are removed: those that penstock created are dropped."""
    there = [table for name in sorted(names) if (table := catalogue.find(name)) is not None]
    made = [table.name for table in there if _is_made(table)]
    if made:
        yield Removal(
            what=f"tables that penstock created: {names_of(made)}",
            statements=tuple(_DROP + _quote(name) for name in made),
        )
    yield from _emptying([table.name for table in there if table.name not in made])


def _emptying(names: Collection[TableName]) -> Iterator[Removal]:
    if names:
        yield Removal(
            what=f"rows of {names_of(names)}",
            statements=tuple(_EMPTY + _quote(name) for name in names),
        )


def _is_made(table: LakeTable) -> bool:
    record = decode_record(table.snapshot(refresh=True).record, table.name)
    return record is not None and record.made


def _run(catalogue: Catalogue, statement: str) -> None:
    found = _NAME.search(statement)
    if found is None:
        return
    name = TableName(*(part.replace("``", "`") for part in found.groups()))
    if statement.startswith(_DROP):
        catalogue.drop(name)
    elif (table := catalogue.find(name)) is not None:
        version = table.snapshot(refresh=True).version
        mark = Mark(log_id=f"reset/{version}")
        table.commit(
            Commit(base_version=version, removes_all=True, mark=mark, record="", operation="reset")
        )


def _quote(name: TableName) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in name)
