"""Doctor for lakes, which are targets only: the checks LC01 to LC09. The part `checks`.

They use the storage as the loader and its workers do, and start no JVM. Not here: questions to an
Iceberg catalogue, which the first job of a load asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from penstock.engines.lake.format import LakeUnreachable
from penstock.engines.lake.jars import LakeJarsMissing, delta_jars, find_jars, iceberg_jars
from penstock.engines.lake.merging import key_missing
from penstock.engines.lake.object_store import S3A
from penstock.engines.lake.plan import no_source
from penstock.engines.lake.storage import Folder, file_system, path_in
from penstock.engines.lake.url import DELTA, LakeUrl, parse_url
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError, TableName
from penstock.ports.checks import (
    Check,
    Checks,
    Examined,
    Finding,
    Looked,
    Severity,
    Side,
    SourceSeen,
    fix_of,
)

TARGET_CHECKS = Checks(Side.TARGET)
CHECKS: Sequence[Check] = TARGET_CHECKS
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ()
DROP_PROGRESS = (
    "remove the folder _penstock and the table penstock.batches: penstock reset FILE --target"
)
CHECKS_OF: Mapping[str, tuple[str, ...]] = {
    "LK12": ("PK17",),
    "LK13": ("LC09",),
    "LK20": ("LC02",),
}
NOT_FOUND_BEFORE: Mapping[str, str] = {
    "LK03 LK04 LK05 LK08": "of a table, while changes are applied",
    "LK10 LK11 LK40": "of tables and files that exist already, while rows are loaded",
    "LK60 LK61 LK62 LK63 LK64 LK65": "of `penstock.lake`, which reads tables",
    "LK66 LK67": "of `penstock lake`",
}
SKEW_S_MAX = 60.0
READER_HOURS_MIN = 1.0
CONNECT_S_MAX = 5.0
_PORTS: Mapping[str, int] = {
    "http": 80,
    "https": 443,
    "postgresql": 5432,
    "mysql": 3306,
    "mariadb": 3306,
}
_KEY_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
PROBE = "doctor"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSubject:
    """Subject of the checks.

    Attributes:
        is_local_spark: Workers run on this machine.
        keyless: The captured tables without a key.
    """

    lake: LakeUrl
    is_local_spark: bool
    keyless: tuple[TableName, ...] = ()

    @property
    def folder(self) -> Folder:
        """Folder of penstock's state."""
        return Folder(self.lake.state, self.lake.s3)


def server_errors(_doing: str) -> AbstractContextManager[None]:
    """Convert nothing: errors of the storage have their types already."""
    return nullcontext()


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Report that a lake is a target only."""
    looked.away(no_source(examined.config.source.url), Side.SOURCE)
    return SourceSeen()


def look_at_target(examined: Examined, looked: Looked, source: SourceSeen) -> bool:
    """Do the target's checks; return whether it was reached."""
    config = examined.config
    subject = LakeSubject(
        lake=parse_url(config.target.url),
        is_local_spark=config.spark.is_local,
        keyless=tuple(one.name for one in source.tables or () if not one.row_key),
    )
    try:
        next(iter(subject.folder.names()), None)
    except PenstockError as error:
        looked.away(error, Side.TARGET, TARGET_CHECKS)
        return False
    looked.look(TARGET_CHECKS, subject)
    return True


@TARGET_CHECKS.check("LC01", "files can be written in the lake")
def can_write(subject: LakeSubject) -> Iterator[Finding]:
    """Write a file, read it and remove it."""
    name, data = f"{PROBE}-{secrets.token_hex(4)}", secrets.token_bytes(8)
    folder = subject.folder
    try:
        with _leaving_nothing(subject):
            folder.write(name, data)
            is_same = folder.read(name) == data
            folder.remove(name)
    except LakeUnreachable as error:
        yield _finding("LC01", error.message, "no row can be written there", fix_of(error))
        return
    if not is_same:
        yield _finding(
            "LC01",
            f"{folder.location}/{name} did not have the bytes that were written a moment ago",
            "a storage that returns older bytes loses commits",
            "name a storage that reads what was written last",
        )


