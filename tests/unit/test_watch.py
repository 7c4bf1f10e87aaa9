"""Wake-ups by writes to a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.host.watch import FileWatch

LONG_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that exists."""
    (tmp_path / "file").write_bytes(b"a")
    return tmp_path / "file"


@pytest.fixture
def watch(path: Path) -> Iterator[FileWatch]:
    """A watch of it that has begun."""
    found = FileWatch(path)
    found.wait(0)
    yield found
    found.close()


def woken(watch: FileWatch, write: threading.Timer) -> bool:
    """Return whether a wait ended because of the timer's action."""
    write.start()
    began = time.monotonic()
    watch.wait(LONG_S)
    write.join()
    return time.monotonic() - began < LONG_S / 2


def overwrite(path: Path) -> None:
    """Overwrite in place, as the log's writer does."""
    with path.open("r+b") as file:
        file.write(b"b")


def test_a_write_wakes(path: Path, watch: FileWatch) -> None:
    """A write before the wait counts, too."""
    assert woken(watch, threading.Timer(0.1, overwrite, [path]))
    overwrite(path)
    assert woken(watch, threading.Timer(0, lambda: None))


def test_nothing_written_is_a_whole_wait(watch: FileWatch) -> None:
    """The wait takes no processor time."""
    began, used = time.monotonic(), time.thread_time()
    watch.wait(0.3)
    assert time.monotonic() - began >= 0.25
    assert time.thread_time() - used < 0.1


@pytest.fixture
def later(tmp_path: Path) -> Iterator[FileWatch]:
    """A watch of a file that does not exist yet."""
    found = FileWatch(tmp_path / "later")
    yield found
    found.close()


def test_a_file_that_is_not_there_is_a_whole_wait(later: FileWatch) -> None:
    """The file is not looked for repeatedly."""
    began, used = time.monotonic(), time.thread_time()
    later.wait(0.3)
    assert time.monotonic() - began >= 0.25
    assert time.thread_time() - used < 0.1


@pytest.mark.parametrize("comes", [Path.touch, lambda path: path.with_name("t").rename(path)])
def test_a_file_that_comes_later(
    tmp_path: Path, later: FileWatch, comes: Callable[[Path], object]
) -> None:
    """The file's creation or renaming wakes, and so do later writes to it."""
    (tmp_path / "t").touch()
    path = tmp_path / "later"
    later.wait(0)
    assert woken(later, threading.Timer(0.1, comes, [path]))
    began = time.monotonic()
    later.wait(LONG_S)  # writes before the watch are not reported
    assert time.monotonic() - began < LONG_S / 2
    assert woken(later, threading.Timer(0.1, overwrite, [path]))
    later.wait(0)
    (tmp_path / "other").touch()  # its directory is not watched any more
    began = time.monotonic()
    later.wait(0.3)
    assert time.monotonic() - began >= 0.25


def test_a_file_without_a_directory(tmp_path: Path) -> None:
    """Waits are short until it exists."""
    watch = FileWatch(tmp_path / "no" / "later")
    began = time.monotonic()
    watch.wait(LONG_S)
    assert time.monotonic() - began < LONG_S / 2
    (tmp_path / "no").mkdir()
    watch.wait(0)
    (tmp_path / "no").rmdir()
    watch.wait(LONG_S)  # reports that it is gone
    (tmp_path / "no").mkdir()
    (tmp_path / "no" / "later").touch()
    watch.wait(LONG_S)
    assert woken(watch, threading.Timer(0.1, overwrite, [tmp_path / "no" / "later"]))
    watch.close()


def test_a_file_that_takes_the_place_of_another(path: Path, watch: FileWatch) -> None:
    """The name counts, once the first one is gone."""
    path.unlink()
    path.write_bytes(b"c")
    watch.wait(0.2)  # reports that the first one is gone
    watch.wait(0.01)
    assert woken(watch, threading.Timer(0.1, overwrite, [path]))


def test_a_closed_watch_begins_again(path: Path, watch: FileWatch) -> None:
    """A loader that lost its target does so."""
    watch.close()
    watch.wait(0)
    assert woken(watch, threading.Timer(0.1, overwrite, [path]))
