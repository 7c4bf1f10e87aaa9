"""Object stores: files by pyarrow and by Java on a local S3 server, what fails there, and settings.

Not here: a whole load (`tests/servers/test_lake_s3.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyspark
import pytest

from harness.lake.s3 import S3Server, serve_s3
from penstock.engines.lake.format import LakeUnreachable
from penstock.engines.lake.jars import DELTA_S3_JARS
from penstock.engines.lake.java import class_names, typed_errors
from penstock.engines.lake.object_store import (
    address_of,
    complete_settings,
    hint_of,
    iceberg_properties,
)
from penstock.engines.lake.own_java import OwnJava, open_java
from penstock.engines.lake.storage import Folder
from penstock.engines.lake.url import parse_url
from penstock.host.server_process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUCKET = "lake"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Server with one bucket."""
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket(BUCKET)
        yield server


def folder(s3: S3Server, location: str = f"s3://{BUCKET}/state", **settings: str) -> Folder:
    """Return a folder with the settings that a URL gives."""
    return Folder(location, complete_settings({**s3.settings, **settings}, {}))


def test_files_are_written_read_listed_and_removed(s3: S3Server) -> None:
    """A folder in an object store is like one on disk."""
    state = folder(s3)
    assert list(state.names()) == []
    assert state.read("a.json") is None
    state.write("a.json", b"one")
    state.write("a.json", b"two")
    state.write("staged/b.json", b"three")
    assert state.read("a.json") == b"two"
    assert list(state.names()) == ["a.json", "staged/b.json"]
    assert list(state.names("staged")) == ["staged/b.json"]
    state.remove("a.json")
    state.remove("a.json")
    assert list(state.names()) == ["staged/b.json"]


def test_a_bucket_that_is_missing(s3: S3Server) -> None:
    """The bucket is named, and the hint says to create it; penstock creates none."""
    with pytest.raises(LakeUnreachable, match=r"nowhere/state/a\.json") as caught:
        folder(s3, "s3://nowhere/state").write("a.json", b"")
    assert caught.value.hint.startswith("Create the bucket")


def test_a_wrong_key(tmp_path: Path) -> None:
    """A server that refuses the key makes an error that names the settings."""
    with serve_s3(tmp_path, refuses_keys=True) as server:
        for call in (
            lambda: folder(server).write("a.json", b""),
            lambda: list(folder(server).names()),
        ):
            with pytest.raises(LakeUnreachable) as caught:
                call()
            assert "fs.s3a.access.key" in caught.value.hint


def test_an_endpoint_that_does_not_answer(s3: S3Server) -> None:
    """The hint names the endpoint's setting."""
    state = folder(s3, endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(LakeUnreachable) as caught:
        state.write("a.json", b"")
    assert "fs.s3a.endpoint" in caught.value.hint


def test_settings_of_a_url() -> None:
    """Both spellings of the settings are known, and buckets are in the path but at Amazon's."""
    prefix = "iceberg://lake/shop?catalog.type=jdbc&catalog.warehouse=s3a://b/w&"
    given = parse_url(f"{prefix}s3a.endpoint=http://s3:9000&s3a.access.key=k&s3a.secret.key=s")
    own = parse_url(
        f"{prefix}catalog.s3.endpoint=http://s3:9000&catalog.s3.access-key-id=k"
        "&catalog.s3.secret-access-key=s"
    )
    assert given.s3 == own.s3
    assert given.s3["path.style.access"] == "true"
    assert (given.root, given.is_on_s3) == ("s3://b/w", True)
    properties = iceberg_properties(given.s3, given.properties)
    assert properties["io-impl"].endswith(".S3FileIO")
    assert properties["s3.endpoint"] == "http://s3:9000"
    assert iceberg_properties(given.s3, {"io-impl": "own"})["io-impl"] == "own"
    amazon = complete_settings({"endpoint": "s3.eu-west-1.amazonaws.com"}, {})
    assert "path.style.access" not in amazon
    assert address_of(amazon) == "https://s3.eu-west-1.amazonaws.com"
    plain = {"endpoint": "s3:9000", "connection.ssl.enabled": "false"}
    assert address_of(plain) == "http://s3:9000"
    assert hint_of("no idea").startswith("Check that the storage answers")


def test_hadoops_version_is_that_of_pyspark() -> None:
    """The class that reaches S3 is of the Hadoop that pyspark brings."""
    jars = Path(pyspark.__file__).parent / "jars"
    (version,) = [jar.version for jar in DELTA_S3_JARS if jar.artifact == "hadoop-aws"]
    assert (jars / f"hadoop-client-api-{version}.jar").is_file()


# --- Java -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def java(s3: S3Server) -> Iterator[OwnJava]:
    """JVM as commands start it for Delta tables."""
    with open_java(java_url(s3)) as running:
        yield running


def java_url(s3: S3Server | None = None) -> str:
    """Return the URL of Delta tables."""
    settings = {} if s3 is None else s3.settings
    query = "&".join(f"s3a.{name}={quote(value, safe='')}" for name, value in settings.items())
    return f"delta+s3://{BUCKET}/lake?{query}"


CONDITIONAL = "fs.option.create.conditional.overwrite"


def test_hadoop_can_refuse_the_second_of_two_commits_and_delta_does_not_ask(
    s3: S3Server, java: OwnJava
) -> None:
    """A file that another writer has written meanwhile is refused where the writer says so.

    Delta's class for S3 does not: if this fails, a newer one does, and LC03 and the documentation
    can say that several writers are safe.
    """
    hadoop = java.jvm.org.apache.hadoop.fs
    files = hadoop.Path(f"s3a://{BUCKET}/").getFileSystem(java.hadoop_conf)
    one, two = (hadoop.Path(f"s3a://{BUCKET}/{name}.json") for name in ("one", "two"))
    asking = files.createFile(one).overwrite(False).must(CONDITIONAL, True).build()
    as_delta_does = files.create(two, False)
    for name, stream in (("one", asking), ("two", as_delta_does)):
        stream.write(b"ours")
        s3.client.put_object(Bucket=BUCKET, Key=f"{name}.json", Body=b"theirs")
    with pytest.raises(Exception) as caught:
        asking.close()
    assert "RemoteFileChangedException" in class_names(caught.value)
    as_delta_does.close()
    bodies = [
        s3.client.get_object(Bucket=BUCKET, Key=f"{name}.json")["Body"].read()
        for name in ("one", "two")
    ]
    assert bodies == [b"theirs", b"ours"]


def test_java_says_what_is_missing(java: OwnJava) -> None:
    """A bucket that is missing makes an error with the hint to create it."""
    path = java.jvm.org.apache.hadoop.fs.Path("s3a://nowhere/a.json")
    with pytest.raises(LakeUnreachable) as caught, typed_errors("write a.json"):
        path.getFileSystem(java.hadoop_conf).create(path, False).close()
    assert caught.value.hint.startswith("Create the bucket")
