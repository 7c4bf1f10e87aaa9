"""Doctor's check of what the pipeline's directory holds, without asking a server (PK19)."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.control.pipeline import pipeline_of
from penstock.ports.checks import Checks, Finding, Severity, Side, mend_of
from penstock.ports.config import Config, Mode
from penstock.ports.extraction import extraction_of
from penstock.ports.handover import LogWithoutBulkLoad, check_bulk_load, read_handover

DIRECTORY_CHECKS = Checks(Side.HOST)


@DIRECTORY_CHECKS.check("PK19", "change log begun with a bulk load", change_only=True)
def begun_with(config: Config) -> Iterator[Finding]:
    """In mode data+change a log must have been begun with a bulk load, at one position."""
    if config.pipeline.mode is not Mode.DATA_CHANGE:
        return
    begun = extraction_of(config).has_begun(pipeline_of(config))
    try:
        check_bulk_load(config, read_handover(config), has_begun=begun)
    except LogWithoutBulkLoad as error:
        yield Finding(
            code="PK19",
            severity=Severity.ERROR,
            side=Side.HOST,
            what=error.message,
            why="it is not known which loaded rows its changes continue",
            command=mend_of(error),
        )
