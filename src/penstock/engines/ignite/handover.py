"""Handover of an Ignite source, in the extract process.

The place where the changes begin is noted before anything is read. Then every entry is read
once, so that the log and the bulk load begin with columns that hold all of them; a value that
does not fit them was put later, and arrives with the changes. Nothing is stopped, and nothing
has to be kept for the bulk load. Not here: reading its rows (`bulk_reader.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from penstock.engines.ignite.directory import NodeDirectory
from penstock.engines.ignite.source.position import IgnitePosition, position_of
from penstock.engines.ignite.source.scan import (
    check_address,
    keep_first,
    scanned_shapes,
    taken_caches,
)
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.ports.config import Config, Pipeline
from penstock.ports.direct import LogPlace
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)

LEARNED = "learned"
LOCK_TIMEOUT_MS = 1000

logger = structlog.get_logger(__name__)
faults.declare("ignite.handover.placed", "ignite.handover.learned")


def prepare(
    pipeline: Pipeline,
    directory: NodeDirectory,
    *,
    is_one: bool,
    has_begun: bool,
    stop: Callable[[], bool],
) -> int:
    """Make the handover and return the position where an empty log begins; 0 for the first
    segment.

    If it is stopped, the next start continues it. is_one: changes of no other node are read.
    has_begun: the log has a position.

    Raises LogWithoutBulkLoad, AddressMissing and the errors of scanning.
    """
    config = pipeline.config
    state = read_handover(config)
    check_bulk_load(config, state, has_begun=has_begun)
    if state is None or not state.slot_position:
        check_address(config)
        state = _note_place(config, directory, is_one=is_one)
        faults.point("ignite.handover.placed")
    if not state.position:
        state = _learn_columns(config, directory, state, stop)
    return IgnitePosition.parse(state.slot_position).ordinal


def begun_ms(config: Config) -> int:
    """Return when the handover noted its place, ms since 1970; 0 without a handover."""
    state = read_handover(config)
    if state is None or not state.steps:
        return 0
    return int(datetime.fromisoformat(state.steps[0].at).timestamp() * 1000)


def capture(directory: NodeDirectory, *, saves: bool = False) -> int:
    """Return the position after the last archived segment: a scan that begins now has all before
    it.

    If the node itself still delivers the changes, or has archived nothing, it is the position of
    the first segment.

    saves: note that the node has stopped delivering them; the directory's lock has to be held.
    """
    segments = directory.segments()
    if not directory.is_active():
        stops = (None in directory.node_states(segment, 0) for segment in segments)
        if not any(stops):
            return position_of(LogPlace(segments[0], 0, 0)) if segments else 0
        if saves:
            directory.save_active()
    saved = directory.load_place()
    places = [LogPlace(segments[-1] + 1, 0, 0)] if segments else []
    places += [saved] if saved is not None else []
    return position_of(max(places)) if places else 0


def _note_place(config: Config, directory: NodeDirectory, *, is_one: bool) -> Handover:
    """Note the place. For several nodes it is the beginning, because repeated older changes do no
    harm.
    """
    place = 0
    if is_one:
        held = directory.lock(LOCK_TIMEOUT_MS, stop=lambda: False, clock=REAL_CLOCK)
        assert held is not None, "it was not asked to stop"
        try:
            place = capture(directory, saves=True)
        finally:
            held.release()
    position = str(IgnitePosition(place))
    names = tuple(one.name for one in taken_caches(config, directory))
    state = Handover(slot_position=position, tables=names)
    state = state.with_step(1, "Stop Replication: nothing is stopped")
    write_handover(config, state)
    logger.info("handover", phase=state.phase.value, position=position)
    return state


def _learn_columns(
    config: Config, directory: NodeDirectory, state: Handover, stop: Callable[[], bool]
) -> Handover:
    found = scanned_shapes(config, directory, taken_caches(config, directory), stop=stop)
    if stop():
        return state
    keep_first(config, found)
    position = state.slot_position
    for number, text in (
        (2, f"Capture Position: {position}, before every row that is read"),
        (3, f"Start Change Processes: changes are extracted from {position} on"),
        (4, "Resume Replication: nothing was stopped"),
    ):
        state = state.with_step(number, text)
    state = msgspec.structs.replace(
        state,
        phase=HandoverPhase.DONE,
        position=position,
        snapshot_id=position,
        snapshot_text=LEARNED,
    )
    write_handover(config, state)
    logger.info("handover", phase=state.phase.value, position=position)
    faults.point("ignite.handover.learned")
    return state
