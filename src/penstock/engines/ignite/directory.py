"""Work directory of a node: its segments for consumers, and its files of types and caches."""

from __future__ import annotations

import contextlib
import datetime
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import structlog

from penstock.codec.ignite import marshal, wal
from penstock.codec.ignite.changes import Changes
from penstock.codec.ignite.types import BinaryType, Types, cache_id
from penstock.codec.ignite.values import with_plain_dates
from penstock.codec.ignite.wal import Version, wal_kernel
from penstock.engines.ignite import lock
from penstock.engines.ignite.state import CdcState
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.clock import Clock
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.model import PenstockError
from penstock.ports.direct import DirectLog, LogPlace, Told
from penstock.ports.registry import split_urls

if TYPE_CHECKING:
    from penstock.codec.ignite.wal import Entry
else:
    _, Entry, _ = wal_kernel()

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_OPS = {1: "I", 2: "U", 3: "D", 4: "U"}


class CdcEvent(Entry):
    """One change of one key. Key and value are decoded when they are accessed.

    Attributes:
        primary: False for a backup copy.
        partition, cache_id: as in Ignite.
        key_bytes, value_bytes: as the node marshalled them.
    """

    __slots__ = ()
    names: ClassVar[Mapping[int, str]] = {}

    @property
    def op(self) -> str:
        """I, U or D. An atomic cache logs U for the first value of a key, too."""
        return _OPS[self.operation]

    @property
    def table(self) -> str:
        """Name of the cache; its id if the cache is gone."""
        return self.names.get(self.cache_id) or str(self.cache_id)

    @property
    def version(self) -> Version | None:
        """Version that orders the changes of one key: a later change has the greater version."""
        return self.write_version

    @property
    def expire_time(self) -> int:
        """Time at which it expires, ms since 1970; 0: never."""
        return self.expire_time_ms

    @property
    def source_xid(self) -> Version | None:
        """Id of the transaction, shared by its changes; None outside a transaction."""
        return self.near_version

    @property
    def commit_time(self) -> datetime.datetime:
        """Time at which the node wrote it; UTC."""
        return _EPOCH + datetime.timedelta(milliseconds=self.time_ms)

    def __repr__(self) -> str:
        return f"CdcEvent({self.op} {self.table} {self.key!r})"