def _missing_folders(lake: LakeUrl) -> list[Path]:
    """Return the folders that the first file of the state will create, the outermost first."""
    if not lake.is_local:
        return []
    folder = Path(path_in(lake.state))
    return [one for one in (*reversed(folder.parents), folder) if not one.exists()]


@contextlib.contextmanager
def _leaving_nothing(subject: LakeSubject) -> Iterator[None]:
    """Remove the folders again that a check creates."""
    created = _missing_folders(subject.lake)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # one is not empty: a load has begun
            for one in reversed(created):
                one.rmdir()


@TARGET_CHECKS.check("LC02", "the format's jars")
def has_jars(subject: LakeSubject) -> Iterator[Finding]:
    """Check that the jars are there, of the versions that penstock is tested with."""
    try:
        jars = delta_jars if subject.lake.format == DELTA else iceberg_jars
        find_jars(jars(is_on_s3=subject.lake.is_on_s3))
    except LakeJarsMissing as error:
        yield _finding("LC02", error.message, "Spark cannot commit to the lake", fix_of(error))


@TARGET_CHECKS.check("LC03", "commits on an object store")
def commits_are_safe(subject: LakeSubject) -> Iterator[Finding]:
    """Report places where two writers could overwrite each other's commits."""
    lake = subject.lake
    if not lake.root.startswith("s3:"):
        return
    if lake.format == DELTA:
        yield _finding(
            "LC03",
            f"Delta tables at {lake.root} are safe with one writer only",
            "Delta's class for S3 looks for a commit's file before it writes it, and does not ask "
            "S3 to refuse the second of two: a compaction from elsewhere could be lost, or lose a "
            "batch",
            "let one loader work there, and run other maintenance of these tables while it is "
            "paused",
            severity=Severity.WARNING,
        )
    elif lake.properties.get("type") == "hadoop":
        yield _finding(
            "LC03",
            f"the catalogue {lake.catalog} has the type hadoop and its warehouse is on S3",
            "it commits by renaming a file, which S3 does not do at once: commits get lost",
            f'name a catalogue with a server: "spark.sql.catalog.{lake.catalog}.type" = "rest" or '
            '"jdbc"',
        )


@TARGET_CHECKS.check("LC04", "workers reach the lake's files")
def workers_reach(subject: LakeSubject) -> Iterator[Finding]:
    """Report a lake on a local disk whose workers run on other machines."""
    if subject.lake.root.startswith("file:") and not subject.is_local_spark:
        yield _finding(
            "LC04",
            f"{subject.lake.root} is a folder, and Spark's workers run on a cluster",
            "a worker writes files to its own machine's disk unless the folder is mounted on all",
            "mount the folder on every machine under the same path; or name a lake on S3",
            severity=Severity.WARNING,
        )


@TARGET_CHECKS.check("LC05", "clocks of this machine and the storage")
def clocks_agree(subject: LakeSubject) -> Iterator[Finding]:
    """Compare this machine's time with that of a file written now."""
    name = f"{PROBE}-{secrets.token_hex(4)}"
    folder = subject.folder
    try:
        with _leaving_nothing(subject):
            folder.write(name, b"")
            storage = file_system(subject.lake.state, subject.lake.s3)
            info = storage.get_file_info(f"{path_in(subject.lake.state)}/{name}")
            folder.remove(name)
    except (LakeUnreachable, OSError):
        return  # LC01 has said so
    now = datetime.fromtimestamp(REAL_CLOCK.now_us() / 1e6, UTC)
    skew_s = abs((info.mtime - now).total_seconds()) if info.mtime is not None else 0.0
    if skew_s > SKEW_S_MAX:
        yield _finding(
            "LC05",
            f"the clocks of this machine and of the storage differ by {skew_s:.0f} s",
            "VACUUM and expiry decide by time which files are old",
            "synchronise both clocks by NTP",
            severity=Severity.WARNING,
        )


