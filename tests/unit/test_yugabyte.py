"""YugabyteDB as a source, after its documentation: slots, times, tables and columns."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness.pipelines.pipeline import write_pipeline
from harness.pipelines.readings import status
from penstock.codec.postgres.pgoutput_messages import relation_message
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigValueInvalid
from penstock.control.pipeline.table_requests import read_requests
from penstock.control.status.drawing import change_rows
from penstock.control.status.lag import Lag, lag_of
from penstock.control.status.live import change_line
from penstock.control.status.show import show_lag
from penstock.control.tables import table_commands
from penstock.control.verify.verify import NotComparable, verify
from penstock.engines.postgres.positions import LsnPositions
from penstock.engines.postgres.source.slot import PositionGone, SlotMissing, SlotUnfit
from penstock.engines.postgres.source.slot_owner import SlotOfAnother
from penstock.engines.postgres.source.stream import StreamOptions
from penstock.engines.yugabyte import lag, reset, slots
from penstock.engines.yugabyte.catalog import TableUnfit, check_table
from penstock.engines.yugabyte.engine import Known, YugabyteEngine, YugabyteSource
from penstock.engines.yugabyte.options import check_url, lsn_type, retention_s, wire_url
from penstock.engines.yugabyte.planner import YugabytePlanner
from penstock.engines.yugabyte.slots import (
    RetentionOver,
    SlotPlace,
    SlotReplaced,
    YbSlot,
    age_s,
    check_retention,
    check_slot,
    create_slot,
    micros,
    read_slot,
)
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import UrlInvalid
from penstock.model import FlushPoint, Identity, TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, SourceState, Unread
from penstock.ports.source import ExtractOptions
from penstock.ports.target import Applied

HT = 7104341234567 << 12  # the form in the documentation: microseconds, then a counter of 12 bits


class Transcript:
    """A replication connection that answers as recorded. said: the questions."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers, self.said = list(answers), list[str]()

    def query(self, sql: str, *, doing: str, **_: Any) -> list[dict[str, Any]]:
        """Return the next answer."""
        assert doing
        self.said.append(sql)
        return self.answers.pop(0)


def row(**more: Any) -> dict[str, Any]:
    """Return a row of pg_replication_slots as a server like PostgreSQL 11 has it: no wal_status."""
    return {
        "slot_name": "s",
        "plugin": "yboutput",
        "slot_type": "logical",
        "database": "yugabyte",
        "active": "f",
        "active_pid": None,
        "confirmed_flush_lsn": "0/64",
        "restart_lsn": "0/60",
        "yb_stream_id": "4a1d",
        "yb_restart_commit_ht": str(HT),
        **more,
    }


def slot_of(**more: Any) -> YbSlot:
    """Return a slot that is read."""
    one = row(**more)
    found = read_slot(Transcript([one], [one]), "s")  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_slot_is_made_with_a_hybrid_time() -> None:
    """The consistent point is a placeholder; the snapshot's name can be read."""
    said = Transcript(
        [
            {
                "slot_name": "s",
                "consistent_point": "0/0",
                "snapshot_name": str(HT),
                "output_plugin": "yboutput",
            }
        ]
    )
    made = create_slot(said, "s", lsn_type="SEQUENCE")  # type: ignore[arg-type]
    assert (made.position, made.snapshot_id) == (0, str(HT))
    assert said.said == ['CREATE_REPLICATION_SLOT "s" LOGICAL yboutput']
    said.answers.append([{"consistent_point": "0/2", "snapshot_name": str(HT)}])
    create_slot(said, "s", lsn_type="HYBRID_TIME")  # type: ignore[arg-type]
    assert said.said[-1] == 'CREATE_REPLICATION_SLOT "s" LOGICAL yboutput HYBRID_TIME'
    said.answers.append([{"consistent_point": "0/2", "snapshot_name": None}])
    create_slot(said, "s", lsn_type="HYBRID_TIME", has_snapshot=False)  # type: ignore[arg-type]
    words = 'CREATE_REPLICATION_SLOT "s" LOGICAL yboutput NOEXPORT_SNAPSHOT HYBRID_TIME'
    assert said.said[-1] == words


