"""Begin of a group's log in this directory, when this instance has got the lease.

The target's row of the log says how far everything is applied, by any instance. If no other
instance has taken the row over since we did, our log continues. Else it is thrown away: it may end
before the target's position, and the changes after its end are staged and can be read again. Taking
over also voids what a loader of the last holder is about to commit.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from penstock.host import faults
from penstock.host.files import REAL_FILES
from penstock.host.state_file import StateFile
from penstock.log.layout import LogState, load_state, save_state
from penstock.model import FlushPoint
from penstock.model.layout import PipelineLayout
from penstock.ports.progress import SharedProgress
from penstock.stage.position import TakenOver

logger = structlog.get_logger(__name__)
faults.declare("stage.begin.taken_over", "stage.begin.emptied", "stage.begin.after")

HOLDER_FILE = "holder.json"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Token with which this directory took the log over last."""

    token: str


def take_over(log_id: str, progress: SharedProgress) -> TakenOver:
    """Become the one who moves the applied position. Call under the group's lease."""
    return TakenOver(log_id, progress.take_over(log_id, str(uuid.uuid4())).segment)


def begin_log(
    layout: PipelineLayout, log_id: str, source: Mapping[str, str], progress: SharedProgress
) -> None:
    """Prepare a log here that continues at the target's position. Call under the group's lease.

    source: the identity that the log's extractor names. Raises the errors of the disk and the
    target.
    """
    holders = StateFile(layout.root / HOLDER_FILE, Holder)
    state = load_state(layout.log)
    holder = holders.load()
    is_ours = state is not None and holder is not None and state.log_id == log_id
    if is_ours and holder is not None and progress.holder(log_id) == holder.token:
        return
    token = str(uuid.uuid4())
    applied = progress.take_over(log_id, token)
    faults.point("stage.begin.taken_over")
    holders.remove()
    for directory in (layout.log, layout.state, layout.spill):
        _empty(directory)
    faults.point("stage.begin.emptied")
    REAL_FILES.make_directory(layout.log)
    begin = FlushPoint(
        position=applied.position,
        gsn=applied.gsn,
        trx=applied.trx,
        commit_time_us=applied.commit_time_us,
    )
    number = applied.segment + 1
    save_state(
        layout.log,
        LogState(log_id=log_id, source=dict(source), number_next=number, end=begin),
    )
    holders.save(Holder(token=token))
    faults.point("stage.begin.after")
    logger.info("log begins where the target is", log=log_id, gsn=applied.gsn, segment=number)


def forget_log(layout: PipelineLayout) -> None:
    """Let the next `begin_log` take the log over again, in any case."""
    (layout.root / HOLDER_FILE).unlink(missing_ok=True)


def _empty(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
