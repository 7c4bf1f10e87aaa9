"""The handover of an Ignite source, in the extract process.

The place where the changes begin is noted before anything is read. Then every entry is looked at
once, so that the log and the bulk load begin with columns that hold them all; what has no place in
them was put later, and comes with the changes. Nothing is stopped, and nothing has to be kept for
the bulk load. Not here: reading its rows (`bulk_reader.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from penstock.engines.ignite.directory import NodeDirectory
from penstock.engines.ignite.source.position import IgnitePosition, position_of
from penstock.engines.ignite.source.scanned import (
    check_address,
    keep_first,
    scanned_shapes,
    taken_caches,
)
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.ports.config import Config
from penstock.ports.direct import LogPlace
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)
from penstock.ports.pipeline import Pipeline

LEARNED = "learned"
LOCK_TIMEOUT_MS = 1000

logger = structlog.get_logger(__name__)
faults.declare("ignite.handover.placed", "ignite.handover.learned")


def prepared(
    pipeline: Pipeline,
    directory: NodeDirectory,
    *,
    is_one: bool,
    has_begun: bool,
    stop: Callable[[], bool],
) -> int:
    """Make the handover; the position where an empty log begins, 0 for the first segment.

    is_one: there is no other node whose changes are read. has_begun: the log has a position.
    Stopped in between it is taken up again by the next start. Raises LogWithoutBulkLoad,
    AddressMissing and what scanning does.
    """
    config = pipeline.config
    state = read_handover(config)
    check_bulk_load(config, state, has_begun=has_begun)
    if state is None or not state.slot_position:
        check_address(config)
        state = _placed(config, directory, is_one=is_one)
        faults.point("ignite.handover.placed")
    if not state.position:
        state = _learned(config, directory, state, stop)
    return IgnitePosition.parse(state.slot_position).ordinal


def begun_ms(config: Config) -> int:
    """When the handover noted its place, ms since 1970; 0 without one."""
    state = read_handover(config)
    if state is None or not state.steps:
        return 0
    return int(datetime.fromisoformat(state.steps[0].at).timestamp() * 1000)


def capture(directory: NodeDirectory, *, saves: bool = False) -> int:
    """The position behind all that is archived: a scan that begins now has all before it.

    Where the node itself still gives the changes, or has archived nothing, the first segment's.
    saves: note that it has stopped giving them; the directory's lock has to be held.
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


def _placed(config: Config, directory: NodeDirectory, *, is_one: bool) -> Handover:
    """Note the place. Of several nodes it is the beginning: older changes do no harm."""
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


def _learned(
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
