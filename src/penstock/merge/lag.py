"""Part `lag` of a merge: how far a merged log is behind the sources of its logs."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import msgspec

from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.state_file import StateFile
from penstock.log.layout import SegmentMissing
from penstock.merge.extraction import place_of
from penstock.merge.inputs import MergeInput
from penstock.merge.state import STATE_FILE, InputState, MergeState
from penstock.model.layout import PipelineLayout
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState, Unread

EXTRACT_FILE = "extract.json"
ATTEMPTS = 5


class MergeLagReader(SourceReader):
    """Reader of the files of the logs; it asks no server."""

    is_closed = False

    def __init__(self, config: Config, application_name: str) -> None:
        """Read the file of a pipeline with [merge]."""
        del application_name
        self._config = config

    def state(self, log: LogEnd) -> SourceState:
        """Return the state. The position is after the log's if anything is not merged."""
        found = (self._since_us(one) for one in self._config.inputs)
        waiting = [us for us in found if us]
        return SourceState(
            position=log.end.position + bool(waiting),
            now_us=REAL_CLOCK.now_us(),
            slot_exists=True,
            slot_active=log.has_writer,
            confirmed=log.end.position,
            unread=Unread(commit_us=min(waiting, default=None)),
        )

    def _since_us(self, one: Config) -> int:
        """Return the commit time of the first unmerged transaction of a log; 0 if there is none.

        If the log is merged and its source is ahead, it is the watermark of its extractor.
        """
        for _ in range(ATTEMPTS):
            state = self._state(one.pipeline.name)
            # Segments that are merged meanwhile are removed.
            with suppress(FileMissing, SegmentMissing):
                if not state.is_over and (since_us := self._first_us(one, state)):
                    return since_us
                break
        facts = _facts_of(one.layout)
        is_ahead = not state.is_over and facts.get("lag_bytes")
        return int(facts.get("watermark_us", 0)) if is_ahead else 0

    def _state(self, name: str) -> InputState:
        path = self._config.layout.state / STATE_FILE
        states = StateFile(path, list[MergeState]).load() or [MergeState()]
        known = (one for one in states[-1].inputs if one.name == name)
        return next(known, InputState(name=name, number=0))

    def _first_us(self, one: Config, state: InputState) -> int:
        source = MergeInput(
            place_of(self._config, one),
            trx=state.reached.trx,
            number=state.segment,
            log_id=state.log_id,
        )
        with closing(source):
            chunk = source.read()
            while chunk is not None:
                rows = chunk.weights > 0  # nothing waits for heartbeats
                if rows.any():
                    return int(chunk.times_us[rows.argmax()])
                chunk = source.read()
        return 0

    def retention(self) -> Retention | None:
        return None

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _facts_of(layout: PipelineLayout) -> dict[str, Any]:
    """Return the facts that a log's extractor last reported."""
    with suppress(FileMissing, msgspec.DecodeError):
        found: dict[str, Any] = msgspec.json.decode(
            REAL_FILES.read_whole(layout.run / EXTRACT_FILE)
        )
        return found
    return {}
