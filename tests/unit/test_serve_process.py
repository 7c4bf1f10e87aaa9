"""`penstock serve` before it serves, and the files that it finds."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.log import inserts, number_rows
from harness.pipelines.pipeline import pipeline
from harness.servers.serve import open_source_log, write_log
from penstock.consume.lock import LOCK_FILE
from penstock.control.pipeline import extras
from penstock.control.pipeline.actions import StopRequest
from penstock.control.run import serve_process
from penstock.control.run.serve_process import (
    ServeNotInstalled,
    ServeRunning,
    ServeSectionMissing,
    TlsUnusable,
    serve,
)
from penstock.host.files import REAL_FILES
from penstock.model.sections import ServeSection
from penstock.ports.config import Config
from penstock.serve.blocks import find_place
from penstock.serve.numbers import BEFORE_ALL, end_of
from penstock.serve.saved_state import SavedState, ServedOtherLog
from penstock.serve.slots import NAME, Retention, Slots
from penstock.serve.source_log import LogNotBegun, SegmentGone


def config(folder: Path, **section: Any) -> Config:
    """Return a pipeline with a log of its own, and this [serve]."""
    found = pipeline(folder, "postgresql://u@127.0.0.1:1/d", None)
    wanted = {"users": {"repl": "s3cret"}, "listen": "127.0.0.1:0", **section}
    return replace(found, serve=ServeSection(**wanted))


def check_refusal(config: Config, error: type[Exception]) -> None:
    """Check that it refuses to begin."""
    with pytest.raises(error):
        serve(config, on_served=lambda _: pytest.fail("it serves"))


def test_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing are a section, a library and a certificate."""
    check_refusal(replace(config(tmp_path), serve=None), ServeSectionMissing)
    check_refusal(config(tmp_path, tls={"certificate": "no.pem", "key": "no.key"}), TlsUnusable)
    monkeypatch.setattr(extras, "_is_installed", lambda _: False)
    check_refusal(config(tmp_path), ServeNotInstalled)


def test_one_server_for_a_log(tmp_path: Path) -> None:
    """The second one is refused, and changes nothing."""
    one = config(tmp_path)
    links = one.layout.consumers / NAME
    REAL_FILES.make_directory(links)
    lock = REAL_FILES.lock(links, LOCK_FILE)
    try:
        check_refusal(one, ServeRunning)
    finally:
        lock.release()


def test_slots_of_a_log_that_was_made_anew(tmp_path: Path) -> None:
    """Their positions would mean other rows."""
    import asyncio

    async def make_slots() -> None:
        slots = Slots(SavedState(tmp_path, log_id="a"), slots_max=10)
        slots.create("s", "pgoutput", BEFORE_ALL)
        await slots.save()
        slots.close()
        Slots(SavedState(tmp_path, log_id="a"), slots_max=10).close()

    asyncio.run(make_slots())
    with pytest.raises(ServedOtherLog):
        SavedState(tmp_path, log_id="b")


def test_a_log_that_has_not_begun(tmp_path: Path) -> None:
    """The server waits for it."""
    with open_source_log(tmp_path) as log, pytest.raises(LogNotBegun):
        log.head()


def test_segments_that_are_gone(tmp_path: Path) -> None:
    """A segment that a slot needs and that is missing is an error, not a gap."""
    rows = number_rows([inserts(2), inserts(2, first=2), inserts(2, first=4)])
    write_log(tmp_path / "log", rows, per_segment=1)
    (tmp_path / "log" / "0.ckt").unlink()
    with open_source_log(tmp_path) as log:
        with pytest.raises(SegmentGone):
            find_place(log, BEFORE_ALL)
        assert find_place(log, end_of(2, 1)).number == 1
        assert find_place(log, end_of(3, 1)).number == 1
        assert find_place(log, end_of(4, 2)).number == 2
        assert find_place(log, end_of(6, 3)).number == 3


def test_links_hold_what_a_slot_needs_and_no_more(tmp_path: Path) -> None:
    """Links do so while there is a slot; segments that the log has removed are read from links."""
    links = tmp_path / "cdc"
    write_log(tmp_path / "log", number_rows([inserts(1)]), per_segment=1, links=links)
    with open_source_log(tmp_path) as log:
        retention = Retention(log, keep_bytes=None)
        retention.hold()
        begun = number_rows([inserts(1), inserts(2, first=1), inserts(2, first=3)])
        write_log(tmp_path / "log", begun[1:], per_segment=1, links=links)
        assert sorted(p.name for p in (links / NAME).glob("*.ckt")) == ["0.ckt", "1.ckt", "2.ckt"]
        for name in ("1.ckt", "2.ckt"):
            (tmp_path / "log" / name).unlink()
        head = log.head()
        with log.segment(1, head) as segment:
            assert segment.row_frames()
        retention.release(end_of(2, 1))
        retention.release(end_of(3, 2) - 1)
        assert sorted(p.name for p in (links / NAME).glob("*.ckt")) == ["1.ckt", "2.ckt"]
        assert retention.held_bytes(end_of(1, 1)) > retention.held_bytes(end_of(3, 2)) > 0
        retention.release(end_of(3, 2))
        assert sorted(p.name for p in (links / NAME).glob("*.ckt")) == ["2.ckt"]
        retention.let_go()
        assert list((links / NAME).glob("*.ckt")) == []


def test_it_waits_until_the_log_begins_and_ends_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the log, and then serves at a port of its own."""
    stops: list[Any] = []
    real = StopRequest

    def stop_request() -> Any:
        stops.append(real())
        return stops[-1]

    monkeypatch.setattr(serve_process, "StopRequest", stop_request)
    monkeypatch.setattr(serve_process, "_LOOK_S", 0.05)
    one = config(tmp_path)
    served: list[str] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serve(one, on_served=served.append)
        except BaseException as error:
            failed.append(error)

    # Signals belong to the main thread.
    from contextlib import nullcontext

    monkeypatch.setattr(serve_process, "stop_on_signals", lambda *_, **__: nullcontext())
    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.2)
    assert served == []
    write_log(one.layout.log, number_rows([inserts(1)]))
    deadline = time.monotonic() + 20
    while not served and not failed and time.monotonic() < deadline:
        time.sleep(0.01)
    stops[0].ask()
    thread.join(20)
    assert failed == []
    assert served[0].startswith("127.0.0.1:")
