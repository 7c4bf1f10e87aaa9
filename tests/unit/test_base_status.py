"""Output of `penstock status` about the base and the segments that wait for it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from harness.pipelines.log import ITEM
from harness.pipelines.pipeline import pipeline
from penstock.base.manifest import BaseFile, BaseTable, Manifest, save_manifest
from penstock.control.status.status import read_base

URL = "postgresql://u@h/d"


def test_a_base_and_the_segments_that_it_holds(tmp_path: Path) -> None:
    """Segments that others link too are counted apart from those that only the base holds."""
    mode = {"pipeline": {"mode": "data+change"}}
    config = pipeline(tmp_path, URL, None, sections=mode)
    assert read_base(pipeline(tmp_path, URL, None, file="other.toml")) is None
    found = read_base(config)
    assert found is not None
    assert list(found.lines()) == ["base: no table is in it yet"]
    file = BaseFile(name="a.arrow", row_count=7, size_bytes=2048, crc32c=0)
    table = BaseTable(schema="public", name="item", relations=(ITEM,), files=(file,))
    config.layout.base.mkdir(parents=True)
    save_manifest(
        config.layout.base, Manifest(log_id="x", number=3, segment=5, gsn=70, tables=(table,))
    )
    links = config.layout.consumers / "base"
    links.mkdir(parents=True)
    config.layout.log.mkdir(parents=True)
    for number in (5, 6):
        (links / f"{number}.ckt").write_bytes(bytes(1024))
    os.link(links / "6.ckt", config.layout.log / "6.ckt")
    found = read_base(config)
    assert found is not None
    assert list(found.lines()) == [
        "base: 1 table, 7 rows, 2.0 KiB, up to segment 4",
        "base: holds 2 segments not in it yet, 2.0 KiB, 1.0 KiB of them alone",
    ]
    assert next(replace(found, segment=0).lines()).endswith("2.0 KiB, before any segment")
    assert found.as_dict() == {
        "tables": 1,
        "rows": 7,
        "size_bytes": 2048,
        "segment": 5,
        "segments": 2,
        "segment_bytes": 2048,
        "held_bytes": 1024,
    }
