"""The handover of a PostgreSQL source: Wirekite's four steps, in the extract process.

Mode `snapshot` stops nothing: the slot's exported snapshot freezes the position for the bulk load
while changes are extracted beside it. Mode `pause` is the guide's literal form for a source
that is a standby: replay is paused, the position is read from the frozen server, the bulk load
reads it, the change processes start, and replay is resumed, whatever happens. What to do next is
decided by `ports.handover.decide`, which is pure. Not here: a slot without a bulk load
(`extraction.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress

import msgspec
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.planner import tell_blockers
from penstock.engines.postgres.source import slot as slots
from penstock.engines.postgres.source.bulk_reader import snapshot_text
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import Blocker, ConsistentPoint, consistent_point
from penstock.engines.postgres.source.slot_owner import (
    check_adoptable,
    disclaim_slot,
    slot_there_before,
)
from penstock.engines.postgres.standby import (
    APPLICATION_NAME,
    STANDBY,
    check_publication_there,
    check_standby,
    frozen_point,
    open_source,
    pause_replay,
)
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError, TableDefinition
from penstock.ports.bulk import HeldPoint
from penstock.ports.config import HandoverMode, Pipeline
from penstock.ports.handover import (
    Do,
    Handover,
    HandoverPhase,
    Seen,
    check_bulk_load,
    decide,
    read_handover,
    write_handover,
)

logger = structlog.get_logger()
faults.declare("handover.slot.made", "handover.captured", "handover.paused", "handover.resumed")

POLL_INTERVAL_S = 0.2
PING_INTERVAL_S = 15.0

SLOT = """
    select active, confirmed_flush_lsn::text
      from pg_replication_slots
     where slot_name = %(slot)s
