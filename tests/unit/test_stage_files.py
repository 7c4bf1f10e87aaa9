"""Files of a changefeed in a folder and in a bucket: order, markers, positions, leases."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.feeds.staging import SHOP, FakeCatalog, FakeStaging
from harness.servers.bucket import bucket
from penstock.control.feeds import feed_process
from penstock.control.feeds.feed_process import receiving
from penstock.control.pipeline.config import load_config
from penstock.feeds.metrics import Metrics
from penstock.feeds.receiver.access import Everybody
from penstock.feeds.receiver.app import Receiver
from penstock.feeds.receiver.feed_files import (
    FeedFiles,
    FeedFilesUnreadable,
    FeedFileUnknown,
    StorageUrlInvalid,
    store_at,
)
from penstock.feeds.receiver.targets import TargetTables
from penstock.feeds.sessions import Sessions
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.model.sections import PartitionFormat

FOLDER = {
    PartitionFormat.DAILY: "2024-03-01/",
    PartitionFormat.HOURLY: "2024-03-01/10/",
    PartitionFormat.FLAT: "",
}


def stamp(second: int) -> str:
    """Return the 33 digits of a second."""
    return f"2024030110{second // 60:02}{second % 60:02}" + "0" * 19


def lines(second: int, topic: str = "accounts", folders: str = "2024-03-01/") -> str:
    """Return the name of a file of lines."""
    return f"{folders}{stamp(second)}-4f1c2e9a7b3d5c60-1-12-00000000-{topic}-1.ndjson"


def marker(second: int, folders: str = "2024-03-01/") -> str:
    """Return the name of a marker."""
    return f"{folders}{stamp(second)}.RESOLVED"


def row(number: int) -> bytes:
    """Return the line of a changefeed's file for the row with this key."""
    return f'{{"after":{{"id":{number}}},"key":[{number}],"updated":"{number}.0"}}\n'.encode()


def build_marker(time_: int) -> bytes:
    """Return the content of a marker."""
    return f'{{"resolved":"{time_}.0000000000"}}'.encode()


class Feed:
    """A folder, its staged rows, and its readers."""

    def __init__(self, root: Path) -> None:
        self.root, self.staging = root, FakeStaging()
        root.mkdir(exist_ok=True)
        self.receiver = Receiver(
            sessions=Sessions(self.staging, 1),
            tables=TargetTables(FakeCatalog()),
            access=Everybody(),
            metrics=Metrics(),
        )

    def put(self, name: str, data: bytes) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def files(
        self, folders: PartitionFormat = PartitionFormat.DAILY, url: str = "", size_max: int = 10**6
    ) -> FeedFiles:
        """Return a reader."""
        return FeedFiles(
            store_at(url or f"file://{self.root}"),
            self.receiver,
            group=SHOP,
            folders=folders,
            size_max=size_max,
            lease_s=60,
            hostname="here",
        )

    def step(self, files: FeedFiles) -> int:
        """Read the files that are there."""
        return files.step(self.staging, lambda: False)

    def keys(self) -> list[str]:
        """Return the staged keys."""
        return sorted(key for rows in self.staging.tables.values() for _, key in rows)

    def mark(self) -> Hlc:
        """Return the last checkpoint."""
        return self.staging.window(SHOP).proposed


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """An empty folder."""
    made = Feed(tmp_path / "feed")
    yield made
    made.receiver.close()


@pytest.mark.parametrize("folders", PartitionFormat)
def test_files_are_staged_up_to_the_last_marker(feed: Feed, folders: PartitionFormat) -> None:
    """The position is the marker in each layout, and the next look continues after it."""
    where = FOLDER[folders]
    files = feed.files(folders)
    feed.put(lines(1, folders=where), row(1))
    feed.put(lines(2, "audit-log", where), row(2) + b"\n" + row(3))
    assert (feed.step(files), feed.keys()) == (0, [])
    feed.put(marker(3, where), build_marker(10))
    feed.put(lines(4, folders=where), row(4))
    assert (feed.step(files), feed.keys(), feed.mark()) == (1, ["[1]", "[2]", "[3]"], Hlc(10))
    value = json.loads(feed.staging.memo[f"objstore_{feed.root}"])
    assert value == {"position": marker(3, where)}
    feed.put(marker(4, where), build_marker(11))
    feed.put(marker(5, where), build_marker(12))
    assert (feed.step(feed.files(folders)), feed.mark()) == (0, Hlc(10))  # the lease is held
    assert (feed.step(files), feed.keys()[-1], feed.mark()) == (2, "[4]", Hlc(12))
    assert feed.step(files) == 0


def test_files_of_one_time_are_before_its_marker(feed: Feed) -> None:
    """Files come in the order of their names."""
    feed.put(marker(1), build_marker(10))
    feed.put(lines(1), row(1))
    assert (feed.step(feed.files()), feed.keys()) == (1, ["[1]"])


def test_a_crash_stages_again_what_changes_nothing(feed: Feed) -> None:
    """The crash is between a file and its marker, or between the checkpoint and the position."""
    feed.put(lines(1), row(1))
    feed.put(lines(2), row(2))
    feed.put(marker(3), build_marker(10))
    files = feed.files()
    feed.staging.fail = PenstockError("away")
    with pytest.raises(PenstockError, match="away"):
        feed.step(files)
    put, feed.staging.put_memo = feed.staging.put_memo, lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        feed.step(files)
    feed.staging.put_memo = put  # type: ignore[method-assign]
    assert feed.mark() == Hlc(10)
    assert (feed.step(files), feed.keys(), feed.mark()) == (1, ["[1]", "[2]"], Hlc(10))


