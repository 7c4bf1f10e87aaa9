"""Deleting segments before a hole, as `control.sh --cdc delete_lost_segment_links` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import structlog

from penstock.engines.ignite.directory import segment_path, segments_in
from penstock.engines.ignite.lock import CdcLock, holder, not_acquired
from penstock.engines.ignite.state import CdcState
from penstock.engines.ignite.url import IgniteUrl, folder_of
from penstock.host.files import REAL_FILES, Files
from penstock.model import PenstockError
from penstock.model.lost_links import lost_count
from penstock.ports.commands import Done
from penstock.ports.registry import split_urls

# As published.
FOUND = "Lost segment CDC links successfully removed."
NOT_FOUND = "Lost segment CDC links were not found."
NOT_CONFIGURED = "CDC is not configured."

logger = structlog.get_logger(__name__)


class CdcNotConfigured(PenstockError):
    """The node has no directory for consumers. fields: path."""

    code = "IG60"
    retry = "operator"


class LostLinksTaken(PenstockError):
    """Another process reads the directory whose lost segments should be deleted. fields: path,
    holder.
    """

    code = "IG61"
    retry = "operator"


def delete_lost(url: str, node_id: str | None) -> Iterator[Done]:
    """Delete the lost segments of one node, or of all nodes. Raises CdcNotConfigured,
    LostLinksTaken.
    """
    nodes = [IgniteUrl.parse(one) for one in split_urls(url)]
    wanted = [one for one in nodes if not node_id or one.folder == folder_of(node_id)]
    for node in wanted or nodes[:1]:
        for directory in _directories(node, node_id):
            lost = delete_below_hole(directory)
            message = FOUND if lost else NOT_FOUND
            fields = {"node": directory.name, "segments": lost, "message": message}
            yield Done(message=f"{directory.name}: {message}", fields=fields)


def _directories(url: IgniteUrl, node_id: str | None) -> list[Path]:
    root = url.work / url.cdc_path
    folder = folder_of(node_id) if node_id else url.folder
    there = sorted(one for one in root.iterdir() if one.is_dir()) if root.is_dir() else []
    found = [one for one in there if not folder or one.name == folder]
    if not found:
        raise CdcNotConfigured(
            NOT_CONFIGURED,
            hint=f"There is no {root / (folder or '<node>')}. It has "
            f"{', '.join(one.name for one in there) or 'no node'}: name the node with --node-id, "
            "and its work directory in url; set cdcEnabled in its data region.",
            path=str(root / folder),
        )
    return found


def delete_below_hole(directory: Path, files: Files = REAL_FILES) -> list[int]:
    """Delete the segments below the last hole, and the saved place if any; return their numbers.

    The place is deleted first: after a crash in between, the remaining segments are found again.
    If it raises LostLinksTaken, nothing was changed.
    """
    try:
        lock = CdcLock(directory)
    except BlockingIOError as error:
        held_by = holder(directory)
        raise LostLinksTaken(
            "Failed to delete lost segment CDC links. Unable to acquire lock to lock CDC folder. "
            "Make sure a CDC app is shut down "
            f"[dir={directory}, reason={not_acquired(directory, held_by)}]",
            hint=f"{held_by} reads it: end that process, then run the same command again.",
            path=str(directory),
            holder=held_by,
        ) from error
    try:
        found = segments_in(directory, files)
        lost = found[: lost_count(found)]
        if lost:
            CdcState(directory, files).drop_place()
        for segment in lost:
            path = segment_path(directory, segment)
            files.unlink(path)
            deleted = f"Segment CDC link deleted [file={path}]"
            logger.info(deleted)
        return lost
    finally:
        lock.release()