"""


@contextmanager
def prepare(
    pipeline: Pipeline, tables: Sequence[TableDefinition], *, stop: Callable[[], bool]
) -> Iterator[int]:
    """Make the handover around an extraction; gives the position where an empty log begins.

    The with block runs the extractor. Before it, publication and slot are created and the position
    is captured (mode pause: also the bulk load is waited for). While it runs, a thread keeps the
    snapshot and takes the steps that follow. Leaving it waits until the bulk load does not need the
    snapshot any more, unless stop() says so or the extraction failed. Replay that was paused is
    resumed in every case. Raises LogWithoutBulkLoad, NotAStandby, StandbyTooOld,
    PublicationOnPrimary, the errors of `engines.postgres.source.slot`.
    """
    with ExitStack() as stack:
        handing = _Handing(pipeline, tables, stop, stack)
        stack.callback(handing.unpause_at_end)
        handing.run_until(Do.LET_EXTRACT)
        keeper = SupervisedThread("handover", handing.keep, wait=handing.ended.wait)
        keeper.start()
        try:
            yield Lsn.parse(handing.state.slot_position or "0/0").ordinal
            handing.wait_for_bulk()
        finally:
            handing.ended.set()
            keeper.join()


class _Handing:
    """Handover in progress: its state, and the effects of each decision."""

    def __init__(
        self,
        pipeline: Pipeline,
        tables: Sequence[TableDefinition],
        stop: Callable[[], bool],
        stack: ExitStack,
    ) -> None:
        self.pipeline = pipeline
        self.config = config = pipeline.config
        self.tables = tables
        self.stop = stop
        self.stack = stack
        self.ended = threading.Event()
        self.kept: ExitStack | None = None
        self.point: HeldPoint | None = None
        self.connection = stack.enter_context(closing(open_source(config)))
        begun = read_handover(config)
        check_bulk_load(config, begun, has_begun=bool(pipeline.log_position()))
        self.has_begun = begun is not None
        self.state = begun or Handover(
            mode=config.pipeline.handover,
            slot=config.change_extractor.replication_slot,
            tables=tuple(str(table.name) for table in tables),
        )
        if self.state.mode is HandoverMode.PAUSE:
            check_standby(self.connection)
        stack.callback(self.release)

    # -- deciding and doing ------------------------------------------------------------------------

    def look(self) -> Seen:
        with server_errors("looking at slot and replay"):
            slot = self.connection.execute(SLOT, {"slot": self.state.slot}).fetchone()
            standby = self.connection.execute(STANDBY).fetchone()
        assert standby is not None
        return Seen(
            slot_exists=slot is not None,
            slot_active=slot is not None and bool(slot[0]),
            paused=standby[2] == "paused",
            snapshot_held=self.point is not None,
            bulk_finished=self.pipeline.bulk().finished,
        )

    def run_until(self, wanted: Do) -> None:
        """Take steps until this step is due, or the process has to end."""
        while not self.stop():
            do = decide(self.state, self.look())
            if do in (wanted, Do.NOTE_START) or self.state.phase is HandoverPhase.DONE:
                return
            if do is Do.WAIT:
                self.ended.wait(POLL_INTERVAL_S)
            else:
                self.act(do)

    def keep(self) -> None:
        """Take the steps that follow while the extractor runs; keep the snapshot. Runs in the
        thread.
        """
        pinged_s = REAL_CLOCK.monotonic_s()
        while not self.ended.wait(POLL_INTERVAL_S):
            try:
                do = decide(self.state, self.look())
                if do in (Do.NOTE_START, Do.RESUME, Do.RELEASE):
                    self.act(do)
                if REAL_CLOCK.monotonic_s() - pinged_s > PING_INTERVAL_S:
                    pinged_s = REAL_CLOCK.monotonic_s()
                    if isinstance(self.point, ConsistentPoint):
                        self.point.ping()
            except PenstockError as error:
                # The load detects that the snapshot is gone, and starts again.
                logger.warning("handover is interrupted", error=error.message)
                self.reconnect()
            if self.state.phase is HandoverPhase.DONE and self.kept is None:
                self.connection.close()  # nothing is left to look for
                return

    def reconnect(self) -> None:
        """Replace a broken connection. If that fails, the caller's loop tries again."""
        self.connection.close()
        with suppress(PenstockError):
            self.connection = self.stack.enter_context(closing(open_source(self.config)))

    def wait_for_bulk(self) -> None:
        """Keep the snapshot until the bulk load is done: the extractor may be idle earlier."""
        while not self.stop() and not self.pipeline.bulk().finished:
            self.ended.wait(POLL_INTERVAL_S)
        deadline_s = REAL_CLOCK.monotonic_s() + 2 * POLL_INTERVAL_S
        while not self.stop() and REAL_CLOCK.monotonic_s() < deadline_s:
            self.ended.wait(POLL_INTERVAL_S / 2)  # let the thread take the last steps

    def act(self, do: Do) -> None:
        {
            Do.MAKE_SLOT: self.make_slot,
            Do.ADOPT_SLOT: self.adopt_slot,
            Do.UNPAUSE: self.unpause,
            Do.PAUSE: self.pause,
            Do.CAPTURE: self.capture,
            Do.NOTE_START: self.note_start,
            Do.RESUME: self.resume,
            Do.RELEASE: self.release,
        }[do]()

    def save(self, state: Handover) -> None:
        self.state = state
        write_handover(self.config, state)
        logger.info("handover", phase=state.phase.value, position=state.position)

    # -- effects -----------------------------------------------------------------------------------

    def make_slot(self) -> None:
        """Create the publication, then the slot. In mode snapshot the slot's snapshot gives the
        position.
        """
        self.ensure_publication()
        self.save(self.state)  # begun: a slot found later is ours
        url, slot = self.config.source.url, self.state.slot
        if self.state.mode is HandoverMode.PAUSE:
            with open_replication(url, application_name=APPLICATION_NAME) as replication:
                made = slots.create_slot(
                    replication, url, slot, snapshot=False, on_blocked=self.tell_blockers
                )
            faults.point("handover.slot.made")
            position = str(Lsn(made.position))
            self.save(msgspec.structs.replace(self.state, slot_position=position))
            return
        kept = self.stack.enter_context(ExitStack())
        point = kept.enter_context(consistent_point(url, slot, on_blocked=self.tell_blockers))
        faults.point("handover.slot.made")
        self.kept, self.point = kept, point
        position = str(Lsn(point.position))
        state = self.state.with_step(
            1, "Stop Replication: nothing is stopped, a snapshot of the source holds its state"
        ).with_step(2, f"Capture Position: {position}, with slot {slot}")
        self.save(
            msgspec.structs.replace(
                state,
                phase=HandoverPhase.CAPTURED,
                slot_position=position,
                position=position,
                snapshot_id=point.snapshot_id,
                snapshot_text=snapshot_text(self.config.source.url, point.snapshot_id),
                keeper_pid=point.keeper_pid,
            )
        )
        faults.point("handover.captured")

    def tell_blockers(self, waited_s: float, blockers: Sequence[Blocker]) -> None:
        """Report which transactions the slot waits for."""
        tell_blockers(self.config.layout.run, waited_s, blockers)

    def ensure_publication(self) -> None:
        name = self.config.change_extractor.publication
        wanted = [table.name for table in self.tables]
        with connect(self.config.source.url, application_name=APPLICATION_NAME) as connection:
            check_publication_there(connection, name, wanted)
            slots.ensure_publication(connection, name, wanted)
            if not self.look().slot_exists:
                disclaim_slot(connection, name, self.state.slot)

    def adopt_slot(self) -> None:
        """Take over an existing slot. Its changes begin at its position; the bulk load's point is
        later.

        An earlier run of this pipeline created the slot and was killed before it could store the
        position. Raises SlotThereBefore for any other slot.
        """
        publication = self.config.change_extractor.publication
        check_adoptable(self.connection, publication, self.state.slot)
        if not self.has_begun:
            raise slot_there_before(self.connection, publication, self.state.slot)
        self.ensure_publication()
        with server_errors("reading the slot's position"):
            row = self.connection.execute(SLOT, {"slot": self.state.slot}).fetchone()
        assert row is not None
        position = str(row[1])
        state = msgspec.structs.replace(self.state, slot_position=position)
        if self.state.mode is HandoverMode.SNAPSHOT:
            state = state.with_step(1, "Stop Replication: nothing is stopped").with_step(
                2, f"Capture Position: {position}, where slot {state.slot} stands"
            )
            state = msgspec.structs.replace(state, phase=HandoverPhase.CAPTURED, position=position)
        self.save(state)

    def pause(self) -> None:
        pause_replay(self.connection)
        state = self.state.with_step(1, "Stop Replication: replay on the standby is paused")
        self.release()
        self.save(
            msgspec.structs.replace(state, phase=HandoverPhase.STOPPED, paused=True, snapshot_id="")
        )
        faults.point("handover.paused")

    def capture(self) -> None:
        """Read the frozen position and export a snapshot of the frozen standby."""
        self.release()
        kept = self.stack.enter_context(ExitStack())
        point = frozen_point(self.config, kept)
        self.kept, self.point = kept, point
        position = str(Lsn(point.position))
        if self.state.phase is not HandoverPhase.CAPTURED or self.state.position != position:
            self.state = self.state.with_step(
                2, f"Capture Position: {position}, on the paused standby"
            )
        self.save(
            msgspec.structs.replace(
                self.state,
                phase=HandoverPhase.CAPTURED,
                paused=True,
                position=position,
                snapshot_id=point.snapshot_id,
                snapshot_text=snapshot_text(self.config.source.url, point.snapshot_id),
                keeper_pid=point.keeper_pid,
            )
        )
        faults.point("handover.captured")

    def note_start(self) -> None:
        text = f"Start Change Processes: changes are extracted from {self.state.slot_position} on"
        self.save(
            msgspec.structs.replace(self.state.with_step(3, text), phase=HandoverPhase.STARTED)
        )

    def resume(self) -> None:
        if self.state.mode is HandoverMode.PAUSE:
            self.unpause()
            text = "Resume Replication: the standby replays again"
        else:
            text = "Resume Replication: nothing was stopped, changes are followed"
        self.save(msgspec.structs.replace(self.state.with_step(4, text), phase=HandoverPhase.DONE))
        faults.point("handover.resumed")

    def unpause(self) -> None:
        with server_errors("resuming replay"):
            self.connection.execute("select pg_wal_replay_resume()")
        self.save(msgspec.structs.replace(self.state, paused=False))

    def unpause_at_end(self) -> None:
        """Resume replay on the standby if we have left it paused."""
        if not self.state.paused:
            return
        with connect(self.config.source.url, application_name=APPLICATION_NAME) as connection:
            connection.execute("select pg_wal_replay_resume()")
        self.save(msgspec.structs.replace(self.state, paused=False))

    def release(self) -> None:
        """Release the snapshot. The file records that first, because the load may look for the
        snapshot.
        """
        kept, self.kept = self.kept, None
        self.point = None
        if kept is None:
            return
        if self.state.snapshot_id:
            self.save(msgspec.structs.replace(self.state, snapshot_id="", keeper_pid=0))
        kept.close()
