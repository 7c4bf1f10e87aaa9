"""A configured pipeline, as engines see it: see `penstock.ports.config`."""

from __future__ import annotations

from penstock.load.ledger import read_ledger
from penstock.log.state import load_state
from penstock.ports.config import BulkState, Config, Pipeline


def pipeline_of(config: Config) -> Pipeline:
    """Return the pipeline of a configuration; its files are read at each call."""

    def log_position() -> int:
        state = load_state(config.layout.log)
        return 0 if state is None else state.end.position

    def bulk() -> BulkState:
        ledger = read_ledger(config.layout.state)
        return BulkState(
            copied=ledger.copied,
            finished=ledger.finished,
            planned=frozenset(plan.source for plan in ledger.plans),
        )

    return Pipeline(config=config, log_position=log_position, bulk=bulk)
