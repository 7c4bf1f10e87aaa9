"""The SQLite file with progress and action of a pipeline without target."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.servers.published import CE_QUERY, CL_QUERY, PROGRESS_COLUMNS
from penstock.engines.sqlite.progress import ProgressFileBroken, SQLiteProgress, path_of
from penstock.host.errors import ConnectFailed, StatementFailed, StatementInterrupted
from penstock.ports.progress import open_progress, open_target_reader, progress_beside
from penstock.ports.target import ActionUnknown, Applied, ProgressUnwritable

KILLS = 12


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a file in a folder that does not exist yet, with a name that needs quoting."""
    return progress_beside(tmp_path / "a shop? 100%#" / "state")


def open_session(url: str) -> SQLiteProgress:
    """Open a session, as the registry finds it."""
    found = open_progress(url, application_name="test")
    assert isinstance(found, SQLiteProgress)
    return found


def as_a_user(url: str) -> sqlite3.Connection:
    """Attach the file under the published name, as another program does."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("attach ? as wirekite", (str(path_of(url)),))
    return connection


def test_who_only_looks_makes_nothing(url: str) -> None:
    """A status before the first run leaves no file; the action is RUN, and no row is applied."""
    reader = open_target_reader(url, application_name="test")
    assert reader.present() == (False, False)
    assert reader.action() == "RUN"
    assert (reader.newest("CE"), reader.log_id(), reader.read_applied()) == ((), "", Applied())
    with pytest.raises(StatementFailed, match="no table wirekite_action yet"):
        open_session(url).set_action("PAUSE")
    assert not path_of(url).parent.parent.exists()


def test_tables_have_the_documents_columns(url: str) -> None:
    """Tables have these names in order, and NOT NULL; the file is in WAL mode."""
    progress = open_session(url)
    progress.ensure_tables()
    progress.ensure_tables()
    with_columns = as_a_user(url)
    found = with_columns.execute("pragma wirekite.table_info(wirekite_progress)").fetchall()
    assert tuple((row[1], "NO" if row[3] else "YES") for row in found) == PROGRESS_COLUMNS
    assert [row[1] for row in found if row[5]] == ["source", "target"]
    actions = with_columns.execute("select * from wirekite.wirekite_action").fetchall()
    assert actions == [("RUN",)]
    assert with_columns.execute("pragma wirekite.journal_mode").fetchone() == ("wal",)
    with_columns.close()
    progress.close()


def test_published_queries_give_the_same_answer(url: str) -> None:
    """The queries are typed unchanged in another program: newest first, marks and times."""
    progress = open_session(url)
    progress.ensure_tables()
    for number in range(7):
        progress.begin_segment(slot="slot", file=f"{number}.ckt", mark=f"0/{number}")
        if number < 6:
            progress.end_segment(slot="slot", file=f"{number}.ckt", mark=f"0/{number + 1}")
    user = as_a_user(url)
    rows = user.execute(CE_QUERY).fetchall()
    assert [(row[0], row[1]) for row in rows] == [("slot", f"0/{n}") for n in (6, 6, 5, 4, 3)]
    assert rows[0][3] is None
    assert user.execute(CL_QUERY).fetchall() == []
    began, ended = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in rows[1][2:])
    assert timedelta(0) <= ended - began <= datetime.now(UTC) - began < timedelta(minutes=1)
    shown = open_target_reader(url, application_name="test").newest("CE")
    assert [(row.source, row.mark) for row in shown] == [(row[0], row[1]) for row in rows]
    assert shown[1].start_time.replace(tzinfo=UTC) == began
    assert shown[0].finish_time is None
    user.close()


def test_a_row_left_open_counts_a_restart(url: str) -> None:
    """A second begin adds one, an end does not, as in a target."""
    progress = open_session(url)
    progress.ensure_tables()
    for _ in range(3):
        progress.begin_segment(slot="s", file="0.ckt", mark="0/1")
    assert progress.finished_segments("s") == set()
    progress.end_segment(slot="s", file="0.ckt", mark="0/2")
    progress.begin_segment(slot="s", file="0.ckt", mark="0/1")
    assert progress.finished_segments("s") == {"0.ckt"}
    assert progress.finished_segments("another") == set()
    assert progress.restarts() == 2


def test_actions(url: str) -> None:
    """Another process reads an action at once; other words are refused, and named."""
    writer, reader = open_session(url), open_session(url)
    writer.ensure_tables()
    assert reader.read_action() == "RUN"
    for word in ("PAUSE", "STOP", "RUN"):
        writer.set_action(word)
        assert reader.read_action() == word
    with pytest.raises(ActionUnknown):
        writer.set_action("HALT")
    user = as_a_user(url)
    user.execute("update wirekite.wirekite_action set action = 'NONSENSE'")
    with pytest.raises(ActionUnknown, match="NONSENSE") as caught:
        reader.read_action()
    assert "sqlite3" in caught.value.hint
    user.execute("delete from wirekite.wirekite_action")  # a missing row means RUN
    assert reader.read_action() == "RUN"
    writer.set_action("PAUSE")
    assert reader.read_action() == "PAUSE"
    user.close()


def test_a_file_that_is_replaced_is_opened_anew(url: str) -> None:
    """`penstock reset` removes it while a web server has it open."""
    writer, reader = open_session(url), open_session(url)
    writer.ensure_tables()
    writer.set_action("PAUSE")
    assert reader.read_action() == "PAUSE"
    for path in path_of(url).parent.iterdir():
        path.unlink()
    assert reader.read_action() == "RUN"
    assert reader.present() == (False, False)
    writer.begin_segment(slot="s", file="0.ckt", mark="0/1")
    assert [row.source for row in reader.newest("CE")] == ["s"]


def test_a_broken_file_is_one_typed_error(url: str) -> None:
    """The error has its name and the command; removed by that, the file is created again."""
    made = open_session(url)
    made.ensure_tables()
    made.close()
    path = path_of(url)
    path.write_bytes(b"this is not a database " * 1000)
    for ask in (open_session(url).read_action, open_session(url).ensure_tables):
        with pytest.raises(ProgressFileBroken, match=r"wirekite\.db.*not a database") as caught:
            ask()
    command = caught.value.hint.partition("beginning: ")[2].partition(";")[0]
    subprocess.run(command, shell=True, check=True)
    open_session(url).ensure_tables()
    assert open_session(url).read_action() == "RUN"


def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    """A directory is in its place, or a file above it: the error says who, and what to do."""
    url = progress_beside(tmp_path)
    path_of(url).mkdir()
    with pytest.raises((ProgressUnwritable, ConnectFailed), match=r"wirekite\.db") as caught:
        open_session(url).ensure_tables()
    assert caught.value.hint


def test_a_lock_that_is_held_too_long_may_be_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer waits; then the error says that a retry may succeed. Readers do not wait at all."""
    monkeypatch.setattr("penstock.engines.sqlite.progress.BUSY_TIMEOUT_S", 0.2)
    open_session(url).ensure_tables()
    user = as_a_user(url)
    user.execute("begin immediate")
    user.execute("update wirekite.wirekite_action set action = 'PAUSE'")
    assert open_session(url).read_action() == "RUN"
    with pytest.raises(StatementInterrupted) as caught:
        open_session(url).set_action("STOP")
    assert caught.value.retry == "backoff"
    user.execute("commit")
    open_session(url).set_action("STOP")
    user.close()


