"""`penstock consumers` and `delete-lost-segment-links`: their output, and their changes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from harness.pipelines.consumer import NAME, Feed, Noting, plain_pipeline
from penstock import cli
from penstock.consume.lost import LostLinksLocked
from penstock.consume.position import (
    ConsumerOfOtherLog,
    ConsumerState,
    Position,
    SegmentsMissed,
)
from penstock.consume.snapshot import Made, Snapshot
from penstock.control.consumers.consumer_process import (
    ConsumerRuns,
    NoConsumers,
    delete_lost,
    remove,
)
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import AlreadyRunning
from penstock.control.run.extract_process import extract_options
from penstock.control.run.reset import at_rest
from penstock.host.files import REAL_FILES
from penstock.log import links
from penstock.log.links import DISABLED_WARNING, link_segment
from penstock.model import PenstockError
from penstock.model.keeping import KEEP_NONE, Keeping

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log, and a pipeline file with a consumer of it that is not registered yet."""
    made = Feed(tmp_path)
    plain_pipeline(tmp_path)
    yield made
    made.close()


def run_command(
    capsys: Capture, feed: Feed, *arguments: str, code: int = 0
) -> list[dict[str, Any]]:
    """Return what a command with --json printed; FILE stands for the pipeline file."""
    capsys.readouterr()
    path = str(feed.root / "shop.toml")
    ended = 0
    try:
        cli.run_guarded([path if a == "FILE" else a for a in arguments] + ["--json"])
    except SystemExit as exited:
        ended = int(exited.code or 0)
    found = capsys.readouterr()
    assert ended == code, found
    return [json.loads(line) for line in (found.out + found.err).splitlines() if line[:1] == "{"]


def test_a_consumer_is_added_and_listed_with_its_lag(feed: Feed, capsys: Capture) -> None:
    """The lag is in events, bytes and seconds from the saved position; held disk space is shown
    too.
    """
    (line,) = run_command(capsys, feed, "consumers", "ls", "FILE")
    assert (line["consumer"], line["state"]) == (NAME, "not registered")
    assert run_command(capsys, feed, "consumers", "add", "FILE", NAME)[0]["new"] is True
    assert run_command(capsys, feed, "consumers", "add", "FILE", NAME)[0]["new"] is False
    feed.write(3)
    feed.write(2)
    feed.run(Noting(take=4, answer=lambda call: call == 1))
    feed.write(1, rotate=False)
    (line,) = run_command(capsys, feed, "consumers", "ls", "FILE")
    assert (line["state"], line["saved"], line["read"], line["segment"]) == ("stopped", 3, 5, 0)
    assert (line["lag_events"], line["links"], line["pid"]) == (3, 2, 0)
    sizes = {p.name: p.stat().st_size for p in (feed.root / "log").glob("*.ckt*")}
    assert line["lag_bytes"] == sizes["1.ckt"] + sizes["2.ckt_"]
    assert line["link_bytes"] == sizes["0.ckt"] + sizes["1.ckt"]
    assert line["held_bytes"] == 0, "the log has them as well"
    assert line["lag_seconds"] > 1e6, "the log's commits are of 2023"
    (feed.root / "log" / "0.ckt").unlink()
    (line,) = run_command(capsys, feed, "consumers", "ls", "FILE")
    assert line["held_bytes"] == sizes["0.ckt"]
    feed.run(Noting())
    (line,) = run_command(capsys, feed, "consumers", "ls", "FILE")
    assert (line["lag_events"], line["lag_bytes"], line["lag_seconds"]) == (0, 0, 0.0)


def test_the_load_is_listed_as_target(feed: Feed, capsys: Capture) -> None:
    """Links of the load are the names in log/; an unreachable target is shown without a failure."""
    path = feed.root / "shop.toml"
    target = '[target]\nurl = "postgresql://unused@127.0.0.1:1/none"\n'
    path.write_text(path.read_text().replace("[source]", f'mode = "change"\n{target}[source]'))
    feed.write(2)
    load, _ = run_command(capsys, feed, "consumers", "ls", "FILE")
    assert (load["consumer"], load["links"], load["saved"]) == ("target", 1, None)
    assert load["error"]
    assert load["hint"]


def test_people_get_a_table(feed: Feed, capsys: Capture) -> None:
    """The table has the names of its columns."""
    feed.register()
    feed.write(2)
    cli.run_guarded(["consumers", "ls", str(feed.root / "shop.toml")])
    out = capsys.readouterr().out
    assert "held back" in out
    assert "2 events" in out


