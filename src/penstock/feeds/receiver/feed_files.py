"""The files of a changefeed, in a folder or in a bucket of an object store.

A feed with `resolved` promises that, in order of their names, everything before a marker
RESOLVED is finished. So the files between two markers are staged, the marker's time is noted as a
checkpoint, and the marker becomes the position in memo. After a crash its files are staged again,
which changes nothing. A lease keeps two instances from doing the same work.
Source: CockroachDB documentation, "CREATE CHANGEFEED", "General file format".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import structlog
from pyarrow import fs

from penstock.codec.changefeed import UpdatedMissing
from penstock.feeds.receiver.app import Receiver, RequestTooLong
from penstock.feeds.receiver.targets import Kind, Place, time_of_marker, topic_of_file
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import mask
from penstock.model import PenstockError
from penstock.model.sections import PartitionFormat
from penstock.ports.feeds import Group, Lease, StagingSession

logger = structlog.get_logger()
PART_OF_DAY = re.compile(r"\d{4}-\d{2}-\d{2}/", re.ASCII)
PARTS_OF_HOUR = re.compile(r"\d{4}-\d{2}-\d{2}/\d{2}/", re.ASCII)
FOLDERS = {
    PartitionFormat.FLAT: re.compile(""),
    PartitionFormat.DAILY: PART_OF_DAY,
    PartitionFormat.HOURLY: PARTS_OF_HOUR,
}
_PARAMETERS = {
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
}


class FeedFileUnknown(PenstockError):
    """A file in a feed's folder does not belong to a feed, or has an unsupported form."""

    code = "ST18"


class FeedFilesUnreadable(PenstockError):
    """The folder or bucket of a feed's files cannot be read now."""

    code = "ST19"
    retry = "backoff"


class StorageUrlInvalid(PenstockError):
    """storageUrl names neither a folder nor a bucket."""

    code = "CF13"


