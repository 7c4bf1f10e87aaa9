"""`penstock merge` is killed as a process: the merged log is the same as without a kill."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from harness.pipelines.log import ITEM
from harness.pipelines.merged import LogOf, expected_rows, merged_rows, model, rows_for, world
from harness.pipelines.pipeline import penstock, write_pipeline

POINTS = (
    "extract.flush.before",
    "extract.flush.after",
    "log.create.after",
    "log.flush.before",
    "merge.shapes.before",
    "merge.state.before",
    "merge.state.after",
    "log.footer.before",
    "log.rename.before",
    "log.rename.after",
    "extract.acknowledge.after",
)


def files_of(folder: Path, logs: list[LogOf]) -> Path:
    """Write pipeline files of logs without servers, and return that of their merge."""
    names = [log.directory.name for log in logs]
    for name in names:
        url = "postgresql://unused@127.0.0.1:1/none"
        write_pipeline(folder, url, None, name=name, directory=name, file=f"{name}.toml")
    path = folder / "merged.toml"
    listed = ", ".join(f'"{name}.toml"' for name in names)
    path.write_text(
        '[pipeline]\nname = "all"\ndirectory = "all"\n'
        f"[merge]\nlogs = [{listed}]\njoinSeconds = 0.00003\nclockSkewSeconds = 0.000008\n"
        "[changeExtractor]\nexitWhenIdle = true\nidleWaitSeconds = 0.2\n"
        "flushIntervalSeconds = 0.1\neventsPerFlush = 2\n"
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_a_merge_that_is_killed_again_and_again(seed: int, tmp_path: Path) -> None:
    """Rows and numbers are equal, and no segment is released too early."""
    rng = random.Random(seed)
    of = world(rng)
    rows = rows_for(rng, of, [ITEM] * 9)
    logs = [
        LogOf(tmp_path / f"s{index}", transactions, rows[index])
        for index, transactions in enumerate(of.inputs)
    ]
    for log in logs:
        while log.written < len(log.transactions):
            log.write(rng.randint(1, 9), rotates=rng.random() < 0.6)
        log.end()
    path = files_of(tmp_path, logs)
    killed = 0
    for point in rng.sample(POINTS[:-4], 4) + rng.sample(POINTS[-4:], 2):
        plan = {"PENSTOCK_FAULT": f"{point}:1:kill"}
        killed += penstock("merge", path, "--checked", environment=plan).code < 0
    assert killed >= 2
    ran = penstock("merge", path, "--json", environment=dict(os.environ))
    assert ran.code == 0, ran.err
    assert merged_rows(tmp_path / "all") == expected_rows(model(of), logs)
