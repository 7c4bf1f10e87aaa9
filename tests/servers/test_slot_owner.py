"""Owners of slots: two pipelines on one slot are refused before the second changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.pipelines.extract import Stop, extractor_of, log_changes, running, set_up, until
from harness.pipelines.pipeline import penstock, pipeline
from harness.pipelines.stream import run_sql
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.run.reset import look
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.extraction import ensure_slot
from penstock.engines.postgres.handover import prepare
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import SlotInUse, SlotState, drop_slot, read_slot
from penstock.engines.postgres.source.slot_owner import (
    SlotOfAnother,
    SlotOwner,
    SlotThereBefore,
    claim_slot,
    disclaim_slot,
    free_names,
    slot_owner,
)
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.log.layout import load_state
from penstock.ports.config import Config
from penstock.ports.handover import Handover, write_handover
from plugins.doctor import find_by_code
from plugins.postgres import Server

DDL = "create table t (id int primary key, v text);; insert into t values (1, 'a')"
SLOT, PUBLICATION = "wirekite_replication_slot", "wirekite_publication"


@pytest.fixture
def first(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """A pipeline of mode change."""
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, DDL)
    return pipeline(tmp_path, source_url, target_url, mode="change", directory="first")


def _copy(first: Config, tmp_path: Path, mode: str = "change") -> Config:
    """Return the same file with another directory."""
    return pipeline(
        tmp_path, first.source.url, first.target.url, mode=mode, directory="copy", file="copy.toml"
    )


def _extractor(config: Config, **more: object) -> Extractor:
    """Return an extractor as `penstock extract` makes it, which ends when idle."""
    tables = source_tables(config)
    start = ensure_slot(pipeline_of(config), tables)
    options = ExtractOptions(
        slot=SLOT, publication=PUBLICATION, exit_when_idle=True, idle_wait_s=0.3
    )
    engine = PostgresEngine(
        config.source.url,
        tables=tables,
        options=options,
        start_position=start,
        pipeline=config.pipeline.name,
    )
    return Extractor(engine, config.directory, options=options, **more)  # type: ignore[arg-type]


def _slot(config: Config) -> SlotState | None:
    with open_replication(config.source.url, application_name="test") as replication:
        return read_slot(replication, SLOT)


def _owner(config: Config) -> SlotOwner | None:
    with connect(config.source.url, application_name="test") as sql:
        return slot_owner(sql, PUBLICATION, SLOT)


def test_an_extraction_says_whose_the_slot_is(first: Config, tmp_path: Path) -> None:
    """A copy of the pipeline with another directory is refused, by doctor too; the first continues.

    This holds whether or not the first runs; once the slot is dropped the copy creates its own.
    """
    _extractor(first).run()
    state = load_state(first.layout.log)
    assert state is not None
    assert _owner(first) == SlotOwner(pipeline="shop", log_id=state.log_id)
    with connect(first.source.url, application_name="test") as sql:
        sql.execute("insert into t values (2, 'b')")
    before = _slot(first)
    copy = _copy(first, tmp_path)
    with pytest.raises(SlotOfAnother) as caught:
        _extractor(copy)
    assert "pipeline shop" in caught.value.message
    for mode in ("change", "data+change"):
        (finding,) = find_by_code(_copy(first, tmp_path, mode), "PG09")
        assert state.log_id in finding.what
    assert find_by_code(first, "PG09") == []
    assert _slot(first) == before
    _extractor(first).run()
    assert [c.after["id"] for c in log_changes(first.directory) if c.after] == [2]
    with open_replication(first.source.url, application_name="test") as replication:
        drop_slot(replication, SLOT)
    _extractor(copy).run()
    owner = _owner(copy)
    assert owner is not None
    assert owner.log_id != state.log_id


def test_a_slot_that_went_to_another_log_is_not_read(first: Config) -> None:
    """The owner is checked before each connection, before anything moves the slot."""
    extractor = _extractor(first)
    with connect(first.source.url, application_name="test") as sql:
        claim_slot(sql, PUBLICATION, SLOT, SlotOwner(pipeline="other", log_id="x"))
    before = _slot(first)
    with pytest.raises(SlotOfAnother):
        extractor.run()
    assert _slot(first) == before


def test_a_slot_in_use_is_not_adopted(first: Config, tmp_path: Path) -> None:
    """A slot that an anonymous extraction reads is refused at once, and doctor reports it."""
    set_up(first.source.url, "create table u (id int)", slot=SLOT)
    stop = Stop()
    options = ExtractOptions(slot=SLOT, publication="p", flush_interval_s=0.3)
    extractor = extractor_of(first.source.url, tmp_path / "anonymous", options=options, stop=stop)
    with running(extractor):
        try:
            until(lambda: (state := _slot(first)) is not None and state.active_pid)
            with pytest.raises(SlotInUse) as caught:
                _extractor(first)
            (finding,) = find_by_code(first, "PG09")
            assert "being read by penstock" in finding.what
            assert "penstock" in find_by_code(first, "PG10")[0].what
        finally:
            stop.asked.set()
    assert "replicationSlot" in caught.value.hint
    assert not first.layout.log.exists()


def test_a_new_pipeline_with_bulk_load_makes_its_slot_itself(first: Config, tmp_path: Path) -> None:
    """An existing slot is refused with nothing changed, unless a killed start left it."""
    set_up(first.source.url, "create table u (id int)", slot=SLOT)
    config = _copy(first, tmp_path, "data+change")
    before = _slot(config)
    with (
        pytest.raises(SlotThereBefore) as caught,
        prepare(pipeline_of(config), source_tables(config), stop=lambda: False),
    ):
        pass
    assert f'replicationSlot = "{SLOT}_2"' in caught.value.hint
    assert "drop" not in caught.value.hint
    (finding,) = find_by_code(config, "PG09")
    assert "has not begun" in finding.what
    assert _slot(config) == before
    write_handover(config, Handover(slot=SLOT, tables=("public.t",)))
    assert find_by_code(config, "PG09") == []
    stopped = iter([False, False, False])
    with prepare(
        pipeline_of(config), source_tables(config), stop=lambda: next(stopped, True)
    ) as position:
        assert before is not None
        assert position == before.confirmed_flush


def test_the_owner_stands_beside_what_others_wrote(first: Config) -> None:
    """Lines of other slots and people stay; a role that does not own the publication writes
    nothing.
    """
    ours = SlotOwner(pipeline="shop", log_id="1")
    with connect(first.source.url, application_name="test") as sql:
        sql.execute(f"create publication {PUBLICATION} for table t")
        sql.execute(f"comment on publication {PUBLICATION} is 'ask Ann''s team'")
        for slot in (SLOT, "other"):
            sql.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        claim_slot(sql, PUBLICATION, SLOT, ours)
        claim_slot(sql, PUBLICATION, "other", SlotOwner(pipeline="b.c", log_id="2"))
        claim_slot(sql, PUBLICATION, SLOT, ours)
        assert slot_owner(sql, PUBLICATION, SLOT) == ours
        with pytest.raises(SlotOfAnother):
            claim_slot(sql, PUBLICATION, SLOT, SlotOwner(pipeline="shop", log_id="3"))
        disclaim_slot(sql, PUBLICATION, SLOT)
        assert slot_owner(sql, PUBLICATION, SLOT) is None
        assert slot_owner(sql, PUBLICATION, "other") == SlotOwner(pipeline="b.c", log_id="2")
        comment = sql.execute(
            "select obj_description(oid, 'pg_publication') from pg_publication"
        ).fetchone()
        assert comment is not None
        assert comment[0].startswith("ask Ann's team\npenstock: slot other ")
        sql.execute("select pg_drop_replication_slot('other')")
        assert slot_owner(sql, PUBLICATION, "other") is None
        sql.execute("set role pg_monitor")
        claim_slot(sql, PUBLICATION, SLOT, ours)
        assert slot_owner(sql, PUBLICATION, SLOT) is None


@pytest.fixture
def elsewhere(postgres: Server) -> Iterator[str]:
    """URL of another database of the server, which has the default slot."""
    url = postgres.make_database("elsewhere")
    with connect(url, application_name="test") as sql:
        sql.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    try:
        yield url
    finally:
        postgres.drop_database(url)


def test_a_slot_of_another_database_is_left_alone(
    elsewhere: str,
    source_url: str,
    target_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server has one slot of a name: init chooses another, doctor names it, reset does not drop
    it.
    """
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, DDL)
    path = tmp_path / "shop.toml"
    ran = penstock("init", source_url, target_url, "--file", path)
    assert ran.code == 0, ran.err
    assert "pg_drop_replication_slot" not in path.read_text()
    for name, url in (("SOURCE_PASSWORD", source_url), ("TARGET_PASSWORD", target_url)):
        monkeypatch.setenv(name, urlsplit(url).password or "")
    chosen = load_config(path).change_extractor
    assert chosen.replication_slot.startswith(f"{SLOT}_source")
    assert chosen.publication.startswith(f"{PUBLICATION}_source")
    assert find_by_code(load_config(path), "PG09") == []
    first = pipeline(tmp_path, source_url, target_url, file="default.toml")
    (finding,) = find_by_code(first, "PG09")
    assert f'replicationSlot = "{SLOT}_2", publication = "{PUBLICATION}_2"' in finding.command
    removal = next(one for one in look(first, with_tables=False).source if SLOT in one.what)
    assert "elsewhere" in removal.by_hand
    assert not removal.statements
    with (
        pytest.raises(SlotThereBefore) as caught,
        prepare(pipeline_of(first), source_tables(first), stop=lambda: False),
    ):
        pass
    assert "drop" not in caught.value.hint
    with open_replication(elsewhere, application_name="test") as replication:
        assert read_slot(replication, SLOT) is not None


def test_free_names_avoid_what_is_there(source_url: str) -> None:
    """Slots of the server and publications of the database are avoided by one suffix, within 63
    bytes.
    """
    with connect(source_url, application_name="test") as sql:
        assert free_names(sql, "s", "p") == ("s_2", "p_2")
        sql.execute("create publication p_2")
        assert free_names(sql, "s", "p") == ("s_3", "p_3")
        assert free_names(sql, "s", "p", "shop") == ("s_shop", "p_shop")
        sql.execute("create publication p_shop")
        assert free_names(sql, "s", "p", "shop") == ("s_shop_2", "p_shop_2")
        long, _ = free_names(sql, "s" * 63, "p", "n" * 60)
        assert len(long) <= 63