def test_a_consumer_is_removed_with_all_that_it_holds(feed: Feed, capsys: Capture) -> None:
    """Removal is refused while it runs; unknown consumers are named."""
    feed.register()
    feed.write(2)
    config = load_config(feed.root / "shop.toml", {})
    lock = REAL_FILES.lock(feed.directory, "lock")
    with pytest.raises(ConsumerRuns, match="runs, as process"):
        remove(config, NAME)
    lock.release()
    assert feed.links() == ["0.ckt"]
    (error,) = run_command(capsys, feed, "consumers", "remove", "FILE", NAME, code=2)
    assert "--yes" in error["error"]
    run_command(capsys, feed, "consumers", "remove", "FILE", NAME, "--yes")
    assert not feed.directory.exists()
    (error,) = run_command(capsys, feed, "consumers", "remove", "FILE", NAME, "--yes", code=1)
    assert (error["code"], "consumers add" in error["hint"]) == ("CN12", True)
    (error,) = run_command(capsys, feed, "consumers", "disable", "FILE", "nobody", code=1)
    assert error["code"] == "CN12"


def test_reset_waits_for_no_consumer(feed: Feed) -> None:
    """The reset changes nothing while a consumer runs, and names it."""
    feed.register()
    feed.close()
    config = load_config(feed.root / "shop.toml", {})
    lock = REAL_FILES.lock(feed.directory, "lock")
    with (
        pytest.raises(AlreadyRunning, match=f"`penstock consume {NAME}` works on"),
        at_rest(config),
    ):
        pytest.fail("the consumer runs")
    lock.release()
    with at_rest(config):
        pass


def test_disable_and_enable_one_and_all(feed: Feed, capsys: Capture) -> None:
    """The file cdc.disabled does it; the extractor reports each segment that gets no link."""
    feed.register()
    assert run_command(capsys, feed, "consumers", "disable", "FILE", NAME)
    assert run_command(capsys, feed, "consumers", "ls", "FILE")[0]["state"] == "disabled"
    feed.write(1)
    run_command(capsys, feed, "consumers", "enable", "FILE", NAME)
    feed.write(1)
    assert run_command(capsys, feed, "consumers", "disable", "FILE", "--all")
    assert (feed.root / "cdc" / "cdc.disabled").exists()
    structlog.reset_defaults()  # the commands have silenced it
    with structlog.testing.capture_logs() as logs:
        feed.write(1)
    assert DISABLED_WARNING in [line["event"] for line in logs]
    assert run_command(capsys, feed, "consumers", "ls", "FILE")[0]["enabled"] is False
    run_command(capsys, feed, "consumers", "enable", "FILE", "--all")
    feed.write(1)
    assert feed.links() == ["1.ckt", "3.ckt"]
    run_command(capsys, feed, "consumers", "disable", "FILE", code=2)
    run_command(capsys, feed, "consumers", "disable", "FILE", NAME, "--all", code=2)


def test_a_paused_consumer_is_given_nothing(feed: Feed, capsys: Capture) -> None:
    """The consumer's process stays, and continues when it is resumed."""
    feed.register()
    feed.write(2)
    run_command(capsys, feed, "consumers", "pause", "FILE", NAME)
    path = feed.root / "shop.toml"
    process = subprocess.Popen([*_program(), "consume", str(path), NAME], stderr=subprocess.DEVNULL)
    _until(lambda: run_command(capsys, feed, "consumers", "ls", "FILE")[0]["pid"] != 0)
    time.sleep(0.5)
    assert run_command(capsys, feed, "consumers", "ls", "FILE")[0]["state"] == "paused"
    assert not [line for line in _read_notes(feed) if line.isdigit()]
    run_command(capsys, feed, "consumers", "resume", "FILE", NAME)
    _until(lambda: "2" in _read_notes(feed))
    process.terminate()
    assert process.wait(30) == 0


# -- gaps ------------------------------------------------------------------------------------


