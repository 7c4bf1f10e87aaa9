"""Tables that could not be applied and were left behind, so that the others continue.

With `onTableError = "isolate"` an error that names a table removes that table from the batches at
its current position. A row of `wirekite_apart` records that (`load/table_sync.py`), and a file
below state/ has the reason, for displays. A copy brings the rows back (`penstock table resync`).
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
    """Reason why a table was left behind."""

    table: TableName
    code: str
    error: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolations:
    """All tables that were left behind, including those that are back by now."""

    tables: tuple[Isolation, ...] = ()


def _state_file(state_directory: Path, files: Files) -> StateFile[Isolations]:
    return StateFile(state_directory / ISOLATED_FILE, Isolations, files=files)


def read_isolations(state_directory: Path, files: Files = REAL_FILES) -> dict[TableName, Isolation]:
    """Return the isolations by source table. Raises CheckpointCorrupt."""
    found = _state_file(state_directory, files).load() or Isolations()
    return {one.table: one for one in found.tables}


class BrokenCopies:
    """Tables that a bulk load leaves behind, each with the error of one of its chunks."""

    def __init__(self, *, isolates: bool) -> None:
        """Begin without any. isolates: whether tables are left behind at all."""
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
        """Add the keys of all tables at once, or table by table if that fails."""
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
    """Options of the loader that isolation needs."""

    @property
    def isolates(self) -> bool:
        """Return whether tables are left behind at all."""
        ...

    @property
    def state_directory(self) -> Path:
        """Return the directory in which the reasons are stored."""
        ...

    @property
    def change_file_extension(self) -> str:
        """Return the file extension of segments."""
        ...

    @property
    def namespaces(self) -> Mapping[str, str]:
        """Return the target schema of each source schema."""
        ...


class BrokenTables:
    """Tables to leave behind next, each with its error. Only the loader's thread uses it."""

    def __init__(self, options: Isolating, files: Files = REAL_FILES) -> None:
        """Begin without any."""
        self.errors: dict[TableName, PenstockError] = {}
        self._options = options
        self._files = files

    def learn(
        self, error: PenstockError, known: Iterable[TableName], ahead: Iterable[SegmentFile]
    ) -> bool:
        """Return whether an error is about one table of these, or in these segments, and is the
        first.

        Such a table is left behind next.
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
        """Record the reason, before the target records the isolation. Raises DiskFull,
        FileFailed.
        """
        known = read_isolations(self._options.state_directory, self._files)
        for table, error in self.errors.items():
            code = str(error.as_dict()["code"])
            known[table] = Isolation(table=table, code=code, error=error.message, hint=error.hint)
        file = _state_file(self._options.state_directory, self._files)
        file.save(Isolations(tables=tuple(known.values())))

    def take(self) -> list[PenstockError]:
        """Return the errors and forget them, after the tables were left behind."""
        errors = list(self.errors.values())
        self.errors.clear()
        return errors


def table_of(
    error: PenstockError, tables: Iterable[TableName], namespaces: Mapping[str, str]
) -> TableName | None:
    """Return the source table that an error names, by its source or target name; None if it names
    none.
    """
    said = error.fields.get("table")
    named = [one for one in tables if said in (str(one), str(target_name(one, namespaces)))]
    return named[0] if len(named) == 1 else None
