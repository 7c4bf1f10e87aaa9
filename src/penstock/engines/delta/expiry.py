"""Removal of what a Delta table no longer needs: the log before a checkpoint, and data files.

penstock does it in place of Delta, whose own removal knows nothing of the versions that the table
of batches names. Files are listed and deleted through the storage, without a job. Not here: which
versions and times are kept (`engines/lake/expiry.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from pyarrow import fs

from penstock.engines.delta.places import location_of, parse_vector
from penstock.engines.delta.state import State
from penstock.engines.lake.format import LakeUnreachable, LiveFile
from penstock.engines.lake.storage import file_system, path_in

_LOG_FILE = re.compile(
    r"(?P<version>\d{20})\.(?:json|crc|checkpoint(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})"
    r"|\.[0-9a-f\-]{36})?\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(?P<version>\d{20})\.compacted\.json")
_DATA_FILE = re.compile(r".+\.(?:parquet|bin)")


def clean_log(
    folder: str, storage: Mapping[str, str], floor: int, *, before_us: int
) -> tuple[int, int]:
    """Remove the log before the newest checkpoint that is not after a version.

    Args:
        folder: The table's.
        storage: See `storage.file_system`.
        floor: The oldest version that must stay readable.
        before_us: A file that was written later stays, microseconds since 1970 UTC.

    Returns the number of removed versions, and the oldest version that can be read now. Raises
    LakeUnreachable.
    """
    infos = [(parse_log_name(info.base_name), info) for info in _list_log(folder, storage)]
    complete = find_checkpoints(info.base_name for _, info in infos)
    base = max((version for version in complete if version <= floor), default=-1)
    doomed = sorted(
        (version, info.path)
        for version, info in infos
        if version is not None and version < base and _is_older(info, before_us)
    )
    files = file_system(folder, storage)
    for _, path in doomed:
        _delete(files, path)
    gone = {path for _, path in doomed}
    removed = sum(_is_commit(info.base_name) for _, info in infos if info.path in gone)
    left = [info.base_name for _, info in infos if info.path not in gone]
    return removed, oldest_readable(left)


def find_oldest(folder: str, storage: Mapping[str, str]) -> int:
    """Return the oldest version that can be read. Raises LakeUnreachable."""
    return oldest_readable(info.base_name for info in _list_log(folder, storage))


def oldest_readable(names: Iterable[str]) -> int:
    """Return the oldest version that can be read with these files of the log: 0 or a checkpoint."""
    present = list(names)
    if any(_is_commit(name) and parse_log_name(name) == 0 for name in present):
        return 0
    return min(find_checkpoints(present), default=0)


def parse_log_name(name: str) -> int | None:
    """Return the version that a file of the log is of; None if it is of none."""
    found = _LOG_FILE.fullmatch(name) or _COMPACTED.fullmatch(name)
    return int(found["version"]) if found is not None else None


def find_checkpoints(names: Iterable[str]) -> set[int]:
    """Return the versions of the checkpoints all of whose parts exist."""
    complete: set[int] = set()
    parts: dict[tuple[int, int], set[int]] = {}
    for name in names:
        found = _LOG_FILE.fullmatch(name)
        if found is None or ".checkpoint." not in name:
            continue
        version = int(found["version"])
        if found["part"] is None:
            complete.add(version)
            continue
        present = parts.setdefault((version, int(found["parts"])), set())
        present.add(int(found["part"]))
        if len(present) == int(found["parts"]):
            complete.add(version)
    return complete


def needed_files(state: State, tombstones: str) -> frozenset[str]:
    """Return the paths of all files that a version needs, within their file system.

    tombstones: actions of removed files that are needed, as JSON, one in each line.
    """
    needed = {path_in(location) for file in state.files.values() for location in _places(file.live)}
    for line in filter(None, tombstones.split("\n")):
        action = json.loads(line)["remove"]
        needed.add(path_in(location_of(action["path"], state.folder)))
        if vector := action.get("deletionVector"):
            needed.add(path_in(parse_vector(vector, state.folder).location))
    return frozenset(needed)


def _places(live: LiveFile) -> Iterator[str]:
    yield live.location
    for ref in live.deletes:
        if ref.location:
            yield ref.location


def delete_files(
    folder: str, storage: Mapping[str, str], needed: frozenset[str], *, before_us: int
) -> tuple[int, int]:
    """Delete the data files and deletion vectors in a table's folder that no version needs.

    Args:
        folder: The table's.
        storage: See `storage.file_system`.
        needed: Paths of files that stay.
        before_us: A file that was written later stays too: its commit may be to come.

    Returns the number of files and their bytes. Raises LakeUnreachable.
    """
    files, root = file_system(folder, storage), path_in(folder)
    count = size = 0
    for info in _list(folder, storage, is_recursive=True):
        inner = str(info.path).removeprefix(root).lstrip("/")
        is_data = _DATA_FILE.fullmatch(info.base_name) is not None and not is_hidden(inner)
        if is_data and str(info.path) not in needed and _is_older(info, before_us):
            _delete(files, info.path)
            count, size = count + 1, size + info.size
    return count, size


def is_hidden(path: str) -> bool:
    """Return whether a path in a table's folder is not of its data.

    The folder of a partition may begin with _.
    """
    return any(part.startswith((".", "_")) and "=" not in part for part in path.split("/"))


def _is_commit(name: str) -> bool:
    return len(name) == len("00000000000000000000.json") and name.endswith(".json")


def _is_older(info: fs.FileInfo, before_us: int) -> bool:
    limit = datetime.fromtimestamp(before_us / 1e6, UTC)
    return info.mtime is not None and info.mtime < limit


def _list_log(folder: str, storage: Mapping[str, str]) -> Iterator[fs.FileInfo]:
    return _list(f"{folder}/_delta_log", storage)


def _list(
    folder: str, storage: Mapping[str, str], *, is_recursive: bool = False
) -> Iterator[fs.FileInfo]:
    selector = fs.FileSelector(path_in(folder), allow_not_found=True, recursive=is_recursive)
    try:
        found = file_system(folder, storage).get_file_info(selector)
    except OSError as error:
        raise _unreachable("list", folder, error) from error
    yield from (info for info in found if info.type is fs.FileType.File)


def _delete(files: fs.FileSystem, path: str) -> None:
    try:
        files.delete_file(path)
    except FileNotFoundError:
        return  # another process deletes the same files
    except OSError as error:
        raise _unreachable("remove", path, error) from error


def _unreachable(doing: str, place: str, error: OSError) -> LakeUnreachable:
    return LakeUnreachable(
        f"cannot {doing} {place}: {error}",
        hint="Check that the storage answers, and that this account may list and remove there.",
    )