def test_a_slot_is_read_with_its_stream_and_its_time() -> None:
    """The server's view may lack columns of later versions of PostgreSQL."""
    found = slot_of()
    assert (found.stream_id, found.restart_ht) == ("4a1d", HT)
    assert found.state.confirmed_flush == 100
    assert found.state.is_whole
    assert micros(found.restart_ht) == 7104341234567
    assert read_slot(Transcript([]), "s") is None  # type: ignore[arg-type]


def test_a_slot_made_anew_is_no_continuation() -> None:
    """The new slot's LSNs start again, and would be mistaken for those of the log."""
    known = SlotPlace(stream_id="4a1d", restart_ht=HT)
    assert check_slot(slot_of(), "s", known=known, database="yugabyte", position=100)
    with pytest.raises(SlotReplaced, match="recreated") as caught:
        check_slot(
            slot_of(yb_stream_id="99ff"), "s", known=known, database="yugabyte", position=100
        )
    assert caught.value.code == "YB02"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("more", "position", "error"),
    [
        ({"plugin": "pgoutput"}, 100, SlotUnfit),
        ({"database": "other"}, 100, SlotUnfit),
        ({"confirmed_flush_lsn": "0/65"}, 100, PositionGone),
    ],
)
def test_what_the_log_cannot_go_on_from_is_refused(
    more: dict[str, Any], position: int, error: type[Exception]
) -> None:
    """LSNs are ordered within one slot, as in PostgreSQL."""
    with pytest.raises(error):
        check_slot(slot_of(**more), "s", known=SlotPlace(), database="yugabyte", position=position)


def test_a_missing_slot_is_refused() -> None:
    """The slot is never recreated for an existing log."""
    with pytest.raises(SlotMissing):
        check_slot(None, "s", known=SlotPlace(stream_id="4a1d"), database="d", position=5)


def test_the_retention_is_a_clock() -> None:
    """Changes that were unconfirmed for longer than the server keeps them may be gone."""
    now_us = REAL_CLOCK.now_us()
    recent, old = ((now_us - hours * 3_600_000_000) << 12 for hours in (7, 9))
    check_retention(slot_of(yb_restart_commit_ht=str(recent)), "s", 8 * 3600)
    with pytest.raises(RetentionOver, match=r"9\.0 hours") as caught:
        check_retention(slot_of(yb_restart_commit_ht=str(old)), "s", 8 * 3600)
    assert "retention_hours" in caught.value.hint
    check_retention(slot_of(yb_restart_commit_ht=str(old)), "s", 24 * 3600)
    assert age_s(0, now_us) is None


def test_a_penstock_that_serves_keeps_what_is_not_confirmed() -> None:
    """The server's slots hold segments for any time; and it can send heartbeats."""
    old = str((REAL_CLOCK.now_us() - 30 * 3_600_000_000) << 12)
    ours = slot_of(yb_restart_commit_ht=old, version="PostgreSQL 15.0 (penstock)")
    assert ours.is_served
    check_retention(ours, "s", 8 * 3600)
    theirs = slot_of(yb_restart_commit_ht=old, version="PostgreSQL 15.2-YB-2025.1.0.0-b0")
    assert not theirs.is_served
    with pytest.raises(RetentionOver):
        check_retention(theirs, "s", 8 * 3600)
    for found, more in ((ours, [("messages", "true")]), (theirs, [])):
        source = YugabyteSource.__new__(YugabyteSource)
        source._options = StreamOptions(slot="s", publication="p")
        source._known = Known(place=SlotPlace(), retention_s=1.0, found=found)
        words = [("proto_version", "1"), ("publication_names", '"p"'), *more]
        assert source._protocol(None) == words  # type: ignore[arg-type]