def test_another_instance_goes_on_when_the_lease_is_free(feed: Feed) -> None:
    """The lease is released in order, or stolen: then the first instance stops at once."""
    feed.put(marker(1), build_marker(10))
    one, other = feed.files(), feed.files()
    assert feed.step(one) == 1
    feed.put(marker(2), build_marker(11))
    assert feed.step(other) == 0
    one.release(feed.staging)
    assert feed.step(other) == 1
    feed.put(marker(3), build_marker(12))
    feed.staging.leases.clear()
    other._renew_at_s = 0.0
    assert feed.step(other) == 0
    assert feed.step(other) == 1  # no other instance has taken it


@pytest.mark.parametrize(
    "name",
    ["2024-03-01/x.parquet", lines(1) + ".gz", marker(1, ""), marker(1, "2024-03-01/10/"),
     lines(1, folders="x/"), "2024-03-01/99999999999999" + "0" * 19 + ".RESOLVED"],
)  # fmt: skip
def test_a_file_that_is_not_understood_stops_it(feed: Feed, name: str) -> None:
    """FeedFileUnknown is raised: skipping it could lose rows."""
    feed.put(name, b"x")
    with pytest.raises(FeedFileUnknown, match="partitionFormat daily"):
        feed.step(feed.files())


def test_hidden_files_are_no_files_of_a_feed(feed: Feed) -> None:
    """Examples are files that are being copied."""
    feed.put("2024-03-01/.part", b"x")
    feed.put(".cache/x", b"x")
    assert feed.step(feed.files()) == 0


@pytest.mark.parametrize("data", [b"{}", b"", b'{"resolved":"x"}', b"x", b'{"payload":[]}'])
def test_a_marker_that_says_no_time(feed: Feed, data: bytes) -> None:
    """The error names the file."""
    feed.put(marker(1), data)
    with pytest.raises(PenstockError) as caught:
        feed.step(feed.files())
    assert caught.value.fields["file"] == marker(1)


def test_files_have_a_limit_and_lines_are_checked(feed: Feed) -> None:
    """Files have the limits and checks of requests."""
    feed.put(lines(1), row(1) * 3)
    feed.put(marker(2), build_marker(10))
    with pytest.raises(PenstockError, match="has more than 50 bytes"):
        feed.step(feed.files(size_max=50))
    feed.put(lines(1), row(1)[:-5])
    feed.staging.leases.clear()
    with pytest.raises(PenstockError, match="could not decode payload"):
        feed.step(feed.files())


def test_folders_of_days_that_are_done_are_not_listed(feed: Feed) -> None:
    """A feed has many: a file that is put there later is never seen."""
    feed.put(marker(1), build_marker(10))
    files = feed.files()
    assert feed.step(files) == 1
    feed.put("2024-02-28/x.parquet", b"x")
    feed.put(marker(1, "2024-03-02/"), build_marker(11))
    assert feed.step(files) == 1


def test_a_bucket_is_read_like_a_folder(feed: Feed) -> None:
    """A bucket has S3's API and the keys of the URL, which no message shows."""
    objects = {
        f"shop/{lines(1)}": row(1),
        f"shop/{marker(2)}": build_marker(10),
        f"shop/{lines(3)}": row(2),
    }
    with bucket(objects) as url:
        store = store_at(url)
        assert store.name == "s3://feed/shop"
        files = feed.files(url=url)
        assert (feed.step(files), feed.keys(), feed.mark()) == (1, ["[1]"], Hlc(10))
        objects[f"shop/{marker(4)}"] = build_marker(11)
        assert (feed.step(files), feed.keys(), feed.mark()) == (1, ["[1]", "[2]"], Hlc(11))
        with pytest.raises(FeedFilesUnreadable):
            store.read("nothing", 9)


@pytest.mark.parametrize(
    "url", ["", "feed", "file:feed", "file://host/feed", "s3:///feed", "gs://feed/x?token=geheim"]
)
def test_what_names_no_store(url: str) -> None:
    """StorageUrlInvalid is raised, without secrets."""
    with pytest.raises(StorageUrlInvalid) as caught:
        store_at(url)
    assert "geheim" not in str(caught.value)


def test_the_process_reads_them_beside_requests(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that needs operator action ends it; one that may pass is retried."""
    monkeypatch.setattr(feed_process, "TargetSchemas", lambda _config: FakeCatalog())
    monkeypatch.setattr(feed_process, "_AGAIN_S", 0.01)
    path = tmp_path / "cockroach.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "shop"\n'
        '[staging]\nurl = "postgresql://stage@localhost/x"\n'
        '[target]\nurl = "postgresql://me@localhost/shop"\n'
        '[stage]\nlisten = "127.0.0.1:0"\nauthentication = "off"\nfetchDelay = "5ms"\n'
        f'targetSchema = "shop.public"\nstorageUrl = "file://{feed.root}"\n'
    )
    config = load_config(path, {})
    assert config.stage is not None

    class Away(PenstockError):
        code = "ST97"
        retry = "backoff"

    feed.put(lines(1), row(1))
    feed.put(marker(2), build_marker(10))
    feed.staging.fail = Away("away")

    def until(ready: object) -> None:
        deadline_s = time.monotonic() + 60
        while not ready():  # type: ignore[operator]
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    with receiving(config, config.stage, feed.staging) as (_, look):
        until(lambda: feed.mark() == Hlc(10))
        look()
        feed.put("2024-03-01/x.parquet", b"x")

        def has_ended() -> bool:
            try:
                look()
            except FeedFileUnknown:
                return True
            return False

        until(has_ended)
    assert feed.staging.leases == {}