@pytest.mark.promise
def test_a_hole_is_met_with_the_published_text_and_mended(feed: Feed, capsys: Capture) -> None:
    """The first two of 0, 1, 4, 5 are deleted, and the consumer begins with 4, without a gap."""
    feed.register()
    for number in range(6):
        links.enable(feed.directory) if number not in (2, 3) else links.disable(feed.directory)
        feed.write(1)
    with pytest.raises(SegmentsMissed, match=r"\[lastSegment=1, nextSegment=4\]"):
        feed.run(Noting())
    (found,) = run_command(capsys, feed, "delete-lost-segment-links", "FILE", "--yes")
    assert found["message"] == (
        "segments were missing: 2 links before the gap and the saved state were deleted"
    )
    assert found["segments"] == [0, 1]
    assert ConsumerState(feed.directory).load() is None
    noting = Noting()
    feed.run(noting)
    assert noting.gsns == [5, 6]
    (found,) = run_command(capsys, feed, "delete-lost-segment-links", "FILE", "--yes")
    assert found["message"] == "no segment is missing: nothing was deleted"
    assert ConsumerState(feed.directory).load() is not None


def test_a_state_of_another_log_lets_no_link_be_deleted(feed: Feed, capsys: Capture) -> None:
    """No link is deleted, not even below a gap: it is unknown whose links they are."""
    feed.register()
    for number in range(3):
        links.enable(feed.directory) if number != 1 else links.disable(feed.directory)
        feed.write(1)
    other = Position(segment=2, gsn=9, log_id="another")
    ConsumerState(feed.directory).save(other)
    config = load_config(feed.root / "shop.toml", {})
    with pytest.raises(ConsumerOfOtherLog):
        delete_lost(config, NAME)
    assert ConsumerState(feed.directory).load() == other
    assert feed.links() == ["0.ckt", "2.ckt"]
    run_command(capsys, feed, "delete-lost-segment-links", "FILE", "--yes", code=1)


def test_links_that_were_skipped_up_to_now_are_lost_too(feed: Feed) -> None:
    """The gap is between the last link and the open segment: all links are deleted."""
    feed.register()
    feed.write(1)
    links.disable(feed.directory)
    feed.write(1)
    links.enable(feed.directory)
    feed.write(1, rotate=False)
    with pytest.raises(SegmentsMissed):
        feed.run(Noting())
    config = load_config(feed.root / "shop.toml", {})
    (lost,) = delete_lost(config, NAME)
    assert lost.segments == (0,)
    noting = Noting()
    feed.run(noting)
    assert noting.gsns == []
    feed.writer.rotate()
    feed.run(noting)
    assert noting.gsns == [3]


@pytest.mark.parametrize("kept", [[2, 3], []])
def test_links_that_are_missed_in_front_are_a_hole_too(
    feed: Feed, capsys: Capture, kept: list[int]
) -> None:
    """The gap is between the saved state and the first link, or the open segment."""
    feed.register()
    feed.write(2)
    feed.run(Noting(take=1, answer=lambda call: call == 1))
    for number in (1, 2, 3):
        links.enable(feed.directory) if number in kept else links.disable(feed.directory)
        feed.write(1)
    links.enable(feed.directory)
    feed.write(1, rotate=False)
    (feed.directory / "0.ckt").unlink()
    with pytest.raises(SegmentsMissed, match=r"greater then saved state.*\[state=0, segment="):
        feed.run(Noting())
    (found,) = run_command(capsys, feed, "delete-lost-segment-links", "FILE", "--yes")
    assert found["message"] == (
        "segments were missing: 0 links before the gap and the saved state were deleted"
    )
    assert found["segments"] == []
    assert ConsumerState(feed.directory).load() is None
    noting = Noting()
    feed.run(noting)
    feed.writer.rotate()
    feed.run(noting)
    assert noting.gsns == [4, 5, 6][3 - len(kept) - 1 :]


def test_a_consumer_at_the_edge_of_a_segment_has_lost_nothing(feed: Feed) -> None:
    """The next link is its saved state's, or not there yet, or a link it has passed is left."""
    config = load_config(feed.root / "shop.toml", {})
    state = ConsumerState(feed.directory)

    def is_kept() -> bool:
        before = state.load()
        (lost,) = delete_lost(config, NAME)
        return (lost.is_found, state.load()) == (False, before) and before is not None

    feed.register()
    assert is_kept(), "nothing was ever written"
    feed.write(2, rotate=False)
    feed.run(Noting())
    assert is_kept(), "the open segment is read to its end"
    feed.writer.rotate()
    assert is_kept(), "and closed: its link is the one that it goes on with"
    feed.write(1, rotate=False)
    feed.run(Noting())
    assert feed.links() == []
    assert is_kept(), "no link is left, and the open segment follows"
    links.make_link(feed.directory, feed.root / "log" / "0.ckt")
    assert is_kept(), "a crash made a link again"
    feed.writer.rotate()
    feed.write(1)
    assert feed.links() == ["1.ckt", "2.ckt"]
    assert is_kept(), "several links follow"
    links.disable(feed.directory)
    feed.run(Noting())
    feed.write(1)
    assert is_kept(), "disabled, it waits"


