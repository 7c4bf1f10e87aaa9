"""Doctor's checks of a node's directories: its log and the saved state, without the node."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from penstock.codec.ignite import wal
from penstock.engines.ignite.checks.probe import NODE_CHECKS, PLACE_CHECKS, NodeProbe, names
from penstock.engines.ignite.directory import segment_path, segments_in
from penstock.engines.ignite.lock import holder, reader_of
from penstock.engines.ignite.state import PLACE_FILE, STATE
from penstock.model import PenstockError
from penstock.model.segment_order import lost_count
from penstock.model.words import count_words
from penstock.ports.checks import Finding, Severity, fix_of

LAG_S_MAX = 3600.0
LAG_BYTES_MAX = 4 * 2**30
SILENT_S_MAX = 300.0
LOOKED_THROUGH_MAX = 50  # segments in which the end of the node's own mode is looked for
AGAIN_S = 1.0
DELETE = "penstock ignite delete-lost-segment-links {file}; penstock ignite resend {file} --caches "
DELETE += "with the caches that matter"
CDC_ENABLED = (
    "set cdcEnabled and persistenceEnabled in the node's DataRegionConfiguration, and restart it"
)


@PLACE_CHECKS.check("IG01", "directories of the node", change_only=True)
def directories(probe: NodeProbe) -> Iterator[Finding]:
    """Check that the directories exist. Without the one for consumers, no data region has CDC."""
    if not probe.store.is_dir():
        yield probe.finding(
            "IG01",
            Severity.ERROR,
            f"there is no {probe.store}",
            "it is not a work directory of this node, so nothing can be read there",
            "name the node's work directory and its consistentId in [source] url",
        )
    elif not probe.directory.is_dir():
        yield probe.finding(
            "IG01",
            Severity.ERROR,
            f"there is no {probe.directory}: change data capture is off in every data region",
            "the node keeps no segment for consumers, so changes are lost to them",
            f"{CDC_ENABLED}; where it has another cdcWalPath, name that in [source] url",
        )


@PLACE_CHECKS.check("IG02", "permissions", change_only=True)
def permissions(probe: NodeProbe) -> Iterator[Finding]:
    """Check that files can be read, segments deleted and the state written."""
    types = probe.url.work / "db" / "binary_meta" / probe.folder
    classes = probe.url.work / "db" / "marshaller"
    readable = (probe.store, types, classes, probe.directory, probe.directory / STATE)
    closed = [one for one in readable if one.exists() and not os.access(one, os.R_OK | os.X_OK)]
    segments = (segment_path(probe.directory, one) for one in _list_segments(probe.directory))
    closed += [one for one in segments if one.exists() and not os.access(one, os.R_OK)]
    if closed:
        yield probe.finding(
            "IG02",
            Severity.ERROR,
            f"{_account()} cannot read {names(closed)}",
            "changes, or the types of their values, cannot be read",
            f"setfacl -R -m u:{_account()}:rX {probe.url.work / 'db'}  -- with -d, too, for files "
            "to come; or run penstock as the node's user",
        )
    written = [one for one in (probe.directory, probe.directory / STATE) if one.is_dir()]
    fixed = [one for one in written if not os.access(one, os.W_OK | os.X_OK)]
    own = (probe.directory / "lock", probe.directory / STATE / PLACE_FILE)
    fixed += [one for one in own if one.exists() and not os.access(one, os.W_OK)]
    if fixed:
        yield probe.finding(
            "IG02",
            Severity.ERROR,
            f"{_account()} cannot write {names(fixed)}",
            "segments that were read cannot be removed, and the place behind them not be saved",
            f"setfacl -m u:{_account()}:rwx {probe.directory}; or run penstock as the node's user",
        )


@NODE_CHECKS.check("IG03", "owner of the state", change_only=True)
def ownership(probe: NodeProbe) -> Iterator[Finding]:
    """Check that no other user than the node's has left files that Ignite's own utility cannot
    open.
    """
    owner = probe.directory.stat().st_uid
    shared = (probe.directory / "lock", probe.directory / STATE)
    others = [one for one in shared if one.exists() and one.stat().st_uid != owner]
    shut = [one for one in others if not one.stat().st_mode & 0o022]
    if shut:
        yield probe.finding(
            "IG03",
            Severity.WARNING,
            f"{names(shut)} belongs to another user than {probe.directory}",
            "Ignite's own utility, and control.sh, cannot take their turn on this directory",
            f"chown -R --reference={probe.directory} {' '.join(map(str, shut))}; run penstock as "
            "the node's user",
        )


@NODE_CHECKS.check("IG04", "hard links", change_only=True)
def one_file_system(probe: NodeProbe) -> Iterator[Finding]:
    """Check that archived segments and their hard links are on one file system."""
    origin = probe.archive if probe.archive.is_dir() else probe.active
    if not origin.is_dir() or origin.stat().st_dev == probe.directory.stat().st_dev:
        return
    yield probe.finding(
        "IG04",
        Severity.ERROR,
        f"{probe.directory} is on another file system than {origin}",
        "the node cannot make hard links there: it fails when it archives a segment",
        "set cdcWalPath to a directory on the file system of walArchivePath, restart the node, and "
        "name it in [source] url",
    )


@NODE_CHECKS.check("IG05", "links of archived segments", change_only=True)
def newest_link(probe: NodeProbe) -> Iterator[Finding]:
    """Check that the newest archived segment has a link, unless links are switched off."""
    if not probe.archive.is_dir():
        return
    if _find_unlinked(probe):
        time.sleep(AGAIN_S)  # the link is created after the segment gets its name
    skipped = _find_unlinked(probe)
    if skipped:
        yield probe.finding(
            "IG05",
            probe.link_severity,
            f"the node has archived segment {skipped[-1]}, and its newest link is that of "
            f"{max((skipped[0] - 1, *segments_in(probe.directory)))}",
            "links are skipped: cdc.disabled is true, cdcWalDirectoryMaxSize is reached, or CDC is "
            "off in every data region; changes are lost to consumers",
            "control.sh --property get --name cdc.disabled; the node's log has a line for each "
            "skipped link",
        )


def _find_unlinked(probe: NodeProbe) -> list[int]:
    place = probe.place
    newest = max((*segments_in(probe.directory), place.segment if place else -1))
    return [one for one in segments_in(probe.archive) if one > newest]


@NODE_CHECKS.check("IG06", "holes", change_only=True)
def holes(probe: NodeProbe) -> Iterator[Finding]:
    """Check for missing segments, at which consumers stop."""
    place = probe.place
    last = [place.segment] if place is not None else []
    ahead = [one for one in probe.segments if place is None or one > place.segment]
    lost = lost_count([*last, *ahead])
    if not lost:
        return
    first = [*last, *ahead][lost]
    yield probe.finding(
        "IG06",
        Severity.ERROR,
        f"segments are missing: {[*last, *ahead][lost - 1]} is followed by {first}",
        "consumers end in front of the hole, as changes are lost in it",
        DELETE.format(file=probe.file),
    )


@NODE_CHECKS.check("IG07", "lag of consumers", change_only=True)
def lag(probe: NodeProbe) -> Iterator[Finding]:
    """Report the segments that no consumer has read yet: they take disk space."""
    stats = [one.stat() for one in probe.unread if one.exists()]
    if not stats:
        return
    age_s = max(0.0, time.time() - min(one.st_mtime for one in stats))
    size = sum(one.st_size for one in stats)
    is_far = age_s > LAG_S_MAX or size > LAG_BYTES_MAX
    yield probe.finding(
        "IG07",
        Severity.WARNING if is_far else Severity.INFO,
        f"not read yet: {count_words(len(stats), 'segment')}, {size / 2**20:.1f} MiB; the oldest "
        f"is {count_words(round(age_s / 60), 'minute')} old",
        "they are kept until a consumer has read them",
        f"penstock consume {probe.file} NAME" if is_far else "",
    )


@NODE_CHECKS.check("IG08", "readers of the directory", change_only=True)
def other_readers(probe: NodeProbe) -> Iterator[Finding]:
    """Report the process that reads the directory, from its lock."""
    pid = reader_of(probe.directory)
    if not pid:
        return
    yield probe.finding(
        "IG08",
        Severity.INFO if _is_ours(pid) else Severity.WARNING,
        f"process {pid} reads {probe.directory} ({holder(probe.directory)})",
        "another one cannot read it meanwhile",
        "" if _is_ours(pid) else f"kill {pid}  -- or start consumers with --standby",
    )


@NODE_CHECKS.check("IG09", "mode", change_only=True)
def mode(probe: NodeProbe) -> Iterator[Finding]:
    """Warn if the node counts as active and no segment has the record that ends it, for which
    consumers wait.
    """
    if probe.state.is_active():
        return
    there = probe.segments[:LOOKED_THROUGH_MAX]
    if not there or any(_has_stop(probe, one) for one in there):
        return
    yield probe.finding(
        "IG09",
        Severity.WARNING,
        f"the mode is IGNITE_NODE_ACTIVE, and none of segments {there[0]} to {there[-1]} ends it",
        "consumers are given nothing until the node says that it has stopped to be active, which "
        "it does when it starts",
        "restart the node; then penstock ignite resend with the caches that matter",
    )


def _has_stop(probe: NodeProbe, segment: int) -> bool:
    path = segment_path(probe.directory, segment)
    _, _, find = wal.wal_kernel()
    kinds = frozenset((wal.MANAGER_STOP_KIND,))
    record, _ = find(path.read_bytes(), wal.HEADER_BYTES, segment, kinds, str(path))
    return record is not None


@NODE_CHECKS.check("IG10", "form of the segments", change_only=True)
def form(probe: NodeProbe) -> Iterator[Finding]:
    """Check that each begins with a header of the supported version."""
    for segment in probe.segments:
        path = segment_path(probe.directory, segment)
        try:
            with path.open("rb") as file:
                wal.check_header(file.read(wal.HEADER_BYTES), segment, str(path))
        except FileNotFoundError:  # a consumer has finished it
            continue
        except PenstockError as error:
            yield probe.finding(
                "IG10",
                Severity.ERROR,
                error.message,
                "consumers end when they come to it",
                fix_of(error),
            )
            return


@NODE_CHECKS.check("IG11", "encryption", change_only=True)
def encryption(probe: NodeProbe) -> Iterator[Finding]:
    """Check for encrypted caches, whose records cannot be read."""
    found = [one.name for one in probe.caches if one.is_encrypted]
    if found:
        yield probe.finding(
            "IG11",
            Severity.WARNING,
            f"caches are encrypted: {names(found)}",
            "their changes cannot be read, neither here nor by Ignite's utility, and are passed "
            "over",
            'take them out of [source] tables, with "!" in front of their names',
        )


@NODE_CHECKS.check("IG12", "caches", change_only=True)
def caches(probe: NodeProbe) -> Iterator[Finding]:
    """Check for patterns that match no cache: a mistake, or a cache that is created later."""
    if not probe.caches:
        shown = names([one.removeprefix("*.") for one in probe.patterns])
        yield probe.finding(
            "IG12",
            Severity.WARNING,
            f"no cache of the node is called {shown}",
            "no change is given before there is one",
            f"ls {probe.store}  -- each folder cache-NAME is one; correct [source] tables",
        )


@NODE_CHECKS.check("IG22", "entries that expire", change_only=True)
def expiry(probe: NodeProbe) -> Iterator[Finding]:
    """Report caches whose entries expire: the log has no removal at that time."""
    found = [one.name for one in probe.caches if one.expiry is not None]
    if found:
        yield probe.finding(
            "IG22",
            Severity.INFO,
            f"entries of these caches expire: {names(found)}",
            "the node's log tells when, in expire_time of each change, and no removal at that time",
        )


@NODE_CHECKS.check("IG13", "segments that stay open", change_only=True)
def rotation(probe: NodeProbe) -> Iterator[Finding]:
    """Check that segments are closed in time. A node that writes little closes them late."""
    active = [one.stat().st_mtime for one in probe.active.glob("*.wal")]
    if not active:
        return
    closed = [one.stat().st_mtime for one in probe.archive.glob("*.wal")]
    silent_s = max(active) - (max(closed) if closed else min(active))
    if silent_s < SILENT_S_MAX:
        return
    yield probe.finding(
        "IG13",
        Severity.WARNING,
        f"the node writes into its segment, and has closed none for {silent_s / 60:.0f} minutes",
        "changes reach consumers when their segment is closed",
        "set walForceArchiveTimeout in DataStorageConfiguration, for example to 5000 (ms), and "
        "restart the node",
    )


@NODE_CHECKS.check("IG14", "log of the node", change_only=True)
def log_kept(probe: NodeProbe) -> Iterator[Finding]:
    """Check that the node's log has records, which it has not with WAL mode NONE."""
    if probe.segments or any(map(_has_record, probe.active.glob("*.wal"))):
        return
    yield probe.finding(
        "IG14",
        Severity.ERROR,
        f"{probe.active} has no segment with a record: the node writes no log",
        "changes cannot be read from it",
        "set walMode to LOG_ONLY or FSYNC in DataStorageConfiguration, and restart the node",
    )


def _has_record(path: Path) -> bool:
    with path.open("rb") as file:
        return any(file.read(wal.HEADER_BYTES + 1)[wal.HEADER_BYTES :])


def _list_segments(directory: Path) -> list[int]:
    return segments_in(directory) if directory.is_dir() and os.access(directory, os.R_OK) else []


def _account() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _is_ours(pid: int) -> bool:
    """Return whether a process is penstock, by the words of its command, not by paths among
    them.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    is_module = any(pair == (b"-m", b"penstock") for pair in pairwise(words))
    return is_module or any(word.rpartition(b"/")[2] == b"penstock" for word in words[:2])
