"""Merge tables: created if missing, recreated if their shape changed, empty when a batch begins.

They are permanent heaps, since the driver's bulk copy opens sessions of its own, which neither see
temporary tables nor share our transaction (reference oracle-sqlserver, section 2). Workers load
them with TABLOCK, several at a time. A late worker's rows, and those of another loader, are seen by
their stamps: `check_staged`. Not here: the choice of rows (`load/job.py`) and applying them
(`apply.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.target.claims import end_holders, is_lock_timeout
from penstock.engines.sqlserver.target.layout import STAMP, MergeLayout
from penstock.engines.sqlserver.target.merge_writer import SQLServerMergeWriter
from penstock.engines.sqlserver.target.progress import (
    NAME_LENGTH_MAX,
    OUR_TABLES,
    SQLServerProgress,
    name_work,
    transaction,
    upsert_by_merge,
)
from penstock.engines.sqlserver.target.translation import Translation
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.model import TableName
from penstock.ports import target as port
from penstock.ports.target import SCHEMA, MergeTable, Staging, StagingChanged
from penstock.sql.state_dialect import Upsert
from penstock.sql.state_store import Records

STAMP_BITS = 62
TABLES_AT_ONCE = 50  # in one statement of check_staged
_MADE_MEANWHILE = (2714, 2627, 2601)  # a table of this name, or its row
SHAPES = f"SELECT merge_name, shape FROM {SCHEMA}.wirekite_merge"
WRITE_STAMP = upsert_by_merge(
    Upsert(
        table=f"{SCHEMA}.wirekite_merge",
        values={"merge_name": "?", "stamp": "?", "shape": "?"},
        keys=(("merge_name",),),
        changes={"stamp": "s.stamp", "shape": "s.shape"},
    )
)
RECORDED_STAMPS = f"SELECT merge_name, stamp FROM {SCHEMA}.wirekite_merge WITH (UPDLOCK, HOLDLOCK)"


class MergeTables:
    """Merge tables of one target. It remembers their shapes, so that most batches only truncate
    them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shapes: dict[str, str] | None = None
        self._used: set[str] = set()

    def make_empty(self, wanted: Mapping[str, MergeLayout]) -> dict[str, int]:
        """Create these merge tables, by name, empty. Call outside a transaction.

        Returns a stamp per name, which is another one each time. Sessions of lost workers that hold
        the tables are ended. Raises StagingChanged if another loader creates them at the same
        moment.
        """
        try:
            return self._make_empty(wanted)
        except StatementInterrupted as error:
            if not is_lock_timeout(error):
                raise
            end_holders(self._connection, wanted)
        return self._make_empty(wanted)

    def _make_empty(self, wanted: Mapping[str, MergeLayout]) -> dict[str, int]:
        stamps = {name: secrets.randbits(STAMP_BITS) for name in wanted}
        try:
            with name_work("preparing merge tables"), transaction(self._connection):
                shapes = self._read_shapes()
                for name in sorted(wanted):
                    shape = repr(wanted[name].sql_columns)
                    self._connection.run(WRITE_STAMP, name, stamps[name], shape)
                    self._prepare(name, wanted[name], is_same=shapes.get(name) == shape)
                    shapes[name] = shape
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

    def _prepare(self, name: str, layout: MergeLayout, *, is_same: bool) -> None:
        if is_same:
            self._connection.run(f"TRUNCATE TABLE {quote(SCHEMA, name)}")
            return
        self._connection.run(f"DROP TABLE IF EXISTS {quote(SCHEMA, name)}")
        self._connection.run(layout.create(name))

    def _read_shapes(self) -> dict[str, str]:
        """Return the shapes of the existing merge tables, by name."""
        if self._shapes is None:
            present = {str(row[0]).lower() for row in self._connection.execute(OUR_TABLES)}
            self._shapes = {
                str(name): str(shape)
                for name, shape in self._connection.execute(SHAPES)
                if str(name).lower() in present
            }
        return self._shapes

    def empty_ahead(self) -> None:
        """Empty merge tables of applied batches, to give their space back while nothing is due."""
        used, self._used = sorted(self._used), set()
        for name in used:
            if name in (self._shapes or {}):
                with name_work("emptying merge tables"):
                    self._connection.run(f"TRUNCATE TABLE {quote(SCHEMA, name)}")

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
    """
    for names in _pieces(sorted(expected)):
        counts = " UNION ALL ".join(
            _count_sql(place, name, expected[name][0]) for place, name in enumerate(names)
        )
        with name_work("checking merge tables"):
            found = {int(row[0]): row[1:] for row in connection.execute(counts)}
        for place, name in enumerate(names):
            held, stamped = map(int, found[place])
            _check_counts(name, held, stamped, expected[name][1])


def _count_sql(place: int, name: str, stamp: int) -> str:
    """Return the query for a merge table's rows, and for those of a stamp, under a table lock.

    place: returned with the counts.
    """
    return (
        f"SELECT {place}, COUNT_BIG(*),"
        f" COUNT_BIG(CASE WHEN {quote(STAMP)} = {stamp} THEN 1 END)"
        f" FROM {quote(SCHEMA, name)} WITH (TABLOCK, HOLDLOCK)"
    )


def _check_counts(name: str, held: int, stamped: int, wanted: int) -> None:
    if held == stamped == wanted:
        return
    what = f"holds {held} rows, {wanted} were staged"
    if held == wanted:
        what = f"has {held - stamped} rows of another batch"
    raise StagingChanged(
        f"merge table {quote(SCHEMA, name)} {what}",
        hint="Do nothing: the batch is staged again automatically.",
    )


def _pieces(names: Sequence[str]) -> Iterable[Sequence[str]]:
    for at in range(0, len(names), TABLES_AT_ONCE):
        yield names[at : at + TABLES_AT_ONCE]


def drop_merge_tables(connection: Connection, names: Iterable[str]) -> None:
    """Drop merge tables that only one batch needed."""
    for name in names:
        with name_work("dropping a merge table"):
            connection.run(f"DROP TABLE IF EXISTS {quote(SCHEMA, name)}")


class SQLServerStager(MergeTables, Staging):
    """Writer of the merge tables, for the stager; see `Staging`."""

    def __init__(self, connection: Connection, url: str, choices: Choices = NO_CHOICES) -> None:
        """Store the connection: autocommit, used by no other code. url: where writers connect."""
        super().__init__(connection)
        self._url = url
        self._choices = choices
        self.progress = SQLServerProgress(connection)
        self._records = Records(self.progress)

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        return port.staging_name(merge_name, place=place, use=use, room=NAME_LENGTH_MAX)

    def merge_name(self, table: TableName, target: TableName) -> str:
        return self._records.get(table, target).merge_name

    def prepare(
        self,
        wanted: Sequence[MergeTable],
        *,
        place: int,  # noqa: ARG002 - the names are the place's own
        source_engine: str,
    ) -> dict[str, SQLServerMergeWriter]:
        """Empty these merge tables; return the writer of each."""
        translation = Translation(engine=source_engine, choices=self._choices)
        as_text = {one.name: translation.as_text(one.relation) for one in wanted}
        layouts = {one.name: MergeLayout(one.relation, as_text=as_text[one.name]) for one in wanted}
        stamps = self.make_empty(layouts)
        return {
            one.name: SQLServerMergeWriter(
                url=self._url,
                table=one.source,
                staging=one.name,
                stamp=stamps[one.name],
                relation=one.relation,
                as_text=as_text[one.name],
                prepare=translation.prepares(one.relation),
            )
            for one in wanted
        }

    def close(self) -> None:
        self._connection.close()