def test_a_hole_behind_a_snapshot_is_a_hole_of_the_log(feed: Feed) -> None:
    """Numbers of the snapshot's own segments are not compared with those of the links."""
    config = load_config(feed.root / "shop.toml", {})
    feed.register()
    for _ in range(4):
        feed.write(1)
    snapshot, state = Snapshot(feed.directory), ConsumerState(feed.directory)
    for number in (0, 1, 2):
        (feed.directory / f"{number}.ckt").unlink()
    for begin, is_found in ((3, False), (2, True)):
        snapshot.want()
        snapshot.begin(Made(log_id="of rows", ordinal="1", begin=Position(segment=begin, gsn=0)))
        (lost,) = delete_lost(config, NAME)
        assert lost.is_found is is_found
        assert (state.load() is None) is is_found


def test_the_hole_of_a_running_consumer_is_not_touched(feed: Feed) -> None:
    """No link is deleted while it reads them; a pipeline without consumers has none to delete."""
    config = load_config(feed.root / "shop.toml", {})
    with pytest.raises(NoConsumers, match="shop has no consumer"):
        delete_lost(config, None)
    feed.register()
    lock = REAL_FILES.lock(feed.directory, "lock")
    with pytest.raises(LostLinksLocked) as caught:
        delete_lost(config, NAME)
    lock.release()
    assert caught.value.message.startswith(f"consumer {NAME} runs, and no link was deleted: ")
    with pytest.raises(PenstockError, match="has no consumer other"):
        delete_lost(config, "other")


def test_links_beyond_the_limit_are_skipped_and_said(feed: Feed) -> None:
    """This limits the disk space that a slow consumer holds."""
    feed.register()
    feed.write(1)
    size = (feed.directory / "0.ckt").stat().st_size
    links.enable(feed.directory, size_bytes_max=2 * size + 10)
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            feed.write(1)
    assert feed.links() == ["0.ckt", "1.ckt"]
    errors = [line for line in logs if line["log_level"] == "error"]
    assert [line["segment"] for line in errors] == ["2.ckt", "3.ckt", "4.ckt", "5.ckt"]
    assert "would exceed cdcWalDirectoryMaxSize" in errors[0]["event"]
    assert errors[0]["limit_bytes"] == 2 * size + 10
    assert link_segment(feed.directory, feed.root / "log" / "1.ckt"), "it has that one already"


def test_forced_rotation_is_the_shortest_that_a_consumer_wants(feed: Feed) -> None:
    """The interval is walForceArchiveTimeout if that is below flushIntervalSeconds; without a
    target names in the log are kept within limits.
    """
    path = plain_pipeline(feed.root, "walForceArchiveTimeout = 700")
    options = extract_options(load_config(path, {}))
    assert (options.flush_interval_s, options.keeping) == (
        0.7,
        Keeping(age_s=86_400, size_bytes=10 * 2**30),
    )
    path = plain_pipeline(feed.root)
    assert extract_options(load_config(path, {})).flush_interval_s == 5.0


@pytest.mark.parametrize(
    ("keys", "keeping"),
    [
        ("", Keeping(age_s=24 * 3600, size_bytes=10 * 2**30)),
        ("keepAppliedHours = 0.5", Keeping(age_s=1800, size_bytes=10 * 2**30)),
        ("keepAppliedMegabytes = 3", Keeping(age_s=24 * 3600, size_bytes=3 * 2**20)),
        ("removeFiles = true", KEEP_NONE),
    ],
)
def test_without_a_target_the_file_says_how_long_linked_segments_stay(
    tmp_path: Path, keys: str, keeping: Keeping
) -> None:
    """The keys are those of a load, with the same defaults."""
    path = plain_pipeline(tmp_path, f"[changeLoader]\n{keys}")
    assert extract_options(load_config(path, {})).keeping == keeping


def _program() -> list[str]:
    from penstock.host.process import this_program

    return this_program()


def _read_notes(feed: Feed) -> list[str]:
    path = feed.root / "noted.txt"
    return path.read_text().splitlines() if path.exists() else []


def _until(holds: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
