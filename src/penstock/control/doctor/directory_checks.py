"""Doctor's checks of the pipeline's directory, asking no server (PK19, PK21, PK26)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from penstock.control.pipeline.file_edits import (
    find_edited,
    find_refusal,
    load_settings,
    make_left_error,
)
from penstock.control.pipeline.servers import followed_tables, pipeline_of
from penstock.model import PenstockError
from penstock.ports.checks import Checks, Finding, Severity, Side, fix_of
from penstock.ports.config import Config, Mode
from penstock.ports.handover import LogWithoutBulkLoad, check_bulk_load, read_handover
from penstock.ports.progress import open_target_reader
from penstock.ports.source import extraction_of

DIRECTORY_CHECKS = Checks(Side.HOST)


@DIRECTORY_CHECKS.check("PK19", "change log begun with a bulk load", change_only=True)
def begun_with(config: Config) -> Iterator[Finding]:
    """A log in mode data+change must have begun with a bulk load, at one position."""
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
            command=fix_of(error),
        )


@DIRECTORY_CHECKS.check("PK21", "file that keeps progress", change_only=True)
def progress_kept(config: Config) -> Iterator[Finding]:
    """Without a target, a file in the directory has its tables: it must be readable."""
    if config.has_target:
        return
    url = config.target.url
    try:
        with closing(open_target_reader(url, application_name="penstock doctor")) as reader:
            if reader.present()[0]:
                reader.action()
                reader.newest("CE")
    except PenstockError as error:
        yield Finding(
            code="PK21",
            severity=Severity.ERROR,
            side=Side.HOST,
            what=error.message,
            why="progress would not be recorded, nor an action obeyed",
            command=fix_of(error),
        )


@DIRECTORY_CHECKS.check("PK26", "edits of the pipeline file")
def check_edits(config: Config) -> Iterator[Finding]:
    """Check that no edit since the last start loses rows, and name the tables it leaves out."""
    error = find_refusal(config)
    if error is not None:
        yield _edit(Severity.ERROR, error, "rows or changes would be missing in the target")
        return
    known = followed_tables(config) if config.pipeline.mode.has_change else None
    if known is None:
        return
    for table in find_edited(config, known, load_settings(config))[0]:
        why = make_left_error(config, table)
        yield _edit(Severity.WARNING, why, "its changes from now on do not arrive")


def _edit(severity: Severity, error: PenstockError, why: str) -> Finding:
    return Finding(
        code="PK26",
        severity=severity,
        side=Side.HOST,
        what=error.message,
        why=why,
        command=fix_of(error),
    )