def test_the_url_is_for_libpq_without_our_parameters() -> None:
    """The port is that of YSQL; sslmode and the others stay."""
    given = "yugabytedb://u:p%40w@h/db?sslmode=require&retention_hours=24&lsn_type=HYBRID_TIME"
    assert wire_url(given) == "postgresql://u:p%40w@h:5433/db?sslmode=require"
    assert wire_url("yugabytedb://u@[::1]:5499/db") == "postgresql://u@[::1]:5499/db"
    assert retention_s(given) == 24 * 3600
    assert retention_s("yugabytedb://u@h/db") == 8 * 3600
    assert lsn_type(given) == "HYBRID_TIME"
    check_url(given)
    for wrong in ("retention_hours=25", "retention_hours=x", "lsn_type=WAL"):
        with pytest.raises(UrlInvalid):
            check_url(f"yugabytedb://u@h/db?{wrong}")


class Active:
    """A catalogue in which the slot was read within the last minutes."""

    def __enter__(self) -> Active:
        return self

    def __exit__(self, *_: object) -> None:
        """Release nothing."""

    def execute(self, _sql: bytes) -> Active:
        """Accept the question for `active`."""
        return self

    def fetchone(self) -> tuple[bool]:
        """Return that it is active."""
        return (True,)


def test_a_slot_that_was_read_lately_cannot_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would refuse it: the reset says so before anything is removed."""
    monkeypatch.setattr(reset, "connect_catalog", lambda *_, **__: Active())
    config = SimpleNamespace(source=SimpleNamespace(url="yugabytedb://u@h/d"))
    with pytest.raises(reset.SlotReadLately, match="within the last minutes") as caught:
        reset._check_idle(config, "s")  # type: ignore[arg-type]
    assert caught.value.hint


def table(**more: Any) -> TableDefinition:
    """Return a table with a key."""
    given = {"primary_key": ("id",), **more}
    return TableDefinition(name=TableName("public", "t"), source_id=1, columns=(), **given)


def test_tables_need_a_key_and_an_identity() -> None:
    """INDEX does not exist there, NOTHING identifies no row."""
    check_table(table())
    check_table(table(identity=Identity.FULL))
    for unfit in (
        table(primary_key=()),
        table(identity=Identity.NOTHING),
        table(identity=Identity.INDEX),
    ):
        with pytest.raises(TableUnfit) as caught:
            check_table(unfit)
        assert caught.value.hint


def test_identity_change_identifies_by_the_key() -> None:
    """The letter of a Relation message is checked."""
    column = b"\x01id\0" + struct.pack(">Ii", 23, -1)
    body = struct.pack(">I", 16384) + b"public\0t\0c" + struct.pack(">H", 1) + column
    assert relation_message(body).identity == "d"


def test_lag_is_a_time_though_lsns_say_nothing() -> None:
    """Without counted bytes a source never counts as read to its end."""
    state = SourceState(
        now_us=20_000_000,
        position=0,
        slot_exists=True,
        slot_active=True,
        confirmed=5,
        unread=Unread(commit_us=12_000_000),
        counts_bytes=False,
        bytes_between=lambda _first, _last: 0,
    )
    end = FlushPoint(position=5, gsn=1, trx=1, commit_time_us=1_000_000)
    found = lag_of(state, LogEnd(log_id="x", end=end), Applied(), outstanding_us=None)
    assert (found.seconds, found.at_most) == (8.0, True)


def known_lag() -> Lag:
    """Return the lag of such a source, with a target that is 3 rows behind."""
    state = SourceState(
        now_us=20_000_000,
        position=0,
        slot_exists=True,
        slot_active=True,
        confirmed=0x50,
        unread=Unread(commit_us=12_000_000),
        counts_bytes=False,
        bytes_between=lambda _first, _last: 0,
    )
    log = LogEnd(log_id="x", end=FlushPoint(position=0x60, gsn=8, trx=2, commit_time_us=1_000_000))
    applied = Applied(position=0x40, gsn=5, trx=1)
    return lag_of(state, log, applied, outstanding_us=18_000_000, positions=LsnPositions())


def test_what_is_not_known_of_the_source_is_not_printed() -> None:
    """There are neither 0 bytes nor a source at 0/0: the confirmed position is shown."""
    found = known_lag()
    out = Console(file=io.StringIO(), width=100)
    show_lag(found, out)
    assert isinstance(out.file, io.StringIO)
    lines = [" ".join(line.split()) for line in out.file.getvalue().splitlines()]
    assert lines == [
        "lag 2.0 s, 3 rows in the log",
        "source knows as read 0/50",
        "change log is at 0/60",
        "target is at 0/40",
    ]
    said = found.as_dict()
    assert said["lag_seconds"] == 2.0
    for key in ("extract_lag_bytes", "slot_lag_bytes", "applied_lag_bytes", "source_position"):
        assert said[key] is None
    shown = replace(status(), lag=found)
    text = change_line(shown, 0.0, 0.0) + "".join(value for _, value in change_rows(shown)[:3])
    assert "2.0 s" in text
    assert " B" not in text
    assert "bytes" not in text


def followed_from(folder: Path) -> Config:
    """Return a pipeline of such a source."""
    url = "yugabytedb://u@127.0.0.1:1/d"
    return load_config(write_pipeline(folder, url, "postgresql://u@127.0.0.1:1/d"))


def test_hints_name_what_this_source_has(tmp_path: Path) -> None:
    """No single table is copied again: verify does not suggest it, a request is refused."""
    config = followed_from(tmp_path)
    with pytest.raises(NotComparable) as caught:
        verify(config)
    assert "resync" not in caught.value.hint
    assert f"penstock reset {config.path.name} --target" in caught.value.hint
    for ask in (table_commands.add, table_commands.remove, table_commands.resync):
        with pytest.raises(table_commands.RequestRefused) as refused:
            ask(config, TableName("public", "t"))
        assert f"penstock reset {config.path.name} --target" in refused.value.hint
    assert read_requests(config).tables == ()


def test_another_point_than_the_slots_is_refused() -> None:
    """A later time has no place in the slot: its rows would not join the changes."""
    planner = YugabytePlanner.__new__(YugabytePlanner)
    with pytest.raises(slots.HistoryGone) as caught:
        planner.fresh_point()
    assert caught.value.hint
    assert lag.SLOT


class Commented:
    """A catalogue with a publication's comment. written: its changes."""

    def __init__(self, comment: str) -> None:
        self.comment, self.written = comment, list[str]()

    def execute(self, sql: Any, _parameters: Any = None) -> Commented:
        """Read or change the comment."""
        if isinstance(sql, bytes):
            self.written.append(sql.decode())
        return self

    def fetchall(self) -> list[tuple[str]]:
        """Return no slot or publication."""
        return []

    def fetchone(self) -> tuple[str, bool]:
        """Return the comment, and that it may be changed."""
        return self.comment, True


