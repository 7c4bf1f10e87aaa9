"""Record deletions as Spark writes them: `python -m record_lake_files` in tests/.

A table of each format has one data file of 70,000 numbers, in which the position of a number is the
number. Two DELETE statements leave a deletion with bitmaps and runs. The files go to `data/lake/`,
and `recorded.json` has their descriptors and the deleted ranges.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from harness.lake.spark import lake_session
from penstock.codec.lake import DeltaVector
from penstock.load.session import Session

FOLDER = Path(__file__).parent / "data" / "lake"
ROWS = 70_000
DELETED = [[1, 60_000, 2], [66_000, 69_500, 1], [69_990, 69_991, 1]]
"""Ranges of deleted numbers: start, end, step."""

STATEMENTS = (
    "delete from {} where id < 60000 and id % 2 = 1",
    "delete from {} where id >= 66000 and id < 69500 or id = 69990",
)


def run(session: Session, statement: str) -> Any:
    """Run a statement of Spark's SQL."""
    return session.spark.sql(statement)


def record_delta(session: Session, folder: Path) -> dict[str, Any]:
    """Record a `.bin` file and its descriptor."""
    table = f"delta.`{folder}/delta`"
    run(
        session,
        f"create table {table} using delta tblproperties (delta.enableDeletionVectors = true) "
        f"as select id from range(0, {ROWS}, 1, 1)",
    )
    for statement in STATEMENTS:
        run(session, statement.format(table)).collect()
    newest = sorted((folder / "delta" / "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    (vector,) = [one["add"]["deletionVector"] for one in actions if "add" in one]
    file = folder / "delta" / DeltaVector.of_json(vector).path
    return {"delta": vector, "files": [str(file)]}


def record_iceberg(session: Session, folder: Path, version: int) -> dict[str, Any]:
    """Record a Puffin file of version 3, or a Parquet file of version 2."""
    name = f"ice.db.v{version}"
    run(
        session,
        f"create table {name} using iceberg tblproperties ('format-version' = {version}, "
        f"'write.delete.mode' = 'merge-on-read') as select id from range(0, {ROWS}, 1, 1)",
    )
    for statement in STATEMENTS:
        run(session, statement.format(name)).collect()
    rows = run(
        session,
        f"select to_json(struct(*)) from {name}.delete_files",
    ).collect()
    deletes = [json.loads(row.getString(0)) for row in rows]
    data = run(session, f"select file_path from {name}.data_files").collect()
    paths = [one["file_path"].removeprefix("file:") for one in deletes]
    return {
        f"v{version}": [
            {
                "file": Path(path).name,
                "offset": one.get("content_offset"),
                "size": one.get("content_size_in_bytes"),
                "count": one["record_count"],
            }
            for path, one in zip(paths, deletes, strict=True)
        ],
        f"v{version} data": data[0].getString(0),
        "files": paths,
    }


def main() -> None:
    """Record all of them; what is recorded already stays if a later one fails."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conf = {
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": f"{folder}/ice",
        }
        found: dict[str, Any] = {"deleted": DELETED}
        with lake_session(folder / "spark", conf) as session:
            for version in (3, 2):
                keep(record_iceberg(session, folder, version), found)
            keep(record_delta(session, folder), found)


def keep(part: dict[str, Any], found: dict[str, Any]) -> None:
    """Copy the files of a table, and write the descriptors of all so far."""
    for file in part.pop("files"):
        shutil.copy(file, FOLDER)
    found.update(part)
    (FOLDER / "recorded.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