class PlainCdcEvent(CdcEvent):
    """A change for a consumer with keepBinary = false: dates are datetime objects."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        """Key as in CdcEvent, with plain dates."""
        return with_plain_dates(super().key)

    @property
    def value(self) -> Any:
        """Value as in CdcEvent, with plain dates."""
        return with_plain_dates(super().value)


CACHE_FILE = "cache_data.dat"
SYSTEM_CACHE = "cache-ignite-sys-cache"
SYSTEM_NAME = SYSTEM_CACHE.removeprefix("cache-")
_SEGMENT = re.compile(r"\d{16}\.wal\Z")
_MAPPING = re.compile(r"(-?\d+)\.classname(\d)\Z")
PLATFORMS = {0: "JAVA", 1: "DOTNET"}

logger = structlog.get_logger(__name__)


class CdcDirectoryMissing(PenstockError):
    """There is no CDC directory of this node. fields: path."""

    code = "IG52"
    retry = "operator"


class TypeMapping(NamedTuple):
    """A class and its number. platform: JAVA or DOTNET."""

    type_id: int
    type_name: str
    platform: str


class Cache(NamedTuple):
    """A cache. group: the group of caches with which it shares files; usually None."""

    cache_id: int
    name: str
    group: str | None


def open_directory(url: str) -> NodeDirectory:
    """Return the part `direct` of the engine. Raises UrlInvalid, CdcDirectoryMissing."""
    return NodeDirectory(IgniteUrl.parse(url))


def open_any(text: str) -> NodeDirectory:
    """Return the first node of a list whose directories exist. Raises the errors of
    open_directory().
    """
    error: CdcDirectoryMissing | None = None
    for url in split_urls(text):
        try:
            return open_directory(url)
        except CdcDirectoryMissing as missing:
            error = error or missing
    assert error is not None, "a list has a URL"
    raise error


class Segment(NamedTuple):
    """All bytes of a segment.

    Attributes:
        checked: see `wal.checked_end`.
        scanned: its changes, if they are known.
    """

    data: bytes
    checked: int = 0
    scanned: wal.Scanned | None = None


class _Ahead:
    """Reader of a segment in a separate thread. A file that it cannot read is left to the
    caller.

    The result counts only if the file has not changed since: a copy may still be growing.
    """

    def __init__(self, segment: int, path: Path, read: Callable[[int], Segment]) -> None:
        self.segment = segment
        self._path = path
        self._read = read
        self._found: tuple[tuple[int, ...], Segment] | None = None
        self._thread = threading.Thread(target=self._run, name="segment ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # It may be missing, or broken: reading it in its turn raises the error.
        with contextlib.suppress(PenstockError, OSError):
            stamp = _stamp(self._path)
            self._found = stamp, self._read(self.segment)

    def result(self) -> Segment | None:
        """Return the segment; None if it could not be read."""
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._found is not None and self._found[0] == _stamp(self._path):
                return self._found[1]
        return None


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


class NodeDirectory(CdcState, DirectLog):
    """Directory in which a node leaves its log, and the state of its consumers."""

    not_alive = "Consumer is not alive. Ignite Change Data Capture Application will be stopped."
    stopping = "Stopping Change Data Capture service instance"
    hole_hint = (
        "Go on behind the hole: penstock ignite delete-lost-segment-links FILE; then fill it: "
        "penstock ignite resend FILE --caches with the caches that matter."
    )

    def __init__(self, url: IgniteUrl, files: Files = REAL_FILES) -> None:
        """Find the directories. Raises CdcDirectoryMissing."""
        folder = url.folder or only_folder(url)
        db = url.work / "db"
        self._caches_in = db / folder
        self._types_in = db / "binary_meta" / folder
        self._mappings_in = db / "marshaller"
        self.directory = url.work / url.cdc_path / folder
        super().__init__(self.directory, files)
        self._check(url)
        self.make()
        self.types_read = Types(self._read_type, self._class_name)
        self._decode = marshal.decoder(self.types_read)
        self._walk, _, self._find = wal.wal_kernel()
        self._scan, self._checked_end = wal.scan_kernel()
        self._ahead: _Ahead | None = None
        self._names: dict[int, str] = {cache_id(SYSTEM_NAME): SYSTEM_NAME}
        self._configs: dict[str, Path] = {}
        self._warned: set[int] = set()
        self._event = self._event_of(CdcEvent)

    def _event_of(self, kind: type[CdcEvent]) -> type[CdcEvent]:
        return type("CdcEvent", (kind,), {"__slots__": (), "names": self._names})

    def give_plain(self) -> None:
        self._event = self._event_of(PlainCdcEvent)

    def know_tables(self, names: Sequence[str]) -> None:
        """Note the names of caches: the log has only a cache's id, which follows from its name."""
        self._names.update({cache_id(name): name for name in names})

    def name_of(self, number: int) -> str | None:
        """Return the name of a cache that exists, existed, or is known; None for another."""
        return self._names.get(number)

    def _check(self, url: IgniteUrl) -> None:
        for path, text in (
            (self._caches_in, "DB store directory not exists. Should be created by Ignite Node"),
            (self.directory.parent, f"CDC root directory not exists. {_CREATED}"),
            (self.directory, f"CDC directory not exists. {_CREATED}"),
        ):
            if not self._files.exists(path):
                warning = f"{text} [dir={path}]"
                logger.warning(warning)
                raise CdcDirectoryMissing(
                    "Can't find the folder to read WAL segments from! "
                    f"[workDir={url.work}, consistentId={url.consistent_id or 'null'}]",
                    hint=f"There is no {path}. Name the node's work directory and consistentId in "
                    "url; set cdcEnabled in its data region, and start the node once.",
                    path=str(path),
                )

    def lock(
        self, timeout_ms: int | None, *, stop: Callable[[], bool], clock: Clock
    ) -> lock.CdcLock | None:
        """Take the directory's lock. Raises DirectoryTaken."""
        return lock.take(self.directory, timeout_ms, stop=stop, clock=clock)

    # -- segments ----------------------------------------------------------------------------

    def segments(self) -> list[int]:
        return segments_in(self.directory, self._files)

    def path(self, segment: int) -> Path:
        return segment_path(self.directory, segment)

    def remove(self, segment: int) -> None:
        self._files.unlink(self.path(segment))

    def bytes_between(self, first: int, last: int) -> int:
        """Return the number of bytes of the existing segments between two positions."""
        found = 0
        for segment in self.segments():
            size = self.path(segment).stat().st_size
            ends = [min(max(one - (segment << 32), 0), size) for one in (first, last)]
            found += max(ends[1] - ends[0], 0)
        return found

    def walk(
        self,
        segment: int,
        begin: int,
        held: Segment | None = None,
        unreadable: Callable[[wal.Encrypted], object] | None = None,
    ) -> Any:
        """Read a segment, which is read whole. Raises WalBroken, WalUnsupported.

        held: the part of it that was already read. unreadable: called with each record that has
        changes of encrypted caches, instead of a warning.
        """
        if held is None:
            held = self.read_segment(segment, ahead=self.check)
        return self._walk(
            held.data,
            number=segment,
            name=str(self.path(segment)),
            begin=begin,
            decode=self._decode,
            kind=self._event,
            unreadable=unreadable or self._warn,
            checked=held.checked,
        )

    def scan(
        self,
        segment: int,
        begin: int,
        unreadable: Callable[[wal.Encrypted], object],
        *,
        reads_ahead: bool,
    ) -> tuple[Segment, Changes, wal.Scanned]:
        """Return the changes of a segment together, as walk() yields them, and the rest of its
        contents.

        unreadable: called with each record that has changes of encrypted caches; this method
        warns about those that it skips. reads_ahead: read the next segment in parallel.
        """
        held = self.read_segment(segment, ahead=self.scan_whole if reads_ahead else None)
        found = held.scanned
        if found is None or begin:
            found = self._scan(
                held.data, number=segment, name=str(self.path(segment)), begin=begin, checked=0
            )
        for record in found.encrypted:
            told = wal.read_encrypted(held.data, record)
            unreadable(told)
            self._warn(told)
        held = Segment(held.data, checked=found.end)
        return held, Changes(held.data, found.rows, self._decode), found

    def _warn(self, record: wal.Encrypted) -> None:
        """Warn once for each cache group that its changes are not read."""
        for group in record.groups or (0,):
            if group not in self._warned:
                self._warned.add(group)
                name = self._names.get(group, "not told" if not group else "not known")
                warning = (
                    "Changes of an encrypted cache are in the log. They are not read, as Ignite's "
                    f"utility does not read them [cache={name}, grpId={group}]"
                )
                logger.warning(warning)

    def node_states(self, segment: int, begin: int) -> Iterator[LogPlace | None]:
        """Return the states that the node has logged. Raises WalBroken, WalUnsupported."""
        held, name = self.read_segment(segment), str(self.path(segment))
        at = max(begin, wal.HEADER_BYTES)
        while True:
            record, at = self._find(held.data, at, segment, wal.MANAGER_KINDS, name, held.checked)
            if record is None:
                return
            if record.kind == wal.MANAGER_STOP_KIND:
                yield None
            else:
                yield LogPlace(*wal.manager_place(held.data, record, name))

    def read_segment(
        self, segment: int, *, ahead: Callable[[int], Segment] | None = None
    ) -> Segment:
        """Read all of a segment. Raises WalBroken, WalUnsupported if it is not a segment.

        ahead: check() or scan_whole(), called with the next segment in a thread beside other
        work.
        """
        before, self._ahead = self._ahead, None
        held = before.result() if before is not None and before.segment == segment else None
        if ahead is not None:
            self._ahead = _Ahead(segment + 1, self.path(segment + 1), ahead)
        if held is not None:
            return held
        return Segment(self._bytes_of(segment))

    def _bytes_of(self, segment: int) -> bytes:
        data = self._files.read_whole(self.path(segment))
        wal.check_header(data, segment, str(self.path(segment)))
        return data

    def check(self, segment: int) -> Segment:
        """Return a segment with the number of its right checksums."""
        data = self._bytes_of(segment)
        return Segment(data, self._checked_end(data, segment, wal.HEADER_BYTES))

    def scan_whole(self, segment: int) -> Segment:
        """Return a segment with its changes. Raises WalBroken, WalUnsupported."""
        data = self._bytes_of(segment)
        name = str(self.path(segment))
        return Segment(data, scanned=self._scan(data, number=segment, name=name, begin=0))

    # -- what consumers are told of ----------------------------------------------------------

    def mappings(self) -> list[Told]:
        found = []
        for name in self._list(self._mappings_in):
            if match := _MAPPING.match(name):
                platform = PLATFORMS.get(int(match[2]), "DOTNET")
                read = partial(self._mapping, name, int(match[1]), platform)
                found.append(Told(name, 1, read))
        return found

    def _mapping(self, name: str, type_id: int, platform: str) -> TypeMapping:
        text = self._files.read_whole(self._mappings_in / name).decode()
        return TypeMapping(type_id, text, platform)

    def types(self) -> list[Told]:
        found = []
        for name in self._list(self._types_in):
            if name.endswith(".bin"):
                stamp = _modified_ms(self._types_in / name)
                type_id = int(name.removesuffix(".bin"))
                found.append(Told(str(type_id), stamp, partial(self._type, type_id)))
        return found

    def _type(self, type_id: int) -> BinaryType:
        self.types_read.forget(type_id)  # the known type is from an earlier file
        return marshal.read_metadata(self._files.read_whole(self._types_in / f"{type_id}.bin"))

    def caches(self) -> list[Told]:
        found: list[Told] = []
        self._configs.clear()  # names stay: the log may have changes of a cache that is gone
        for folder in self._list(self._caches_in):
            for kind in ("cache-", "cacheGroup-"):
                if folder.startswith(kind) and folder != SYSTEM_CACHE:
                    found += self._caches_of(folder, folder.removeprefix(kind), kind != "cache-")
        return found

    def _caches_of(self, folder: str, shown: str, is_group: bool) -> Iterator[Told]:
        for name in self._list(self._caches_in / folder):
            if name.endswith(CACHE_FILE):
                cache = name.removesuffix(CACHE_FILE) if is_group else shown
                number = cache_id(cache)
                stamp = _modified_ms(self._caches_in / folder / name)
                self._names[number] = cache
                self._configs[cache] = self._caches_in / folder / name
                item = Cache(number, cache, shown if is_group else None)
                yield Told(str(number), stamp, partial(_same, item))

    def config_path(self, cache: str) -> Path | None:
        """Return the configuration file of a cache, as listed by `caches`; None if it is gone."""
        path = self._configs.get(cache)
        return path if path is not None and path.exists() else None

    def made_ms(self, cache: str) -> int | None:
        """Return when its configuration was written, ms since 1970; None if the cache is gone."""
        path = self.config_path(cache)
        return None if path is None else _modified_ms(path)

    def _list(self, directory: Path) -> list[str]:
        try:
            return sorted(self._files.listdir(directory))
        except FileMissing:
            return []

    def _read_type(self, type_id: int) -> BinaryType | None:
        try:
            data = self._files.read_whole(self._types_in / f"{type_id}.bin")
        except FileMissing:
            return None
        return marshal.read_metadata(data)

    def _class_name(self, type_id: int) -> str | None:
        try:
            return self._files.read_whole(self._mappings_in / f"{type_id}.classname0").decode()
        except FileMissing:
            return None


def segments_in(directory: Path, files: Files = REAL_FILES) -> list[int]:
    """Return the numbers of the segments in a directory, in order."""
    return sorted(int(name[:16]) for name in files.listdir(directory) if _SEGMENT.match(name))


def segment_path(directory: Path, segment: int) -> Path:
    """Return the path of a segment."""
    return directory / f"{segment:016}.wal"


_CREATED = (
    "Should be created by Ignite Node. Is Change Data Capture enabled in IgniteConfiguration?"
)


def _same(cache: Cache) -> Cache:
    return cache


def _modified_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def only_folder(url: IgniteUrl) -> str:
    """Return the only node's folder in a work directory. Raises CdcDirectoryMissing."""
    root = url.work / url.cdc_path
    found = sorted(one.name for one in root.iterdir() if one.is_dir()) if root.is_dir() else []
    if len(found) == 1:
        return found[0]
    raise CdcDirectoryMissing(
        f"Can't find the folder to read WAL segments from! [workDir={url.work}, consistentId=null]",
        hint=f"{root} has {len(found)} nodes' folders ({', '.join(found) or 'none'}): name one in "
        "url with ?consistentId=; set cdcEnabled in the node's data region if there is none.",
        path=str(root),
    )
