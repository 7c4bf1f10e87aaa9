"""The owner of a directory: `state/source.json` binds a pipeline's directory to its source.

The system identifier alone is not enough: a cloned server keeps it, so database and slot are kept
too. Not here: the lock against two processes at once (`penstock.log.writer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.host.files import REAL_FILES
from penstock.host.state_file import StateFile
from penstock.model import PenstockError
from penstock.ports.config import Config

IDENTITY_FILE = "source.json"


class DirectoryOfOtherPipeline(PenstockError):
    """The directory in the configuration belongs to another pipeline."""

    code = "CT10"
    retry = "operator"


class DirectoryOfOtherSource(PenstockError):
    """The directory was filled from another server or database than the configured one."""

    code = "CT11"
    retry = "operator"


class StateUnreadable(PenstockError):
    """A file below state/ has content that penstock did not write."""

    code = "CT12"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIdentity:
    """Server and database to which a directory belongs.

    timeline: of the server when this was written; it grows when a standby is promoted.
    """

    pipeline: str
    engine: str
    system_id: str
    timeline: int
    database: str
    database_id: int
    slot: str
    publication: str


def stored_identity(config: Config) -> SourceIdentity | None:
    """Return the source of the directory; None for a new one. Raises CheckpointCorrupt."""
    return StateFile(config.layout.state / IDENTITY_FILE, SourceIdentity).load()


def unreadable(path: Path, error: Exception) -> StateUnreadable:
    """Return the error for a state file that cannot be read."""
    return StateUnreadable(
        f"{path} cannot be read: {error}",
        hint="Put the file back from a copy, or take the pipeline to a new directory.",
    )


def check_identity(config: Config, stored: SourceIdentity | None, now: SourceIdentity) -> None:
    """Compare the directory's owner with the configuration and the server. Changes nothing.

    Raises DirectoryOfOtherPipeline or DirectoryOfOtherSource.
    """
    if stored is None:
        return
    check_pipeline(config, stored)
    for name, expected, actual in (
        ("engine", stored.engine, now.engine),
        ("system identifier", stored.system_id, now.system_id),
        ("database", stored.database, now.database),
        ("database oid", stored.database_id, now.database_id),
        ("replication slot", stored.slot, now.slot),
        ("publication", stored.publication, now.publication),
    ):
        if expected != actual:
            raise DirectoryOfOtherSource(
                f"{config.directory} was filled from another source: its {name} is {expected}, "
                f"the one at source.url has {actual}",
                hint="Name the old source again, or give this pipeline a directory of its own "
                "in [pipeline] directory.",
                expected=expected,
                actual=actual,
            )


def check_pipeline(config: Config, stored: SourceIdentity) -> None:
    """Compare the directory's pipeline with the configuration's, without asking a server."""
    if stored.pipeline != config.pipeline.name:
        raise DirectoryOfOtherPipeline(
            f"{config.directory} belongs to the pipeline {stored.pipeline}, not to "
            f"{config.pipeline.name}",
            hint="Give this pipeline a directory of its own in [pipeline] directory.",
            expected=stored.pipeline,
            actual=config.pipeline.name,
        )


def keep_identity(config: Config, identity: SourceIdentity) -> None:
    """Bind the directory to this source, durably. Call with the directory's lock held."""
    REAL_FILES.make_directory(config.layout.state)
    StateFile(config.layout.state / IDENTITY_FILE, SourceIdentity).save(identity)