@TARGET_CHECKS.check("LC06", "keys of the object store")
def has_keys(subject: LakeSubject) -> Iterator[Finding]:
    """Report an object store whose keys are found nowhere, or for one half of the work alone."""
    lake = subject.lake
    if not lake.is_on_s3:
        return
    named = [name for name in ("access.key", "secret.key") if lake.s3.get(name)]
    if len(named) == 1:
        missing = "secret.key" if named == ["access.key"] else "access.key"
        yield _finding(
            "LC06",
            f"{S3A}{missing} is not set, and {S3A}{named[0]} is",
            "both are needed to sign a request",
            f"set {S3A}{missing} below [spark.conf]",
        )
    elif not named and not _has_ambient_keys():
        yield _finding(
            "LC06",
            f"no keys for {lake.root or lake.state} below [spark.conf], nor in the environment",
            "only a role of the machine can provide them, on this machine and on each worker's",
            f"set {S3A}access.key and secret.key below [spark.conf], or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
            severity=Severity.WARNING,
        )
    elif not named and not subject.is_local_spark:
        yield _finding(
            "LC06",
            "the keys of the object store are in this machine's environment alone",
            "Spark's workers on other machines find none, unless those have a role",
            f"set {S3A}access.key and secret.key below [spark.conf]",
            severity=Severity.WARNING,
        )


def _has_ambient_keys() -> bool:
    """Return whether Amazon's libraries find keys or a role without being told."""
    if any(os.environ.get(name) for name in _KEY_VARIABLES):
        return True
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    return Path(shared).expanduser().is_file()


@TARGET_CHECKS.check("LC07", "the catalogue answers")
def catalogue_answers(subject: LakeSubject) -> Iterator[Finding]:
    """Connect to the catalogue's server from this machine: workers do not need it."""
    lake = subject.lake
    kind, uri = lake.properties.get("type", ""), lake.properties.get("uri", "")
    if lake.format == DELTA or kind not in ("rest", "jdbc"):
        return
    setting = f"spark.sql.catalog.{lake.catalog}.uri"
    if not uri:
        yield _finding(
            "LC07",
            f"the catalogue {lake.catalog} has no uri",
            "Spark does not know where it is",
            f"set {setting} below [spark.conf]",
        )
        return
    if reason := _why_unreachable(uri):
        yield _finding(
            "LC07",
            f"the catalogue {lake.catalog} cannot be reached: {reason}",
            "no table can be created or committed",
            f"check {setting} below [spark.conf], and that its server runs",
        )


def _why_unreachable(uri: str) -> str:
    """Return why a catalogue's place cannot be reached; empty if it can, or is not known."""
    if file := re.match(r"jdbc:sqlite:(/[^?]*)", uri):
        folder = Path(file[1]).parent
        return "" if folder.is_dir() else f"there is no folder {folder}"
    parts = urlsplit(uri.removeprefix("jdbc:"))
    port = parts.port or _PORTS.get(parts.scheme)
    if not parts.hostname or port is None:
        return ""
    try:
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S_MAX).close()
    except OSError as error:
        return f"{parts.hostname}:{port}: {error}"
    return ""


@TARGET_CHECKS.check("LC08", "versions are kept for readers")
def keeps_versions(subject: LakeSubject) -> Iterator[Finding]:
    """Report versions that end before a long query does."""
    lake = subject.lake
    if lake.version_hours < READER_HOURS_MIN:
        yield _finding(
            "LC08",
            f"earlier versions of tables are kept for {lake.version_hours:g} hours",
            "a query that takes longer than that fails when its files are removed",
            f"set [target] versionHours = {READER_HOURS_MIN:g} or more",
            severity=Severity.WARNING,
        )


@TARGET_CHECKS.check("LC09", "tables that Spark merges have a key")
def can_merge(subject: LakeSubject) -> Iterator[Finding]:
    """Report tables without a key, if Spark merges their rows."""
    if not subject.lake.merges:
        return
    for table in subject.keyless:
        error = key_missing(table)
        yield _finding("LC09", error.message, "the load does not start", fix_of(error))


def _finding(
    code: str, what: str, why: str, command: str, *, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(
        code=code, severity=severity, side=Side.TARGET, what=what, why=why, command=command
    )