@dataclass(frozen=True, slots=True)
class Store:
    """Folder or bucket of feed files.

    Attributes:
        filesystem: File system of Arrow.
        root: Path that the names of files are relative to.
        name: Its URL without secrets, for messages.
    """

    filesystem: Any
    root: str
    name: str

    def names(self, after: str, folders: PartitionFormat) -> list[str]:
        """Return the files after a name, in order. Raises FeedFilesUnreadable, FeedFileUnknown."""
        with _readable(self.name):
            found = list(self._find(after, folders))
        for name in found:
            folder, _, last = name.rpartition("/")
            is_ours = FOLDERS[folders].fullmatch(f"{folder}/" if folder else "")
            if not is_ours or not (topic_of_file(last) or time_of_marker(last)):
                raise FeedFileUnknown(
                    f"{self.name}/{name} is not a file of a feed with partitionFormat {folders}",
                    hint="Set partitionFormat in [stage] as the feed has it; make the feed with "
                    "format=json and without compression; move other files away.",
                    file=name,
                )
        return sorted(found)

    def _find(self, after: str, folders: PartitionFormat) -> Iterator[str]:
        """List only folders that may have files after the position: a feed has many folders."""
        first = after.partition("/")[0] if folders is not PartitionFormat.FLAT else ""
        for entry in self._list(self.root, recursive=False):
            if entry.type == fs.FileType.Directory:
                if entry.base_name >= first and not entry.base_name.startswith("."):
                    for inner in self._list(entry.path, recursive=True):
                        yield from self._if_behind(inner, after)
            else:
                yield from self._if_behind(entry, after)

    def _list(self, path: str, *, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        found: list[Any] = self.filesystem.get_file_info(selector)
        return found

    def _if_behind(self, entry: Any, after: str) -> Iterator[str]:
        name = entry.path.removeprefix(self.root).lstrip("/")
        if entry.type == fs.FileType.File and name > after and entry.base_name[0] != ".":
            yield name

    def read(self, name: str, size_max: int) -> bytes:
        """Return a whole file. Raises FeedFilesUnreadable, RequestTooLong."""
        with (
            _readable(f"{self.name}/{name}"),
            self.filesystem.open_input_stream(f"{self.root}/{name}", compression=None) as stream,
        ):
            data: bytes = stream.read(size_max + 1)
        if len(data) > size_max:
            raise RequestTooLong(
                f"{name} has more than {size_max} bytes",
                hint="Set requestBytesMax in [stage], or file_size of the feed.",
                file=name,
            )
        return data


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Convert errors of the file system to FeedFilesUnreadable."""
    try:
        yield
    except OSError as error:
        raise FeedFilesUnreadable(
            f"{what} cannot be read: {error}",
            hint="See whether it is there, and whether the keys in storageUrl may list and read "
            "it.",
        ) from error


def store_at(url: str) -> Store:
    """Return the folder or bucket of a URL; see [stage]. Raises StorageUrlInvalid."""
    parsed = urlsplit(url)
    path = unquote(parsed.path).rstrip("/")
    if parsed.scheme == "file" and not parsed.netloc and path.startswith("/"):
        return Store(fs.LocalFileSystem(), path, path)
    if parsed.scheme != "s3" or not parsed.netloc:
        raise StorageUrlInvalid(
            f"storageUrl {mask(url)} names no folder and no bucket",
            hint='Write "file:///PATH", or "s3://BUCKET/PATH?AWS_ACCESS_KEY_ID=...&'
            'AWS_SECRET_ACCESS_KEY=...&AWS_REGION=...", with &AWS_ENDPOINT=http://HOST:PORT for '
            "a store of another provider.",
        )
    given = {name: values[0] for name, values in parse_qs(parsed.query).items()}
    options = {ours: given[name] for name, ours in _PARAMETERS.items() if name in given}
    endpoint = given.get("AWS_ENDPOINT", "")
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        options |= {"endpoint_override": host, "scheme": scheme or "https"}
        options.setdefault("region", "us-east-1")  # other stores ignore it
    root = parsed.netloc + path
    return Store(fs.S3FileSystem(**options), root, f"s3://{root}")


class FeedFiles:
    """Stager of one feed's files. Belongs to one thread."""

    def __init__(
        self,
        store: Store,
        receiver: Receiver,
        *,
        group: Group,
        folders: PartitionFormat,
        size_max: int,
        lease_s: float,
        hostname: str,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Prepare. hostname: for people who look at the lease."""
        self._store, self._receiver, self._group = store, receiver, group
        self._folders, self._size_max = folders, size_max
        self._lease_s, self._hostname, self._clock = lease_s, hostname, clock
        self._lease: Lease | None = None
        self._renew_at_s = 0.0

    @property
    def memo_key(self) -> str:
        """Key of the position in memo."""
        return f"objstore_{self._store.name}"

    def step(self, session: StagingSession, stop: Callable[[], bool]) -> int:
        """Stage the files before the existing markers; return the number of these markers.

        Returns 0 as well while another instance has the lease. Raises the errors of reading and
        staging; files before the last finished marker are not read again.
        """
        if not self._holds(session):
            return 0
        done, waiting = 0, []
        for name in self._store.names(self._position(session), self._folders):
            if stop() or not self._holds(session):
                break
            if topic_of_file(name.rpartition("/")[2]) is not None:
                waiting.append(name)
                continue
            for one in waiting:
                self._stage(one)
                if stop() or not self._holds(session):
                    return done
            self._resolve(session, name)
            done, waiting = done + 1, []
        return done

    def release(self, session: StagingSession) -> None:
        """Let another instance continue."""
        if self._lease is not None:
            session.release(self._lease)
            self._lease = None

    def _stage(self, name: str) -> None:
        topic = topic_of_file(name.rpartition("/")[2])
        place = Place(group=self._group, kind=Kind.LINES, table=topic)
        feed = self._store.name
        self._with_place(name, lambda body: self._receiver.work(place, body, partition=feed))

    def _resolve(self, session: StagingSession, name: str) -> None:
        place = Place(group=self._group, kind=Kind.BATCH)

        def advance(body: bytes) -> None:
            time = self._receiver.decoder.decode(place, body).resolved
            if time is None:
                raise UpdatedMissing(
                    "CREATE CHANGEFEED must specify the 'WITH resolved' option",
                    hint="Make the feed again WITH updated, and resolved.",
                )
            session.advance(self._group, self._store.name, time)

        self._with_place(name, advance)
        session.put_memo(self.memo_key, msgspec.json.encode({"position": name}))

    def _with_place(self, name: str, use: Callable[[bytes], object]) -> None:
        try:
            use(self._store.read(name, self._size_max))
        except PenstockError as error:
            error.fields.setdefault("file", name)
            logger.warning("file of a feed not staged", file=name, error=error.message)
            raise

    def _position(self, session: StagingSession) -> str:
        value = session.get_memo(self.memo_key)
        return "" if value is None else str(msgspec.json.decode(value)["position"])

    def _holds(self, session: StagingSession) -> bool:
        now_s = self._clock.monotonic_s()
        if self._lease is not None and now_s < self._renew_at_s:
            return True
        if self._lease is not None:
            self._lease = session.renew(self._lease, self._lease_s)
        else:
            found = session.acquire(
                [f"{self._store.name}.objstore.scan"], self._lease_s, self._hostname
            )
            self._lease = found if isinstance(found, Lease) else None
        self._renew_at_s = now_s + self._lease_s / 2
        return self._lease is not None
