"""Extraction from YugabyteDB: creating publication and slot, the handover, and the engine.

A slot's consistent point is a hybrid time, which can be read (`yb_read_time`) for as long as the
server keeps history: no session has to hold it. A `penstock serve` keeps it for the session that
created the slot, so that session stays open until the bulk load is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.client import ReplicationConnection, open_replication
from penstock.engines.postgres.source.slot_owner import check_adoptable, slot_there_before
from penstock.engines.yugabyte import slots
from penstock.engines.yugabyte.catalog import connect_catalog
from penstock.engines.yugabyte.engine import YugabyteEngine
from penstock.engines.yugabyte.options import lsn_type, wire_url
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.model import TableDefinition
from penstock.ports.config import Config, Mode, Pipeline
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)
from penstock.ports.identity import SourceIdentity
from penstock.ports.source import ExtractOptions

logger = structlog.get_logger()
APPLICATION_NAME = "penstock extract"
POLL_INTERVAL_S = 0.2


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity."""
    with (
        connect_catalog(config.source.url, application_name=APPLICATION_NAME) as connection,
        server_errors("reading the source's identity"),
    ):
        row = connection.execute(
            "select datname, oid::bigint from pg_database where datname = current_database()"
        ).fetchone()
    assert row is not None
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="yugabytedb",
        system_id=str(row[0]),
        timeline=0,
        database=str(row[0]),
        database_id=int(row[1]),
        slot=config.change_extractor.replication_slot,
        publication=config.change_extractor.publication,
    )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[YugabyteEngine]:
    """Return the engine, for as long as changes are extracted."""
    captured = tables()
    with ExitStack() as kept:
        handing = _Handing(pipeline, captured, kept)
        position = handing.prepare()
        config = pipeline.config
        yield YugabyteEngine(
            config.source.url,
            tables=captured,
            options=options,
            start_position=position,
            pipeline=config.pipeline.name,
            on_start=handing.note_started,
        )
        handing.wait_for_bulk(stop)


class _Handing:
    """The slot, and in mode data+change the handover's file."""

    def __init__(self, pipeline: Pipeline, tables: list[TableDefinition], kept: ExitStack) -> None:
        self._pipeline = pipeline
        self._config = pipeline.config
        self._slot = self._config.change_extractor.replication_slot
        self._publication = self._config.change_extractor.publication
        self._tables = tables
        self._kept = kept
        self._loads = self._config.pipeline.mode is Mode.DATA_CHANGE
        self._state: Handover | None = None

    def prepare(self) -> int:
        """Return the position where an empty log begins; 0: at the slot's position."""
        has_begun = bool(self._pipeline.log_position())
        begun = read_handover(self._config) if self._loads else None
        if self._loads:
            check_bulk_load(self._config, begun, has_begun=has_begun)
        self._state = begun
        if has_begun:
            return 0
        if begun is not None and begun.phase is not HandoverPhase.NEW:
            return Lsn.parse(begun.slot_position).ordinal
        url = wire_url(self._config.source.url)
        connection = self._kept.enter_context(
            open_replication(url, application_name=APPLICATION_NAME)
        )
        return self._make(connection, begun)

    def _make(self, connection: ReplicationConnection, begun: Handover | None) -> int:
        found = slots.read_slot(connection, self._slot)
        with connect_catalog(self._config.source.url) as catalog:
            if found is not None:
                check_adoptable(catalog, self._publication, self._slot)
                if self._loads and begun is None:
                    raise slot_there_before(catalog, self._publication, self._slot)
            names = [table.name for table in self._tables]
            slots.ensure_publication(catalog, self._publication, names)
        if self._loads:
            self._save(Handover(slot=self._slot, tables=tuple(str(name) for name in names)))
        if found is not None:
            position, snapshot = found.state.confirmed_flush, str(found.restart_ht or "")
        else:
            made = slots.create_slot(
                connection,
                self._slot,
                lsn_type=lsn_type(self._config.source.url),
                has_snapshot=self._loads,
            )
            position, snapshot = made.position, made.snapshot_id
        faults.point("handover.slot.made")
        if self._loads:
            self._write_point(position, snapshot)
        return position

    def _write_point(self, position: int, snapshot: str) -> None:
        if not snapshot:
            raise slots.HistoryGone(
                f"slot {self._slot} has no consistent point that can be read",
                hint="Drop it and run the same command again: select pg_drop_replication_slot("
                f"'{self._slot}'); the server allows that five minutes after its last reader.",
            )
        text = str(Lsn(position))
        assert self._state is not None
        state = self._state.with_step(
            1, "Stop Replication: nothing is stopped, the source is read as of a time"
        ).with_step(2, f"Capture Position: {text}, of hybrid time {snapshot}")
        self._save(
            msgspec.structs.replace(
                state,
                phase=HandoverPhase.CAPTURED,
                slot_position=text,
                position=text,
                snapshot_id=snapshot,
                snapshot_text=snapshot,
            )
        )
        faults.point("handover.captured")

    def note_started(self) -> None:
        """Note in the handover's file that the stream has begun."""
        state = self._state
        if state is None or state.phase is HandoverPhase.DONE:
            return
        text = f"Start Change Processes: changes are extracted from {state.slot_position} on"
        state = state.with_step(3, text).with_step(
            4, "Resume Replication: nothing was stopped, changes are followed"
        )
        self._save(msgspec.structs.replace(state, phase=HandoverPhase.DONE))

    def wait_for_bulk(self, stop: Callable[[], bool]) -> None:
        """Wait until the bulk load is done."""
        while self._loads and not stop() and not self._pipeline.bulk().finished:
            REAL_CLOCK.sleep(POLL_INTERVAL_S)

    def _save(self, state: Handover) -> None:
        self._state = state
        write_handover(self._config, state)
        logger.info("handover", phase=state.phase.value, position=state.position)