def claim_slot(comment: str) -> Commented:
    """Return the catalogue after the engine has claimed its slot."""
    engine = YugabyteEngine(
        "yugabytedb://u@h/d",
        tables=(),
        options=ExtractOptions(slot="s", publication="p"),
        start_position=0,
        pipeline="shop",
        on_start=lambda: None,
    )
    engine._place = SimpleNamespace(log_id=lambda: "ours")  # type: ignore[assignment]
    catalog = Commented(comment)
    engine._claim(catalog)  # type: ignore[arg-type]
    return catalog


def test_a_slot_has_one_consumer() -> None:
    """The server has no lock: the publication's comment names the slot's owner."""
    (written,) = claim_slot("").written
    assert "penstock: slot s is read by pipeline shop, log ours" in written
    assert claim_slot("penstock: slot s is read by pipeline shop, log ours").written == []
    with pytest.raises(SlotOfAnother):
        claim_slot("penstock: slot s is read by pipeline shop, log theirs")


@pytest.mark.parametrize(
    "serve", ["", '[serve]\nusers = { repl = "${MODE}" }\n[target]\nurl = "{}"\n']
)
def test_no_base_is_kept(tmp_path: Path, serve: str) -> None:
    """Rows exist only at the log's beginning: this is reported at once, without a wait."""
    path = tmp_path / "shop.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "shop"\nmode = "data+change"\n[source]\n'
        'url = "yugabytedb://repl@localhost:5433/shop"\ntables = ["public.*"]\n'
        + serve.replace("{}", "postgresql://u@localhost/d")
    )
    with pytest.raises(ConfigValueInvalid, match="log's beginning alone; write change"):
        load_config(path, {"MODE": "secret"})
