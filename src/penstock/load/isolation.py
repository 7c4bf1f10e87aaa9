"""Tables that could not be applied and were left behind, so that the others flow on.

With `onTableError = "isolate"` an error that names a table takes that table out of the batches,
where its changes end: a row of `wirekite_apart` says so (`ports/table_sync.py`), and a file below
state/ says why, for displays. Rows come back by a copy (`penstock table resync`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.log.layout import SegmentFile
from penstock.log.segment import open_segment
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.target import target_name

logger = structlog.get_logger(__name__)

ISOLATED_FILE = "isolated.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Why a table was left behind."""

    table: TableName
    code: str
    error: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolations:
    """All tables that were left behind, also those that are back by now."""

    tables: tuple[Isolation, ...] = ()


def _state_file(state_directory: Path, files: Files) -> StateFile[Isolations]:
    return StateFile(state_directory / ISOLATED_FILE, Isolations, files=files)


def read_isolations(state_directory: Path, files: Files = REAL_FILES) -> dict[TableName, Isolation]:
    """By source table. Raises CheckpointCorrupt."""
    found = _state_file(state_directory, files).load() or Isolations()
    return {one.table: one for one in found.tables}


class BrokenCopies:
    """Tables that a bulk load leaves behind, each with the error that one of its chunks met."""

    def __init__(self, *, isolates: bool) -> None:
        """Begin without one. isolates: whether tables are left behind at all."""
        self.errors: dict[TableName, PenstockError] = {}
        self._isolates = isolates

    def leave(self, table: TableName, error: PenstockError) -> None:
        """Leave a table behind; raise the error if it is not about this table alone."""
        if not self._isolates or "table" not in error.fields or error.retry == "backoff":
            raise error
        if table not in self.errors:
            logger.warning("table is not loaded", table=str(table), reason=error.message)
            self.errors[table] = error

    def add_keys(
        self,
        add: Callable[[Sequence[TableDefinition]], None],
        definitions: Sequence[TableDefinition],
    ) -> None:
        """Add the keys of all tables at once, or of one after the other if that fails."""
        try:
            add(definitions)
        except PenstockError as error:
            if not self._isolates or error.retry == "backoff":
                raise
            for one in definitions:
                try:
                    add([one])
                except PenstockError as refused:
                    self.leave(one.name, refused)


class Isolating(Protocol):
    """What must be known of the loader's options."""

    @property
    def isolates(self) -> bool:
        """Whether tables are left behind at all."""
        ...

    @property
    def state_directory(self) -> Path:
        """Where the reasons are kept."""
        ...

    @property
    def change_file_extension(self) -> str:
        """Of segments."""
        ...

    @property
    def namespaces(self) -> Mapping[str, str]:
        """Source schema to target schema."""
        ...


class BrokenTables:
    """Tables that are to be left behind next, each with its error. Used by the loader's thread."""

    def __init__(self, options: Isolating, files: Files = REAL_FILES) -> None:
        """None yet."""
        self.errors: dict[TableName, PenstockError] = {}
        self._options = options
        self._files = files

    def learn(
        self, error: PenstockError, known: Iterable[TableName], ahead: Iterable[SegmentFile]
    ) -> bool:
        """Whether an error is about one table, of these or in these segments, and none before.

        Such a table is to be left behind.
        """
        if not self._options.isolates or "table" not in error.fields:
            return False
        tables = set(known)
        for file in ahead:
            with open_segment(file.path, extension=self._options.change_file_extension) as segment:
                tables |= {TableName(one.schema, one.name) for _, one in segment.relations()}
        table = table_of(error, sorted(tables), self._options.namespaces)
        if table is None or table in self.errors:
            return False
        self.errors[table] = error
        logger.warning("table is left behind", table=str(table), reason=error.message)
        return True

    def keep(self) -> None:
        """Record why, before the target says so. Raises DiskFull, FileFailed."""
        known = read_isolations(self._options.state_directory, self._files)
        for table, error in self.errors.items():
            code = str(error.as_dict()["code"])
            known[table] = Isolation(table=table, code=code, error=error.message, hint=error.hint)
        file = _state_file(self._options.state_directory, self._files)
        file.save(Isolations(tables=tuple(known.values())))

    def take(self) -> list[PenstockError]:
        """The errors, once the tables are left behind."""
        errors = list(self.errors.values())
        self.errors.clear()
        return errors


def table_of(
    error: PenstockError, tables: Iterable[TableName], namespaces: Mapping[str, str]
) -> TableName | None:
    """Which of these source tables an error is about, by its name here or there; None: none."""
    said = error.fields.get("table")
    named = [one for one in tables if said in (str(one), str(target_name(one, namespaces)))]
    return named[0] if len(named) == 1 else None
