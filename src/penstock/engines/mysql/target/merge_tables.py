"""Merge tables of MySQL and MariaDB: created if missing or of another shape, emptied for a batch.

They are InnoDB tables like the base tables, so that they are allowed wherever those are. Each has a
stamp in `wirekite_merge`, which is changed before the table is emptied, so that a worker of an
abandoned batch finds another stamp and sends nothing (`send.py`). Not here: applying them
(`apply.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.codec.types import Choices
from penstock.engines.mysql.connect import Connection, quote, rows, run, server_errors, value
from penstock.engines.mysql.target.claims import end_workers
from penstock.engines.mysql.target.direct import DirectTables, MySQLMergeWriter, UnsureTables
from penstock.engines.mysql.target.layout import MergeLayout
from penstock.engines.mysql.target.progress import NAME_LENGTH_MAX, MySQLProgress, transaction
from penstock.engines.mysql.target.rows_files import RowsFiles
from penstock.engines.mysql.target.send import NOT_ALLOWED, Destination, without_log
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.model import PenstockError, Relation, TableName
from penstock.ports import target as port
from penstock.ports.target import SCHEMA, MergeTable, Staging, StagingChanged
from penstock.sql.state_store import Records

# Up to this many rows, DELETE is faster than a new file for the table.
FEW_ROWS = 2_000
MADE_MEANWHILE = 1050
GONE_MEANWHILE = (1051, 1146)
NO_STRICT = "set session innodb_strict_mode = 0"


class MergeTables:
    """Merge tables of one target, with known shapes, so that most batches only empty them."""

    def __init__(self, connection: Connection) -> None:
        """Keep the connection, which is in autocommit and has no other user meanwhile."""
        self._connection = connection
        self._shapes: dict[str, str] = {}
        self._used: set[str] = set()
        self._emptied: dict[str, int] = {}  # since they were used: their stamps

    def make_empty(self, wanted: Mapping[str, Relation]) -> dict[str, int]:
        """Create or empty these merge tables; return the new stamp of each, keyed by name.

        Raises StagingChanged if another loader creates them at the same moment.
        """
        if not wanted:
            return {}
        try:
            self._look([name for name in wanted if name not in self._shapes])
            # No worker has the stamps of tables emptied ahead, so no late worker writes there.
            stamps = self._stamps([name for name in wanted if name in self._emptied])
            return {
                name: self._one(name, MergeLayout(shape), stamps.get(name))
                for name, shape in wanted.items()
            }
        except StatementFailed as error:
            if error.fields.get("errno") not in (MADE_MEANWHILE, *GONE_MEANWHILE):
                raise
            self._shapes.clear()
            raise StagingChanged(
                error.message,
                hint="penstock retries automatically. Let one loader work on a target: stop the "
                "other `penstock run` or `penstock load`.",
            ) from error

    def empty_ahead(self) -> None:
        """Empty the tables that earlier batches used, so that the next batch need not wait."""
        used, self._used = sorted(self._used & self._shapes.keys()), set()
        for name in used:
            stamp = self._new_stamp(name)
            self._empty(quote(SCHEMA, name))
            self._emptied[name] = stamp

    def _one(self, name: str, layout: MergeLayout, stamp_now: int | None) -> int:
        shape = json.dumps(layout.sql_columns)
        table = quote(SCHEMA, name)
        kept = self._shapes.get(name) == shape
        self._used.add(name)
        emptied = self._emptied.pop(name, None)
        if kept and emptied is not None and emptied == stamp_now:
            return emptied
        stamp = self._new_stamp(name)
        if kept:
            self._empty(table)
            return stamp
        self._run(f"drop table if exists {table}")
        layout.make(self._run, table)
        self._run(
            f"update {SCHEMA}.wirekite_merge set shape = %s where merge_name = %s", (shape, name)
        )
        self._shapes[name] = shape
        return stamp

    def _stamps(self, names: Sequence[str]) -> dict[str, int]:
        if not names:
            return {}
        found = rows(
            self._connection,
            f"select merge_name, stamp from {SCHEMA}.wirekite_merge where merge_name in ("
            + ", ".join(["%s"] * len(names))
            + ")",
            tuple(names),
            doing="preparing merge tables",
        )
        return {row["merge_name"]: int(row["stamp"]) for row in found}

    def _new_stamp(self, name: str) -> int:
        """Increase the stamp; this waits for workers that are sending."""
        with _nobody_hangs(self._connection, name):
            self._run(
                f"insert into {SCHEMA}.wirekite_merge (merge_name, stamp, shape) values (%s, 1, '')"
                " on duplicate key update stamp = last_insert_id(stamp + 1)",
                (name,),
            )
        return int(
            value(
                self._connection,
                f"select stamp from {SCHEMA}.wirekite_merge where merge_name = %s",
                (name,),
                doing="preparing merge tables",
            )
        )

    def _empty(self, table: str) -> None:
        many = value(
            self._connection,
            f"select 1 from {table} limit 1 offset {FEW_ROWS}",
            doing="preparing merge tables",
        )
        self._run(f"truncate table {table}" if many else f"delete from {table}")

    def forget(self, names: Iterable[str]) -> None:
        """Read the catalogue again when these tables are next needed, as they are being dropped."""
        for name in names:
            self._shapes.pop(name, None)
            self._emptied.pop(name, None)

    def _look(self, names: list[str]) -> None:
        """Read the shapes of these tables, if they still exist."""
        if not names:
            return
        doing = "looking for merge tables"
        present = {
            row["table_name"]
            for row in rows(
                self._connection,
                "select table_name from information_schema.tables where table_schema = %s",
                (SCHEMA,),
                doing=doing,
            )
        }
        for row in rows(
            self._connection,
            f"select merge_name, shape from {SCHEMA}.wirekite_merge",
            doing=doing,
        ):
            name = row["merge_name"]
            if name in names and (name in present or name.lower() in present):
                self._shapes[name] = row["shape"]

    def _run(self, sql: str, parameters: object = None) -> None:
        run(self._connection, sql, parameters, doing="preparing merge tables")


def check_staged(connection: Connection, expected: Mapping[str, tuple[int, int]]) -> None:
    """Check that each merge table holds what was staged, and keep writers out until the commit.

    expected: stamp since the table was emptied, and number of rows, keyed by name. Call in the
    transaction that applies the rows. Raises StagingChanged.
    """
    if not expected:
        return
    doing = "checking merge tables"
    # Workers share a stamp's lock while they send: a second attempt of a task that is still sending
    # is waited for, then counted. Read one by one: a scan would wait for other tables' workers.
    stamps = {}
    for name in sorted(expected):
        with _nobody_hangs(connection, name):
            stamps[name] = value(
                connection,
                f"select stamp from {SCHEMA}.wirekite_merge where merge_name = %s for update",
                (name,),
                doing=doing,
            )
    for name, (stamp, count) in expected.items():
        table = quote(SCHEMA, name)
        held = value(connection, f"select count(*) from {table}", doing=doing)
        if held != count or stamps.get(name) != stamp:
            what = f"holds {held} rows, {count} were staged" if held != count else "was emptied"
            raise StagingChanged(
                f"merge table {table} {what}", hint="penstock stages the batch again."
            )


@contextmanager
def _nobody_hangs(connection: Connection, name: str) -> Iterator[None]:
    """End workers that lock a merge table's stamp for too long; the waiting work is repeated.

    All relevant tasks have ended by then, so these workers' tasks were given up.
    """
    try:
        yield
    except StatementInterrupted:
        end_workers(connection, name)
        raise


def drop_merge_tables(connection: Connection, names: Iterable[str]) -> None:
    """Drop merge tables that only one batch needed. Their stamps stay and continue to increase."""
    for name in names:
        run(connection, f"drop table if exists {quote(SCHEMA, name)}", doing="dropping")
        with server_errors("dropping a merge table"), transaction(connection):
            run(
                connection,
                f"update {SCHEMA}.wirekite_merge set shape = '' where merge_name = %s",
                (name,),
                doing="dropping a merge table",
            )


class MySQLStager(MergeTables, Staging):
    """Staging side; see `Staging`.

    It has two connections: merge tables are excluded from the target's binlog if that is allowed,
    and records and progress rows are not.
    """

    def __init__(
        self,
        logged: Connection,
        silent: Connection,
        url: str,
        *,
        choices: Choices,
        directory: Path | None,
        unsure: UnsureTables,
    ) -> None:
        """Keep the connections, in autocommit, not used by others. url: where writers connect.

        silent: becomes the one that is excluded from the binlog.
        """
        super().__init__(silent)
        self._logged = logged
        self._url = url
        self._files = RowsFiles(directory)
        self.progress = MySQLProgress(logged)
        self._records = Records(self.progress)
        self._direct = DirectTables(logged, self._records, choices=choices, unsure=unsure)
        without_log(silent)
        self._relax()

    def _relax(self) -> None:
        """Allow merge tables as many columns as base tables can have, if the account may."""
        try:
            run(self._connection, NO_STRICT, doing="setting up the session")
        except PenstockError as error:
            if error.fields.get("errno") != NOT_ALLOWED:
                raise

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        return port.staging_name(merge_name, place=place, use=use, room=NAME_LENGTH_MAX)

    def merge_name(self, table: TableName, target: TableName) -> str:
        return self._records.get(table, target).merge_name

    def prepare(
        self, wanted: Sequence[MergeTable], *, place: int, source_engine: str
    ) -> dict[str, MySQLMergeWriter]:
        stamps = self.make_empty({one.name: one.relation for one in wanted})
        folder = self._files.begin(place)
        plain = [one for one in wanted if one.is_plain] if folder is not None else []
        direct = self._direct.among(plain, source_engine=source_engine)
        return {
            one.name: MySQLMergeWriter(
                place=Destination(
                    url=self._url,
                    table=one.source,
                    staging=one.name,
                    stamp=stamps[one.name],
                    relation=one.relation,
                ),
                direct=direct.get(one.source),
                path=None if folder is None else folder / str(number),
            )
            for number, one in enumerate(wanted)
        }

    def close(self) -> None:
        self._logged.close()
        self._connection.close()
        self._files.close()
