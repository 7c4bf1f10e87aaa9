"""Merge tables: created if missing, recreated if their shape changed, empty when a batch begins.

They are permanent heaps, since several workers fill one, each over a session of its own. Each
statement of DDL commits, so a table's stamp is written before the table is emptied: rows of a late
worker, and those of another loader, are seen by their stamps (`check_staged`). Not here: the choice
of rows (`load/job.py`) and applying them (`apply.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.target.claims import end_workers, is_used_elsewhere
from penstock.engines.oracle.target.layout import STAMP, MergeLayout
from penstock.engines.oracle.target.merge_writer import OracleMergeWriter
from penstock.engines.oracle.target.progress import (
    LOCK_WAIT_S,
    OUR_TABLES,
    OWNER,
    drop_text,
    name_bytes_max,
    name_work,
    progress_of,
    upsert_by_merge,
)
from penstock.engines.oracle.target.translation import Translation
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.model import TableName
from penstock.ports import target as port
from penstock.ports.target import SCHEMA, MergeTable, Staging, StagingChanged
from penstock.sql.state_dialect import Upsert
from penstock.sql.state_store import Records

STAMP_BITS = 62
TABLES_AT_ONCE = 50  # in one statement of check_staged
GONE = 942
_MADE_MEANWHILE = (1, 955)  # the row, or a table of this name
SHAPES = f"SELECT merge_name, shape FROM {SCHEMA}.wirekite_merge"
WRITE_STAMP = upsert_by_merge(
    Upsert(
        table=f"{SCHEMA}.wirekite_merge",
        values={"merge_name": "?", "stamp": "?", "shape": "?"},
        keys=(("merge_name",),),
        changes={"stamp": "s.stamp", "shape": "s.shape"},
    )
)
LOCK = f"LOCK TABLE {{}} IN EXCLUSIVE MODE WAIT {LOCK_WAIT_S}"


class MergeTables:
    """Merge tables of one target. It remembers their shapes, so that most batches only truncate
    them.
    """

    def __init__(self, connection: Connection) -> None:
        """Store the connection: autocommit, used by no other code."""
        self._connection = connection
        self._store = progress_of(connection)
        self._shapes: dict[str, str] | None = None
        self._used: set[str] = set()

    def make_empty(self, wanted: Mapping[str, MergeLayout]) -> dict[str, int]:
        """Create these merge tables, by name, empty. Call outside a transaction.

        Returns a stamp per name, which is another one each time. Sessions of lost workers that use
        the tables are ended. Raises StagingChanged if another loader creates them at the same
        moment.
        """
        try:
            return self._make_empty(wanted)
        except StatementInterrupted as error:
            if not is_used_elsewhere(error):
                raise
            for name in sorted(wanted):
                end_workers(self._connection, name)
        return self._make_empty(wanted)

    def _make_empty(self, wanted: Mapping[str, MergeLayout]) -> dict[str, int]:
        stamps = {name: secrets.randbits(STAMP_BITS) for name in wanted}
        try:
            with name_work("preparing merge tables"):
                shapes = self._read_shapes()
                for name in sorted(wanted):
                    self._prepare(name, wanted[name], stamps[name], shapes)
        except BaseException as error:
            self._shapes = None
            if isinstance(error, StatementFailed) and error.fields.get("errno") in _MADE_MEANWHILE:
                raise StagingChanged(
                    error.message,
                    hint="penstock retries automatically. Let one loader work on a target: stop "
                    "the other `penstock run` or `penstock load`.",
                ) from error
            raise
        self._used.update(wanted)
        return stamps

    def _prepare(self, name: str, layout: MergeLayout, stamp: int, shapes: dict[str, str]) -> None:
        """Write the stamp, and empty or create the table.

        A table of another shape is dropped first of all, so that a shape that is written while no
        table of that shape exists is never taken for the table's.
        """
        shape = repr(layout.sql_columns)
        is_same = shapes.get(name) == shape
        if not is_same:
            drop_merge_tables(self._connection, [name])
        self._store.run(WRITE_STAMP, (name, stamp, shape), doing="preparing merge tables")
        self._connection.run(
            f"TRUNCATE TABLE {quote(OWNER, name)}" if is_same else layout.create(name)
        )
        shapes[name] = shape

    def _read_shapes(self) -> dict[str, str]:
        """Return the shapes of the existing merge tables, by name.

        A table that was dropped and created again without its row is recreated.
        """
        if self._shapes is None:
            present = {str(row[0]) for row in self._connection.execute(OUR_TABLES)}
            self._shapes = {
                str(name): str(shape)
                for name, shape in self._connection.execute(SHAPES)
                if str(name) in present
            }
        return self._shapes

    def empty_ahead(self) -> None:
        """Empty merge tables of applied batches, to give their space back while nothing is due."""
        used, self._used = sorted(self._used), set()
        for name in used:
            if name in (self._shapes or {}):
                with name_work("emptying merge tables"):
                    self._connection.run(f"TRUNCATE TABLE {quote(OWNER, name)}")

    def forget(self, names: Iterable[str]) -> None:
        """Read the catalogue again when these tables are next needed: they are being dropped."""
        self._used.difference_update(names)
        self._shapes = None


def check_staged(connection: Connection, expected: Mapping[str, tuple[int, int]]) -> None:
    """Lock merge tables against writers, and check that each holds what was staged.

    The lock is of the whole table and lasts until the transaction ends, so a late worker waits for
    it, and finds its rows counted in the next batch.

    Args:
        connection: In the transaction that applies the rows.
        expected: By name, the stamp that the table got when it was emptied, and its number of rows.

    Raises:
        StagingChanged: Rows are missing, doubled, or of another filling.
        StatementInterrupted: A worker still fills a table.
    """
    for names in _pieces(sorted(expected)):
        counts = " UNION ALL ".join(
            _count_sql(place, name, expected[name][0]) for place, name in enumerate(names)
        )
        with name_work("checking merge tables"):
            for name in names:
                connection.run(LOCK.format(quote(OWNER, name)))
            found = {int(row[0]): row[1:] for row in connection.execute(counts)}
        for place, name in enumerate(names):
            held, stamped = map(int, found[place])
            _check_counts(name, held, stamped, expected[name][1])


def _count_sql(place: int, name: str, stamp: int) -> str:
    """Return the query for a merge table's rows, and for those of a stamp.

    place: returned with the counts.
    """
    return (
        f"SELECT {place} AS place, COUNT(*) AS held,"
        f" COUNT(CASE WHEN {quote(STAMP)} = {stamp} THEN 1 END) AS stamped"
        f" FROM {quote(OWNER, name)}"
    )


def _check_counts(name: str, held: int, stamped: int, wanted: int) -> None:
    if held == stamped == wanted:
        return
    what = f"holds {held} rows, {wanted} were staged"
    if held == wanted:
        what = f"has {held - stamped} rows of another batch"
    raise StagingChanged(
        f"merge table {quote(OWNER, name)} {what}",
        hint="Do nothing: the batch is staged again automatically.",
    )


def _pieces(names: Sequence[str]) -> Iterable[Sequence[str]]:
    for at in range(0, len(names), TABLES_AT_ONCE):
        yield names[at : at + TABLES_AT_ONCE]


def drop_merge_tables(connection: Connection, names: Iterable[str]) -> None:
    """Drop tables of our schema; those that do not exist are left out."""
    for name in names:
        try:
            with name_work("dropping a merge table"):
                connection.run(drop_text(OWNER, name))
        except StatementFailed as error:
            if error.fields.get("errno") != GONE:
                raise


class OracleStager(MergeTables, Staging):
    """Writer of the merge tables, for the stager; see `Staging`."""

    def __init__(self, connection: Connection, url: str, choices: Choices = NO_CHOICES) -> None:
        """Store the connection: autocommit, used by no other code. url: where writers connect."""
        super().__init__(connection)
        self._url = url
        self._choices = choices
        self.progress = self._store
        self._records = Records(self.progress)
        self._room = name_bytes_max(connection.version)

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        return port.staging_name(merge_name, place=place, use=use, room=self._room, unit="utf-8")

    def merge_name(self, table: TableName, target: TableName) -> str:
        return self._records.get(table, target).merge_name

    def prepare(
        self,
        wanted: Sequence[MergeTable],
        *,
        place: int,  # noqa: ARG002 - the names are the place's own
        source_engine: str,
    ) -> dict[str, OracleMergeWriter]:
        """Empty these merge tables; return the writer of each."""
        translation = Translation(engine=source_engine, choices=self._choices)
        forms = {one.name: translation.forms(one.relation) for one in wanted}
        layouts = {one.name: MergeLayout(one.relation, forms[one.name]) for one in wanted}
        stamps = self.make_empty(layouts)
        return {
            one.name: OracleMergeWriter(
                url=self._url,
                table=one.source,
                staging=one.name,
                stamp=stamps[one.name],
                relation=one.relation,
                forms=forms[one.name],
                prepare=translation.prepares(one.relation),
            )
            for one in wanted
        }

    def close(self) -> None:
        self._connection.close()
