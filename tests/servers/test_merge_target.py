"""A merge into an empty target, and a merge that is undone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg

from harness.pipelines.pipeline import write_pipeline
from penstock.consume.registration import register
from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.consumers import log_place
from penstock.control.run.load_process import _Load
from penstock.control.run.reset import carry_out, look
from penstock.host.files import REAL_FILES
from penstock.log.layout import LogState, save_state
from penstock.model import FlushPoint
from penstock.model.sections import Start
from penstock.ports.config import Config
from plugins.postgres import Server

TABLE = "create table account (id int primary key, note text); create index on account (note)"


def merged_of(folder: Path, urls: list[str], target: str | None) -> Config:
    """Return a merge of one log for each of these databases, which begins with their rows."""
    for number, url in enumerate(urls):
        write_pipeline(
            folder,
            url,
            None,
            name=f"s{number}",
            directory=f"s{number}",
            file=f"s{number}.toml",
            sections={"pipeline": {"mode": "data+change"}},
        )
    logs = ", ".join(f'"s{number}.toml"' for number in range(len(urls)))
    to = f'[target]\nurl = "{target}"\n' if target else ""
    path = folder / "merged.toml"
    path.write_text(
        '[pipeline]\nname = "all"\ndirectory = "all"\nmode = "data+change"\n'
        f"[merge]\nlogs = [{logs}]\n{to}"
    )
    return load_config(path)


def test_an_empty_target_gets_its_tables(
    postgres: Server, source_url: str, target_url: str, tmp_path: Path
) -> None:
    """Tables are created once, as by a bulk load; a table dropped later is not created empty."""
    other = postgres.make_database("other")
    try:
        for url in (source_url, other):
            with psycopg.connect(url, autocommit=True) as source:
                source.execute(TABLE)
        config = merged_of(tmp_path, [source_url, other], target_url)
        assert examine(config, only=["PK14", "PK13"]).errors == ()
        never: Any = lambda: False  # noqa: E731
        actions: Any = SimpleNamespace(word=lambda: "RUN")
        load = _Load(config, never, actions, never)
        with psycopg.connect(target_url, autocommit=True) as target:
            for _ in range(2):
                load.create_tables()
                found = target.execute(
                    "select indexdef from pg_indexes where tablename = 'account' order by 1"
                ).fetchall()
                assert len(found) == 2
                assert "(id)" in found[0][0] + found[1][0]
            target.execute(
                "insert into wirekite.wirekite_log (log_id, applied_gsn) values ('x', 1)"
            )
            target.execute("drop table account")
            load.create_tables()
            assert target.execute("select to_regclass('account')").fetchone() == (None,)
        config.path.write_text(config.path.read_text().replace('mode = "data+change"\n', "", 1))
        errors = examine(load_config(config.path), only=["PK14"]).errors
        assert [one.code for one in errors] == ["PK14"]
    finally:
        postgres.drop_database(other)


def test_a_merge_is_taken_back(tmp_path: Path) -> None:
    """The merge's directory and the links for it are removed; other links stay."""
    urls = [f"postgresql://u@127.0.0.1:1/s{number}" for number in range(2)]
    config = merged_of(tmp_path, urls, None)
    for one in config.inputs:
        REAL_FILES.make_directory(one.layout.log)
        save_state(
            one.layout.log,
            LogState(log_id="x", source={}, number_next=0, end=FlushPoint(position=1)),
        )
        for name in ("merge-all", "other"):
            register(log_place(one), name, start=Start.NOW)
    config.layout.state.mkdir(parents=True)
    found = look(config, with_tables=False)
    assert [one.what.rpartition("/")[2] for one in found.source] == ["merge-all"] * 2
    assert not found.is_empty
    done: list[str] = []
    carry_out(config, found, on_done=done.append)
    assert len(done) == 3
    for one in config.inputs:
        assert [path.name for path in one.layout.consumers.iterdir()] == ["other"]
    assert not config.layout.state.exists()
    assert look(config, with_tables=False).is_empty
