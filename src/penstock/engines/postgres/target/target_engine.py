"""PostgreSQL as a target of the change loader: the port of `ports/target.py` over this folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from penstock.codec.types import NO_CHOICES, Choices, Engine, Server
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    server_errors,
    statement_error,
)
from penstock.engines.postgres.target import apply
from penstock.engines.postgres.target.enums import add_missing_labels
from penstock.engines.postgres.target.foreign import Foreign, preparations
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.merge_tables import (
    MergeTables,
    PostgresMergeWriter,
    check_staged,
    drop_merge_tables,
)
from penstock.engines.postgres.target.nulls import drop_not_null
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.model import PenstockError, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports import target as port
from penstock.ports.target import (
    Applied,
    FileProgress,
    MergeSpec,
    MergeTable,
    PhaseSpec,
    ShapeNote,
    SqlTarget,
    Staging,
    TableSync,
    TargetEngine,
)
from penstock.sql.state_store import Records

STAGER_NAME = "penstock stager"
NAME_BYTES_MAX = 63


class PostgresTargetEngine(TargetEngine):
    """PostgreSQL as target."""

    errors: tuple[type[BaseException], ...] = (psycopg.Error,)
    ddl_commits = False

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        assert isinstance(error, psycopg.Error)
        return statement_error(doing, error)

    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        room = NAME_BYTES_MAX
        return port.staging_name(merge_name, place=place, use=use, room=room, unit="utf-8")

    def open_staging(
        self,
        url: str,
        *,
        choices: Choices = NO_CHOICES,
        directory: Path | None = None,  # noqa: ARG002 - all rows wait in merge tables
    ) -> PostgresStager:
        settings = {**EXACT_TEXT_SETTINGS, "lock_timeout": str(apply.LOCK_TIMEOUT_MS)}
        connection = connect(url, application_name=STAGER_NAME, options=settings)
        return PostgresStager(connection, url, choices)

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
    ) -> PostgresTarget:
        connection, is_replica = apply.connect_to_apply(url)
        progress = PostgresProgress(connection)
        return PostgresTarget(
            connection=connection,
            namespaces=namespaces,
            replica=is_replica,
            progress=progress,
            records=Records(progress),
            allow_triggers=allow_triggers,
            policies=policies,
            choices=choices,
        )


class PostgresStager(Staging):
    """The stager's side; see `Staging`."""

    def __init__(
        self, connection: psycopg.Connection, url: str, choices: Choices = NO_CHOICES
    ) -> None:
        """Store the connection: autocommit, used by no other code. url: where writers connect."""
        self._connection = connection
        self._url = url
        self._choices = choices
        self._progress = PostgresProgress(connection)
        self._records = Records(self._progress)
        self._area = MergeTables(connection)

    def merge_name(self, table: TableName, target: TableName) -> str:
        return self._records.get(table, target).merge_name

    def prepare(
        self,
        wanted: Sequence[MergeTable],
        *,
        place: int,  # noqa: ARG002 - the names are the place's own
        source_engine: str,
    ) -> dict[str, PostgresMergeWriter]:
        """Empty these merge tables. Rows go nowhere else: COPY cannot update."""
        stamps = self._area.prepare({one.name: MergeLayout(one.relation) for one in wanted})
        return {
            one.name: PostgresMergeWriter(
                url=self._url,
                table=one.source,
                staging=one.name,
                stamp=stamps[one.name],
                relation=one.relation,
                prepare=preparations(one.relation, source_engine, self._choices),
            )
            for one in wanted
        }

    def empty_ahead(self) -> None:
        self._area.empty_ahead()

    def forget(self, names: Iterable[str]) -> None:
        self._area.forget(names)

    def begin_files(self, files: Iterable[str]) -> None:
        self._progress.begin_files(files)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(kw_only=True)
class PostgresTarget(apply.TargetSession, SqlTarget):
    """Applying side; see `SqlTarget`. choices: the choices of [target.types]."""

    choices: Choices = NO_CHOICES

    @property
    def is_closed(self) -> bool:
        return self.connection.closed

    def bind(self, log_id: str) -> Applied:
        self.progress.ensure_tables()
        self.log_id = log_id
        return self.progress.bind_log(log_id)

    def need(self, names: Iterable[TableName]) -> None:
        with server_errors("reading the target's tables"):
            self.ensure_known(names)

    def reshape(
        self,
        phases: Sequence[PhaseSpec],
        *,
        source_engine: str,
        before: Applied,  # noqa: ARG002 - the port's
    ) -> None:
        """Prepare types: tables are altered in the batch's transaction."""
        version = self.connection.info.server_version // 10_000
        self.foreign = Foreign(
            engine=source_engine,
            target=Server(engine=Engine.POSTGRESQL, version=(version,)),
            choices=self.choices,
        )
        with server_errors("preparing types"):
            apply.prepare_shapes(self, phases)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with server_errors("committing a batch"), self.connection.transaction():
            yield

    def advance(self, *, log_id: str, before: Applied, after: Applied) -> None:
        self.progress.advance(log_id=log_id, before=before, after=after)

    def check_staged(self, expected: Mapping[str, tuple[int, int]]) -> None:
        check_staged(self.connection, expected)

    def apply_phases(self, phases: Sequence[PhaseSpec]) -> None:
        apply.apply_phases(self, phases)

    def end_files(self, files: Iterable[FileProgress]) -> None:
        self.progress.end_files(files)

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self.progress.read_table_syncs()

    def write_table_sync(self, row: TableSync) -> None:
        self.progress.write_table_sync(row)

    def resolve_refusal(self, error: PenstockError, merges: Iterable[MergeSpec]) -> bool:
        """Add labels that enums lack, and make columns of our tables nullable."""
        how = {"22P02": add_missing_labels, "23502": drop_not_null}.get(
            str(error.fields.get("sqlstate"))
        )
        if how is None:
            return False
        layouts = [(spec.table, spec.staging, MergeLayout(spec.relation)) for spec in merges]
        with server_errors("fixing the target's refusal"):
            return how(self.connection, layouts) > 0

    def take_notes(self) -> list[ShapeNote]:
        taken = list(self.noted)
        self.noted.clear()
        return taken

    def drop_merge_tables(self, names: Iterable[str]) -> None:
        drop_merge_tables(self.connection, names)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