def test_one_writes_segments_while_many_look_and_somebody_pauses(url: str) -> None:
    """No side fails, and every row is there, never half of one."""
    open_session(url).ensure_tables()
    ended = threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        session = open_session(url)
        try:
            while not ended.is_set():
                session.newest("CE")
                assert session.read_action() in ("RUN", "PAUSE")
        except BaseException as error:
            failures.append(error)

    def act() -> None:
        session = open_session(url)
        try:
            while not ended.is_set():
                for word in ("PAUSE", "RUN"):
                    session.set_action(word)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (look, look, look, act)]
    for thread in threads:
        thread.start()
    writer = open_session(url)
    for number in range(150):
        writer.begin_segment(slot="s", file=f"{number}.ckt", mark="0/1")
        writer.end_segment(slot="s", file=f"{number}.ckt", mark="0/2")
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(writer.finished_segments("s")) == 150


@pytest.mark.promise
def test_a_writer_killed_at_any_moment_loses_no_row_that_it_told(url: str) -> None:
    """The writer gets kill -9: reported rows are there, and the next writer continues."""
    program = (
        "import itertools, sys; from penstock.ports.progress import open_progress;"
        " p = open_progress(sys.argv[1], application_name='x'); p.ensure_tables();"
        " n = len(p.finished_segments('s'));\n"
        "for number in itertools.count(n):\n"
        "    p.begin_segment(slot='s', file=f'{number}.ckt', mark='0/1')\n"
        "    p.end_segment(slot='s', file=f'{number}.ckt', mark='0/2')\n"
        "    print(number, flush=True)\n"
    )
    told = -1
    for kill in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(3 + kill):
            told = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
        told = int(rest[-1]) if rest else told
        child.wait()
        child.stdout.close()
        session = open_session(url)
        files = session.finished_segments("s")
        assert {f"{n}.ckt" for n in range(told + 1)} <= files
        assert len(files) <= told + 2
        user = as_a_user(url)
        assert user.execute("pragma wirekite.integrity_check").fetchone() == ("ok",)
        user.close()
        session.close()
