"""What of `penstock stage` writes rows straight into the target: its parts, and its thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.row_apply import row_target_at
from penstock.ports.stage_config import StageMode, StageSection, seconds
from penstock.ports.staging import Group, Lease, StagingDatabase, StagingSession, group_name

if TYPE_CHECKING:
    from penstock.control.stage_target import TargetSchemas
    from penstock.stage.apply.sequencer import RowSequencer
    from penstock.stage.metrics import Metrics
    from penstock.stage.script import Script

logger = structlog.get_logger()
ROUND_S = 1.0
AGAIN_S = 10.0
"""After a round in which something had to wait or failed."""


def script_of(config: Config) -> Script:
    """The user's module of a pipeline. Raises UserModuleInvalid."""
    from penstock.stage.script import load_script

    section = _section(config)
    return load_script(section.user_module, beside=config.path.parent)


def _section(config: Config) -> StageSection:
    assert config.stage is not None, "a file for changefeeds"
    return config.stage


def with_options(section: StageSection, script: Script) -> StageSection:
    """The section with what the user's module sets; what the file says wins.

    Raises UserModuleInvalid.
    """
    from penstock.stage.script import UserModuleInvalid

    names = {
        "mode": "mode",
        "bestEffortWindow": "best_effort_window",
        "dlqTableName": "dlq_table_name",
    }
    default = StageSection()
    found = section
    for key, text in script.options.items():
        name = names[key]
        if getattr(section, name) != getattr(default, name):
            continue
        try:
            value: Any = StageMode(text) if key == "mode" else text
            if key == "bestEffortWindow":
                seconds(text)
        except ValueError as error:
            raise UserModuleInvalid(
                f"set_options: {key} = {text!r} is not understood",
                hint="Write it as in [stage] of the pipeline file.",
            ) from error
        changed: dict[str, Any] = {name: value}
        found = replace(found, **changed)
    return found


@contextmanager
def row_sequencer(config: Config, metrics: Metrics, script: Script) -> Iterator[RowSequencer]:
    """What accepts mutations and sweeps those that were staged."""
    from penstock.stage.apply.metrics import ApplyMetrics
    from penstock.stage.apply.sequencer import RowSequencer, SequencerOptions
    from penstock.stage.receiver.app import THREADS
    from penstock.stage.receiver.sessions import Sessions

    section = with_options(_section(config), script)
    options = SequencerOptions(
        mode=section.mode,
        best_effort_window_s=seconds(section.best_effort_window),
        dlq_table=section.dlq_table_name,
    )
    # A thread has one session while it writes and may ask for another to read the catalogue.
    with Sessions(row_target_at(config.target.url), 2 * THREADS + 2) as target:
        yield RowSequencer(
            target, metrics=ApplyMetrics(metrics.registry), script=script, options=options
        )


class Sweeps:
    """Does the rounds of every group of a target, each under its lease, until the block ends.

    error: what has ended them.
    """

    def __init__(
        self,
        database: StagingDatabase,
        sequencer: RowSequencer,
        schemas: TargetSchemas,
        lease_s: float,
    ) -> None:
        self.error: PenstockError | None = None
        self._database, self._sequencer, self._schemas = database, sequencer, schemas
        self._lease_s = lease_s
        self._stop = threading.Event()
        self._leases: dict[Group, Lease] = {}
        self._renew_s: dict[Group, float] = {}
        self._wait_until_s: dict[Group, float] = {}
        self._thread = threading.Thread(target=self._run, name="sweeps", daemon=True)

    def __enter__(self) -> Sweeps:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End behind the round that is going on."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.opened() as session:
                    try:
                        while not self._stop.is_set():
                            self._rounds(session)
                            self._stop.wait(ROUND_S)
                    finally:
                        for lease in self._leases.values():
                            session.release(lease)
                        self._leases.clear()
            except PenstockError as error:
                logger.warning("staged rows not swept", code=error.code, error=error.message)
                self._stop.wait(AGAIN_S if error.retry == "operator" else ROUND_S)

    def _rounds(self, session: StagingSession) -> None:
        for name in session.group_names():
            group = self._schemas.group_of(name)
            now_s = REAL_CLOCK.monotonic_s()
            if group is None or now_s < self._wait_until_s.get(group, 0.0):
                continue
            if not self._holds(session, group, now_s):
                continue
            try:
                self._sequencer.round(session, group)
            except PenstockError as error:
                if error.retry == "backoff":
                    raise
                self._wait_until_s[group] = now_s + AGAIN_S
                logger.warning(
                    "staged rows not applied",
                    schema=name,
                    code=error.code,
                    error=error.message,
                    hint=error.hint,
                )

    def _holds(self, session: StagingSession, group: Group, now_s: float) -> bool:
        lease = self._leases.pop(group, None)
        if lease is not None and now_s < self._renew_s[group]:
            self._leases[group] = lease
            return True
        if lease is not None:
            lease = session.renew(lease, self._lease_s)
        else:
            names = [f"sequtil.Lease.{group_name(group)}"]
            found = session.acquire(names, self._lease_s, socket.gethostname())
            lease = found if isinstance(found, Lease) else None
        if lease is not None:
            self._leases[group], self._renew_s[group] = lease, now_s + self._lease_s / 2
        return lease is not None
